"""What a check says of machines, of all of them together, of their switch; nobody is asked here but `lo`."""

from __future__ import annotations

import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from lossbench.errors import NotAbleError
from lossbench.net.lab import check, fit, way
from lossbench.net.lab.machine import Machine as There
from lossbench.runs.lab import ground
from lossbench.spec.lab import Lab, Machine, Switch

ABOUT = {"backends": ["ebpf"], "no_gate": "", "torch": "2.8", "numpy": "2.4", "kernel": "6", "python": "3.13"}
HERE: dict[str, Any] = {
    "addresses": ["10.0.0.1"],
    "up": True,
    "mtu": 1500,
    "ssh_here": False,
    "default_route": False,
    "gateways": [],
    "impaired": "",
    "refused": [],
    "refused_in": [],
    "offloads": [],
}


def judged(*, about: Any = None, clock: Any = (0.01, 0.001), **here: Any) -> fit.Row:
    found = {"about": {**ABOUT, **(about or {})}, "interface": {**HERE, **here}, "clock": clock}
    row = fit.Row(name="h0", ssh="node0")
    fit.judge(row, {**found, "name": "eth1", "address": "10.0.0.1"}, ["10.0.0.1", "10.0.0.9"])
    return row


def test_a_machine_that_is_right_has_nothing_said_of_it() -> None:
    assert judged().wrong == [] and judged().notes == []


def test_a_clock_off_by_a_minute_and_an_interface_that_is_not_right_are_said() -> None:
    assert "+60.0 s off" in judged(clock=(0.01, 60.0)).notes[0]
    row = judged(about={"backends": [], "torch": ""}, addresses=[], up=False, ssh_here=True)
    text = " ".join([*row.wrong, *row.notes])
    for word in ("neither netem nor ebpf", "has not the address 10.0.0.1", "is down", "no torch", "share an"):
        assert word in text


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"refused": [["RDMA device mlx5_0: never lost", "past_rdma = true"]]}, "eth1: RDMA device mlx5_0"),
        ({"refused_in": [["large receive offload", "ethtool -K eth1 lro off"]]}, "runs and --side ingress refuse it"),
        ({"impaired": "loss_1"}, "impaired already (loss_1)"),
        ({"gateways": ["10.0.0.9"]}, "10.0.0.9 is a gateway of eth1"),
        ({"about": {"no_gate": "bpf is not allowed"}}, "bpf is not allowed: its gate is an eBPF program"),
    ],
)
def test_what_apply_or_a_run_would_refuse_is_said_by_the_check(said: dict[str, Any], words: str) -> None:
    """As it was: "all machines can be used", and then they could not."""
    (wrong,) = judged(**said).wrong
    assert words in wrong


def test_a_default_route_is_no_mistake_but_needs_a_word() -> None:
    assert judged(default_route=True).wrong == [] and "--yes-these-nics" in judged(default_route=True).notes[0]
    assert len(judged(default_route=True, ssh_here=True).notes) == 1


@pytest.mark.netns
def test_a_machine_says_of_its_interface_what_would_be_refused_there() -> None:
    said = There().interface("lo", past_rdma=False)
    assert said["refused"][0][0] == "no Ethernet interface" and said["refused_in"] == [] and not said["impaired"]


def test_machines_that_are_not_alike_together_are_refused_by_runs_and_said_by_the_check() -> None:
    """As it was: by runs alone."""
    assert fit.mixed({"h0": 1500, "h1": 1500}, ["10.0.0.1", "10.0.0.2"]) == []
    found = fit.mixed({"h0": 1500, "h1": 9000, "h2": 1500}, ["10.0.0.1", "fd00::1"])
    assert [text for text, _ in found] == [
        "machines differ in their MTU (1500 on h0, h2; 9000 on h1)",
        "some machines have IPv4 and some IPv6 addresses",
    ]
    assert ground.fit is fit, "one place says it to both"


def test_versions_that_differ_are_named_and_those_that_do_not_are_not() -> None:
    """As it was: the one version was compared that can't differ, since the agent runs the controller's code."""
    rows = [
        fit.Row(name=f"h{n}", ssh="x", about={**ABOUT, "torch": torch}) for n, torch in enumerate(("2.8", "", "2.8"))
    ]
    for row in rows:
        row.interface = {**HERE, "offloads": ["rx-gro", "tx-tcp-segmentation"]}
    assert fit.unlike(rows) == ["torch differs: 2.8 on h0, h2; none on h1", "offloads: TSO, GRO"]


