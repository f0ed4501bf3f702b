"""Commands without their imports: a process that has imported everything forks one child for each.

    done = lossbench("run", "proof", "--json")        as subprocess.run of the command would give
    running = begin("run", "proof", "--json")         as subprocess.Popen would
    rank = start("torch", [script], step_in=...)      a script as __main__, in a host if asked

What is forked is the command itself: its own process, environment, folder, output and exit status; only the second or
three of imports are not its own. With LOSSBENCH_REAL=1 (`make test-all`) both start real commands."""

from __future__ import annotations

import array
import contextlib
import os
import pickle
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, Protocol

ROOT = Path(__file__).resolve().parents[1]
LOSSBENCH = [sys.executable, "-m", "lossbench.cli.main"]
IMPORTS = {
    "cli": [
        "lossbench.cli.app",
        "lossbench.cli.main",
        "lossbench.cli.screen.live",
        "lossbench.runs.many.suite",
        "lossbench.proof.probe.probing",
    ],
    "report": ["lossbench.cli.app", "lossbench.cli.main", "scipy.stats", "polars", "lossbench.report.plots.library"],
    "torch": [
        "torch",
        "torch.distributed",
        "torch._dynamo",  # what an optimizer imports at its first step: more than a second
        "lossbench.torch",
        "lossbench.workloads.sync",
        "lossbench.workloads.training.build",
    ],
}


@dataclass(frozen=True)
class Host:
    """Where a child steps in first (lossbench.net.host.enter)."""

    where: str
    name: str
    hosts_path: Path


@dataclass(frozen=True)
class Asked:
    command: list[str]  # "lossbench" and its arguments, "-m" and a module, or a script's path with its own
    environment: dict[str, str]
    folder: str
    host: Host | None
    net: str = ""  # the file of a network namespace, to be entered and nothing else
    umask: int | None = None


class Forked:
    """As much of subprocess.Popen as tests use."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid, self._line = pid, line
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._line], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("forked", timeout or 0)
            said = self._line.recv(64)
            self.returncode = int(said) if said else -signal.SIGKILL  # the one that forks is gone, and its children
            self._line.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Command(Protocol):
    """As much of subprocess.Popen as tests use of a command that runs."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int, /) -> None: ...
    def kill(self) -> None: ...
    def communicate(self, *, timeout: float | None = None) -> tuple[str, str]: ...


