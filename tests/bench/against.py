"""Is this checkout slower than an earlier commit? Both in turns, in one run; medians and their ratio.

python tests/bench/against.py COMMIT|FOLDER [--rounds 9] [help doctor proof quickstart collectives bar4 bar8]

*collectives[:MB[:PROFILE[:HOSTS]]]* is a lossy all-reduce, of 16 MB at loss_1 between 4 hosts unless said otherwise;
*bar4* and *bar8* are those of the transport's bar. The earlier commit is cloned beside (a folder, for machines without
the repository: copied) and run with this environment's packages, each with a /run of its own; both run its
*quickstart*, since that may ask for more now. Behind a ratio stands its 95 % interval: a round's two runs belong
together, so it is drawn anew from the rounds' own ratios. *--set* goes to both runs of collectives."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"  # else whoever has more files compiles more, in every process
SHORT = ["--set", "probe.packets=20000"]
WHAT = {
    "help": ["--help"],
    "doctor": ["doctor", "--json"],
    "proof": ["run", "proof", "--set", "workload.options.seconds=0.5", "--json"],
    "quickstart": [
        "run",
        "quickstart",
        "--set",
        "workload.options.strategy=bounded_drift",
        "--set",
        "impair.0.profile=loss_10",
        "--set",
        "workload.options.steps=150",
        *SHORT,
        "--json",
    ],
}
BARS = {
    "bar4": ["collectives:16:clean", "collectives:0.064:clean"],
    "bar8": [f"collectives:{mb}:{profile}:8" for mb in ("32", "0.064", "0.001") for profile in ("clean", "loss_10")],
}
NUMBER = {"quickstart": "ms_step", "collectives": "p50_ms"}  # of the run's own table, beside the time of the command


def asked_of(what: str) -> list[str]:
    """The command's words; ValueError: there is no such thing."""
    name, *more = what.split(":")
    if name in WHAT and not more:
        return WHAT[name]
    if name != "collectives" or len(more) > 3:
        raise ValueError(
            f"no '{what}': known are {', '.join(WHAT)}, collectives[:MB[:PROFILE[:HOSTS]]], {', '.join(BARS)}"
        )
    mb, profile, hosts = [*more, *("16", "loss_1", "4")[len(more) :]]
    settings = {
        "topology.mtu": 1500,
        "topology.hosts": int(hosts),
        "impair.0.profile": profile,
        "workload.options.mb": float(mb),
        "workload.options.contenders": '["lossy"]',
    }
    return ["run", "collectives", *(w for k, v in settings.items() for w in ("--set", f"{k}={v}")), *SHORT, "--json"]


def timed(tree: Path, what: str, out: str, *, suites: Path) -> tuple[float, float | None]:
    package, main = tree / ".package", "lossbench.cli.main"
    if not package.exists():
        package, main = tree, "harness.cli.main"
    arguments = [str(suites / "quickstart.toml") if word == "quickstart" else word for word in asked_of(what)]
    arguments = arguments + (["--out", out] if "run" in arguments else [])
    shell = 'mount -t tmpfs tmpfs /run; cd "$1"; shift; exec "$@"'
    path = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])  # packages may lie there
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", shell, "sh", str(tree), sys.executable, "-m"]
    begun = time.perf_counter()
    done = subprocess.run(
        [*command, main, *arguments],
        env={k: v for k, v in os.environ.items() if k != NO_BYTECODE} | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    seconds = time.perf_counter() - begun
    number = NUMBER.get(what.split(":")[0])
    if number is None:
        return seconds, None
    if not done.stdout:
        raise SystemExit(f"{what} in {tree}: {done.stderr[-500:]}")
    (row,) = json.loads(done.stdout)["summary"][0]["rows"]
    return seconds, float(row[number])


def between(before: list[float], now: list[float]) -> tuple[float, float, float]:
    """The median of the rounds' ratios and its 95 % interval."""
    ratios, draw = [b / a for a, b in zip(before, now, strict=True)], random.Random(0)
    again = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), again[50], again[1949]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("what", nargs="*", default=[*WHAT, "collectives"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--set", action="append", default=[])
    asked = parser.parse_intermixed_args()
    SHORT.extend(word for setting in asked.set for word in ("--set", setting))
    every = [one for word in asked.what for one in BARS.get(word, [word])]
    try:
        for what in every:
            asked_of(what)
    except ValueError as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before"
        if Path(asked.commit).is_dir():
            shutil.copytree(asked.commit, before)
        else:
            subprocess.run(["git", "clone", "-q", str(ROOT), str(before)], check=True)
            subprocess.run(["git", "checkout", "-q", asked.commit], cwd=before, check=True)
        suites = before / "workloads" / "suites"
        for what in every:
            found: dict[str, list[tuple[float, float | None]]] = {"before": [], "now": []}
            for number in range(asked.rounds + 1):
                for name, tree in (
                    (("before", before), ("now", ROOT)) if number % 2 else (("now", ROOT), ("before", before))
                ):
                    one = timed(tree, what, f"{folder}/{name}-{what.replace(':', '-')}", suites=suites)
                    if number:  # the first one warms up
                        found[name].append(one)
            for part, label in ((0, "s, the command"), (1, NUMBER.get(what.split(":")[0], ""))):
                if label and found["now"][0][part] is not None:
                    old, new = ([float(one[part] or 0) for one in found[name]] for name in ("before", "now"))
                    middle, low, high = between(old, new)
                    medians = f"{statistics.median(old):.4g} before, {statistics.median(new):.4g} now"
                    print(f"{what}: {label}: {medians}: {middle:.3f} x ({low:.3f} to {high:.3f})", flush=True)


if __name__ == "__main__":
    main()
