"""A real network in a test, taken down whatever happens."""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lossbench.net.host import namespaces
from lossbench.net.journal import Journal
from lossbench.net.star.network import StarNetwork
from lossbench.proof.probe.probing import prove_network
from lossbench.spec.experiment import Experiment
from lossbench.spec.placement import rules_in_force
from lossbench.spec.userfile import check

Build = Callable[..., StarNetwork]


@pytest.fixture
def build() -> Iterator[Build]:
    """build(backend="ebpf", seed=1, topology={...}, impair=[...]) -> a network with its rules in force."""
    with building() as make:
        yield make


@contextmanager
def building() -> Iterator[Build]:
    with ExitStack() as undo:

        def make(*, backend: str = "ebpf", seed: int = 1, **keys: Any) -> StarNetwork:
            experiment = check(Experiment, {"name": "test", **keys}, origin="test")
            journal = Journal.claim(kind="run")
            undo.callback(journal.undo_or_say)
            network = StarNetwork(network_id=journal.id, experiment=experiment, backend=backend)
            undo.callback(network.close)
            network.build(before_making=journal.before_making)
            network.cut_to_mtu()
            network.shape()
            network.put(rules_in_force(experiment, seed=seed))
            return network

        yield make


@pytest.fixture
def profile_file(tmp_path: Path) -> Callable[[str], str]:
    """A profile written for this test; returns its path."""

    def write(text: str) -> str:
        path = tmp_path / f"{secrets.token_hex(4)}.toml"
        path.write_text(f'why = "test"\n{text}')
        return str(path)

    return write


def prove(network: StarNetwork, packets: int = 40_000) -> Any:
    return prove_network(network, packets=packets, payload_bytes=64, token=secrets.randbits(63))


def on_host(network: StarNetwork, host: str, *words: str, tool: str = "ip") -> str:
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool} on this machine (iproute2)")
    with namespaces.inside(network.star.namespace(host)):
        return subprocess.run([tool, *words], check=True, capture_output=True, text=True).stdout


def device(network: StarNetwork, towards: str) -> str:
    """Of h0's link that leads there."""
    words = on_host(network, "h0", "route", "get", towards).split()
    return words[words.index("dev") + 1]


def open_socket(
    network: StarNetwork, host: str, family: int = socket.AF_INET, kind: int = socket.SOCK_DGRAM
) -> socket.socket:
    with namespaces.inside(network.star.namespace(host)):
        return socket.socket(family, kind)


def receive_all(receiver: socket.socket, *, quiet_s: float = 1.0, at_least: int = 1) -> list[bytes]:
    """Until nothing has come for a while; a busy machine may take its time to deliver those that have to come."""
    out: list[bytes] = []
    try:
        while True:
            receiver.settimeout(30 if len(out) < at_least else quiet_s)
            out.append(receiver.recv(65536))
    except TimeoutError:
        return out


Way = tuple[str, str, str]  # link, from, to


def said_on_both_links(network: StarNetwork) -> set[Way]:
    """Every host says a word to every other on the data link and on the control link."""
    hosts = network.experiment.topology.all_hosts()
    heard: set[Way] = set()
    with ExitStack() as stack:
        for link, address in (("data", lambda host: host.ipv4), ("control", lambda host: host.control_ipv4)):
            ends = {host.name: stack.enter_context(open_socket(network, host.name)) for host in hosts}
            for host in hosts:
                ends[host.name].bind((address(host), 5000))
            for source in hosts:  # who hears is emptied before the next one speaks: no queue has to hold them all
                for other in hosts:
                    ends[source.name].sendto(source.name.encode(), (address(other), 5000))
                for other in hosts:
                    ends[other.name].settimeout(30)
                    with suppress(TimeoutError):
                        heard.add((link, ends[other.name].recv(100).decode(), other.name))
    return heard


def every_way(network: StarNetwork) -> set[Way]:
    names = [host.name for host in network.experiment.topology.all_hosts()]
    return {(link, one, other) for link in ("data", "control") for one in names for other in names}
