"""A process that has loaded a workload's libraries once and forks ranks from then on: importing torch takes seconds,
a fork milliseconds. The harness talks to it over a socket, one JSON line for each rank; it answers with pids and exit
codes.

    python -m lossbench.runs.launch.nursery FD MODULE...      (started by `Nursery`, not by people)
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from lossbench.contract import Door
from lossbench.errors import RunError
from lossbench.net.host.enter import stepper
from lossbench.processes import (
    Running,
    catches,
    die_with_parent,
    ended,
    module_command,
    module_environment,
    signal_group,
)
from lossbench.runs.launch import gate, module
from lossbench.runs.launch.program import Exec, Start
from lossbench.spec import about
from lossbench.spec.experiment import Program

BORN_LIMIT_S = 300.0  # of importing torch on a machine that has other things to do, or an emulated one


class Child:
    """A forked rank; see processes.Started. Its parent is the nursery, so the nursery signals and reaps it."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid, self._nursery = pid, nursery

    def poll(self) -> int | None:
        return self._nursery.exit_code(self.pid)

    def signal(self, number: int) -> None:
        self._nursery.ask({"signal": number, "pid": self.pid})

    def catches(self, number: int) -> bool:
        return catches(self.pid, number)

    def reap(self) -> None:
        self._nursery.ask({"reap": self.pid})


class Nursery:
    """The harness's end. Started when needed; ends, with all its children, when closed or when the harness dies."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        ours, theirs = socket.socketpair()
        self._socket, self._rest = ours, b""
        self._codes: dict[int, int] = {}
        self._born: list[int] = []
        with theirs:
            self._process = subprocess.Popen(
                module_command("lossbench.runs.launch.nursery", str(theirs.fileno()), *modules),
                pass_fds=[theirs.fileno()],
                preexec_fn=die_with_parent,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                env=module_environment(os.environ),
                cwd="/",
            )

    def fork(self, request: dict[str, Any]) -> Child:
        """`request`: module, environment, log, cwd, and where to step in (where, host, hosts_path)."""
        if not self.ask(request):
            raise RunError("the process that starts ranks is gone")
        limit = time.monotonic() + BORN_LIMIT_S
        while not self._born:
            self._listen(wait_s=0.5)
            if self._process.poll() is not None:
                raise RunError("the process that starts ranks ended before it had started one")
            if time.monotonic() > limit:
                raise RunError(f"the process that starts ranks had started none after {BORN_LIMIT_S:g} s: is it busy?")
        return Child(self, self._born.pop(0))

    def ask(self, request: dict[str, Any]) -> bool:
        """False if nobody is there any more."""
        self._socket.settimeout(BORN_LIMIT_S)
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        except OSError:
            return False
        return True

    def exit_code(self, pid: int) -> int | None:
        self._listen(wait_s=0.0)
        if pid not in self._codes and self._process.poll() is not None:
            return -signal.SIGKILL  # children die with the nursery
        return self._codes.get(pid)

    def _listen(self, *, wait_s: float) -> None:
        self._socket.settimeout(wait_s)
        with contextlib.suppress(TimeoutError, BlockingIOError, ConnectionError):
            self._rest += self._socket.recv(65536)
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "code" in said:
                self._codes[said["pid"]] = said["code"]
            else:
                self._codes.pop(said["pid"], None)  # numbers are used again, once they were reaped
                self._born.append(said["pid"])

    def lives(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait()


class Nurseries:
    """The launcher of a suite: one nursery for each set of modules; what needs none is executed."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, ...], Nursery] = {}
        self._exec = Exec()

    def expect(self, programs: Sequence[Program]) -> None:
        for modules in {about.about(one.name).preload for one in programs if not one.command} - {()}:
            self.of(modules)

    def start(self, start: Start) -> Running:
        if not start.preload:
            return self._exec.start(start)
        return self.of(start.preload).fork(
            {
                "module": start.module,
                "environment": start.environment,
                "log": str(start.log),
                "cwd": str(Path.cwd()),
                "where": start.place.where,
                "host": start.place.name,
                "group": start.place.group,
                "hosts_path": str(start.hosts_path),
                "held": start.held,
            }
        )

    def of(self, modules: tuple[str, ...]) -> Nursery:
        if modules in self._open and not self._open[modules].lives():
            self._open.pop(modules).close()
        if modules not in self._open:
            self._open[modules] = Nursery(modules)
        return self._open[modules]

    def let_go(self) -> None: ...

    def check(self) -> None: ...

    def close(self) -> None:
        for nursery in self._open.values():
            nursery.close()
        self._open.clear()


# --- the other end ---------------------------------------------------------------------------------------------------


def serve(control: socket.socket, modules: list[str]) -> None:
    for name in modules:
        with contextlib.suppress(Exception):  # the rank itself will say what is wrong with it
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    buffer, children, ended_for_good = b"", set[int](), set[int]()
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is control:
                    data = control.recv(65536)
                    if not data:
                        return
                    *requests, buffer = (buffer + data).split(b"\n")
                    for request in requests:
                        _obey(json.loads(request), control, children, ended_for_good)
                else:
                    os.read(wake, 4096)
            _tell_ended(control, children)
            _reap(ended_for_good)


def _tell(control: socket.socket, what: dict[str, int]) -> None:
    control.sendall(json.dumps(what).encode() + b"\n")


def _obey(request: dict[str, Any], control: socket.socket, children: set[int], ended_for_good: set[int]) -> None:
    if "signal" in request:
        signal_group(request["pid"], request["signal"])
    elif "reap" in request:
        children.discard(request["reap"])
        ended_for_good.add(request["reap"])
    else:
        pid = _fork(request, control)
        children.add(pid)
        _tell(control, {"pid": pid})


def _reap(pids: set[int]) -> None:
    for pid in tuple(pids):
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                pids.discard(pid)
        except ChildProcessError:
            pids.discard(pid)


def _tell_ended(control: socket.socket, children: set[int]) -> None:
    """Once for each; it is reaped when the harness has sent its last signal."""
    for pid in tuple(children):
        code = ended(pid)
        if code is not None:
            children.discard(pid)
            _tell(control, {"pid": pid, "code": code})


def _fork(request: dict[str, Any], control: socket.socket) -> int:
    hosts_path = Path(request["hosts_path"])
    step_in = stepper(
        where=request["where"], host=request["host"], hosts_path=hosts_path, mortal=True, group=request["group"]
    )
    pid = os.fork()
    if pid == 0:
        _become(request, control, step_in)
    return pid


def _become(request: dict[str, Any], control: socket.socket, step_in: Any) -> NoReturn:
    """In the child: what exec would have done, then the module."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        control.close()
        os.setsid()
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.enable()  # as PYTHONFAULTHANDLER would have done at a start of its own
        step_in()
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["cwd"])
        if request["held"]:
            gate.wait(Door.from_environment())
        module.run(request["module"])
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:  # noqa: BLE001 - its last words belong into the log
        traceback.print_exc()
    _leave(code)


def _leave(code: int) -> NoReturn:
    """As the interpreter ends: what was registered runs, what was printed is written."""
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when its harness closes the line, or dies
    with socket.socket(fileno=int(sys.argv[1])) as line:
        serve(line, sys.argv[2:])
