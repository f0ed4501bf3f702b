"""Suites that were killed go on, rows come again, and the view of a run in progress is true."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.test_command import write
from tests.forked import Command, begin, lossbench, start
from tests.forms import forms

pytestmark = pytest.mark.netns

TWELVE = """
[topology]
hosts = 2
[[impair]]
profile = "loss_10"
[workload]
name = "chatter"
options = { steps = 8, spacing_ms = 10 }
[probe]
packets = 2000
[sweep]
"workload.options.steps" = [6, 8, 10, 12]
"""


TWO = TWELVE.replace("[6, 8, 10, 12]", "[6, 8]")


@pytest.fixture(scope="module")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a finished run of two points with two seeds, and what it said."""
    folder = tmp_path_factory.mktemp("made")
    done = lossbench("run", write(folder, TWO), "--seeds", "2", "--out", str(folder / "out"))
    assert done.returncode == 0, done.stderr
    (suite,) = (folder / "out").iterdir()
    return suite, done.stderr


@pytest.fixture
def made(made_once: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(made_once[0], tmp_path / "out" / made_once[0].name))


def finished(folder: Path) -> list[int]:
    return sorted(int(path.parent.name) for path in folder.glob("[0-9]*/summary.json"))


def started(tmp_path: Path, file: str, *, done: int) -> tuple[Command, Path]:
    """When so many of its runs are finished."""
    child = begin("run", file, "--seeds", "3", "--out", str(tmp_path / "out"))
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        folders = list((tmp_path / "out").glob("*"))
        if folders and len(finished(folders[0])) >= done:
            return child, folders[0]
        time.sleep(0.02)
    raise AssertionError("the suite did not get going")


@forms("how", [signal.SIGKILL, signal.SIGINT])
def test_a_suite_of_twelve_killed_in_the_middle_ends_with_exactly_twelve(how: int, tmp_path: Path) -> None:
    file = write(tmp_path, TWELVE)
    child, folder = started(tmp_path, file, done=3)
    child.send_signal(how)
    child.wait(timeout=120)
    lossbench("clean")
    before = finished(folder)
    assert 3 <= len(before) < 12
    times = {number: (folder / f"{number:03d}" / "summary.json").stat().st_mtime_ns for number in before}
    (folder / f"{before[-1]:03d}" / "summary.json").write_text("{ damaged")  # as good as not finished
    done = lossbench("run", file, "--seeds", "3", "--out", str(tmp_path / "out"), "--resume", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["summary"]
    assert [(row["point"]["workload.options.steps"], row["seed"]) for row in rows] == [
        (steps, seed) for steps in (6, 8, 10, 12) for seed in range(3)
    ]
    assert finished(folder) == list(range(12)) and len(list((tmp_path / "out").iterdir())) == 1
    for number in before[:-1]:
        assert (folder / f"{number:03d}" / "summary.json").stat().st_mtime_ns == times[number], "run twice"
    assert len(json.loads((folder / "suite.json").read_text())["sessions"]) == 2


def test_only_what_was_planned_alike_is_resumed(tmp_path: Path, made: Path) -> None:
    asked = ("run", write(tmp_path, TWO), "--seeds", "2")
    done = lossbench(*asked, "--out", str(tmp_path / "empty"), "--resume")
    assert done.returncode == 2 and "nothing to resume" in done.stderr
    out = ("--out", str(made.parent))
    assert "nothing to resume" in lossbench(*asked, *out, "--resume").stderr  # it is finished
    before = (made / "suite.json").read_text()
    assert lossbench("run", str(made), "--resume").returncode == 0  # nothing to do
    assert (made / "suite.json").read_text() == before, "nobody worked on it"
    (made / "002" / "summary.json").unlink()
    stored = json.loads(before)
    (made / "suite.json").write_text(json.dumps({**stored, "suite": f"{stored['suite']}-replay"}))
    replayed = lossbench(*asked, *out, "--resume")
    assert "nothing to resume" in replayed.stderr, "a replay plans the same, and is another thing"
    (made / "suite.json").write_text(before)
    other = lossbench(*asked, *out, "--resume", "--set", "topology.hosts=3")
    assert other.returncode == 2 and "nothing to resume" in other.stderr
    assert "is a folder" in lossbench("run", str(made)).stderr
    assert lossbench("run", str(made), "--resume").returncode == 0
    assert finished(made) == [0, 1, 2, 3]


def test_a_suite_that_still_runs_is_not_resumed(tmp_path: Path) -> None:
    child, folder = started(tmp_path, write(tmp_path, TWELVE), done=1)
    done = lossbench("run", str(folder), "--resume")
    assert done.returncode == 2 and "is still being run" in done.stderr
    assert child.poll() is None, "the one that runs was not disturbed"
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=120)


