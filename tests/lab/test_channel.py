"""The channel and its ends without a network: what reaches a shell, what is sent, what a broken line does."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from string import ascii_letters, digits
from typing import Any

import pytest
from typer.testing import CliRunner

from lossbench.cli.app import app
from lossbench.cli.hardware import lab as lab_commands
from lossbench.errors import NotAbleError, UsageError, VanishedError
from lossbench.net.lab import bundle, channel, orders
from lossbench.net.lab.channel import ssh_command
from lossbench.runs.lab import agent
from lossbench.spec import lab as labs
from lossbench.spec.asking import labfile
from lossbench.spec.lab import Lab, Machine, Switch
from lossbench.spec.userfile import check
from tests.forked import lossbench
from tests.nic.wire import until

ROOT = Path(__file__).resolve().parents[2]
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


PATHS_OUT = ["../../etc/passwd", "-rf", "~root/x", "%h", "${HOME}", "a|b", "a&b", "a>b", "'x'", '"x"', "a\\b", "*"]
TEXTS = [
    ("machine", name) for name, one in Machine.model_fields.items() if one.annotation is str
] + [("switch", name) for name in Switch.model_fields] + [("", "name"), ("", "by"), ("", "ssh_config")]  # fmt: skip


def test_those_are_all_keys_that_hold_words() -> None:
    """Whoever adds one adds it to what is tried."""
    others = {"machine", "switch"}
    assert {name for where, name in TEXTS if not where} == set(Lab.model_fields) - others
    plain = {name for name, one in Machine.model_fields.items() if one.annotation in (bool, int)}
    assert {name for where, name in TEXTS if where == "machine"} == set(Machine.model_fields) - plain


@pytest.mark.parametrize(("where", "key"), TEXTS)
def test_no_word_of_a_lab_toml_reaches_a_shell_or_becomes_an_option(tmp_path: Path, where: str, key: str) -> None:
    """Refused in one line; or what ssh is told is what it would have been, but for this one word in its own place."""
    for value in [*HOSTILE, *PATHS_OUT]:
        tables: dict[str, dict[str, Any]] = {"": {}, "machine": dict(PLAIN), "switch": {}}
        tables[where][key] = [value] if key == "counters" else value
        text = "".join(f"{name} = {json.dumps(one)}\n" for name, one in tables[""].items())
        for table, head in (("machine", "[[machine]]"), ("switch", "[switch]")):
            text += f"{head}\n" + "".join(f"{name} = {json.dumps(one)}\n" for name, one in tables[table].items())
        path = tmp_path / "lab.toml"
        path.write_text(text)
        try:
            lab = labs.load(path)
        except UsageError as error:
            assert "lab.toml" in str(error) and "\n" not in str(error)
            continue
        command = ssh_command(lab, lab.machine[0], ["python3", "-c", "print('a b')"])
        assert shlex.split(command[-1]) == ["python3", "-c", "print('a b')"]
        begins = ["ssh", "-F", lab.ssh_config, "-T"] if lab.ssh_config else ["ssh", "-T"]
        assert command[: len(begins)] == begins and Path(lab.ssh_config or "/").is_absolute()
        target = command[command.index("--") + 1 : -1]
        assert target == [lab.machine[0].ssh] and not target[0].startswith("-")
        free = (where, key) in (("", "name"), ("", "ssh_config"), ("switch", key))
        assert free or set(value) <= set(ascii_letters + digits + "_.@:%[]/+~-"), (where, key, value)


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


def test_a_single_table_where_a_list_belongs_is_said_as_it_is_written(tmp_path: Path) -> None:
    """As it was: "machine: input should be a valid tuple"."""
    path = written(tmp_path)
    path.write_text(path.read_text().replace("[[machine]]", "[machine]"))
    with pytest.raises(UsageError, match=r"\[machine\] is one machine alone; \[\[machine\]\]"):
        labs.load(path)


def test_a_lab_that_is_not_there_is_one_to_begin_with(tmp_path: Path) -> None:
    """As it was: "no such file", and nothing wrote one."""
    path = tmp_path / "mine.toml"
    with pytest.raises(UsageError, match="lossbench lab init .*mine.toml"):
        labs.load(path)
    done = lossbench("lab", "init", str(path), "node0", "root@node1", "--interface", "eth7", "--", "node2")
    assert done.returncode == 0, done.stderr
    lab = labs.load(path)
    assert [(one.ssh, one.interface) for one in lab.machine] == [(n, "eth7") for n in ("node0", "root@node1", "node2")]
    assert lossbench("lab", "init", str(path)).returncode == 2, "never over one that is there"
    assert "not a name that ssh takes" in lossbench("lab", "init", str(tmp_path / "x.toml"), "a b").stderr


def test_what_is_commented_out_in_it_can_be_said() -> None:
    """Every word of it is a key of ours; and the example is the same text."""
    text = labfile.text()
    assert (ROOT / "examples" / "lab.toml").read_text() == text, "lossbench lab init examples/lab.toml"
    said = re.sub(r"^# (?=\[switch\]|[a-z_]+ = )", "", text, flags=re.MULTILINE)
    lab = check(Lab, tomllib.loads(said), origin="test")
    assert {*lab.machine[0].model_fields_set} == set(Machine.model_fields) and lab.switch.counters


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["h1", "nvidia-smi", "-L"], ("lab.toml", "h1", ["nvidia-smi", "-L"])),
        (["my.toml", "h1", "id"], ("my.toml", "h1", ["id"])),
        (["./h1", "h0", "id"], ("h1", "h0", ["id"])),
    ],
)
def test_exec_takes_the_usual_file_where_none_is_named(words: list[str], found: Any) -> None:
    """As it was: "h1: no such file"; the default that the help named could never be meant."""
    file, host, command = lab_commands._addressed(words)
    assert (str(file), host, command) == found


def test_apply_takes_a_condition_in_words_as_run_and_nic_apply_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(orders, "apply", lambda _, **asked: said.append(asked["profile"]) or {})
    asked = ["lab", "apply", str(written(tmp_path))]
    done = CliRunner().invoke(app, [*asked, "--loss", "3%", "--burst", "8"])
    assert done.exit_code == 0, done.output
    assert (said[0]["loss"]["mean_percent"], said[0]["loss"]["burst_packets_mean"]) == (3.0, 8.0)
    assert "which condition?" in str(CliRunner().invoke(app, asked).exception)


def test_exec_says_who_is_no_host(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'node1' is no lab's file, and no host; hosts are h0, h1"):
        lab_commands._addressed(["node1", "id"])
    with pytest.raises(UsageError, match=r"lossbench lab exec my.toml h0 -- COMMAND"):
        lab_commands._addressed(["my.toml"])
    done = lossbench("lab", "exec", str(written(tmp_path)), "h3", "--", "nvidia-smi", "-L")
    assert "no host 'h3'; hosts are h0" in done.stderr


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
print(json.dumps({"boot": "have"}), flush=True); print(json.dumps({"boot": "agent", "root": True}), flush=True)
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


# --- an agent that does not come -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "sudo", "status", "words", "step"),
    [
        ("ssh", False, 255, "Permission denied (publickey)", "`ssh node0` must work without a question"),
        ("ssh", False, 127, "sh: 1: /opt/no/python: not found", "is /opt/no/python there? python = in lab.toml"),
        ("ssh", True, 1, "sudo: /opt/no/python: command not found", "is /opt/no/python there?"),
        ("ssh", True, 1, "sudo: a password is required", "sudo must ask nothing there"),
        ("ssh", False, 1, "a login script that ends", "`ssh node0 /opt/no/python -V` must work"),
        ("slurm", False, 2, "slurmstepd: error: execve(): /opt/no/python: No such file", "is /opt/no/python there?"),
        ("slurm", True, 1, "sudo: a password is required", "sudo must ask nothing there"),
        ("slurm", False, 1, "srun: error: Unable to create step", "`srun --overlap --nodelist=node0 true` must work"),
    ],
)
def test_an_agent_that_never_came_is_answered_by_who_has_failed(
    monkeypatch: pytest.MonkeyPatch, by: Any, sudo: bool, status: int, words: str, step: str
) -> None:
    """As it was: "`ssh node0` must work without a question" whatever it was, under srun too, and exit status 1."""
    monkeypatch.setattr(channel, "agent_command", lambda *_: ["sh", "-c", f"echo '{words}' >&2; exit {status}"])
    machine = Machine(**PLAIN, sudo=sudo, python="/opt/no/python")
    with pytest.raises(NotAbleError) as raised:
        channel.Channel(Lab(machine=(machine,), by=by), 0)
    assert words in raised.value.message and raised.value.next_step.startswith(step)


def test_who_is_not_root_there_is_told_so_before_anything_else_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As it was: "PermissionError: [Errno 1] bpf(16): Operation not permitted", of the interface's first question."""
    nobody = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    if nobody and shutil.which("setpriv") is None:
        pytest.skip("needs setpriv")
    command = [*nobody, "env", f"XDG_CACHE_HOME={tmp_path}", sys.executable, "-u", "-c", bundle.BOOT]
    monkeypatch.setattr(channel, "agent_command", lambda *_: command)
    with pytest.raises(NotAbleError, match=r"h0 \(node0\): not root there") as raised:
        channel.Channel(Lab(machine=(Machine(ssh="node0", interface="lo"),)), 0)
    assert raised.value.next_step.startswith("ssh as root, or sudo = true")


