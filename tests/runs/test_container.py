"""What an engine for containers does to a command: process 1, or the child of an init, with few capabilities."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import left_behind
from tests.forms import forms
from tests.ground.test_docs import taken
from tests.shared import ROOT

# What docker leaves to a container's root, and the two that the Dockerfile asks for.
GIVEN = (
    "+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw,+sys_chroot,"
    "+mknod,+audit_write,+setfcap,+net_admin,+sys_admin"
)
AN_INIT = ["sh", "-c", '"$@"; exit $?', "sh"]
SHORT = ["--set", "probe.packets=4000", "--set", "workload.options.seconds=0.4", "--set", "topology.hosts=2"]


@pytest.mark.netns
@forms("first", [[], AN_INIT], ids=["process 1", "the child of an init"])
def test_a_run_is_valid_as_process_1_and_with_dockers_capabilities(tmp_path: Path, first: list[str]) -> None:
    """As it was: the Dockerfile said so, and nothing had tried."""
    if os.geteuid() or not all(map(shutil.which, ("unshare", "setpriv"))):
        pytest.skip("needs root, unshare and setpriv")
    few = ["setpriv", f"--bounding-set=-all,{GIVEN}"]
    command = [sys.executable, "-m", "lossbench.cli.main", "run", "proof", "--json", "--out", str(tmp_path), *SHORT]
    whole = [*few, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *first, *command]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"][0]["columns"]["fault"] == "valid" and left_behind() == []


def test_every_printed_way_to_start_it_keeps_the_results_and_is_a_command_of_ours() -> None:
    """As it was: `--rm` took the results with the container."""
    pages = [(ROOT / name).read_text(encoding="utf-8") for name in ("Dockerfile", "docs/runs.md")]
    printed = [line for page in pages for line in re.findall(r"(?:docker|podman) run [^`#\n]*", page)]
    assert len(printed) == 4
    for line in printed:
        asked, _, ours = line.partition(" lossbench ")
        assert '-v "$PWD:/work"' in asked and taken(ours.strip()).params["suite"], line
