"""Runs tests again and again and lists every one that ever failed.

python tests/bench/steady.py [--times 20] [--load M] [--minutes 9] [--workers N] [--state FILE] [--any] [selection ...]

Each test of the selection (as for pytest; default: what `make test` runs) is run --times times, side by side; each
worker has its own /run, and --load busy loops run beside. --minutes ends it in time; the same command goes on then,
from the file --state; runs of other commits, and of the tree before a change, that stand there do not count. --any:
also those that `make test` leaves out. Exit 0: all done and none failed; 1: some failed; 3: more is to be done."""

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

from tests.bench import side_by_side  # noqa: E402


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
    """Of what is tested; with a mark and what is different where something is changed."""
    told = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    name = subprocess.run(told, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    changes = subprocess.run(["git", "diff", "HEAD"], cwd=ROOT, capture_output=True, check=False).stdout
    return f"{name} {hashlib.sha256(changes).hexdigest()[:8]}" if changes else name


def of_commit(state: Path, sha: str) -> list[dict]:
    """Runs of this very commit: those before a mend say nothing of it."""
    rows = side_by_side.read(state)
    mine = [row for row in rows if row.get("commit") == sha]
    if len(mine) < len(rows):
        print(f"{len(rows) - len(mine)} runs of other commits in {state} do not count")
    return mine


def report(rows: list[dict], tests: list[str], times: int) -> int:
    ended = Counter(row["test"] for row in rows if row["outcome"] != "skipped")
    failed = [row for row in rows if row["outcome"] == "failed"]
    often = Counter(row["test"] for row in failed)
    print(f"{sum(ended.values())} runs of {len(ended)} tests, {len(failed)} failed; {len(often)} tests ever failed")
    for test, count in often.most_common():
        last = [row for row in failed if row["test"] == test][-1]
        print(f"  {count} of {ended[test]}: {test}\n      {last['why']}\n      {last['machine']}")
    counts = Counter(row["test"] for row in rows)
    left = sum(max(times - counts[test], 0) for test in tests)
    if left:
        print(f"{left} runs are left: the same command goes on")
    return 1 if failed else 3 if left else 0


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
    with side_by_side.busy(given.load), tempfile.TemporaryDirectory() as folder:
        while (left := end - time.monotonic()) > 30:
            mine = [row for row in side_by_side.read(given.state) if row.get("commit") == sha]
            counts = Counter(row["test"] for row in mine)
            fewest = min(counts[test] for test in tests)
            if fewest >= given.times:
                break
            log = Path(folder) / "log.jsonl"
            side_by_side.run_tests(
                [test for test in tests if counts[test] == fewest], count=given.workers, log=log, limit_s=left
            )
            rows = side_by_side.read(log)
            log.unlink(missing_ok=True)
            if not rows:
                break
            with given.state.open("a", encoding="utf-8") as state:
                state.writelines(json.dumps({**row, "commit": sha}) + "\n" for row in rows)
    return report(of_commit(given.state, sha), tests, given.times)


if __name__ == "__main__":
    sys.exit(main())
