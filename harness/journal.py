"""What was made, written down before it is made, so that a crash leaves nothing that `lossbench clean` can't find.

One folder per network under /run/lossbench (on a tmpfs, as the namespaces themselves): owner.json says whose it is,
journal.jsonl what was made, net.json marks a standing lab. All links and filters live inside the namespaces and go with
them; all processes are found by the namespace they are in.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import NotAbleError
from harness.net import namespaces

ROOT = Path("/run/lossbench")


class Journal:
    """The folder of one network."""

    def __init__(self, network_id: str) -> None:
        self.id = network_id
        self.folder = ROOT / network_id

    @classmethod
    def claim(cls, *, kind: str) -> Journal:
        """A fresh id that nobody uses: making its folder is the claim."""
        try:
            ROOT.mkdir(mode=0o755, exist_ok=True)
            for _ in range(100):
                journal = cls(secrets.token_hex(2))
                if namespaces.exists(f"lb-{journal.id}-sw"):
                    continue
                try:
                    journal.folder.mkdir(mode=0o755)
                except FileExistsError:
                    continue
                owner = {"pid": os.getpid(), "start": start_ticks(os.getpid()), "kind": kind}
                write_durably(journal.folder / "owner.json", json.dumps(owner))
                return journal
        except OSError as error:
            raise NotAbleError(
                f"{ROOT} can't be written ({error.strerror})", next_step="free some space or use sudo"
            ) from None
        raise NotAbleError("no free network id", next_step="lossbench clean")

    def before_making(self, kind: str, name: str) -> None:
        try:
            with open(self.folder / "journal.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps({"kind": kind, "name": name}) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise NotAbleError(
                f"the journal can't be written ({error.strerror})", next_step="free some space"
            ) from None

    def made(self) -> list[dict[str, str]]:
        """Lines that were written whole; a torn last line was never acted on."""
        try:
            text = (self.folder / "journal.jsonl").read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        out = []
        for line in text.splitlines():
            try:
                out.append(json.loads(line))
            except json.JSONDecodeError:
                continue
        return out

    def owner_alive(self) -> bool:
        try:
            owner = json.loads((self.folder / "owner.json").read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError):
            return False
        return bool(start_ticks(owner["pid"]) == owner["start"] and owner["start"])

    def standing(self) -> dict[str, Any] | None:
        """The state of a standing lab, if this is one."""
        try:
            state: dict[str, Any] = json.loads((self.folder / "net.json").read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError):
            return None
        return state

    def save_standing(self, state: dict[str, Any]) -> None:
        write_durably(self.folder / "net.json", json.dumps(state))

    def close(self) -> None:
        """Everything has been undone."""
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class Removed:
    """What cleaning found of one network."""

    network: str
    namespaces: tuple[str, ...]
    pids: tuple[int, ...]


def networks() -> list[Journal]:
    return [Journal(folder.name) for folder in sorted(ROOT.glob("*")) if folder.is_dir()] if ROOT.is_dir() else []


def undo(journal: Journal) -> Removed:
    """Replay backwards what the journal says was made."""
    names = [entry["name"] for entry in reversed(journal.made()) if entry["kind"] == "namespace"]
    there = [name for name in names if namespaces.exists(name)]
    pids = namespaces.kill_inside(there)
    for name in there:
        namespaces.remove(name)
    journal.close()
    return Removed(network=journal.id, namespaces=tuple(there), pids=tuple(pids))


def start_ticks(pid: int) -> int:
    """When a process started: with its pid this names it for good. 0 if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])


def write_durably(path: Path, text: str) -> None:
    """All or nothing, even if the machine stops."""
    temporary = path.with_name(path.name + ".new")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
