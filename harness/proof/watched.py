"""What a watch over a run saw, as values. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from lossbench.net.counters import HeldByRule, HookCounters, Reading
from lossbench.spec.placement import Hook, Rule

Unit: TypeAlias = Literal["s", "step"]
FULL = 0.8  # of all cores, on average
STALLED = 0.1  # of the time, in which none of the programs that had something to do could do it
STEP_S, SLEW = 0.05, 500e-6  # of clocks against each other: more than NTP's slow way of setting one
ROLE = "beside"  # in a summary: of which program beside the workload it is


@dataclass(frozen=True, kw_only=True)
class Carried:
    """Bytes that links have carried so far; read between two moments."""

    from_s: float
    to_s: float
    up: dict[int, int] = field(default_factory=dict)  # by rank
    down: dict[int, int] = field(default_factory=dict)


@dataclass(kw_only=True)
class Quiet:
    """Was the machine quiet enough to believe latencies? Per sample of the workload: `cpu_busy`, share of the cores
    that may be used; `busiest`, of the busiest of them; `stolen`, what a hypervisor took of all; `waited`, share of the
    time that one of the run's threads spent waiting for a core (empty: the kernel does not tell). `each_ms`: how long
    one of them waited each time, if that was most of what it did; `unseen_waits`: as long as they had a core, processes
    waited for one that came and went between two looks; `own_cores`: that the run's programs kept busy, of `cores` (0:
    the kernel does not tell); `late_ms`: how late the harness's own clock tick
    came; `longest_gap_s`: between two looks at the network; `throttled`: share of the time in which a control group
    held the run back. `stalled`: share in which all programs with something to do waited for disks ("io") or "memory"
    (empty: the kernel does not tell), of the run's own alone or, without a group of theirs, of all on the machine. In
    `watched_s` the machine was `suspended_s`, and its wall clock `clock_set_s` ahead. `gpus`: the run held some."""

    cpu_busy: list[float] = field(default_factory=list)
    busiest: list[float] = field(default_factory=list)
    stolen: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    each_ms: float = 0.0
    unseen_waits: float = 0.0
    own_cores: float = 0.0
    late_ms: list[float] = field(default_factory=list)
    longest_gap_s: float = 0.0
    throttled: float = 0.0
    stalled: dict[str, float] = field(default_factory=dict)
    stalled_alone: bool = True
    watched_s: float = 0.0
    suspended_s: float = 0.0
    clock_set_s: float = 0.0
    gpus: bool = False
    cores: int = 1
    machines: dict[str, Quiet] = field(default_factory=dict)  # of a lab; the rest is then the controller's

    def whose(self) -> list[str]:
        """Whose load it was, and what helps where all cores were full; empty where nobody knows."""
        if not self.own_cores or not self.cpu_busy:
            return []
        busy = sum(self.cpu_busy) / len(self.cpu_busy)
        others = max(0.0, self.cores * busy - self.own_cores)
        helps = ": fewer hosts help" if self.own_cores > others else ": ending other programs helps"
        kept = f"of {self.cores} cores the run's programs kept {self.own_cores:.1f} busy, all else {others:.1f}"
        return [kept + (helps if busy > FULL else "")]

    def stood_still(self) -> list[str]:
        """Why no time can be believed, whichever side it was measured on, other than for a core."""
        out = self._stalls("the run's programs") if self.stalled_alone else []
        room = STEP_S + SLEW * self.watched_s
        if self.suspended_s > room:
            out.append(f"the machine was suspended for {self.suspended_s:.3g} s")
        if abs(self.clock_set_s) > room:
            out.append(f"the wall clock was set by {self.clock_set_s:+.3g} s")
        return out

    def beside(self) -> list[str]:
        """What is said and voids nothing: of a run without a group of its own the kernel tells what anybody's programs
        waited for, and one that writes on a machine with little to do is nearly all of them."""
        return [] if self.stalled_alone else self._stalls("programs of this machine, whosever they are,")

    def _stalls(self, whose: str) -> list[str]:
        return [
            f"{whose} stood still for {'disks' if what == 'io' else what} in {share:.0%} of the time ({what}.pressure)"
            for what, share in self.stalled.items()
            if share > STALLED
        ]


@dataclass(kw_only=True)
class Change:
    """An entry of the schedule came or went: when that was asked for, and when it was done at all hooks, as a second of
    the run or as the step that the rank furthest ahead had reported."""

    entry: int
    came: bool
    unit: Unit
    asked: float
    real: float = 0.0
    kept: bool = False  # by the network itself, which compares the clock at every packet


@dataclass(kw_only=True)
class Watched:
    before: Reading = field(default_factory=Reading)  # when the network was quiet and no rank had started
    after: Reading | None = None  # when the ranks had ended and nothing was under way any more; None: can't be read
    moving: int = 0  # packets that still moved while it was read
    rules: dict[Hook, dict[str, Rule]] = field(default_factory=dict)  # every rule that was ever in force
    early: HookCounters = field(default_factory=dict)  # when the run's clock began, where a window was open until then
    carried: list[Carried] = field(default_factory=list)
    held: HeldByRule = field(default_factory=dict)
    noticed: dict[str, float] = field(default_factory=dict)  # where packets leaked, and when that was first seen
    quiet: Quiet = field(default_factory=Quiet)
    summaries: list[dict[str, Any]] = field(default_factory=list)
    programs: list[dict[str, Any]] = field(default_factory=list)  # what is known of a user's command, by rank
    traffic: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)  # by role ("": the workload) and rank
    control: dict[tuple[str, int, str], float] = field(default_factory=dict)  # bytes that they say they sent there, by
    # role, host and (under torchrun) rank
    around: list[str] = field(default_factory=list)  # ports that were open on the control links while much went there
    classes: dict[str, int] = field(default_factory=dict)  # packets that each class's queues lost, by name
    came: dict[str, int] = field(default_factory=dict)  # packets that came to them, likewise
    doubts: dict[str, list[str]] = field(default_factory=dict)  # by role: why its own times are not to be believed
    of_load: list[str] = field(default_factory=list)  # doubts of what a program put on the network: of all times
    rows: list[dict[str, Any]] = field(default_factory=list)
    units: dict[str, str] = field(default_factory=dict)  # that the workload declares for its numbers
    not_numbers: dict[str, bool] = field(default_factory=dict)  # names of values that were infinite or no numbers
    errors: list[str] = field(default_factory=list)
    lapses: list[str] = field(default_factory=list)  # what was not in force any more when it was looked at
    never: list[str] = field(default_factory=list)  # entries of the schedule that were never in force
    changes: list[Change] = field(default_factory=list)  # of the schedule, as they really were
    late: list[str] = field(default_factory=list)  # entries that came later than asked, by the watch's own fault
    gone: list[str] = field(default_factory=list)  # programs beside the foreground that ended before the run did
    never_came: list[str] = field(default_factory=list)  # programs whose time to begin lay behind the run's end
    last_step: int = -1
    duration_s: float = 0.0
    opened_s: float = 0.0  # after the run's clock had begun, when ranks were let go
    damaged_lines: int = 0
    problem: str = ""
    vanished: bool = False  # the problem is that a machine of the lab went away
    _latest: dict[tuple[str, int, str], dict[str, Any]] = field(default_factory=dict)

    def summed_up(self, role: str, number: int, said_by: Any, numbers: dict[str, Any]) -> None:
        """A rank that says a number again, after every epoch for example, means the last one. `said_by`: its own rank,
        where several share a host (torchrun)."""
        who = (role, number, str(said_by))
        if who not in self._latest:
            self.summaries.append(self._latest.setdefault(who, {}))
        self._latest[who].update(numbers)

    def lapsed(self, texts: list[str]) -> None:
        """Each is said once."""
        self.lapses += [text for text in texts if text not in self.lapses]
