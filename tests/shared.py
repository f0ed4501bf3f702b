"""What several tests need: a frame off the wire as our header, a count as deviations from what a chain makes, things
that belong to somebody else, the moment at which a run's ranks have begun, the project's own files."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from scapy.layers.inet import UDP
from scapy.layers.l2 import Ether

from lossbench import contract
from lossbench.net import journal
from lossbench.net.host import namespaces
from lossbench.net.tc.kinds import install
from lossbench.proof.probe import datagram
from lossbench.spec import lossmodel
from lossbench.spec.lossmodel import Chain
from tests.forked import Command

# A short run whose packets are held back by a process in user space.
WIRE = [
    "--backend",
    "relay",
    "--set",
    "topology.hosts=2",
    "--set",
    "topology.rate_mbit=20",
    "--set",
    'impair=[{profile={why="t",delay={mean_ms=2}}}]',
    "--set",
    "probe.packets=400",
]


ROOT = Path(__file__).resolve().parents[1]


def python_files(*rooms: str) -> list[Path]:
    """Without a look at compiled ones: in a guest, which keeps what it once saw of the host's files, a folder for them
    that the host makes meanwhile is listed and can't be opened."""
    found = []
    for room in rooms:
        for folder, folders, names in os.walk(ROOT / room):
            folders[:] = [name for name in folders if name != "__pycache__"]
            found += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(found)


def dissect_frame(frame: bytes) -> dict[str, int] | None:
    """The header of one of our datagrams, or None if the frame holds none."""
    packet = Ether(frame)
    if UDP not in packet or len(bytes(packet[UDP].payload)) < contract.HEADER_BYTES:
        return None
    fields = datagram.dissect(bytes(packet[UDP].payload))
    return fields if fields["magic"] == contract.MAGIC else None


def z_score(dropped: int, seen: int, chain: Chain) -> float:
    """For bounds of tests; verdicts use exact tails."""
    deviation = math.sqrt(seen * lossmodel.loss_variance_per_packet(chain))
    return (dropped - seen * lossmodel.mean_loss(chain)) / deviation if deviation else 0.0


@contextmanager
def foreign_network() -> Iterator[tuple[str, Callable[[], bool]]]:
    """A namespace with a qdisc of somebody else, named to look a little like ours; and a function: does it stand?"""
    install()
    name = f"lb-foreign-{os.getpid()}"
    namespaces.create(name)
    with namespaces.open_inside(name) as inside:
        inside.link("add", ifname="f0", kind="veth", peer={"ifname": "f1"})
        index = inside.link_lookup(ifname="f0")[0]
        inside.tc("add", "bfifo", index, 0x10000, parent=0xFFFFFFFF, limit=77_000)

    def stands() -> bool:
        with namespaces.open_inside(name) as inside:
            found = [q for q in inside.get_qdiscs(index) if q.get_attr("TCA_KIND") == "bfifo"]
        return [q.get_attr("TCA_OPTIONS")["limit"] for q in found] == [77_000]

    try:
        yield name, stands
    finally:
        namespaces.remove(name)


def wait_until_begun(process: Command, folder: Path) -> None:
    """Until the ranks of a run below this folder have begun, or it has ended."""
    while not list(folder.rglob("timeline.jsonl")) and process.poll() is None:
        time.sleep(0.02)


def namespaces_of(pid: int) -> list[str]:
    """Namespaces of networks that a process is building or running now."""
    return [name for name in all_ours() if owner_of(name) == pid]


def all_ours() -> list[str]:
    try:
        return [name for name in os.listdir("/run/netns") if re.fullmatch(r"lb-[0-9a-f]{4}-(sw|h\d+)", name)]
    except FileNotFoundError:
        return []


def owner_of(name: str) -> int | None:
    """The living process that owns a namespace's network."""
    book = journal.Journal(name.split("-")[1])
    return book.owner().get("pid") if book.owner_alive() else None
