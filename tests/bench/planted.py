"""Plants known defects, one at a time, and says which tests notice.

python tests/bench/planted.py [--list] [--copies N] [--minutes M] [--state FILE] [--again] [--every] [WORD ...]

planted.toml lists them: a file, its text and what a careless hand would make of it, the claim that is then false, and
the few tests of `make test` that must fail. The tree is copied to a temporary folder; there they are run with each
defect, and all that failed once more without any: a test that fails then, too, has caught nothing. WORD: only files,
claims or defects that contain it. --copies: so many side by side. What was decided on this very tree is not run again
(--again does); --minutes ends it in time, and the same command goes on. --every: tests that only `make test-all` runs
count, too. --list plants nothing.

Exit 0: each defect was caught; 1: one was not; 2: the list does not fit the tree; 3: some are left."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".package"), str(ROOT)]

from tests.bench import side_by_side  # noqa: E402

LIST = Path(__file__).with_suffix(".toml")
LIMIT_S = 300.0  # of one selection; a defect that makes tests hang is caught by the limit of a test
TEST_LIMIT_S = 60
SHOWN = 2  # names of tests in the table
TOGETHER = 20  # tests in one process


@dataclass(frozen=True, kw_only=True)
class Defect:
    claim: str
    defect: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def room(self) -> str:
        return "/".join(self.file.split("/")[:2])

    def wrong(self, root: Path) -> str:
        """Why it can't be planted; empty if it can."""
        path = root / self.file
        if not path.is_file():
            return f"{self.file}: there is no such file"
        times = path.read_text(encoding="utf-8").count(self.old)
        if times != 1:
            return f"{self.file}: its old text is found {times} times ({self.defect})"
        if self.new == self.old:
            return f"{self.file}: nothing is changed ({self.defect})"
        for test in self.tests:
            name, _, function = test.partition("::")
            if not (root / name).is_file():
                return f"{name}: there is no such file"
            word = f"def {function.partition('[')[0]}("
            if function and word not in (root / name).read_text(encoding="utf-8"):
                return f"{test}: there is no such test"
        return ""


@dataclass
class Row:
    """`failed`: tests, with the defect; `anyway`: those of them that fail without it, None while that is not known."""

    failed: list[str]
    wrong: str = ""  # why nothing is decided
    anyway: list[str] | None = None

    @property
    def caught(self) -> list[str]:
        return [test for test in self.failed if test not in (self.anyway or ())]

    def said(self) -> str:
        if self.wrong:
            return f"NOT DECIDED: {self.wrong}"
        return in_short(self.caught) or ("NOT CAUGHT: they fail anyway" if self.failed else "NOT CAUGHT")


def listed() -> list[Defect]:
    found = tomllib.loads(LIST.read_text(encoding="utf-8"))["planted"]
    return [Defect(**{**one, "tests": tuple(one["tests"])}) for one in found]


def files() -> list[str]:
    """Of this tree as it stands, without what git ignores."""
    said = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(name for name in said.stdout.split("\0") if name and os.path.lexists(ROOT / name))


def tree(names: Iterable[str], tests: Iterable[str] = ()) -> str:
    """A name for what a run of these tests depends on: all but words, other tests, and the list, whose lines are known
    by their own."""
    wanted = {test.partition("::")[0] for test in tests}
    seen = hashlib.sha256()
    for name in names:
        path = ROOT / name
        if name not in wanted and (path.name.startswith("test_") or path.suffix == ".md" or path == LIST):
            continue
        seen.update(name.encode() + b"\0" + (os.readlink(path).encode() if path.is_symlink() else path.read_bytes()))
    return seen.hexdigest()[:16]


def copy(names: Iterable[str], to: Path) -> Path:
    for name in names:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name, follow_symlinks=False)
    return to


