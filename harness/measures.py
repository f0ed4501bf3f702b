"""What the numbers of result rows mean: direction, the verdict column they stand on. No report libraries."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

FEW = "fewer than"
RATIOS = "the machine was too busy for times: only ratios of sides measured in turn stand"
RATIOS_MARK = "timing: ratios only"  # of a verdict
PERCENTILE_RULE = 10  # samples that must lie beyond a percentile


@dataclass(frozen=True)
class Measure:
    better: Literal["low", "high", ""] = ""
    column: Literal["timing", "outcome"] = "outcome"


LOW, HIGH = Measure("low"), Measure("high")
KNOWN: dict[str, Measure] = {
    "train_loss": LOW, "loss": LOW, "perplexity": LOW, "accuracy": HIGH, "slot_f1": HIGH, "intent_accuracy": HIGH,
    "drift_first": LOW, "drift_last": LOW, "gbit_s": Measure("high", "timing"),
    "cpu_s_per_gb": Measure("low", "timing"), "vs_tcp": Measure("high", "timing"),
    "vs_gloo": Measure("high", "timing"), "items_s": Measure("high", "timing"),
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
NOT_MEASURED = ("n", "ranks", "workers", "steps", "mb", "shown", "note", "path", "simulated", "rank", "seed")


IN_MS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3, "min": 6e4, "h": 3.6e6}
_SPELLED = {
    "nanosecond": "ns", "usec": "us", "microsecond": "us", "msec": "ms", "millisecond": "ms", "sec": "s", "second": "s",
    "minute": "min", "hour": "h",
}  # fmt: skip
# Of a number without a declared unit: what its name says. Rather void a number that is none than believe a time.
_TIME_WORDS = "ns us ms s sec secs second seconds min mins minutes h hours time latency duration elapsed wall rtt"
_RATE_WORDS = "throughput qps rps mbit gbit mbps gbps hz bandwidth"


def in_ms(unit: str) -> float | None:
    """How many milliseconds one of it is; None for what is no time."""
    word = unit.strip().lower()
    return IN_MS.get(word, IN_MS.get(_SPELLED.get(word.removesuffix("s"), "")))


def of(name: str, unit: str | None = None) -> Measure:
    """By its declared unit: times and rates stand on *timing*, "" is no unit. Without one, or with one that says
    neither, by its name; X_agreed is judged as X."""
    if unit == "":
        return Measure(KNOWN[name].better if name in KNOWN else "")
    if unit is not None:
        if in_ms(unit) is not None:
            return Measure("low", "timing")
        if in_ms(unit.rpartition("/")[2] if "/" in unit else "") is not None or re.search(r"(bit|B)ps$|^Hz$", unit):
            return Measure("high", "timing")
    if name in KNOWN:
        return KNOWN[name]
    words = set(re.split(r"[^a-z]+", name.lower()))
    if words & set(_TIME_WORDS.split()):
        return Measure("low" if "ms" in words else "", "timing")
    if words & set(_RATE_WORDS.split()):
        return Measure("", "timing")
    base = name.removesuffix("_agreed").removesuffix("_mean_model")
    return KNOWN.get(base, Measure())


def percentile_in(name: str) -> float | None:
    """p99_ms, ms_step_p999, p99.9_ms, p50_ms: .99, .999, .999, .5; None for what is not a percentile."""
    found = re.search(r"(?:^|_)p(\d\d)\.?(\d*)(?:$|_)", name)
    return float(f"0.{found[1]}{found[2]}") if found else None


def needed(q: float) -> int:
    """Samples that a percentile must stand on."""
    return math.ceil(PERCENTILE_RULE / (1 - q) - 1e-6)


def too_few(row: Mapping[str, Any], name: str) -> int:
    """How many samples a percentile of this row would need, if it does not say that it has them; else 0."""
    q = percentile_in(name)
    if q is None:
        return 0
    has = number(row.get("n", row.get("steps")))
    return 0 if has is not None and has >= needed(q) else needed(q)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What a run's verdict says about its numbers."""

    columns: Mapping[str, str]
    marks: Sequence[str] = ()
    simulated: bool = False
    units: Mapping[str, str] = field(default_factory=dict)

    def void(self, measure: str, row: Mapping[str, Any] | None = None, *, with_simulated: bool = False) -> str:
        """Why a number may not be believed or averaged; empty if it may. The one place that decides it."""
        few = too_few(row, measure) if row is not None else 0
        if few:
            return f"{FEW} {few} samples"
        if row is not None and row.get("path") == "unknown":
            return "its bytes did not cross the impaired links"
        if self.simulated and not with_simulated:
            return "loss was simulated"
        if self.columns.get("outcome") != "valid":
            return "the workload failed" if self.columns.get("outcome") == "failed" else "the outcome is unknown"
        if self.columns.get("fault") != "valid" and not self.simulated:
            return "the fault was not as asked" if self.columns.get("fault") == "failed" else "the fault was not proven"
        unit = self.units.get(measure)
        return self._void_time(measure) if of(measure, unit).column == "timing" else ""

    def _void_time(self, measure: str) -> str:
        if self.columns.get("timing") != "valid":
            return "the machine was too busy for times"
        return RATIOS if RATIOS_MARK in self.marks and not measure.startswith("vs_") else ""


def number(value: Any) -> float | None:
    """None for what is none, or none to be averaged."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.3g} %"


def short(value: float) -> str:
    """Within eight characters."""
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        digits = 4 if abs(value) >= 0.1 else 3 if abs(value) >= 0.01 else 2
        text = f"{value:.{digits}g}"
        return text if "e" not in text else f"{value:.0f}"
    return f"{value:.2g}"


def met_in_words(rule: float | None, queue: float | None, elsewhere: float | None) -> str:
    """What a workload's packets met: lost by the rules, and below it what was lost otherwise."""
    lines = [percent(rule)]
    lines += [f"+{percent(share)} {name}" for share, name in ((queue, "queue"), (elsewhere, "else")) if share]
    return "\n".join(lines)
