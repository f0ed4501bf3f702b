from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lossbench import contract
from lossbench.contract import HEADER_BYTES, HEADER_FIELDS, Door, Header

u8, u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
headers = st.builds(
    Header,
    kind=u8,
    tag=u64,
    source=u16,
    destination=u16,
    step=u32,
    half=u8,
    dtype=u8,
    traffic=u8,
    behind=u8,
    sequence=u32,
    size=u32,
    block=u32,
    chunk=u32,
)


@given(headers)
def test_a_header_survives_the_wire(header: Header) -> None:
    assert Header.unpack(header.pack()) == header


@given(headers)
def test_every_field_lies_where_the_table_of_offsets_says(header: Header) -> None:
    """The kernel program and the transport read fields by these offsets."""
    raw = header.pack()
    for name, (offset, size) in HEADER_FIELDS.items():
        value = int.from_bytes(raw[offset : offset + size], "little")
        assert value == (getattr(header, name, None) if name not in ("magic", "version") else value)
    assert sum(size for _, size in HEADER_FIELDS.values()) == HEADER_BYTES


@given(st.binary(max_size=100))
def test_foreign_bytes_are_no_header(data: bytes) -> None:
    header = Header.unpack(data)
    ours = len(data) >= HEADER_BYTES and data[:2] == b"LB" and data[2] == contract.VERSION
    assert (header is not None) == ours


def test_scapy_and_the_contract_agree_on_the_layout() -> None:
    from lossbench.proof.probe import datagram

    header = Header(
        kind=5, tag=2**63 + 7, source=3, destination=9, step=11, half=1, dtype=2, sequence=4, block=5, chunk=6
    )
    assert datagram.payload(header, size=HEADER_BYTES) == header.pack()
    fields = datagram.dissect(header.pack())
    assert {k: v for k, v in fields.items() if k not in ("magic", "version")} == header.__dict__


def test_a_frame_off_the_wire_is_dissected_and_a_foreign_one_is_not() -> None:
    from scapy.layers.inet import IP, UDP
    from scapy.layers.l2 import Ether

    from tests.shared import dissect_frame

    header = Header(kind=1, tag=9, source=1, destination=2, step=7, half=1, block=3, chunk=4)
    frame = bytes(Ether() / IP(dst="10.77.0.2") / UDP(sport=1, dport=29400) / (header.pack() + b"data"))
    fields = dissect_frame(frame)
    assert fields is not None and (fields["step"], fields["half"], fields["block"]) == (7, 1, 3)
    assert dissect_frame(bytes(Ether() / IP(dst="10.77.0.2") / UDP() / bytes(40))) is None


def test_a_rank_reads_its_place_and_writes_its_records(tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"steps": 3}))
    records = tmp_path / "records.jsonl"
    door = Door.from_environment(
        {
            "RANK": "2",
            "WORLD_SIZE": "4",
            "LOSSBENCH_ADDRESSES": "10.0.0.1,10.0.0.2",
            "LOSSBENCH_TOKEN": "ff",
            "LOSSBENCH_SPEC": str(spec),
            "LOSSBENCH_RECORDS": str(records),
        }
    )
    assert (door.rank, door.world_size, door.token, door.options) == (2, 4, 255, {"steps": 3})
    door.record("summary", accuracy=0.5)
    line = json.loads(records.read_text())
    assert (line["kind"], line["rank"], line["accuracy"]) == ("summary", 2, 0.5)


def test_a_program_outside_of_lossbench_can_still_use_the_door() -> None:
    door = Door.from_environment({})
    door.record("summary", x=1)
    door.ready()
    assert (door.rank, door.world_size) == (0, 1)


class OfOneNumber:
    """As a tensor or an array of one number: what it wears besides is no matter."""

    def item(self) -> float:
        return 0.25


class OfSeveral:
    def item(self) -> float:
        raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")

    def __str__(self) -> str:
        return "tensor([1, 2])"


def test_a_tensor_in_a_summary_is_a_number(tmp_path: Path) -> None:
    """As it was: `summary(loss=loss)` ended a program with a TypeError, and only under lossbench."""
    door = Door(rank=0, world_size=1, addresses=(), records_path=str(tmp_path / "records.jsonl"))
    one = OfOneNumber()
    door.record("step", step=np.int64(3), loss=one, share=np.float32(0.5), both=[one, 1], done=np.bool_(True))
    door.record("summary", several=OfSeveral(), long=np.longdouble(2), path=tmp_path)
    step, summary = map(json.loads, (tmp_path / "records.jsonl").read_text().splitlines())
    assert (step["step"], step["loss"], step["share"], step["both"]) == (3, 0.25, 0.5, [0.25, 1])
    assert type(step["step"]) is int and step["done"] is True
    assert (summary["several"], summary["path"]) == ("tensor([1, 2])", str(tmp_path))
