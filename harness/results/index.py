"""Finding results: suites in a folder, their runs; what is damaged or foreign is named and left out."""

from __future__ import annotations

import difflib
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from lossbench.contract import SEEDS_VERSION
from lossbench.errors import UsageError
from lossbench.results import models, notes, programs
from lossbench.results.measures import Standing
from lossbench.results.models import ProofRow, RunSummary, SuitePlan, Word
from lossbench.results.naming import point_name

REPLAYED = "-replay"  # a single line, run again: never meant by `latest`
WORDS = get_args(Word)  # from best to worst


@dataclass(frozen=True)
class Run:
    """One run that ended."""

    folder: Path
    number: int
    summary: RunSummary
    other_program: bool = False

    @property
    def name(self) -> str:
        return point_name(self.summary.point)

    @property
    def simulated(self) -> bool:
        return self.summary.backend == "simulated"

    @property
    def standing(self) -> Standing:
        return replace(self.summary.standing(), other_program=self.other_program)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return self._json("manifest.json")

    def damaged(self) -> list[str]:
        """Files beside the summary that are there but can't be read: the tables do without them."""
        here = [self.folder / name for name in ("manifest.json", "proof.json")]
        return [f"{path}: damaged: done without" for path in here if path.exists() and not self._json(path.name)]

    def proof_rows(self) -> list[ProofRow]:
        """Those that can be read."""
        rows, out = self._json("proof.json").get("rows", []), []
        for row in rows if isinstance(rows, list) else []:
            with suppress(ValidationError):
                out.append(ProofRow.model_validate(row))
        return out

    def _json(self, name: str) -> dict[str, Any]:
        """Empty where it is missing or damaged: the summary alone makes the tables."""
        try:
            found = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


@dataclass
class Suite:
    """One folder of `lossbench run`."""

    folder: Path
    plan: SuitePlan
    runs: list[Run] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    changed_files: list[str] = field(default_factory=list)  # of the user's programs, from one run to another
    changed_beside: list[str] = field(default_factory=list)  # code that lies beside them

    @property
    def id(self) -> str:
        return self.plan.run_id

    @property
    def name(self) -> str:
        return self.plan.suite

    @property
    def started(self) -> str:
        return self.plan.sessions[0].started

    @property
    def commit(self) -> str:
        """Of every session that worked on it; + where there were uncommitted changes."""
        gits = [session.git for session in self.plan.sessions]
        names = [str(git.get("commit", ""))[:10] + ("+" if git.get("dirty") else "") for git in gits]
        return " ".join(dict.fromkeys(names))

    @cached_property
    def notes(self) -> notes.Notes:
        """What people wrote on it."""
        return notes.read(self.folder)

    def shared_patterns(self) -> list[str]:
        """Results whose seeds are not independent say so, for ever."""
        if all(run.summary.seeds_version >= SEEDS_VERSION for run in self.runs):
            return []
        return [
            f"{self.name} {self.id}: made when seeds shared patterns (host r of seed s lost the packets of host r+1 of "
            "seed s-1): intervals and tests over its seeds are too narrow. Run it again."
        ]

    def remarks(self) -> list[str]:
        """What holds for the whole of it."""
        return [*self.shared_patterns(), *self.changed_programs()]

    def changed_programs(self) -> list[str]:
        """Means, differences and p-values are of one program."""
        others = ", ".join(f"{run.number:03d}" for run in self.runs if run.other_program)
        told = programs.in_words(others, self.changed_files, self.changed_beside)
        return [f"{self.name} {self.id}: {text}" for text in told]

    @property
    def verdict(self) -> str:
        """The worst of its runs; unknown while some are missing."""
        words = [run.summary.verdict for run in self.runs]
        if len(words) < len(self.plan.plan):
            words.append("unknown")
        return max(words, key=WORDS.index, default="unknown")


def read_suite(folder: Path) -> Suite:
    """Raises UsageError if this is not one."""
    suite = Suite(folder=folder, plan=models.read(folder / "suite.json", SuitePlan))
    for planned in suite.plan.plan:
        place = folder / f"{planned.number:03d}"
        try:
            if not (place / "summary.json").exists():
                suite.problems.append(f"{place}: did not end ({'killed' if place.exists() else 'not begun'})")
                continue
            run = Run(place, planned.number, models.read(place / "summary.json", RunSummary))
        except UsageError as error:
            suite.problems.append(f"{error}: left out")
            continue
        except OSError as error:
            suite.problems.append(f"{place}: can't be read ({error.strerror}): left out")
            continue
        if not run.summary.is_of(planned.point, planned.seed):
            suite.problems.append(f"{place}: another point or seed than was planned here: left out")
            continue
        suite.problems += run.damaged()
        suite.runs.append(run)
    if any(session.programs and not session.lab for session in suite.plan.sessions):  # a lab's machines have their own
        _tell_programs_apart(suite)
    return suite


