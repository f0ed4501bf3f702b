"""rtnetlink's messages as values: links, qdiscs, classes, filters, taken apart with struct. No socket here."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK, RTM_NEWNEIGH, RTM_DELNEIGH = 16, 17, 18, 28, 29
RTM_NEWADDR, RTM_DELADDR, RTM_NEWROUTE, RTM_DELROUTE, RTM_NEWRULE, RTM_DELRULE = 20, 21, 24, 25, 32, 33
RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38
RTM_NEWTCLASS, RTM_DELTCLASS, RTM_GETTCLASS = 40, 41, 42
RTM_NEWTFILTER, RTM_DELTFILTER, RTM_GETTFILTER = 44, 45, 46
NLMSG_ERROR, NLMSG_DONE = 2, 3
NESTED = 0x3FFF  # mask of the flag bits in an attribute's type

HEADER, _ATTRIBUTE, _STATS = struct.Struct("<IHHII"), struct.Struct("<HH"), struct.Struct("<25Q")
_TCMSG, LINKMSG = struct.Struct("<BBHiIII"), struct.Struct("<BBHiII")
_OPERSTATE_UP, _IFF_UP = 6, 1

Attributes = dict[int, bytes]
Raw = bytes
Found = TypeVar("Found")


def _readable(read: Callable[..., Found]) -> Callable[..., Found]:
    """What can't be read is one error, whatever is wrong with it."""

    @wraps(read)
    def reading(*parts: Any) -> Found:
        try:
            return read(*parts)
        except (struct.error, IndexError, KeyError) as error:
            raise OSError(errno.EBADMSG, f"an answer of the kernel can't be read ({error})") from None

    return reading


def attributes(data: bytes, at: int = 0) -> Attributes:
    """Type -> payload; of several of one type the last."""
    out, end, unpack = {}, len(data) - 3, _ATTRIBUTE.unpack_from
    while at < end:
        length, kind = unpack(data, at)
        if length < 4:
            break
        out[kind & NESTED] = data[at + 4 : at + length]
        at += (length + 3) & ~3
    return out


@dataclass(frozen=True, kw_only=True)
class Link:
    """An interface and its own counters."""

    index: int
    name: str
    mtu: int
    up: bool
    xdp: bool  # a program runs on its packets before anything else does
    address: str = ""  # of its hardware
    master: int = 0  # the index of what it is a part of: a bridge, a bond
    below: int = 0  # of what it stands on here (VLAN, macvlan)
    switched_on: bool = True  # by whoever sets it up or down; `up` wants a carrier, too
    rx_packets: int = 0
    tx_packets: int = 0
    rx_bytes: int = 0
    tx_bytes: int = 0
    rx_dropped: int = 0
    tx_dropped: int = 0
    rx_misled: int = 0  # for another's hardware address; kernels before 5.19 do not count them


@dataclass(frozen=True, kw_only=True)
class Qdisc:
    index: int
    kind: str
    handle: int
    parent: int
    packets: int
    bytes: int
    dropped: int
    waiting: int  # packets
    waiting_bytes: int
    marked: int = 0  # with ECN, by fq_codel
    options: Raw = field(repr=False, default=b"")

    @property
    def limit(self) -> int:
        """Of a bfifo or pfifo, fq_codel's in packets."""
        if self.kind == "fq_codel":
            return int.from_bytes(attributes(self.options).get(2, b""), "little")
        return int(struct.unpack_from("<I", self.options)[0]) if len(self.options) >= 4 else 0

    def codel(self) -> tuple[int, int, bool]:
        """(target and interval of fq_codel in microseconds, whether it marks)."""
        found = {kind: int.from_bytes(value, "little") for kind, value in attributes(self.options).items()}
        return found.get(1, 0), found.get(3, 0), bool(found.get(4, 0))


@dataclass(frozen=True, kw_only=True)
class HtbClass:
    handle: int
    parent: int
    rate_bytes_s: int
    ceil_bytes_s: int
    priority: int


