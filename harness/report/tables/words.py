"""The names of measures as people write them, with their units: on a page, at an axis, above a column; and why numbers
are not averaged, with the lines it is said of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from lossbench.results.measures import FEW
from lossbench.results.naming import in_brackets, whose

UNITS = {"ms": "ms", "s": "s", "mb": "MB", "kb": "kB", "percent": "%", "mbit": "Mbit/s"}
RATES = re.compile(r"(samples|tokens|steps|images|requests)_s(_worker)?")
KIND = re.compile(r"(.+)_(mean|p\d+)")
OF_ITS_OWN = {"ms_step": "median time of a step (ms)", "mb_step": "sent in a step (MB)"}


def in_words(name: str) -> str:
    """ms_step_mean: mean time of a step (ms); wall_s: wall (s)."""
    if name in OF_ITS_OWN:
        return OF_ITS_OWN[name]
    if rate := RATES.fullmatch(name):
        return f"{rate[1]} per second{' of a worker' if rate[2] else ''}"
    if name.startswith("ms_"):
        kind = KIND.fullmatch(name)
        of = (kind[1] if kind else name).removeprefix("ms_").replace("_", " ")
        return f"{f'{kind[2]} ' if kind else ''}time of a {of} (ms)"
    head, _, unit = name.rpartition("_")
    said = UNITS.get(unit)
    return f"{head.replace('_', ' ')} ({said})" if said and head else name.replace("_", " ")


def heading(name: str) -> str:
    """Above a column at a terminal, in words that may stand one below the other: samples_s_worker is no samples,
    seconds, workers."""
    if rate := RATES.fullmatch(name):
        return f"{rate[1]} per s{' of a worker' if rate[2] else ''}"
    if name.startswith(("ms_", "mb_")):
        unit, _, of = name.partition("_")
        kind = KIND.fullmatch(of)
        what = (kind[1] if kind else of).replace("_", " ")
        return f"{kind[2]} {UNITS[unit]} a {what}" if kind else f"{UNITS[unit]} a {what}"
    head, _, unit = name.rpartition("_")
    return f"{head.replace('_', ' ')} {UNITS[unit]}" if head and unit in UNITS else name.replace("_", " ")


def why_void(lines: Mapping[str, Sequence[str]], every: Sequence[str]) -> list[str]:
    """Of reasons, with the lines they are about: those for a question mark."""
    some = sorted(text for text in lines if text and not text.startswith(FEW))
    return [f"?: not averaged: {text}{in_brackets(whose(lines[text], every))}." for text in some]


def few_samples(lines: Mapping[str, Sequence[str]], every: Sequence[str]) -> list[str]:
    """The same: those for a percentile that is not printed."""
    some = sorted(text for text in lines if text.startswith(FEW))
    return [f"-: a percentile is not printed with {text}{in_brackets(whose(lines[text], every))}." for text in some]


def out_of(having: int, planned: int) -> str:
    """Of the planned seeds or runs."""
    return str(having) if having >= planned else f"{having} of {planned}"
