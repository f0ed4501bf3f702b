"""An experiment: topology, what is done to packets where and when, the workload, and what is expected of it.

A suite is an experiment with a [sweep]: dotted keys with lists of values, every combination is one point.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, JsonValue, ValidationError, field_validator, model_validator

from lossbench.errors import UsageError
from lossbench.spec import about
from lossbench.spec import profile as profiles
from lossbench.spec.profile import Port, Profile
from lossbench.spec.topology import Topology
from lossbench.spec.userfile import Frozen

Direction: TypeAlias = Literal["uplink", "downlink"]
RATIOS_MARK = "timing: ratios only"  # of a verdict on a busy machine, where two sides were measured in turn
Column: TypeAlias = Literal["fault", "timing", "outcome"]


class Impair(Frozen):
    """Put one profile somewhere, for all of the run or a part of it. Of several, the last that matches wins."""

    profile: Profile
    """What happens to packets: the name of a shipped profile, a path, or the profile itself as a table."""
    hosts: Annotated[tuple[str, ...], Field(min_length=1)] | Literal["all"] = "all"
    """Whose links: "all", or a list of names."""
    pairs: tuple[tuple[str, str], ...] = ()
    """(source, destination): only packets from one to the other; instead of hosts."""
    direction: Literal["uplink", "downlink", "both"] = "uplink"
    """Uplink: what a host sends; downlink: what it gets. A packet passes one of each."""
    from_s: Annotated[float, Field(ge=0)] | None = None
    """From this second of the run on; none: from its start."""
    to_s: Annotated[float, Field(gt=0)] | None = None
    """Until this second; none: to its end."""
    from_step: Annotated[int, Field(ge=0)] | None = None
    """From this step on, as ranks report their steps."""
    to_step: Annotated[int, Field(gt=0)] | None = None
    """Until this step."""

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
    """As it is called in results; `rest` takes what no other takes."""
    dscp: Annotated[int, Field(ge=0, le=63)] | None = None
    """Packets with this DSCP belong to it."""
    ports: tuple[Port, ...] = ()
    """Packets from or to these ports, TCP or UDP."""
    share_percent: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Guaranteed part of the link."""
    priority: Annotated[int, Field(ge=0, le=7)] = 0
    """0 is served first when there is rate to spare."""
    queue_kb: Annotated[float, Field(gt=0)] | None = None
    """Room at the switch, where a full queue loses packets; none: by rate and burst."""
    host_queue_kb: Annotated[float, Field(gt=0)] | None = None
    """Room at the sender, where a full queue is backpressure."""


class Shaping(Frozen):
    """How links with a rate serve their classes. Without classes there is one queue, `rest`."""

    scheduler: Literal["htb", "prio", "ets"] = "htb"
    """htb serves by share and priority everywhere; prio and ets where the kernel has them."""
    classes: tuple[TrafficClass, ...] = ()
    """Queues of every link with a rate, the first that fits takes a packet."""

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


class Program(Frozen):
    """Something that hosts run: a workload by name, or any command."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.]*$")] = "noop"
    """One of ours (noop, chatter, training, allreduce), or a module of yours; short for `python -m`."""
    command: tuple[str, ...] = ()
    """Any program instead; `python` is the interpreter that runs lossbench."""
    options: dict[str, JsonValue] = {}
    """What it is told, as a JSON file (LOSSBENCH_SPEC)."""
    barrier: bool = True
    """Wait until every rank said ready; off for programs that don't know our contract."""

    @field_validator("name")
    @classmethod
    def _called_now(cls, value: str) -> str:
        return about.called_now(value)


class Workload(Program):
    """The program that every host runs, one rank each."""

    time_limit_s: Annotated[float, Field(gt=0)] = 600.0
    """After so many seconds the run is ended, and has failed."""
    interleaved: bool = False
    """It compares two sides measured in turn: their ratio stands on a busy machine."""
    ranks_per_process: Annotated[int, Field(ge=0)] = 1
    """For workloads that know LOSSBENCH_SEATS; 0: all in one process."""


