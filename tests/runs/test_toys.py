"""One idea, one file: a backend, a workload, a strategy, a coding, a suite, a table of a user's own, from a folder
outside the package; and programs beside a workload."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import left_behind
from tests.forked import LOSSBENCH, lossbench
from tests.forms import full

pytestmark = pytest.mark.netns

BACKEND = """
from dataclasses import replace
from lossbench.net.impair.ebpf import backend as ebpf

class Mine(ebpf.EbpfBackend):
    name = "mine"

KIND = replace(ebpf.KIND, name="mine", make=Mine)
"""
WORK = """
import os
from pathlib import Path
from lossbench import Door
door = Door.from_environment()
door.ready()
parent = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode().split(chr(0))
door.record("step", step=0)
if door.rank == 0:
    door.record("row", who="mine", cakes=3.0 + door.seed, oven=7.0, shown=["who", "cakes", "oven"])
door.record("summary", forked=int("lossbench.runs.launch.nursery" in parent))
"""
ABOUT = """
why = "bakes"
preload = ["decimal"]
[measures]
cakes = { better = "high", meaning = "baked in time" }
oven = { better = "low", column = "timing" }
"""
STRATEGY = """
from dataclasses import dataclass
from lossbench import sync

class Mine(sync.Strategy):
    name = "mine"

    @dataclass(frozen=True, kw_only=True)
    class Options:
        every: int = 1

    def _step(self):
        if self.steps % self.options.every == 0:
            self.channel.mean(self.flat.grads)
        self.optimize(self.optimizer.step)

class Rounded(sync.Around):
    def begin_scatter(self, values, **how):
        self.notes[:] = ["rounded"]
        return self.inner.begin_scatter(values.bfloat16().float(), **how)
"""
SUITE = """
why = "mine"
[topology]
hosts = 2
[[impair]]
profile = "loss_10"
[workload]
name = "my_work"
[probe]
packets = 4000
"""
TABLE = """
from lossbench.report.tables.table import Cell, Table

