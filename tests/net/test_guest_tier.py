"""The tests that every CI run repeats on a stock kernel are named by hand: none of the names may lead nowhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ALSO_ON_STOCK

ROOT = Path(__file__).resolve().parents[2]


def test_every_test_named_for_the_stock_kernel_exists(request: pytest.FixtureRequest) -> None:
    """Files that are not collected anyway, as `make test` does, are collected here."""
    files = {next((ROOT / "tests").rglob(name.split("::")[0])) for name in ALSO_ON_STOCK}
    found = [item.nodeid for item in request.session.items]
    if others := files - {item.path for item in request.session.items}:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *map(str, others)]
        found += subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [name for name in ALSO_ON_STOCK if not any(line.endswith(name) for line in found)] == []