class Beside(Program):
    """A program that some hosts run beside the workload, from before its start to after its end."""

    role: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,20}$")]
    """What it is called in logs and records: web, clients, noise."""
    hosts: Annotated[tuple[str, ...], Field(min_length=1)] | Literal["all"] = "all"
    """Where it runs; its ranks are counted in this order."""
    foreground: bool = False
    """The run ends when this one has ended, not when the workload has: that is ended then."""


class Probe(Frozen):
    """The proof before the run."""

    packets: Annotated[int, Field(ge=0, le=5_000_000)] = 120_000
    """Over all hosts; 0: no proof, the fault stays unknown."""
    payload_bytes: Annotated[int, Field(ge=40, le=1000)] = 64
    """Of each."""


class Expect(Frozen):
    """A number of the workload's summary records that must lie in a range (mean over ranks)."""

    field: str
    """Its name in the summary records."""
    min: float | None = None
    """At least; none: no lower end."""
    max: float | None = None
    """At most; none: no upper end."""


class Experiment(Frozen):
    """One file a user writes."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,40}$")]
    """Default: the file's name."""
    why: str = ""
    """What it is for, in a line."""
    backend: Annotated[str, Field(pattern=r"^[a-z_][\w.]*(:\w+)?$")] = "auto"
    """What puts the loss in force: auto, one that lossbench doctor lists, one of yours (module:KIND), or simulated."""
    topology: Topology = Topology()
    """Hosts and links."""
    impair: tuple[Impair, ...] = ()
    """What is done to packets where and when; of several that match, the last wins."""
    shaping: Shaping = Shaping()
    """How links with a rate serve their queues."""
    workload: Workload = Workload()
    """What every host runs."""
    beside: tuple[Beside, ...] = ()
    """What some hosts run beside it."""
    probe: Probe = Probe()
    """What is sent to prove the network before the run."""
    expect: tuple[Expect, ...] = ()
    """Numbers that must lie in a range."""
    essential: Annotated[tuple[Column, ...], Field(min_length=1)] = ("fault", "outcome")
    """Columns that decide the verdict; add timing where latencies matter."""
    seeds: Annotated[int, Field(ge=1, le=1000)] = 1
    """Runs of every point; --seeds overrides."""
    first_seed: int = 0
    """Of them; the others follow."""
    sweep: dict[str, list[Any]] = {}
    """Dotted keys with lists of values; every combination is a point."""

    @model_validator(mode="after")
    def _programs_agree(self) -> Experiment:
        roles = [one.role for one in self.beside]
        if len(set(roles)) < len(roles):
            raise ValueError("two programs beside the workload have the same role")
        if sum(one.foreground for one in self.beside) > 1:
            raise ValueError("only one program can be the foreground, whose end is the run's")
        return self

    @model_validator(mode="after")
    def _hosts_exist(self) -> Experiment:
        for entry in self.impair:
            named = list(entry.hosts) if entry.hosts != "all" else [h for pair in entry.pairs for h in pair]
            match = entry.profile.match
            named += [place for place in (*match.destinations, *match.sources) if place.startswith("h")]
            for host in named:
                self.topology.host(host)
        for program in self.beside:
            for host in program.hosts if program.hosts != "all" else ():
                self.topology.host(host)
        if self.shaping.classes and not (self.topology.uplink_mbit() or self.topology.downlink_mbit()):
            raise ValueError("classes need a rate: without topology.rate_mbit a link never queues")
        return self


def as_now(stored: dict[str, Any]) -> dict[str, Any]:
    """What an earlier version stored, with the names and keys of today; as it is where that can't be said."""
    try:
        return Experiment.model_validate(stored).model_dump(mode="json")
    except (ValidationError, UsageError):
        return stored
