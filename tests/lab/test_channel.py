"""The channel and its ends without a network: what reaches a shell, what is sent, what a broken line does."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lossbench.errors import UsageError
from lossbench.net.lab import bundle, check
from lossbench.net.lab.channel import ssh_command
from lossbench.runs.lab import agent
from lossbench.spec import lab as labs
from lossbench.spec.lab import Lab, Machine

PLAIN = {"ssh": "node0", "interface": "eth1", "address": "10.0.0.1"}
HOSTILE = [
    "",
    "a b",
    "a;reboot",
    "$(id)",
    "`id`",
    "-oProxyCommand=id",
    "--",
    "../x y",
    "a\nb",
    "a\x00b",
    "é",
    "x" * 400,
]


def written(folder: Path, **changed: Any) -> Path:
    path = folder / "lab.toml"
    values = {**PLAIN, **changed}
    path.write_text("[[machine]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
    return path


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (key, value)
        for key in ("ssh", "interface", "address", "python")
        for value in HOSTILE
        if value or key not in ("interface", "address")  # one of both is enough
    ],
)
def test_a_hostile_word_in_lab_toml_is_refused_with_file_and_key(tmp_path: Path, key: str, value: str) -> None:
    with pytest.raises(UsageError) as raised:
        labs.load(written(tmp_path, **{key: value}))
    assert "lab.toml" in str(raised.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('ssh_config = "~nobody-of-that-name/config"', "no such user: ~nobody-of-that-name"),
        ('ssh_config = "a\\u0000b"', "not the name of a file"),
        ('ssh_config = "a\\nb"', "not the name of a file"),
    ],
)
def test_an_ssh_config_that_can_be_no_file_is_one_line(tmp_path: Path, line: str, words: str) -> None:
    """As it was: a RuntimeError of pathlib, a ValueError of subprocess."""
    path = written(tmp_path)
    path.write_text(f"{line}\n{path.read_text()}")
    with pytest.raises(UsageError, match=words) as raised:
        labs.load(path)
    assert "lab.toml" in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("python", ["~/venv/bin/python", "~me/venv/bin/python"])
def test_a_tilde_that_nobody_would_replace_is_refused_with_the_next_step(tmp_path: Path, python: str) -> None:
    """As it was: taken, and then "No such file or directory" from the machine's shell, which gets it quoted."""
    with pytest.raises(UsageError, match="give the whole path") as raised:
        labs.load(written(tmp_path, python=python))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("target", ["node0", "me@node0", "me@10.0.0.7", "[fe80::1%eth0]", "jump_host-2.example.org"])
def test_what_ssh_takes_is_taken(tmp_path: Path, target: str) -> None:
    assert labs.load(written(tmp_path, ssh=target)).machine[0].ssh == target


def test_two_machines_with_one_address_or_target_are_a_mistake(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_text(path.read_text() * 2)
    with pytest.raises(UsageError, match="two machines have ssh node0"):
        labs.load(path)


def test_host_keys_are_always_checked_and_no_password_is_asked_for() -> None:
    lab = Lab(machine=(Machine(**PLAIN, sudo=True),), ssh_config="/x/config")
    command = ssh_command(lab, lab.machine[0], ["python3", "-c", "print('a b')"])
    assert command[:3] == ["ssh", "-F", "/x/config"]
    assert "StrictHostKeyChecking=yes" in command and "BatchMode=yes" in command
    assert command[-3:-1] == ["--", "node0"]
    assert shlex.split(command[-1]) == ["sudo", "-n", "python3", "-c", "print('a b')"]


def test_every_channel_is_a_connection_of_its_own() -> None:
    """As it was: with `ControlMaster auto` the connection that confirms was the one that had applied, and refused."""
    lab = Lab(machine=(Machine(**PLAIN),))
    command = ssh_command(lab, lab.machine[0], ["true"])
    assert {"ControlMaster=no", "ControlPath=none"} <= set(command[: command.index("--")])


# --- the bundle -----------------------------------------------------------------------------------------------------


def booted(cache: Path, *lines: bytes, python: str = sys.executable) -> subprocess.CompletedProcess[bytes]:
    known = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": ""}
    return subprocess.run([python, "-u", "-c", bundle.BOOT], input=b"".join(lines), capture_output=True, env=known)


def test_the_same_code_is_the_same_bundle_and_a_machine_gets_it_once(tmp_path: Path) -> None:
    checksum, data = bundle.bundle()
    bundle.bundle.cache_clear()
    assert bundle.bundle() == (checksum, data)
    hello = json.dumps({"sha": checksum, "size": len(data)}).encode() + b"\n"
    question = b'{"n": 1, "do": "machine.time", "with": {}}\n'
    first = [json.loads(line) for line in booted(tmp_path, hello, data, question).stdout.splitlines()]
    assert first[:2] == [{"boot": "need"}, {"boot": "agent"}] and first[2]["n"] == 1
    again = [json.loads(line) for line in booted(tmp_path, hello, question).stdout.splitlines()]
    assert again[:2] == [{"boot": "have"}, {"boot": "agent"}]
    (home,) = (tmp_path / "lossbench" / "agents").iterdir()
    assert home.name == checksum and (home / "lossbench" / "netem_profiles" / "loss_1.toml").exists()


def test_a_torn_bundle_is_not_run(tmp_path: Path) -> None:
    checksum, data = bundle.bundle()
    hello = json.dumps({"sha": checksum, "size": len(data)}).encode() + b"\n"
    said = booted(tmp_path, hello, data[:-1] + b"x").stdout.splitlines()
    assert json.loads(said[-1]) == {"boot": "torn"}
    assert not list((tmp_path / "lossbench" / "agents").iterdir())


def test_a_cache_that_can_not_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "lossbench").write_text("a file where a folder should be")
    checksum, data = bundle.bundle()
    said = booted(tmp_path, json.dumps({"sha": checksum, "size": len(data)}).encode() + b"\n", data).stdout
    assert json.loads(said.splitlines()[-1])["boot"] == "disk"


