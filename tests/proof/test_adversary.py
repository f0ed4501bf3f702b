"""A dozen deeds of the adversary, each done to a run; the soak of hundreds is `python tests/bench/adversary.py`."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyroute2.netlink.exceptions import NetlinkError

from lossbench.net.impair import registry
from lossbench.net.kernel import Kernel
from tests.bench import adversary
from tests.forms import forms, full

pytestmark = pytest.mark.netns
CASES = [
    ("ebpf", "filter_ahead", "chatter"),
    pytest.param("ebpf", "tcx_ahead", "copy", marks=full),
    pytest.param("ebpf", "less_loss", "download", marks=full),
    pytest.param("ebpf", "shorter_bursts", "copy", marks=full),
    pytest.param("ebpf", "no_duplicates", "download", marks=full),
    pytest.param("ebpf", "no_damage", "copy", marks=full),
    pytest.param("ebpf", "change_rate", "chatter", marks=full),
    ("ebpf", "remove_rate", "copy"),
    ("ebpf", "shift_window", "chatter"),
    pytest.param("ebpf", "late_for_a_step", "chatter", marks=full),
    pytest.param("ebpf", "another_match", "copy", marks=full),
    pytest.param("ebpf", "another_pair", "download", marks=full),
    pytest.param("ebpf", "filter_ahead_of_a_downlink", "copy", marks=full),
    pytest.param("ebpf", "around_the_fault", "copy", marks=full),
    pytest.param("ebpf", "host_drops", "download", marks=full),
    pytest.param("ebpf", "host_program", "copy", marks=full),
    pytest.param("ebpf", "host_address", "copy", marks=full),
    pytest.param("ebpf", "another_neighbour", "copy", marks=full),
    pytest.param("ebpf", "link_of_its_own", "copy", marks=full),
    pytest.param("ebpf", "host_mtu", "copy", marks=full),
    pytest.param("ebpf", "longer_queue", "copy", marks=full),
    ("ebpf", "two_rails", "rails"),
    pytest.param("ebpf", "second_path", "multipath", marks=full),
    pytest.param("ebpf", "raw_around_the_fault", "copy", marks=full),
    pytest.param("ebpf", "past_the_rate", "copy", marks=full),
    pytest.param("ebpf", "large_datagrams", "copy", marks=full),
    ("ebpf", "flood_a_port", "chatter"),
    ("ebpf", "another_mtu", "chatter"),
    pytest.param("ebpf", "offloads_on", "copy", marks=full),
    pytest.param("cbpf", "filter_ahead", "chatter", marks=full),
    pytest.param("cbpf", "remove_clsact", "chatter", marks=full),
    pytest.param("cbpf", "late_for_a_second", "copy", marks=full),
    pytest.param("cbpf", "another_match", "download", marks=full),
    ("cbpf", "fault_away_for_a_moment", "chatter"),
    ("relay", "kill_the_wire", "chatter"),
    pytest.param("relay", "stop_the_wire", "copy", marks=full),
    pytest.param("relay", "wire_without_luck", "copy", marks=full),
    pytest.param("relay", "wire_that_nothing_overtakes", "chatter", marks=full),
    pytest.param("relay", "late_wire", "chatter", marks=full),
    pytest.param("ebpf", "steal_cpu", "chatter", marks=pytest.mark.wallclock),
    pytest.param("netem", "filter_ahead", "chatter", marks=pytest.mark.guest),
    pytest.param("netem", "fault_away_for_a_moment", "chatter", marks=pytest.mark.guest),
    pytest.param("netem", "flood_a_port", "chatter", marks=pytest.mark.guest),
    pytest.param("netem", "less_loss_for_a_moment", "copy", marks=pytest.mark.guest),
    pytest.param("netem", "less_loss", "chatter", marks=pytest.mark.guest),
    pytest.param("netem", "shorter_bursts", "chatter", marks=pytest.mark.guest),
    pytest.param("netem", "another_delay", "chatter", marks=pytest.mark.guest),
    pytest.param("netem", "no_jitter", "chatter", marks=pytest.mark.guest),
    pytest.param("netem", "no_overtaking", "chatter", marks=pytest.mark.guest),
    pytest.param("netem", "no_duplicates", "chatter", marks=pytest.mark.guest),
    pytest.param("netem", "no_damage", "chatter", marks=pytest.mark.guest),
    pytest.param("netem", "late_for_a_second", "chatter", marks=pytest.mark.guest),
    pytest.param("netem", "another_match", "chatter", marks=pytest.mark.guest),
    pytest.param("netem", "another_pair", "chatter", marks=pytest.mark.guest),
    pytest.param("edt", "filter_ahead", "chatter", marks=pytest.mark.guest),
    pytest.param("edt", "another_queue", "chatter", marks=pytest.mark.guest),
]


@pytest.mark.parametrize(("backend", "deed", "talks"), CASES)
def test_a_run_that_was_touched_is_never_valid_in_the_column_concerned(
    tmp_path: Path, backend: str, deed: str, talks: str
) -> None:
    reason = registry.able(Kernel.tried())[backend]
    if reason is not None:
        pytest.skip(f"{backend}: {reason}")
    if deed == "second_path" and deed not in adversary.DEEDS:
        pytest.skip("this kernel has no MPTCP")
    done = adversary.DEEDS[deed]
    summary = adversary.run_with(done, backend, seed=5, folder=tmp_path, talks=talks)
    assert not adversary.wrong(done, summary)
    assert adversary.decided(done, summary["columns"], summary["reasons"]), summary["reasons"]


@forms(
    "backend, of, beside, talks",
    [
        ("ebpf", "loss", "nothing", "chatter"),
        ("cbpf", "loss", "nothing", "chatter"),
        ("ebpf", "windows in time", "multicast", "copy"),
        ("ebpf", "bursts", "multicast", "chatter"),
        ("ebpf", "pairs", "busy", "download"),
        ("relay", "delay", "nothing", "download"),
        ("relay", "jitter", "nothing", "copy"),
        ("relay", "reordering", "nothing", "chatter"),
    ],
)
def test_a_run_that_was_left_alone_is_valid(tmp_path: Path, backend: str, of: str, beside: str, talks: str) -> None:
    (done,) = [one for one in adversary.honest(of) if one.name == beside]
    said = adversary.wrong(done, adversary.run_with(done, backend, seed=6, folder=tmp_path, talks=talks))
    assert not said


def test_a_run_that_must_be_valid_is_not_ended_by_the_adversarys_impatience(tmp_path: Path) -> None:
    """As it was: a copy through bursts over relay on a busy machine ended after a minute, as *failed*."""
    for done in (adversary.DEEDS["kill_the_wire"], adversary.DEEDS["late_wire"], *adversary.honest("bursts")):
        asked = adversary.experiment("relay", "bursts", "copy", seed=1, folder=tmp_path, limit_s=done.limit_s)
        limit = asked["workload"]["time_limit_s"]
        assert limit < adversary.PATIENCE_S and (limit > 60) is (done.voids == ""), done.name


@pytest.mark.parametrize("status", [0, 1])
def test_a_worker_that_crashed_is_not_right(
    status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it was: with all of them gone there was no wrong verdict, and the exit status was 0."""
    child = SimpleNamespace(wait=lambda: status, poll=lambda: status)
    monkeypatch.setattr(adversary, "subprocess", SimpleNamespace(Popen=lambda *_, **__: child))
    assert adversary.side_by_side(argparse.Namespace(workers=2, until=0.0)) is (status == 0)
    assert capsys.readouterr().out.count("ended with status 1") == 2 * status
    assert not adversary.show([], ["ebpf"])


