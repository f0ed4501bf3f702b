"""An experiment: topology, what is done to packets where and when, the workload, and what is expected of it.

A suite is an experiment with a [sweep]: dotted keys with lists of values, every combination is one point.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, JsonValue, ValidationError, field_validator, model_validator

from lossbench.contract import MASTER_PORT
from lossbench.errors import UsageError
from lossbench.spec import about
from lossbench.spec import profile as profiles
from lossbench.spec.about import Law, Stated
from lossbench.spec.profile import Profile
from lossbench.spec.shaping import Shaping
from lossbench.spec.topology import Host, Topology
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
        """Is this in force now? Step windows count the steps the workload reports. Below second 0 the run's clock has
        not begun: what is asked until some second has not either."""
        timed = bool(self.from_s) or self.to_s is not None
        return (
            (not timed or elapsed_s >= (self.from_s or 0.0))
            and (self.to_s is None or elapsed_s < self.to_s)
            and (self.from_step is None or step >= self.from_step)
            and (self.to_step is None or step < self.to_step)
        )

    def directions(self) -> tuple[Direction, ...]:
        return ("uplink", "downlink") if self.direction == "both" else (self.direction,)


class Program(Frozen):
    """Something that hosts run: a workload by name, or any command."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.]*$")] = "noop"
    """One of ours (noop, chatter, training, allreduce), or a module of yours; short for `python -m`."""
    command: tuple[str, ...] = ()
    """Any program instead; `python` is the interpreter that runs lossbench."""
    options: dict[str, JsonValue] = {}
    """What it is told, as a JSON file (LOSSBENCH_SPEC)."""
    barrier: bool = True
    """Wait until every rank said ready; off for programs that don't know our contract, which begin together."""
    traffic_class: str = ""
    """The class of shaping.classes that its packets belong to: it is told the DSCP to mark them with, and what that
    class loses is held against what it misses."""
    dscp: Annotated[int, Field(ge=0, le=63)] | None = None
    """What it is told to mark its packets with where they belong to no class: a lab's switch may go by it."""
    control_mb: Annotated[float, Field(ge=0)] | None = None
    """Megabytes that all ranks together may send over the control links before the fault is doubted; none: as its
    workload.toml says, else nothing. What all programs declare together is never below 1."""
    silent: bool | None = None
    """It sends nothing by design, and a run without a packet is no doubt; none: as its workload.toml says."""
    torchrun: Annotated[int, Field(ge=0, le=64)] = 0
    """Start a Python script by torchrun, with so many ranks on every host; 0: one rank, started by lossbench itself."""

    @field_validator("name")
    @classmethod
    def _called_now(cls, value: str) -> str:
        return about.called_now(value)

    def declared_control_mb(self) -> float:
        known = 0.0 if self.command else about.about(self.name).control_mb
        return known if self.control_mb is None else self.control_mb

    def is_silent(self) -> bool:
        by_name = not self.command and about.about(self.name).is_silent(self.options)
        return by_name if self.silent is None else self.silent

    @model_validator(mode="after")
    def _by_torchrun(self) -> Self:
        if self.torchrun and not (len(self.command) > 1 and self.command[0] == "python"):
            raise ValueError('torchrun starts a Python script: command = ["python", "train.py"]')
        return self


class Workload(Program):
    """The program that every host runs, one rank each."""

    time_limit_s: Annotated[float, Field(ge=0), BeforeValidator(lambda said: 0.0 if said == "off" else said)] = 600.0
    """After so many seconds the run is ended, and has failed; 0 or "off": it may take as long as it likes."""
    interleaved: bool = False
    """It compares two sides measured in turn: their ratio stands on a busy machine."""
    ranks_per_process: Annotated[int, Field(ge=0)] = 1
    """For workloads that know LOSSBENCH_SEATS; 0: all in one process."""

    def limit_s(self) -> float:
        return self.time_limit_s or math.inf


