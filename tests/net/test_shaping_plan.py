from __future__ import annotations

from lossbench.net.tc import shaping
from lossbench.spec.experiment import Shaping, TrafficClass

WEB = TrafficClass(name="web", dscp=8, share_percent=90, priority=0, queue_kb=150)
TRAINING = TrafficClass(name="training", ports=(29400,), share_percent=5, priority=7, queue_kb=30)


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
