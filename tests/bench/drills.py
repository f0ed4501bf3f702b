"""Drills of the compiled engine under a sanitizer: groups that end in every way while others are inside.

python tests/bench/drills.py [--times 200] [--under memory threads] [--only abort destroy fork read c]

Each drill makes a group of two ranks, has calls under way and somebody who reads counters, and then: *abort* (two close
at once, one without patience, while one waits), *destroy* (both ranks close while calls end), *fork* (children read,
call and leave while calls go on), *read* (counters are read while and after it closes, and of a group that nobody
closed). They are Python, with the sanitizer loaded before it, because forks, finalizers and who still holds what are
Python's affair: the doors are called as users call them. *c* needs no interpreter: the same doors from a program in C
(drill_engine.c). The engine is built with the address and undefined-behaviour sanitizers, then with the thread
sanitizer; one that can't be had here is left out with a sentence, and is an error only if it was asked for by name.
Nothing may be reported, nothing may hang."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / ".package")]

from lossbench.workloads.collective.context import Group  # noqa: E402
from lossbench.workloads.collective.reduce import all_reduce, ask_all_reduce  # noqa: E402
from lossbench.workloads.errors import TransportError  # noqa: E402
from lossbench.workloads.transport.native import build  # noqa: E402
from lossbench.workloads.transport.packet.codec import CODECS  # noqa: E402
from lossbench.workloads.transport.plan import address  # noqa: E402
from lossbench.workloads.transport.policy import Policy  # noqa: E402
from tests.transport.conftest import Ranks, make_ranks  # noqa: E402

F32 = CODECS["float32"]
UNDER = {"memory": ("sanitize", "libasan.so"), "threads": ("sanitize-threads", "libtsan.so")}
REPORTS = ("ERROR: AddressSanitizer", "WARNING: ThreadSanitizer", "runtime error:")
# glibc gives back a joined thread's thread-local memory when another needs its stack, by a lock that is not seen.
KNOWN = "race:*dl_deallocate_tls\n"
ALIKE = ["setarch", "-R"]  # the thread sanitizer knows few layouts of memory, and none that is drawn too widely
CHILD_S = 60
AT_ONCE = 8  # most of a drill is waiting for peers that are gone


def quietly(work: Callable[[], object]) -> None:
    with suppress(TransportError):
        work()


def summed(group: Group) -> None:
    all_reduce(group, np.ones(20_000, np.float32), codec=F32)


def alone(group: Group) -> Callable[[], None]:
    """A call that nobody else takes part in; how to wait for it."""
    data = np.ones(100_000, np.float32)
    plan = group.plan(group.endpoint.even(len(data)), F32)
    return group.endpoint.begin(lambda: ask_all_reduce(group, address(data), plan=plan, holds=data)).wait


@contextmanager
def beside(*works: Callable[[], object]) -> Iterator[None]:
    """Each again and again, in a thread of its own."""
    over = threading.Event()

    def again(work: Callable[[], object]) -> None:
        while not over.is_set():
            quietly(work)

    threads = [threading.Thread(target=again, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def at_once(*works: Callable[[], object]) -> None:
    threads = [threading.Thread(target=quietly, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def abort(made: Ranks, dice: Random) -> None:
    end = made.groups[0].endpoint
    wait = alone(made.groups[0])

    def later(patience_s: float) -> Callable[[], None]:
        pause = dice.random() * 0.02
        return lambda: (time.sleep(pause), end.close(patience_s))[1]

    with beside(end.read):
        at_once(wait, later(60.0), later(0.0))
    made.groups[1].endpoint.close(0.0)


def destroy(made: Ranks, dice: Random) -> None:
    first, second = (group.endpoint for group in made.groups)
    calls = [lambda group=group: [quietly(lambda: summed(group)) for _ in range(4)] for group in made.groups]
    pause = dice.random() * 0.02
    with beside(first.read, second.read):
        at_once(*calls, lambda: (time.sleep(pause), first.close(1.0)), lambda: second.close(dice.choice([0.0, 1.0])))


def fork(made: Ranks, dice: Random) -> None:
    def both() -> None:
        at_once(*(lambda group=group: summed(group) for group in made.groups))

    with beside(both, made.groups[0].endpoint.read):
        for _ in range(2):
            time.sleep(dice.random() * 0.01)
            child = os.fork()
            if not child:
                _as_a_child(made)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert status == 0, f"a child ended with {status}"
    made.close()


def _as_a_child(made: Ranks) -> None:
    """It has no thread of the engine's, and locks that others may hold for ever."""
    faulthandler.register(signal.SIGALRM, chain=True)  # where it hangs
    signal.alarm(CHILD_S)
    end = made.groups[0].endpoint
    end.failed(TransportError("of a call that it has from its parent"))
    for work in (end.read, end.start, lambda: end.begin(lambda: None)):
        try:
            work()
        except TransportError as error:
            if "forked" in str(error):
                continue
        os._exit(1)
    end.close()
    os._exit(0)


def read(made: Ranks, dice: Random) -> None:
    at_once(*(lambda group=group: summed(group) for group in made.groups))
    reads = [group.endpoint.read for group in made.groups]
    if dice.random() < 0.5:
        with beside(*reads):
            made.close()
        assert reads[0]()["halves"] == 2
    else:  # nobody closes it
        with beside(*reads):
            time.sleep(dice.random() * 0.01)


DRILLS = {"abort": abort, "destroy": destroy, "fork": fork, "read": read}


