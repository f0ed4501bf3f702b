"""How ranks find each other: addresses, policy, token, packet size, window, through a store with `set` and `get`."""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import json
import os
import secrets
from dataclasses import dataclass
from typing import Protocol

from lossbench.contract import DATA_PORT, VERSION
from lossbench.workloads.errors import TransportError
from lossbench.workloads.transport.endpoint import Endpoint, MakeEngine, best_engine
from lossbench.workloads.transport.packet.wire import CONTROL_BYTES
from lossbench.workloads.transport.policy import Membership, Policy
from lossbench.workloads.transport.udp.link import LARGEST_DATAGRAM, Address, Link

PORTS_TRIED = 64
SMALLEST_DATAGRAM = 128  # header and some elements
SPEAKS = f"{VERSION}.{CONTROL_BYTES}"  # of the header, and of what is said beside data


class Store(Protocol):
    """torch's TCPStore, or a test's dict."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...


def meet(
    store: Store,
    *,
    rank: int,
    world: int,
    address: str,
    port: int = DATA_PORT,
    token: int | None = None,
    policy: Policy | None = None,
    cores: float | None = None,
    engine: MakeEngine | None = None,
    present: tuple[int, ...] | None = None,
) -> Endpoint:
    """Every rank calls this once per group; returns when all have. `cores`: how many this rank may call its own.
    `engine`: who moves the packets; none: the one in C, if it can be had. `present`: who takes part, if not all."""
    present = present or tuple(range(world))
    keeper, others = present[0], len(present) - 1
    policy = policy or Policy.from_environment()
    link = _open(address, port, policy)
    try:
        if rank == keeper:
            store.set("secret", secrets.token_hex(16))
        mine = {
            "version": SPEAKS,
            "policy": policy.shared(),
            "address": link.address[0],
            "port": link.address[1],
            "window": link.window_bytes(others),
        }
        store.set(f"rank{rank}", json.dumps(mine))
        all_of_them = {n: _member(n, store.get(f"rank{n}"), policy=policy) for n in present}
        peers = {n: member.address for n, member in all_of_them.items() if n != rank}
        smallest = min((link.datagram_bytes(peer) for peer in peers.values()), default=1472)
        store.set(f"datagram{rank}", str(smallest))
        datagram = min(int(store.get(f"datagram{number}")) for number in present)
        if not SMALLEST_DATAGRAM <= datagram <= LARGEST_DATAGRAM:
            raise TransportError(f"rank {rank}: the ranks agreed on packets of {datagram} bytes, which can't be")
        window = min([member.window for member in all_of_them.values()] + [policy.window_kb * 1024 or 1 << 30])
        key = hashlib.blake2b(store.get("secret") + str(token or 0).encode(), digest_size=16).digest()
        link.admit_only(peers.values())
    except BaseException:
        link.close()
        raise
    if cores is None:
        cores = len(os.sched_getaffinity(0)) / len(present)
    threads = {"on": True, "off": False}.get(policy.send_thread, cores >= 2)
    member = Membership(
        rank=rank,
        peers=peers,
        key=key,
        policy=policy,
        datagram_bytes=datagram,
        window_bytes=max(window, datagram),
        send_thread=threads and others > 0,
        numbers=world,
    )
    return Endpoint(member, link=link, make=engine or best_engine)


@dataclass(frozen=True, kw_only=True)
class _Member:
    address: Address
    window: int


def _member(rank: int, said: bytes, *, policy: Policy) -> _Member:
    """What a rank says of itself decides whose packets count, so it must be an address, a port and a size."""
    try:
        read = json.loads(said)
        address, port, window = str(ipaddress.ip_address(read["address"])), int(read["port"]), int(read["window"])
    except (ValueError, KeyError, TypeError) as error:
        raise TransportError(f"what rank {rank} says of itself can't be read ({error})") from None
    if read.get("version") != SPEAKS:
        raise TransportError(f"rank {rank} speaks another protocol: version {read.get('version')}; here it is {SPEAKS}")
    theirs, ours = read.get("policy") or {}, json.loads(json.dumps(policy.shared()))
    for name in sorted({*theirs, *ours}):
        if theirs.get(name) != ours.get(name):
            there, here = (f"{name}={side.get(name)}" for side in (theirs, ours))
            raise TransportError(f"rank {rank} has another policy: {there} there, {here} here; all ranks need the same")
    if not 0 < port < 65536 or window <= 0:
        raise TransportError(f"rank {rank} says port {port}, window {window}, which can't be")
    return _Member(address=(address, port), window=window)


def _open(address: str, port: int, policy: Policy) -> Link:
    """The first free port from `port` on: further groups of one rank get the next ones. Where many are taken, any."""
    for number in (*range(port, port + PORTS_TRIED), 0):
        try:
            return Link(address, number, dscp=policy.dscp)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise OSError(error.errno, f"UDP {address} port {number}: {os.strerror(error.errno or 0)}") from None
    raise OSError(errno.EADDRINUSE, f"UDP {address}: no port is free")
