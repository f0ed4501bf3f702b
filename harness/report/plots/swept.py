"""What was swept, as numbers: of a file's sweep the values, of the command line's the parts of an arm's name, such as
"loss 5%, bursts of 8, 20 ms" (spec.asking.adhoc writes it)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lossbench.report.groups import Group
from lossbench.results import measures
from lossbench.results.naming import word
from lossbench.spec import units
from lossbench.spec.asking.adhoc import CLEAN
from lossbench.spec.asking.arms import ARM

NUMBER = r"(\d[\d.e+-]*)"
OF_AN_ARM = {
    "loss percent": rf"loss {NUMBER}%",
    "burst packets": rf"bursts of {NUMBER}",
    "delay ms": rf"{NUMBER} ms",
    "hosts": rf"{NUMBER} hosts",
}
ON_AN_AXIS = {
    "burst packets": "packets lost in a row, on average",
    "delay ms": "delay (ms)",
    "rate mbit": "rate (Mbit/s)",
    "topology.rate_mbit": "rate (Mbit/s)",
    "topology.hosts": "hosts",
}
IN_A_LEGEND = {
    "loss percent": "loss {:g}%",
    "burst packets": "bursts of {:g}",
    "delay ms": "{:g} ms",
    "rate mbit": "{:g} Mbit/s",
    "hosts": "{:g} hosts",
}
WORDS = "words"  # whatever an arm is called besides
Parts = Mapping[str, float | str]


@dataclass(frozen=True)
class Line:
    """Groups that differ in nothing but the number on the axis."""

    name: str
    groups: Sequence[tuple[float, Group]]


def parts_of(point: dict[str, Any]) -> Parts:
    out: dict[str, float | str] = {}
    for key, value in point.items():
        number = measures.number(value)
        out |= _of_an_arm(str(value)) if key == ARM else {key: word(value) if number is None else number}
    return out


def _of_an_arm(name: str) -> Parts:
    out: dict[str, float | str] = {}
    words = []
    for part in name.split(", "):
        found = ((kind, m[1]) for kind, like in OF_AN_ARM.items() if (m := re.fullmatch(like, part)))
        kind, said = next(found, ("rate mbit", part))
        try:
            out[kind] = units.read(said, "mbit") if kind == "rate mbit" else float(said)
        except ValueError:
            words += [part] if part != CLEAN else []
    return {**out, WORDS: ", ".join(words)}


def key_of(groups: Sequence[Group]) -> str:
    """The number with the most values; empty if none has two."""
    values: dict[str, set[float]] = {}
    for group in groups:
        for key, value in parts_of(group.point).items():
            if isinstance(value, float | int):
                values.setdefault(key, set()).add(float(value))
    several = {key: len(found) for key, found in values.items() if len(found) > 1}
    return max(several, key=several.__getitem__, default="")


def lines_of(groups: Sequence[Group], key: str) -> list[Line]:
    """One for each combination of the rest. A point of which one of the rest is not known (bursts, where nothing is
    lost) belongs to every line that is like it otherwise."""
    known = [(group, parts_of(group.point)) for group in groups]
    known = [(group, parts) for group, parts in known if isinstance(parts.get(key), float | int)]
    seen: dict[str, set[float | str]] = {}
    for _, parts in known:
        for name, value in parts.items():
            seen.setdefault(name, set()).add(value)
    differ = [name for name, values in seen.items() if name != key and len(values) > 1]
    rests = [{**{name: parts[name] for name in differ if name in parts}, "": group.row} for group, parts in known]
    whole = [rest for n, rest in enumerate(rests) if rest not in rests[:n]]
    whole = [rest for rest in whole if not any(rest.items() < other.items() for other in whole)]
    return [
        Line(
            " ".join(filter(None, (_said(name, value) for name, value in rest.items()))) or "mean",
            [(float(p[key]), g) for (g, p), own in zip(known, rests, strict=True) if own.items() <= rest.items()],
        )
        for rest in whole
    ]


def _said(key: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    return IN_A_LEGEND[key].format(value) if key in IN_A_LEGEND else f"{axis(key)} {value:g}"


def axis(key: str) -> str:
    """In the words of an axis."""
    said = key.rpartition(".profile.")[2].replace(".", " ").removeprefix("workload options ").replace("_", " ")
    return ON_AN_AXIS.get(key) or said.replace("loss percent", "loss (%)")
