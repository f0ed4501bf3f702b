"""Results (or anything) as one archive, in parts where a way takes only so much; and back again, into results that may
be there half already: a campaign that went on elsewhere."""

from __future__ import annotations

import gzip
import re
import shutil
import tarfile
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lossbench.errors import UsageError
from lossbench.files import as_json, disk_errors, write_durably
from lossbench.results import models
from lossbench.results.folders import SuiteFolder
from lossbench.results.index import WORDS
from lossbench.results.models import RunSummary, SuitePlan, SuiteSummary
from lossbench.results.naming import key_of

MIB = 1 << 20
PART = re.compile(r"(?P<whole>.+)\.part-(?P<number>\d+)-of-(?P<count>\d+)$")


def pack(paths: Sequence[tuple[Path, str]], to: Path, *, part_mib: int = 0, leave: Sequence[str] = ()) -> list[Path]:
    """(what, its name inside); `leave`: names of files and folders that stay behind. Returns the files written."""
    count = Counter(name for _, name in paths)
    if twice := [str(path) for path, name in paths if count[name] > 1]:
        raise UsageError(f"{' and '.join(twice)} have the same name", next_step="an archive each, or rename one")

    def taken(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if Path(member.name).name in leave else member

    with disk_errors(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(to, "w:gz") as archive:
            for path, name in paths:
                archive.add(path, arcname=name, filter=taken)
        return _cut(to, part_mib * MIB) if part_mib else [to]


def _cut(whole: Path, size: int) -> list[Path]:
    for old in _parts_beside(whole.parent, whole.name):
        old.unlink()  # of an archive of the same name: their ends would be taken for this one's
    count = max(1, -(-whole.stat().st_size // size))
    width = len(str(count))  # in order for `cat part-*`, too
    out = [whole.with_name(f"{whole.name}.part-{n + 1:0{width}}-of-{count}") for n in range(count)]
    with open(whole, "rb") as file:
        for path in out:
            path.write_bytes(file.read(size))
    whole.unlink()
    return out


def parts_of(given: Path) -> list[Path]:
    """By the whole's name or any of its parts: all of them, in order."""
    match = PART.match(given.name)
    if given.exists() and match is None:
        return [given]
    beside = _parts_beside(given.parent, match["whole"] if match else given.name)
    counts = {int(found["count"]) for path in beside if (found := PART.match(path.name))}
    if not beside:
        raise UsageError(f"{given}: no such file")
    if len(counts) > 1:
        raise UsageError(f"{given}: parts of several archives lie there", next_step="remove those of the older one")
    count, numbers = counts.pop(), {int(found["number"]): path for path in beside if (found := PART.match(path.name))}
    missing = sorted(set(range(1, count + 1)) - set(numbers))
    if missing:
        raise UsageError(f"{given}: part {missing[0]} of {count} is missing", next_step="bring it into the same folder")
    return [numbers[number] for number in range(1, count + 1)]


def _parts_beside(folder: Path, whole: str) -> list[Path]:
    return [path for path in folder.glob("*") if (found := PART.match(path.name)) and found["whole"] == whole]


def _joined(parts: Sequence[Path], to: Path) -> Path:
    if len(parts) == 1:
        return parts[0]
    with open(to, "wb") as whole:
        for path in parts:
            with open(path, "rb") as file:
                shutil.copyfileobj(file, whole)
    return to


def _check_sum(whole: Path) -> None:
    """gzip's own, which stands at its end: tar looks at no content, and stops before it."""
    with gzip.open(whole) as file:
        while file.read(MIB):
            pass


@contextmanager
def opened(given: Path, into: Path) -> Iterator[Path]:
    """What is inside, beside where it goes to; nothing of it may point elsewhere."""
    parts = parts_of(given)
    with disk_errors(into):
        into.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=into, prefix=".import-") as folder:
            try:
                whole = _joined(parts, Path(folder, ".whole"))
                _check_sum(whole)
                with tarfile.open(whole, "r:gz") as archive:
                    archive.extractall(folder, filter="data")
            except (tarfile.TarError, EOFError, ValueError, OSError, zlib.error) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                raise UsageError(f"{given} is no archive of results, or damaged ({error})") from None
            yield Path(folder)


def bring_in(given: Path, into: Path) -> list[tuple[Path, int, int]]:
    """Results of an archive into a folder of results: (suite, runs that are new, runs that were there)."""
    out = []
    with opened(given, into) as unpacked:
        suites = sorted(path.parent for path in unpacked.glob("*/suite.json"))
        if not suites:
            raise UsageError(f"{given} holds no results", next_step="lossbench pack makes such archives")
        places = _places(suites, into)  # before anything is moved
        for suite, place in places:
            out.append(_merged(suite, place))
    return out


def _places(suites: list[Path], into: Path) -> list[tuple[Path, Path]]:
    """(suite, where it goes): to the same suite by its id and plan, whatever its folder is called here; else to one of
    its own name, which must not be another's."""
    here = {_same(path.parent): path.parent for path in sorted(into.glob("*/suite.json"), reverse=True)}
    out = []
    for suite in suites:
        wanted = _same(suite)
        if wanted is None:
            models.read(suite / "suite.json", SuitePlan)  # says why
        place = here.get(wanted, into / suite.name)
        if wanted not in here and place.exists():
            raise UsageError(
                f"{place} is another suite than the archive's {suite.name}", next_step="rename it, or give another --in"
            )
        out.append((suite, place))
    return out


def _same(folder: Path) -> str | None:
    """What two copies of a suite share: its id, and every point and seed under its number. None: it can't be read."""
    try:
        plan = models.read(folder / "suite.json", SuitePlan)
    except UsageError:
        return None
    return as_json([plan.run_id, plan.suite, [[one.number, key_of(one.point), one.seed] for one in plan.plan]])


def _merged(new: Path, here: Path) -> tuple[Path, int, int]:
    """What is here is never replaced; whoever runs it now is left alone."""
    runs = [path for path in sorted(new.iterdir()) if (path / "summary.json").exists()]
    if not here.exists():
        new.rename(here)
        return here, len(runs), 0
    with SuiteFolder(here).locked():
        there = {path.name for path in here.iterdir() if (path / "summary.json").exists()}
        fresh = [path for path in runs if path.name not in there]
        for path in fresh:
            shutil.rmtree(here / path.name, ignore_errors=True)  # what a killed run left
            path.rename(here / path.name)
        if fresh:
            _join_plans(new, here)
    return here, len(fresh), len(runs) - len(fresh)


def _join_plans(new: Path, here: Path) -> None:
    """Who made what: the sessions of both, in order; the rows of all runs; other files where there are none."""
    mine, other = (models.read(place / "suite.json", SuitePlan).model_dump() for place in (here, new))
    both = [*mine["sessions"], *(one for one in other["sessions"] if one not in mine["sessions"])]
    mine["sessions"] = sorted(both, key=lambda one: str(one.get("started", "")))
    write_durably(here / "suite.json", as_json(mine, indent=1) + "\n")
    rows = [models.read(path, RunSummary) for path in sorted(here.glob("[0-9]*/summary.json"))]
    if rows and (here / "summary.json").exists():
        known = models.read(here / "summary.json", SuiteSummary).model_dump()
        known |= {"verdict": max((row.verdict for row in rows), key=WORDS.index), "summary": rows}
        write_durably(here / "summary.json", SuiteSummary.model_validate(known).model_dump_json(indent=1) + "\n")
    for path in new.iterdir():
        if path.is_file() and not (here / path.name).exists():
            path.rename(here / path.name)
