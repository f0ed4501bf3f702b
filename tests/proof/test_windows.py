"""A window that was asked for is held against the one that was."""

from __future__ import annotations

import re
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lossbench.net.counters import TOTAL, Reading, RuleCounters
from lossbench.net.impair import cbpf, registry
from lossbench.net.impair.ebpf import memory
from lossbench.net.tc.look import Look
from lossbench.proof.judge_rules import FEW
from lossbench.proof.judge_windows import judge_windows, opens_with_the_run
from lossbench.proof.verdict import Status
from lossbench.proof.watched import Change, Watched
from lossbench.results.folders import RunFolder
from lossbench.runs.run import hold_back
from lossbench.runs.schedule import Schedule
from lossbench.simulate.no_network import NoNetwork
from lossbench.spec.experiment import Experiment
from lossbench.spec.placement import Hook, Rules, rules_ever, rules_in_force, rules_kept
from lossbench.spec.userfile import check
from tests.forms import forms
from tests.networks import Build, open_socket

SECONDS, STEPS = {"from_s": 1.0, "to_s": 1.25}, {"from_step": 100, "to_step": 110}


def asked(**window: Any) -> Experiment:
    return check(Experiment, {"name": "t", "impair": [{"profile": "loss_10", **window}]}, origin="test")


def changes(window: dict[str, Any], came: float | None, went: float | None) -> list[Change]:
    unit = "s" if "from_s" in window or "to_s" in window else "step"
    ends = ((True, f"from_{unit}", came), (False, f"to_{unit}", went))
    return [Change(entry=0, came=c, unit=unit, asked=window[name], real=at) for c, name, at in ends if at is not None]


@pytest.mark.parametrize(
    ("window", "early", "met", "status"),
    [
        ({"to_s": 0.5}, 2000, 2500, Status.UNKNOWN),
        ({"to_s": 0.5, "from_s": 0.0}, 31, 100, Status.UNKNOWN),
        ({"to_s": 0.5}, 30, 100, None),
        ({"to_s": 0.5}, 100, 2500, None),
        (SECONDS, 2000, 2500, None),
        ({}, 2000, 2500, None),
    ],
)
@pytest.mark.parametrize("label", ["0:loss_10", TOTAL])
def test_what_met_a_window_before_the_clock_it_counts_by_makes_it_unknown(
    window: dict[str, Any], early: int, met: int, status: Status | None, label: str
) -> None:
    """As it was: a program that sent for four seconds before the run's clock began met a window of half a second for
    four and a half, valid."""
    experiment = asked(**window)
    hook = Hook(rank=0, direction="uplink")
    rule = rules_ever(experiment, seed=0)[hook][0]

    def counted(seen: int) -> dict[Hook, dict[str, RuleCounters]]:
        return {hook: {label: RuleCounters(seen=seen)}}

    watched = Watched(
        before=Reading(hooks=counted(700)),
        early=counted(700 + early),
        after=Reading(hooks=counted(700 + met)),
        rules={hook: {rule.label: rule}},
    )
    found = [one for one in judge_windows(experiment, watched) if "before the run's clock began" in one.text]
    if label == TOTAL and opens_with_the_run(experiment.impair[0]) and early > FEW:
        status = Status.UNKNOWN  # nobody knows how much met it later
    assert [one.status for one in found] == ([status] if status is not None else [])


@pytest.mark.parametrize(
    ("window", "came", "went", "status"),
    [
        (SECONDS, 1.001, 1.252, Status.VALID),
        (SECONDS, 1.234, 1.273, Status.UNKNOWN),
        (SECONDS, 1.0, 1.273, Status.UNKNOWN),
        ({"from_s": 10.0, "to_s": 20.0}, 10.4, 20.4, Status.VALID),
        ({"from_s": 10.0, "to_s": 20.0}, 10.6, 20.0, Status.UNKNOWN),
        ({"from_s": 10.0}, 10.9, None, Status.VALID),
        ({"to_s": 0.05}, None, 0.09, Status.UNKNOWN),
        (STEPS, 101, 111, Status.VALID),
        (STEPS, 103, 113, Status.UNKNOWN),
        (STEPS, 97, 107, Status.UNKNOWN),
        (STEPS, 99, 111, Status.VALID),
        (SECONDS, 0.7, 0.95, Status.UNKNOWN),
        (SECONDS, 1.0, 1.227, Status.UNKNOWN),
        (SECONDS, 0.985, 1.252, Status.VALID),
        ({"from_step": 100, "to_step": 200}, 104, 205, Status.VALID),
    ],
)
def test_a_window_is_valid_only_within_a_twentieth_or_the_least_that_can_be_told(
    window: dict[str, Any], came: float | None, went: float | None, status: Status
) -> None:
    watched = Watched(changes=changes(window, came, went), duration_s=30.0, last_step=300)
    (found,) = judge_windows(asked(**window), watched)
    assert found.status == status, found


