"""Why what was measured at one rate may not be believed, each in words; empty where it may."""

from __future__ import annotations

from typing import Any

import numpy as np

from lossbench.workloads.web import checks
from lossbench.workloads.web.options import Options
from lossbench.workloads.web.samples import Measured, Times

MEAN_MOVED = 0.01  # by requests that were never answered, had each taken its timeout: more, and there is no mean


def unsteady(steady: Times, phase: dict[str, Any], span: float, *, found: bool) -> str:
    """Why this is no steady state; empty if it is one."""
    if not found:
        return f"at {phase['rate']:g}/s no steady state was found in {span:.0f} s"
    if checks.stationary_p(steady.known) < checks.ERROR:
        return f"at {phase['rate']:g}/s the first and the second half of the run differ: no steady state"
    return ""


def not_known(steady: Times, options: Options) -> str:
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


def never_below(ratio: float, rate: float, options: Options) -> str:
    """That the rate which was looked for lies below all that were tried."""
    was = f"was {ratio:g}" if np.isfinite(ratio) else "was not known, since too few were answered,"
    at = f"p99/p50 {was} at the lowest rate already ({rate:g}/s)"
    return f"{at}: where it comes to {options.stop_ratio:g} was not found, give lower rates"


def unanswered(here: Measured, phase: dict[str, Any], options: Options) -> str:
    """That too many requests of this rate were never answered."""
    lost, asked = len(here.lost), len(here) + len(here.lost)
    if lost <= checks.FAILED_SHARE * asked:
        return ""
    return f"at {phase['rate']:g}/s {lost} of {asked} requests were not answered{in_mbit(phase['rate'], options)}"


def in_mbit(rate: float, options: Options) -> str:
    """What that many requests ask of all links together: more than they carry is the likeliest reason."""
    asked = f"{rate:g}/s are {rate * options.drawn().mean() * 8 / 1e6:.3g} Mbit/s of answers"
    return f"; {asked}" if options.loop == "open" else ""


def unknown_mean(steady: Times, options: Options) -> str:
    """Why the mean is not known: those that were never answered could move it too far. Empty if it is."""
    lost, whole = len(steady.ms) - len(steady.known), float(steady.known.sum())
    if lost * options.timeout_s * 1000 <= MEAN_MOVED * whole * (1 + lost / max(1, len(steady.known))):
        return ""
    what = "pages" if options.page else "requests"
    return (
        f"No mean: {lost} {what} were never answered, at {options.timeout_s:g} s each they could move it by a percent."
    )


def _lags(here: Measured, phase: dict[str, Any]) -> Any:
    """How late each request of this rate was sent."""
    sent = np.concatenate([np.empty(0), *here.sent_s])
    return here.lag_ms[(sent >= phase["from_s"]) & (sent < phase["to_s"])]


def late_in_the_tail(here: Measured, phase: dict[str, Any], numbers: dict[str, float]) -> dict[str, str]:
    """Completions count from the intended time, so requests that one client sent late, at once, are a tail of its own:
    percentile -> why it is not the service's."""
    lags, out = _lags(here, phase), {}
    for name, q in (("p99", 0.99), ("p99.9", 0.999)):
        tail = numbers.get(f"{name}_ms", np.inf)
        late = float(np.mean(lags > checks.LAG_SHARE * tail)) if len(lags) else 0.0
        if late > checks.OF_A_TAIL * (1 - q):
            out[name] = f"{late:.2%} of the requests were sent late by more than {checks.LAG_SHARE:.0%} of {name}"
    return out


def late(here: Measured, phase: dict[str, Any], *, hint: str) -> str:
    """How late the requests of this rate were sent, if it was too late; `hint`: what would help."""
    lags = _lags(here, phase)
    if not len(lags) or not len(here):
        return ""
    median, lag = float(np.median(here.completion_ms)), float(np.quantile(lags, 0.99))
    if lag <= checks.LAG_SHARE * median:
        return ""
    share = f"{lag / median:.0%} of the median completion (at most {checks.LAG_SHARE:.0%})"
    return f"requests were sent up to {lag:.2f} ms late (p99), {share}{hint}"


def not_poisson(here: Measured, phase: dict[str, Any]) -> str:
    """What clients sent at this rate: where some of it was dropped, it is another process."""
    streams = [one[(one >= phase["from_s"]) & (one < phase["to_s"])] for one in here.sent_s]
    p = min((checks.exponential_p(np.diff(one)) for one in streams), default=1.0)
    if p >= checks.ERROR / max(1, len(streams)):
        return ""
    return f"at {phase['rate']:g}/s arrivals are not a Poisson process (Anderson-Darling, p = {p:.1e})"