@dataclass(frozen=True, kw_only=True)
class Filter:
    kind: str
    priority: int
    handle: int
    program_id: int | None  # of an eBPF program
    instructions: bytes  # of a classic one
    target: int | None  # the interface that its action redirects or mirrors to
    acted: int | None  # packets that met its action
    keys: bytes = b""  # of u32
    name: str = ""  # that whoever put a bpf filter there gave it


@dataclass(frozen=True, kw_only=True)
class Change:
    """What the kernel told of: `what` in words, `by` the netlink port that asked for it (0: the kernel itself). Of a
    route also where it leads `to`: an address and the length of its prefix; of a neighbour whose entry it is `of`."""

    what: str
    index: int
    by: int
    link: Link | None = None
    to: str = ""
    of: str | None = None


_WORDS = {
    RTM_DELLINK: "removed",
    RTM_NEWQDISC: "qdisc changed",
    RTM_DELQDISC: "qdisc removed",
    RTM_NEWTCLASS: "class changed",
    RTM_DELTCLASS: "class removed",
    RTM_NEWTFILTER: "filter changed",
    RTM_DELTFILTER: "filter removed",
    RTM_NEWADDR: "address added",
    RTM_DELADDR: "address removed",
    RTM_NEWROUTE: "route added",
    RTM_DELROUTE: "route removed",
    RTM_NEWRULE: "routing rule added",
    RTM_DELRULE: "routing rule removed",
    RTM_NEWNEIGH: "neighbour changed",
    RTM_DELNEIGH: "neighbour removed",
}


@_readable
def change_of(kind: int, _: int, port: int, body: bytes) -> Change | None:
    if kind == RTM_NEWLINK and (link := link_of(body)):
        return Change(what="link changed", index=link.index, by=port, link=link)
    if kind not in _WORDS:
        return None
    if kind in (RTM_NEWROUTE, RTM_DELROUTE):
        told, (family, prefix) = attributes(body, 12), struct.unpack_from("<BB", body)
        to = f"{to}/{prefix}" if (to := _address(family, told.get(1, b""))) else ""
        return Change(what=_WORDS[kind], index=int.from_bytes(told.get(4, bytes(4)), "little"), by=port, to=to)
    index = 0 if kind in (RTM_NEWRULE, RTM_DELRULE) else struct.unpack_from("<i", body, 4)[0]
    whose = _address(body[0], attributes(body, 12).get(1, b"")) if kind in (RTM_NEWNEIGH, RTM_DELNEIGH) else None
    return Change(what=_WORDS[kind], index=index, by=port, of=whose)


def _address(family: int, packed: bytes) -> str:
    """Empty where it is none."""
    known = (family, len(packed)) in ((socket.AF_INET, 4), (socket.AF_INET6, 16))
    return socket.inet_ntop(family, packed) if known else ""


def messages(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """(type, flags, port, body)."""
    at = 0
    while at + 16 <= len(data):
        length, kind, flags, _, port = HEADER.unpack_from(data, at)
        if length < 16:
            return
        yield kind, flags, port, data[at + 16 : at + length]
        at += (length + 3) & ~3


def tcmsg(index: int, parent: int = 0) -> bytes:
    return _TCMSG.pack(socket.AF_UNSPEC, 0, 0, index, 0, parent, 0)


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="replace")


@_readable
def link_of(body: bytes) -> Link:
    index, flags = struct.unpack_from("<iI", body, 4)
    found = attributes(body, 16)
    numbers = _STATS.unpack_from(found[23].ljust(_STATS.size, b"\0")) if 23 in found else (0,) * 25
    xdp = attributes(found.get(43, b"")).get(2, b"\0")
    return Link(
        index=index,
        name=_text(found.get(3, b"")),
        mtu=int.from_bytes(found.get(4, b""), "little"),
        up=found.get(16, b"\0")[0] == _OPERSTATE_UP,
        xdp=xdp[0] != 0,
        address=found.get(1, b"").hex(":"),
        master=int.from_bytes(found.get(10, b""), "little"),
        below=int.from_bytes(found.get(5, b""), "little") if 37 not in found else 0,  # 37: it is elsewhere
        switched_on=bool(flags & _IFF_UP),
        rx_packets=numbers[0],
        tx_packets=numbers[1],
        rx_bytes=numbers[2],
        tx_bytes=numbers[3],
        rx_dropped=numbers[6],
        tx_dropped=numbers[7],
        rx_misled=numbers[24],
    )