# --- the agent ------------------------------------------------------------------------------------------------------


QUESTIONS = [
    ("give_back", {}),
    ("__class__", {}),
    ("machine.__class__", {}),
    ("ranks._place", {}),
    ("network._stack", {}),
    ("nonsense.nonsense", {}),
    ("machine.", {}),
    ("network.report", {"sockets": True}),
    ("probes.drain", {}),
    ("ranks.start", {"key": "../x", "host": "h0", "program": {}, "variables": {}, "options": "", "gated": True}),
    ("machine.interface", {"name": "no;such"}),
    ("machine.time", {"x": 1}),
    ("machine.time", 7),
]
BROKEN = [b"", b"x", b"[]", b"{}", b'{"n": 1}', b"\xff\xfe", b'{"n": 1, "do": 3, "with": []}']


@pytest.mark.parametrize(
    "line", [*BROKEN, *(json.dumps({"n": 1, "do": do, "with": given}).encode() for do, given in QUESTIONS)]
)
def test_a_broken_or_hostile_question_is_answered_by_an_error(line: bytes) -> None:
    said = agent.answer(agent.Agent(), line)
    assert "error" in said and said["error"]["message"]


def test_an_agent_answers_in_order_until_its_channel_ends() -> None:
    out = io.BytesIO()
    agent.serve(
        io.BytesIO(b'{"n": 1, "do": "machine.time", "with": {}}\n{"n": 0, "do": "beat", "with": {}}\nnonsense\n'), out
    )
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert lines[0] == {"boot": "agent"} and lines[1]["n"] == 1 and len(lines) == 2


# --- what a check says ----------------------------------------------------------------------------------------------


def judged(**changed: Any) -> check.Row:
    about = {"lossbench": check.__version__, "root": True, "backends": ["ebpf"], "torch": "2.8", "kernel": "6"}
    interface = {"addresses": ["10.0.0.1"], "up": True, "mtu": 1500, "ssh_here": False}
    found = {
        "about": about,
        "clock": (0.01, 0.001),
        "interface": interface,
        "name": "eth1",
        "address": "10.0.0.1",
        **changed,
    }
    row = check.Row(name="h0", ssh="node0")
    check._judge_alone(row, found)
    return row


def test_a_machine_that_is_right_has_nothing_said_of_it() -> None:
    assert judged().wrong == [] and judged().notes == []


def test_a_clock_off_by_a_minute_and_another_version_are_said() -> None:
    assert "+60.0 s off" in judged(clock=(0.01, 60.0)).notes[0]
    about = {"lossbench": "0.0.1", "root": False, "backends": [], "torch": "", "kernel": "6"}
    row = judged(about=about, interface={"addresses": [], "up": False, "mtu": 1500, "ssh_here": True})
    text = " ".join([*row.wrong, *row.notes])
    for word in (
        "lossbench 0.0.1 there",
        "not root",
        "has not the address 10.0.0.1",
        "is down",
        "no torch",
        "share an",
    ):
        assert word in text
