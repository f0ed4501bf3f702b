"""Runs a user's own module as `python -m` does, and finds it in the current folder too, last of all: no file there can
stand in for a module of Python or of ours. Ours are never run with that folder on the path.

    python -P -m lossbench.runs.launch.module MODULE
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

OURS = "lossbench."


def run(module: str) -> None:
    if not module.startswith(OURS):
        sys.path.append(str(Path.cwd()))
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    run(sys.argv[1])
