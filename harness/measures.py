"""What the numbers of result rows mean: unit, direction, the verdict column they stand on. No report libraries."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

PERCENTILE_RULE = 10  # samples that must lie beyond a percentile


@dataclass(frozen=True)
class Measure:
    better: Literal["low", "high", ""] = ""
    column: Literal["timing", "outcome"] = "outcome"
    unit: str = ""


LOW, HIGH = Measure("low"), Measure("high")
KNOWN: dict[str, Measure] = {
    "train_loss": LOW, "loss": LOW, "perplexity": LOW, "accuracy": HIGH, "slot_f1": HIGH, "intent_accuracy": HIGH,
    "drift_first": LOW, "drift_last": LOW, "gbit_s": Measure("high", "timing", "Gbit/s"),
    "cpu_s_per_gb": Measure("low", "timing", "s"), "vs_tcp": Measure("high", "timing", "x"),
    "vs_gloo": Measure("high", "timing", "x"), "items_s": Measure("high", "timing"),
    "outside": Measure("low", "timing"),
}  # fmt: skip
NOT_MEASURED = ("n", "ranks", "workers", "steps", "mb", "shown", "note", "path", "simulated")


def of(name: str) -> Measure:
    """By name; milliseconds are timing wherever they stand in it, and X_agreed is judged as X."""
    if name in KNOWN:
        return KNOWN[name]
    if re.search(r"(^|_)ms($|_)", name):
        return Measure("low", "timing", "ms")
    base = name.removesuffix("_agreed").removesuffix("_mean_model")
    return KNOWN.get(base, Measure())


def percentile_in(name: str) -> float | None:
    """p99_ms, ms_step_p999, p50_ms: .99, .999, .5; None for what is not a percentile."""
    found = re.search(r"(?:^|_)p(\d\d)(\d*)(?:$|_)", name)
    return float(f"0.{found[1]}{found[2]}") if found else None


def needed(q: float) -> int:
    """Samples that a percentile must stand on."""
    return math.ceil(PERCENTILE_RULE / (1 - q) - 1e-6)


def too_few(row: dict[str, Any], name: str) -> int:
    """How many samples a percentile of this row would need, if it has fewer; else 0."""
    q = percentile_in(name)
    if q is None:
        return 0
    has = row.get("n", row.get("steps"))
    return needed(q) if isinstance(has, int) and has < needed(q) else 0


def void_because(
    measure: str, row: dict[str, Any], *, columns: Mapping[str, str], simulated: bool, with_simulated: bool = False
) -> str:
    """Why a number of a row may not be believed or averaged, by the verdict of its run; empty if it may."""
    if row.get("path") == "unknown":
        return "its bytes did not cross the impaired links"
    if simulated and not with_simulated:
        return "loss was simulated"
    if columns.get("outcome") == "failed":
        return "the workload failed"
    if columns.get("fault") != "valid" and not simulated:
        return f"the fault is {columns.get('fault', 'unknown')}"
    if of(measure).column == "timing" and columns.get("timing") != "valid":
        return "the machine was too busy to believe times"
    few = too_few(row, measure)
    return f"fewer than {few} samples" if few else ""


def number(value: Any) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good else None


def short(value: float) -> str:
    """Within eight characters."""
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        digits = 4 if abs(value) >= 0.1 else 3 if abs(value) >= 0.01 else 2
        text = f"{value:.{digits}g}"
        return text if "e" not in text else f"{value:.0f}"
    return f"{value:.2g}"
