"""How links with a rate serve their traffic: classes, their shares and queues, and one knob for all of that."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from lossbench.spec.profile import Port
from lossbench.spec.userfile import Frozen

REST = "rest"
SHARED = "shared"
LEAST_SHARE = 0.1  # percent: HTB serves guaranteed rates before priorities, so a strictly lower class has next to none
LAST = 7


class TrafficClass(Frozen):
    """One queue of every rate-limited link; packets are sorted in by DSCP or port."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,14}$")]
    """As it is called in results; `rest` takes what no other takes."""
    rest: bool = False
    """It takes what no other takes, whatever it is called."""
    dscp: Annotated[int, Field(ge=0, le=63)] | None = None
    """Packets with this DSCP belong to it; programs of this class mark theirs with it."""
    ports: tuple[Port, ...] = ()
    """Packets from or to these ports, TCP or UDP."""
    share_percent: Annotated[float, Field(gt=0, le=100)] = 1.0
    """Guaranteed part of the link."""
    priority: Annotated[int, Field(ge=0, le=7)] = 0
    """0 is served first when there is rate to spare."""
    buffer_percent: Annotated[float, Field(gt=0, le=100)] | None = None
    """Its part of shaping.buffer_kb; none: what the others leave, in equal parts."""
    queue_kb: Annotated[float, Field(gt=0)] | None = None
    """Room at the switch, where a full queue loses packets; none: by rate and burst."""
    host_queue_kb: Annotated[float, Field(gt=0)] | None = None
    """Room at the sender, where a full queue is backpressure."""

    def takes_rest(self) -> bool:
        return self.rest or self.name == REST


class Shaping(Frozen):
    """How links with a rate serve their classes. Without classes there is one queue, `rest`."""

    scheduler: Literal["htb", "prio", "ets"] = "htb"
    """htb serves by share and priority everywhere; prio and ets where the kernel has them."""
    priority: Annotated[float, Field(ge=0, le=1)] | None = None
    """How far the first class goes before the others. 0: one queue for all, first come, first served. Above 0 each has
    its own queue, and together the others are guaranteed (1 - priority) / 2 of a link, the first all the rest: from
    equal halves up to 1, strict priority. None: as the classes themselves say."""
    buffer_kb: Annotated[float, Field(gt=0)] | None = None
    """Room at every port of the switch, for all classes together and the same with one queue or several."""
    queue: Literal["fifo", "fq_codel"] = "fifo"
    """What a class waits in at the switch. fifo loses what does not fit; fq_codel, where the kernel has it, serves
    flows in turns, marks what waits too long with ECN and drops it where the sender does not know ECN."""
    target_ms: Annotated[float, Field(gt=0, le=10_000)] = 5.0
    """How long fq_codel lets packets wait before it acts; it looks at twenty times that. On a scaled-down link say
    5 ms times the factor."""
    classes: tuple[TrafficClass, ...] = ()
    """Queues of every link with a rate, the first that fits takes a packet."""

    @model_validator(mode="after")
    def _sensible(self) -> Shaping:
        names = [c.name for c in self.classes]
        if len(set(names)) < len(names):
            raise ValueError("two classes have the same name")
        if sum(c.share_percent for c in self.classes) > 100:
            raise ValueError("the classes' shares add up to more than 100 %")
        if sum(c.takes_rest() for c in self.classes) > 1:
            raise ValueError("only one class can take what no other takes")
        for c in self.classes:
            if not c.takes_rest() and c.dscp is None and not c.ports:
                raise ValueError(f"class '{c.name}' needs a dscp or ports (only rest = true takes what is left)")
        self._check_buffer()
        if self.priority is not None:
            self._check_priority()
        return self

    def _check_buffer(self) -> None:
        parts = [c.buffer_percent for c in self.classes if c.buffer_percent is not None]
        if parts and self.buffer_kb is None:
            raise ValueError("buffer_percent is a part of shaping.buffer_kb: give that too")
        all_named = len(parts) == len(self.classes) and any(c.takes_rest() for c in self.classes)
        if sum(parts) > 100 or (sum(parts) == 100 and parts and not all_named):
            raise ValueError("the classes' parts of the buffer leave nothing, or add up to more than 100 %")
        if self.buffer_kb is not None and any(c.queue_kb is not None for c in self.classes):
            raise ValueError("give either shaping.buffer_kb or every class's queue_kb")

    def _check_priority(self) -> None:
        if len(self.classes) < 2:
            raise ValueError("a priority needs two classes at least: the first goes before the others")
        if self.scheduler != "htb" and self.priority not in (0, 1):
            raise ValueError(f"{self.scheduler} knows strict priority only: priority 0 or 1, or scheduler htb")

    def resolved(self) -> tuple[TrafficClass, ...]:
        """Every class of a link as it is put in force: shares, priorities and queues in numbers, one takes the rest."""
        if self.priority == 0:
            return (TrafficClass(name=SHARED, rest=True, share_percent=100, queue_kb=self.buffer_kb),)
        classes = self.classes
        if not any(c.takes_rest() for c in classes):
            classes = (*classes, TrafficClass(name=REST, priority=LAST))
        return self._with_queues(classes if self.priority is None else self._with_shares(classes, self.priority))

    def _with_shares(self, classes: tuple[TrafficClass, ...], priority: float) -> tuple[TrafficClass, ...]:
        first, *others = classes
        kept = max(LEAST_SHARE * len(others), 50 * (1 - priority))
        each = {"share_percent": kept / len(others), "priority": LAST}
        head = first.model_copy(update={"share_percent": 100 - kept, "priority": 0})
        return (head, *(c.model_copy(update=each) for c in others))

    def _with_queues(self, classes: tuple[TrafficClass, ...]) -> tuple[TrafficClass, ...]:
        if self.buffer_kb is None:
            return classes
        open_ended = [c for c in classes if c.buffer_percent is None]
        left = 100 - sum(c.buffer_percent or 0 for c in classes)
        parts = [c.buffer_percent or left / len(open_ended) for c in classes]
        return tuple(
            c.model_copy(update={"queue_kb": self.buffer_kb * part / 100})
            for c, part in zip(classes, parts, strict=True)
        )
