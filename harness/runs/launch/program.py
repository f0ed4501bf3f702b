"""One process to be: which program, with which environment, at which place; and the launchers that make it one."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lossbench.errors import NotAbleError, RunError, UsageError
from lossbench.files import no_room
from lossbench.net.host import rootless
from lossbench.net.host.place import Place
from lossbench.processes import Running, inherited, module_command, module_environment, which
from lossbench.runs.launch import companion, gate, torchrun
from lossbench.runs.launch.module import OURS
from lossbench.spec import about
from lossbench.spec.experiment import Beside, Experiment, Program

LOG_LINES_SHOWN = 8
RUNNER = "lossbench.runs.launch.module"


@dataclass(frozen=True, kw_only=True)
class Start:
    """Everything a launcher needs to know. `preload`: what the module imports first, and for long. `held`: somebody has
    to wait at the gate in its place."""

    program: Program
    place: Place
    variables: dict[str, str]  # of ours; the rest is the environment that we have ourselves
    log: Path
    hosts_path: Path
    held: bool = False

    @property
    def environment(self) -> dict[str, str]:
        return inherited(**self.variables)

    @property
    def module(self) -> str:
        """What it runs, if that is a module; empty for a user's own command."""
        return "" if self.program.command else about.module_of(self.program.name)

    @property
    def preload(self) -> tuple[str, ...]:
        return about.about(self.program.name).preload if self.module else ()


class Launcher(Protocol):
    """How a process comes to life at its place: by itself, or forked from one that has loaded its libraries (and what
    torchrun or Slurm would do)."""

    def expect(self, programs: Sequence[Program]) -> None:
        """These will be started: their libraries may begin to load."""

    def start(self, start: Start) -> Running: ...

    def let_go(self) -> None:
        """All are ready, and may begin; on this machine a FIFO tells them."""

    def check(self) -> None:
        """Raises if a machine that was started on is gone."""

    def close(self) -> None: ...


class Exec:
    """A process of its own, from the beginning."""

    def expect(self, programs: Sequence[Program]) -> None: ...

    def start(self, start: Start) -> Running:
        environment, command = start.environment, command_of(start.program)
        if start.module or start.program.torchrun:
            environment = module_environment(environment)
        if not start.module and "LOSSBENCH_ROLE" not in start.variables:
            command = companion.command(command, held=start.held)
        elif start.held:
            command = gate.command(command)
        with open(os.open(start.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666), "wb") as output:
            try:
                return start.place.start(command, environment=environment, output=output, hosts_path=start.hosts_path)
            except OSError as error:
                reason = f": {error}"
            except Exception as error:  # noqa: BLE001 - subprocess wraps what went wrong between fork and exec
                reason = f":\n{last_lines(start.log)}" if start.log.stat().st_size else f": {error}"
        raise RunError(f"the rank of {start.place.name} could not be started{reason}")

    def let_go(self) -> None: ...

    def check(self) -> None: ...

    def close(self) -> None: ...


def knows_no_gate(program: Program) -> bool:
    """It begins when it is started; ours wait until all are ready, whatever is asked."""
    return not program.barrier and (bool(program.command) or not about.is_ours(program.name))


def comes_later(program: Beside) -> bool:
    """Started by the run's clock, not before it."""
    return program.from_s is not None and not program.foreground


def command_of(program: Program) -> list[str]:
    """The program and its arguments."""
    if (unreachable := unreachable_interpreter()) is not None:
        raise unreachable
    if program.command and program.torchrun:
        return torchrun.command(program.torchrun, _present(command_of_user(list(program.command))))
    if program.command:
        return _present(command_of_user(list(program.command)))
    about.find(program.name)
    if about.is_ours(program.name):
        return module_command(about.module_of(program.name))
    return module_command(RUNNER, program.name)


def _present(command: list[str]) -> list[str]:
    """A user's program that is not there is said before anything is built; so is a torchrun that knows of no others."""
    if Path(command[0]).name == "torchrun" and not any(word.startswith("--nnodes") for word in command):
        step = "lossbench sets what torchrun sets: -- python train.py; several ranks on a host: --ranks N"
        raise UsageError("torchrun would make every host a world of its own", next_step=step)
    found = which(command[0])
    if found is None:
        raise no_program(command[0])
    if (reader := _reader(found)) and os.path.lexists(reader) and not os.access(reader, os.X_OK):  # noqa: PTH110
        raise _unreachable(reader, of=f", which reads {command[0]},")
    script = next(iter(command[1:]), "")
    if "python" in Path(command[0]).name and script.endswith(".py") and not Path(script).is_file():
        raise UsageError(f"no such script: {script}", next_step=f"paths are taken from {Path.cwd()}")
    if "python" in Path(command[0]).name and Path(script).is_dir() and not (Path(script) / "__main__.py").exists():
        raise UsageError(f"{script} is a folder without a __main__.py", next_step=f"name a script: python {script}/...")
    if "python" in Path(command[0]).name and script.endswith(".py") and not os.access(script, os.R_OK):
        raise _unreachable(script)
    return command


