"""What goes to the kernel for netem, byte by byte, against the structures of linux/pkt_sched.h."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from pyroute2.netlink.rtnl.tcmsg import sched_bpf, tcmsg

from lossbench.net.impair.netem.options import differences, limit_packets, options_of
from lossbench.net.tc import kinds
from lossbench.spec import profile
from lossbench.spec.placement import Rule
from lossbench.spec.profile import Match

ATTRIBUTES = {
    1: "CORR",
    2: "DELAY_DIST",
    3: "REORDER",
    4: "CORRUPT",
    5: "LOSS",
    6: "RATE",
    7: "ECN",
    8: "RATE64",
    10: "LATENCY64",
    11: "JITTER64",
    12: "SLOT",
    14: "PRNG_SEED",
}
U32 = 2**32 - 1


def encoded(tmp_path: Path, text: str) -> tuple[tuple[int, ...], dict[str, bytes]]:
    """(the fixed struct tc_netem_qopt, attributes by name) as they stand on the wire."""
    kinds.install()
    path = tmp_path / "p.toml"
    path.write_text(f'why = "test"\n{text}')
    rule = Rule(label="r", profile=profile.load(str(path)), match=Match(), seed=0x0102030405060708, block_seed=0)
    message = tcmsg()
    message["attrs"] = [["TCA_KIND", "netem"], ["TCA_OPTIONS", kinds.netem_parameters({"netem": options_of(rule)})]]
    message.encode()
    raw = bytes(message.data)
    at = 16 + 20
    while True:
        length, kind = struct.unpack_from("<HH", raw, at)
        if kind & 0x3FFF == 2:
            break
        at += -(-length // 4) * 4
    body = raw[at + 4 : at + length]
    return struct.unpack_from("<6I", body), attributes(body[24:])


def attributes(data: bytes) -> dict[str, bytes]:
    out, at = {}, 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("<HH", data, at)
        out[ATTRIBUTES.get(kind & 0x3FFF, str(kind & 0x3FFF))] = data[at + 4 : at + length]
        at += -(-length // 4) * 4
    return out


def share(probability: float) -> int:
    return round(probability * U32)


def test_iid_loss_is_the_fixed_field(tmp_path: Path) -> None:
    fixed, attrs = encoded(tmp_path, '[loss]\nmodel="iid"\npercent=5')
    assert fixed == (0, 1000, share(0.05), 0, 0, 0)
    assert attrs.pop("PRNG_SEED") == struct.pack("<Q", 0x0102030405060708)
    assert set(attrs) == {"CORR", "CORRUPT", "RATE", "ECN", "SLOT"}, "sent even if zero: a change would keep old values"
    assert not any(any(value) for value in attrs.values())


def test_gemodel_is_p_r_h_k1_in_this_order(tmp_path: Path) -> None:
    """tc takes p, r, 1-h, 1-k; the wire has p, r, h and 1-k."""
    _, attrs = encoded(
        tmp_path, '[loss]\nmodel="gilbert_elliott"\np_percent=1\nr_percent=25\nh_percent=30\nk_percent=99'
    )
    length, kind = struct.unpack_from("<HH", attrs["LOSS"])
    assert (length, kind & 0x3FFF) == (20, 2)
    wanted = (share(0.01), share(0.25), share(0.3), share(1 - 0.99))
    assert struct.unpack_from("<4I", attrs["LOSS"], 4) == pytest.approx(wanted, abs=1)  # 1 - (1 - h) rounds


def test_state4_is_p13_p31_p32_p14_p23_in_this_order(tmp_path: Path) -> None:
    text = '[loss]\nmodel="state4"\np13_percent=1\np31_percent=20\np32_percent=30\np23_percent=40\np14_percent=5'
    _, attrs = encoded(tmp_path, text)
    length, kind = struct.unpack_from("<HH", attrs["LOSS"])
    assert (length, kind & 0x3FFF) == (24, 1)
    assert struct.unpack_from("<5I", attrs["LOSS"], 4) == (share(0.01), share(0.2), share(0.3), share(0.05), share(0.4))


def test_delay_goes_as_nanoseconds_with_its_table(tmp_path: Path) -> None:
    fixed, attrs = encoded(
        tmp_path, '[delay]\nmean_ms=40\njitter_ms=2.5\ndistribution="normal"\ncorrelation_percent=25'
    )
    assert struct.unpack("<q", attrs["LATENCY64"]) == (40_000_000,)
    assert struct.unpack("<q", attrs["JITTER64"]) == (2_500_000,)
    assert struct.unpack("<3I", attrs["CORR"]) == (share(0.25), 0, 0)
    assert len(attrs["DELAY_DIST"]) == 2 * 4096
    assert fixed[1] > 40_000, "the queue must hold what waits"


def test_a_rate_above_32_bits_goes_as_64(tmp_path: Path) -> None:
    _, slow = encoded(tmp_path, "rate_mbit=1000")
    assert struct.unpack_from("<I", slow["RATE"]) == (125_000_000,) and "RATE64" not in slow
    _, fast = encoded(tmp_path, "rate_mbit=100000")
    assert struct.unpack_from("<I", fast["RATE"]) == (U32,)
    assert struct.unpack("<Q", fast["RATE64"]) == (12_500_000_000,)


def test_the_rest_of_the_attributes(tmp_path: Path) -> None:
    text = """duplicate_percent = 1
