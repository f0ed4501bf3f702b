"""What was made, written down before it is made, so that a crash leaves nothing that `lossbench clean` can't find.

One folder per network under /run/lossbench (on a tmpfs, as the namespaces themselves), readable by its owner alone:
`lock` is held by the living process that works on it, owner.json says who that is in words, journal.jsonl what was made
(each entry with its kind, its name and the state before), net.json marks a standing lab. A journal is deleted only when
nothing that it names exists any more: by looking, not by having tried.

All links and filters live inside the namespaces and go with them; all processes are found by the namespace they are in.
"""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lossbench.errors import NotAbleError, UsageError
from lossbench.files import TRY_AGAIN_S, Lock, disk_errors, locked, private_folder, why, write_durably
from lossbench.net import made
from lossbench.net.made import Entry

ROOT = Path("/run/lossbench")
WAIT_S = 10.0  # others hold these locks for moments


def in_own_folder() -> None:
    """For a user who makes nothing on this machine: a lab's controller."""
    global ROOT
    ROOT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lossbench" / "runs"
    ROOT.parent.mkdir(parents=True, exist_ok=True)


class Journal:
    """The folder of one network."""

    def __init__(self, network_id: str) -> None:
        self.id = network_id
        self.folder = ROOT / network_id
        self._lock: Lock | None = None

    @classmethod
    def claim(cls, *, kind: str) -> Journal:
        """A fresh id that nobody uses, ours from the first moment on: `clean` looks only between two claims."""
        try:
            private_folder(ROOT)
            with _between_claims():
                for _ in range(100):
                    journal = cls(secrets.token_hex(2))
                    if journal.folder.exists() or made.taken(journal.id):
                        continue
                    journal.folder.mkdir(mode=0o700)
                    journal._lock = Lock.take(journal.folder / "lock")
                    if journal._lock is not None:
                        journal._lock.say(_worker())
                    write_durably(journal.folder / "owner.json", json.dumps({**_me(), "kind": kind}))
                    return journal
        except OSError as error:
            raise NotAbleError(f"{ROOT} can't be written ({error.strerror})", next_step=why(error)) from None
        raise NotAbleError("no free network id", next_step="lossbench clean")

    @contextmanager
    def taken(self, *, shared: bool = False, wait_s: float = WAIT_S) -> Iterator[None]:
        """Work on a network that stands: one changes it, or several look."""
        lock = Lock.take(self.folder / "lock", shared=shared, wait_s=wait_s, make=False)
        if lock is None:
            if not self.folder.exists():
                raise UsageError(f"no network '{self.id}' any more")
            worker = _text(self.folder / "lock") or "somebody"
            raise NotAbleError(f"{self.id} is being worked on by {worker}", next_step="wait for it, or end it")
        try:
            if not shared:
                lock.say(_worker())
            yield
        finally:
            lock.release()

    def before_making(self, kind: str, name: str, before: Any = None) -> None:
        """`before`: the state to go back to, as far as the kind needs one."""
        entry = Entry(kind=kind, name=name, before=before)
        if made.exists(entry):
            raise NotAbleError(f"there is a {kind} {name} already, and it is not ours", next_step="lossbench clean")
        try:
            with open(self.folder / "journal.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(entry)) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise NotAbleError(f"the journal can't be written ({error.strerror})", next_step=why(error)) from None

    def made(self) -> list[Entry]:
        """Lines that were written whole; a torn last line was never acted on."""
        try:
            text = (self.folder / "journal.jsonl").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return []
        *whole, _ = text.split("\n")  # behind the last line's end stands what was torn
        return [made.read(line) for line in whole]

    def keep(self, name: str, value: Any) -> None:
        """A file of this network, whole or as it was."""
        with disk_errors(self.folder, full="free some space"):
            write_durably(self.folder / name, json.dumps(value))

    def owner(self) -> dict[str, Any]:
        return _read(self.folder / "owner.json") or {}

    def owner_alive(self) -> bool:
        """Somebody holds it now; a process in any pid namespace, and no zombie."""
        lock = Lock.take(self.folder / "lock", shared=True, make=False)
        if lock is not None:
            lock.release()
        return lock is None and (self.folder / "lock").exists()

    # --- standing labs -----------------------------------------------------------------------------------------

    def is_lab(self) -> bool:
        """Marked as one, and since the machine started: no network outlives that."""
        return (self.folder / "net.json").exists() and not self.outlived()

    def outlived(self) -> bool:
        """It was written before the machine started: whatever it names is gone."""
        before = self.owner().get("boot")
        return before is not None and not same_boot(str(before), boot_id())

    def standing(self) -> dict[str, Any] | None:
        """The state of a standing lab; None if this is none, or if its state can't be read."""
        return _read(self.folder / "net.json") if self.is_lab() else None

    def save_standing(self, state: dict[str, Any]) -> None:
        self.keep("net.json", state)

    # --- undo --------------------------------------------------------------------------------------------------

    def undo(self, *, keep: bool = False) -> Removed:
        """Everything that was made, last first; the journal goes when nothing of it is left. `keep`: not even then,
        since somebody who still makes things needs it."""
        entries = list(reversed(self.made()))
        there = [entry for entry in entries if made.exists(entry)]
        pids, failed = made.undo(there)
        left = [entry for entry in entries if made.exists(entry)]
        failed += [f"{entry.kind} {entry.name} is still there (its journal: {self.folder})" for entry in left]
        if not left and not keep:
            self.close()
        gone = tuple(entry.name for entry in there if entry not in left)
        return Removed(network=self.id, names=gone, pids=tuple(pids), failed=tuple(failed))

    def undo_or_say(self) -> None:
        removed = self.undo()
        if removed.failed:
            raise NotAbleError("; ".join(removed.failed), next_step="lossbench clean")

    def close(self) -> None:
        """Nothing of it exists any more."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """It stands on without us."""
        if self._lock is not None:
            self._lock.release()


@dataclass(frozen=True, kw_only=True)
class Removed:
    """What cleaning found of one network."""

    network: str
    names: tuple[str, ...]
    pids: tuple[int, ...]
    failed: tuple[str, ...] = ()


def networks() -> list[Journal]:
    return [Journal(folder.name) for folder in sorted(ROOT.glob("*")) if folder.is_dir()] if ROOT.is_dir() else []


@contextmanager
def abandoned(journal: Journal, *, wait_s: float = 0.0) -> Iterator[bool]:
    """Is nobody working on it? Then it is ours until the end of the block: two that clean take turns. A folder without
    a lock was left by a claim that was killed."""
    limit = time.monotonic() + wait_s
    while True:
        with _between_claims():  # for a moment only: others want to claim
            known = journal.folder.exists()
            lock = Lock.take(journal.folder / "lock") if known else None
        if lock is not None or not known or time.monotonic() >= limit:
            break
        time.sleep(TRY_AGAIN_S)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


def _between_claims() -> Any:
    return locked(ROOT / ".claims", wait_s=WAIT_S, busy=f"another lossbench keeps {ROOT} locked")


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def same_boot(one: str, other: str) -> bool:
    """Hosts of a network have a first part of their own (host/enter.py): whoever calls us in one is on this machine."""
    return one == other or one.partition("-")[2] == other.partition("-")[2] != ""


def user() -> str:
    """Who is at the terminal, also behind sudo."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = f"user {os.getuid()}"
    return os.environ.get("SUDO_USER") or name


def _worker() -> str:
    return f"{user()} (pid {os.getpid()})"


def _me() -> dict[str, Any]:
    return {"pid": os.getpid(), "boot": boot_id(), "user": user(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
