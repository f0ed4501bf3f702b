"""The engine in C under sanitizers (memory, undefined behaviour; threads): calls of every kind, and packets nobody
expects; the fuzzers, so that they are known to run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forms import forms, full

ROOT = Path(__file__).parents[2]
SCRIPT = """
import threading
import time
import numpy as np
from lossbench.workloads.collective import exchange
from lossbench.workloads.collective.reduce import all_reduce, ask_all_reduce, reduce_scatter
from lossbench.workloads.errors import TransportError
from lossbench.workloads.transport.native import build
from lossbench.workloads.transport.packet.codec import CODECS
from lossbench.workloads.transport.plan import address
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
paced = {"pace": "400", "deadline_ms": 20000}
for asked in ({"tag": "header"}, {"tag": "packet"}, paced, {"repair": 0.9}, {"send_thread": "off"}):
    made = make_ranks(3, policy=Policy(**{"window_kb": 64, "send_thread": "on"} | asked))
    for _ in range(3):
        for number in range(300):
            end = made.groups[number % 3].endpoint
            packet = noise.integers(0, 256, int(noise.integers(0, 1472))).astype(np.uint8).tobytes()
            made.groups[(number + 1) % 3].endpoint.link.send(b"LB\\x02" + packet, end.link.address)
        made.all(job)
    made.close()

def quietly(work):
    try:
        work()
    except TransportError:
        pass

def aborted(patience_s):  # while one waits and one reads, two close
    made, over, data = make_ranks(2, policy=Policy(send_thread="on")), threading.Event(), np.ones(100_000, np.float32)
    group = made.groups[0]
    plan = group.plan(group.endpoint.even(len(data)), CODECS["float32"])
    call = group.endpoint.begin(lambda: ask_all_reduce(group, address(data), plan=plan, holds=data))

    def reads():
        while not over.is_set():
            group.endpoint.read()

    close = group.endpoint.close
    work = [lambda: quietly(call.wait), reads, lambda: close(patience_s), lambda: close(0.0)]
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
        time.sleep(0.01)
    for thread in (threads[0], *threads[2:]):
        thread.join()
    over.set()
    threads[1].join()
    made.groups[1].endpoint.close(0.0)

for patience_s in (0.0, 60.0, 0.0, 60.0):
    aborted(patience_s)
print("clean")
"""


@full
@forms(("asked", "library"), [("sanitize", "libasan.so"), ("sanitize-threads", "libtsan.so")])
def test_the_engine_runs_clean_under_sanitizers(tmp_path: Path, asked: str, library: str) -> None:
    """As it was: a half was seen to be ready to send before what it begins with, and wake-ups could get lost."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    named = subprocess.run([compiler, f"-print-file-name={library}"], capture_output=True, text=True, check=False)
    if not os.path.isabs(named.stdout.strip()):
        pytest.skip(f"{compiler} has no {library}")
    variables = {
        **os.environ,
        "LOSSBENCH_NATIVE": asked,
        "LOSSBENCH_CACHE": str(tmp_path),
        "LD_PRELOAD": named.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
        "PYTHONPATH": f"{ROOT}/.package:{ROOT}",
    }
    command = [sys.executable, "-c", SCRIPT]
    if asked == "sanitize-threads":  # it knows few layouts of memory, and none that is drawn too widely
        command = ["setarch", "-R", *command]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, cwd=ROOT)
    if "unexpected memory mapping" in done.stderr or "failed to set personality" in done.stderr:
        pytest.skip(f"{library}: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0 and "clean" in done.stdout, done.stderr[-4000:]


@full
def test_the_fuzzers_build_and_a_short_round_of_each_finds_nothing() -> None:
    """`make fuzz` does more of the same; as it was, its build lacked a library that the engine had come to need."""
    fuzz = [sys.executable, str(ROOT / "tests" / "bench" / "fuzz.py"), "--count", "1"]
    done = subprocess.run(fuzz, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0 and done.stdout.count("nothing crashed") == 4, (done.stdout + done.stderr)[-4000:]


def drilled(tmp_path: Path, *words: str, without: str) -> subprocess.CompletedProcess[str]:
    """With a compiler that lacks these libraries."""
    real = shutil.which("gcc") or shutil.which("cc")
    if real is None:
        pytest.skip("no C compiler")
    lacks = "|".join(f"-print-file-name={name}" for name in without.split())
    (tmp_path / "gcc").write_text(f'#!/bin/sh\ncase "$1" in {lacks}) echo "${{1#*=}}";; *) exec {real} "$@";; esac\n')
    (tmp_path / "gcc").chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    command = [sys.executable, str(ROOT / "tests" / "bench" / "drills.py"), "--times", "1", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, "PATH": path})


@full
def test_drills_that_find_no_sanitizer_say_what_to_install(tmp_path: Path) -> None:
    """As it was: a traceback, with "the C compiler failed: []" in its midst."""
    done = drilled(tmp_path, without="libasan.so libtsan.so")
    assert done.returncode == 1 and not done.stderr, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(": ")[:2] for line in lines] == [["memory", "left out"], ["threads", "left out"]]
    assert "has no libtsan.so: install gcc" in lines[1]


@full
def test_drills_go_on_without_the_sanitizer_that_is_not_there(tmp_path: Path) -> None:
    done = drilled(tmp_path, "--only", "c", without="libtsan.so")
    if "memory: left out" in done.stdout:
        pytest.skip(done.stdout)
    assert done.returncode == 0 and "threads: left out" in done.stdout and ": 0 reports" in done.stdout, done
    asked = drilled(tmp_path, "--only", "c", "--under", "threads", without="libtsan.so")
    assert asked.returncode == 1 and "threads: left out" in asked.stdout, asked
