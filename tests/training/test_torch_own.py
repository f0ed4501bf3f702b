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

from tests.forms import forms

HERE = Path(__file__).parent
pytestmark = [pytest.mark.training]


FEW = (
    "test_all_reduce_sum,test_all_gather,test_broadcast,test_all_to_all,test_all_to_all_single_unequal_split,"
    "test_send_recv,test_barrier,test_gather,test_reduce_sum,test_DistributedDataParallelCPU"
)


@pytest.mark.timeout(900)
@forms(("which", "least"), [(FEW, 10), ("", 110)], ids=["ten of them", "all"])
@pytest.mark.skipif(importlib.util.find_spec("expecttest") is None, reason="they need the package expecttest")
def test_what_pytorch_asks_of_a_backend(which: str, least: int) -> None:
    root = HERE.parent.parent
    done = subprocess.run(
        [sys.executable, str(HERE / "torch_own.py"), *(["--exactly", which] if which else [])],
        env={**os.environ, "PYTHONPATH": f"{root}/.package:{root}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=880,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [row for row in rows if row["how"] == "failed"] == []
    passed = [row["test"] for row in rows if row["how"] == "passed"]
    assert len(passed) >= least, "most of what needs no GPU was run"
    reasons = Counter(row["why"] for row in rows if row["how"] == "skipped")
    words = "; ".join(f"{count} {why}" for why, count in reasons.most_common())
    warnings.warn(f"PyTorch's own tests: {len(passed)} passed; skipped: {words}", stacklevel=1)
