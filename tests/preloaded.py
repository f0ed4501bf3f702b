"""Imports once for all workers of `make test`: a process that has imported what commands, ranks and tests do. It forks
the workers (tests/worker) and, for each of them, the processes that fork its commands (tests/forked.py).

    python tests/preloaded.py serve FD...             begun by tests/conftest.py; ends with whoever began it
    python tests/preloaded.py -u -c "..."             what tests/worker is: asks for itself, in its mount namespace

What is forked has its asker's mount namespace, environment, folder and output. Nothing is imported here that pytest
rewrites. With LOSSBENCH_REAL=1, or where nobody began it, every worker imports for itself."""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import gc
import os
import pickle
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("cli", "torch", "report", "worker")
WHERE = "LOSSBENCH_PRELOADED"  # the folder of the sockets
CLONE_NEWNS = 0x00020000
PR_SET_PDEATHSIG = 1
IMPORTED = re.compile(r"^(?:from|import) ((?:lossbench|torch|numpy|scipy|scapy|pyroute2)[\w.]*)", re.M)


def path() -> str:
    """Ours first; behind that what there was: on a machine that nothing is installed on, packages come by it."""
    return os.pathsep.join(filter(None, [f"{ROOT}/.package", str(ROOT), os.environ.get("PYTHONPATH")]))


# --- who asks --------------------------------------------------------------------------------------------------------


def begin() -> None:
    """For what this process starts from now on. Who asks before the imports are done waits."""
    folder = tempfile.mkdtemp(prefix="preloaded-")
    heard, told = os.pipe()  # its standard input ends with this process
    listeners = {}
    for kind in KINDS:
        listeners[kind] = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listeners[kind].bind(f"{folder}/{kind}")
        listeners[kind].listen(100)
    fds = [one.fileno() for one in listeners.values()]
    server = subprocess.Popen(
        [sys.executable, __file__, "serve", *map(str, fds)],
        stdin=heard,
        stdout=subprocess.DEVNULL,
        pass_fds=fds,
        env={**os.environ, "PYTHONPATH": path(), "OMP_NUM_THREADS": "1"},
    )
    for fd in (heard, *(one.detach() for one in listeners.values())):
        os.close(fd)
    os.environ[WHERE] = folder

    def end() -> None:
        os.close(told)
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)


def rewrite(config: Any) -> None:
    """Tests' own files, in a clone that no pytest has seen yet: six workers would do it six times, half a minute of a
    processor in all. Here while the others are imported. With pytest's own functions, which may be others one day."""
    with contextlib.suppress(ImportError, AttributeError, TypeError, OSError):
        from _pytest.assertion import rewrite as own

        state = config.stash[own.assertstate_key]
        for path in (
            () if sys.dont_write_bytecode else [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("tests/**/conftest.py")]
        ):
            kept = own.get_cache_dir(path) / (path.stem + own.PYC_TAIL)
            if own._read_pyc(path, kept, state.trace) is None and own.try_makedirs(kept.parent):
                source, code = own._rewrite_test(path, config)
                own._write_pyc(state, code, source, kept)


def ask(kind: str, files: Sequence[int], what: list[str]) -> tuple[int, socket.socket] | None:
    """A pid, and a line on which its exit status comes; None if nobody preloaded anything.

    `files`: of standard input, output and errors, and others that the forked one is handed."""
    folder = os.environ.get(WHERE)
    if not folder or os.environ.get("LOSSBENCH_REAL"):
        return None
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        line.connect(f"{folder}/{kind}")
        with open("/proc/self/ns/mnt", "rb") as namespace:
            given = array.array("i", [namespace.fileno(), *files])
            line.sendmsg(
                [pickle.dumps((what, dict(os.environ), os.getcwd()))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)]
            )
            pid = int(line.recv(64) or b"0")
    except OSError:
        pid = 0
    if not pid:
        line.close()
        return None
    return pid, line


