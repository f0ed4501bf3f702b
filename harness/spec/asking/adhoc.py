"""An experiment without a file: a command and a condition, as words of a command line. What they make is the text of a
file, which `lossbench init` writes and `lossbench run -- COMMAND` reads."""

from __future__ import annotations

import difflib
import itertools
import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from lossbench.errors import UsageError
from lossbench.spec import profile as profiles
from lossbench.spec import units
from lossbench.spec.topology import MAX_HOSTS, MOST_MBIT, SLOWEST_MBIT

CLEAN = "clean"
SWEPT = ("loss", "burst", "delay", "rate", "profile", "hosts")
PROBES = 20_000  # enough to prove a percent, in a second or two
EXAMPLE = ("python", "train.py")
HOSTS = "4"  # where nobody says how many
OFF = "off"
MOST_PERCENT = 100.0


class Bounds(NamedTuple):
    """Of an option's number, in its unit; `like` is one that may be given."""

    unit: str
    like: str
    least: float = 0.0
    most: float = math.inf

    def check(self, number: float, option: str, value: str) -> None:
        if not math.isfinite(number):
            raise UsageError(f"{option} {value[:40]}: not a finite number", next_step=self.next_step(option))
        if not self.least <= number <= self.most:
            end = f"at least {self.least:,g}" if number < self.least else f"at most {self.most:,.12g}"
            shown = {"percent": "%", "": ""}.get(self.unit, f" {self.unit}")
            raise UsageError(f"{option} {value[:40]}: {end}{shown}", next_step=self.next_step(option))

    def next_step(self, option: str) -> str:
        return f"for example {option} {self.like}"


BOUNDS = {
    "--hosts": Bounds("", "4", 2, MAX_HOSTS),
    "--loss": Bounds("percent", "3%", most=MOST_PERCENT),
    "--burst": Bounds("", "8", 1),
    "--delay": Bounds("ms", "20ms"),
    "--rate": Bounds("mbit", "1gbit", SLOWEST_MBIT, MOST_MBIT),
    "--time-limit": Bounds("s", "20m"),
}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """As it was typed; empty: not asked for. `sweep`: KEY=VALUE,VALUE."""

    command: tuple[str, ...] = EXAMPLE
    hosts: str = ""
    loss: str = ""
    burst: str = ""
    delay: str = ""
    rate: str = ""
    profile: str = ""
    time_limit: str = "10m"
    sweep: tuple[str, ...] = ()


class Arm(NamedTuple):
    """One point: its name, and what it sets (key, TOML)."""

    name: str
    sets: tuple[tuple[str, str], ...]

    def text(self) -> str:
        """An inline table."""
        inside = "".join(f', "{key}" = {value}' for key, value in self.sets)
        return f"{{ name = {quoted(self.name)}{inside} }}"


def text(asked: Asked) -> str:
    """A whole experiment in TOML, with words for whoever edits it."""
    arms = _distinct([_arm(one) for one in _points(asked)])
    rate = _with_unit(asked.rate, "--rate") if asked.rate else ""
    lines = [
        "# An experiment for lossbench: lossbench run THIS_FILE",
        f"name = {quoted(_name(asked.command))}",
        "",
        "[topology]",
        f"hosts = {_hosts(asked.hosts)}  # one rank each, around one switch",
        f"rate_mbit = {quoted(rate)}"
        if rate
        else '# rate_mbit = "1gbit"  # of every link; without it there is no limit',
        "",
        "[workload]",
        f"command = [{', '.join(quoted(word) for word in asked.command)}]  # `python` is the one that runs lossbench",
        "barrier = false  # true for programs that say door.ready()",
        f"time_limit_s = {quoted(_time_limit(asked.time_limit))}  # then it is stopped, and counts as failed",
        "",
        "[probe]",
        f"packets = {PROBES}  # sent before your program starts, to prove the loss",
        "",
        "[[impair]]  # what happens to packets; each point of the sweep puts its own profile here",
        f"profile = {quoted(CLEAN)}",
        "",
        "[sweep]  # every line is a point: run, judged and shown by itself",
        "arm = [",
        *(f"  {arm.text()}," for arm in arms),
        "]",
    ]
    return "\n".join(lines) + "\n"


