"""Options of a replay, looked at before anything is built."""

from __future__ import annotations

import json
import sys
from typing import Any

from lossbench.workloads.errors import OptionError, status_of
from lossbench.workloads.replay.recording import Recording, load

NUMBERS = ("mbit", "model_mb", "seconds", "send_kb")
NAMES = (*NUMBERS, "recording", "saturate")


def check(options: dict[str, Any]) -> Recording:
    """What it will offer."""
    for name, value in options.items():
        if name not in NAMES:
            raise OptionError(f"replay: no option '{name}' (there are {', '.join(NAMES)})")
        if name in NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
            raise OptionError(f"replay: {name} must be a number, and can't be below 0")
    if not isinstance(options.get("saturate", False), bool):
        raise OptionError("replay: saturate is true or false")
    return load(str(options.get("recording", "resnet110")))


def main() -> int:
    return status_of(lambda: [check(options) for options in json.load(sys.stdin)])


if __name__ == "__main__":
    raise SystemExit(main())