class Beside(Program):
    """A program that some hosts run beside the workload, from before its start to after its end."""

    role: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,20}$")]
    """What it is called in logs and records: web, clients, noise."""
    hosts: Annotated[tuple[str, ...], Field(min_length=1)] | Literal["all"] = "all"
    """Where it runs; its ranks are counted in this order."""
    foreground: bool = False
    """The run ends when this one has ended, not when the workload has: that is ended then."""
    from_s: Annotated[float, Field(ge=0)] | None = None
    """Started at this second of the run; none: before it, and waited for if it says ready."""
    to_s: Annotated[float, Field(gt=0)] | None = None
    """Told to end (SIGTERM) at this second; none: when the run ends."""

    @model_validator(mode="after")
    def _in_order(self) -> Beside:
        if self.from_s is not None and self.to_s is not None and self.from_s >= self.to_s:
            raise ValueError(f"the time from {self.from_s} to {self.to_s} is empty")
        if self.foreground and (self.from_s or self.to_s is not None):
            raise ValueError("the foreground runs from the run's start to its own end")
        return self


class Probe(Frozen):
    """The proof before the run."""

    packets: Annotated[int, Field(ge=0, le=5_000_000)] = 120_000
    """Over all hosts; 0: no proof, the fault stays unknown."""
    payload_bytes: Annotated[int, Field(ge=40, le=1000)] = 64
    """Of each."""


class Capture(Frozen):
    """Packets of every host's data link, kept for Wireshark."""

    packets: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Of each host, the first so many; 0: none."""
    bytes: Annotated[int, Field(ge=40, le=65535)] = 128
    """Of each packet, from its Ethernet header on."""


class Expect(Frozen):
    """A number of the workload's summary records that must lie in a range (mean over all ranks; or the first says it
    alone, or the last)."""

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
    subject: tuple[str, ...] = ()
    """Words in the names of the points it is about: what came out for them is said first."""
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
    capture: Capture = Capture()
    """Files for Wireshark; costs processor time, which *timing* may notice."""
    expect: tuple[Expect, ...] = ()
    """Numbers that must lie in a range."""
    stated: tuple[Stated, ...] = ()
    """Claims of papers about this point: reports say whether they are reproduced."""
    law: tuple[Law, ...] = ()
    """The same about the whole sweep."""
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
        known = [one.name for one in self.shaping.classes]
        for program in (self.workload, *self.beside):
            if program.traffic_class and program.traffic_class not in known:
                raise ValueError(
                    f"no class '{program.traffic_class}' in shaping.classes ({', '.join(known) or 'none'})"
                )
        return self

    def dscp_of(self, program: Program) -> int | None:
        """What its packets are marked with."""
        return next((one.dscp for one in self.shaping.classes if one.name == program.traffic_class), program.dscp)

    def hosts_of(self, program: Program) -> tuple[Host, ...]:
        """Where it runs; its ranks meet at the first of them."""
        hosts = program.hosts if isinstance(program, Beside) else "all"
        return self.topology.all_hosts() if hosts == "all" else tuple(self.topology.host(name) for name in hosts)

    def stores(self) -> dict[tuple[Host, int], int]:
        """Where ranks meet, host and TCP port on the control network, and how many of them do."""
        programs = (self.workload, *self.beside)
        places = [(self.hosts_of(one), max(1, one.torchrun)) for one in programs]
        return {(hosts[0], MASTER_PORT + n): len(hosts) * each for n, (hosts, each) in enumerate(places)}

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
        if self.shaping.queue != "fifo" and not self.topology.downlink_mbit():
            raise ValueError(f"{self.shaping.queue} stands at the switch: it needs topology.downlink_rate_mbit")
        return self


def as_now(stored: dict[str, Any]) -> dict[str, Any]:
    """What an earlier version stored, with the names and keys of today; as it is where that can't be said."""
    try:
        return Experiment.model_validate(stored).model_dump(mode="json")
    except (ValidationError, UsageError):
        return stored