def _basic(stats: Attributes) -> tuple[int, int]:
    """(bytes, packets) of TCA_STATS2 or TCA_ACT_STATS."""
    count, packets = struct.unpack_from("<QI", stats[1]) if 1 in stats else (0, 0)
    return count, int.from_bytes(stats[8], "little") if 8 in stats else packets


@_readable
def qdisc_of(body: bytes) -> Qdisc:
    _, _, _, index, handle, parent, _ = _TCMSG.unpack_from(body)
    found = attributes(body, 20)
    stats = attributes(found.get(7, b""))
    count, packets = _basic(stats)
    waiting, backlog, dropped = struct.unpack_from("<III", stats[3]) if 3 in stats else (0, 0, 0)
    kind = _text(found.get(1, b""))
    own = stats.get(4, b"") if kind == "fq_codel" else b""  # struct tc_fq_codel_xstats: the fourth number
    return Qdisc(
        index=index,
        kind=kind,
        handle=handle,
        parent=parent,
        packets=packets,
        bytes=count,
        dropped=dropped,
        waiting=waiting,
        waiting_bytes=backlog,
        marked=int.from_bytes(own[12:16], "little"),
        options=found.get(2, b""),
    )


@_readable
def class_of(body: bytes) -> HtbClass | None:
    _, _, _, _, handle, parent, _ = _TCMSG.unpack_from(body)
    found = attributes(body, 20)
    options = attributes(found.get(2, b""))
    if _text(found.get(1, b"")) != "htb" or 1 not in options:
        return None
    # struct tc_htb_opt: two rate specifications of 12 bytes (rate last), buffer, cbuffer, quantum, level, prio.
    rate, ceil, priority = (struct.unpack_from("<I", options[1], at)[0] for at in (8, 20, 40))
    wide = [
        int.from_bytes(options[kind], "little") if kind in options else small for kind, small in ((6, rate), (7, ceil))
    ]
    return HtbClass(handle=handle, parent=parent, rate_bytes_s=wide[0], ceil_bytes_s=wide[1], priority=priority)


@_readable
def filter_of(body: bytes) -> Filter | None:
    _, _, _, _, handle, _, info = _TCMSG.unpack_from(body)
    found = attributes(body, 20)
    kind = _text(found.get(1, b""))
    if 2 not in found:  # the heading of a priority, without a filter
        return None
    options = attributes(found[2])
    actions = {"bpf": 1, "u32": 7, "matchall": 2}.get(kind, 0)
    target, acted = _action(attributes(options.get(actions, b""))) if actions else (None, None)
    return Filter(
        kind=kind,
        priority=info >> 16,
        handle=handle,
        program_id=int.from_bytes(options[11], "little") if kind == "bpf" and 11 in options else None,
        instructions=options.get(5, b"") if kind == "bpf" else b"",
        target=target,
        acted=acted,
        keys=options.get(5, b"") if kind == "u32" else b"",
        name=_text(options.get(7, b"")) if kind == "bpf" else "",
    )


def _action(actions: Attributes) -> tuple[int | None, int | None]:
    """(interface of a mirred, packets) of the first action."""
    if not actions:
        return None, None
    action = attributes(actions[min(actions)])
    packets = _basic(attributes(action.get(4, b"")))[1]
    parameters = attributes(action.get(2, b"")).get(2, b"") if _text(action.get(1, b"")) == "mirred" else b""
    target = struct.unpack_from("<I", parameters, 24)[0] if len(parameters) >= 28 else None
    return target, packets
