"""How long and how much memory a report of 200 runs and two million samples takes. A command, not a test.

python tests/bench/report_bar.py [--runs 200] [--samples 2000000]
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".package"), str(ROOT)]

from lossbench.results import samples  # noqa: E402
from tests.report import made  # noqa: E402


def main() -> None:
    words = sys.argv[1:]
    runs = int(words[words.index("--runs") + 1]) if "--runs" in words else 200
    count = int(words[words.index("--samples") + 1]) if "--samples" in words else 2_000_000
    with tempfile.TemporaryDirectory() as folder:
        points = [
            {"strategy": s, "percent": p}
            for s in ("reliable", "rps", "bounded_drift", "ddp")
            for p in (0, 1, 5, 10, 20)
        ]

        def row(point: dict[str, Any], seed: int) -> dict[str, Any]:
            generator = np.random.default_rng([seed, point["percent"]])
            return {"train_loss": 1 + generator.normal() / 10, "accuracy": 0.9, "ms_step": 10 + generator.normal()}

        place = made.suite(Path(folder), points, runs // len(points), row)
        for path in sorted(place.glob("[0-9]*")):
            made.steps(path, [2.0 / (1 + n / 50) for n in range(500)], ranks=4)
            made.samples(path, "get_ms", np.random.default_rng(0).lognormal(1, 1, size=count // runs))
            samples.pack(path)
        for extra in ([], ["--html", f"{folder}/report.html"]):
            began = time.monotonic()
            command = [sys.executable, "-m", "lossbench.cli.main", "report", "made", "--in", folder, *extra]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            took = time.monotonic() - began
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            assert done.returncode == 0, done.stderr
            print(f"{runs} runs, {count} samples {extra[:1]}: {took:.1f} s, at most {peak:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
