"""A stranger on the data link at full speed: forged and replayed datagrams against two ranks that go on working.

He has seen their packets, tag and all, and sends them again as they were, with other numbers, other tags, and as
noise, from his own address with their port and with others, and from a member's host with another port. Nothing of it
may count: results are compared, bit by bit, with those of the same calls without him.

python tests/bench/stranger.py [--datagrams 10000000] [--seed 0] [--tag packet]    about a minute; a command, not a test
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import struct
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".package"), str(ROOT)]

import numpy as np  # noqa: E402

from lossbench.contract import DATA_PORT, HEADER_BYTES, HEADER_FIELDS  # noqa: E402
from lossbench.net.host import namespaces  # noqa: E402
from lossbench.net.journal import Journal  # noqa: E402
from lossbench.net.star.network import StarNetwork  # noqa: E402
from lossbench.spec.experiment import Experiment  # noqa: E402
from lossbench.spec.topology import Topology  # noqa: E402
from lossbench.spec.userfile import check  # noqa: E402
from lossbench.workloads.collective import exchange  # noqa: E402
from lossbench.workloads.collective.context import Group  # noqa: E402
from lossbench.workloads.collective.reduce import all_reduce  # noqa: E402
from lossbench.workloads.transport.packet.codec import CODECS  # noqa: E402
from lossbench.workloads.transport.policy import Policy  # noqa: E402
from tests.forked import Forked, start  # noqa: E402
from tests.transport.conftest import Ranks, make_ranks  # noqa: E402

UDP_SEGMENT, SEGMENTS = 103, 64
ELEMENTS = 60_000
KNOWN = 400  # packets that the stranger has seen


# --- the stranger ----------------------------------------------------------------------------------------------------


def forged(seen: list[bytes], dice: random.Random) -> bytes:
    """One of theirs, as it was or with something changed."""
    packet = bytearray(dice.choice(seen))
    for name in dice.choice([(), (), ("tag",), ("chunk",), ("sequence",), ("source", "chunk"), ("kind", "block")]):
        at, size = HEADER_FIELDS[name]
        packet[at : at + size] = dice.randbytes(size)
    if dice.random() < 0.1:
        packet = bytearray(dice.randbytes(len(packet)))
    return bytes(packet)


def super_packet(seen: list[bytes], dice: random.Random) -> tuple[bytes, int]:
    """(packets of one size, that size): as many as one system call takes."""
    size = len(dice.choice(seen))
    alike = [packet for packet in seen if len(packet) == size]
    count = min(SEGMENTS, 65_000 // size)
    return b"".join(forged(alike, dice) for _ in range(count)), size


def flood(place: str, targets: list[str], seen: list[bytes], *, datagrams: int, seed: int, ports: list[int]) -> None:
    dice = random.Random(seed)
    with namespaces.inside(place), ExitStack() as stack:
        senders = []
        for port in ports:
            one = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            one.bind(("0.0.0.0", port))
            senders.append(one)
        loads = [super_packet(seen, dice) for _ in range(300)]
        sent = 0
        while sent < datagrams:
            data, size = dice.choice(loads)
            ancillary = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("H", size))]
            try:
                dice.choice(senders).sendmsg([data], ancillary, 0, (dice.choice(targets), DATA_PORT))
            except OSError:
                continue
            sent += len(data) // size
    print(sent)


# --- those who work --------------------------------------------------------------------------------------------------


def values(rank: int, call: int) -> Any:
    return np.random.default_rng([rank, call]).standard_normal(ELEMENTS).astype(np.float32)


def work(group: Group, call: int) -> tuple[Any, Any, float]:
    """(what the lossy call gave, what the reliable one gave, the share that arrived in the lossy one)."""
    rank = group.endpoint.rank
    mine = values(rank, call)
    group.endpoint.step = call
    all_reduce(group, mine, codec=CODECS["float32"])
    share = min(account.fraction for account in group.accounts)
    room = [np.zeros(2000, np.uint8) for _ in range(2)]
    exchange.all_gather(group, np.full(2000, (rank + call) % 251, np.uint8), room)
    return mine, np.stack(room), share


def listen_in(place: str, count: int, work_on: Any) -> list[bytes]:
    """What a tap on a member's link sees of the group's packets."""
    with namespaces.inside(place):
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    tap.settimeout(0.5)
    heard: list[bytes] = []
    with tap:
        while len(heard) < count:
            work_on()
            try:
                while len(heard) < count:
                    frame = tap.recv(65536)
                    if frame[12:14] == b"\x08\x00" and frame[23] == 17 and len(frame) >= 42 + HEADER_BYTES:
                        heard.append(frame[42:])
            except TimeoutError:
                continue
    return [packet for packet in heard if len(packet) <= 1472]


class Strangers:
    """Two processes: in a host of their own, and in a member's with another port. Forked: they need no imports."""

    def __init__(self, network: StarNetwork, seen: list[bytes], datagrams: int, seed: int) -> None:
        self._file = tempfile.NamedTemporaryFile("w", suffix=".json")  # noqa: SIM115
        json.dump([packet.hex() for packet in seen], self._file)
        self._file.flush()
        self._said = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
        both = [h.ipv4 for h in Topology(hosts=2).all_hosts()]
        self.running = [
            self._start(network, "h2", both, datagrams * 3 // 4, seed, [DATA_PORT, 31000, 31001]),
            self._start(network, "h0", both[1:], datagrams // 4, seed + 1, [31000, 31001]),
        ]

    def _start(
        self, network: StarNetwork, host: str, targets: list[str], count: int, seed: int, ports: list[int]
    ) -> Forked:
        asked = [network.star.namespace(host), ",".join(targets), self._file.name, str(count), str(seed)]
        command = [str(Path(__file__)), "--flood", *asked, ",".join(map(str, ports))]
        return start("torch", command, output=self._said[seed % 2])

    def alive(self) -> bool:
        return any(one.poll() is None for one in self.running)

    def sent(self) -> int:
        for one in self.running:
            one.wait()
        return sum((said.seek(0), int(said.read()))[1] for said in self._said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datagrams", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tag", default="header", choices=["header", "packet"])
    parser.add_argument("--flood", nargs=6, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.flood:
        place, targets, file, count, seed, ports = asked.flood
        seen = [bytes.fromhex(text) for text in json.loads(Path(file).read_text())]
        flood(
            place,
            targets.split(","),
            seen,
            datagrams=int(count),
            seed=int(seed),
            ports=[int(port) for port in ports.split(",")],
        )
        return
    sys.exit(0 if besieged(asked.datagrams, asked.seed, asked.tag) else 1)


def besieged(datagrams: int, seed: int, tag: str = "header") -> bool:
    experiment = check(Experiment, {"name": "stranger", "topology": {"hosts": 3}}, origin="stranger")
    book = Journal.claim(kind="run")
    network = StarNetwork(network_id=book.id, experiment=experiment, backend="ebpf")
    try:
        network.build(before_making=book.before_making)
        network.cut_to_mtu()
        ranks = make_ranks(
            2,
            policy=Policy(tag=tag),
            addresses=[h.ipv4 for h in Topology(hosts=2).all_hosts()],
            inside=lambda rank: namespaces.inside(network.star.namespace(f"h{rank}")),
        )
        try:
            return _compare(network, ranks, datagrams, seed)
        finally:
            ranks.close()
    finally:
        network.close()
        book.undo_or_say()


def _compare(network: StarNetwork, ranks: Ranks, datagrams: int, seed: int) -> bool:
    numbers = iter(range(1_000_000))
    seen = listen_in(network.star.namespace("h0"), KNOWN, lambda: ranks.all(lambda g: work(g, 0)))
    strangers = Strangers(network, seen, datagrams, seed)
    started, calls, whole, wrong = time.monotonic(), 0, 0, 0
    while strangers.alive():
        call = next(numbers)
        found = ranks.all(lambda group, call=call: work(group, call))
        calls += 1
        right = values(0, call) + values(1, call)
        gathered = np.stack([np.full(2000, (rank + call) % 251, np.uint8) for rank in (0, 1)])
        all_came = all(share == 1 for _, _, share in found)
        whole += all_came
        for sums, room, _ in found:
            wrong += not np.array_equal(room, gathered)
            # A packet that the crowded link lost leaves a gap; one that counted wrongly would leave another number.
            wrong += all_came and not np.array_equal(sums, right)
    sent, ends = strangers.sent(), [group.endpoint for group in ranks.groups]
    print(
        f"{sent} datagrams of strangers in {time.monotonic() - started:.0f} s; meanwhile {calls} calls on 2 ranks, "
        f"{whole} of them whole, {wrong} results that differ; turned away (merged packets) "
        f"{sum(e.read()['strangers'] for e in ends)}, {sum(e.link.turned_away() for e in ends)} of them by the kernel; "
        f"overflow {[e.read()['overflow'] for e in ends]}"
    )
    return wrong == 0 and calls > 0


if __name__ == "__main__":
    main()
