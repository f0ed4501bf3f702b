"""The ways by which people's ssh reaches their machines: through a jump host, with keys that an agent alone holds."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.forms import full
from tests.lab.machines import Machines, machines, missing

LACKS = missing() or next((f"needs {name}" for name in ("ssh-agent", "ssh-add") if shutil.which(name) is None), None)
pytestmark = [pytest.mark.netns, pytest.mark.skipif(LACKS is not None, reason=LACKS or "")]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Machines]:
    with machines(tmp_path, count=2) as made:
        yield made


def by_a_jump(lab: Machines) -> None:
    """h1 through h0."""
    config = lab.folder / "ssh_config"
    text = config.read_text()
    config.write_text(text.replace("Host node1\n", "Host node1\n ProxyJump node0\n", 1))


@contextmanager
def an_agent(lab: Machines, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The key is no file any more."""
    socket = lab.folder / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        while not socket.exists():
            assert agent.poll() is None
        subprocess.run(["ssh-add", "-q", str(lab.folder / "user")], check=True, capture_output=True)
        (lab.folder / "user").unlink()
        config = lab.folder / "ssh_config"
        config.write_text(re.sub(r" Identit.*\n", "", config.read_text()))
        yield
    finally:
        agent.kill()
        agent.wait()


def test_a_machine_behind_a_jump_host_is_reached_with_a_key_that_an_agent_alone_holds(
    pair: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one command over one channel's own way in: a `lab exec` is ssh as agents are started by it."""
    by_a_jump(pair)
    with an_agent(pair, monkeypatch):
        came = pair.lossbench("lab", "exec", str(pair.file), "h1", "--", "sh", "-c", "echo ${SSH_CONNECTION%% *}")
        assert came.stdout.strip() == pair.hosts[0].control_ipv4, "from the jump host, not from here"


@full
def test_a_lab_behind_a_jump_host_is_checked_impaired_confirmed_and_given_back(
    pair: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = pair.snapshots()
    by_a_jump(pair)
    with an_agent(pair, monkeypatch):
        found = json.loads(pair.lossbench("lab", "check", str(pair.file), "--json").stdout)
        assert [row["wrong"] for row in found["machines"]] == [[], []] and found["wrong"] == []
        pair.lossbench("lab", "apply", str(pair.file), "--loss", "10%")
        assert pair.snapshots() != before
        said = pair.lossbench("lab", "revert", str(pair.file)).stdout
        assert said.count("as it was before") == 2
    assert pair.snapshots() == before
