"""What all clients together have seen: one line of results for each rate, and whether the generator may be believed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from lossbench.workloads.web import checks, samples
from lossbench.workloads.web.learning import learning_loss, load_doubt
from lossbench.workloads.web.options import Options, read_options
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
FAILED_SHARE = 0.001  # of all requests: more of them, and the rest are a choice of the lucky ones
MEAN_MOVED = 0.01  # by requests that were never answered, had each taken its timeout: more, and there is no mean
CLOSED = "Closed loop: clients wait with the service, its tail is understated."


def conclude(folder: Path, role: str, options: Options) -> Iterator[dict[str, Any]]:
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
        yield {"kind": "doubt", "text": _never_below(decided["ratio"], phases[0]["rate"], options)}


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
    unknown_mean = _unknown_mean(steady, options)
    numbers = _numbers(steady, mean=not unknown_mean)
    span = float(times.at_s[-1] - times.at_s[0]) or 1.0
    void = {"doubted": [name for name in beside if load]}
    beside |= {"failed": float(len(here.lost))}
    beside |= {"pages_failed": float(len(times.ms) - len(times.known))} if options.page else {}
    notes = [CLOSED if options.loop == "closed" else "", unknown_mean, f"Ended early: {stopped}." if stopped else ""]
    notes += server.notes
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
        "shown": [*SHOWN, *beside],
        **({"server": str(server)} if server.which else {}),
        **({"bytes_cut": options.drawn().cut} if options.most_bytes else {}),
        **({"note": " ".join(filter(None, notes))} if any(notes) else {}),
    }
    doubts = [_unsteady(steady, phase, span, found=found), _unanswered(here, phase, options) if several else "", load]
    doubts += [_late(here, phase, hint=hint)] if options.loop == "open" else []
    doubts += [_not_poisson(here, phase)] if options.loop == "open" and not options.page else []
    doubts += [] if stopped else [_not_known(steady, options)]
    doubt = "; ".join(filter(None, doubts))
    yield {"kind": "row", **row, **({"doubt": doubt, **void} if doubt and several else {})}
    if not several:
        yield {"kind": "summary", **{key: row[key] for key in (*numbers, "n", "goodput_mbit")}}
        if doubt:
            yield {"kind": "doubt", "text": doubt}


def _bytes_by(here: Measured, when_s: float) -> float:
    """Of all answers that were whole by then: what came later took time of its own."""
    return float(here.size_bytes[here.at_s + here.completion_ms / 1000 <= when_s].sum())


def _unsteady(steady: Times, phase: dict[str, Any], span: float, *, found: bool) -> str:
    """Why this is no steady state; empty if it is one."""
    if not found:
        return f"at {phase['rate']:g}/s no steady state was found in {span:.0f} s"
    if checks.stationary_p(steady.known) < checks.ERROR:
        return f"at {phase['rate']:g}/s the first and the second half of the run differ: no steady state"
    return ""


def _not_known(steady: Times, options: Options) -> str:
    """That the precision which was asked for was not reached in all the time there was."""
    precision = options.precision()
    if precision is None:
        return ""
    q, wanted = precision
    reached = checks.known_to(steady.ms, q)
    if reached <= wanted:
        return ""
    so_far = f"it is known to {reached:.1%}" if np.isfinite(reached) else "there are too few independent samples"
    return f"p{100 * q:g} was not known to {wanted:.0%} at the end of {options.seconds:g} s: {so_far}"


def _never_below(ratio: float, rate: float, options: Options) -> str:
    """That the rate which was looked for lies below all that were tried."""
    was = f"was {ratio:g}" if np.isfinite(ratio) else "was not known, since too few were answered,"
    at = f"p99/p50 {was} at the lowest rate already ({rate:g}/s)"
    return f"{at}: where it comes to {options.stop_ratio:g} was not found, give lower rates"


def _unanswered(here: Measured, phase: dict[str, Any], options: Options) -> str:
    """That too many requests of this rate were never answered."""
    lost, asked = len(here.lost), len(here) + len(here.lost)
    if lost <= FAILED_SHARE * asked:
        return ""
    return f"at {phase['rate']:g}/s {lost} of {asked} requests were not answered{_in_mbit(phase['rate'], options)}"


def _in_mbit(rate: float, options: Options) -> str:
    """What that many requests ask of all links together: more than they carry is the likeliest reason."""
    asked = f"{rate:g}/s are {rate * options.drawn().mean() * 8 / 1e6:.3g} Mbit/s of answers"
    return f"; {asked}" if options.loop == "open" else ""


def _unknown_mean(steady: Times, options: Options) -> str:
    """Why the mean is not known: those that were never answered could move it too far. Empty if it is."""
    lost, whole = len(steady.ms) - len(steady.known), float(steady.known.sum())
    if lost * options.timeout_s * 1000 <= MEAN_MOVED * whole * (1 + lost / max(1, len(steady.known))):
        return ""
    what = "pages" if options.page else "requests"
    return (
        f"No mean: {lost} {what} were never answered, at {options.timeout_s:g} s each they could move it by a percent."
    )


def _late(here: Measured, phase: dict[str, Any], *, hint: str) -> str:
    """How late the requests of this rate were sent, if it was too late; `hint`: what would help."""
    sent = np.concatenate([np.empty(0), *here.sent_s])
    lags = here.lag_ms[(sent >= phase["from_s"]) & (sent < phase["to_s"])]
    if not len(lags) or not len(here):
        return ""
    median, lag = float(np.median(here.completion_ms)), float(np.quantile(lags, 0.99))
    if lag <= checks.LAG_SHARE * median:
        return ""
    share = f"{lag / median:.0%} of the median completion (at most {checks.LAG_SHARE:.0%})"
    return f"requests were sent up to {lag:.2f} ms late (p99), {share}{hint}"


def _not_poisson(here: Measured, phase: dict[str, Any]) -> str:
    """What clients sent at this rate: where some of it was dropped, it is another process."""
    streams = [one[(one >= phase["from_s"]) & (one < phase["to_s"])] for one in here.sent_s]
    p = min((checks.exponential_p(np.diff(one)) for one in streams), default=1.0)
    if p >= checks.ERROR / max(1, len(streams)):
        return ""
    return f"at {phase['rate']:g}/s arrivals are not a Poisson process (Anderson-Darling, p = {p:.1e})"


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
    if lost > FAILED_SHARE * sent and not several:
        said = ", ".join(f"{count[name]} {name.replace('_', ' ')}" for name in LOST if count[name])
        why = f" ({_reasons(records)})" if _reasons(records) else ""
        load = _in_mbit(options.rate, options)
        yield {"kind": "doubt", "text": f"{lost} of {sent} requests were not answered: {said}{why}{load}"}
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
