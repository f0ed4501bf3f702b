"""Two namespaces of the test's own, joined by a wire: one holds the interface that is treated as a machine's NIC."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute

from lossbench.net import journal
from lossbench.net.host import namespaces
from lossbench.net.host.place import Namespace
from lossbench.net.nic import snapshot, takedown
from lossbench.net.tc import awake
from lossbench.processes import signal_one
from tests.forked import Command, begin

COMMAND = [sys.executable, "-P", "-m", "lossbench.cli.main"]
ADDRESS = {"here": "10.77.0.1", "there": "10.77.0.2"}
PORT = 29444


@dataclass(frozen=True, kw_only=True)
class Wire:
    """`here` has nic0, `there` the other end, far0."""

    here: str
    there: str

    def lossbench(
        self, *arguments: str, expect: int | None = 0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        done = self.start(*arguments, **environment)
        out, err = done.communicate(timeout=600)
        assert expect is None or done.returncode == expect, f"exit {done.returncode}\n{out}\n{err}"
        return subprocess.CompletedProcess(arguments, done.wait(), out, err)

    def start(self, *arguments: str, **environment: str) -> Command:
        return begin(*arguments, net=str(namespaces.FOLDER / self.here), environment=known(environment))

    def run_here(self, command: list[str], **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["nsenter", f"--net={namespaces.FOLDER / self.here}", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=known(environment),
        )

    def shown(self) -> dict[str, Any]:
        (nic,) = json.loads(self.lossbench("nic", "show", "nic0", "--json").stdout)["nics"]
        return dict(nic)

    def snapshot(self) -> dict[str, Any]:
        with namespaces.inside(self.here):
            found = snapshot.of(self.index())
        assert found is not None
        return found

    def index(self) -> int:
        with namespaces.open_inside(self.here) as ip:
            return int(ip.link_lookup(ifname="nic0")[0])

    def links(self) -> list[str]:
        with namespaces.open_inside(self.here) as ip:
            return sorted(link.get_attr("IFLA_IFNAME") for link in ip.get_links())

    def sockets(self, *, port: int = PORT) -> tuple[socket.socket, socket.socket]:
        """(sends from here, receives there)."""
        with namespaces.inside(self.there):
            receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            receiver.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE
            receiver.bind((ADDRESS["there"], port))
            receiver.settimeout(0.5)
        with namespaces.inside(self.here):
            sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sender.connect((ADDRESS["there"], port))
        return sender, receiver

    def arrived(self, count: int, *, port: int = PORT, size: int = 200) -> list[int]:
        """Numbers of the datagrams that arrive, of `count` that are sent."""
        sender, receiver = self.sockets(port=port)
        with sender, receiver:
            for number in range(count):
                sender.send(number.to_bytes(4, "big").ljust(size, b"."))
                if number % 200 == 199:
                    time.sleep(0.002)
            return received(receiver)


def known(more: dict[str, str]) -> dict[str, str]:
    """Whoever runs the tests may have come over SSH: that is not their subject."""
    return {name: value for name, value in os.environ.items() if name != "SSH_CONNECTION"} | more


def received(receiver: socket.socket) -> list[int]:
    out = []
    with suppress(TimeoutError):
        while True:
            out.append(int.from_bytes(receiver.recv(65536)[:4], "big"))
    return out


@contextmanager
def wired() -> Iterator[Wire]:
    tag = secrets.token_hex(3)
    wire = Wire(here=f"lbt-{tag}-here", there=f"lbt-{tag}-there")
    try:
        for name in (wire.here, wire.there):
            namespaces.create(name)
        with namespaces.open_inside(wire.here) as here, namespaces.open_inside(wire.there) as there:
            there_fd = os.open(namespaces.FOLDER / wire.there, os.O_RDONLY)
            try:
                here.link("add", ifname="nic0", kind="veth", peer={"ifname": "far0", "net_ns_fd": there_fd})
            finally:
                os.close(there_fd)
            _up(here, "nic0", ADDRESS["here"])
            _up(there, "far0", ADDRESS["there"])
        awake.wait(lambda: awake.not_up(Namespace("nic0", wire.here), ("nic0",)))
        yield wire
    finally:
        _end(wire)


def _end(wire: Wire) -> None:
    with suppress(OSError), namespaces.inside(wire.here):
        mine = namespaces.current()
    for book in journal.networks():
        if any(isinstance(one.before, dict) and one.before.get("netns") == mine for one in book.made()):
            takedown.take_away(book)
    for name in (wire.here, wire.there):
        namespaces.kill_inside([name], patience_s=1.0)
        namespaces.remove(name)


def _up(ip: IPRoute, name: str, address: str) -> None:
    ip.link("set", index=1, state="up")
    index = ip.link_lookup(ifname=name)[0]
    ip.link("set", index=index, state="up")
    ip.addr("add", index=index, address=address, prefixlen=24)


def watchdogs(wire: Wire) -> list[int]:
    """Their pids."""
    out = []
    for pid in namespaces.pids_inside([wire.here]):
        with suppress(OSError):
            if b"lossbench.net.nic.watchdog" in Path(f"/proc/{pid}/cmdline").read_bytes():
                out.append(pid)
    return out


def kill(pid: int, number: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    signal_one(handle, number)
    os.close(handle)


def until(what: Any, *, seconds: float = 60.0) -> bool:
    """Whether it comes true; on a full machine it may take long."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if what():
            return True
        time.sleep(0.05)
    return bool(what())
