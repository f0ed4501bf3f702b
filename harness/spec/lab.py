"""lab.toml: machines that are hosts, and the switch between them. Names in it reach ssh as arguments, never a shell."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from lossbench.errors import UsageError
from lossbench.spec.userfile import Frozen, check, read_toml, shown

TARGET = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9_.@:%\[\]-]{0,252}")  # what ssh takes; never an option
INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:-]{0,14}")
PROGRAM = re.compile(r"[A-Za-z0-9_/~.][A-Za-z0-9_/.+~-]{0,252}")
MOST_MACHINES = 250
ONE_RANK = "one rank on each machine: ranks = {} in lab.toml is for programs of your own"


class Machine(Frozen):
    """One host: a machine with an interface of its own for data."""

    ssh: str
    """As ssh takes it: a name of your ~/.ssh/config, user@node1."""
    interface: str = ""
    """Of the data network, such as eth1; none: the one that has the address."""
    address: str = ""
    """On the data network; none: the first one of the interface. One of both must be given."""
    control: str = ""
    """Address on the control network; none: the one ssh reaches it by."""
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    """For the record; ranks = 8 gives each of eight its own by LOCAL_RANK."""
    ranks: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes of a program of your own on it, by torchrun; what comes with lossbench has one."""
    python: str = "python3"
    """Which Python there: 3.11 or newer, with lossbench's packages (from its wheel: docs/lab.md; make wheelhouse)."""
    past_rdma: bool = False
    """Its interface has an RDMA device, whose traffic no rule meets; only TCP/IP is meant (NCCL_IB_DISABLE=1)."""
    sudo: bool = False
    """Become root there by `sudo -n`."""

    @model_validator(mode="after")
    def _found(self) -> Machine:
        if not self.interface and not self.address:
            raise ValueError("neither interface nor address is given: which is the data network?")
        return self

    @field_validator("ssh")
    @classmethod
    def _target(cls, value: str) -> str:
        if not TARGET.fullmatch(value):
            raise ValueError("not a name that ssh takes")
        return value

    @field_validator("interface")
    @classmethod
    def _interface(cls, value: str) -> str:
        if value and not INTERFACE.fullmatch(value):
            raise ValueError("not a name of an interface")
        return value

    @field_validator("python")
    @classmethod
    def _program(cls, value: str) -> str:
        if value.startswith("~"):  # it reaches the shell there quoted, which leaves it as it is
            raise ValueError("~ is not replaced on the machine: give the whole path, such as /home/me/venv/bin/python")
        if not PROGRAM.fullmatch(value) or ".." in value:
            raise ValueError("not the path of a program")
        return value

    @field_validator("address", "control")
    @classmethod
    def _address(cls, value: str) -> str:
        if value:
            try:
                value = str(ipaddress.ip_address(value))  # as the kernel writes it
            except ValueError:
                raise ValueError("not an address") from None
            if "%" in value:
                raise ValueError("an address without a scope")
        return value


class Switch(Frozen):
    """What stands between them."""

    name: str = ""
    """For the record."""
    notes: str = ""
    """How it is set up: queues, priorities, buffer."""
    counters: tuple[str, ...] = ()
    """A command of yours, run here, that prints JSON: a list of {port, queue, drops}."""
    folder: str = ""
    """Where counters is run, and its paths are taken from; none: the folder of lab.toml."""


class Lab(Frozen):
    """Machines over SSH."""

    name: str = ""
    """Default: the file's name."""
    by: Literal["ssh", "slurm"] = "ssh"
    """How agents are started; slurm: by srun, inside an allocation (--slurm)."""
    ssh_config: str = ""
    """A file for ssh -F; none: your own ~/.ssh/config."""
    machine: Annotated[tuple[Machine, ...], Field(min_length=1, max_length=MOST_MACHINES)]
    """[[machine]], in the order of their ranks: h0, h1, ..."""
    switch: Switch = Switch()
    """[switch]"""

    @field_validator("ssh_config")
    @classmethod
    def _config(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError("not the name of a file")
        return value

    @model_validator(mode="after")
    def _told_apart(self) -> Lab:
        for what in ("ssh", "address"):
            values = [getattr(one, what) for one in self.machine if getattr(one, what)]
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                raise ValueError(f"two machines have {what} {twice}")
        return self

    def most_ranks(self) -> int:
        return max(one.ranks for one in self.machine)

    def names(self) -> list[str]:
        return [f"h{rank}" for rank in range(len(self.machine))]


def load(path: Path) -> Lab:
    data = read_toml(path, if_none=f"lossbench lab init {path} writes one to edit")
    if isinstance(data.get("machine"), dict):
        raise UsageError(f"{path}: [machine] is one machine alone", next_step="[[machine]], once for each of them")
    data.setdefault("name", path.stem)
    _from_its_folder(data, "ssh_config", path)
    if isinstance(switch := data.get("switch"), dict):
        switch.setdefault("folder", ".")
        _from_its_folder(switch, "folder", path)
    return check(Lab, data, origin=str(path))


def _from_its_folder(holder: dict[str, Any], key: str, path: Path) -> None:
    """Where the file is, whoever reads it from wherever."""
    given = holder.get(key)
    if isinstance(given, str) and given:
        holder[key] = str((path.parent / _at_home(given, path, key)).absolute())


def _at_home(config: str, path: Path, key: str) -> Path:
    try:
        return Path(config).expanduser()
    except RuntimeError:
        text = f"{path}: {key}: no such user: {shown(config.partition('/')[0])}"
        raise UsageError(text, next_step="give the file's whole path") from None
