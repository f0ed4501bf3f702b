"""A dozen deeds of the adversary, each done to a run; the soak of hundreds is `python tests/bench/adversary.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    pytest.param("ebpf", "link_of_its_own", "copy", marks=full),
    pytest.param("ebpf", "host_mtu", "copy", marks=full),
    pytest.param("ebpf", "longer_queue", "copy", marks=full),
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
    pytest.param("relay", "late_wire", "chatter", marks=full),
    pytest.param("ebpf", "steal_cpu", "chatter", marks=pytest.mark.wallclock),
    pytest.param("netem", "filter_ahead", "chatter", marks=pytest.mark.guest),
    pytest.param("netem", "fault_away_for_a_moment", "chatter", marks=pytest.mark.guest),
    pytest.param("netem", "flood_a_port", "chatter", marks=pytest.mark.guest),
    pytest.param("edt", "filter_ahead", "chatter", marks=pytest.mark.guest),
]


@pytest.mark.parametrize(("backend", "deed", "talks"), CASES)
def test_a_run_that_was_touched_is_never_valid_in_the_column_concerned(
    tmp_path: Path, backend: str, deed: str, talks: str
) -> None:
    reason = registry.able(Kernel.tried())[backend]
    if reason is not None:
        pytest.skip(f"{backend}: {reason}")
    done = adversary.DEEDS[deed]
    said = adversary.wrong(done, adversary.run_with(done, backend, seed=5, folder=tmp_path, talks=talks))
    assert not said


@forms(
    "backend, of, beside, talks",
    [
        ("ebpf", "loss", "nothing", "chatter"),
        ("cbpf", "loss", "nothing", "chatter"),
        ("ebpf", "windows in time", "multicast", "copy"),
        ("ebpf", "bursts", "multicast", "chatter"),
        ("ebpf", "pairs", "busy", "download"),
        ("relay", "delay", "nothing", "download"),
    ],
)
def test_a_run_that_was_left_alone_is_valid(tmp_path: Path, backend: str, of: str, beside: str, talks: str) -> None:
    (done,) = [one for one in adversary.honest(of) if one.name == beside]
    said = adversary.wrong(done, adversary.run_with(done, backend, seed=6, folder=tmp_path, talks=talks))
    assert not said
