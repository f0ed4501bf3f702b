"""Delay on a kernel that has none: a user-space wire behind the same hook."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lossbench.net.impair.relay import process
from lossbench.net.star.network import StarNetwork
from lossbench.proof.pace import judge_kept
from lossbench.proof.probe.exchange import Exchange
from lossbench.proof.probe.flows import plan
from lossbench.proof.probe.heard import Heard
from lossbench.proof.verdict import Status
from lossbench.proof.watched import Watched
from lossbench.spec import profile
from lossbench.spec.delay import Reorder
from lossbench.spec.placement import rules_in_force
from tests.forked import lossbench
from tests.networks import Build, prove

pytestmark = pytest.mark.netns
SLOW = {"hosts": 2, "rate_mbit": 50}


def probes(network: StarNetwork) -> list[Heard]:
    """Of every flow: from h0 first, where the delay is."""
    flows, _ = plan(network.rules, network.experiment.topology)
    with Exchange(flows, place_of=network.place, payload_bytes=64, token=1 << 40) as exchange:
        return exchange.delay(wait_s=0.3)


def test_packets_wait_as_long_as_asked_and_none_is_lost(build: Build, profile_file: Callable[[str], str]) -> None:
    path = profile_file("[delay]\nmean_ms = 30")
    network = build(backend="relay", topology=SLOW, impair=[{"profile": path, "hosts": ["h0"]}])
    held, free = probes(network)
    assert held.missing().sum() == 0 and held.reordered() == 0
    assert min(held.delays_ms) >= 29.9, "a busy machine adds some, never takes some away"
    assert np.median(free.delays_ms) < np.median(held.delays_ms) - 15, "the way back is not delayed"


def test_a_wire_that_a_busy_machine_kept_waiting_is_unknown_and_never_failed(
    build: Build, profile_file: Callable[[str], str]
) -> None:
    """As it was: failed, since the probes took too long; but the wire knew why."""
    path = profile_file("[delay]\nmean_ms = 10")
    network = build(backend="relay", topology=SLOW, impair=[{"profile": path, "hosts": ["h0"]}])
    wire, over = network.backend._process, threading.Event()  # type: ignore[attr-defined]

    def keep_waiting() -> None:
        while not over.is_set():
            wire.send_signal(signal.SIGSTOP)
            over.wait(0.03)
            wire.send_signal(signal.SIGCONT)
            over.wait(0.001)

    busy = threading.Thread(target=keep_waiting)
    busy.start()
    try:
        found = prove(network, packets=400).judgement
    finally:
        over.set()
        busy.join()
    assert found.status == Status.UNKNOWN, found.findings
    assert any("the machine was too busy" in text for text in found.reasons())


def test_a_wire_that_holds_packets_back_for_another_time_than_it_was_asked_is_failed(
    build: Build, profile_file: Callable[[str], str]
) -> None:
    path = profile_file("[delay]\nmean_ms = 10")
    network = build(backend="relay", topology=SLOW, impair=[{"profile": path, "hosts": ["h0"]}])
    (hook,) = (one for one, rules in network.rules.items() if rules)
    (rule,) = network.rules[hook]
    slower = rule.profile.model_copy(update={"delay": rule.profile.delay.model_copy(update={"mean_ms": 80.0})})
    network.backend._tell(hook, replace(rule, profile=slower))  # type: ignore[attr-defined]
    assert prove(network, packets=400).judgement.status == Status.FAILED


@pytest.mark.parametrize(("told_ms", "wrong"), [(20.0, False), (10.0, True), (21.0, True)])
def test_a_wire_says_how_long_it_kept_packets_and_not_only_how_late_it_was(
    build: Build, profile_file: Callable[[str], str], told_ms: float, wrong: bool
) -> None:
    """As it was: late by what it had been told itself; 10 ms for 20 were valid, once the probes were through."""
    path = profile_file("[delay]\nmean_ms = 20")
    network = build(backend="relay", topology=SLOW, impair=[{"profile": path, "hosts": ["h0"]}])
    (hook,) = (one for one, rules in network.rules.items() if rules)
    (rule,) = network.rules[hook]
    told = rule.profile.model_copy(update={"delay": rule.profile.delay.model_copy(update={"mean_ms": told_ms})})
    network.backend._tell(hook, replace(rule, profile=told))  # type: ignore[attr-defined]
    probes(network)
    held = network.held()
    assert held[hook][rule.label].waited > 0
    found = judge_kept(Watched(held=held, rules={hook: {rule.label: rule}}))
    assert [one.status for one in found] == [Status.FAILED] * wrong, found


def test_loss_beside_a_delay_is_still_exact(build: Build, profile_file: Callable[[str], str]) -> None:
    path = profile_file('[delay]\nmean_ms = 5\n[loss]\nmodel = "iid"\npercent = 5')
    # So slow that a wire that is kept waiting by a busy machine does not overflow: that loss would be counted, too.
    network = build(backend="relay", topology={"hosts": 2, "rate_mbit": 5}, impair=[{"profile": path}])
    proof = prove(network, packets=4000)
    assert all(row.exact for row in proof.rows), proof.judgement.reasons()
    assert [f for f in proof.judgement.findings if f.status != Status.VALID and "delay" not in f.text] == []


@pytest.mark.wallclock
def test_some_packets_overtake(build: Build, profile_file: Callable[[str], str]) -> None:
    path = profile_file("[delay]\nmean_ms = 30\n[reorder]\npercent = 30")
    heard = probes(build(backend="relay", topology=SLOW, impair=[{"profile": path, "hosts": ["h0"]}]))[0]
    at_once = int((np.array(heard.delays_ms) < 15).sum())
    assert heard.missing().sum() == 0
    assert 20 <= at_once <= 75, "150 packets, 30 %"
    assert heard.reordered() > 0


@pytest.mark.parametrize(("percent", "gap"), [(100, 5), (100, 1), (30, 1), (40, 3)])
def test_packets_overtake_at_their_turns_and_as_many_as_asked(percent: int, gap: int) -> None:
    """As netem: after gap - 1 that wait each of the next may, until one does."""
    wire = process.Wire(descriptor=-1)
    wire.obey({"delay": {"mean_ms": 10}, "reorder": {"percent": percent, "gap": gap}, "seed": 1, "rule": "r"})
    at_once = [number for number in range(20_000) if wire.wait_s() is None]
    assert len(at_once) / 20_000 == pytest.approx(Reorder(percent=percent, gap=gap).share(), abs=0.015)
    assert at_once[0] >= gap - 1 and min(np.diff(at_once)) == gap and wire.rule.overtook == len(at_once)


def test_a_delay_can_be_taken_back_in_place(build: Build, profile_file: Callable[[str], str]) -> None:
    path = profile_file("[delay]\nmean_ms = 200")
    network = build(backend="relay", topology=SLOW, impair=[{"profile": path, "hosts": ["h0"]}])
    entry = network.experiment.impair[0].model_copy(update={"profile": profile.load("clean")})
    network.put(rules_in_force(network.experiment.model_copy(update={"impair": (entry,)}), seed=1))
    heard = probes(network)[0]
    assert heard.missing().sum() == 0 and np.median(heard.delays_ms) < 150


@pytest.mark.wallclock
def test_a_run_with_delay_ends_with_no_wire_left(tmp_path: Path) -> None:
    path = tmp_path / "slow.toml"
    path.write_text('why = "x"\n[delay]\nmean_ms = 20')
    done = lossbench(
        "run",
        "proof",
        "--backend",
        "relay",
        "--set",
        f"impair.0.profile={path}",
        "--set",
        "topology.rate_mbit=50",
        "--set",
        "probe.packets=4000",
        "--out",
        str(tmp_path),
    )
    assert done.returncode in (0, 1, 3), done.stderr  # on a busy machine the delay itself may not be met
    assert "Traceback" not in done.stderr and "exact" in done.stdout
    assert not _relays()


def _relays() -> list[str]:
    """Wires whose lossbench is gone: they would be children of somebody else by now."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            is_wire = entry.name.isdigit() and b"relay.process" in (entry / "cmdline").read_bytes()
            if is_wire and "PPid:\t1\n" in (entry / "status").read_text():
                found.append(entry.name)
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("topology.hosts=8", "; with --rate 50mbit (of a suite --set topology.rate_mbit=50) it runs here; or"),
        ("topology.rate_mbit=1000", "at most 120 Mbit/s each"),
    ],
)
def test_links_that_could_outrun_it_are_refused(tmp_path: Path, setting: str, words: str) -> None:
    path = tmp_path / "slow.toml"
    path.write_text('why = "x"\n[delay]\nmean_ms = 20')
    done = lossbench("run", "proof", "--backend", "relay", "--set", f"impair.0.profile={path}", "--set", setting)
    assert done.returncode == 4 and words in done.stderr and "lossbench vm run" in done.stderr
