"""The names of measures as people write them, with their units: on a page and at an axis."""

from __future__ import annotations

import re

UNITS = {"ms": "ms", "s": "s", "mb": "MB", "kb": "kB", "percent": "%", "mbit": "Mbit/s"}
RATES = re.compile(r"(samples|tokens)_s(_worker)?")
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