def _name(command: Sequence[str]) -> str:
    """After the script, python's module, or the program."""
    script = _module(command) or next((word for word in command if word.endswith(".py")), command[0])
    name = re.sub(r"[^a-z0-9_-]+", "-", Path(script).stem.lower()).strip("-_")
    return name[:40] or "program"


def _module(command: Sequence[str]) -> str:
    """Of `python -m pkg.train`; behind a script an -m is the script's own."""
    if "python" not in Path(command[0]).name or "-m" not in command[:-1]:
        return ""
    at = command.index("-m")
    return "" if any(word.endswith(".py") for word in command[:at]) else command[at + 1].rpartition(".")[2]


def _points(asked: Asked) -> list[Asked]:
    """Every combination that is swept over; without a sweep the condition beside a clean network."""
    if not asked.sweep:
        clean = replace(asked, loss="", burst="", delay="", profile="")
        return [clean] if clean == asked else [clean, asked]
    keys: list[str] = []
    values: list[list[str]] = []
    for one in asked.sweep:
        key, _, listed = one.partition("=")
        chosen = [value.strip() for value in listed.split(",") if value.strip()]
        if key not in SWEPT or not chosen:
            wrong = "not KEY=VALUE,VALUE" if key in SWEPT or "=" not in one else "no such key"
            near = difflib.get_close_matches(key, SWEPT, n=1) if key not in SWEPT else []
            guess = f"did you mean {near[0]}? " if near else ""
            step = f"{guess}for example --sweep loss=0,1,5,10; keys: {', '.join(SWEPT)}"
            raise UsageError(f"--sweep {one[:60]}: {wrong}", next_step=step)
        if getattr(asked, key):
            every = ",".join(dict.fromkeys([getattr(asked, key), *chosen]))
            step = f"give one of them; both values: --sweep {key}={every}"
            raise UsageError(f"--{key} and --sweep {key} exclude each other", next_step=step)
        if key in keys:
            every = ",".join([*values[keys.index(key)], *chosen])
            raise UsageError(f"--sweep {key} is given twice", next_step=f"in one: --sweep {key}={every}")
        for value in chosen:
            _understood(key, value)
        keys.append(key)
        values.append(chosen)
    chosen_at = [dict(zip(keys, some, strict=True)) for some in itertools.product(*values)]
    return [replace(asked, **some) for some in chosen_at]  # type: ignore[arg-type]


def _understood(key: str, value: str) -> None:
    """A mistake is said of the sweep in which it stands, not of an option that nobody gave."""
    option, reads = f"--{key}", {"hosts": _hosts, "burst": _burst, "profile": profiles.load}
    try:
        reads[key](value) if key in reads else _with_unit(value, option)
    except UsageError as error:
        said = [re.sub(rf"{option}\b ?", f"--sweep {key}=", text) for text in (error.message, error.next_step)]
        raise UsageError(said[0].replace("=:", ":"), next_step=said[1]) from None


def _sweeps(asked: Asked, key: str) -> bool:
    return any(one.startswith(f"{key}=") for one in asked.sweep)


def _arm(asked: Asked) -> Arm:
    profile, words = _profile(asked)
    sets = {"impair.0.profile": profile}
    if _sweeps(asked, "rate"):
        sets["topology.rate_mbit"] = f"{rate_mbit(asked.rate):.12g}"
        words.append(_with_unit(asked.rate, "--rate"))
    if _sweeps(asked, "hosts"):
        sets["topology.hosts"] = _hosts(asked.hosts)
        words.append(f"{_hosts(asked.hosts)} hosts")
    return Arm(", ".join(words), tuple(sets.items()))


def _distinct(arms: Sequence[Arm]) -> list[Arm]:
    """What is the same in other words (0%, nothing lost; 1gbit, 1000mbit) is one point; points that are only called
    the same could not be told apart."""
    once = list({arm.sets: arm for arm in reversed(arms)}.values())[::-1]
    count = Counter(arm.name for arm in once)
    alike = next((arm.name for arm in once if count[arm.name] > 1), None)
    if alike is not None:
        raise UsageError(f"several points would be called '{alike}'", next_step="give each file a name of its own")
    return once


