"""Drills of the transport on a network that changes: every call ends right, or with the right sentence in time.

python tests/bench/network_drills.py [--times 40] [--at-once 4] [--only mtu route address link kill stop forge]

Three ranks, a process each on a host of a star, make one call after the other: a mean of equal numbers, which stays
what it is whatever is lost, and a word that must arrive. Meanwhile *mtu*, *route*, *address*, *link*: those of a host
change, for a while or for good; *kill*, *stop*: a rank dies, or sleeps for a while or for good; *forge*: packets from a
rank's own address and port, without the key, recorded, or (where whole packets are tagged) altered. What was for a
while must cost time and nothing else; of what is for good every rank that is left must hear, by name, at most a second
after `timeout_s`. Both engines, both tags, drawn from the seed."""

from __future__ import annotations

import argparse
import json
import mmap
import os
import re
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / ".package")]

from lossbench.contract import DATA_PORT, Header  # noqa: E402
from lossbench.net.host import namespaces  # noqa: E402
from lossbench.net.star.network import StarNetwork  # noqa: E402
from lossbench.net.tc import kinds  # noqa: E402
from lossbench.spec.topology import Topology  # noqa: E402
from lossbench.workloads.collective.context import Group  # noqa: E402
from lossbench.workloads.collective.reduce import all_reduce  # noqa: E402
from lossbench.workloads.errors import TransportError  # noqa: E402
from lossbench.workloads.transport.meeting import meet  # noqa: E402
from lossbench.workloads.transport.packet.codec import CODECS  # noqa: E402
from lossbench.workloads.transport.packet.tag import Tags  # noqa: E402
from lossbench.workloads.transport.plain.engine import PlainEngine  # noqa: E402
from lossbench.workloads.transport.policy import Policy  # noqa: E402
from tests.networks import building, device, on_host  # noqa: E402

WORLD, COUNT, VALUE = 3, 20_000, 7.0
TIMEOUT_S, GRACE_S, PATIENCE_S = 3.0, 1.0, 120.0
HOSTS = [host.ipv4 for host in Topology(hosts=WORLD).all_hosts()]
MORE = 5  # calls of every rank that show that it goes on
IP_BYTES, UDP_BYTES, ETHERNET_BYTES = 20, 8, 14


class TooSlowError(Exception):
    """The machine: what should have lasted for a while lasted for longer than anybody waits."""