def test_a_row_comes_again_with_the_same_seeds(tmp_path: Path, made: Path) -> None:
    done = lossbench("replay", "latest", "8", "--in", str(made.parent))
    assert (done.returncode, "the means agree within 10%" in done.stdout) in ((0, True), (3, False)), done.stdout
    assert done.returncode == 0 or "may differ by more than 10%" in done.stdout, done.stdout + done.stderr
    (new,) = made.parent.glob("*-replay_*")
    plan = json.loads((new / "suite.json").read_text())["plan"]
    assert [(one["point"]["workload.options.steps"], one["seed"]) for one in plan] == [(8, 0), (8, 1)]
    assert "6" in lossbench("report", "latest", "--in", str(made.parent)).stdout  # the whole suite, not the replay
    wrong = lossbench("replay", "latest", "typo", "--in", str(made.parent))
    assert wrong.returncode == 2 and "known:" in wrong.stderr


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one run."""
    folder = tmp_path_factory.mktemp("single")
    file = write(folder, TWELVE.replace("[6, 8, 10, 12]", "[8]"))
    assert lossbench("run", file, "--out", str(folder / "out")).returncode == 0
    (suite,) = (folder / "out").iterdir()
    return suite


def test_a_single_run_can_be_repeated_but_not_tested(single: Path) -> None:
    repeat = json.loads((single / "000" / "manifest.json").read_text())["repeat"].split()
    assert repeat[:2] == ["lossbench", "replay"]
    done = lossbench(*repeat[1:])
    assert done.returncode == 3 and "needs two valid seeds" in done.stdout, done.stderr


def test_the_manifest_says_how_it_was_made(single: Path) -> None:
    links = json.loads((single / "000" / "links.json").read_text())
    assert links["offloads"]["h0"]["eth0"]["tx-udp-segmentation"] is False and links["mtu"] == 1500
    row = json.loads((single / "000" / "proof.json").read_text())["rows"][0]
    assert sum(row["burst_counts"]) > 0 and abs(sum(row["burst_shares"]) - 1) < 1e-3
    git = json.loads((single / "000" / "manifest.json").read_text())["git"]
    assert not git.get("dirty") or (single / f"{git['diff_sha256']}.diff").stat().st_size > 0


def on_a_terminal(*arguments: str) -> str:
    """What a terminal of 80 columns is sent."""
    master, slave = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
    with os.fdopen(slave, "wb", buffering=0) as terminal:
        child = start("cli", ["lossbench", *arguments], output=terminal, environment=environment)
    out = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:
            break
        if not part:
            break
        out += part
    os.close(master)
    assert child.wait(timeout=120) == 0, out[-2000:]
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.decode())


@pytest.mark.wallclock
def test_a_terminal_shows_point_steps_and_what_the_network_loses(tmp_path: Path) -> None:
    file = write(tmp_path, TWO.replace("spacing_ms = 10", "spacing_ms = 400"))
    shown = on_a_terminal("run", file, "--out", str(tmp_path / "out"))
    assert "run 1 of 2" in shown and "6, seed 0" in shown and "stage 8 workload runs" in shown
    assert re.search(r"step [1-9]\d*.*steps/s", shown)
    assert re.search(r"network: \d+ of [1-9]\d* packets lost", shown)
    assert re.search(r"\d+ s left", shown)


def test_elsewhere_a_run_is_one_line(made_once: tuple[Path, str]) -> None:
    lines = [line for line in made_once[1].splitlines() if line.startswith("run ")]
    assert lines == [f"run {n + 1} of 4: {8 if n % 2 else 6}, seed {n // 2}" for n in range(4)]


def test_a_run_writes_what_ci_wants(tmp_path: Path) -> None:
    junit = tmp_path / "verdicts.xml"
    environment = {**os.environ, "GITHUB_STEP_SUMMARY": str(tmp_path / "step.md")}
    command = ["run", "proof", "--out", str(tmp_path / "out"), "--junit", str(junit), "--github-summary"]
    done = lossbench(*command, environment=environment)
    assert done.returncode == 0, done.stderr
    assert 'tests="1" failures="0" errors="0"' in junit.read_text()
    assert "lossbench proof: valid" in (tmp_path / "step.md").read_text()


def test_the_run_path_loads_no_report_library(tmp_path: Path) -> None:
    """`lossbench run` must work where the extra `report` is not installed."""
    code = (
        "import importlib.util, sys\n"
        "heavy, found = ('scipy', 'matplotlib', 'polars', 'jinja2'), importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name in heavy else found(name, *rest)\n"
        "class Refuse:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.split('.')[0] in heavy: raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from lossbench.cli.main import main\n"
        "sys.argv = ['lossbench', 'run', 'proof', '--seeds', '2', '--set', 'probe.packets=4000']\n"
        f"sys.argv += ['--out', {str(tmp_path)!r}]\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "asked and proven" in done.stdout and "verdict: valid" in done.stdout


@pytest.mark.parametrize("damage", ['{"verdict": "valid"}', "null", "OTHER POINT"])
def test_a_summary_that_is_not_the_planned_runs_own_is_run_again(damage: str, made: Path) -> None:
    text = (made / "000" / "summary.json").read_text() if damage == "OTHER POINT" else damage
    (made / "002" / "summary.json").write_text(text)
    done = lossbench("run", str(made), "--resume", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["summary"]
    assert [row["point"]["workload.options.steps"] for row in rows] == [6, 6, 8, 8]


@pytest.mark.parametrize("damage", [{"plan": []}, {"plan": None}, {"sessions": 5}, {"format": 9}, {"typo": 1}])
def test_a_damaged_plan_is_one_line(damage: dict[str, object], made: Path) -> None:
    plan = json.loads((made / "suite.json").read_text())
    if "typo" in damage:
        plan["plan"][0]["experiment"]["typo"] = 1
    else:
        plan |= damage
    (made / "suite.json").write_text(json.dumps(plan))
    done = lossbench("run", str(made), "--resume")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.wallclock
def test_odd_records_do_not_end_a_run_on_a_terminal(tmp_path: Path) -> None:
    code = (
        "from lossbench.contract import Door; import time; d = Door.from_environment(); d.ready()\n"
        "for n in range(8): d.record('step', step=n, loss=None, steps='10', arrived_1='x'); time.sleep(0.2)\n"
    )
    (tmp_path / "odd.py").write_text(code)
    command = json.dumps([sys.executable, str(tmp_path / "odd.py")])
    file = write(tmp_path, f"[topology]\nhosts = 2\n[workload]\nsilent = true\ncommand = {command}\n")
    assert "verdict: valid" in on_a_terminal("run", file, "--out", str(tmp_path / "out"))


def test_targets_are_checked_before_anything_runs(tmp_path: Path) -> None:
    for options, words in ((["--html", str(tmp_path)], "is a folder"), (["--github-summary"], "is not set")):
        environment = {k: v for k, v in os.environ.items() if k != "GITHUB_STEP_SUMMARY"}
        done = lossbench("run", "proof", "--out", str(tmp_path / "out"), *options, environment=environment)
        assert done.returncode == 2 and words in done.stderr and not (tmp_path / "out").exists()
