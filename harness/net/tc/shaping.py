"""Rates and classes of links: HTB (or prio, ets below an HTB rate) with byte-limited leaves, or fq_codel's.

Downlinks are shaped at the switch's port, where a full queue really loses packets. Uplinks are shaped in the host,
where a full queue is backpressure: its queue is larger than any socket's send buffer, so the sender loses nothing.
`plan` is pure; `carry_out` sends it; `differs` holds what the kernel has against it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pyroute2 import IPRoute

from lossbench.errors import NotAbleError
from lossbench.net.host import namespaces
from lossbench.net.host.place import Place
from lossbench.net.tc.kinds import CODEL_INTERVALS
from lossbench.net.tc.rtnl import Reader
from lossbench.net.tc.rtnl_messages import Filter, HtbClass, Qdisc
from lossbench.spec.shaping import Shaping, TrafficClass

ROOT, LINK = 0x10000, 0x10001
TC_H_ROOT = 0xFFFFFFFF
ROOM, ROOM_PACKETS = 0xF00000, 32_768  # the queue of an unshaped port
FIRST_LEAF = 0x100  # handles of the leaves' queues
INNER = 0x20000  # handle of a prio or ets below the link's class
BURST_MS = 0.05  # what a link that was idle sends at once: more, and a short message is faster than the link
QUEUE_MS = 10.0
MIN_SWITCH_QUEUE = 512 * 1024  # eight full UDP_SEGMENT bursts: a smaller leaf loses packets at any rate
MIN_HOST_QUEUE = 8 * 1024 * 1024
LEAVES = ("bfifo", "fq_codel")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One tc call."""

    command: str
    kind: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ClassState:
    """What the kernel says of one class."""

    name: str
    rate_mbit: float
    packets: int
    bytes: int
    dropped: int
    backlog_bytes: int
    marked: int = 0  # with ECN, by fq_codel


def leaf_minor(number: int) -> int:
    return 0x10 + number