def run(place: Path, tests: Iterable[str], *, every: bool) -> tuple[int, list[str], str]:
    """pytest's status, the tests that failed, its last line. One process, with a /run of its own (tests/worker)."""
    log = place.with_name(f"{place.name}.jsonl")
    log.unlink(missing_ok=True)
    known = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    known |= {"LOSSBENCH_TESTED": str(log), "WORKER_PYTHON": sys.executable, "PYTHONPATH": f"{place}/.package:{place}"}
    options = ["-q", "-p", "no:cacheprovider", f"--timeout={TEST_LIMIT_S}"]
    options += [] if every else ["-m", side_by_side.DECIDES]
    said = log.with_suffix(".txt")
    with open(said, "wb") as output:
        child = subprocess.Popen(
            ["tests/worker", "-m", "pytest", *options, *tests],
            cwd=place,
            env=known,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            child.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    failed = [row["test"] for row in side_by_side.read(log) if row["outcome"] == "failed"]
    lines = [line for line in said.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return child.returncode, list(dict.fromkeys(failed)), (lines or [""])[-1]


def plant(one: Defect, place: Path, *, every: bool) -> Row:
    path = place / one.file
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole.replace(one.old, one.new), encoding="utf-8")
    try:
        status, failed, last = run(place, one.tests, every=every)
    finally:
        path.write_text(whole, encoding="utf-8")
    return Row(failed, "" if failed or status == 0 else f"pytest ended with {status}: {last[:200]}")


def in_short(tests: list[str]) -> str:
    names = [test.removeprefix("tests/").replace(".py::test_", " ") for test in tests]
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return "; ".join(names[:SHOWN]) + rest


def table(rows: Iterable[tuple[Defect, Row]]) -> str:
    lines = ["| claim | planted | caught by |", "|---|---|---|"]
    lines += [f"| {one.claim} | {one.defect} | {row.said().replace('|', '/')} |" for one, row in rows]
    return "\n".join(lines)


def key(one: Defect, names: Iterable[str], *, every: bool) -> str:
    """Of a defect in this very tree."""
    said = f"{one} {tree(names, one.tests)} {every}"
    return hashlib.sha256(said.encode()).hexdigest()[:16]


@dataclass
class Known:
    """What was decided, by key; a line of a file each, the latest counts."""

    path: Path
    rows: dict[str, Row]

    @classmethod
    def read(cls, path: Path, *, again: bool) -> Known:
        path.parent.mkdir(parents=True, exist_ok=True)
        return cls(path, {} if again else {row.pop("key"): Row(**row) for row in side_by_side.read(path)})

    def add(self, key: str, row: Row) -> None:
        self.rows[key] = row
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, **asdict(row)}) + "\n")


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--list", action="store_true")
    asked.add_argument("--again", action="store_true")
    asked.add_argument("--every", action="store_true")
    asked.add_argument("--copies", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    asked.add_argument("--minutes", type=float, default=1e9)
    asked.add_argument("--state", type=Path, default=ROOT / "build" / "planted.jsonl")
    asked.add_argument("words", nargs="*", metavar="WORD")
    given = asked.parse_args()
    chosen = [
        one
        for one in listed()
        if not given.words or any(word in f"{one.file} {one.claim} {one.defect}" for word in given.words)
    ]
    if wrong := [said for one in chosen if (said := one.wrong(ROOT))]:
        print(*wrong, sep="\n", file=sys.stderr)
        return 2
    if given.list:
        print(*(f"{one.room}: {one.claim}: {one.defect}" for one in chosen), sep="\n")
        return 0
    names = files()
    keys = {one: key(one, names, every=given.every) for one in chosen}
    known = Known.read(given.state, again=given.again)
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        plant_all(keys, known, given, names, Path(folder))
    rows = [(one, known.rows[keys[one]]) for one in chosen if keys[one] in known.rows]
    print(f"\n{table(rows)}\n\n{sum(bool(row.caught) for _, row in rows)} of {len(rows)} caught")
    if not all(row.caught for _, row in rows):
        return 1
    return 3 if len(rows) < len(chosen) or any(row.anyway is None for _, row in rows) else 0


def plant_all(keys: dict[Defect, str], known: Known, given: argparse.Namespace, names: list[str], folder: Path) -> None:
    end = time.monotonic() + 60 * given.minutes
    left = [one for one, mine in keys.items() if mine not in known.rows]
    places: SimpleQueue[Path] = SimpleQueue()
    for number in range(min(given.copies, max(len(left), 1))):
        places.put(copy(names, folder / f"tree-{number}"))

    def one_by_one(one: Defect) -> None:
        place = places.get()
        try:
            began = time.monotonic()
            if began < end:
                known.add(keys[one], plant(one, place, every=given.every))
                took = time.monotonic() - began
                print(f"{took:5.0f} s  {one.file}: {one.defect}: {known.rows[keys[one]].said()}", flush=True)
        finally:
            places.put(place)

    with ThreadPoolExecutor(max(given.copies, 1)) as pool:
        list(pool.map(one_by_one, left))
        mine = [known.rows[one] for one in keys.values() if one in known.rows]
        todo = dict.fromkeys(test for row in mine if row.anyway is None for test in row.failed)

        def as_it_is(some: list[str]) -> list[str]:
            place = places.get()
            try:
                status, failed, _ = run(place, some, every=given.every)
                return failed if status in (0, 1) else some  # nobody knows: as if they failed
            finally:
                places.put(place)

        parts = [list(todo)[at : at + TOGETHER] for at in range(0, len(todo), TOGETHER)]
        if time.monotonic() > end:
            return
        anyway = {test for found in pool.map(as_it_is, parts) for test in found}
    for one in keys.values():
        row = known.rows.get(one)
        if row is not None and row.anyway is None:
            known.add(one, Row(row.failed, row.wrong, [test for test in row.failed if test in anyway]))


if __name__ == "__main__":
    sys.exit(main())