class Places:
    """What ranks tell each other and the drill: files in a folder, and how many calls each has made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shared = np.frombuffer(mmap.mmap(-1, 8 * (WORLD + 1)), np.int64)
        self.made, self.told_to_end = shared[:WORLD], shared[WORLD:]

    def set(self, key: str, value: str) -> None:
        path = self._path(key)
        path.with_suffix(".part").write_text(value)
        path.with_suffix(".part").rename(path)

    def get(self, key: str) -> bytes:
        until = time.monotonic() + PATIENCE_S
        while not self._path(key).exists():
            assert time.monotonic() < until, key
            time.sleep(0.005)
        return self._path(key).read_bytes()

    def _path(self, key: str) -> Path:
        return self.folder / key.replace("/", "_")

    def ended(self, rank: int) -> dict[str, float | str] | None:
        """How its last call ended, and when."""
        path = self._path(f"ended{rank}")
        return json.loads(path.read_text()) if path.exists() else None


def be_a_rank(rank: int, places: Places, namespace: str, policy: Policy, *, plain: bool) -> None:
    """One call after the other, until one fails or all end together."""
    engine = PlainEngine if plain else None
    with namespaces.inside(namespace):
        end = meet(places, rank=rank, world=WORLD, address=HOSTS[rank], policy=policy, engine=engine)
    group, said, mine = Group(end), "all is well", np.full(COUNT, VALUE, np.float32)
    told = np.zeros(1, np.int64)
    try:
        while not told[0]:
            all_reduce(group, mine, codec=CODECS["float32"], op="avg")
            if not np.all(mine == VALUE):
                said = f"wrong numbers: {np.unique(mine)[:5]}"
                break
            told = places.told_to_end.copy()  # if one of them knows, all do
            all_reduce(group, told, codec=CODECS["int64"], op="max", lossy=False)
            places.made[rank] += 1
    except TransportError as error:
        said = str(error)
    places.set(f"ended{rank}", json.dumps({"said": said, "at": time.monotonic()}))
    end.close()


@dataclass(kw_only=True)
class Drill:
    network: StarNetwork
    places: Places
    policy: Policy
    pids: list[int]
    dice: Random

    def wait_for(self, what: Callable[[], bool], why: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while not what():
            if time.monotonic() > until:
                raise AssertionError(f"{why}: {[self.places.ended(rank) for rank in range(WORLD)]}")
            time.sleep(0.005)

    def calls(self, more: int, ranks: range | list[int] = range(WORLD)) -> None:
        """Until every one of them has made so many more, or one has ended."""
        wanted = self.places.made + more
        self.wait_for(
            lambda: all(self.places.made[r] >= wanted[r] for r in ranks) or any(map(self.places.ended, ranks)),
            "no call ends",
        )

    @contextmanager
    def for_a_while(self, undo: Callable[[], object]) -> Iterator[None]:
        """Undone after a third of the timeout at most."""
        since = time.monotonic()
        try:
            yield
            time.sleep(self.dice.uniform(0.05, self.policy.timeout_s / 3))
        finally:
            undo()
        if time.monotonic() - since > self.policy.timeout_s / 2:
            raise TooSlowError

    def goes_on(self) -> None:
        """Everybody makes more calls, and ends well."""
        self.calls(MORE)
        self.places.told_to_end[0] = 1
        for rank in range(WORLD):
            self.wait_for(lambda rank=rank: self.places.ended(rank) is not None, f"rank {rank} does not end")
            said = self.places.ended(rank)
            assert said is not None and said["said"] == "all is well", f"rank {rank}: {said}"

    def ends(self, since: float, sentences: dict[int, str]) -> float:
        """Those ranks say these; how long after `since` the last of them did."""
        took = 0.0
        for rank, pattern in sentences.items():
            self.wait_for(lambda rank=rank: self.places.ended(rank) is not None, f"rank {rank} does not end")
            said = self.places.ended(rank)
            assert said is not None and re.search(pattern, str(said["said"])), f"rank {rank}: {said}, not {pattern}"
            took = max(took, float(said["at"]) - since)
        return took


GAVE_UP = r"gave this call up: "
NO_SIGN = r"no sign of life from rank [{}]"
NOT_TAKEN = r"its host does not take its packets|this host takes no packets to rank"


def gone(*who: int) -> str:
    return NO_SIGN.format("".join(map(str, who)))


def mtu(drill: Drill) -> float:
    """Wider is nothing; narrower is said at once, by name."""
    place = device(drill.network, HOSTS[1])
    since = time.monotonic()
    if drill.dice.random() < 0.5:
        on_host(drill.network, "h0", "link", "set", "dev", place, "mtu", "9000")
        drill.goes_on()
        return 0.0
    on_host(drill.network, "h0", "link", "set", "dev", place, "mtu", str(drill.dice.choice([600, 1000, 1400])))
    told = GAVE_UP + "its host does not take its packets"
    return drill.ends(since, {0: "its MTU has fallen", 1: told, 2: told})


def _changed(drill: Drill, do: list[str], undo: list[list[str]], sentences: dict[int, str]) -> float:
    """On h0, for a while or for good."""

    def back() -> None:
        for words in undo:
            on_host(drill.network, "h0", *words)

    if drill.dice.random() < 0.5:
        with drill.for_a_while(back):
            on_host(drill.network, "h0", *do)
        drill.goes_on()
        return 0.0
    since = time.monotonic()
    on_host(drill.network, "h0", *do)
    return drill.ends(since, sentences)


def route(drill: Drill) -> float:
    way = ["unreachable", HOSTS[1]]
    either = f"{gone(0, 1)}|{NOT_TAKEN}"
    return _changed(drill, ["route", "add", *way], [["route", "del", *way]], dict.fromkeys(range(WORLD), either))


def _alone() -> dict[int, str]:
    """h0 has no way to anybody."""
    return {0: f"{gone(1, 2)}|{NOT_TAKEN}", 1: gone(0), 2: gone(0)}


def _neighbours(drill: Drill, place: str) -> list[list[str]]:
    """How to make them known again: the kernel forgets them with the last address."""
    shown = on_host(drill.network, "h0", "-4", "neighbour", "show", "dev", place)
    known = [line.split() for line in shown.splitlines() if line.split()[0] in HOSTS[1:]]
    return [["neighbour", "replace", *words[:3], "nud", "permanent", "dev", place] for words in known]


def address(drill: Drill) -> float:
    place = device(drill.network, HOSTS[1])
    shown = on_host(drill.network, "h0", "-o", "-4", "address", "show", "dev", place).split()
    mine = [shown[shown.index("inet") + 1], "dev", place]
    undo = [["address", "add", *mine], *_neighbours(drill, place)]
    return _changed(drill, ["address", "del", *mine], undo, _alone())


def link(drill: Drill) -> float:
    place = device(drill.network, HOSTS[1])
    undo = [["link", "set", "dev", place, "up"], *_neighbours(drill, place)]
    return _changed(drill, ["link", "set", "dev", place, "down"], undo, _alone())


def kill(drill: Drill) -> float:
    who = drill.dice.randrange(WORLD)
    since = time.monotonic()
    os.kill(drill.pids[who], signal.SIGKILL)
    return drill.ends(since, {rank: gone(who) for rank in range(WORLD) if rank != who})


def stop(drill: Drill) -> float:
    who = drill.dice.randrange(WORLD)
    since = time.monotonic()
    os.kill(drill.pids[who], signal.SIGSTOP)
    if drill.dice.random() < 0.5:
        with drill.for_a_while(lambda: os.kill(drill.pids[who], signal.SIGCONT)):
            pass
        drill.goes_on()
        return 0.0
    try:
        took = drill.ends(since, {rank: gone(who) for rank in range(WORLD) if rank != who})
    finally:
        os.kill(drill.pids[who], signal.SIGCONT)
    others = "|".join([gone(*range(WORLD)), "has left the group"])
    return max(took, drill.ends(time.monotonic(), {who: others}))


def forge(drill: Drill) -> float:
    """As if rank 2 said it to rank 0."""
    seen = _overheard(drill)
    with namespaces.inside(drill.network.star.namespace("h2")):
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    wrong = Tags(drill.dice.randbytes(16), whole=drill.policy.tag == "packet")
    with raw:
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            packet = drill.dice.choice(seen)
            made = [packet, wrong.stamped(_changed_header(packet, drill.dice))]
            if drill.policy.tag == "packet":
                made.append(packet[:-3] + drill.dice.randbytes(3))
            for one in made:
                raw.sendto(_as_datagram(one), (HOSTS[0], 0))
            time.sleep(0.001)
    drill.goes_on()
    return 0.0


def _overheard(drill: Drill) -> list[bytes]:
    """Packets from rank 2 to rank 0, as they are on the way."""
    with namespaces.inside(drill.network.star.namespace("h0")):
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
    found: list[bytes] = []
    until = time.monotonic() + PATIENCE_S
    with tap:
        tap.settimeout(0.1)
        while len(found) < 40 and time.monotonic() < until:
            with suppress(TimeoutError):
                frame = tap.recv(65536)[ETHERNET_BYTES:]
                if socket.inet_ntoa(frame[12:16]) == HOSTS[2] and frame[9] == socket.IPPROTO_UDP:
                    packet = frame[IP_BYTES + UDP_BYTES :]
                    if Header.unpack(packet) is not None and len(packet) <= 1472:
                        found.append(packet)
    assert found, "nothing is heard of rank 2"
    return found


def _changed_header(packet: bytes, dice: Random) -> bytes:
    header = Header.unpack(packet)
    assert header is not None
    ahead = (header.sequence + dice.randrange(-3, 200)) % (1 << 32)
    return replace(header, tag=0, sequence=ahead, chunk=dice.randrange(8)).pack() + packet[40:]


def _as_datagram(packet: bytes) -> bytes:
    """From rank 2's address and port; the kernel adds what is missing in the header."""
    length = IP_BYTES + UDP_BYTES + len(packet)
    places = socket.inet_aton(HOSTS[2]) + socket.inet_aton(HOSTS[0])
    ip = struct.pack("!BBHHHBBH", 0x45, 0, length, 0, 0, 64, socket.IPPROTO_UDP, 0) + places
    return ip + struct.pack("!HHHH", DATA_PORT, DATA_PORT, UDP_BYTES + len(packet), 0) + packet


