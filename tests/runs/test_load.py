"""What a run may use of the machine, and whether something held it back."""

from __future__ import annotations

from pathlib import Path

import pytest

from lossbench.runs import load


def test_what_starting_up_took_is_not_the_workloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sample contained everything since the watch was made: seconds of imports."""
    times = iter([(1000, 0), (1100, 90), (1200, 140)])
    monkeypatch.setattr(load, "_cpu_times", lambda _: next(times))
    watched = load.Load()
    watched.begin()
    watched.sample()
    watched.sample()
    assert watched.busy == pytest.approx([0.1, 0.5])


def test_only_cores_that_may_be_used_count(monkeypatch: pytest.MonkeyPatch) -> None:
    stat = (
        "cpu 9 9 9 9 9 9 9 9 0 0\ncpu0 50 0 0 50 0 0 0 0 0 0\ncpu1 0 0 0 100 0 0 0 0 0 0\ncpu10 7 0 0 0 0 0 0 0 0 0\n"
    )
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: stat)
    assert load._cpu_times({0}) == (100, 50) and load._cpu_times({0, 1}) == (200, 150)


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [("nr_throttled 3\nthrottled_usec 2500\n", 2500), ("throttled_time 7000000\n", 7000), ("nothing\n", 0), ("", 0)],
)
def test_both_kinds_of_control_groups_tell_how_long_they_held_back(
    text: str, microseconds: int, tmp_path: Path
) -> None:
    (tmp_path / "cpu.stat").write_text(text)
    assert load._of_group(tmp_path / "cpu.stat") == microseconds
    assert load._of_group(tmp_path / "none") == 0
