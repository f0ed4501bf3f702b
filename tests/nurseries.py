"""What a training starts that imports torch, without the seconds of that: a process that was forked with torch loaded
(a command, see tests/forked.py; a pytest worker) forks its nurseries and what looks at options beforehand from itself
instead of starting them. They are its children as ever, with the files, signals and environment that they would have.

How they are started is tried with real ones (tests/runs/test_safe_start.py), and so is everything where
LOSSBENCH_REAL=1."""

from __future__ import annotations

import atexit
import fcntl
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from lossbench.net.host import rootless
from lossbench.processes import module_command
from lossbench.runs.launch import nursery, program

NAME = "nursery"  # of one that was forked: /proc/PID/comm
PREPARE = module_command("lossbench.workloads.training.prepare")


def fork_them() -> None:
    """From now on, in this process, while it has the threads that it has now: none, or a worker's line to pytest."""
    threads = _threads()

    def popen(command: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, **how) if _threads() > threads else _nursery(command, **how)

    def run_outside(command: list[str], *, text: str, environment: Mapping[str, str]) -> tuple[int, str]:
        here = command == PREPARE and _threads() <= threads and rootless._Outside.line is None
        return (_prepared if here else rootless.run_outside)(command, text=text, environment=environment)

    nursery.subprocess = SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL)  # type: ignore[attr-defined]
    program.rootless = SimpleNamespace(run_outside=run_outside)  # type: ignore[attr-defined]


def is_one(pid: int) -> bool:
    """A nursery, forked or started."""
    folder = Path(f"/proc/{pid}")
    return (folder / "comm").read_text().strip() == NAME or b".launch.nursery" in (folder / "cmdline").read_bytes()


def _threads() -> int:
    """Of Python's. Others, as polars has, never hold anything that is asked for here."""
    own = Path("/proc/self/comm").read_text()
    return sum(_comm(task) == own for task in os.listdir("/proc/self/task")) + threading.active_count()


def _comm(task: str) -> str:
    try:
        return Path(f"/proc/self/task/{task}/comm").read_text()
    except OSError:  # it has ended
        return ""


class _Forked(subprocess.Popen[bytes]):
    """A child that is there already."""

    def __init__(self, pid: int) -> None:
        self.pid, self.args, self.returncode = pid, "forked", None
        self.stdin = self.stdout = self.stderr = None
        self._child_created, self._waitpid_lock = True, threading.Lock()


def _nursery(
    command: Sequence[str],
    *,
    pass_fds: Sequence[int],
    preexec_fn: Callable[[], None],
    env: Mapping[str, str],
    cwd: str,
    **_: Any,
) -> _Forked:
    modules = list(command[command.index(str(pass_fds[0])) + 1 :])

    def job() -> None:
        Path("/proc/self/comm").write_text(NAME)
        os.setsid()
        preexec_fn()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.chdir(cwd)
        nursery.serve(socket.socket(fileno=3), modules)

    with open(os.devnull, "rb") as nothing:
        return _fork(job, files=[nothing.fileno(), 1, 2, pass_fds[0]], environment=env)


def _prepared(command: Sequence[str], *, text: str, environment: Mapping[str, str]) -> tuple[int, str]:
    def job() -> None:
        rootless._as_usual()
        runpy.run_module(command[-1], run_name="__main__", alter_sys=True)

    with os.fdopen(os.memfd_create("asked"), "w+b") as asked, os.fdopen(os.memfd_create("said"), "w+b") as said:
        asked.write(text.encode())
        asked.seek(0)
        child = _fork(job, files=[asked.fileno(), said.fileno(), 2], environment=environment)
        try:
            status = child.wait()
        except BaseException:
            child.kill()
            child.wait()
            raise
        said.seek(0)
        return status, said.read().decode()


def _fork(job: Callable[[], None], *, files: Sequence[int], environment: Mapping[str, str]) -> _Forked:
    sys.stdout.flush()
    sys.stderr.flush()
    asked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # our handlers are not for the child
    pid = os.fork()
    if not pid:
        _become(job, files, environment, asked)
    signal.pthread_sigmask(signal.SIG_SETMASK, asked)
    return _Forked(pid)


def _become(job: Callable[[], None], files: Sequence[int], environment: Mapping[str, str], mask: Any) -> NoReturn:
    """What exec would have done. Nothing of the parent that stands below on the stack is freed, since this never
    returns; its files are closed."""
    code: Any = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        atexit._clear()
        sys.unraisablehook = sys.__unraisablehook__
        aside = [fcntl.fcntl(one, fcntl.F_DUPFD, len(files)) for one in files]
        for place, one in enumerate(aside):
            os.dup2(one, place)
        os.closerange(len(files), 1 << 16)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout, sys.stderr = (os.fdopen(fd, "w", buffering=1, closefd=False) for fd in (1, 2))
        os.environ.clear()
        os.environ.update(environment)
        job()
        code = 0
    except SystemExit as said:
        code = said.code if isinstance(said.code, int) else 0 if said.code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        os._exit(code)