def _tell_programs_apart(suite: Suite) -> None:
    in_time = sorted(suite.runs, key=lambda run: str(run.manifest.get("started", "")))
    named = [programs.named(run.manifest.get("programs")) for run in in_time]
    numbers, suite.changed_files = programs.editions(named)
    others = {in_time[place].number for place in programs.left_out(numbers) if named[place]}
    every = [programs.digests(run.manifest.get("programs")) for run in in_time]
    suite.changed_beside = [name for name in programs.editions(every)[1] if name not in suite.changed_files]
    suite.changed_beside = [name for name in suite.changed_beside if name.endswith(programs.CODE)]
    suite.runs = [replace(run, other_program=run.number in others) for run in suite.runs]  # forgets the manifests, too


def scan(root: Path) -> tuple[list[Suite], list[str]]:
    """All suites below `root`, oldest first, and what was left out."""
    suites, problems = [], []
    for path in sorted(_entries(root)):
        try:
            ours = (path / "suite.json").exists()
        except OSError:
            ours = False
        if not ours:
            problems.append(f"{path}: not a run folder: left out")
            continue
        try:
            suites.append(read_suite(path))
        except UsageError as error:
            problems.append(f"{error}: left out")
    return sorted(suites, key=lambda suite: (suite.started, suite.folder.name)), problems


def _entries(root: Path) -> Iterator[Path]:
    if not root.is_dir():
        raise UsageError(f"{root}: no such folder", next_step="make results first: lossbench run quickstart")
    yield from (path for path in root.iterdir() if not path.name.startswith("."))


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which suites are wanted; empty means any."""

    suite: str = ""
    verdict: str = ""
    since: str = ""
    commit: str = ""
    tag: str = ""

    def __post_init__(self) -> None:
        if self.since:
            try:
                day = time.strftime("%Y-%m-%d", time.strptime(self.since, "%Y-%m-%d"))
                object.__setattr__(self, "since", day)
            except ValueError:
                raise UsageError(f"--since {self.since}: not a date", next_step="for example 2026-11-15") from None
        if self.verdict and self.verdict not in WORDS:
            raise UsageError(f"--verdict {self.verdict}: no such verdict", next_step=f"known: {', '.join(WORDS)}")

    def takes(self, suite: Suite) -> bool:
        return (
            (not self.suite or suite.name == self.suite)
            and (not self.verdict or suite.verdict == self.verdict)
            and (not self.tag or self.tag in suite.notes.tags)
            and (not self.since or suite.started[:10] >= self.since)
            and (not self.commit or any(part.startswith(self.commit[:10]) for part in suite.commit.split()))
        )


def pick(words: list[str], root: Path) -> tuple[list[Suite], list[str]]:
    """Each word is a folder, `latest`, a run's id, a suite's name (its latest), or a commit (all made with it)."""
    out: list[Suite] = []
    problems: list[str] = []
    known: list[Suite] | None = None
    for word in words:
        folder = _suite_folder(Path(word))
        if (folder / "suite.json").exists():
            out.append(read_suite(folder))
            continue
        if os.sep in word or not root.is_dir():
            _refuse_a_path(word)
        if known is None:
            known, problems = scan(root)
        out += _named(word, known, root)
    distinct = {suite.folder.resolve(): suite for suite in out}
    return list(distinct.values()), problems + [text for suite in distinct.values() for text in suite.problems]


def number_of(word: str) -> int | None:
    """The run's number, if its own folder was given."""
    path = Path(word)
    return int(path.name) if (path / "manifest.json").exists() and path.name.isdecimal() else None


def _suite_folder(path: Path) -> Path:
    """The suite that a folder is, or that the run in it belongs to. A word that is no folder is neither, wherever one
    stands: in a suite's own folder every word has one above it."""
    ours = path.is_dir() and (path.parent / "suite.json").exists() and not (path / "suite.json").exists()
    return path.parent if ours else path


def _refuse_a_path(word: str) -> None:
    """Something that is there, and holds no results."""
    path = Path(word)
    if path.is_file():
        raise UsageError(f"{word} is a file", next_step="name a result: its folder, its id, or latest")
    if path.is_dir() and next(path.glob("*/suite.json"), None) is not None:
        raise UsageError(f"{word} holds several results", next_step=f"name one of them; lossbench report --in {word}")
    if path.is_dir():
        step = "a result's folder has a suite.json; lossbench report lists those in results/runs"
        raise UsageError(f"{word} holds no results", next_step=step)


def _named(word: str, known: list[Suite], root: Path) -> list[Suite]:
    if word == "latest" and known:
        whole = [suite for suite in known if not suite.name.endswith(REPLAYED)]
        return [(whole or known)[-1]]
    found = [suite for suite in known if suite.id == word or suite.folder.name == word]  # a name may look like an id
    by_name = [suite for suite in known if suite.name == word]
    if by_name and not found:
        return [by_name[-1]]
    if not found and len(word) >= 6:
        found = [suite for suite in known if any(part.startswith(word[:10]) for part in suite.commit.split())]
    if not found:
        _refuse_a_path(word)
        near = difflib.get_close_matches(word, {name for one in known for name in (one.id, one.name)}, n=2)
        guess = f"did you mean {' or '.join(sorted(near))}? " if near else ""
        step = f"{guess}`lossbench report --in {root}` lists them; or give a folder"
        raise UsageError(f"no run '{word}' in {root}", next_step=step)
    return found