class Told:
    """Channels to machines of which only h1 is wrong: its address is another one's."""

    def __init__(self, *_: object) -> None:
        self.open, self.closed = dict.fromkeys(range(3)), dict[int, Any]()

    def each(self, _: object) -> dict[int, Any]:
        found = {"about": ABOUT, "clock": (0.01, 0.001), "name": "eth1"}
        interfaces = [{**HERE, "addresses": [f"10.0.0.{n}"]} for n in (1, 9, 3)]
        return {n: {**found, "interface": one, "address": f"10.0.0.{n + 1}"} for n, one in enumerate(interfaces)}


LAB = Lab(machine=tuple(Machine(ssh=f"n{n}", interface="eth1") for n in range(3)))


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The ways that were measured."""
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(check, "channels", lambda _: nullcontext(Told()))
    monkeypatch.setattr(check, "_to_the_next", lambda _, pair, __: found.append(pair))
    return found


def test_a_wrong_address_is_its_own_machines_mistake_and_not_of_the_one_that_sends_there(
    tried: list[tuple[int, int]],
) -> None:
    """As it was: "to h1: Cannot assign requested address", and h0 could not be used."""
    rows = check.check(LAB).machines
    assert [bool(row.wrong) for row in rows] == [False, True, False] and tried == [(2, 0)]
    assert rows[0].notes == ["the way to h1 was not tried: h1 can't be used"]


def test_a_switch_that_can_not_be_asked_is_found_out_by_the_check(tried: list[tuple[int, int]], tmp_path: Path) -> None:
    """As it was: by the first run, once its network stood."""
    del tried
    ask = tmp_path / "ask.py"
    ask.write_text('print(\'[{"port": 1, "drops": 5}]\')')
    lab = LAB.model_copy(update={"switch": Switch(counters=(sys.executable, str(ask)))})
    assert check.check(lab).switch == {"port 1 queue 0": 5}
    ask.write_text("raise SystemExit('no route to the switch')")
    found = check.check(lab)
    assert "no route to the switch" in found.wrong[0] and not found.usable() and found.switch is None


@pytest.mark.parametrize(("count", "most"), [(2, 2), (3, 3), (4, 2), (5, 3), (16, 2)])
def test_a_ring_is_measured_in_two_or_three_rounds_in_which_no_machine_is_twice(count: int, most: int) -> None:
    ring = [(rank, way.next_to(rank, range(count))) for rank in range(count)]
    found = way.rounds(ring)
    assert len(found) == most and sorted(pair for one in found for pair in one) == ring
    for one in found:
        assert len({rank for pair in one for rank in pair}) == 2 * len(one)


def test_the_ways_of_one_round_are_measured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: one machine after the other, two seconds each."""
    both = threading.Barrier(2, timeout=30)
    monkeypatch.setattr(check, "_to_the_next", lambda *_: both.wait())
    told = Told()
    told.open = dict.fromkeys(range(4))
    check._ways(told, {rank: fit.Row(name=f"h{rank}", ssh="x") for rank in range(4)})  # type: ignore[arg-type]


def test_what_is_wrong_with_a_way_is_said_and_what_only_worries_too() -> None:
    keys: dict[str, Any] = {"mtu": 9000, "sent": 2000, "rate_mbit": 900.0}
    good = way.Way(**keys, lost=0, heard=2000, whole=True, marks=True)
    assert good.wrong("h1") == good.notes("h1") == [] and good.as_json("h1")["mtu"] == 9000
    bad = way.Way(**keys, lost=20, heard=1980, whole=False, marks=False)
    assert bad.wrong("h1") == [] and len(bad.notes("h1")) == 3 and bad.as_json("h1")["bare_loss"] == 0.01
    none = way.Way(**keys, lost=2000, heard=0, whole=False, marks=False)
    assert none.wrong("h1") == ["nothing arrives at h1 on the data network"] and none.notes("h1") == []


def test_an_error_names_its_machine_once() -> None:
    row = fit.Row(name="h0", ssh="node0")
    assert check._words(NotAbleError("h0 (node0): not root there", next_step="sudo"), row) == "not root there; sudo"
    assert check._words(NotAbleError("h0: eth1 has no address"), row) == "eth1 has no address"