def drill(names: list[str], times: int) -> None:
    """In this process, with the library that is loaded."""
    assert not isinstance(build.load(), str), build.load()

    def one(name: str, number: int) -> None:
        dice = Random(f"{name} {number}")
        policy = Policy(send_thread=dice.choice(["on", "off"]), tag=dice.choice(["header", "packet"]), timeout_s=60)
        DRILLS[name](make_ranks(2, policy=policy), dice)
        if name == "read":
            gc.collect()

    for name in names:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for done in [threads.submit(one, name, number) for number in range(times)]:
                done.result()
        print(f"{name}: {times} drills", flush=True)


def compiler() -> str:
    return shutil.which("gcc") or shutil.which("cc") or "cc"


def preloaded(under: str, folder: str) -> dict[str, str]:
    """The environment of a Python with the sanitizer loaded before it."""
    asked, library = UNDER[under]
    path = subprocess.run([compiler(), f"-print-file-name={library}"], capture_output=True, text=True, check=True)
    return {
        **os.environ,
        "LOSSBENCH_NATIVE": asked,
        "LOSSBENCH_CACHE": folder,
        "LD_PRELOAD": path.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
        "TSAN_OPTIONS": f"die_after_fork=0 suppressions={Path(folder) / 'known'}",
    }


def lacking(under: str, folder: str) -> str:
    """Why nothing can be drilled under it here, and what to do about that; else the engine is built when this ends: a
    compiler does not run with a sanitizer loaded before it."""
    asked, library = UNDER[under]
    if shutil.which("gcc") is None and shutil.which("cc") is None:
        return "there is no C compiler: install gcc (Debian, Ubuntu: apt-get install gcc)"
    environment = preloaded(under, folder)
    if not os.path.isabs(environment["LD_PRELOAD"]):
        return f"{compiler()} has no {library}: install gcc with its sanitizers (Debian, Ubuntu: apt-get install gcc)"
    source, made = Path(folder) / "nothing.c", Path(folder) / "nothing"
    source.write_text("int main(void) { return 0; }\n")
    flags = build.SANITIZE[asked]
    done = subprocess.run(
        [compiler(), *flags, "-o", str(made), str(source)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return f"{compiler()} can't link {flags[-1]} ({_last(done)}): install gcc with its sanitizers"
    alike = ALIKE if under == "threads" else []
    if alike and shutil.which(alike[0]) is None:
        return f"there is no {alike[0]}: install util-linux"
    command = [*alike, sys.executable, "-c", "pass"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return (
            f"no process runs with {library} here ({_last(done)}): try sysctl vm.mmap_rnd_bits=28, or another machine"
        )
    os.environ["LOSSBENCH_CACHE"] = folder
    try:
        build.built(flags)
    except build.NoNativeError as error:
        return f"the engine can't be built with it: {error}"
    return ""


def _last(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr + done.stdout).strip().splitlines()
    return lines[-1] if lines else f"it ended with {done.returncode} and said nothing"


def sanitized(under: str, names: list[str], times: int, folder: str) -> tuple[int, str]:
    """(reports, what it said)."""
    command = [sys.executable, __file__, "--here", "--times", str(times), "--only", *names]
    if under == "threads":
        command = [*ALIKE, *command]
    done = subprocess.run(command, env=preloaded(under, folder), capture_output=True, text=True, check=False, cwd=ROOT)
    text = done.stdout + done.stderr
    reports = sum(text.count(word) for word in REPORTS)
    return reports or abs(done.returncode), text


def in_c(under: str, times: int, folder: str) -> tuple[int, str]:
    """(reports, what it said)."""
    program = Path(folder) / f"drill_{under}"
    flags = [*build.DIALECT, *build.SANITIZE[UNDER[under][0]]]
    source = str(ROOT / "tests" / "bench" / "drill_engine.c")
    subprocess.run([compiler(), *flags, "-o", str(program), source, *build.LIBRARIES], check=True)
    command = [*ALIKE, str(program), str(times)]
    known = {**os.environ, "TSAN_OPTIONS": f"suppressions={Path(folder) / 'known'}"}
    done = subprocess.run(command, env=known, capture_output=True, text=True, check=False)
    text = done.stdout + done.stderr
    return sum(text.count(word) for word in REPORTS) or abs(done.returncode), text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=200, help="of each drill")
    parser.add_argument("--under", nargs="+", choices=list(UNDER), help="default: both, as far as they are here")
    parser.add_argument("--only", nargs="+", choices=[*DRILLS, "c"], default=[*DRILLS, "c"])
    parser.add_argument("--here", action="store_true", help="in this process: what it starts itself with")
    words = parser.parse_args()
    if words.here:
        drill(words.only, words.times)
        return 0
    bad, drilled = 0, 0
    python = [name for name in words.only if name != "c"]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "known").write_text(KNOWN)
        for under in words.under or UNDER:
            if why := lacking(under, folder):
                print(f"{under}: left out: {why}", flush=True)
                bad += bool(words.under)
                continue
            drilled += 1
            begun = time.monotonic()
            found = [sanitized(under, python, words.times, folder)] if python else []
            found += [in_c(under, words.times, folder)] if "c" in words.only else []
            reports, seconds = sum(one for one, _ in found), time.monotonic() - begun
            print(f"{under}: {words.times} of each of {', '.join(words.only)} in {seconds:.0f} s: {reports} reports")
            bad += reports
            for some, said in found:
                print(said[-8000:] if some else "", end="")
    return 1 if bad or not drilled else 0


if __name__ == "__main__":
    raise SystemExit(main())
