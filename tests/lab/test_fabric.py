"""What lies between machines: counted by their interfaces, by their switch, or only observed. Pure."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lossbench.errors import NotAbleError
from lossbench.net import conservation
from lossbench.net.conservation import Between
from lossbench.net.counters import UNMATCHED, Fabric, LinkCounts, Reading, RuleCounters
from lossbench.net.lab import network as network_of_a_lab
from lossbench.net.lab.network import LabNetwork, asked
from lossbench.proof.judge import judge_timing
from lossbench.proof.verdict import Status
from lossbench.proof.watched import Quiet
from lossbench.spec import lab as labs
from lossbench.spec.lab import Switch
from lossbench.spec.placement import Hook

UP = [Hook(rank=rank, direction="uplink") for rank in (0, 1)]


def between(*, sent: int, arrived: int, dropped: int = 0, **fabric: Any) -> Between:
    """h0 sends to h1; all of it was at the gate of h0."""
    zero = Fabric(
        cards=dict.fromkeys(fabric.get("cards", {}), 0), switch={} if fabric.get("switch") is not None else None
    )
    before = Reading(links={0: LinkCounts(), 1: LinkCounts()}, hooks={hook: {} for hook in UP}, fabric=zero)
    counts = {UP[0]: {UNMATCHED: RuleCounters(seen=sent, dropped=dropped)}, UP[1]: {}}
    links = {0: LinkCounts(entered=sent), 1: LinkCounts(left=arrived)}
    return Between(before, Reading(links=links, hooks=counts, fabric=Fabric(**fabric)))


def test_what_nobody_counts_between_machines_is_observed_and_no_leak() -> None:
    found = between(sent=1000, arrived=880, dropped=100)
    assert conservation.observed(found) == 20 and conservation.leaks(found) == []
    met = conservation.met(found)
    assert (met.rule, met.observed, met.elsewhere) == (100, 20, 0) and met.as_json()["loss"] == 0.12


def test_what_the_switch_says_it_dropped_was_lost_in_a_queue_and_the_rest_is_a_leak() -> None:
    found = between(sent=1000, arrived=980, switch={"port 1 queue 0": 20})
    assert conservation.leaks(found) == [] and conservation.observed(found) == 0
    assert conservation.met(found).queue == 20
    found = between(sent=1000, arrived=970, switch={"port 1 queue 0": 20})
    assert [leak.missing for leak in conservation.leaks(found)] == [10], "a switch that can be asked must know"


def test_what_an_interface_says_it_lost_was_not_by_the_fault() -> None:
    found = between(sent=1000, arrived=990, cards={"h0's eth1, tx_dropped": 10})
    assert conservation.observed(found) == 0 and conservation.leaks(found) == []
    assert conservation.lost_elsewhere(found) == {"by h0's eth1, tx_dropped": 10}


def test_more_packets_than_were_sent_are_a_leak_whoever_counts() -> None:
    found = between(sent=1000, arrived=1003)
    assert [leak.missing for leak in conservation.leaks(found)] == [-3]


def test_what_the_gate_took_and_no_rule_met_is_a_leak_and_not_the_switchs() -> None:
    """A filter of somebody else's ahead of the downlink's rules, for example."""
    down = Hook(rank=1, direction="downlink")
    found = between(sent=1000, arrived=0)
    after = found.after
    links = {**after.links, 1: LinkCounts(came=1000, left=0)}
    hooks = {**after.hooks, down: {UNMATCHED: RuleCounters(seen=0)}}
    found = Between(found.before, Reading(links=links, hooks=hooks, fabric=after.fabric))
    assert conservation.observed(found) == 0
    assert [(leak.place, leak.missing) for leak in conservation.leaks(found)] == [("h1 downlink: at the rules", 1000)]


def test_each_machine_is_judged_by_itself() -> None:
    calm, busy = Quiet(cpu_busy=[0.1] * 9), Quiet(cpu_busy=[1.0] * 9)
    found, _ = judge_timing(Quiet(machines={"h0": calm, "h1": busy}), late=[], interleaved=False)
    assert found.status == Status.UNKNOWN and found.reasons()[0].startswith("h1: CPU saturated")
    found, _ = judge_timing(Quiet(machines={"h0": calm, "h1": calm}), late=[], interleaved=False)
    assert found.status == Status.VALID
    found, _ = judge_timing(Quiet(machines={"h0": calm, "h1": Quiet()}), late=[], interleaved=False)
    assert found.status == Status.UNKNOWN, "a machine that could not be asked"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("print('no JSON')", "can't be read"),
        ("print('[1, 2]')", "can't be read"),
        ("print('[{\"port\": 1}]')", "can't be read"),
        ('print(\'[{"port": 1, "drops": 1e999}]\')', "can't be read"),
        ("raise SystemExit('no route to the switch')", "no route to the switch"),
    ],
)
def test_a_switch_that_can_not_be_asked_is_said(tmp_path: Path, said: str, words: str) -> None:
    path = tmp_path / "ask.py"
    path.write_text(said)
    with pytest.raises(NotAbleError, match=words):
        asked(Switch(counters=(sys.executable, str(path))))
    with pytest.raises(NotAbleError, match="can't be asked"):
        asked(Switch(counters=(str(tmp_path / "none"),)))
    path.write_text('print(\'[{"port": 1, "queue": 2, "drops": 5}]\')')
    told = asked(Switch(counters=(sys.executable, str(path))))
    assert told == {"port 1 queue 2": 5} and asked(Switch()) is None


def test_drops_of_one_queue_that_are_said_in_parts_are_added_up(tmp_path: Path) -> None:
    """As it was: the last one overwrote the others, and what the switch had dropped was a leak."""
    path = tmp_path / "ask.py"
    path.write_text(
        'print(\'[{"port": 1, "drops": 5}, {"port": 1, "queue": 0, "drops": 7}, {"port": 2, "drops": 1}]\')'
    )
    told = asked(Switch(counters=(sys.executable, str(path))))
    assert told == {"port 1 queue 0": 12, "port 2 queue 0": 1}


def settled(monkeypatch: pytest.MonkeyPatch, told: list[dict[str, int]], moving: int) -> tuple[Between, list[float]]:
    """A lab whose packets still move for some readings, and whose switch says these, one after the other."""
    lab, since = LabNetwork.__new__(LabNetwork), between(sent=0, arrived=0, switch={}).before
    last, reads = between(sent=1000, arrived=980, switch={}).after, [0]
    monkeypatch.setattr(network_of_a_lab, "SWITCH_STEP_S", 0.0)
    monkeypatch.setattr(network_of_a_lab, "asked", lambda _: told.pop(0))
    lab.machines = SimpleNamespace(lab=SimpleNamespace(switch=Switch(counters=("ask",))))  # type: ignore[assignment]
    lab.rules = {}

    def read(**_: object) -> Reading:
        reads[0] += 1
        moved = {0: LinkCounts(entered=1000 - max(0, moving - reads[0])), 1: LinkCounts(left=980)}
        return replace(last, links=moved, fabric=Fabric())

    monkeypatch.setattr(lab, "_read", read)
    found, _ = lab.settled(since=since)
    return Between(since, found), [float(one) for one in reads]


def test_a_switch_that_is_slow_is_asked_once_packets_are_still_and_again_only_if_it_knows_too_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it was: at every look, also while packets moved; seconds each, where it is asked over SSH."""
    told = [{"port 1 queue 0": 20}, {"port 1 queue 0": 99}]
    found, _ = settled(monkeypatch, told, moving=5)
    assert len(told) == 1 and conservation.leaks(found) == [] and conservation.met(found).queue == 20
    told = [{"port 1 queue 0": 0}, {"port 1 queue 0": 20}]
    found, _ = settled(monkeypatch, told, moving=0)
    assert told == [] and conservation.leaks(found) == [], "its counters may come late"


