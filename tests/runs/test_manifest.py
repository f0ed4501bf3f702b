"""What is written down of a run before anything happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from lossbench.runs.ground import About
from lossbench.runs.manifest import manifest
from lossbench.spec.experiment import Experiment
from lossbench.spec.userfile import check


def test_what_was_asked_of_the_transport_beside_the_experiment_is_in_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: a policy of the environment left no trace in a run."""
    experiment = check(
        Experiment, {"name": "one", "topology": {"hosts": 2}, "workload": {"command": ["true"]}}, origin=""
    )
    monkeypatch.setenv("LOSSBENCH_POLICY", "pace=20,tag=packet")
    monkeypatch.delenv("LOSSBENCH_NATIVE", raising=False)
    written = manifest(experiment, 1, {}, "none", "a test", "id", tmp_path, About())
    assert written["transport"] == {"policy": "pace=20,tag=packet", "native": ""}