OLD = """
import json, sys
sys.stdin.buffer.readline()
print(json.dumps({"boot": "old", "python": "3.9.2"}), flush=True)
"""


def test_a_machine_with_another_version_is_refused_by_its_name_and_runs_our_code_or_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of Python; of lossbench there is one alone, since the controller's is what runs there."""
    monkeypatch.setattr(channel, "agent_command", lambda *_: [sys.executable, "-c", OLD])
    with pytest.raises(NotAbleError, match=r"h0 \(node0\): python3 is Python 3\.9\.2; 3\.11 or newer") as raised:
        channel.Channel(Lab(machine=(Machine(**PLAIN),)), 0)
    assert "python = in lab.toml" in raised.value.next_step
    torn = bundle.BOOT.replace("sys.version_info < (3, 11)", "sys.version_info < (99, 0)")
    assert torn != bundle.BOOT
    said = subprocess.run([sys.executable, "-c", torn], input=b"", capture_output=True).stdout
    assert json.loads(said)["boot"] == "old"


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
    assert [one.get("boot") for one in first] == ["need", "agent", None] and first[2]["n"] == 1
    again = [json.loads(line) for line in booted(tmp_path, hello, question).stdout.splitlines()]
    assert [one.get("boot") for one in again] == ["have", "agent", None]
    (home,) = (tmp_path / "lossbench" / "agents").iterdir()
    assert home.name == checksum and (home / "lossbench" / "netem_profiles" / "loss_1.toml").exists()