def plan(shaping: Shaping, *, rate_mbit: float, mtu: int, at_host: bool) -> list[Step]:
    """Every tc call that shapes one link."""
    rate_bytes_s = rate_mbit * 1e6 / 8
    burst = round(max(rate_bytes_s * BURST_MS / 1000, 2 * (mtu + 14)))
    classes = shaping.resolved()
    rest = next(i for i, c in enumerate(classes) if c.takes_rest())
    htb = shaping.scheduler == "htb"
    default = leaf_minor(rest) if htb else LINK & 0xFFFF
    steps = [Step(command="add", kind="htb", arguments={"handle": ROOT, "default": default})]
    steps.append(_htb_class(LINK, ROOT, rate_bytes_s, rate_bytes_s, burst, mtu))
    bands = sorted(range(len(classes)), key=lambda i: classes[i].priority)  # band 0 is served first
    if not htb:
        inner = {"handle": INNER, "parent": LINK, "bands": max(len(classes), 2), "default_band": bands.index(rest)}
        steps.append(Step(command="add", kind=shaping.scheduler, arguments=inner))
    for number, c in enumerate(classes):
        parent = (ROOT if htb else INNER) | (leaf_minor(number) if htb else bands.index(number) + 1)
        if htb:
            share = rate_bytes_s * c.share_percent / 100
            steps.append(_htb_class(parent, LINK, share, rate_bytes_s, burst, mtu, priority=c.priority))
        room_bytes = queue_bytes(c, rate_bytes_s=rate_bytes_s, at_host=at_host)
        where = {"handle": (FIRST_LEAF + number) << 16, "parent": parent}
        if shaping.queue == "fq_codel" and not at_host:  # in the host any queue is backpressure alone
            steps.append(_fq_codel(shaping, room_bytes // (mtu + 14), where))
        else:
            steps.append(Step(command="add", kind="bfifo", arguments={**where, "limit": room_bytes}))
        steps += _filters(c, parent=ROOT if htb else INNER, target=parent, first_prio=1 + len(steps))
    return steps


def _fq_codel(shaping: Shaping, packets: int, where: dict[str, int]) -> Step:
    """Its room is counted in full packets: by bytes it would count the kernel's own memory, twice as much."""
    arguments = {**where, "limit": max(packets, 2), "target_us": round(shaping.target_ms * 1000)}
    return Step(command="add", kind="fq_codel", arguments=arguments)


def _codel_as_asked(target_us: int) -> tuple[int, int, bool]:
    """As the kernel says it again: its clock ticks every 1.024 us."""
    target, interval = (((us * 1000 >> 10) << 10) // 1000 for us in (target_us, CODEL_INTERVALS * target_us))
    return target, interval, True


def queue_bytes(c: TrafficClass, *, rate_bytes_s: float, at_host: bool) -> int:
    asked = c.host_queue_kb if at_host else c.queue_kb
    if asked is not None:
        return round(asked * 1024)
    return round(max(MIN_HOST_QUEUE if at_host else MIN_SWITCH_QUEUE, rate_bytes_s * QUEUE_MS / 1000))


def _htb_class(handle: int, parent: int, rate: float, ceil: float, burst: int, mtu: int, *, priority: int = 0) -> Step:
    arguments = {
        "handle": handle,
        "parent": parent,
        "rate": max(round(rate), 1000),
        "ceil": round(ceil),
        "burst": burst,
        "cburst": burst,
        "prio": priority,
        "quantum": mtu + 14,
        "mtu": max(mtu + 14, 1600),
    }
    return Step(command="add-class", kind="htb", arguments=arguments)


def _filters(c: TrafficClass, *, parent: int, target: int, first_prio: int) -> list[Step]:
    """u32 by DSCP or by port, for both IP versions. Ports assume no IP options: none of our traffic has any."""
    keys: list[tuple[int, list[str]]] = []
    if c.dscp is not None:
        keys.append((0x0800, [f"{c.dscp << 2:#x}/0xfc+1"]))
        keys.append((0x86DD, [f"{c.dscp << 6:#x}/0x0fc0+0"]))
    for port in c.ports:
        for protocol, at in ((0x0800, 20), (0x86DD, 40)):
            for side in (0, 2):
                keys.append((protocol, [f"{port:#x}/0xffff+{at + side}"]))
    return [
        Step(
            command="add-filter",
            kind="u32",
            arguments={"parent": parent, "prio": first_prio + i, "protocol": protocol, "target": target, "keys": k},
        )
        for i, (protocol, k) in enumerate(keys)
    ]


def room() -> list[Step]:
    """An unshaped port of the switch: a queue to wait in when the host behind it is busy. A bare veth drops what does
    not fit its ring of 256 packets; under a queue, kernels from 6.16 on hold back instead; older ones still drop."""
    numbers = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < (6, 16):
        return []
    return [Step(command="add", kind="pfifo_fast", arguments={"parent": TC_H_ROOT, "handle": ROOM})]


def ask_for_marks(place: Place) -> None:
    """Of a host's TCP."""
    try:
        with place.inside():
            namespaces.write_sysctl("ipv4/tcp_ecn", 1)
    except OSError as error:
        raise NotAbleError(f"hosts can't ask for ECN (tcp_ecn: {error.strerror})", next_step="run as root") from None


def carry_out(handle: IPRoute, interface_index: int, steps: list[Step]) -> None:
    for step in steps:
        handle.tc(step.command, step.kind, interface_index, **step.arguments)


def is_queue(qdisc: Qdisc) -> bool:
    """One of the leaves below, or the room of an unshaped port."""
    return qdisc.handle == ROOM or (qdisc.kind in LEAVES and qdisc.handle >> 16 >= FIRST_LEAF)


def leaves(qdiscs: Iterable[Qdisc], shaping: Shaping, *, rate_mbit: float) -> list[ClassState]:
    """Counters and backlog of every class of one link."""
    names = {(FIRST_LEAF + number) << 16: c.name for number, c in enumerate(shaping.resolved())}
    found = {
        names[one.handle]: ClassState(
            name=names[one.handle],
            rate_mbit=rate_mbit,
            packets=one.packets,
            bytes=one.bytes,
            dropped=one.dropped,
            backlog_bytes=one.waiting_bytes,
            marked=one.marked,
        )
        for one in qdiscs
        if one.kind in LEAVES and one.handle in names
    }
    return [found[name] for name in names.values() if name in found]


def classes_as_json(classes: Mapping[str, Iterable[ClassState]]) -> dict[str, Any]:
    return {link: [asdict(state) for state in states] for link, states in classes.items()}


def lost_by_class(links: Mapping[str, Iterable[ClassState]]) -> dict[str, int]:
    """Packets that a class's queues have lost, on all links."""
    return _by_class(links, lambda one: one.dropped)


def met_by_class(links: Mapping[str, Iterable[ClassState]]) -> dict[str, int]:
    """Packets that came to a class's queues, on all links, whatever became of them."""
    return _by_class(links, lambda one: one.packets + one.dropped)


def _by_class(links: Mapping[str, Iterable[ClassState]], count: Callable[[ClassState], int]) -> dict[str, int]:
    out: dict[str, int] = {}
    for states in links.values():
        for one in states:
            out[one.name] = out.get(one.name, 0) + count(one)
    return out


def differs(
    steps: list[Step], qdiscs: Iterable[Qdisc], classes: Iterable[HtbClass], filters: Iterable[Filter]
) -> list[str]:
    """What of the plan the kernel does not have as it was asked for."""
    here = {one.handle: one for one in qdiscs}
    real = {one.handle: (one.rate_bytes_s, one.ceil_bytes_s, one.priority) for one in classes}
    out = []
    for step in steps:
        asked, handle = step.arguments, step.arguments.get("handle", 0)
        if step.command == "add" and (handle not in here or here[handle].kind != step.kind):
            out.append(f"its {step.kind} is gone")
        elif step.command == "add" and "limit" in asked and here[handle].limit != asked["limit"]:
            unit = "packets" if step.kind == "fq_codel" else "bytes"
            out.append(f"a queue holds {here[handle].limit} {unit}, not {asked['limit']}")
        elif step.kind == "fq_codel" and here[handle].codel() != _codel_as_asked(asked["target_us"]):
            target, interval, marks = here[handle].codel()
            real_one = f"{target} us in {interval}, {'with' if marks else 'without'} ECN"
            out.append(f"its fq_codel has a target of {real_one}, not of {asked['target_us']} with ECN")
        elif step.command == "add-class" and real.get(handle) != (asked["rate"], asked["ceil"], asked["prio"]):
            rate = f"{real[handle][1] * 8 / 1e6:g} Mbit/s" if handle in real else "none"
            out.append(f"its rate is {rate}, not {asked['ceil'] * 8 / 1e6:g} Mbit/s")
    sorting = sum(step.command == "add-filter" for step in steps)
    found = sum(bool(one.keys) for one in filters)
    if sorting != found:
        out.append(f"{found} of {sorting} filters that sort packets into classes")
    return out


def link_mbit(classes: Iterable[HtbClass]) -> float:
    return next((one.ceil_bytes_s * 8 / 1e6 for one in classes if one.handle == LINK), 0.0)


def sorting(reader: Reader, index: int, steps: list[Step]) -> tuple[list[HtbClass], list[Filter]]:
    """Classes of a link, and the filters that sort packets into them."""
    parents = {step.arguments["parent"] for step in steps if step.command == "add-filter"}
    return reader.classes(index), [one for parent in parents for one in reader.filters(index, parent)]
