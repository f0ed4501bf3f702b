"""What the network did while a run went on: what waited at the switch by class, what was sent and what was lost."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from lossbench.report.content import Content
from lossbench.report.plots.canvas import COLOURS, Panel, Picture, alike, panel
from lossbench.report.plots.curves import stairs
from lossbench.results.index import Run
from lossbench.results.naming import key_of

MOST_PANELS = 6
LEAST_LOOKS = 4
UP, DOWN = "uplink", "downlink"
Lines: TypeAlias = Mapping[str, tuple[Any, Any]]  # by kind: (seconds, values)


def backlog_over_time(content: Content) -> Picture | None:
    """Of the first run of each point; the first, the last, and some between."""
    found = [(run.name, read(run.folder / "queues.jsonl")) for run in _first_runs(content)]
    panels = _panels([(name, lines) for name, lines in found if lines], "kB waiting at a port")
    says = "Mean over the switch's ports, looked at four times a second; the first seed of each point."
    return Picture("queues", "Queues at the switch", says, panels) if panels else None


def uplinks_over_time(content: Content) -> Picture | None:
    """What has not come to the switch yet, where anything had to wait: most of it, where links are full."""
    found = [(run.name, read(run.folder / "queues.jsonl", UP)) for run in _first_runs(content)]
    some = [(name, lines) for name, lines in found if any(any(held) for _, held in lines.values())]
    panels = _panels(some, "kB waiting in a host")
    says = "Mean over the hosts' uplinks, looked at four times a second; the first seed of each point."
    return Picture("uplinks", "Queues in the hosts", says, panels) if panels else None


def drops_over_time(content: Content) -> Picture | None:
    """Beside what waited, what did not fit: by class, where anything was lost."""
    found = [(run.name, lost_by_class(run.folder / "queues.jsonl")) for run in _first_runs(content)]
    some = [(name, lines) for name, lines in found if any(sum(lost) for _, lost in lines.values())]
    panels = _panels(some, "packets per second")
    says = "All of the switch's queues together, between two looks at their counters; the first seed of each point."
    return Picture("drops", "Lost in the switch's queues", says, panels) if panels else None


def rates_over_time(content: Content) -> Picture | None:
    """What all hosts sent, and the share that was lost, between two looks at the counters."""
    found = [(run.name, sent_and_lost(run.folder / "counters.jsonl")) for run in _first_runs(content)]
    some = [(name, {"sent": (x, y), "lost": (x, lost)}) for name, (x, y, lost) in found if len(x) >= LEAST_LOOKS]
    panels = _panels(some, "packets per second")
    says = "All hosts together, counted by the kernel at the uplinks; the first seed of each point."
    return Picture("rates", "Packets sent and lost", says, panels) if panels else None


def _panels(found: Sequence[tuple[str, Lines]], words: str) -> list[Panel]:
    """One for each point, of a line for each kind, from zero, all on one scale."""
    panels = []
    for name, lines in _some(found):
        one = panel(name)
        for colour, (kind, (seconds, values)) in zip(COLOURS, lines.items(), strict=False):
            one.curve(stairs(seconds, values, held=True), kind, {"color": colour})
        one.axes.set(xlabel="seconds", ylabel=words)
        one.axes.set_ylim(bottom=0)
        panels.append(one)
    alike(panels)
    return panels


def _first_runs(content: Content) -> list[Run]:
    first = {key_of(run.summary.point): run for run in reversed(content.suite.runs)}
    return [run for run in content.suite.runs if first[key_of(run.summary.point)] is run]


def _some(found: Sequence[Any]) -> Iterator[Any]:
    if found:
        for number in np.unique(np.linspace(0, len(found) - 1, min(MOST_PANELS, len(found))).round().astype(int)):
            yield found[number]


def read(path: Path, direction: str = DOWN) -> dict[str, tuple[list[float], list[float]]]:
    """class -> (seconds, mean backlog of the downlinks, or uplinks, in kB); empty where nothing was kept."""
    out: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for look in _lines(path):
        try:
            ports = [classes for link, classes in look["backlog_bytes"].items() if link.endswith(direction)]
            for kind in ports[0] if ports else ():
                out[kind][0].append(float(look["elapsed_s"]))
                out[kind][1].append(sum(port.get(kind, 0) for port in ports) / len(ports) / 1000)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return dict(out)


def lost_by_class(path: Path) -> dict[str, tuple[Any, Any]]:
    """class -> (seconds, packets per second that its queues lost), between looks; the counters only ever rise."""
    looks: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for look in _lines(path):
        try:
            for kind, lost in look["dropped"].items():
                looks[kind].append((float(look["elapsed_s"]), float(lost)))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    out = {}
    for kind, known in looks.items():
        table = np.array(known)
        table = table[np.concatenate([[True], np.diff(table[:, 0]) > 0])]
        rates = np.maximum(np.diff(table[:, 1]), 0) / np.diff(table[:, 0])
        out[kind] = (table[:-1, 0], rates)
    return out


def sent_and_lost(path: Path) -> tuple[Any, Any, Any]:
    """(seconds, packets per second sent, lost): between looks; the counters themselves only ever rise."""
    looks = []
    for look in _lines(path):
        try:
            hooks = [rules for hook, rules in look["hooks"].items() if hook.endswith(UP)]
            totals = [sum(one[what] for rules in hooks for one in rules.values()) for what in ("seen", "dropped")]
            looks.append((float(look["time_s"]), *totals))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    table = np.array(looks, dtype=float)
    if len(table) < 2:
        return np.empty(0), np.empty(0), np.empty(0)
    table = table[np.concatenate([[True], np.diff(table[:, 0]) > 0])]
    spans = np.diff(table[:, 0])
    rates = np.maximum(np.diff(table[:, 1:], axis=0), 0) / spans[:, None]
    return table[:-1, 0] - table[0, 0], rates[:, 0], rates[:, 1]


def _lines(path: Path) -> Iterator[Any]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue
