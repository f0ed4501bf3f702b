"""scapy's only home: our datagram as a layer, probe packets crafted, packets off the wire dissected.

>>> from lossbench.proof.probe.datagram import LossbenchDatagram     # then rdpcap() shows our header field by field
"""

from __future__ import annotations

from dataclasses import dataclass

from scapy.fields import ByteEnumField, ByteField, LEIntField, LELongField, LEShortField, XLEShortField
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers

from lossbench import contract
from lossbench.proof.probe.flows import Flow, addresses


class LossbenchDatagram(Packet):  # type: ignore[misc]
    """The header of contract.py, in its order."""

    name = "lossbench"
    fields_desc = [
        XLEShortField("magic", contract.MAGIC),
        ByteField("version", contract.VERSION),
        ByteEnumField("kind", contract.KINDS["probe"], {number: name for name, number in contract.KINDS.items()}),
        LEShortField("source", 0),
        LEShortField("destination", 0),
        LELongField("tag", 0),
        LEIntField("sequence", 0),
        LEIntField("step", 0),
        ByteEnumField("half", 0, {number: name for name, number in contract.HALVES.items()}),
        ByteField("dtype", 0),
        ByteField("traffic", 0),
        ByteField("behind", 0),
        LEIntField("size", 0),
        LEIntField("block", 0),
        LEIntField("chunk", 0),
    ]


def bind() -> None:
    """Let scapy recognise our datagrams on the default port."""
    bind_layers(UDP, LossbenchDatagram, dport=contract.DATA_PORT)


@dataclass(frozen=True, kw_only=True)
class Ends:
    """Addresses of a crafted frame."""

    source_mac: str
    destination_mac: str
    source: str
    destination: str
    source_port: int
    destination_port: int
    dscp: int


def ends_of(flow: Flow) -> Ends:
    source, destination = addresses(flow)
    return Ends(
        source_mac=flow.source.mac,
        destination_mac=flow.destination.mac,
        source=source,
        destination=destination,
        source_port=flow.source_port or 29499,
        destination_port=flow.destination_port,
        dscp=flow.dscp,
    )


def payload(header: contract.Header, *, size: int) -> bytes:
    """A probe's UDP payload, crafted by scapy, padded to `size`."""
    fields = {name: getattr(header, name) for name in contract.HEADER_FIELDS if name not in ("magic", "version")}
    return bytes(LossbenchDatagram(**fields)).ljust(size, b"\0")


def tcp_frame(ends: Ends, data: bytes) -> bytes:
    """A whole Ethernet frame with a TCP reset: no stack answers a reset, so the probe makes no traffic of its own."""
    ip = (
        IPv6(src=ends.source, dst=ends.destination, tc=ends.dscp << 2)
        if ":" in ends.source
        else IP(src=ends.source, dst=ends.destination, tos=ends.dscp << 2)
    )
    tcp = TCP(sport=ends.source_port, dport=ends.destination_port, flags="R")
    return bytes(Ether(src=ends.source_mac, dst=ends.destination_mac) / ip / tcp / data)


def origin(frame: bytes) -> bytes:
    """Source address and port of a TCP frame as `tcp_frame` makes them, as they stand on the wire."""
    return frame[22:38] + frame[54:56] if frame[12:14] == b"\x86\xdd" else frame[26:30] + frame[34:36]


def dissect(data: bytes) -> dict[str, int]:
    """The header of a received payload, by scapy: the proof that what arrived is what was crafted."""
    packet = LossbenchDatagram(data)
    return {name: int(getattr(packet, name)) for name in contract.HEADER_FIELDS}


def is_right(flow: Flow, packet: bytes) -> bool:
    """Does its header say what was sent?"""
    said = dissect(packet)
    expected = (contract.MAGIC, flow.source.rank, flow.destination.rank, flow.step, flow.half)
    return (said["magic"], said["source"], said["destination"], said["step"], said["half"]) == expected