def test_all_packages_that_a_machine_lacks_are_named_at_once_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it was: one after the other; and without scapy a check was content, and the run ended in its midst."""
    bare = [sys.executable, "-S", "-I", "-u", "-c", bundle.BOOT]
    monkeypatch.setattr(channel, "agent_command", lambda *_: bare)
    with pytest.raises(NotAbleError, match=f"python3 lacks {', '.join(bundle.NEEDS)}") as raised:
        channel.Channel(Lab(machine=(Machine(**PLAIN),)), 0)
    assert "python3 -m pip install lossbench" in raised.value.next_step and "wheelhouse" in raised.value.next_step


def test_what_a_machine_has_said_is_read_though_its_end_was_closed_before_we_wrote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it was: whoever met the closed pipe first said "the connection ended", and what to do was lost."""
    write = channel.Channel._write

    def late(self: channel.Channel, data: bytes) -> None:
        self._process.wait(30)
        write(self, data)

    monkeypatch.setattr(channel.Channel, "_write", late)
    said = """print('{"boot": "old", "python": "3.9"}')"""
    monkeypatch.setattr(channel, "agent_command", lambda *_: [sys.executable, "-c", said])
    with pytest.raises(NotAbleError, match="Python 3.9; 3.11 or newer is needed"):
        channel.Channel(Lab(machine=(Machine(**PLAIN),)), 0)


LOADED = """
import json, sys
import lossbench.runs.lab.agent, lossbench.proof.probe.exchange
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_what_an_agent_needs_is_what_it_loads() -> None:
    """A package that it begins to need and nobody looks for ends a run on machines that lack it."""
    loaded = json.loads(subprocess.check_output([sys.executable, "-c", LOADED]))
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    ours = {re.split(r"[^a-z0-9_-]", one)[0] for one in wanted}
    assert ours & set(loaded) == set(bundle.NEEDS)


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
    assert lines[0]["boot"] == "agent" and lines[1]["n"] == 1 and len(lines) == 2
