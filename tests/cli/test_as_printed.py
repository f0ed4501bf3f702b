"""What README and docs print, done as printed, by somebody who has a train.py. Only the lab is short enough for
`make test`, with a small program in the place of iperf3. `make demo` is a slice of `make test-all`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lossbench.net.impair import registry
from lossbench.net.kernel import Kernel
from tests.conftest import left_behind
from tests.forked import lossbench
from tests.forms import full
from tests.ground.test_docs import ROOT, commands, python_blocks

pytestmark = [pytest.mark.netns, pytest.mark.timeout(3600)]  # as printed: some sixty starts of torch
# iperf3 as far as the lab asks for it: a server that goes on by itself, and a client that sends it something.
DOCS = ("docs/training.md", "docs/programs.md")
STAND_IN = f"""#!{sys.executable}
import os, socket, sys
if sys.argv[1:] == ["-s", "-D"]:
    server = socket.create_server(("", 5201), family=socket.AF_INET6, dualstack_ipv6=True)
    if os.fork():
        os._exit(0)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    while one := server.accept()[0]:
        while one.recv(1 << 16):
            pass
else:
    assert sys.argv[1] == "-c"
    with socket.create_connection((sys.argv[2], 5201), timeout=30) as one:
        one.sendall(bytes(1_000_000))
    print("iperf Done.")
"""
# What the blocks of Python find where they stand in a program: a model, its optimizer, something to go backward from.
BEFORE = """
import torch
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
class loss:
    def backward():
        model(torch.ones(3, 8)).sum().backward()
"""


def program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "examples" / "ddp.py", tmp_path / "train.py")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    program(tmp_path / "bin" / "lossbench", f'#!/bin/sh\nexec {sys.executable} -m lossbench.cli.main "$@"\n')
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


def done(folder: Path, line: str) -> str:
    """What `lossbench LINE` prints, as a shell would do it; it must end well."""
    found = subprocess.run(
        ["sh", "-c", f"lossbench {line}"],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert found.returncode == 0, f"lossbench {line}\n{found.stdout[-2000:]}\n{found.stderr[-2000:]}"
    assert "Traceback" not in found.stderr + found.stdout, found.stderr
    return found.stdout


def the_lab() -> list[str]:
    """The block of docs/runs.md about a network that stays up."""
    lines = [line for line in commands(ROOT / "docs" / "runs.md") if line.startswith("net ")]
    assert [line.split()[1] for line in lines] == ["up", "exec", "exec", "verify", "set", "list", "down"]
    return lines


@full
@pytest.mark.training
@pytest.mark.quiet("a machine that is too busy may lose packets by itself: exit status 3 instead of 0")
@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_every_command_of_it_does_what_it_says(folder: Path, page: str) -> None:
    lines = commands(ROOT / page)
    assert len(lines) >= 3
    for line in lines:
        done(folder, line)
    if page.endswith("tutorial.md"):
        assert (folder / "ddp.html").stat().st_size > 20_000


@full
@pytest.mark.quiet("a machine that is too busy may lose packets by itself: exit status 3 instead of 0")
def test_the_lab_is_brought_up_used_changed_and_taken_down_as_printed(folder: Path) -> None:
    if os.geteuid() or shutil.which("iperf3") is None:
        pytest.skip("needs root and iperf3 (apt-get install iperf3)")
    said = {line.split()[1]: done(folder, line) for line in the_lab()}
    assert "iperf Done." in said["exec"] and "fault: valid" in said["verify"] and left_behind() == []


def test_the_lab_does_what_its_lines_say(folder: Path) -> None:
    """As it was: nothing had ever brought the lab of docs/runs.md up."""
    if os.geteuid():
        pytest.skip("needs root")
    program(folder / "bin" / "iperf3", STAND_IN)
    said: dict[str, str] = {}
    for line in the_lab():
        words = [*shlex.split(line), *(["--packets", "2000"] if "verify" in line else [])]
        found = lossbench(*words, cwd=folder, environment=environment(folder))
        assert found.returncode == 0, f"lossbench {line}\n{found.stdout}\n{found.stderr}"
        said[words[1]] = found.stdout
    assert "iperf Done." in said["exec"] and "fault: valid" in said["verify"]
    (name,) = re.findall(r"^(\S+): 4 hosts up", said["up"])
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    assert f"TCP in its hosts: {control}" in said["up"] and f"lossbench net down --net {name}" in said["up"]
    assert said["set"].endswith("in force, changed in 4 directions of links\n")
    assert re.search(r": down \(6 namespaces, 1 process ended\)", said["down"]) and left_behind() == []


@full
@pytest.mark.training
def test_the_blocks_for_programs_run_in_a_program(folder: Path) -> None:
    """Of README, training.md and programs.md, one after the other, in two ranks."""
    readme, training, programs = (python_blocks(ROOT / name) for name in ("README.md", *DOCS))
    (folder / "mine.py").write_text("\n".join([BEFORE, training[0], BEFORE, *readme, *programs[:2]]))
    said = done(folder, "run --hosts 2 --sweep loss=3 -- python mine.py")
    assert "accuracy" in said and "tokens" in said and "samples (ms)" in said, said


@full
@pytest.mark.training
def test_the_block_for_notebooks_runs(folder: Path) -> None:
    """With fewer and shorter runs, with ids that there are, and without what wants netem where there is none."""
    if os.geteuid() or shutil.which("iperf3") is None:
        pytest.skip("needs root and iperf3 (apt-get install iperf3)")
    block = python_blocks(ROOT / "docs" / "programs.md")[2]
    shorter = '"topology.hosts=2", "workload.options.steps=40", "probe.packets=4000"'
    here = ', delay="20ms", rate="1gbit"' if registry.able(Kernel.tried())["netem"] is None else ""
    for printed, instead in (
        ('"topology.hosts=8"', shorter),
        (', delay="20ms", rate="1gbit"', here),
        ("ab12cd", "quickstart"),
        ("98fe76", "latest"),
    ):
        assert printed in block
        block = block.replace(printed, instead)
    (folder / "block.py").write_text(block)
    subprocess.run([sys.executable, "block.py"], cwd=folder, env=environment(folder), check=True, timeout=1800)
    assert (folder / "report.html").stat().st_size > 20_000 and left_behind() == []


@full
def test_make_wheel_leaves_the_wheel_that_the_tutorial_installs(tmp_path: Path) -> None:
    command = ["make", "-s", "wheel", f"DIST={tmp_path}", f"VENV={sys.prefix}"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    if made.returncode and "No matching distribution" in made.stderr:
        pytest.skip("no package index can be reached from here")
    assert made.returncode == 0, made.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name in (ROOT / "docs" / "tutorial.md").read_text()
