"""What all clients together have seen: one line of results for each rate, and whether the generator may be believed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lossbench.workloads.web import checks, samples
from lossbench.workloads.web.learning import learning_loss, load_doubt
from lossbench.workloads.web.options import Options, misfit, read_options
from lossbench.workloads.web.samples import Measured, Times
from lossbench.workloads.web.server import Served, served
from lossbench.workloads.web.slowdown import slowdowns

SHOWN = [
    "at",
    "offered",
    "n",
    "n_independent",
    "mean_ms",
    "p50_ms",
    "p99_ms",
    "p99.9_ms",
    "slowdown_p99",
    "goodput_mbit",
]
LOST = ("failed", "timed_out", "dropped", "unfinished")
CLOSED = "Closed loop: clients wait with the service, its tail is understated."


def conclude(folder: Path, role: str, options: Options) -> Iterator[dict[str, Any]]:
    unfit = misfit(folder, options)  # of a lab; elsewhere its clients have said so, and ended
    options = replace(options, factor=1.0) if unfit else options
    records = list(_records(folder, role))
    measured = samples.read(folder, role)
    asked = [r for r in records if r["kind"] == "requests"]
    count = {name: sum(r[name] for r in asked) for name in ("sent", "completed", *LOST)}
    if not len(measured) and asked and not count["sent"] + count["dropped"]:
        yield from _nothing_sent(options, missed=sum(r["missed"] for r in asked))
        return
    if not len(measured):
        yield {"kind": "error", "message": f"no request was ever answered ({_reasons(records) or 'none was sent'})"}
        return
    # Whoever is told to end has some under way: what was asked for before the oldest of them is complete. Once enough
    # was known, clients ended one after the other: what came after that was less and less load.
    told = any(r.get("told_to_end") for r in asked)
    ends = min((r["oldest_s"] for r in asked if "oldest_s" in r), default=np.inf) if told else np.inf
    count["unfinished"] = 0 if told else count["unfinished"]
    alone: dict[str, float] = next((r["ms"] for r in records if r["kind"] == "alone"), {})
    phases = [r for r in records if r["kind"] == "phase"] or [{"rate": options.rate, "from_s": 0.0, "to_s": np.inf}]
    began = next((r["time_s"] for r in records if r["kind"] == "began"), None)
    several = len(phases) > 1
    decided = steered(folder, role)
    stopped = str(decided.get("stop", ""))
    ends = min(ends, decided.get("until_s", np.inf))
    server = served(folder)
    server.notes.extend([f"No factor: {unfit}."] if unfit else [])
    said: dict[str, Any] = {"load": load_doubt(folder) if several else "", "hint": _hint(records), "server": server}
    for phase in phases:
        here = measured.between(phase["from_s"], min(phase["to_s"], ends))
        if len(here) or len(here.lost):
            lost = learning_loss(folder, began, phase) if began is not None and several else None
            beside = {} if lost is None else {"learning_loss": lost}
            cut = {**phase, "to_s": min(phase["to_s"], ends)}
            yield from _phase(here, cut, options, alone, beside, several=several, stopped=stopped, **said)
    yield from _doubts(measured, records, count, options, several=several)
    if len(server.which) > 1:
        yield {"kind": "doubt", "text": f"hosts were served by different servers: {server}"}
    if decided.get("refused"):
        yield {"kind": "doubt", "text": stopped}
    if "ratio" in decided and decided.get("last_phase") == 0:
        yield {"kind": "doubt", "text": checks.never_below(decided["ratio"], phases[0]["rate"], options)}


def _nothing_sent(options: Options, *, missed: int) -> Iterator[dict[str, Any]]:
    """So few a second that none was due in all the time: there is nothing to judge. Were some, clients stood still."""
    at, rate = f"{options.rate:g}/s", options.rate
    model = {"equivalent": rate * options.factor, "factor": options.factor}
    note = {} if missed else {"note": f"No request was due at {at} in all the time: there are no times of the service."}
    yield {"kind": "row", "at": at, "offered": rate, **model, "n": 0, "shown": ["at", "offered", "n"], **note}
    if missed:
        yield {"kind": "doubt", "text": f"none of {missed} requests that were due at {at} was sent"}


def _phase(
    here: Measured,
    phase: dict[str, Any],
    options: Options,
    alone: dict[str, float],
    beside: dict[str, float],
    *,
    several: bool,
    stopped: str,
    load: str,
    hint: str,
    server: Served,
) -> Iterator[dict[str, Any]]:
    """`load`: why what learning sent beside it was not what was asked for; of the others the harness tells."""
    times = samples.times(here, options.page)
    skipped = checks.warm_up(times.known)
    found = skipped <= len(times.known) // 2
    steady = times.from_known(skipped if found else 0)
    unknown_mean = checks.unknown_mean(steady, options)
    numbers = _numbers(steady, mean=not unknown_mean)
    late = checks.late_in_the_tail(here, phase, numbers) if options.loop == "open" else {}
    if "p99.9" in late:
        numbers = {name: value for name, value in numbers.items() if not name.startswith("p99.9_")}
    span = float(times.at_s[-1] - times.at_s[0]) or 1.0
    void = {"doubted": [name for name in beside if load]}
    beside |= {"failed": float(len(here.lost))}
    beside |= {"pages_failed": float(len(times.ms) - len(times.known))} if options.page else {}
    notes = [CLOSED if options.loop == "closed" else "", unknown_mean, f"Ended early: {stopped}." if stopped else ""]
    notes += [*server.notes, f"No p99.9: {late['p99.9']}." if "p99.9" in late else ""]
    row = {
        "at": f"{phase['rate']:g}/s",
        "offered": phase["rate"],
        "equivalent": phase["rate"] * options.factor,
        "factor": options.factor,
        "from_s": phase["from_s"],
        "steady_from_s": float(steady.at_s[0]),
        "steady_to_s": float(steady.at_s[-1]),
        "n": len(steady.known),
        "warm_up": len(times.known) - len(steady.known),
        **numbers,
        **slowdowns(here.between(steady.at_s[0], np.inf), alone, mean=not unknown_mean),
        "goodput_mbit": round(_bytes_by(here, float(times.at_s[0]) + span) * 8 / span / 1e6, 4),
        **beside,
        "shown": [*_told_apart(options, server), *beside],
        **server.words(),
        **({"bytes_cut": options.drawn().cut} if options.most_bytes else {}),
        **({"note": " ".join(filter(None, notes))} if any(notes) else {}),
    }
    said = [checks.unsteady(steady, phase, span, found=found), load]
    said += [checks.unanswered(here, phase, options)] if several else []
    said += [checks.late(here, phase, hint=hint), late.get("p99", "")] if options.loop == "open" else []
    said += [checks.not_poisson(here, phase, options)] if options.loop == "open" else []
    said += [] if stopped else [checks.not_known(steady, options)]
    doubt = "; ".join(filter(None, said))
    yield {"kind": "row", **row, **({"doubt": doubt, **void} if doubt and several else {})}
    if not several:
        yield {"kind": "summary", **{key: row[key] for key in (*numbers, "n", "goodput_mbit")}}
        if doubt:
            yield {"kind": "doubt", "text": doubt}


def _told_apart(options: Options, server: Served) -> list[str]:
    """What is shown of every row; what rates are of, and who served, where it is not as anybody would think."""
    by = ["factor"] if options.factor != 1 else []
    other = ["server"] if set(server.which) - {"nginx"} else []
    return [*SHOWN[:2], *by, *SHOWN[2:], *other]


def _bytes_by(here: Measured, when_s: float) -> float:
    """Of all answers that were whole by then: what came later took time of its own."""
    return float(here.size_bytes[here.at_s + here.completion_ms / 1000 <= when_s].sum())


def _numbers(steady: Times, *, mean: bool) -> dict[str, float]:
    """Requests that were never answered took longer than any: a percentile that falls among them is not known."""
    middle = checks.mean(steady.known)
    out = {"mean_ms": middle.value, "mean_low_ms": middle.low, "mean_high_ms": middle.high} if mean else {}
    out["n_independent"] = checks.independent(steady.known)
    for name, q in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
        found = checks.quantile(steady.ms, q)
        out |= {f"{name}_ms": found.value, f"{name}_low_ms": found.low, f"{name}_high_ms": found.high}
    return {name: round(value, 4) for name, value in out.items() if np.isfinite(value)}


def _doubts(
    measured: Measured, records: list[dict[str, Any]], count: dict[str, int], options: Options, *, several: bool
) -> Iterator[dict[str, Any]]:
    """Of several rates each row has its own: one that was too much says nothing against those below it."""
    sent, lost = count["sent"] + count["dropped"], sum(count[name] for name in LOST)
    if lost > checks.FAILED_SHARE * sent and not several:
        said = ", ".join(f"{count[name]} {name.replace('_', ' ')}" for name in LOST if count[name])
        why = f" ({_reasons(records)})" if _reasons(records) else ""
        load = checks.in_mbit(options.rate, options)
        yield {"kind": "doubt", "text": f"{lost} of {sent} requests were not answered: {said}{why}{load}"}
    missed = 0 if options.loop == "closed" else sum(r.get("missed", 0) for r in records if r["kind"] == "requests")
    if missed > checks.FAILED_SHARE * (sent + missed):
        yield {"kind": "doubt", "text": f"{missed} requests that were due, beside {sent}, were never sent"}
    if options.stop_ratio and options.hold_s and steered_last(records) is None:
        yield {"kind": "doubt", "text": f"p99/p50 never came to {options.stop_ratio:g}: give higher rates"}
    if options.loop == "closed":
        return
    median, lag = float(np.median(measured.completion_ms)), float(np.quantile(measured.lag_ms, 0.99))
    yield {"kind": "summary", "lag_p99_ms": round(lag, 4), "lag_share": round(lag / median, 5)}


def _hint(records: list[dict[str, Any]]) -> str:
    """Why clients may have been late, where it can be helped."""
    pushed = any(r["kind"] == "first_in_line" and not r["given"] for r in records)
    return " (clients had no real-time priority: run as root)" if pushed else ""


def steered_last(records: list[dict[str, Any]]) -> float | None:
    """The rate that was held, if one was."""
    phases = [r["rate"] for r in records if r["kind"] == "phase"]
    return phases[-1] if len(phases) > 1 and phases[-1] == phases[-2] else None


def _reasons(records: list[dict[str, Any]]) -> str:
    found: dict[str, int] = {}
    for record in records:
        for reason, times in record.get("reasons", {}).items() if record["kind"] == "requests" else ():
            found[reason] = found.get(reason, 0) + times
    return ", ".join(f"{reason}: {times}" for reason, times in sorted(found.items(), key=lambda one: -one[1])[:3])


def steered(folder: Path, role: str) -> dict[str, Any]:
    """What the first client decided: why it stopped, whether it refused, which of several rates was the last."""
    path = folder / "samples" / f"{role or 'web'}.steer.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found if isinstance(found, dict) else {}


def _records(folder: Path, role: str) -> Iterator[dict[str, Any]]:
    for path in sorted((folder / "records").glob(f"{role or 'rank'}-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):  # cut off by whoever killed it
                yield json.loads(line)


def main() -> int:
    asked = json.load(sys.stdin)
    for record in conclude(Path(asked["folder"]), asked["role"], read_options(asked["options"])):
        print(json.dumps(record), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
