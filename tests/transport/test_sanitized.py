"""The engine in C under address and undefined-behaviour sanitizers: calls of every kind, and packets nobody expects."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import numpy as np
from lossbench.workloads.collective import exchange
from lossbench.workloads.collective.reduce import all_reduce, reduce_scatter
from lossbench.workloads.transport.native import build
from lossbench.workloads.transport.packet.codec import CODECS
from lossbench.workloads.transport.policy import Policy
from tests.transport.conftest import make_ranks

assert not isinstance(build.load(), str), build.load()

def job(group):
    rank = group.endpoint.rank
    for name in ("float32", "bfloat16", "float16"):
        for count in (1, 7, 5000, 70_001):
            mine = CODECS[name].narrow(np.full(count, rank + 1.0, np.float32)).copy()
            all_reduce(group, mine, codec=CODECS[name])
            assert np.all(CODECS[name].widen(mine) == 6.0), (name, count)
    all_reduce(group, np.ones(1001, np.int64), codec=CODECS["int64"], op="max", lossy=False)
    reduce_scatter(group, np.ones(3000, np.float32), codec=CODECS["float32"], op="avg", own=False)
    exchange.broadcast(group, np.zeros(100_000, np.uint8), root=1)
    exchange.barrier(group)

noise = np.random.default_rng(0)
for tag in ("header", "packet"):
    made = make_ranks(3, policy=Policy(tag=tag, window_kb=64, send_thread="on"))
    for _ in range(3):
        for number in range(300):
            end = made.groups[number % 3].endpoint
            packet = noise.integers(0, 256, int(noise.integers(0, 1472))).astype(np.uint8).tobytes()
            made.groups[(number + 1) % 3].endpoint.link.send(b"LB\\x02" + packet, end.link.address)
        made.all(job)
    made.close()
print("clean")
"""


def test_the_engine_runs_clean_under_sanitizers(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    named = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    library = named.stdout.strip()
    if not os.path.isabs(library):
        pytest.skip(f"{compiler} has no address sanitizer")
    variables = {
        **os.environ,
        "LOSSBENCH_NATIVE": "sanitize",
        "LOSSBENCH_CACHE": str(tmp_path),
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
        "PYTHONPATH": f"{ROOT}/.package:{ROOT}",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=variables, capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    assert done.returncode == 0 and "clean" in done.stdout, done.stderr[-4000:]