def join(arguments: list[str]) -> None:
    """This process is its worker's, to those who started it."""
    got = ask("worker", [0, 1, 2], arguments)
    if got is None:
        os.execv(sys.executable, [sys.executable, *arguments])
    pid, line = got
    for file in (0, 1):
        os.close(file)  # the worker has them
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    said = line.recv(64)
    os._exit(int(said) & 255 if said else 1)


# --- who forks -------------------------------------------------------------------------------------------------------


def serve(listeners: dict[str, socket.socket]) -> None:
    """Each kind is a process that has imported what its own needs, and no more."""
    from tests.forked import IMPORTS

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _load(IMPORTS["cli"])
    _stage("cli", [], listeners)
    _stage("torch", IMPORTS["torch"], listeners)
    _stage("report", IMPORTS["report"], listeners)
    _load([*IMPORTS["torch"], *_of_tests()])
    _listen("worker", listeners)


def _of_tests() -> list[str]:
    """What tests import and begins no thread, as polars does, which the report loads."""
    found = {name for one in ROOT.glob("tests/*/test_*.py") for name in IMPORTED.findall(one.read_text("utf-8"))}
    return ["scipy.stats", "matplotlib.figure", *sorted(one for one in found if "report" not in one.split("."))]


def _load(names: Sequence[str]) -> None:
    for name in names:
        with contextlib.suppress(ImportError):  # whoever needs it says so
            import_module(name)


def _stage(kind: str, names: Sequence[str], listeners: dict[str, socket.socket]) -> None:
    if os.fork():
        listeners.pop(kind).close()
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _load(names)
    _listen(kind, listeners)


def _listen(kind: str, listeners: dict[str, socket.socket]) -> None:
    """Forks one for each that asks, until standard input ends."""
    listener = listeners.pop(kind)
    for other in listeners.values():
        other.close()
    if kind == "worker":
        assert len(os.listdir("/proc/self/task")) == 1, "what has threads is no parent of workers"
    gc.collect()
    gc.freeze()
    heard, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    waiting: dict[int, socket.socket] = {}
    while True:
        ready = select.select([listener, heard, 0], [], [])[0]
        if heard in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(heard, 4096)
        _reap(waiting)
        if 0 in ready:
            os._exit(0)
        if listener not in ready:
            continue
        line = listener.accept()[0]
        data, fds, _, _ = socket.recv_fds(line, 1 << 20, 8)
        if not fds:
            line.close()
            continue
        pid = os.fork()
        if not pid:
            for one in (listener, line, *waiting.values()):
                one.close()
            os.close(heard)
            os.close(wake)
            _become(kind, *pickle.loads(data), fds)
        for fd in fds:
            os.close(fd)
        waiting[pid] = line
        line.send(str(pid).encode())


def _reap(waiting: dict[int, socket.socket]) -> None:
    while waiting:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        if pid in waiting:
            with contextlib.suppress(OSError), waiting.pop(pid) as line:
                line.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(kind: str, arguments: list[str], environment: dict[str, str], folder: str, fds: list[int]) -> None:
    from tests import forked

    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code: Any = 1
    try:
        if os.fstat(fds[0]).st_ino != os.stat("/proc/self/ns/mnt").st_ino:
            namespaces.call("setns", fds[0], CLONE_NEWNS)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        for fd, number in zip(fds[1:4], range(3), strict=True):
            os.dup2(fd, number)
        for fd in fds[:4]:
            os.close(fd)
        if kind != "worker":
            forked.serve(socket.socket(fileno=fds[4]))
        main = sys.modules["__main__"] = ModuleType("__main__")
        sys.argv = ["-c"]
        sys.stdin = os.fdopen(0, closefd=False)
        exec(arguments[-1], main.__dict__)
        code = 0
    except SystemExit as said:
        code = said.code if isinstance(said.code, int) else 0 if said.code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    forked.end(code)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        sys.path[:1] = [str(ROOT / ".package"), str(ROOT)]  # instead of this file's own folder
        from lossbench.net.host import namespaces

        serve({kind: socket.socket(fileno=int(fd)) for kind, fd in zip(KINDS, sys.argv[2:], strict=True)})
    else:
        join(sys.argv[1:])
