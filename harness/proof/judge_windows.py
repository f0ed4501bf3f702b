"""Did what was asked for a part of the run come and go when it should, and was there what was asked for all of it?
Pure."""

from __future__ import annotations

from lossbench.net.conservation import Between
from lossbench.net.counters import TOTAL, UNMATCHED, RuleCounters, since
from lossbench.proof.judge_rules import FEW
from lossbench.proof.verdict import Finding, Status
from lossbench.proof.watched import Change, Unit, Watched
from lossbench.spec.experiment import Experiment, Impair

SHARE = 0.05  # of a window that it may come or go late, or early
NOTHING = RuleCounters()
LEAST: dict[Unit, float] = {"s": 0.02, "step": 1}  # however short it is
MOST: dict[Unit, float] = {"s": 1.0, "step": 10}  # of what is open until the run ends; of fast steps a second's


def judge_windows(experiment: Experiment, watched: Watched) -> list[Finding]:
    """Who had to be on time says when it was done: held against what was asked, on both sides within SHARE of the
    window or LEAST, whichever is more."""
    units: tuple[Unit, Unit] = ("s", "step")
    found = [
        _judge(number, entry, unit, mine, watched)
        for number, entry in enumerate(experiment.impair)
        for unit in units
        if (mine := [one for one in watched.changes if one.entry == number and one.unit == unit])
    ]
    timed = [_room(experiment.impair[one.entry], "s", watched) for one in watched.changes if one.unit == "s"]
    if timed and watched.opened_s > min(timed):
        text = f"the run's clock began {watched.opened_s:.3f} s before its ranks were let go: windows came too early"
        found.append(Finding(status=Status.UNKNOWN, text=f"{text} for them ({min(timed):.3g} s allowed)"))
    return found + _judge_early(experiment, watched) + _judge_cut(experiment, watched)


def opens_with_the_run(entry: Impair) -> bool:
    """A window in time that has no beginning: it is open until its end is counted from the run's clock."""
    return entry.to_s is not None and not entry.from_s


def _judge_early(experiment: Experiment, watched: Watched) -> list[Finding]:
    """Who sends before the clock begins meets such a window for longer than was asked. Of a port that is counted as a
    whole nobody knows how much met it later."""
    if not watched.early or watched.after is None:
        return []
    early, whole = (since(one, watched.before.hooks) for one in (watched.early, watched.after.hooks))
    out = []
    for number, entry in enumerate(experiment.impair):
        rules = [(h, r.label) for h, here in watched.rules.items() for r in here.values() if r.entry == number]
        first = sum((early[h].get(label) or early[h].get(TOTAL) or NOTHING).seen for h, label in rules if h in early)
        met = sum(whole[h].get(label, NOTHING).seen for h, label in rules if h in whole)
        if opens_with_the_run(entry) and first > max(FEW, SHARE * met):
            text = f"impair.{number} ({entry.profile.name}): {first} packets met it before the run's clock began"
            text += f", {max(0, met - first)} after that"
            text += " (a program beside with from_s = 0, or one that says ready, begins with the clock)"
            out.append(Finding(status=Status.UNKNOWN, text=text))
    return out


def _judge_cut(experiment: Experiment, watched: Watched) -> list[Finding]:
    """A run that ended before a window did met a part of what was asked, and perhaps next to nothing of it."""
    out = []
    ends: tuple[tuple[Unit, float], ...] = (("s", watched.duration_s), ("step", watched.last_step + 1))
    for number, entry in enumerate(experiment.impair):
        for unit, end in ends:
            first, last = _asked(entry, unit)
            name = f"impair.{number} ({entry.profile.name})"
            if last is None or not (first or 0) < end < last or any(name in text for text in watched.never):
                continue
            at, within = (
                f"{end:.3g} s" if unit == "s" else f"step {end - 1:g}",
                # Programs may report every so many steps alone: nobody knows of the last ones that they were made.
                last - end <= max(_room(entry, unit, watched), _steps_a_second(watched) if unit == "step" else 0),
            )
            text = f"{name} was asked {_window((first, last), unit)}: the run ended after {at}, before its window did"
            step = "" if within else "; a window without an end is open until the run's"
            out.append(Finding(status=Status.VALID if within else Status.UNKNOWN, text=text + step))
    return out


def judge_always(experiment: Experiment, watched: Watched, between: Between) -> list[Finding]:
    """What was asked of every packet and for the whole run: no packet went by it that no rule took."""
    always = {
        number
        for number, one in enumerate(experiment.impair)
        if not one.from_s and not one.from_step and one.to_s is None and one.to_step is None
    }
    out = []
    for hook, here in watched.rules.items():
        rule = next((rule for rule in here.values() if rule.takes_all() and rule.entry in always), None)
        rest = between.hooks.get(hook, {}).get(UNMATCHED)
        if rule is not None and rest is not None and rest.seen > 0:
            text = f"{hook.name}: {rest.seen} packets of the run met no rule, and {rule.label} should take them all"
            out.append(Finding(status=Status.UNKNOWN, text=text))
    return out


def _asked(entry: Impair, unit: Unit) -> tuple[float | None, float | None]:
    return (entry.from_s, entry.to_s) if unit == "s" else (entry.from_step, entry.to_step)


def _room(entry: Impair, unit: Unit, watched: Watched) -> float:
    first, last = _asked(entry, unit)
    if last is not None:
        return max(SHARE * (last - (first or 0)), LEAST[unit])
    end = watched.duration_s if unit == "s" else watched.last_step
    most = MOST[unit] if unit == "s" else max(MOST[unit], _steps_a_second(watched))
    return min(max(SHARE * (end - (first or 0)), LEAST[unit]), most)


def _steps_a_second(watched: Watched) -> float:
    return watched.last_step / watched.duration_s if watched.duration_s else 0.0


def _judge(number: int, entry: Impair, unit: Unit, changes: list[Change], watched: Watched) -> Finding:
    came, went = (next((one.real for one in changes if one.came is came), None) for came in (True, False))
    off, room = max((one.real - one.asked for one in changes), key=abs), _room(entry, unit, watched)
    if unit == "s" and opens_with_the_run(entry) and came is not None and abs(came) <= room:
        came = None  # with the clock, as asked
    text = f"impair.{number} ({entry.profile.name}) was asked {_window(_asked(entry, unit), unit)}"
    text += f" and in force {_window((came, went), unit) or 'from the beginning'}"
    text += ", by the kernel's clock" if all(one.kept for one in changes) else ""
    if abs(off) > room:
        by = f"{abs(off):.3f} s" if unit == "s" else f"{abs(off):g} steps"
        allowed = f"{room:.3g} s" if unit == "s" else f"{room:.3g}"
        return Finding(status=Status.UNKNOWN, text=f"{text}: {by} {'late' if off > 0 else 'early'} ({allowed} allowed)")
    return Finding(status=Status.VALID, text=text)


def _window(limits: tuple[float | None, float | None], unit: Unit) -> str:
    """Open where there is no limit."""
    ends = [(word, at) for word, at in zip(("from", "to"), limits, strict=True) if at is not None]
    return " ".join(f"{word} {round(at, 3):.10g} s" if unit == "s" else f"{word} step {at:g}" for word, at in ends)
