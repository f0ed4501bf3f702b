"""The channel and its ends without a network: what reaches a shell, what is sent, what a broken line does."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from lossbench.errors import UsageError, VanishedError
from lossbench.net.lab import bundle, channel, check
from lossbench.net.lab.channel import ssh_command
from lossbench.runs.lab import agent
from lossbench.spec import lab as labs
from lossbench.spec.lab import Lab, Machine
from tests.nic.wire import until

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


def test_what_your_ssh_configuration_does_for_your_own_sessions_is_not_done_for_ours() -> None:
    """As it was: a `RemoteCommand` was run in the agent's place, and every channel opened your forwardings again."""
    lab = Lab(machine=(Machine(**PLAIN),))
    command = ssh_command(lab, lab.machine[0], ["true"])
    assert {"ClearAllForwardings=yes", "RemoteCommand=none"} <= set(command[: command.index("--")])


# --- an agent that hangs, and a controller that is gone -------------------------------------------------------------

HANGS = """
import json, sys
sys.stdin.buffer.readline()
print(json.dumps({"boot": "have"}), flush=True); print(json.dumps({"boot": "agent"}), flush=True)
with open(sys.argv[1], "ab") as said:
    for line in sys.stdin.buffer:
        said.write(line); said.flush()
"""


def test_one_that_hangs_is_waited_for_once_and_its_channel_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As it was: every question to it waited its own minute, and the other machines stayed impaired for ten."""
    command = [sys.executable, "-c", HANGS, str(tmp_path / "said")]
    monkeypatch.setattr(channel, "agent_command", lambda *_: command)
    made = channel.Channel(Lab(machine=(Machine(**PLAIN),)), 0)
    with pytest.raises(VanishedError, match="does not answer"):
        made.ask("machine.time", timeout_s=0.1)
    with pytest.raises(VanishedError, match="does not answer"):
        made.ask("machine.time", timeout_s=1e6)
    made._process.wait()
    made.close()


def test_a_channel_beats_from_its_first_answer_on_whatever_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As it was: only while a run's network stood; before that, nobody noticed a controller that was cut off."""
    said = tmp_path / "said"
    monkeypatch.setattr(channel, "agent_command", lambda *_: [sys.executable, "-c", HANGS, str(said)])
    monkeypatch.setattr(channel, "BEAT_S", 0.01)
    made = channel.Channel(Lab(machine=(Machine(**PLAIN),)), 0)
    assert until(lambda: said.exists() and said.read_bytes().count(agent.BEAT) > 2)
    made.close()


def test_an_agent_that_hears_nothing_gives_back_what_it_holds_whether_or_not_a_network_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[bool] = []
    monkeypatch.setattr(agent, "SILENT_S", 0.1)
    monkeypatch.setattr(agent.Agent, "give_back", lambda _: given.append(True))
    reads, writes = os.pipe()
    with (
        open(reads, "rb") as source,
        open(writes, "wb"),
    ):  # whoever holds the other end says nothing, and does not close
        agent.serve(source, io.BytesIO())
        assert given == [True]


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


class Told:
    """Channels to machines of which only h1 is wrong: its address is another one's."""

    def __init__(self, *_: object) -> None:
        self.open, self.closed = dict.fromkeys(range(3)), dict[int, Any]()

    def each(self, _: object) -> dict[int, Any]:
        about = {"lossbench": check.__version__, "root": True, "backends": ["ebpf"], "torch": "2.8", "kernel": "6"}
        found = {"about": about, "clock": (0.01, 0.001), "name": "eth1"}
        interfaces = [{"addresses": [f"10.0.0.{n}"], "up": True, "mtu": 1500, "ssh_here": False} for n in (1, 9, 3)]
        return {n: {**found, "interface": one, "address": f"10.0.0.{n + 1}"} for n, one in enumerate(interfaces)}


def test_a_wrong_address_is_its_own_machines_mistake_and_not_of_the_one_that_sends_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it was: "to h1: Cannot assign requested address", and h0 could not be used."""
    tried: list[tuple[int, int]] = []
    monkeypatch.setattr(check, "channels", lambda _: nullcontext(Told()))
    monkeypatch.setattr(check, "_to_the_next", lambda _, rank, other, __: tried.append((rank, other)))
    rows = check.check(Lab(machine=tuple(Machine(ssh=f"n{n}", interface="eth1") for n in range(3))))
    assert [bool(row.wrong) for row in rows] == [False, True, False] and tried == [(2, 0)]
    assert rows[0].notes == ["the way to h1 was not tried: h1 can't be used"]
