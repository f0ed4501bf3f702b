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
MEANING = {
    "train_loss": "training loss, mean over workers and the last tenth of the steps",
    "accuracy": "of the workers' own models on held-out data, mean over workers",
    "perplexity": "of the workers' own models on held-out text, mean over workers",
    "slot_f1": "of the workers' own models on held-out utterances, mean over workers",
    "drift_first": "squared distance of two workers' models, mean over the first quarter of the run",
    "drift_last": "the same over the second half: larger means that they part",
    "arrived": "share of the packets' payload that arrived, mean of both halves",
    "arrived_1": "share that arrived in the first half (reduce-scatter)",
    "arrived_2": "share that arrived in the second half (all-gather)",
    "ms_step": "median time of a step", "ms_step_p99": "99th percentile of it",
    "items_s": "items trained on per second, all workers", "outside": "share of a step outside model and network",
    "over_exact": "measured drift over the exact formula 2p/(1-p^2)",
    "over_stated": "measured drift over the paper's formula 2p/(1+p)",
    "over_predicted": "measured drift over the prediction from the measured updates",
    "owner_over_exact": "distance of owner and worker over the exact formula p/(1-p)",
    "n": "calls", "p50_ms": "median time of a call", "p99_ms": "99th percentile of it", "max_ms": "the slowest call",
    "gbit_s": "payload per second at the median", "vs_tcp": "how many times as fast as the fastest TCP (median)",
    "vs_gloo": "how many times as fast as the fastest Gloo (median)",
    "cpu_s_per_gb": "CPU seconds of all ranks for a gigabyte of payload",
    "sent": "datagrams of a rank", "received": "datagrams that reached it",
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
        return "the fault was not proven" if columns.get("fault") != "failed" else "the fault was not as asked"
    if of(measure).column == "timing" and columns.get("timing") != "valid":
        return "the machine was too busy for times"
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