def test_a_command_for_the_switch_is_taken_from_the_folder_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: from the current folder, while ssh_config of the same file was taken from the file's."""
    script = tmp_path / "ask_switch"
    script.write_text("#!/bin/sh\ncat said.json\n")
    script.chmod(0o755)
    (tmp_path / "said.json").write_text('[{"port": 3, "drops": 4}]')
    machine = '[[machine]]\nssh = "n"\ninterface = "eth1"\n[switch]\ncounters = ["./ask_switch"]\n'
    (tmp_path / "lab.toml").write_text(machine)
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    assert asked(labs.load(Path("../lab.toml")).switch) == {"port 3 queue 0": 4}
    (tmp_path / "lab.toml").write_text(machine + 'folder = "else"\n')
    with pytest.raises(NotAbleError, match="can't be asked"):
        asked(labs.load(tmp_path / "lab.toml").switch)


def test_on_a_machine_of_its_own_no_program_of_ours_sets_a_sysctl(monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace of ours is; what a user starts by hand is not."""
    from lossbench.runs.launch.environment import Identity, environment
    from lossbench.spec.topology import Placed, Topology
    from lossbench.workloads.transport import tuning

    written: list[str] = []
    monkeypatch.setattr(Path, "write_text", lambda path, text, **_: written.append(f"{path} {text}"))
    identity = Identity(run_id="x", token=0, seed=0)
    here = Placed(address="10.0.0.1", control="10.1.0.1", interface="eth1")
    for topology, may in ((Topology(hosts=2), True), (Topology(hosts=2, machines=(here, here)), False)):
        host, where = topology.all_hosts()[0], Path("/x")
        variables = environment(host, topology, identity, folder=where, records=where, threads=1)
        monkeypatch.setenv("LOSSBENCH_STACK", variables["LOSSBENCH_STACK"])
        if may:
            tuning.set_rto_min(5)
        else:
            with pytest.raises(tuning.NotHereError, match="not ours to set"):
                tuning.set_rto_min(5)
    monkeypatch.delenv("LOSSBENCH_STACK")
    with pytest.raises(tuning.NotHereError):
        tuning.set_rto_min(5)
    assert written == ["/proc/sys/net/ipv4/tcp_rto_min_us 5000"]


@pytest.mark.parametrize(("yours", "ours"), [("", "Socket"), ("AWS Libfabric", None)])
def test_nccl_is_kept_off_rdma_which_no_rule_meets(yours: str, ours: str | None, monkeypatch: Any) -> None:
    """As it was: NCCL chose InfiniBand or RoCE where a machine had it, or a plugin that it found (OFI for EFA), and the
    fault met none of its packets. Who names a network means it."""
    monkeypatch.delenv("NCCL_NET", raising=False)
    if yours:
        monkeypatch.setenv("NCCL_NET", yours)
    from lossbench.runs.launch.environment import Identity, environment
    from lossbench.spec.topology import Placed, Topology

    here, where = Placed(address="10.0.0.1", control="10.1.0.1", interface="eth1"), Path("/x")
    for topology in (Topology(hosts=2), Topology(hosts=2, machines=(here, here))):
        run = Identity(run_id="x", token=0, seed=0)
        found = environment(topology.all_hosts()[0], topology, run, folder=where, records=where, threads=1)
        assert found["NCCL_IB_DISABLE"] == "1" and found.get("NCCL_NET") == ours


def test_on_a_machine_of_its_own_nccl_may_use_what_is_inside_and_in_namespaces_it_may_not() -> None:
    """As it was: the eight GPUs of a machine spoke over its network with each other, too."""
    from lossbench.runs.launch.environment import Identity, environment
    from lossbench.spec.topology import Placed, Topology

    here, where = Placed(address="10.0.0.1", control="10.1.0.1", interface="eth1"), Path("/x")
    for topology, forbidden in ((Topology(hosts=2), True), (Topology(hosts=2, machines=(here, here)), False)):
        run = Identity(run_id="x", token=0, seed=0)
        found = environment(topology.all_hosts()[0], topology, run, folder=where, records=where, threads=1)
        assert [name in found for name in ("NCCL_SHM_DISABLE", "NCCL_P2P_DISABLE")] == [forbidden] * 2


def test_what_could_not_be_listened_to_is_a_change_of_every_interface() -> None:
    """As it was: an overflow is about no interface (index 0), and was dropped as one of somebody else's."""
    from lossbench.net.lab.half import changed
    from lossbench.net.tc.rtnl_messages import Change

    heard = [
        Change(what="more changes than could be listened to", index=0, by=0),
        Change(what="a filter was removed", index=3, by=7),
        Change(what="a filter was added", index=3, by=8),
        Change(what="a filter was added", index=4, by=7),
    ]
    found = changed(heard, index=3, mtu=1500, ours={8})
    assert found == [
        "more changes than could be listened to during the run",
        "a filter was removed during the run, not by lossbench",
    ]


def test_what_is_a_machines_own_is_said_to_be_not_judged() -> None:
    from lossbench.proof.covers.rows import covered, not_judged
    from lossbench.spec.experiment import Experiment
    from lossbench.spec.topology import Placed, Topology

    here = Placed(address="10.0.0.1", control="10.1.0.1", interface="eth1")
    lab = Experiment(name="x", topology=Topology(hosts=2, machines=(here, here)))
    assert any("firewalls, IPsec, routes and tcx" in text for text in not_judged(covered(lab, "ebpf")))
    assert not any("firewalls" in text for text in not_judged(covered(Experiment(name="x"), "ebpf")))
