"""A channel to the agent of one machine: ssh as the user has set it up (agent, jump hosts, known_hosts), once.

Host keys are checked whatever the configuration says; no password is asked for; nothing secret is on a command line."""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, Queue
from typing import Any

from lossbench.errors import LossbenchError, NotAbleError, RunError, VanishedError
from lossbench.net.lab.bundle import BOOT, bundle
from lossbench.processes import inherited
from lossbench.spec.lab import Lab, Machine

CONNECT_S = 20
ALIVE_S, ALIVE_TIMES = 2, 3  # ssh itself notices a machine that does not answer
LONGEST_LINE = 64 << 20
LAST_WORDS = 3
CLOCK_TRIES = 7
BEAT_S = 0.5
SSH_FAILED = 255  # itself; any other status is that of what it started


def agent_command(lab: Lab, machine: Machine, remote: Sequence[str]) -> list[str]:
    """By ssh, or inside an allocation by srun, which needs no shell."""
    if lab.by == "ssh":
        return ssh_command(lab, machine, remote)
    root = ["sudo", "-n"] if machine.sudo else []
    step = ["--overlap", "--unbuffered", "--nodes=1", "--ntasks=1", f"--nodelist={machine.ssh}"]
    return ["srun", *step, *root, *remote]


def ssh_command(lab: Lab, machine: Machine, remote: Sequence[str]) -> list[str]:
    """The remote part is quoted for the shell there; the target can't be an option (spec/lab.py), and `--` says so."""
    options = ["-T", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", f"ConnectTimeout={CONNECT_S}"]
    options += ["-o", f"ServerAliveInterval={ALIVE_S}", "-o", f"ServerAliveCountMax={ALIVE_TIMES}"]
    options += ["-o", "ControlMaster=no", "-o", "ControlPath=none"]  # a shared one is not new: nic.confirm
    options += ["-o", "ClearAllForwardings=yes", "-o", "RemoteCommand=none"]  # yours are for your own sessions
    config = ["-F", lab.ssh_config] if lab.ssh_config else []
    root = ["sudo", "-n"] if machine.sudo else []
    return ["ssh", *config, *options, "--", machine.ssh, shlex.join([*root, *remote])]


class Channel:
    """Asked by one thread at a time; the others wait."""

    def __init__(self, lab: Lab, rank: int) -> None:
        self.name, self.machine, self.rank, self._by = lab.names()[rank], lab.machine[rank], rank, lab.by
        command = agent_command(lab, self.machine, [self.machine.python, "-u", "-c", BOOT])
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=inherited(),
            )
        except FileNotFoundError:
            raise NotAbleError(
                f"no {command[0]} here", next_step=f"install it: agents are started by {lab.by}"
            ) from None
        self._answers: Queue[dict[str, Any] | None] = Queue()
        self._words: list[str] = []
        self._number = 0
        self._lost: LossbenchError | None = None  # once it did not answer
        self._ended = threading.Event()
        self._sending, self._asking = threading.Lock(), threading.Lock()
        self._booted = False
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self._boot()
        except BaseException:
            self.close()
            raise

    def _boot(self) -> None:
        checksum, data = bundle()
        self._offer(json.dumps({"sha": checksum, "size": len(data)}).encode() + b"\n")
        answer = self._answer(CONNECT_S + 10)
        if answer.get("boot") == "need":
            self._offer(data)
            answer = self._answer(60)
        elif answer.get("boot") == "have":
            answer = self._answer(60)
        if answer.get("boot") != "agent":
            text, step = _boot_words(answer, self.machine)
            raise NotAbleError(f"{self.name} ({self.machine.ssh}): {text}", next_step=step)
        if not answer.get("root"):  # first of all: whatever it is asked would fail by a reason of its own
            step = "submit it as root, or --sudo" if self._by == "slurm" else "ssh as root, or sudo = true in lab.toml"
            raise NotAbleError(f"{self.name} ({self.machine.ssh}): not root there", next_step=step)
        self._booted = True
        threading.Thread(target=self._live, daemon=True).start()
        machine = self.machine
        if not machine.interface:
            found = {"interface": self.ask("machine.with_address", address=machine.address)}
            self.machine = machine.model_copy(update=found)
        if not machine.address:
            found = {"address": self.ask("machine.address_of", interface=machine.interface)}
            self.machine = machine.model_copy(update=found)

    def _offer(self, data: bytes) -> None:
        """Written, or not: one that refused has said why before it closed its end, and that is read next."""
        with suppress(LossbenchError):
            self._write(data)

    def ask(self, what: str, *, timeout_s: float = 60.0, **arguments: Any) -> Any:
        """The agent's answer, or its error as ours."""
        with self._asking:
            if self._lost is not None:
                raise self._lost
            self._number += 1
            self._send({"n": self._number, "do": what, "with": arguments})
            limit = time.monotonic() + timeout_s
            while True:
                answer = self._answer(max(0.0, limit - time.monotonic()))
                if answer.get("n") == self._number:
                    break
        if "error" in answer:
            kind = NotAbleError if answer["error"].get("not_able") else RunError
            raise kind(f"{self.name}: {answer['error']['message']}", next_step=answer["error"].get("next_step", ""))
        return answer.get("is")

    def clock(self, what: str, ours: Callable[[], float]) -> tuple[float, float]:
        """(known to within, its clock ahead of ours), in seconds: the quickest answer knows best."""
        found = []
        for _ in range(CLOCK_TRIES):
            sent = ours()
            there = self.ask(what)
            back = ours()
            found.append(((back - sent) / 2, there - (sent + back) / 2))
        return min(found)

    def _live(self) -> None:
        """A beat now and then, from the first question to the end: without them its leases end, and it gives back what
        it holds."""
        with suppress(LossbenchError):
            while not self._ended.wait(BEAT_S):
                self._send({"n": 0, "do": "beat", "with": {}})

    def _send(self, message: dict[str, Any]) -> None:
        self._write(json.dumps(message).encode() + b"\n")

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            with self._sending:
                self._process.stdin.write(data)
                self._process.stdin.flush()
        except (OSError, ValueError):
            raise self._gone() from None

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        try:
            found = self._answers.get(timeout=timeout_s)
        except Empty:
            raise self._hung() from None
        if found is None:
            self._answers.put(None)
            raise self._gone()
        return found

    def _hung(self) -> LossbenchError:
        """It is waited for once: whatever else it is asked fails at once. Its end of the channel closes: it gives back
        what it holds should it ever go on."""
        text = f"{self.name} ({self.machine.ssh}) does not answer"
        self._lost = VanishedError(text, next_step=f"ssh {self.machine.ssh}: does it still?")
        self._ended.set()
        self._process.terminate()
        return self._lost

    def _gone(self) -> LossbenchError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
        self._listener.join(timeout=2)  # its last words may be on their way
        words = "; ".join(self._words[-LAST_WORDS:]) or "the connection ended"
        if self._booted:
            return VanishedError(f"{self.name} ({self.machine.ssh}) is gone: {words}", next_step="lossbench lab check")
        step = _never_came(self._by, self._process.returncode, words, self.machine)
        return NotAbleError(f"{self.name} ({self.machine.ssh}): {words}", next_step=step)

    def _read(self) -> None:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline(LONGEST_LINE):
            try:
                found = json.loads(line)
            except ValueError:
                self._words.append(line.decode(errors="replace").strip()[:200])  # a login script that prints
                del self._words[:-20]
                continue
            if isinstance(found, dict):
                self._answers.put(found)
        self._answers.put(None)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            text = line.decode(errors="replace").strip()
            if text:
                self._words.append(text[:200])
                del self._words[:-20]

    def close(self) -> None:
        """Its end of the channel closes, and what it holds is given back."""
        self._ended.set()
        with suppress(OSError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _never_came(by: str, code: int | None, words: str, machine: Machine) -> str:
    """What to do about an agent that has not said a word: by who has failed, which is not always ssh."""
    if by == "ssh" and code == SSH_FAILED:
        return f"`ssh {machine.ssh}` must work without a question; a host that is new to it must be accepted once"
    if "No such file" in words or "not found" in words:
        return f"is {machine.python} there? python = in lab.toml names it by its whole path"
    if machine.sudo and "sudo" in words:
        return "sudo must ask nothing there (NOPASSWD in sudoers); or do without it, as root"
    if by == "slurm":
        return f"`srun --overlap --nodelist={machine.ssh} true` must work"
    return f"`ssh {machine.ssh} {machine.python} -V` must work; python = and sudo = stand in lab.toml"


def _boot_words(answer: dict[str, Any], machine: Machine) -> tuple[str, str]:
    """(what is wrong, what to do)."""
    kind, other = answer.get("boot"), "or name another one by python = in lab.toml"
    if kind == "old":
        text = f"{machine.python} is Python {answer.get('python')}; 3.11 or newer is needed"
        return text, "python = in lab.toml names another one"
    if kind == "lacks":
        step = f"there: {machine.python} -m pip install lossbench-*.whl (make wheel, or make wheelhouse); {other}"
        return f"{machine.python} lacks {answer.get('what')}", step
    if kind == "disk":
        return f"our code can't be put there ({answer.get('why')})", "free some space; XDG_CACHE_HOME is where it goes"
    return f"our code did not arrive whole ({kind})", "once more"
