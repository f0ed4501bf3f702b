"""Runs tests again and again and lists every one that ever failed.

python tests/bench/steady.py [--times 20] [--load M] [--minutes 9] [--workers N] [--state FILE] [--any] [selection ...]

Each test of the selection (as for pytest; default: what `make test` runs) is run --times times, side by side; each
worker has its own /run, and --load busy loops run beside. --minutes ends it in time; the same command goes on then,
from the file --state; runs of other commits, and of the tree before a change, that stand there do not count. --any:
also those that `make test` leaves out. The end says how many runs are left, and how long that takes at this pace.
Exit 0: all done and none failed; 1: some failed; 3: more is to be done."""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".package"), str(ROOT)]

from tests.bench import again, side_by_side  # noqa: E402
from tests.shared import python_files  # noqa: E402

MOST = 8  # rounds of one collection: its list goes to every worker


def collected(selection: list[str], *, every: bool) -> list[str]:
    marked = [] if every else ["-m", side_by_side.DECIDES]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *marked, *selection]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if "::" in line and not line.startswith(" ")]
    if not found:
        sys.exit(
            f"nothing is selected by {' '.join(selection) or 'nothing'}:\n{done.stdout[-600:]}{done.stderr[-600:]}"
        )
    return found


def commit() -> str:
    """Of what is tested; with a mark and what is different where something is changed. In a copy without a history what
    its files hold."""
    told = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        name = subprocess.run(told, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        changes = subprocess.run(["git", "diff", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return f"files {files()}"
    return f"{name} {hashlib.sha256(changes).hexdigest()[:8]}" if changes else name


def files() -> str:
    paths = [*python_files("harness", "workloads", "tests"), *sorted(ROOT.glob("workloads/**/*.c"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:12]


def of_commit(state: Path, sha: str) -> list[dict]:
    """Runs of this very commit: those before a mend say nothing of it."""
    rows = side_by_side.read(state)
    mine = [row for row in rows if row.get("commit") == sha]
    if len(mine) < len(rows):
        print(f"{len(rows) - len(mine)} runs of other commits in {state} do not count")
    return mine


def missing(rows: list[dict], tests: list[str], times: int) -> dict[str, int]:
    """Runs that are left, by test; one that this machine skips is skipped once."""
    ended = Counter(row["test"] for row in rows)
    skipped = {row["test"] for row in rows if row["outcome"] == "skipped"}
    left = {test: 0 if test in skipped else max(times - ended[test], 0) for test in tests}
    return {test: count for test, count in left.items() if count}


def report(rows: list[dict], left: dict[str, int]) -> int:
    ended = Counter(row["test"] for row in rows if row["outcome"] != "skipped")
    failed = [row for row in rows if row["outcome"] == "failed"]
    often = Counter(row["test"] for row in failed)
    print(f"{sum(ended.values())} runs of {len(ended)} tests, {len(failed)} failed; {len(often)} tests ever failed")
    for test, count in often.most_common():
        last = [row for row in failed if row["test"] == test][-1]
        print(f"  {count} of {ended[test]}: {test}\n      {last['why']}\n      {last['machine']}")
    if left:
        print(f"{sum(left.values())} runs of {len(left)} tests are left: the same command goes on")
    return 1 if failed else 3 if left else 0


def run_rounds(wanted: dict[str, int], given: argparse.Namespace, folder: Path, limit_s: float) -> list[dict]:
    """One collection, and of it as many runs as the time allows."""
    log, asked = folder / "log.jsonl", folder / "again.json"
    log.unlink(missing_ok=True)
    asked.write_text(json.dumps({"most": MOST, "wanted": wanted}), encoding="utf-8")
    code = side_by_side.run_tests(
        given.selection,
        marked="" if given.any else side_by_side.DECIDES,
        count=given.workers,
        log=log,
        limit_s=limit_s,
        more=["-p", "tests.bench.again"],
        environment={again.WHERE: str(asked)},
    )
    rows = side_by_side.read(log)
    if not rows:
        print(log.with_suffix(".out").read_text(errors="replace")[-2000:], f"\npytest ended with {code}, nothing ran")
    return rows


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--times", type=int, default=20)
    asked.add_argument("--load", type=int, default=0, help="busy loops beside")
    asked.add_argument("--minutes", type=float, default=9.0)
    asked.add_argument("--workers", type=int, default=side_by_side.workers())
    asked.add_argument("--state", type=Path, default=ROOT / "build" / "steady.jsonl")
    asked.add_argument("--any", action="store_true")
    asked.add_argument("selection", nargs="*")
    given = asked.parse_args()
    given.state.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * given.minutes
    tests, sha = collected(given.selection, every=given.any), commit()
    rows, here, began = of_commit(given.state, sha), 0, time.monotonic()
    with side_by_side.busy(given.load), tempfile.TemporaryDirectory() as folder:
        while (left := missing(rows, tests, given.times)) and (limit_s := end - time.monotonic()) > 30:
            ran = run_rounds(left, given, Path(folder), limit_s)
            if not ran:
                break
            with given.state.open("a", encoding="utf-8") as state:
                state.writelines(json.dumps({**row, "commit": sha}) + "\n" for row in ran)
            rows, here = rows + ran, here + len(ran)
    code = report(rows, left)
    if left and here:
        print(f"at this pace in {(time.monotonic() - began) / here * sum(left.values()) / 60:.0f} minutes")
    return code


if __name__ == "__main__":
    sys.exit(main())
