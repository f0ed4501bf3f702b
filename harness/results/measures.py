"""What the numbers of result rows mean: direction, the verdict column they stand on. No report libraries."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lossbench.spec.about import Measure, shipped_measures
from lossbench.spec.experiment import RATIOS_MARK

EXIT = "exit"  # the status with which a program ended
FEW = "fewer than"
RATIOS = "the machine was too busy for times: only ratios of sides measured in turn stand"
PERCENTILE_RULE = 10  # samples that must lie beyond a percentile


BESIDE = "beside"  # in a row: the role of the program beside the workload that made it
NOT_MEASURED = (
    BESIDE,
    "n",
    "ranks",
    "workers",
    "steps",
    "mb",
    "shown",
    "note",
    "path",
    "doubt",
    "doubted",
    "simulated",
    "rank",
    "seed",
)


IN_MS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3, "min": 6e4, "h": 3.6e6}
_SPELLED = {
    "nanosecond": "ns",
    "usec": "us",
    "microsecond": "us",
    "msec": "ms",
    "millisecond": "ms",
    "sec": "s",
    "second": "s",
    "minute": "min",
    "hour": "h",
}
# Of a number without a declared unit: what its name says. Rather void a number that is none than believe a time.
_TIME_WORDS = "ns us ms s sec secs second seconds min mins minutes h hours time latency duration elapsed wall rtt"
_TIME_WORDS += " latencies delay jitter ping lag ttft tpot itl tbt ttfb fct jct cct makespan wallclock"
_TIME_WORDS += " nsec nsecs usec usecs msec msecs millisecond microsecond nanosecond minute hour day days"
_RATE_WORDS = "throughput goodput qps rps tps fps ips iops mbit gbit mbps gbps kbs mbs gbs hz bandwidth bw busbw algbw"
_RATE_WORDS += " pps bps kbps kbits mbits gbits kibps mibps gibps tpm rpm"
_RATE_WORDS += " speed speedup flops mflops gflops tflops pflops mfu persec persecond"
_IN_ONE_WORD = re.compile(r"\w+(time|latency|seconds|persec|persecond)")  # steptime, runtime


def in_ms(unit: str) -> float | None:
    """How many milliseconds one of it is; None for what is no time."""
    word = unit.strip().lower()
    return IN_MS.get(word, IN_MS.get(_SPELLED.get(word.removesuffix("s"), "")))


def of(name: str, unit: str | None = None, declared: Mapping[str, Measure] | None = None) -> Measure:
    """As the workload declared it; by its unit: times and rates stand on *timing*, "" is no unit. Without one, or with
    one that says neither, by its name; X_agreed is judged as X."""
    known = {**shipped_measures(), **(declared or {})}
    said = known.get(name) or known.get(name.removesuffix("_agreed").removesuffix("_mean_model")) or Measure()
    if unit == "":
        return said.model_copy(update={"column": "outcome"})
    seen = _by_unit(unit) or (said if said.column else _by_name(name))
    return seen.model_copy(update={"better": seen.better or said.better, "meaning": said.meaning})


def _by_unit(unit: str | None) -> Measure | None:
    if unit is not None and in_ms(unit) is not None:
        return Measure(better="low", column="timing")
    if unit is not None and (
        in_ms(unit.rpartition("/")[2] if "/" in unit else "")
        or re.search(r"(bit|B)ps$|^Hz$", unit)
        or unit.lower() in _RATE_WORDS.split()
    ):
        return Measure(better="high", column="timing")
    return None


def _by_name(name: str) -> Measure:
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)  # stepTime, samplesPerSecond
    words = set(re.split(r"[^a-z]+", f"{name} {apart}".lower()))
    in_one = any(_IN_ONE_WORD.fullmatch(word) for word in words)
    if words & set(_TIME_WORDS.split()) or in_one or percentile_in(name) is not None:
        return Measure(better="low" if "ms" in words else "", column="timing")
    return Measure(column="timing" if words & set(_RATE_WORDS.split()) else "outcome")


def percentile_in(name: str) -> float | None:
    """p99_ms, ms_step_p999, p99.9_ms, p50_ms: .99, .999, .999, .5; None for what is not a percentile."""
    found = re.search(r"(?:^|[_.])p(\d\d)\.?(\d*)(?:$|_)", name)
    return float(f"0.{found[1]}{found[2]}") if found else None


def needed(q: float) -> int:
    """Samples that a percentile must stand on."""
    return math.ceil(PERCENTILE_RULE / (1 - q) - 1e-6)


def too_few(row: Mapping[str, Any], name: str) -> int:
    """How many samples a percentile of this row would need, if it does not say that it has them; else 0."""
    q = percentile_in(name)
    if q is None:
        return 0
    role = role_of(name, [key.removesuffix(".n") for key in row if key.endswith(".n")])
    dot = "." if role else ""
    has = number(row.get(f"{role}{dot}n", row.get(f"{role}{dot}steps")))
    return 0 if has is not None and has >= needed(q) else needed(q)


def without_interval(row: Mapping[str, Any], name: str) -> int:
    """How many independent samples a percentile would need, if its row tells how many there are (n_independent) and
    has no interval of it (p99_low_ms); else 0. Thousands of requests that waited for the same bursts are a few."""
    q, spelled = percentile_in(name), re.search(r"(?:^|[_.])(p\d\d\.?\d*)(?:$|_)", name)
    role = role_of(name, [key.removesuffix(".n_independent") for key in row if key.endswith(".n_independent")])
    dot = "." if role else ""
    if q is None or spelled is None or f"{role}{dot}n_independent" not in row:
        return 0
    return 0 if number(row.get(f"{role}{dot}{spelled[1]}_low_ms")) is not None else needed(q)


def role_of(name: str, known: Iterable[str]) -> str:
    """web.p99.9_ms is a number of the role web, p99.9_ms of none."""
    return next((role for role in known if role and name.startswith(f"{role}.")), "")


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What a run's verdict says about its numbers."""

    columns: Mapping[str, str]
    roles: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of several programs: the columns of each
    marks: Sequence[str] = ()
    simulated: bool = False
    units: Mapping[str, str] = field(default_factory=dict)
    declared: Mapping[str, Measure] | None = None  # by the workload; None: stored before that was kept
    other_program: bool = False  # than most runs of its suite

    def void(
        self, measure: str, row: Mapping[str, Any] | None = None, *, with_simulated: bool = False, one_seed: bool = True
    ) -> str:
        """Why a number may not be believed or averaged; empty if it may. The one place that decides it. Of `one_seed` a
        percentile needs its own interval; of several, how far they lie apart is one."""
        if self.other_program:
            return "another program made it than most of the runs"
        few = too_few(row, measure) if row is not None else 0
        if few:
            return f"{FEW} {few} samples"
        few = without_interval(row, measure) if row is not None and one_seed else 0
        if few:
            return f"{FEW} {few} independent samples"
        if row is not None and row.get("path") == "unknown":
            return "its bytes did not cross the impaired links"
        if self.simulated and not with_simulated:
            return "loss was simulated"
        timed = of(measure, self.units.get(measure), self.declared).column == "timing"
        outcome = self._outcome(measure, timed=timed)
        if outcome != "valid":
            return "the workload failed" if outcome == "failed" else "the outcome is unknown"
        if self.columns.get("fault") != "valid" and not self.simulated:
            return "the fault was not as asked" if self.columns.get("fault") == "failed" else "the fault was not proven"
        if row is not None and row.get("doubt") and (timed or measure in (row.get("doubted") or ())):
            return str(row["doubt"])
        return self._void_time(measure) if timed else ""

    def _outcome(self, measure: str, *, timed: bool) -> str:
        """Of the program whose number it is. Times need all of them: who is not as expected may be less of a load."""
        mine = {} if timed else self.roles.get(role_of(measure, self.roles), {})
        return mine.get("outcome") or self.columns.get("outcome", "unknown")

    def _void_time(self, measure: str) -> str:
        role = role_of(measure, self.roles)
        mine = self.roles.get(role, self.columns)
        if mine.get("timing") != "valid":
            return f"the machine{', or a program of the run,' if self.roles else ''} was too busy for times"
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
    if value == 0 or 1e-4 <= abs(value) < 9.9e6:
        digits = 4 if abs(value) >= 0.1 else 3 if abs(value) >= 0.01 else 2
        text = f"{value:.{digits}g}"
        return text if "e" not in text else f"{value:.0f}"
    return f"{value:.2g}"


def told_apart(a: float, b: float) -> tuple[str, str]:
    """Both in as few digits as show that they differ; equal ones as `short` does."""
    texts = [short(a), short(b)]
    for digits in range(5, 18):
        if texts[0] != texts[1] or a == b:
            break
        texts = [f"{one:.{digits}g}" for one in (a, b)]
    return texts[0], texts[1]


def met_in_words(rule: float | None, queue: float | None, elsewhere: float | None) -> str:
    """What a workload's packets met: lost by the rules, and below it what was lost otherwise."""
    lines = [percent(rule)]
    lines += [f"+{percent(share)} {name}" for share, name in ((queue, "queue"), (elsewhere, "else")) if share]
    return "\n".join(lines)
