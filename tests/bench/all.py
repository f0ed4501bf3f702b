"""Everything there is, in slices that can be run apart and resumed: `make test-all`.

python tests/bench/all.py [--list] [--again] [--minutes N] [--log] [SLICE ...]

A slice that was green on this commit, with nothing changed since, is not run again (--again does). A test that fails
is run once more alone: if it passes then it is *unsteady*, which is said and never counted as passed. --minutes begins
no further slice after that. --log prints the table for results/LOG.md. Commands are real processes here
(tests/forked.py). Exit 0: all are green; 1: something failed or is unsteady; 3: slices are left."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".package"), str(ROOT)]

from tests.bench import side_by_side  # noqa: E402

STATE = ROOT / "build" / "test-all"
ROOMS = sorted(path.name for path in (ROOT / "tests").iterdir() if list(path.glob("test_*.py")))
PROGRAMS = {  # measuring programs that find something or nothing; their own help says how to ask for more
    "drills": ["drills.py", "--times", "60"],
    "network-drills": ["network_drills.py", "--times", "70", "--timeout", "10", "--grace", "60"],
    "planted": ["planted.py"],
}
GUEST = {
    "guest-tier": "test-guest",
    "guest-clock": "test-guest-clock",
    "guest-pair": "test-guest-pair",
    "guest-full": "test-guest-full",
}


@dataclass
class Slice:
    name: str
    status: str = "left"  # green, unsteady, red
    minutes: float = 0.0
    passed: int = 0
    skipped: int = 0
    failed: list[str] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)


def slices() -> list[str]:
    return ["check", "demo", *ROOMS, "quiet", "fuzz", "soak", *PROGRAMS, *GUEST]


def run_slice(name: str) -> Slice:
    if name in ROOMS:
        return _tests(name, [f"tests/{name}"], "not quiet", count=side_by_side.workers())
    if name == "quiet":
        return _tests(name, ["tests"], "quiet", count=1)
    if name in PROGRAMS:
        program, *words = PROGRAMS[name]
        bad = subprocess.run([sys.executable, str(ROOT / "tests" / "bench" / program), *words], check=False).returncode
        return Slice(name, "red" if bad else "green", failed=[program] if bad else [])
    target = {
        "check": ["check"],
        "demo": ["demo", f"OUT={STATE}/demo"],
        "fuzz": ["fuzz"],
        "soak": ["soak", "SOAK_MIN=5"],
    }.get(name) or [GUEST[name]]
    done = subprocess.run(["make", *target], cwd=ROOT, check=False)
    return Slice(name, "red" if done.returncode else "green", failed=[f"make {target[0]}"] if done.returncode else [])


def _tests(name: str, tests: list[str], marked: str, *, count: int) -> Slice:
    log = STATE / f"{name}.jsonl"
    log.unlink(missing_ok=True)
    code = side_by_side.run_tests(tests, marked=marked, count=count, log=log)
    rows = side_by_side.read(log)
    out = Slice(name, passed=sum(r["outcome"] == "passed" for r in rows))
    out.skipped = sum(r["outcome"] == "skipped" for r in rows)
    for test in [r["test"] for r in rows if r["outcome"] == "failed"]:
        again = side_by_side.run_tests([test], count=1, log=STATE / "again.jsonl")
        (out.failed if again else out.unsteady).append(test)
    if code not in (0, 1, 5) or (code == 1 and not out.failed + out.unsteady):  # 5: no test of this kind
        out.failed.append(f"pytest ended with status {code}")
    out.status = "red" if out.failed else "unsteady" if out.unsteady else "green"
    return out


def commit() -> str:
    """Of what is tested; "" when something is changed."""
    if subprocess.check_output(["git", "status", "--porcelain"], cwd=ROOT, text=True).strip():
        return ""
    return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()


def stored(name: str, sha: str) -> Slice | None:
    path = STATE / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if sha and path.exists() else {}
    return Slice(**found["slice"]) if found.get("commit") == sha else None


def table(rows: list[Slice], sha: str) -> str:
    where = (
        f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    )
    lines = [
        f"`make test-all` on {sha[:12] or 'a changed tree'} ({where}):",
        "",
        "| slice | result | passed | skipped | min |",
    ]
    lines.append("|---|---|---|---|---|")
    for row in rows:
        said = row.status + "".join(f"; {one}" for one in [*row.failed, *(f"unsteady: {u}" for u in row.unsteady)])
        lines.append(f"| {row.name} | {said} | {row.passed or ''} | {row.skipped or ''} | {row.minutes:.1f} |")
    return "\n".join(lines)


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--list", action="store_true")
    asked.add_argument("--again", action="store_true")
    asked.add_argument("--log", action="store_true")
    asked.add_argument("--minutes", type=float, default=1e9)
    asked.add_argument("slices", nargs="*", metavar="SLICE")
    given = asked.parse_args()
    if unknown := set(given.slices) - set(slices()):
        asked.error(f"no slice {', '.join(sorted(unknown))}; there are {', '.join(slices())}")
    os.environ["LOSSBENCH_REAL"] = "1"
    STATE.mkdir(parents=True, exist_ok=True)
    sha, rows, began = commit(), [], time.monotonic()
    for name in given.slices or slices():
        row = None if given.again else stored(name, sha)
        if row is None or (row.status != "green" and not (given.list or given.log)):
            row = Slice(name)
            if not (given.list or given.log) and time.monotonic() - began < 60 * given.minutes:
                print(f"=== {name}", flush=True)
                start = time.monotonic()
                row = run_slice(name)
                row.minutes = (time.monotonic() - start) / 60
                (STATE / f"{name}.json").write_text(json.dumps({"commit": sha, "slice": asdict(row)}))
        rows.append(row)
    print(table(rows, sha))
    return status_of(rows)


def status_of(rows: list[Slice]) -> int:
    states = {row.status for row in rows}
    return 1 if states & {"red", "unsteady"} else 3 if "left" in states else 0


if __name__ == "__main__":
    sys.exit(main())