def cakes(found):
    lines = [[Cell(group.name), Cell(str(sum(v.number for v in group.values["cakes"])))] for group in found.groups]
    return Table("cakes", ["point", "sum"], lines)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    files = {
        "my_backend.py": BACKEND,
        "my_work.py": WORK,
        "my_work.workload.toml": ABOUT,
        "my_strategy.py": STRATEGY,
        "my_suite.toml": SUITE,
        "my_table.py": TABLE,
        "select.py": "raise SystemExit('a file of the current folder stood in for a module of Python')",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def ask(folder: Path, *arguments: str, real: bool = False) -> subprocess.CompletedProcess[str]:
    """`real`: with imports of its own, where select.py lies in the current folder; so are all under `make test-all`."""
    if real or os.environ.get("LOSSBENCH_REAL"):
        command = [LOSSBENCH[0], "-P", *LOSSBENCH[1:], *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250)
    else:
        done = lossbench(*arguments, cwd=folder)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def one_run(folder: Path, *arguments: str, real: bool = False) -> dict[str, Any]:
    done = ask(folder, "run", *arguments, "--json", real=real)
    assert done.stdout, done.stderr
    (one,) = json.loads(done.stdout)["summary"]
    return dict(one)


def test_a_suite_a_workload_with_its_columns_and_a_table_of_ones_own(own: Path) -> None:
    for seed in (0, 1):
        one = one_run(own, "my_suite.toml", "--set", f"first_seed={seed}", "--set", "seeds=1")
        assert one["columns"]["outcome"] == "valid", one["reasons"]
        assert one["rows"][0]["cakes"] == 3.0 + seed
        assert one["measures"]["cakes"]["better"] == "high" and one["measures"]["oven"]["column"] == "timing"
        assert one["workload"]["forked"] == 1, "it was forked from a process that had loaded what it declares"
    both = ask(own, "run", "my_suite.toml", "--seeds", "2")
    assert both.returncode in (0, 3), both.stderr  # times of a busy machine may be unknown
    for library in ("scipy", "matplotlib", "jinja2", "polars"):
        pytest.importorskip(library)
    shown = ask(own, "report", "latest", "--table", "my_table:cakes")
    assert "sum" in shown.stdout and "7.0" in shown.stdout, f"{shown.returncode}: {shown.stderr}\nbefore: {both.stderr}"
    wrong = ask(own, "report", "latest", "--table", "my_table:pies")
    assert wrong.returncode == 2 and "my_table has no 'pies'" in wrong.stderr


def test_a_backend_of_ones_own(own: Path) -> None:
    one = one_run(own, "proof", "--backend", "my_backend:KIND", "--set", "workload.options.seconds=0.4", real=True)
    assert one["backend"] == "my_backend:KIND" and one["verdict"] == "valid", one["reasons"]
    wrong = ask(own, "run", "proof", "--backend", "my_backend:Mine")
    assert wrong.returncode == 2 and len(wrong.stderr.strip().splitlines()) == 1


SHORT = ["--set", "workload.options.steps=3", "--set", "topology.hosts=2", "--set", "probe.packets=4000"]
SHORT += ["--set", "impair.0.profile=clean", "--set", "impair.0.direction=uplink"]


@pytest.mark.training
def test_a_strategy_of_ones_own(own: Path) -> None:
    one = one_run(
        own,
        "quickstart",
        *SHORT,
        "--set",
        "workload.options.strategy=my_strategy:Mine",
        "--set",
        "workload.options.strategy_options.every=2",
    )
    assert one["columns"]["outcome"] == "valid" and one["rows"][0]["strategy"] == "mine", one["reasons"]
    wrong = ask(own, "run", "quickstart", *SHORT, "--set", "workload.options.strategy=my_strategy:Nobody")
    assert wrong.returncode == 2 and "has no 'Nobody'" in wrong.stderr


@full
@pytest.mark.training
def test_a_coding_of_ones_own(own: Path) -> None:
    coded = one_run(
        own,
        "quickstart",
        *SHORT,
        "--set",
        "workload.options.strategy=rps",
        "--set",
        'workload.options.coding=["my_strategy:Rounded"]',
    )
    assert "rounded" in coded["rows"][0]["note"], coded


BESIDE = """
[topology]
hosts = 2
[[impair]]
profile = "loss_10"
[workload]
name = "my_main"
options = {{ seconds = {seconds} }}
[[beside]]
role = "noise"
command = ["sleep", "1000"]
barrier = false
hosts = ["h1"]
[[beside]]
role = "web"
name = "my_web"
foreground = {foreground}
[probe]
packets = 4000
"""
WEB = """
import os, signal, socket, time
from lossbench import Door
door = Door.from_environment()
assert os.environ["LOSSBENCH_ROLE"] == "web" and door.options == {}
assert socket.gethostname() == f"h{door.rank}" and door.world_size == 2
def last_words(*_):
    door.record("summary", total=42)
    raise SystemExit(0)
signal.signal(signal.SIGTERM, last_words)
door.samples("lat", [1.0, 2.0], unit="s", together=False)
taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
taken.bind((door.addresses[door.rank], door.port))
door.ready()
time.sleep(0.5)
door.record("summary", served=10 + door.rank, p99_ms=7.0, units={"served": "1/s"})
if os.environ.get("STAY"):
    time.sleep(900)
"""


MAIN = """
import socket, time
from lossbench import Door
door = Door.from_environment()
taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
taken.bind((door.addresses[door.rank], door.port))
door.samples("lat", [5.0, 6.0])
door.ready()
door.record("summary", role="owner", accuracy=0.9)
time.sleep(door.options["seconds"])
"""


@pytest.mark.parametrize(("foreground", "seconds"), [("true", 900), ("false", 1.5)])
def test_programs_beside_the_workload_have_roles_and_the_foreground_ends_the_run(
    own: Path, foreground: str, seconds: float
) -> None:
    (own / "my_web.py").write_text(WEB)
    (own / "my_main.py").write_text(MAIN)
    (own / "beside.toml").write_text(BESIDE.format(foreground=foreground, seconds=seconds))
    one = one_run(own, "beside.toml")
    assert one["columns"]["outcome"] == "valid", one["reasons"]
    assert one["workload"]["web.served"] == 10.5 and one["units"] == {"web.served": "1/s"}
    assert one["workload"]["accuracy"] == 0.9, "a field of the workload's own that is called role changes nothing"
    assert any("programs beside it send on the same links" in text for text in one["not_judged"])
    samples = sorted(path.name for path in Path(own, one["dir"], "samples").glob("*.f64"))
    assert samples == [f"{name}.rank-{rank}.f64" for name in ("lat", "web.lat") for rank in (0, 1)]
    plan = json.loads(Path(own, one["dir"]).parent.joinpath("suite.json").read_text())
    files = {Path(name).name for program in plan["sessions"][0]["programs"] for name in program["files"]}
    assert {"my_web.py", "my_main.py"} <= files, "what ran is recorded"
    assert one["duration_s"] < 60
    ended = ["web (on 2 hosts) ended before the run did"]
    assert one["warnings"] == ([] if foreground == "true" else ended), "who is gone early is said"
    assert one["reasons"]["outcome"][0].startswith("web ended" if foreground == "true" else "all ranks ended")
    logs = sorted(path.name for path in Path(own, one["dir"], "logs").iterdir())
    assert logs == ["noise-0.log", "rank-0.log", "rank-1.log", "web-0.log", "web-1.log"]
    assert left_behind() == []


def test_a_program_beside_that_dies_is_named(own: Path) -> None:
    (own / "my_web.py").write_text("raise SystemExit('out of flour')")
    (own / "my_main.py").write_text(MAIN)
    (own / "beside.toml").write_text(BESIDE.format(foreground="false", seconds=5))
    one = one_run(own, "beside.toml")
    assert one["columns"]["outcome"] == "failed"
    said = " ".join(one["reasons"]["outcome"])
    assert "web " in said and "out of flour" in said
    assert left_behind() == []


def test_what_a_program_says_when_it_is_told_to_end_is_heard(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAY", "1")
    (own / "my_web.py").write_text(WEB)
    (own / "my_main.py").write_text(MAIN)
    (own / "beside.toml").write_text(BESIDE.format(foreground="false", seconds=1.5))
    one = one_run(own, "beside.toml")
    assert one["columns"]["outcome"] == "valid" and one["workload"]["web.total"] == 42


def test_a_simulation_has_no_place_for_programs_beside_it(own: Path) -> None:
    (own / "beside.toml").write_text(BESIDE.format(foreground="false", seconds=1).replace("my_main", "training"))
    done = ask(
        own,
        "run",
        "beside.toml",
        "--backend",
        "simulated",
        "--set",
        "workload.ranks_per_process=0",
        "--set",
        "workload.options={}",
    )
    assert done.returncode == 4 and "no hosts for programs beside it; use --backend auto" in done.stderr


def test_a_mistake_in_a_users_file_is_one_line(own: Path) -> None:
    (own / "bad.py").write_text("def x(:")
    for arguments in (["run", "proof", "--backend", "bad:KIND"], ["run", "proof", "--backend", "no_such:KIND"]):
        done = ask(own, *arguments)
        assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1, done.stderr
