from __future__ import annotations

import struct

import pytest

from lossbench.errors import UsageError
from lossbench.net.tc import kinds, shaping
from lossbench.net.tc.rtnl_messages import Qdisc
from lossbench.spec.experiment import Experiment
from lossbench.spec.shaping import Shaping, TrafficClass
from lossbench.spec.userfile import check

WEB = TrafficClass(name="web", dscp=8, share_percent=90, priority=0, queue_kb=150)
TRAINING = TrafficClass(name="training", ports=(29400,), share_percent=5, priority=7, queue_kb=30)
WEB_HALF = TrafficClass(name="web", dscp=8)
REST = TrafficClass(name="rest", rest=True)


def steps_of(scheduler: str) -> list[shaping.Step]:
    return shaping.plan(Shaping(scheduler=scheduler, classes=(WEB, TRAINING)), rate_mbit=200, mtu=1500, at_host=False)


def test_htb_gives_every_class_a_leaf_and_rest_what_is_left() -> None:
    steps = steps_of("htb")
    leaves = [s.arguments["limit"] for s in steps if s.kind == "bfifo"]
    assert leaves == [150 * 1024, 30 * 1024, shaping.MIN_SWITCH_QUEUE]
    classes = [s.arguments for s in steps if s.command == "add-class"]
    assert [c["ceil"] for c in classes] == [25_000_000] * 4
    assert [c["prio"] for c in classes[1:]] == [0, 7, 7]
    assert steps[0].arguments["default"] == classes[3]["handle"] & 0xFFFF


def test_prio_sits_below_a_rate_with_byte_limited_leaves() -> None:
    """On a bare veth prio never queues: the rate above it is what makes it matter."""
    steps = steps_of("prio")
    kinds = [s.kind for s in steps]
    assert kinds[:3] == ["htb", "htb", "prio"]
    assert steps[2].arguments == {"handle": shaping.INNER, "parent": shaping.LINK, "bands": 3, "default_band": 2}
    parents = [s.arguments["parent"] for s in steps if s.kind == "bfifo"]
    assert parents == [shaping.INNER | 1, shaping.INNER | 2, shaping.INNER | 3]
    assert all(s.arguments["parent"] == shaping.INNER for s in steps if s.command == "add-filter")


def test_classes_are_told_by_dscp_and_port_in_both_ip_versions() -> None:
    filters = [s.arguments for s in steps_of("htb") if s.command == "add-filter"]
    assert [(f["protocol"], f["keys"]) for f in filters] == [
        (0x0800, ["0x20/0xfc+1"]),
        (0x86DD, ["0x200/0x0fc0+0"]),
        (0x0800, ["0x72d8/0xffff+20"]),
        (0x0800, ["0x72d8/0xffff+22"]),
        (0x86DD, ["0x72d8/0xffff+40"]),
        (0x86DD, ["0x72d8/0xffff+42"]),
    ]
    assert len({f["prio"] for f in filters}) == len(filters)


def test_a_hosts_own_queue_is_backpressure_and_larger_than_any_send_buffer() -> None:
    steps = shaping.plan(Shaping(), rate_mbit=20, mtu=1500, at_host=True)
    assert [s.arguments["limit"] for s in steps if s.kind == "bfifo"] == [shaping.MIN_HOST_QUEUE]


def test_fq_codel_stands_at_the_switch_alone_and_has_the_same_room() -> None:
    one = Shaping(queue="fq_codel", target_ms=250, priority=0, buffer_kb=180, classes=(WEB_HALF, REST))
    leaves = [s for s in shaping.plan(one, rate_mbit=20, mtu=1500, at_host=False) if s.kind in shaping.LEAVES]
    assert [(s.kind, s.arguments["limit"]) for s in leaves] == [("fq_codel", 180 * 1024 // 1514)]
    assert kinds.fq_codel_parameters(leaves[0].arguments) == {
        "attrs": [
            ["TCA_FQ_CODEL_TARGET", 250_000],
            ["TCA_FQ_CODEL_INTERVAL", 5_000_000],
            ["TCA_FQ_CODEL_LIMIT", 180 * 1024 // 1514],
            ["TCA_FQ_CODEL_ECN", 1],
        ]
    }
    at_host = shaping.plan(one, rate_mbit=20, mtu=1500, at_host=True)
    assert [s.kind for s in at_host if s.kind in shaping.LEAVES] == ["bfifo"]


def test_an_fq_codel_that_does_not_mark_or_has_other_room_is_seen() -> None:
    one = Shaping(queue="fq_codel", buffer_kb=180)
    (step,) = [s for s in shaping.plan(one, rate_mbit=20, mtu=1500, at_host=False) if s.kind == "fq_codel"]

    def found(limit: int, ecn: int, target: int = 4999, interval: int = 99_999) -> list[str]:
        options = struct.pack("<HHIHHIHHIHHI", 8, 1, target, 8, 2, limit, 8, 3, interval, 8, 4, ecn)
        here = {"index": 1, "kind": "fq_codel", "handle": step.arguments["handle"], "parent": 0, "options": options}
        counted = dict.fromkeys(("packets", "bytes", "dropped", "waiting", "waiting_bytes"), 0)
        return shaping.differs([step], [Qdisc(**here, **counted)], [], [])

    assert found(step.arguments["limit"], 1) == []
    assert found(step.arguments["limit"], 0) == [
        "its fq_codel has a target of 4999 us in 99999, without ECN, not of 5000 with ECN"
    ]
    assert found(step.arguments["limit"], 1, interval=5000) != []
    assert found(step.arguments["limit"], 1, target=100_000) != []
    assert found(10, 1) == [f"a queue holds 10 packets, not {step.arguments['limit']}"]


def test_fq_codel_without_a_rate_at_the_switch_is_refused() -> None:
    for topology in ({"hosts": 2}, {"hosts": 2, "uplink_rate_mbit": 10}):
        with pytest.raises(UsageError, match="downlink_rate_mbit"):
            check(Experiment, {"name": "x", "topology": topology, "shaping": {"queue": "fq_codel"}}, origin="x")
