"""An experiment: topology, what is done to packets where and when, the workload, and what is expected of it.

A suite is an experiment with a [sweep]: dotted keys with lists of values, every combination is one point.
"""

from __future__ import annotations

import itertools
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, JsonValue, field_validator, model_validator

from harness import profile as profiles
from harness.errors import UsageError
from harness.profile import Port, Profile
from harness.topology import Topology
from harness.userfile import Frozen, check, read_toml, shown

Direction: TypeAlias = Literal["uplink", "downlink"]
Column: TypeAlias = Literal["fault", "timing", "outcome"]


class Impair(Frozen):
    """Put one profile somewhere, for all of the run or a part of it. Of several, the last that matches wins."""

    profile: Profile  # in a file: the name of a shipped profile, a path, or the profile itself as a table
    hosts: Annotated[tuple[str, ...], Field(min_length=1)] | Literal["all"] = "all"
    pairs: tuple[tuple[str, str], ...] = ()  # (source, destination): only packets from one to the other
    direction: Literal["uplink", "downlink", "both"] = "uplink"
    from_s: Annotated[float, Field(ge=0)] | None = None
    to_s: Annotated[float, Field(gt=0)] | None = None
    from_step: Annotated[int, Field(ge=0)] | None = None
    to_step: Annotated[int, Field(gt=0)] | None = None

    @field_validator("profile", mode="before")
    @classmethod
    def _load(cls, value: Any) -> Any:
        """Loaded once, here: what runs later does not depend on the file any more."""
        return profiles.load(value) if isinstance(value, str) else value

    @field_validator("hosts", mode="before")
    @classmethod
    def _a_list(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "all":
            raise ValueError(f'give "all" or a list, for example ["{value}"]')
        return value

    @model_validator(mode="after")
    def _sensible(self) -> Impair:
        named = self.pairs or (self.hosts if self.hosts != "all" else ())
        if len(set(named)) < len(named):
            raise ValueError("a host or pair is named twice")
        if self.pairs and (self.profile.match.destinations or self.profile.match.sources):
            raise ValueError("the profile itself names sources or destinations: give hosts instead of pairs")
        if self.pairs and self.hosts != "all":
            raise ValueError("give either hosts or pairs")
        for first, last in ((self.from_s, self.to_s), (self.from_step, self.to_step)):
            if first is not None and last is not None and first >= last:
                raise ValueError(f"the window from {first} to {last} is empty")
        return self

    def active(self, *, elapsed_s: float, step: int) -> bool:
        """Is this in force now? Step windows count the steps the workload reports."""
        return (
            (self.from_s is None or elapsed_s >= self.from_s)
            and (self.to_s is None or elapsed_s < self.to_s)
            and (self.from_step is None or step >= self.from_step)
            and (self.to_step is None or step < self.to_step)
        )

    def directions(self) -> tuple[Direction, ...]:
        return ("uplink", "downlink") if self.direction == "both" else (self.direction,)


class TrafficClass(Frozen):
    """One queue of every rate-limited link; packets are sorted in by DSCP or port."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,14}$")]
    dscp: Annotated[int, Field(ge=0, le=63)] | None = None
    ports: tuple[Port, ...] = ()  # TCP or UDP, source or destination
    share_percent: Annotated[float, Field(gt=0, le=100)] = 1.0  # guaranteed part of the link
    priority: Annotated[int, Field(ge=0, le=7)] = 0  # 0 is served first when there is rate to spare
    queue_kb: Annotated[float, Field(gt=0)] | None = None  # at the switch; default from rate and burst
    host_queue_kb: Annotated[float, Field(gt=0)] | None = None  # at the sender, where a full queue is backpressure


class Shaping(Frozen):
    """How links with a rate serve their classes. Without classes there is one queue, `rest`."""

    scheduler: Literal["htb", "prio", "ets"] = "htb"
    classes: tuple[TrafficClass, ...] = ()

    @model_validator(mode="after")
    def _sensible(self) -> Shaping:
        names = [c.name for c in self.classes]
        if len(set(names)) < len(names):
            raise ValueError("two classes have the same name")
        if sum(c.share_percent for c in self.classes) > 100:
            raise ValueError("the classes' shares add up to more than 100 %")
        for c in self.classes:
            if c.name != "rest" and c.dscp is None and not c.ports:
                raise ValueError(f"class '{c.name}' needs a dscp or ports (only 'rest' takes what is left)")
        return self


class Workload(Frozen):
    """The program every host runs. Known names are short for `python -m workloads.<name>`."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.]*$")] = "noop"
    command: tuple[str, ...] = ()  # any program instead
    options: dict[str, JsonValue] = {}
    time_limit_s: Annotated[float, Field(gt=0)] = 600.0
    barrier: bool = True  # wait until every rank said ready; off for programs that don't know our contract
    interleaved: bool = False  # compares two sides measured in turn: their ratio stands on a busy machine
    ranks_per_process: Annotated[int, Field(ge=0)] = 1  # workloads that know LOSSBENCH_SEATS; 0: all in one process


class Probe(Frozen):
    """The proof before the run."""

    packets: Annotated[int, Field(ge=0, le=5_000_000)] = (
        120_000  # over all hosts; 0 = no proof, the fault stays unknown
    )
    payload_bytes: Annotated[int, Field(ge=40, le=1000)] = 64


class Expect(Frozen):
    """A number of the workload's summary records that must lie in a range (mean over ranks)."""

    field: str
    min: float | None = None
    max: float | None = None


