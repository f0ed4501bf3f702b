"""What the replayed traffic lost, of all hosts together."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def last_traffic(folder: Path, role: str) -> list[dict[str, Any]]:
    """The last counts of every rank."""
    out = []
    for path in sorted((folder / "records").glob(f"{role or 'rank'}-*.jsonl")):
        said = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        counts = [one for one in said if one["kind"] == "traffic"]
        out += counts[-1:]
    return out


def main() -> int:
    asked = json.load(sys.stdin)
    found = last_traffic(Path(asked["folder"]), asked["role"])
    sent, received = (sum(sum(one[key]) for one in found) for key in ("sent", "received"))
    if not sent and not float(asked["options"].get("mbit", 1)):
        return 0
    if not sent:
        print(json.dumps({"kind": "error", "message": "nothing was ever sent"}))
        return 0
    loss = round(1 - received / sent, 6)
    row = {"what": "learning", "packets": sent, "missing": sent - received, "learning_loss": loss}
    print(json.dumps({"kind": "row", **row, "shown": list(row)}))
    print(json.dumps({"kind": "summary", "learning_loss": loss}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
