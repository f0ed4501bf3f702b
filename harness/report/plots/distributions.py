"""Distributions: times with their tail, burst lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from lossbench.report.content import Content
from lossbench.report.plots.canvas import COLOURS, MOST_LINES, Picture, label, legend, looks, sheet
from lossbench.results import measures

MOST_SAMPLES = 20_000  # drawn of a distribution; its tail is always drawn whole


def slower_than(content: Content) -> Picture | None:
    """The share of samples slower than a time: the tail is where the line goes on to the right."""
    drawable = [one for one in content.sets if one.unit == "ms" and sum(map(len, one.parts)) >= 20]
    sets = drawable[:MOST_LINES]
    if not sets:
        return None
    left_out = f" Only the first {MOST_LINES} of {len(drawable)} sets are drawn." if len(drawable) > MOST_LINES else ""
    figure, (axes,) = sheet()
    several = len({one.what for one in sets}) > 1
    styles = looks({**one.swept, "": one.what} if several else one.swept for one in sets)
    for one, look in zip(sets, styles, strict=True):
        values = np.sort(one.numbers)
        share = 1 - np.arange(len(values)) / len(values)
        keep = _thinned(len(values))
        axes.plot(values[keep], share[keep], label=label(one.label + ("" if one.sound else " ?")), **look)
    axes.set(xlabel="ms", ylabel="share that took longer", xscale="log", yscale="log")
    legend(axes)
    says = "All seeds together; a step counts once, by its slowest rank. ?: too busy, failed, or not proven."
    return Picture("tail", "Times and their tail", says + left_out, figure)


def _thinned(size: int) -> Any:
    if size <= MOST_SAMPLES:
        return slice(None)
    tail = MOST_SAMPLES // 10
    body = np.linspace(0, size - tail - 1, MOST_SAMPLES // 10).astype(int)
    return np.concatenate([body, np.arange(size - tail, size)])


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
    chosen = dict(sorted(seen.items(), key=lambda item: -np.flatnonzero(item[1][0]).max())[:3])  # the longest say most
    figure, panels = sheet(len(chosen), height=2.8, width=min(3.4 * len(chosen) + 1, 9))
    for axes, (rule, (counts, wanted)) in zip(panels, chosen.items(), strict=True):
        shown = int(max(np.flatnonzero(counts).max(), np.flatnonzero(wanted > 0.5).max(initial=0))) + 1
        counts, wanted, lengths = counts[:shown], wanted[:shown], np.arange(1, shown + 1)
        axes.bar(lengths, counts, color=COLOURS[0], alpha=0.5, label="seen")
        axes.plot(lengths[wanted > 0], wanted[wanted > 0], color=COLOURS[1], marker="o", markersize=3, label="asked")
        axes.set(xlabel="packets lost in a row", ylabel="bursts", yscale="log", title=label(rule).partition(":")[2])
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(panels[-1])
    says = "Of the probes that proved the fault."
    says += f" The burstiest three of {len(seen)} profiles." if len(seen) > 3 else ""
    return Picture("bursts", "Burst lengths, asked and seen", says, figure)


def _numbers(value: Any) -> Any:
    found = [measures.number(one) for one in value] if isinstance(value, list) else []
    return np.array([one for one in found if one is not None] if None not in found else [])
