"""The guest tier's list of tests must name tests that exist: a renamed one would silently leave the tier."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import ALSO_ON_STOCK

ROOT = Path(__file__).resolve().parents[2]


def test_every_test_named_for_the_stock_kernel_exists() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests"]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    for name in ALSO_ON_STOCK:
        assert any(line.endswith(name) for line in collected), name