@pytest.mark.parametrize(
    ("window", "came", "status"),
    [
        ({"from_s": 10.0}, 10.9, Status.VALID),
        ({"from_s": 10.0}, 11.1, Status.UNKNOWN),
        ({"from_step": 100}, 127, Status.VALID),  # of 27.8 steps a second
        ({"from_step": 100}, 128, Status.UNKNOWN),
    ],
)
def test_of_a_long_run_what_is_open_until_its_end_may_not_come_minutes_late(
    window: dict[str, Any], came: float, status: Status
) -> None:
    """As it was: a twentieth of what was left, 179 s of an hour's run."""
    watched = Watched(changes=changes(window, came, None), duration_s=3600.0, last_step=100_000)
    (found,) = judge_windows(asked(**window), watched)
    assert found.status == status, found


@pytest.mark.parametrize(
    ("window", "end", "status", "said"),
    [
        ({"from_s": 1.0, "to_s": 5.0}, 1.05, Status.UNKNOWN, "the run ended after 1.05 s, before its window did"),
        ({"from_s": 1.0, "to_s": 5.0}, 4.9, Status.VALID, "the run ended after 4.9 s, before its window did"),
        ({"to_s": 5.0}, 2.0, Status.UNKNOWN, "was asked to 5 s: the run ended after 2 s"),
        ({"from_step": 10, "to_step": 20}, 11, Status.UNKNOWN, "the run ended after step 11, before its window did"),
        ({"from_step": 10, "to_step": 20}, 18, Status.VALID, "the run ended after step 18, before"),
        ({"from_step": 10, "to_step": 20}, 19, None, ""),
        ({"from_s": 1.0, "to_s": 5.0}, 5.0, None, ""),
        ({"from_s": 1.0, "to_s": 5.0}, 0.9, None, ""),
        ({"from_s": 1.0}, 1.05, None, ""),
    ],
)
def test_a_run_that_ended_before_its_window_did_says_so(
    window: dict[str, Any], end: float, status: Status | None, said: str
) -> None:
    """As it was: "asked from 1 to 5 s and in force from 1 s", valid, of a run that met a twentieth of a second."""
    in_steps = "to_step" in window
    watched = Watched(duration_s=100.0 if in_steps else end, last_step=int(end) if in_steps else 0)
    found = judge_windows(asked(**window), watched)
    assert [one.status for one in found] == ([status] if status is not None else [])
    assert all(said in one.text for one in found)


def test_what_came_late_is_told_with_both_times() -> None:
    (found,) = judge_windows(asked(**SECONDS), Watched(changes=changes(SECONDS, 1.2341, 1.273)))
    assert "asked from 1 s to 1.25 s and in force from 1.234 s to 1.273 s: 0.234 s late (0.02 s" in found.text
    (found,) = judge_windows(asked(**STEPS), Watched(changes=changes(STEPS, 103, 113)))
    assert "asked from step 100 to step 110 and in force from step 103 to step 113: 3 steps late" in found.text


def test_what_came_early_is_told_with_both_times() -> None:
    """As it was: only what came late was."""
    (found,) = judge_windows(asked(**SECONDS), Watched(changes=changes(SECONDS, 0.7, 1.251)))
    assert "in force from 0.7 s to 1.251 s: 0.300 s early (0.02 s allowed)" in found.text


def test_a_clock_that_began_long_before_the_ranks_is_told() -> None:
    watched = Watched(changes=changes(SECONDS, 1.0, 1.25), opened_s=0.3)
    assert [one.status for one in judge_windows(asked(**SECONDS), watched)] == [Status.VALID, Status.UNKNOWN]


class Keeper(NoNetwork):
    """Keeps windows in time itself."""

    keeps_time = True

    def put(self, rules: Rules) -> list[Hook]:
        self.rules = rules
        return []


