"""A service beside learning on a real network: classes, roles, verdicts, programs that come, go and die."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.forked import lossbench
from tests.forms import full

pytestmark = pytest.mark.netns

EXPERIMENT = """
name = "beside"
[topology]
hosts = 4
rate_mbit = 20
family = "ipv4"
[shaping]
priority = {priority}
buffer_kb = 60
classes = [{{ name = "web", dscp = 18, buffer_percent = 60 }}, {{ name = "learning", dscp = 8, rest = true }}]
[[impair]]
profile = "clean"
[probe]
packets = 400
[workload]
name = "replay"
traffic_class = "learning"
time_limit_s = 90
options = {{ mbit = 40, model_mb = 0.5 }}
[[beside]]
role = "server"
name = "web.server"
traffic_class = "web"
options = {{ server = "builtin" }}
[[beside]]
role = "web"
name = "web"
traffic_class = "web"
foreground = true
options = {{ rate = 40, seconds = {seconds} }}
{more}
"""


def run(folder: Path, *arguments: str, **keys: Any) -> dict[str, Any]:
    text = EXPERIMENT.format(**({"priority": 1, "seconds": 6, "more": ""} | keys))
    (folder / "beside.toml").write_text(text)
    done = lossbench("run", "beside.toml", "--json", *arguments, cwd=folder)
    assert done.stdout, done.stderr
    (one,) = json.loads(done.stdout)["summary"]
    return dict(one)


def row_with(one: dict[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in one["rows"] if name in row)


def test_a_class_loses_what_its_program_misses_to_the_packet(tmp_path: Path) -> None:
    one = run(tmp_path)
    assert one["columns"]["fault"] == "valid" and one["columns"]["outcome"] == "valid", one["reasons"]
    learning = row_with(one, "learning_loss")
    missing, said = learning["missing"], one["reasons"]["fault"]
    misses = f"the workload misses {missing} of {learning['packets']} datagrams"
    assert f"{misses}, the queues of class 'learning' lost {missing}" in said, said
    assert learning["missing"] > 100, "bursts at the links' rate beside a service must lose some"
    web = row_with(one, "web.mean_ms")
    assert web["web.n"] + web["web.warm_up"] > 150
    assert set(one["roles"]) == {"", "server", "web"} and one["roles"]["web"]["outcome"] == "valid"
    queues = [json.loads(line) for line in Path(tmp_path, one["dir"], "queues.jsonl").read_text().splitlines()]
    backlog = [link["learning"] for look in queues for link in look["backlog_bytes"].values()]
    assert max(backlog) > 0, "backlog of each class is kept over time"


@full
def test_every_arm_gets_the_same_requests_and_one_queue_for_all_is_slower(tmp_path: Path) -> None:
    arms = [run(tmp_path, priority=priority) for priority in (0, 1)]
    asked, due = [], []
    for one in arms:
        assert one["columns"]["outcome"] == "valid", one["reasons"]
        records = Path(tmp_path, one["dir"], "records")
        lines = [line for path in sorted(records.glob("web-*")) for line in path.read_text().splitlines()]
        asked.append([record["sent"] for line in lines if (record := json.loads(line))["kind"] == "requests"])
        samples = Path(tmp_path, one["dir"], "samples")
        due.append(np.sort(np.concatenate([np.fromfile(path) for path in samples.glob("web.at_s.rank-*.f64")])))
    assert asked[0] == asked[1] and sum(asked[0]) > 150
    assert np.array_equal(*due), "to the nanosecond, whatever became of them"
    shared, strict = (row_with(one, "web.mean_ms")["web.mean_ms"] for one in arms)
    assert strict < shared, (strict, shared)
    assert any("in a queue that it shares" in text for text in arms[0]["reasons"]["fault"]), arms[0]["reasons"]


COMES_AND_GOES = """
[[beside]]
role = "noise"
command = ["sh", "-c", "date +%s%N; trap 'date +%s%N; exit 3' TERM; while true; do sleep 0.1; done"]
barrier = false
hosts = ["h1"]
from_s = 1.0
to_s = 2.5
"""


@full
def test_a_program_comes_and_goes_at_its_time_and_its_end_is_no_death(tmp_path: Path) -> None:
    one = run(tmp_path, seconds=12, more=COMES_AND_GOES)
    assert one["columns"]["outcome"] == "valid", one["reasons"]
    said = Path(tmp_path, one["dir"], "logs", "noise-0.log").read_text().split()
    came, went = (int(word) for word in said if word.isdecimal())
    assert 1.0 <= (went - came) / 1e9 < 8, "the run takes twelve seconds and more"
    assert not any("noise" in text for text in one["warnings"]), "it was told to end"


DIES = """
[[beside]]
role = "noise"
command = ["sh", "-c", "sleep 1; echo I have had enough; exit 7"]
barrier = false
hosts = ["h2"]
"""


@full
def test_a_program_that_dies_ends_the_run_with_its_last_lines(tmp_path: Path) -> None:
    one = run(tmp_path, seconds=30, more=DIES)
    assert one["columns"]["outcome"] == "failed" and one["duration_s"] < 25
    assert any(
        "noise 0 ended with status 7" in text and "I have had enough" in text for text in one["reasons"]["outcome"]
    )


def test_a_wrong_option_of_a_service_is_said_before_anything_is_built(tmp_path: Path) -> None:
    text = EXPERIMENT.format(priority=1, seconds=5, more="").replace("rate = 40, seconds", "rat = 40, seconds")
    (tmp_path / "beside.toml").write_text(text)
    done = lossbench("run", "beside.toml", cwd=tmp_path)
    assert done.returncode == 2 and "no option 'rat'" in done.stderr and "Traceback" not in done.stderr
