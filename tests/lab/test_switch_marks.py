"""Whether a switch prioritises by marks shows in `switch-marks`: the star that machines hang on is their switch, once
with strict priority by DSCP and once with one queue for all. Without an sshd by a stand-in for ssh."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.forms import full
from tests.lab.machines import machines, missing

pytestmark = [full, pytest.mark.netns]
CLASSES = ({"name": "web", "dscp": 18}, {"name": "rest"})
MOST = 0.75  # of learning that is left to it beside a service that goes first


@pytest.mark.quiet("how much learning gets through is measured")
def test_marks_make_a_difference_where_the_switch_prioritises_and_none_where_it_does_not(tmp_path: Path) -> None:
    prioritised, shared = kept(tmp_path / "strict", 1.0), kept(tmp_path / "alike", 0.0)
    print(f"learning with a mark of its own, of what it gets with one for both: {prioritised:.2f}, {shared:.2f}")
    assert prioritised < MOST < shared, f"of learning with one mark for both: {prioritised:.2f}, {shared:.2f}"


def kept(folder: Path, priority: float) -> float:
    """What learning got through with marks of their own, against one mark for both."""
    folder.mkdir()
    switch = {"rate_mbit": 20.0, "classes": CLASSES, "priority": priority, "buffer_kb": 64}
    with machines(folder, count=3, ssh=missing() is None, **switch) as lab:
        smaller = ["--set", "workload.options.mbit=90", "--set", "beside.1.options.seconds=6"]
        asked = ["run", "switch-marks", "--lab", str(lab.file), *smaller]
        found = json.loads(lab.lossbench(*asked, "--out", str(folder / "runs"), "--json").stdout)
        arms = {one["point"]["arm"]: Path(one["dir"]) for one in found["summary"]}
        assert all(one["columns"]["fault"] == "valid" for one in found["summary"])
        one, own = (arrived(arms[name]) for name in ("one mark for both", "marks of their own"))
        return own / one


def arrived(run: Path) -> int:
    """Datagrams of learning that came, on all machines."""
    lines = "".join(one.read_text() for one in (run / "records").glob("*.jsonl")).splitlines()
    records = [json.loads(line) for line in lines]
    return sum(int(one["received"]) for one in records if isinstance(one.get("received"), int) and "offered" in one)