def _profile(asked: Asked) -> tuple[str, list[str]]:
    """(as TOML, in words)."""
    if asked.profile:
        if asked.loss or asked.burst or asked.delay:
            raise UsageError("--profile is a whole condition", next_step="give it, or --loss, --burst and --delay")
        profiles.load(asked.profile)
        return quoted(asked.profile), [Path(asked.profile).stem]
    loss = _number(asked.loss, "--loss") if asked.loss else 0.0
    delay = _number(asked.delay, "--delay") if asked.delay else 0.0
    if asked.burst and not asked.loss:
        raise UsageError("--burst says how losses come together", next_step="give --loss too")
    words = [f"loss {loss:g}%"] if loss or _sweeps(asked, "loss") else []
    parts = []
    if loss and asked.burst:
        burst = _burst(asked.burst)
        if loss == MOST_PERCENT:
            text = f"--loss {asked.loss[:40]} --burst {asked.burst[:40]}: where all is lost there are no bursts"
            raise UsageError(text, next_step=f"give --loss below {MOST_PERCENT:g}%, or no --burst")
        parts.append(f'loss = {{ model = "gilbert_elliott", mean_percent = {loss:g}, burst_packets_mean = {burst:g} }}')
        words.append(f"bursts of {burst:g}")
    elif loss:
        parts.append(f'loss = {{ model = "iid", percent = {loss:g} }}')
    if delay:
        parts.append(f"delay = {{ mean_ms = {delay:g} }}")
    words += [f"{delay:g} ms"] if delay or _sweeps(asked, "delay") else []
    if not parts:
        return quoted(CLEAN), words or [CLEAN]
    name = re.sub(r"[^a-z0-9.]+", "_", " ".join(words)).strip("_")
    return f'{{ name = {quoted(name)}, why = "asked for on the command line", {", ".join(parts)} }}', words


def condition(*, loss: str = "", burst: str = "", delay: str = "", profile: str = "") -> tuple[Any, str]:
    """(an experiment's `profile`, in words) for a network that stands by itself."""
    text, words = _profile(Asked(loss=loss, burst=burst, delay=delay, profile=profile))
    return tomllib.loads(f"profile = {text}")["profile"], ", ".join(words)


def rate_mbit(value: str) -> float:
    return _number(value, "--rate")


def _number(value: str, option: str) -> float:
    return units.read(_with_unit(value, option), BOUNDS[option].unit)


def _with_unit(value: str, option: str) -> str:
    """A bare number counts in the unit that people mean."""
    bounds = BOUNDS[option]
    unit = {"percent": "%"}.get(bounds.unit, bounds.unit)
    text = value if value[-1:].isalpha() or value.endswith("%") else value + unit
    try:
        number = units.read(text, bounds.unit)
    except ValueError as error:
        raise UsageError(f"{option}: {error}", next_step=bounds.next_step(option)) from None
    bounds.check(number, option, value)
    return text


def _time_limit(value: str) -> str:
    if value == OFF:
        return value
    text = _with_unit(value, "--time-limit")
    if not units.read(text, "s"):
        raise UsageError(f"--time-limit {value[:40]}: no time at all", next_step=f"without a limit: --time-limit {OFF}")
    return text


def _burst(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise UsageError(
            f"--burst '{value[:40]}' is not a number", next_step="mean number of packets lost in a row: 8"
        ) from None
    BOUNDS["--burst"].check(number, "--burst", value)
    return number


def _hosts(value: str) -> str:
    value = value or HOSTS
    if not value.isdecimal():
        step = BOUNDS["--hosts"].next_step("--hosts")
        raise UsageError(f"--hosts '{value[:40]}' is not a number", next_step=step)
    BOUNDS["--hosts"].check(int(value), "--hosts", value)
    return str(int(value))


def quoted(value: str) -> str:
    """A TOML string: JSON's are, but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
