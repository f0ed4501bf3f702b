"""PyTorch's own distributed tests hold for the lossy backend where nothing is lost; what is skipped is counted."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = [pytest.mark.training]


@pytest.mark.timeout(900)
@pytest.mark.skipif(importlib.util.find_spec("expecttest") is None, reason="they need the package expecttest")
def test_what_pytorch_asks_of_a_backend() -> None:
    root = HERE.parent.parent
    done = subprocess.run(
        [sys.executable, str(HERE / "torch_own.py")],
        env={**os.environ, "PYTHONPATH": f"{root}/.package:{root}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=880,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [row for row in rows if row["how"] == "failed"] == []
    passed = [row["test"] for row in rows if row["how"] == "passed"]
    assert len(passed) >= 110, "most of what needs no GPU was run"
    reasons = Counter(row["why"] for row in rows if row["how"] == "skipped")
    words = "; ".join(f"{count} {why}" for why, count in reasons.most_common())
    warnings.warn(f"PyTorch's own tests: {len(passed)} passed; skipped: {words}", stacklevel=1)