def schedule(tmp_path: Path, kind: type[NoNetwork] = NoNetwork, **window: Any) -> Schedule:
    seen = Watched()
    folder = RunFolder(tmp_path / "run")
    folder.make()
    out = Schedule(network=kind(asked(**window)), store=folder, seed=1, seen=seen, hear=lambda: None)
    out.keep(0.0)
    out.begin(time.monotonic())
    return out


def test_a_harness_that_slept_says_how_late_its_changes_were(tmp_path: Path) -> None:
    kept = schedule(tmp_path, **SECONDS)
    assert kept.nap_s(60.0) <= 1.0, "it wakes for the next change"
    kept.begin(time.monotonic() - 1.2)
    kept.keep(1.2)
    kept.begin(time.monotonic() - 1.4)
    kept.keep(1.4)
    came, went = kept.seen.changes
    assert (came.asked, came.came, went.asked, went.came) == (1.0, True, 1.25, False)
    assert came.real >= 1.2 and went.real >= 1.4


def test_a_change_in_time_does_not_wait_for_a_look_at_what_stands(tmp_path: Path) -> None:
    """On machines of a lab a look takes a tenth of a second."""
    looks: list[float] = []

    class Slow(NoNetwork):
        def not_in_force(self, look: Any = None) -> list[str]:
            del look
            looks.append(time.monotonic())
            return []

    kept = schedule(tmp_path, Slow, **SECONDS)
    kept.keep(0.5)
    looks.clear()
    kept.keep(0.9)
    assert len(looks) == 1, "shortly before"
    kept.keep(1.0)
    kept.keep(1.25)
    assert len(looks) == 1 and len(kept.seen.changes) == 2
    kept = schedule(tmp_path, Slow, **SECONDS)
    looks.clear()
    kept.keep(1.1)
    assert len(looks) == 1, "who slept has not looked, and looks first"


def test_a_step_that_was_begun_before_a_rule_came_counts_however_late_it_is_heard(tmp_path: Path) -> None:
    kept = schedule(tmp_path, **STEPS)
    kept.stepped({"step": 100, "time_s": time.time()})
    before = time.time()
    kept.keep(0.5)
    kept.stepped({"step": 103, "time_s": before})
    kept.stepped({"step": 104, "time_s": time.time() + 1})
    (came,) = kept.seen.changes
    assert (came.unit, came.asked, came.real) == ("step", 100, 103)


def test_what_should_have_gone_and_stood_until_the_end_is_late(tmp_path: Path) -> None:
    kept = schedule(tmp_path, from_s=0.0, to_s=1.0)
    kept.keep(0.9)
    kept.seen.duration_s = 1.8
    kept.end()
    (found,) = judge_windows(kept.network.experiment, kept.seen)
    assert found.status == Status.UNKNOWN and "in force to 1.8 s: 0.800 s late" in found.text
    kept = schedule(tmp_path, from_s=5.0)
    kept.seen.duration_s = 1.8
    kept.end()
    assert kept.seen.changes == [] and "was never in force" in kept.seen.never[0]


def test_a_window_that_the_network_kept_while_the_harness_slept_was_there(tmp_path: Path) -> None:
    kept = schedule(tmp_path, Keeper, **SECONDS)
    assert kept.nap_s(0.5) == 0.5, "nobody has to wake for it"
    kept.keep(1.4)
    kept.seen.duration_s = 1.6
    kept.end()
    (found,) = judge_windows(kept.network.experiment, kept.seen)
    assert found.status == Status.VALID and "in force from 1 s to 1.25 s, by the kernel's clock" in found.text
    assert kept.seen.never == [] and all(kept.seen.rules.values()), "and what it lost is held against its pattern"


def test_a_window_that_the_network_was_told_of_too_late_is_unknown(tmp_path: Path) -> None:
    kept = schedule(tmp_path, Keeper, **SECONDS)
    kept.begin(time.monotonic() - 1.1)
    kept.keep(1.4)
    kept.seen.duration_s = 1.6
    kept.end()
    (found,) = judge_windows(kept.network.experiment, kept.seen)
    assert found.status == Status.UNKNOWN and re.search(r"in force from 1\.1\d* s to 1\.25 s", found.text)


def test_a_rule_that_steps_ask_for_stands_there_before_its_time_comes(tmp_path: Path) -> None:
    kept = schedule(tmp_path, Keeper, from_step=5, from_s=10.0)
    assert not any(kept.network.rules.values())
    kept.stepped({"step": 5, "time_s": time.time()})
    kept.keep(0.5)
    assert all(kept.network.rules.values()) and not any(kept.seen.rules.values())


