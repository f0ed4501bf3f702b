"""The kinds of things that lossbench makes or changes on a machine, each with its own way back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from lossbench.net.host import cgroups, namespaces
from lossbench.net.tc import ours


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of a journal. `before`: what was there, for kinds that change a thing instead of making it."""

    kind: str
    name: str
    before: Any = None


class Kind(Protocol):
    needs: dict[str, Any]
    """Of the state before, to find the thing again: key and type, or the words that it may be."""

    def exists(self, entry: Entry) -> bool:
        """Is our change still there?"""

    def undo(self, entries: list[Entry]) -> tuple[list[int], list[str]]:
        """(processes that were ended, what failed in words); each entry gets its turn."""


class Namespaces:
    """With every process inside; links and filters go with their namespace."""

    needs: dict[str, Any] = {}  # noqa: RUF012

    def exists(self, entry: Entry) -> bool:
        return namespaces.exists(entry.name)

    def undo(self, entries: list[Entry]) -> tuple[list[int], list[str]]:
        names = [entry.name for entry in entries]
        ended, left = namespaces.kill_inside(names), namespaces.pids_inside(names)
        for network in dict.fromkeys(name.split("-")[1] for name in names):
            ended += cgroups.end_started_for(network)
        # Without its name a namespace, and who lives in it, could not be found again.
        failed = [f"process {pid} in {name} can't be ended" for pid, name in left.items()]
        for name in names:
            if name in left.values():
                continue
            try:
                namespaces.remove(name)
            except OSError as error:
                failed.append(f"namespace {name}: {error}")
        return ended, failed


class Groups:
    """With every process in it: those, too, that have left the namespaces that they were started in."""

    needs: dict[str, Any] = {}  # noqa: RUF012

    def exists(self, entry: Entry) -> bool:
        return cgroups.exists(Path(entry.name))

    def undo(self, entries: list[Entry]) -> tuple[list[int], list[str]]:
        ended = [pid for entry in entries for pid in cgroups.remove(Path(entry.name))]
        return ended, [f"{entry.name} can't be removed" for entry in entries if self.exists(entry)]


KINDS: dict[str, Kind] = {
    "group": Groups(),
    "namespace": Namespaces(),
    "link": ours.Links(),
    "clsact": ours.Clsacts(),
    "filter": ours.Filters(),
}


def exists(entry: Entry) -> bool:
    """What a later version made is taken to be there: only that version can tell. So is what can't be looked at now."""
    try:
        return KINDS[entry.kind].exists(entry) if entry.kind in KINDS else True
    except Exception:  # noqa: BLE001 - whatever kept us from looking, the journal stays
        return True


def taken(network_id: str) -> bool:
    """By whoever: groups are the machine's, where /run may be a container's own."""
    group = cgroups.folder(network_id)
    return namespaces.exists(f"lb-{network_id}-sw") or (group is not None and cgroups.exists(group))


def undo(entries: list[Entry]) -> tuple[list[int], list[str]]:
    """In this order; a failure stops nothing but itself."""
    pids: list[int] = []
    failed: list[str] = []
    for kind, some in groupby(entries, key=lambda entry: entry.kind):
        if kind not in KINDS:
            failed.append(f"this version does not know how to undo {', '.join(f'{e.kind} {e.name}' for e in some)}")
            continue
        try:
            ended, wrong = KINDS[kind].undo(list(some))
        except Exception as error:  # noqa: BLE001 - the next kind gets its turn
            ended, wrong = [], [f"{kind}: {error}"]
        pids += ended
        failed += wrong
    return pids, failed


def _fits(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, tuple) else isinstance(value, wanted)


def read(line: str) -> Entry:
    """A line that can't be read stands for something that only a person can look for."""
    try:
        found = json.loads(line)
        entry = Entry(kind=str(found["kind"]), name=str(found["name"]), before=found.get("before"))
        needs = getattr(KINDS.get(entry.kind), "needs", {})
        if not all(_fits(entry.before[key], wanted) for key, wanted in needs.items()):
            raise ValueError("not as it was written")
        return entry
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
        return Entry(kind="a damaged line", name=repr(line[:60]))