class Experiment(Frozen):
    """One file a user writes."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,40}$")]
    why: str = ""
    backend: Literal["auto", "netem", "ebpf", "cbpf", "edt", "relay", "simulated"] = "auto"
    topology: Topology = Topology()
    impair: tuple[Impair, ...] = ()
    shaping: Shaping = Shaping()
    workload: Workload = Workload()
    probe: Probe = Probe()
    expect: tuple[Expect, ...] = ()
    essential: Annotated[tuple[Column, ...], Field(min_length=1)] = ("fault", "outcome")
    seeds: Annotated[int, Field(ge=1, le=1000)] = 1
    first_seed: int = 0
    sweep: dict[str, list[Any]] = {}

    @model_validator(mode="after")
    def _hosts_exist(self) -> Experiment:
        for entry in self.impair:
            named = list(entry.hosts) if entry.hosts != "all" else [h for pair in entry.pairs for h in pair]
            match = entry.profile.match
            named += [place for place in (*match.destinations, *match.sources) if place.startswith("h")]
            for host in named:
                self.topology.host(host)
        if self.shaping.classes and not (self.topology.uplink_mbit() or self.topology.downlink_mbit()):
            raise ValueError("classes need a rate: without topology.rate_mbit a link never queues")
        return self


SUITES = Path(__file__).resolve().parent.parent / "workloads" / "suites"


def suite_names() -> list[str]:
    return sorted(path.stem for path in SUITES.glob("*.toml"))


def find(name_or_path: str) -> Path:
    path = Path(name_or_path)
    if path.suffix == ".toml":
        return path
    known = SUITES / f"{name_or_path}.toml"
    if name_or_path not in suite_names():
        raise UsageError(
            f"no suite '{shown(name_or_path)}'", next_step=f"known: {', '.join(suite_names())}; or give a .toml file"
        )
    return known


def points(path: Path, *, settings: list[str], full: bool = False) -> list[tuple[dict[str, Any], Experiment]]:
    """Every point of a suite: what the sweep chose there, and the experiment it makes; all checked before any runs.
    `full`: as [full] says (dotted keys, and a sweep of its own), not the small form."""
    data = read_toml(path)
    data.setdefault("name", path.stem.lower())
    _apply_full(data, wanted=full, path=path)
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator or not key.strip():
            raise UsageError(f"--set {setting}: not KEY=VALUE", next_step="for example --set topology.hosts=8")
        _assign(data, key.strip(), _value(value.strip()), origin=f"--set {setting}")
    sweep = data.pop("sweep", {})
    for key in [setting.partition("=")[0].strip() for setting in settings]:
        if isinstance(sweep, dict):  # what the command line says is not swept over, nor anything inside it
            sweep = {swept: values for swept, values in sweep.items() if not f"{swept}.".startswith(f"{key}.")}
    if not isinstance(sweep, dict) or not all(isinstance(v, list) and v for v in sweep.values()):
        raise UsageError(f"{path}: sweep must map dotted keys to lists of values")
    out = []
    for combination in itertools.product(*sweep.values()):
        chosen = dict(zip(sweep, combination, strict=True))
        point = _copy(data)
        for key, value in chosen.items():
            _assign(point, key, value, origin=f"{path}: sweep")
        _profiles_beside(point, path.parent)
        out.append((chosen, check(Experiment, point, origin=str(path))))
    return out


def _apply_full(data: dict[str, Any], *, wanted: bool, path: Path) -> None:
    changes = data.pop("full", None)
    if not wanted:
        return
    if not isinstance(changes, dict):
        raise UsageError(f"{path} has no full form", next_step="run it without --full")
    sweep = changes.pop("sweep", None)
    for key, value in changes.items():
        _assign(data, key, value, origin=f"{path}: full")
    if sweep is not None:
        data["sweep"] = sweep


def _profiles_beside(point: dict[str, Any], folder: Path) -> None:
    """A profile given as a file, or the trace of one that is written here, lies beside the experiment's own file."""
    for entry in point.get("impair", []) if isinstance(point.get("impair"), list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("profile"), dict):
            profiles.read_trace_beside(entry["profile"], folder)
        if isinstance(entry, dict) and str(entry.get("profile", "")).endswith(".toml"):
            beside = folder / entry["profile"]
            # pathlib's own would not take every name that a file may hold
            entry["profile"] = str(beside if os.path.exists(beside) else Path(entry["profile"]))  # noqa: PTH110


def _value(text: str) -> Any:
    """A TOML value, or a bare word."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def _copy(data: Any) -> Any:
    if isinstance(data, dict):
        return {k: _copy(v) for k, v in data.items()}
    return [_copy(v) for v in data] if isinstance(data, list) else data


def _assign(data: Any, dotted: str, value: Any, *, origin: str) -> None:
    """Set a key like `topology.hosts` or `impair.0.profile`; lists take numbers."""
    *path, last = dotted.split(".")
    for part in path:
        data = _step_into(data, part, origin=origin)
    if isinstance(data, list):
        data[_index(data, last, origin=origin)] = value
    elif isinstance(data, dict):
        data[last] = value
    else:
        raise UsageError(f"{origin}: '{last}' has nothing above it to belong to")


def _step_into(data: Any, part: str, *, origin: str) -> Any:
    if isinstance(data, list):
        return data[_index(data, part, origin=origin)]
    if not isinstance(data, dict):
        raise UsageError(f"{origin}: '{part}' has nothing below it")
    return data.setdefault(part, {})


def _index(data: list[Any], part: str, *, origin: str) -> int:
    numbers = {str(number): number for number in range(len(data))}
    if part not in numbers:
        raise UsageError(f"{origin}: '{shown(part)}' is not one of 0 to {len(data) - 1}")
    return numbers[part]