@pytest.mark.parametrize(("step", "there"), [(99, False), (100, True), (109, True), (110, False)])
def test_steps_mean_the_same_whoever_keeps_windows_in_time(step: int, there: bool) -> None:
    """Whether the harness asks `Impair.active` or `rules_kept`."""
    here = (rules_kept(asked(**STEPS), seed=1, step=step), rules_in_force(asked(**STEPS), seed=1, step=step))
    assert [any(rules.values()) for rules in here] == [there, there]


def test_windows_behind_a_window_stay_and_those_behind_what_takes_all_do_not() -> None:
    impair = [{"profile": "loss_1"}, {"profile": "loss_5"}, {"profile": "loss_10", **SECONDS}]
    experiment = check(Experiment, {"name": "t", "impair": impair}, origin="test")
    for here in rules_kept(experiment, seed=1).values():
        assert [(rule.profile.name, rule.window) for rule in here] == [("loss_10", (1.0, 1.25)), ("loss_5", None)]
    for here in rules_in_force(experiment, seed=1, elapsed_s=1.1, kept=True).values():
        assert [rule.profile.name for rule in here] == ["loss_10"], "for now it takes all"


@pytest.mark.parametrize(("count", "kept"), [(20, True), (600, False)])
def test_more_windows_than_a_program_holds_are_switched_by_the_harness(count: int, kept: bool) -> None:
    impair = [{"profile": "loss_1", "from_s": n + 1.0, "to_s": n + 1.5} for n in range(count)]
    experiment = check(Experiment, {"name": "t", "topology": {"hosts": 2}, "impair": impair}, origin="test")
    rules = rules_ever(experiment, seed=0, kept=True)
    assert registry.keeps_time(registry.find("ebpf"), rules) is kept
    assert not registry.keeps_time(registry.find("cbpf"), rules)
    assert not registry.keeps_time(registry.find("relay"), rules)


