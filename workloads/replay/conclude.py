"""What the replayed traffic lost, of all hosts together."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SENT_SHARE = 0.95  # of what the recording asked for: less, and it was other traffic


def last_of(folder: Path, role: str, kind: str) -> list[dict[str, Any]]:
    """The last record of this kind of every rank that has one."""
    out = []
    for path in sorted((folder / "records").glob(f"{role or 'rank'}-*.jsonl")):
        said = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        out += [one for one in said if one["kind"] == kind][-1:]
    return out


def conclude(folder: Path, role: str, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    found = last_of(folder, role, "traffic")
    sent, received = (sum(sum(one[key]) for one in found) for key in ("sent", "received"))
    offered = sum(one.get("offered", 0) for one in last_of(folder, role, "summary"))
    if not sent:
        if float(options.get("mbit", 1)):
            yield {"kind": "error", "message": "nothing was ever sent"}
        return
    loss = round(1 - received / sent, 6)
    row = {"what": "learning", "offered": offered, "packets": sent, "missing": sent - received, "learning_loss": loss}
    yield {"kind": "row", **row, "shown": list(row)}
    yield {"kind": "summary", "learning_loss": loss}
    if sent < SENT_SHARE * offered:
        share = f"{sent} of {offered} packets, {sent / offered:.0%}"
        yield {"kind": "doubt", "text": f"less was sent than the recording asks for: {share}"}


def main() -> int:
    asked = json.load(sys.stdin)
    for record in conclude(Path(asked["folder"]), asked["role"], asked["options"]):
        print(json.dumps(record))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
