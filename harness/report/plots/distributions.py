"""Distributions: times with their tail, burst lengths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from lossbench.report.content import Content
from lossbench.report.plots.canvas import COLOURS, MOST_CURVES, MOST_LINES, Picture, alike, looks, panel
from lossbench.report.plots.curves import Curve, stairs
from lossbench.report.plots.library import MaxNLocator
from lossbench.report.samples import SampleSet
from lossbench.results import measures
from lossbench.results.naming import key_of

BESIDE = "."  # between a role and what it measured
MOST_POINTS, WHOLE = 240, 40  # drawn of a distribution; of its tail every sample


def slower_than(content: Content) -> Picture | None:
    """The share of samples slower than a time: the tail is where the line goes on to the right."""
    drawable = [one for one in content.sets if one.unit == "ms" and sum(map(len, one.parts)) >= 20]
    sets = drawable[:MOST_LINES]
    if not sets:
        return None
    left_out = f" Only the first {MOST_LINES} of {len(drawable)} sets are drawn." if len(drawable) > MOST_LINES else ""
    panels = []
    for title, some, styles in _shared_out(sets):
        one = panel(title)
        for each, look in zip(some, styles, strict=True):
            values = np.sort(each.numbers)
            share = 1 - np.arange(len(values)) / len(values)
            keep = _thinned(len(values))
            name = (each.point if title else each.label) + ("" if each.sound else " ?")
            one.curve(stairs(values[keep], share[keep], held=True), name, look)
        one.axes.set(xlabel="milliseconds", ylabel="share that took longer", xscale="log", yscale="log")
        panels.append(one)
    alike([one for one in panels if not one.title])
    says = "All seeds together; a step counts once, by its slowest rank, a request or a round trip by itself."
    says += " ?: too busy, failed, or not proven."
    return Picture("tail", "Times and their tail", says + left_out, panels)


def _shared_out(sets: list[SampleSet]) -> Iterator[tuple[str, list[SampleSet], list[dict[str, Any]]]]:
    """(title, sets, looks) of every panel. The workload's own times are contenders, and stand together; of a program
    beside it each kind has panels of its own: lags of microseconds beside completions of seconds say nothing. A point
    has the same look in all of them."""
    kinds = dict.fromkeys(one.what if BESIDE in one.what else "" for one in sets)
    points = {key_of(one.swept): one.swept for one in sets}
    of_point = dict(zip(points, looks(points.values()), strict=True))
    for kind in kinds:
        own = [one for one in sets if (one.what if BESIDE in one.what else "") == kind]
        several = len({one.what for one in own}) > 1
        contenders = looks({**one.swept, "": one.what} for one in own)
        styles = contenders if several else [of_point[key_of(one.swept)] for one in own]
        for first in range(0, len(own), MOST_CURVES):
            part = slice(first, first + MOST_CURVES)
            yield kind.removesuffix("_ms"), own[part], styles[part]


def _thinned(size: int) -> Any:
    """Which of the sorted samples: evenly in the body, more and more of them towards the tail."""
    if size <= MOST_POINTS:
        return slice(None)
    body = np.linspace(0, size - 1, MOST_POINTS // 2).astype(int)
    tail = size - np.geomspace(1, size, MOST_POINTS // 2).astype(int)
    return np.unique(np.concatenate([body, tail, np.arange(size - WHOLE, size)]))


def burst_lengths(content: Content) -> dict[str, tuple[Any, Any]]:
    """rule -> bursts of 1, 2, ... packets, seen and asked, over all rows; each pattern counts once. Rows made before
    every row said what was asked to one length, or whose seeds share patterns, are left out."""
    out: dict[str, tuple[Any, Any]] = {}
    patterns: set[tuple[str, Any]] = set()
    for run in content.suite.runs:
        for row in run.proof_rows() if run.summary.seeds_version >= 2 else []:
            counts, shares = _numbers(row.burst_counts), _numbers(row.burst_shares)
            rule, pattern = row.rule, row.pattern
            if not len(counts) or len(counts) != len(shares) or (pattern is not None and (rule, pattern) in patterns):
                continue
            patterns.add((rule, pattern))
            old = out.get(rule, (0.0, 0.0))
            out[rule] = (old[0] + counts, old[1] + counts.sum() * shares)
    return {rule: both for rule, both in out.items() if both[0].sum() > 50}


def bursts(content: Content) -> Picture | None:
    """How many packets were lost in a row, in the proof: seen against asked."""
    seen = burst_lengths(content)
    if not seen:
        return None
    longest = sorted(seen, key=lambda rule: -np.flatnonzero(seen[rule][0]).max())[:3]  # these say most
    panels = []
    for rule, (counts, wanted) in seen.items():
        if rule not in longest:
            continue
        one = panel(rule.partition(":")[2])
        shown = int(max(np.flatnonzero(counts).max(), np.flatnonzero(wanted > 0.5).max(initial=0))) + 1
        counts, wanted, lengths = counts[:shown], wanted[:shown], np.arange(1.0, shown + 1)
        one.axes.bar(lengths, counts, color=COLOURS[0], alpha=0.4)
        one.curve(Curve(lengths, counts), "seen", {"color": COLOURS[0], "linestyle": "none", "marker": "_"})
        one.curve(Curve(lengths[wanted > 0], wanted[wanted > 0]), "asked", {"color": COLOURS[1], "marker": "o"})
        one.axes.set(xlabel="packets lost in a row", ylabel="bursts", yscale="log")
        one.axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        panels.append(one)
    says = "Of the probes that proved the fault. asked: the expected number of bursts; below 1 is chance."
    says += f" The burstiest three of {len(seen)} profiles." if len(seen) > 3 else ""
    return Picture("bursts", "Burst lengths, asked and seen", says, panels)


def _numbers(value: Any) -> Any:
    found = [measures.number(one) for one in value] if isinstance(value, list) else []
    return np.array([one for one in found if one is not None] if None not in found else [])
