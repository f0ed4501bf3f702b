"""Every example does what it says, shortened."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lossbench.spec import profile
from tests.forms import full

EXAMPLES = Path(__file__).parents[2] / "examples"
LOSSBENCH = [sys.executable, "-m", "lossbench.cli.main"]


def run(folder: Path, *words: str, cwd: Path | None = None) -> dict[str, Any]:
    command = [*LOSSBENCH, "run", "--json", "--out", str(folder), *words]
    done = subprocess.run(command, cwd=cwd or folder, capture_output=True, text=True, timeout=400)
    assert done.stdout, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.training
@pytest.mark.netns
@pytest.mark.parametrize("name", ["ddp.py", "lossy_ddp.py", "fsdp2.py"])
def test_it_runs_as_it_is_and_loses_packets(tmp_path: Path, name: str) -> None:
    """The shortest form of the next one: no clean network beside it."""
    found = run(tmp_path, "--hosts", "2", "--sweep", "loss=5", "--", "python", str(EXAMPLES / name), "10")
    (one,) = found["summary"]
    assert one["columns"]["outcome"] == "valid" and one["columns"]["fault"] == "valid", json.dumps(
        one["reasons"], indent=1
    )
    assert one["workload"]["lost_percent"] > 0.5 and one["workload"]["packets"] > 100


@full
@pytest.mark.training
@pytest.mark.netns
@pytest.mark.parametrize("name", ["ddp.py", "lossy_ddp.py", "fsdp2.py"])
def test_a_training_script_runs_as_it_is(tmp_path: Path, name: str) -> None:
    found = run(tmp_path, "--hosts", "2", "--loss", "3%", "--", "python", str(EXAMPLES / name), "20")
    for one in found["summary"]:
        assert one["columns"]["outcome"] == "valid" and one["columns"]["fault"] == "valid", one["reasons"]
    clean, lossy = (one["workload"] for one in found["summary"])
    assert clean["lost_percent"] == 0 and lossy["lost_percent"] > 0.5 and lossy["packets"] > 100


def test_ddp_and_its_lossy_sister_differ_in_an_import_and_a_word() -> None:
    texts = [(EXAMPLES / name).read_text().splitlines() for name in ("ddp.py", "lossy_ddp.py")]
    assert len(set(texts[1]) - set(texts[0])) == 3  # and what they say of themselves


@full
@pytest.mark.training
@pytest.mark.netns
def test_the_trainers_columns_are_in_the_table_and_it_runs_alone_too(tmp_path: Path) -> None:
    script = str(EXAMPLES / "trainer.py")
    found = run(tmp_path, "--hosts", "2", "--sweep", "loss=0,2", "--", "python", script, "--steps", "15")
    for one in found["summary"]:
        assert one["workload"]["final_loss"] > 0 and one["units"]["steps_s"] == "1/s"
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    subprocess.run([sys.executable, script, "--steps", "12"], env={**os.environ, **alone}, check=True, timeout=100)


@pytest.mark.training
def test_the_trainers_final_loss_is_a_mean_of_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: a tenth of the sum, also of three steps."""
    said: dict[str, Any] = {}
    monkeypatch.setattr("lossbench.summary", said.update)
    trainer = runpy.run_path(str(EXAMPLES / "trainer.py"))
    trainer["LossbenchCallback"]().on_train_end(SimpleNamespace(step=3), [1.0, 2.0, 3.0], 1.0)
    assert said["final_loss"] == 2.0


@pytest.mark.netns
def test_iperf3_in_a_block_of_python() -> None:
    if shutil.which("iperf3") is None:
        pytest.skip("needs iperf3 (apt-get install iperf3)")
    if os.geteuid():
        pytest.skip("needs root")
    done = subprocess.run([sys.executable, str(EXAMPLES / "iperf3.py")], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    clean, lossy = re.findall(r"(\d+) of \d+ packets", done.stdout)
    assert clean == "0" and int(lossy) > 0


@pytest.mark.training
@pytest.mark.netns
def test_a_strategy_of_ones_own_stands_in_the_table(tmp_path: Path) -> None:
    short = ["--set", "workload.options.steps=12", "--set", "topology.hosts=2", "--set", "probe.packets=4000"]
    found = run(tmp_path, "my_strategy.toml", *short, cwd=EXAMPLES)
    names = [one["rows"][0]["strategy"] for one in found["summary"]]
    assert names == ["reliable", "rps", "sometimes"]


def numbered(folder: Path, numbers: Iterable[int]) -> Path:
    """A pcap of UDP packets with these numbers in it."""
    raw = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
    for number in numbers:
        payload = bytes(8) + struct.pack("!I", number)
        udp = struct.pack("!HHHH", 9, 5201, 8 + len(payload), 0) + payload
        frame = bytes(12) + b"\x08\x00" + bytes([0x45]) + bytes(8) + bytes([17]) + bytes(10) + udp
        raw += struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame
    (folder / "x.pcap").write_bytes(raw)
    return folder / "x.pcap"


def test_a_capture_becomes_a_condition(tmp_path: Path) -> None:
    script = [sys.executable, str(EXAMPLES / "pcap_to_profile.py"), str(numbered(tmp_path, (0, 1, 2, 5, 6, 9)))]
    (tmp_path / "mine.toml").write_text(subprocess.check_output(script, text=True))
    found = profile.load(tmp_path / "mine.toml")
    assert getattr(found.loss, "bits", "") == "0001100110"


def test_a_capture_that_is_no_trace_is_named(tmp_path: Path) -> None:
    """As it was: of pcapng "no numbered UDP packets", and one stray number took all memory."""
    for raw, said in ((b"\n\r\r\n" + bytes(60), "is pcapng"), (b"", "--offset 8")):
        path = numbered(tmp_path, (0, 1, 4_000_000_000))
        path.write_bytes(raw or path.read_bytes())
        script = [sys.executable, str(EXAMPLES / "pcap_to_profile.py"), str(path)]
        done = subprocess.run(script, capture_output=True, text=True)
        assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr


def test_the_workflow_is_one_and_its_commands_are_ours() -> None:
    text = (EXAMPLES / "github-workflow.yml").read_text()
    for command in re.findall(r"lossbench (?:run|compare) [^\n]*", text):
        words = command.split(" -- ")[0].replace("'wall_s > +20%'", "'wall_s>+20%'").replace("'", "").split()
        done = subprocess.run([*LOSSBENCH, words[1], "--help"], capture_output=True, text=True)
        for option in (word for word in words if word.startswith("--")):
            assert option in done.stdout, option


def test_the_workflow_has_what_it_installs() -> None:
    """As it was: it installed a submodule that the checkout had left out, and its cache found no pyproject.toml."""
    text = (EXAMPLES / "github-workflow.yml").read_text()
    checkout, python, install = re.split(r"\n      - ", text)[1:4]
    assert "actions/checkout" in checkout and "submodules: true" in checkout
    assert "pip install './lossbench[" in install and "cache-dependency-path: lossbench/pyproject.toml" in python


def test_sudo_is_told_where_githubs_summary_goes() -> None:
    """As it was: sudo dropped the variable, and every run of the workflow ended in "GITHUB_STEP_SUMMARY is not set"."""
    text = (EXAMPLES / "github-workflow.yml").read_text()
    assert 'sudo env "PATH=$PATH" "GITHUB_STEP_SUMMARY=$GITHUB_STEP_SUMMARY"' in text
    assert "--github-summary" in text