corrupt_percent = 2
ecn = true
queue_limit_packets = 77
[delay]
mean_ms = 10
[reorder]
percent = 25
gap = 5
correlation_percent = 50
[slot]
min_ms = 1
max_ms = 2
packets = 3
bytes = 4
"""
    fixed, attrs = encoded(tmp_path, text)
    assert fixed == (0, 77, 0, 5, share(0.01), 0)
    assert struct.unpack("<2I", attrs["REORDER"]) == (share(0.25), share(0.5))
    assert struct.unpack("<2I", attrs["CORRUPT"]) == (share(0.02), 0)
    assert struct.unpack("<I", attrs["ECN"]) == (1,)
    assert struct.unpack("<qqiiqq", attrs["SLOT"]) == (1_000_000, 2_000_000, 3, 4, 0, 0)


@pytest.mark.parametrize("name", ["normal", "pareto", "paretonormal"])
def test_distribution_tables_rise_and_have_the_right_spread(name: str) -> None:
    values = struct.unpack("<4096h", kinds.distribution_table(name))
    assert list(values) == sorted(values)
    mean = sum(values) / 4096 / 8192
    deviation = (sum(v * v for v in values) / 4096) ** 0.5 / 8192
    assert abs(mean) < 0.06 and 0.6 < deviation < 1.3
    if name == "normal":
        assert deviation == pytest.approx(1, abs=0.02)


def test_what_an_earlier_profile_left_in_the_kernel_is_noticed() -> None:
    rule = Rule(label="r", profile=profile.load("clean"), match=Match(), seed=1, block_seed=0)
    asked = options_of(rule)
    assert differences(asked, {"limit": 1000, "loss": 0, "slot": {"min_delay": 0, "max_packets": 2**31 - 1}}) == []
    left = {"limit": 1000, "corrupt": {"probability": 5, "correlation": 0}, "rate_bytes_s": 10}
    assert differences(asked, left) == ["corrupt", "rate_bytes_s"]
    for name, value in asked.items():  # every field that is sent, and every number in it
        if name != "seed":
            other = {**value, next(iter(value)): 5} if isinstance(value, dict) else value + 5
            assert differences(asked, {**asked, name: other}) == [name]


def test_an_unknown_option_is_our_mistake_and_loud() -> None:
    with pytest.raises(KeyError):
        kinds.netem_parameters({"netem": {"limit": 10, "sead": 1}})


def test_without_delay_the_default_limit_is_enough() -> None:
    assert limit_packets(profile.load("loss_5")) == 1000


def test_prio_sends_what_no_filter_takes_to_the_default_band() -> None:
    parameters: dict[str, Any] = kinds.prio_parameters({"bands": 3, "default_band": 2})
    assert parameters == {"bands": 3, "priomap": [2] * 16}


def test_a_classic_program_is_written_whole_whatever_was_asked_of_bpf_before() -> None:
    """As it was: deleting one filter first made every later program of the process impossible."""
    before = sched_bpf.options()  # as pyroute2 does where nothing is installed
    before.setvalue({"attrs": [["TCA_BPF_FD", 3]]})
    before.encode()
    operations = struct.pack("HBBI", 6, 0, 0, 77)
    one = kinds.BpfOptions()
    one.setvalue(kinds.bpf_parameters({"ops": operations}))
    one.encode()
    assert operations in bytes(one.data)
