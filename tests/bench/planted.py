"""Plants known defects, one at a time, and says which tests notice.

python tests/bench/planted.py [--list] [--copies N] [--minutes M] [--state FILE] [--again] [--every] [WORD ...]

planted.toml lists them: a file, its text and what a careless hand would make of it, the claim that is then false, and
the few tests of `make test` that must fail. The tree is copied to a temporary folder; there the tests are run as they
are, which must pass, and once for each defect. WORD: only rooms, files or claims that contain it. --copies: so many
side by side. What was decided on this very tree is not run again (--again does); --minutes ends it in time, and the
same command goes on. --every: tests that only `make test-all` runs count, too. --list plants nothing.

Exit 0: each defect was caught; 1: one was not, or the tests fail without one; 2: the list does not fit the tree;
3: some are left."""

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
LIMIT_S = 240.0  # of one selection; a defect that makes tests hang is caught by the limit of a test
TEST_LIMIT_S = 60
SHOWN = 2  # names of tests in the table


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


@dataclass(frozen=True)
class Row:
    claim: str
    defect: str
    caught: bool
    said: str  # who caught it, or what was in the way


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


def tree(names: Iterable[str]) -> str:
    """A name for what stands in these files."""
    seen = hashlib.sha256()
    for name in names:
        path = ROOT / name
        seen.update(name.encode() + b"\0" + (os.readlink(path).encode() if path.is_symlink() else path.read_bytes()))
    return seen.hexdigest()[:16]


def copy(names: Iterable[str], to: Path) -> Path:
    for name in names:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name, follow_symlinks=False)
    return to


def run(place: Path, tests: Iterable[str], *, every: bool) -> tuple[int, list[str], str]:
    """pytest's status, the tests that failed, its last lines. One process, with a /run of its own (tests/worker)."""
    log = place.with_name(f"{place.name}.jsonl")
    log.unlink(missing_ok=True)
    known = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    options = ["-q", "-p", "no:cacheprovider", f"--timeout={TEST_LIMIT_S}"]
    options += [] if every else ["-m", side_by_side.DECIDES]
    child = subprocess.Popen(
        ["tests/worker", "-m", "pytest", *options, *tests],
        cwd=place,
        env={
            **known,
            "LOSSBENCH_TESTED": str(log),
            "WORKER_PYTHON": sys.executable,
            "PYTHONPATH": f"{place}/.package:{place}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        text, _ = child.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        text, _ = child.communicate()
    failed = [row["test"] for row in side_by_side.read(log) if row["outcome"] == "failed"]
    return child.returncode, list(dict.fromkeys(failed)), text[-2000:]


def plant(one: Defect, place: Path, *, every: bool) -> Row:
    path = place / one.file
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole.replace(one.old, one.new), encoding="utf-8")
    try:
        status, failed, text = run(place, one.tests, every=every)
    finally:
        path.write_text(whole, encoding="utf-8")
    if failed:
        return Row(one.claim, one.defect, True, in_short(failed))
    if status == 0:
        return Row(one.claim, one.defect, False, "NOT CAUGHT")
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    return Row(one.claim, one.defect, False, f"NOT DECIDED: pytest ended with {status}: {last[:200]}")


def in_short(tests: list[str]) -> str:
    names = [test.removeprefix("tests/").replace(".py::test_", " ") for test in tests]
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return "; ".join(names[:SHOWN]) + rest


def table(rows: Iterable[Row]) -> str:
    lines = ["| claim | planted | caught by |", "|---|---|---|"]
    lines += [f"| {row.claim} | {row.defect} | {row.said} |".replace("||", "\\|\\|") for row in rows]
    return "\n".join(lines)


def decided(state: Path, of: str) -> dict[str, Row]:
    rows = side_by_side.read(state)
    return {row["key"]: Row(**row["row"]) for row in rows if row["tree"] == of}


def key(one: Defect) -> str:
    return hashlib.sha256(repr(one).encode()).hexdigest()[:16]


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
    return planted(chosen, given)


def planted(chosen: list[Defect], given: argparse.Namespace) -> int:
    names, end = files(), time.monotonic() + 60 * given.minutes
    this = tree(names) + (" every" if given.every else "")
    given.state.parent.mkdir(parents=True, exist_ok=True)
    known = {} if given.again else decided(given.state, this)
    left = [one for one in chosen if key(one) not in known]
    bad: list[str] = []
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        places: SimpleQueue[Path] = SimpleQueue()
        for number in range(min(given.copies, max(len(left), 1))):
            places.put(copy(names, Path(folder) / f"tree-{number}"))

        def one_by_one(one: Defect) -> None:
            if time.monotonic() > end:
                return
            place = places.get()
            try:
                began = time.monotonic()
                status, failed, text = run(place, one.tests, every=given.every)
                if status != 0:
                    bad.append(f"without a defect: {in_short(failed) or text}")
                    return
                row = plant(one, place, every=given.every)
            finally:
                places.put(place)
            known[key(one)] = row
            print(f"{time.monotonic() - began:5.0f} s  {one.file}: {row.defect}: {row.said}", flush=True)
            with given.state.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"tree": this, "key": key(one), "row": asdict(row)}) + "\n")

        with ThreadPoolExecutor(max(given.copies, 1)) as pool:
            list(pool.map(one_by_one, left))
    rows = [known[key(one)] for one in chosen if key(one) in known]
    print(f"\n{table(rows)}\n\n{sum(row.caught for row in rows)} of {len(rows)} caught")
    print(*bad, sep="\n")
    if bad or not all(row.caught for row in rows):
        return 1
    return 3 if len(rows) < len(chosen) else 0


if __name__ == "__main__":
    sys.exit(main())