@pytest.mark.netns
def test_a_change_that_came_late_at_one_host_of_eight_is_told(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = build(backend="cbpf", topology={"hosts": 8}, impair=[{"profile": "loss_5", **SECONDS}])
    folder = RunFolder(tmp_path / "run")
    folder.make()
    kept = Schedule(network=network, store=folder, seed=1, seen=Watched(), hear=lambda: None)
    late, real = network.star.ports[5], cbpf.put_filter

    def put_filter(switch: Any, point: Any, **what: Any) -> None:
        time.sleep(0.3 if point.port_index == late else 0.0)
        real(switch, point, **what)

    kept.keep(0.0)
    kept.begin(time.monotonic() - 1.0)
    monkeypatch.setattr(cbpf, "put_filter", put_filter)
    kept.keep(1.0)
    (came,) = kept.seen.changes
    assert came.real >= 1.3
    (found,) = judge_windows(network.experiment, kept.seen)
    assert found.status == Status.UNKNOWN and " s late (" in found.text


@pytest.mark.netns
def test_a_change_at_many_hosts_takes_two_looks_at_the_switch(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: two for each hook, each of them as long as there are hosts: 80 ms at 8, 650 at 32."""
    looks = []
    network = build(backend="cbpf", topology={"hosts": 4}, impair=[{"profile": "loss_5", "direction": "both"}])
    real = Look.now
    monkeypatch.setattr(Look, "now", lambda reader: looks.append(reader) or real(reader))
    changed = network.put(dict.fromkeys(network.rules, ()))
    assert len(changed) == 8 and len(looks) == 2


OPENS = {"to_s": 0.5}


@pytest.mark.parametrize(
    ("came", "status"), [(0.0, Status.VALID), (-0.02, Status.VALID), (-0.1, Status.UNKNOWN), (0.3, Status.UNKNOWN)]
)
def test_a_window_without_a_beginning_comes_with_the_clock(came: float, status: Status) -> None:
    """As it was: nobody had written down when it came."""
    change = Change(entry=0, came=True, unit="s", asked=0.0, real=came)
    (found,) = judge_windows(asked(**OPENS), Watched(changes=[change, *changes({"to_s": 0.5}, None, 0.501)]))
    assert found.status == status, found
    assert (f"in force from {came:.10g} s to 0.501 s" in found.text) is (status == Status.UNKNOWN)


def test_a_window_without_a_beginning_that_was_put_there_long_before_the_clock_began_is_unknown(tmp_path: Path) -> None:
    kept = schedule(tmp_path, **OPENS)
    (came,) = kept.seen.changes
    assert came.came and came.real <= 0
    kept = Schedule(network=NoNetwork(asked(**OPENS)), store=kept.store, seed=1, seen=Watched(), hear=lambda: None)
    kept.keep(0.0)
    kept.begin(time.monotonic() + 0.3)
    (found,) = judge_windows(kept.network.experiment, kept.seen)
    assert found.status == Status.UNKNOWN and " s early (0.025 s allowed)" in found.text


def test_a_network_that_was_told_late_that_a_window_opens_opened_it_late(tmp_path: Path) -> None:
    for late_s, status in ((0.0, Status.VALID), (0.3, Status.UNKNOWN)):
        kept = schedule(tmp_path, Keeper, from_s=0.0, to_s=20.0)
        kept.begin(time.monotonic() - 5 * late_s)
        kept.seen.duration_s = 30.0
        kept.keep(25.0)
        kept.end()
        (found,) = judge_windows(kept.network.experiment, kept.seen)
        assert found.status == status and "by the kernel's clock" in found.text, found


def test_before_the_clock_begins_no_window_in_time_is_open_and_all_else_is() -> None:
    impair = [{"profile": "loss_1"}, {"profile": "loss_5", "to_step": 3}, {"profile": "loss_10", "from_s": 0.0}]
    impair += [{"profile": "bursty_1", **OPENS}, {"profile": "bursty_5", "from_s": 0.0, **OPENS}]
    experiment = check(Experiment, {"name": "t", "impair": impair}, origin="test")
    assert [one.active(elapsed_s=-1.0, step=0) for one in experiment.impair] == [True, True, True, False, False]
    assert all(one.active(elapsed_s=0.0, step=0) for one in experiment.impair)


@pytest.mark.parametrize(("window", "probed"), [(OPENS, True), (SECONDS, False), ({"from_s": 2.0}, False)])
def test_the_kernel_opens_a_window_by_its_clock_and_for_probes(window: dict[str, Any], probed: bool) -> None:
    rule = rules_ever(asked(**window), seed=0, kept=True)[Hook(rank=0, direction="uplink")][0]

    def limits(began_ns: int | None) -> tuple[int, int]:
        return struct.unpack("<QQ", memory.window_memory(rule, began_ns))

    assert (limits(None)[0] == 0) is probed
    assert limits(memory.NEVER) == (memory.NEVER, memory.NEVER), "as it was: open since its probes"
    end = memory.NEVER if "to_s" not in window else 10**12 + round(window["to_s"] * 1e9)
    assert limits(10**12) == (10**12 + round(window.get("from_s", 0) * 1e9), end)


@pytest.mark.netns
@forms("backend", ["ebpf", "cbpf", "relay", pytest.param("netem", marks=pytest.mark.guest)], keep=2)
def test_what_is_sent_before_the_clock_begins_does_not_meet_a_window_without_a_beginning(
    build: Build, backend: str
) -> None:
    """As it was: it met it, and the run was unknown, or on many packets valid."""
    window = {"profile": {"name": "all", "why": "t", "loss": {"model": "iid", "percent": 100}}, "to_s": 600.0}
    network = build(backend=backend, topology={"hosts": 2})
    experiment = check(Experiment, {"name": "t", "topology": {"hosts": 2}, "impair": [window]}, origin="test")
    network.experiment, network.keeps_time = experiment, network.kind.keeps_time
    network.expect(rules_ever(experiment, seed=1, kept=network.keeps_time))
    network.put(rules_in_force(experiment, seed=1, kept=network.keeps_time))
    with open_socket(network, "h1") as receiver, open_socket(network, "h0") as sender:
        receiver.bind(("10.77.0.2", 5000))

        def arrive() -> bool:
            for _ in range(10):
                sender.sendto(b"x", ("10.77.0.2", 5000))
            receiver.settimeout(0.5)
            with suppress(TimeoutError):
                return all(receiver.recv(10) for _ in range(10))
            return False

        assert not arrive(), "probes meet it"
        hold_back(experiment, network, seed=1)
        network.restart()
        assert arrive() and not network.not_in_force()
        network.put(rules_in_force(experiment, seed=1, kept=network.keeps_time))
        network.begin(time.monotonic())
        assert not arrive() and not network.not_in_force()
