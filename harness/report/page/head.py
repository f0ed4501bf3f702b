"""What was done, in one line below a page's title: for who did not do it, or has forgotten."""

from __future__ import annotations

import shlex
from typing import Any

from lossbench.results.index import Suite
from lossbench.results.naming import counted, point_name

MOST_POINTS = 6


def done(suite: Suite) -> str:
    """python train.py, 4 hosts, no rate limit; clean, loss 3%; 2 seeds; 2026-11-19."""
    asked = [one.experiment for one in suite.plan.plan]
    seeds = len({one.seed for one in suite.plan.plan})
    parts = [", ".join([_what(suite, asked), *_network(asked)]), _points(suite), counted(seeds, "seed")]
    return "; ".join(part for part in (*parts, suite.started[:10]) if part)


def _what(suite: Suite, asked: list[dict[str, Any]]) -> str:
    """A user's own command, or the suite."""
    commands = [words for one in asked if (words := (one.get("workload") or {}).get("command"))]
    lines = {shlex.join(map(str, words)) for words in commands if isinstance(words, list)}
    return lines.pop() if len(lines) == 1 else f"suite {suite.name}"


def _network(asked: list[dict[str, Any]]) -> list[str]:
    topologies = [one["topology"] for one in asked if isinstance(one.get("topology"), dict)]
    hosts = list(dict.fromkeys(str(one["hosts"]) for one in topologies if one.get("hosts")))
    rates = list(dict.fromkeys(word for one in topologies if (word := _rate(one))))
    return [*([f"{' or '.join(hosts)} hosts"] if hosts else []), *([" or ".join(rates)] if rates else [])]


def _rate(topology: dict[str, Any]) -> str:
    """Of every link. Machines of a lab have their own, which nobody told us."""
    every = topology.get("rate_mbit")
    up, down = (topology.get(f"{way}_rate_mbit") or every for way in ("uplink", "downlink"))
    if up == down:
        return f"{up:g} Mbit/s" if up else "" if topology.get("machines") else "no rate limit"
    return ", ".join(f"{way} {rate:g} Mbit/s" for way, rate in (("up", up), ("down", down)) if rate)


def _points(suite: Suite) -> str:
    """What was swept; else the condition."""
    swept = [point_name(one.point) for one in suite.plan.plan if one.point]
    names = list(dict.fromkeys(swept or [name for run in suite.runs for name in run.summary.profiles]))
    more = [f"and {len(names) - MOST_POINTS} more"] if len(names) > MOST_POINTS else []
    return ", ".join([*names[:MOST_POINTS], *more])