DRILLS = {one.__name__: one for one in (mtu, route, address, link, kill, stop, forge)}


def _fork(work: Callable[[], object]) -> int:
    """A child that does this and ends; 1 if that went wrong."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    except BaseException:  # noqa: BLE001 - said, and the child ends
        traceback.print_exc()
    finally:
        os._exit(status)


def drill(name: str, number: int, seed: int, timeout_s: float = TIMEOUT_S) -> tuple[str, float]:
    """(what was drawn, how long it took everybody to say that it is over; 0: it goes on)."""
    dice = Random(f"{seed} {name} {number}")
    tag, sends = dice.choice(["header", "packet"]), dice.choice(["on", "off"])
    policy = Policy(timeout_s=timeout_s, tag=tag, send_thread=sends)
    plain = [dice.random() < 0.25 for _ in range(WORLD)]
    numpy = [rank for rank in range(WORLD) if plain[rank]]
    drawn = f"{name} {number}: tag {policy.tag}, sending thread {policy.send_thread}, numpy {numpy}"
    kinds.install()
    with tempfile.TemporaryDirectory() as folder, building() as build:
        network = build(topology={"hosts": WORLD, "family": "ipv4", "mtu": 1500}, impair=[])
        places, pids = Places(Path(folder)), list[int]()
        try:
            for rank in range(WORLD):
                where = network.star.namespace(f"h{rank}")
                pids.append(_fork(lambda r=rank, w=where: be_a_rank(r, places, w, policy, plain=plain[r])))
            one = Drill(network=network, places=places, policy=policy, pids=pids, dice=dice)
            one.calls(dice.randrange(1, 20))
            return drawn, DRILLS[name](one)
        except BaseException as error:
            error.add_note(drawn)
            raise
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def some(jobs: list[tuple[str, int]], *, seed: int, timeout_s: float, grace_s: float) -> None:
    """One after the other; raises if one of them was not as it should be."""
    bad = 0
    for name, number in jobs:
        try:
            drawn, took = drill(name, number, seed, timeout_s)
        except TooSlowError:
            print(f"{name} {number}: not tried, this machine is too slow", flush=True)
            continue
        except AssertionError as error:
            print(f"WRONG: {error} {error.__notes__}", flush=True)
            bad += 1
            continue
        late = took > timeout_s + grace_s
        bad += late
        print(f"{'LATE: ' if late else ''}{drawn}: {f'over after {took:.2f} s' if took else 'goes on'}", flush=True)
    if bad:
        raise SystemExit(f"{bad} of {len(jobs)} drills went wrong")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=40, help="drills in all")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--only", nargs="+", choices=list(DRILLS), default=list(DRILLS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, help="timeout_s; more on a busy machine")
    parser.add_argument("--grace", type=float, default=GRACE_S, help="seconds after timeout_s; more on a busy machine")
    words = parser.parse_args()
    jobs = [(words.only[number % len(words.only)], number) for number in range(words.times)]
    how = {"seed": words.seed, "timeout_s": words.timeout, "grace_s": words.grace}
    begun = time.monotonic()
    shares = [jobs[n :: words.at_once] for n in range(words.at_once)]
    children = [_fork(lambda share=share: some(share, **how)) for share in shares if share]
    bad = sum(os.waitpid(child, 0)[1] != 0 for child in children)
    took = time.monotonic() - begun
    print(f"{words.times} drills of {', '.join(words.only)} in {took:.0f} s: {'some' if bad else 'nothing'} wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
