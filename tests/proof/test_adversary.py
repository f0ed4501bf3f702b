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
    ("ebpf", "filter_ahead"),
    pytest.param("ebpf", "tcx_ahead", marks=full),
    pytest.param("ebpf", "change_rate", marks=full),
    ("ebpf", "remove_rate"),
    ("ebpf", "flood_a_port"),
    ("ebpf", "another_mtu"),
    pytest.param("cbpf", "filter_ahead", marks=full),
    pytest.param("cbpf", "remove_clsact", marks=full),
    ("cbpf", "fault_away_for_a_moment"),
    ("relay", "kill_the_wire"),
    pytest.param("relay", "late_wire", marks=full),
    pytest.param("ebpf", "steal_cpu", marks=pytest.mark.wallclock),
    pytest.param("netem", "filter_ahead", marks=pytest.mark.guest),
    pytest.param("netem", "fault_away_for_a_moment", marks=pytest.mark.guest),
    pytest.param("netem", "flood_a_port", marks=pytest.mark.guest),
    pytest.param("edt", "filter_ahead", marks=pytest.mark.guest),
]


@pytest.mark.parametrize(("backend", "deed"), CASES)
def test_a_run_that_was_touched_is_never_valid_in_the_column_concerned(tmp_path: Path, backend: str, deed: str) -> None:
    reason = registry.able(Kernel.tried())[backend]
    if reason is not None:
        pytest.skip(f"{backend}: {reason}")
    done = adversary.DEEDS[deed]
    said = adversary.wrong(done, adversary.run_with(done, backend, seed=5, folder=tmp_path))
    assert not said


@forms("backend", ["ebpf", "cbpf"])
def test_a_run_that_was_left_alone_is_valid(tmp_path: Path, backend: str) -> None:
    done = adversary.UNTOUCHED
    said = adversary.wrong(done, adversary.run_with(done, backend, seed=6, folder=tmp_path))
    assert not said
