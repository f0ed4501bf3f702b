"""What programs say of themselves, as a watch takes it, down to the numbers that may not be believed."""

from __future__ import annotations

from typing import Any

import pytest

from lossbench.proof.judge import judge
from lossbench.proof.verdict import Status
from lossbench.proof.watched import Quiet, Watched
from lossbench.results.measures import Standing
from lossbench.runs.watch import Watch
from lossbench.spec.experiment import Experiment

BESIDE = Experiment.model_validate(
    {
        "name": "t",
        "workload": {"name": "replay"},
        "beside": [{"role": "web", "name": "web", "foreground": True}],
        "impair": [{"profile": "clean"}],
    }
)


def taken(*records: tuple[str, dict[str, Any]]) -> Watched:
    watch = Watch.__new__(Watch)
    watch.experiment = BESIDE
    watch.seen = Watched(quiet=Quiet(cpu_busy=[0.1] * 10, late_ms=[0.1] * 10))
    watch._now = {}
    watch._take([(role, {"rank": 0, **record}) for role, record in records])
    return watch.seen


@pytest.mark.parametrize(
    ("role", "load", "unknown"),
    [("", True, {"", "web"}), ("web", True, {"", "web"}), ("", False, {""}), ("web", False, {"web"})],
)
def test_load_that_was_not_offered_voids_the_times_of_all_programs(role: str, load: bool, unknown: set[str]) -> None:
    """As it was: a replay that had sent half of its bursts left the service's times believed."""
    watched = taken((role, {"kind": "doubt", "text": "half was sent", **({"load": True} if load else {})}))
    verdict = judge(experiment=BESIDE, backend="ebpf", proof=None, watched=watched)
    assert {who for who, here in verdict.roles.items() if here["timing"].status != Status.VALID} == unknown
    assert verdict.columns["timing"].reasons() == ["half was sent"]


@pytest.mark.parametrize("role", ["", "noise"])
def test_a_rows_doubt_voids_its_times_and_what_it_names_beside_them(role: str) -> None:
    row = {"what": "learning", "learning_loss": 0.1, "packets": 9, "took_ms": 5.0, "shown": ["what", "learning_loss"]}
    watched = taken((role, {"kind": "row", **row, "doubt": "half was sent", "doubted": ["learning_loss"]}))
    (kept,) = watched.rows
    dot = f"{role}." if role else ""
    standing = Standing(columns=dict.fromkeys(("fault", "timing", "outcome"), "valid"))
    void = {name for name in ("learning_loss", "packets", "took_ms") if standing.void(f"{dot}{name}", kept)}
    assert void == {"learning_loss", "took_ms"} and kept["shown"] == [f"{dot}what", f"{dot}learning_loss"]
