"""What a host is: a place with a network stack of its own. A namespace in a star; this machine itself, or a machine
over SSH, are the same to whoever asks."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from pyroute2 import IPRoute

from lossbench.net.host import cgroups, namespaces
from lossbench.net.host.enter import stepper
from lossbench.processes import Started


class Place(Protocol):
    """Where programs of a rank run and sockets of a probe are opened."""

    @property
    def name(self) -> str:
        """Of the host, as its programs know it."""

    @property
    def where(self) -> str:
        """The file of its network namespace, for processes that step in by themselves; empty: there is none."""

    @property
    def group(self) -> str:
        """The file that a process joins its network's group by; empty: there is none."""

    def inside(self) -> AbstractContextManager[None]:
        """This thread there, then back; what is opened inside stays there."""

    def netlink(self) -> IPRoute:
        """A handle to the kernel that rules its links."""

    def socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket: ...

    def read(self, path: str) -> str:
        """A file as a program there sees it; of /proc/net what belongs to its links."""

    def start(
        self, command: Sequence[str], *, environment: Mapping[str, str], output: IO[bytes], hosts_path: Path
    ) -> Started:
        """A program that leads a group of its own and dies with us. `hosts_path`: its /etc/hosts."""


@dataclass(frozen=True)
class _Local:
    """On this machine, whichever stack of it."""

    name: str = ""

    def socket(self, family: int, kind: int, protocol: int = 0) -> socket.socket:
        with self.inside():
            return socket.socket(family, kind, protocol)

    def netlink(self) -> IPRoute:
        with self.inside():
            return IPRoute()

    def read(self, path: str) -> str:
        with self.inside():
            return Path(path.replace("/proc/net/", "/proc/thread-self/net/")).read_text(encoding="utf-8")

    def start(
        self, command: Sequence[str], *, environment: Mapping[str, str], output: IO[bytes], hosts_path: Path
    ) -> Started:
        step_in = self.stepper(hosts_path, mortal=True)
        return Started(
            subprocess.Popen(
                list(command),
                env=dict(environment),
                preexec_fn=step_in,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        )

    def stepper(self, hosts_path: Path, *, mortal: bool, group: str | None = None) -> Callable[[], None]:
        """What a child does before it becomes a program there. `group`: where another process made it."""
        joined = self.group if group is None else group
        return stepper(where=self.where, host=self.name, hosts_path=hosts_path, mortal=mortal, group=joined)

    @property
    def where(self) -> str:
        return ""

    @property
    def group(self) -> str:
        return ""

    def inside(self) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass(frozen=True)
class Here(_Local):
    """This machine's own stack."""

    group: str = ""


@dataclass(frozen=True)
class Namespace(_Local):
    """One of ours, by its name under /run/netns."""

    namespace: str = ""

    @property
    def where(self) -> str:
        return str(namespaces.FOLDER / self.namespace)

    @property
    def group(self) -> str:
        return cgroups.to_join(cgroups.folder(self.namespace.split("-")[1]))

    def inside(self) -> AbstractContextManager[None]:
        return namespaces.inside(self.namespace)