class _Begun(Forked):
    """With what it says, kept until its end."""

    def __init__(self, forked: Forked, said: tuple[IO[bytes], IO[bytes]]) -> None:
        super().__init__(forked.pid, forked._line)
        self._said = said

    def communicate(self, *, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        out, err = (_text(one) for one in self._said)
        return out, err if self._said[1] is not self._said[0] else ""


class _Parent:
    """The process that forks, as its user sees it."""

    every: dict[str, _Parent] = {}
    lock = threading.Lock()

    def __init__(self, kind: str) -> None:
        from tests import preloaded

        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process: Forked | subprocess.Popen[bytes]
        with theirs, open(os.devnull, "r+b") as nothing:
            given = preloaded.ask(kind, [nothing.fileno(), nothing.fileno(), 2, theirs.fileno()], [])
            self.process = (
                Forked(*given)
                if given
                else subprocess.Popen(
                    [sys.executable, str(Path(__file__)), kind, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, "PYTHONPATH": preloaded.path(), "OMP_NUM_THREADS": "1"},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                )
            )
        self.owner = os.getpid()

    @classmethod
    def of(cls, kind: str) -> _Parent:
        one = cls.every.get(kind)
        if one is None or one.owner != os.getpid() or one.process.poll() is not None:
            one = cls.every[kind] = cls(kind)
        return one


def start(
    kind: str,
    command: Sequence[str],
    *,
    output: IO[Any],
    errors: IO[Any] | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    host: Host | None = None,
    net: str = "",
    umask: int | None = None,
) -> Forked:
    asked = Asked(list(command), dict(environment or os.environ), str(folder or os.getcwd()), host, net, umask)
    mine, theirs = socket.socketpair()
    with theirs, _Parent.lock:
        line = _Parent.of(kind).line
        fds = array.array("i", [output.fileno(), (errors or output).fileno(), theirs.fileno()])
        line.sendmsg([pickle.dumps(asked)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        return Forked(int(line.recv(64)), mine)


def lossbench(
    *arguments: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The command, to its end."""
    if os.environ.get("LOSSBENCH_REAL"):
        return subprocess.run([*LOSSBENCH, *arguments], capture_output=True, text=True, cwd=cwd, env=environment)
    return _ended(_kind(arguments), ["lossbench", *arguments], folder=cwd, environment=environment)


def begin(
    *arguments: str,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    together: bool = False,
    net: str = "",
    umask: int | None = None,
) -> Command:
    """The command, which goes on. `together`: errors are among what it prints. No signal is ignored in it, whatever
    started the tests (nohup and shells hand that down)."""
    if os.environ.get("LOSSBENCH_REAL"):
        return subprocess.Popen(
            [*(["nsenter", f"--net={net}"] if net else []), *LOSSBENCH, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if together else subprocess.PIPE,
            text=True,
            cwd=cwd,
            env=environment,
            umask=-1 if umask is None else umask,
            preexec_fn=_ignore_nothing,
        )
    out = _anonymous()
    err = out if together else _anonymous()
    how: dict[str, Any] = {"folder": cwd, "environment": environment, "net": net, "umask": umask}
    return _Begun(start(_kind(arguments), ["lossbench", *arguments], output=out, errors=err, **how), (out, err))


def _kind(arguments: Sequence[str]) -> str:
    """By what its command needs beside itself."""
    if arguments and arguments[0] in ("report", "compare", "export", "replay"):
        return "report"
    return "torch" if "run" in arguments and not _training().isdisjoint(arguments) else "cli"


@cache
def _training() -> set[str]:
    """Suites whose ranks are forked by a process with torch loaded."""
    suites = (ROOT / "workloads" / "suites").glob("*.toml")
    return {path.stem for path in suites if '\nname = "training"' in path.read_text(encoding="utf-8")}


def _ignore_nothing() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def lossbench_module(name: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A module that needs torch, as a program, to its end."""
    if os.environ.get("LOSSBENCH_REAL"):
        variables = {**environment, "PYTHONPATH": str(ROOT / ".package")}
        return subprocess.run([sys.executable, "-m", name], env=variables, capture_output=True, text=True)
    return _ended("torch", ["-m", name], environment=environment)


def _ended(kind: str, command: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
    with _anonymous() as out, _anonymous() as err:
        done = start(kind, command, output=out, errors=err, **how)
        try:
            code = done.wait()
        finally:
            done.kill()
        return subprocess.CompletedProcess(command, code, _text(out), _text(err))


def _anonymous() -> IO[bytes]:
    return os.fdopen(os.memfd_create("output"), "r+b")


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


# --- the process that forks ------------------------------------------------------------------------------------------


def serve(line: socket.socket) -> None:
    from lossbench.net.host.enter import stepper

    heard, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    waiting: dict[int, socket.socket] = {}
    while True:
        ready = select.select([line, heard], [], [])[0]
        if heard in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(heard, 4096)
        _reap(waiting)
        if line not in ready:
            continue
        data, fds, _, _ = socket.recv_fds(line, 1 << 20, 3)
        if not data:  # whoever asked has ended
            for pid in waiting:
                os.kill(pid, signal.SIGKILL)
            return
        asked: Asked = pickle.loads(data)
        host = asked.host
        step_in = (
            stepper(where=host.where, host=host.name, hosts_path=host.hosts_path, mortal=True, group="")
            if host
            else None
        )
        pid = os.fork()
        if not pid:
            _become(asked, fds, step_in, [line.fileno(), heard, wake, *(one.fileno() for one in waiting.values())])
        os.close(fds[0])
        os.close(fds[1])
        waiting[pid] = socket.socket(fileno=fds[2])
        line.send(str(pid).encode())


def _reap(waiting: dict[int, socket.socket]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        with contextlib.suppress(OSError), waiting.pop(pid) as line:
            line.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(asked: Asked, fds: list[int], step_in: Any, close: list[int]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _ignore_nothing()
    code = 1
    try:
        os.dup2(fds[0], 1)
        os.dup2(fds[1], 2)
        for fd in (*fds, *close):
            os.close(fd)
        os.environ.clear()
        os.environ.update(asked.environment)
        os.chdir(asked.folder)
        if asked.umask is not None:
            os.umask(asked.umask)
        if asked.net:
            _enter(asked.net)
        if step_in:
            step_in()
        sys.argv = asked.command
        if asked.command[0] == "lossbench":
            from lossbench.cli.main import main

            if "torch" in sys.modules:
                from tests import nurseries

                nurseries.fork_them()
            main()
        elif asked.command[0] == "-m":
            runpy.run_module(asked.command[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(asked.command[0], run_name="__main__")
        code = 0
    except SystemExit as said:
        code = said.code if isinstance(said.code, int) else 0 if said.code is None else 1
        if isinstance(said.code, str):
            print(said.code, file=sys.stderr)
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        sys.excepthook(*sys.exc_info())
    end(code)


def _enter(net: str) -> None:
    from lossbench.net.host import namespaces

    with open(net, "rb") as file:
        namespaces.setns(file.fileno())


def end(code: int) -> None:
    """As an interpreter ends: threads that are no daemons, exit functions, what was printed."""
    import atexit

    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def main() -> None:
    from importlib import import_module

    for name in IMPORTS[sys.argv[1]]:
        import_module(name)
    serve(socket.socket(fileno=int(sys.argv[2])))


if __name__ == "__main__":
    sys.path[:1] = [str(ROOT / ".package"), str(ROOT)]  # instead of this file's own folder
    main()