@pytest.mark.parametrize("error", [StopIteration(), IndexError("nothing there"), NetlinkError(19)])
def test_a_run_without_a_verdict_is_wrong_whatever_ended_it(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: what an act did not find in the kernel ended the worker, and all that it had still to do."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(adversary, "run_with", fail)
    draw = adversary.Draw(adversary.DEEDS["filter_ahead"], "ebpf", "chatter")
    scored = adversary.tried(draw, seed=1, number=0)
    assert "no verdict" in scored.wrong and not adversary.show([scored], ["ebpf"])


def test_a_fault_that_is_unknown_without_a_reason_is_not_excused_as_late() -> None:
    (done,) = [one for one in adversary.honest("windows in steps") if one.name == "nothing"]
    columns = {"fault": "unknown", "timing": "unknown", "outcome": "valid"}
    summary = {"backend": "ebpf", "columns": columns, "reasons": {"fault": []}}
    assert "false unknown" in adversary.wrong(done, summary)
    assert not adversary.wrong(done, {**summary, "reasons": {"fault": ["a rule came 1 s late (step 3)"]}})


def test_who_is_late_on_a_quiet_machine_is_not_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: of those that keep a window " late (" was always true, and never a false alarm."""
    monkeypatch.setattr(adversary.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    (done,) = [one for one in adversary.honest("windows in steps") if one.name == "nothing"]
    columns = {"fault": "unknown", "timing": "valid", "outcome": "valid"}
    summary = {"backend": "ebpf", "columns": columns, "reasons": {"fault": ["a rule came 1 s late (step 3)"]}}
    assert "false unknown" in adversary.wrong(done, summary)


def test_a_touched_run_that_is_doubted_for_something_else_is_not_decided(capsys: pytest.CaptureFixture[str]) -> None:
    """As it was: a wire that is late on a busy machine made every deed of relay's right."""
    stored = {"seed": 1, "of": "MTU", "backend": "relay", "talks": "copy", "left_alone": False, "wrong": ""}
    stored |= {"number": 0, "load": 9.0, "commit": "", "deed": "host_mtu", "columns": {"fault": "unknown"}}
    late = "h0 uplink: 5% of 900 packets left about 44 ms late or more (22.5 allowed); 10 ms were asked"
    heard = "h1 eth0: MTU 900 during the run"
    alike = [adversary.Scored(**stored, reasons={"fault": reasons}) for reasons in ([late], [late, heard])]
    assert [one.undecided for one in alike] == [True, False]
    assert adversary.show(alike, ["relay"])
    assert "| relay | 2 | 0 | 1 | 0 | 0 |" in capsys.readouterr().out


def test_every_deed_names_the_words_that_tell_of_it() -> None:
    assert not [deed.name for deed in adversary.DEEDS.values() if bool(deed.voids) != bool(deed.says)]