def _reader(program: str) -> str:
    """Of a script, what its first line names."""
    try:
        with open(program, "rb") as file:
            first = file.readline(256)
    except OSError:
        return ""
    words = first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []
    return words[0] if words else ""


def unreachable_interpreter() -> NotAbleError | None:
    """Inside of a user namespace no right of another user's helps: what started us may be out of reach then, and every
    rank and helper is started by it."""
    return None if os.access(sys.executable, os.R_OK | os.X_OK) else _unreachable(sys.executable)


def _unreachable(path: str, *, of: str = "") -> NotAbleError:
    step = "chmod a+rX on it and on the folders above it, or run with sudo"
    return NotAbleError(f"{path}{of} can't be read without root", next_step=step)


def no_program(name: str) -> UsageError:
    """Of what can't be started, why not; a script that may not be executed is there all the same."""
    if os.path.isfile(name):  # noqa: PTH113 - says no where it may not look
        step = f"python {name}" if name.endswith(".py") else f"chmod +x {name}, or name what reads it: sh {name}"
        return UsageError(f"{name} may not be executed", next_step=step)
    if os.path.isdir(name):  # noqa: PTH112 - as above
        return UsageError(f"{name} is a folder, no program", next_step="name the program in it, or python and a script")
    if name.endswith(".py"):
        step = f"paths are taken from {Path.cwd()}; of a script that is there: python {name}"
        return UsageError(f"no such script: {name}", next_step=step)
    step = f"paths are taken from {Path.cwd()}" if "/" in name else "is it installed, and in a folder of PATH?"
    return UsageError(f"no such program: {name}", next_step=step)


def command_of_user(command: list[str]) -> list[str]:
    first, *rest = command
    return [sys.executable if first == "python" else first, *rest]


def interpreter(program: Program) -> str:
    """Which one `python` or `python3` is, in words; empty for anything else."""
    first = program.command[0] if program.command else ""
    if not re.fullmatch(r"python[\d.]*", first):
        return ""
    found = which(command_of_user([first])[0])
    other = f"; `python` is the one that runs lossbench: {sys.executable}" if first != "python" else ""
    return f"{first} is {found}{other if found != sys.executable else ''}"


def own_programs(experiments: Sequence[Experiment]) -> list[list[str]]:
    """What of the user's own runs in them, as commands: programs, modules, and what is named as module:name."""
    out: dict[tuple[str, ...], None] = {}
    for one in experiments:
        programs = (one.workload, *one.beside)
        out |= {tuple(command_of_user(list(p.command))): None for p in programs if p.command}
        names = [p.name for p in programs if not p.command and not about.is_ours(p.name)]
        said = json.dumps([one.backend, *(dict(p.options) for p in programs)])
        names += re.findall(r'"([A-Za-z_][\w.]*):[A-Za-z_]\w*"', said)
        for name in names:
            with suppress(UsageError):  # a word with a colon that is no module
                out[sys.executable, str(about.find(name))] = None
    return [list(command) for command in out]


def prepare(programs: Sequence[Program]) -> None:
    """Workloads that can say beforehand what is wrong, and fetch what hosts without a way outside can't."""
    named = [one for one in programs if not one.command]
    modules = {one.name: about.about(one.name) for one in named}
    if any("simulated" in one.options for one in named if modules[one.name].simulates):
        raise UsageError("workload.options.simulated is the harness's own", next_step="use --backend simulated")
    for name, known in modules.items():
        if not known.prepare:
            continue
        options = [dict(one.options) for one in named if one.name == name]
        distinct = list({json.dumps(one, sort_keys=True): one for one in options}.values())
        ours = known.prepare.startswith(OURS)
        status, said = rootless.run_outside(
            module_command(known.prepare) if ours else module_command(RUNNER, known.prepare),
            text=json.dumps(distinct),
            environment=module_environment(os.environ),
        )
        if status:
            raise UsageError((said.strip().splitlines() or [f"{known.prepare} failed"])[-1])


def last_lines(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "(no log)"
    shown = [*lines[-LOG_LINES_SHOWN:], *filter(None, [no_room(path.parent)])]
    return "\n".join(f"  | {line}" for line in shown) or "  | (nothing was printed)"


def lines_after(path: Path, size: int) -> list[str]:
    with open(path, "rb") as file:
        file.seek(size)
        return [line for line in file.read().decode("utf-8", errors="replace").splitlines() if line.strip()]
