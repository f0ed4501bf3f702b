"""What the replayed traffic lost, of all hosts together."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SENT_SHARE = 0.95  # of what the recording asked for: less, and it was other traffic
SATURATED = "Saturated: hosts sent as much as their links took."
Records = list[dict[str, Any]]


def said(folder: Path, role: str) -> list[Records]:
    """The records of every rank."""
    paths = sorted((folder / "records").glob(f"{role or 'rank'}-*.jsonl"))
    return [[json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] for path in paths]


def last_of(records: list[Records], kind: str) -> Records:
    """The last record of this kind of every rank that has one."""
    return [one for here in records for one in [one for one in here if one["kind"] == kind][-1:]]


def doubts(records: list[Records]) -> list[str]:
    """Why the load that was offered is not the one that was asked for: what hosts say of themselves, then of all of
    them together."""
    out = [str(one["text"]) for here in records for one in here if one["kind"] == "doubt" and one.get("load") is True]
    return [*out, *filter(None, [_short(records)])]


def _short(records: list[Records]) -> str:
    sent = sum(sum(one["sent"]) for one in last_of(records, "traffic"))
    offered = sum(one.get("offered", 0) for one in last_of(records, "summary"))
    if sent >= SENT_SHARE * offered:
        return ""
    return f"less was sent than the recording asks for: {sent} of {offered} packets, {sent / offered:.0%}"


def conclude(folder: Path, role: str, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    records = said(folder, role)
    found = last_of(records, "traffic")
    sent, received = (sum(sum(one[key]) for one in found) for key in ("sent", "received"))
    offered = sum(one.get("offered", 0) for one in last_of(records, "summary"))
    if not sent:
        if float(options.get("mbit", 1)):
            yield {"kind": "error", "message": "nothing was ever sent"}
        return
    loss = round(1 - received / sent, 6)
    row = {"what": "learning", "offered": offered, "packets": sent, "missing": sent - received, "learning_loss": loss}
    why = "; ".join(doubts(records))
    void: dict[str, Any] = {"doubt": why, "doubted": ["learning_loss"]} if why else {}
    void |= {"note": SATURATED} if options.get("saturate") else {}
    yield {"kind": "row", **row, "shown": list(row), **void}
    yield {"kind": "summary", "learning_loss": loss}
    if short := _short(records):
        yield {"kind": "doubt", "load": True, "text": short}


def main() -> int:
    asked = json.load(sys.stdin)
    for record in conclude(Path(asked["folder"]), asked["role"], asked["options"]):
        print(json.dumps(record))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
