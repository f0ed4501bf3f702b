"""The race: one collective of one size by every contender, in turns."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from lossbench.contract import Door, derive_seed
from lossbench.workloads.allreduce.blast import Blast, Quiet
from lossbench.workloads.allreduce.contenders import CONTENDERS, FLOOR_BYTES, LIMITS, ON_REQUEST, Contender, Lossy
from lossbench.workloads.allreduce.operation import Operation
from lossbench.workloads.allreduce.stream import Stream
from lossbench.workloads.errors import OptionError
from lossbench.workloads.transport import own
from lossbench.workloads.transport.tuning import NotHereError

CONTROL, CONTROL_LIMIT = "ctl0", timedelta(seconds=300)
TRIED, HOPELESS = 5, 5.0  # after so many calls whoever takes so many times as long as the fastest is stopped
TURNS = 3  # of bursts
BURSTS = ((64_000, 50), (1_000_000, 10))  # bytes up to which so many calls are made in a row


@dataclass
class Measured:
    """One contender on one rank."""

    name: str
    contender: Contender | None = None
    why_not: str = ""
    seconds: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    link_bytes: int = 0
    stream_bytes: int = 0  # of the TCP stream beside, during its calls
    wrong: int | None = None  # elements of a last call whose right result is known

    @property
    def in_the_race(self) -> bool:
        return self.contender is not None and not self.why_not


class Bench:
    def __init__(self, door: Door) -> None:
        self.door = door
        torch.set_num_threads(1)
        options = door.options
        self.operation = Operation.asked(options, rank=door.rank, world=door.world_size)
        self.repeats, self.warm_up = int(options.get("repeats", 20)), int(options.get("warm_up", 2))
        self.limit_s, self.budget_s = float(options.get("limit_s", 10)), float(options.get("budget_s", 10))
        fitting = next((count for size, count in BURSTS if self.operation.bytes <= size), 1)
        self.burst = int(options.get("burst", 0)) or fitting
        self.fields = [Measured(name) for name in self._names(options)]
        self.store = dist.TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), door.world_size, door.rank == 0
        )
        options_ctl = dist.ProcessGroupGloo._Options()
        options_ctl._devices = [dist.ProcessGroupGloo.create_device(interface=CONTROL)]
        options_ctl._timeout = CONTROL_LIMIT
        others = own.connected()
        self.control = dist.ProcessGroupGloo(
            dist.PrefixStore("control", self.store), door.rank, door.world_size, options_ctl
        )
        self.agreeing: list[int] = []  # descriptors of the control group's own connections
        # Bytes by which ranks agreed, over the control link: beside what is measured, and no way around it.
        self.told = 0
        self.barrier()
        self.agreeing = [fd for name, fd in own.connected().items() if name not in others]
        beside = str(options.get("beside", ""))
        if beside and self.operation.name == "broadcast":
            raise OptionError("beside: rank 0, whose link is shared, receives nothing in a broadcast")
        self.stream = Stream(door, beside) if beside else None
        generator = np.random.default_rng(derive_seed(door.seed, "tensor", door.rank))
        self.values = torch.from_numpy(generator.standard_normal(self.operation.elements).astype(np.float32))

    def _names(self, options: Mapping[str, Any]) -> list[str]:
        names = list(options.get("contenders", [name for name in CONTENDERS if name not in ON_REQUEST]))
        unknown = [name for name in names if name not in CONTENDERS]
        if unknown:
            raise OptionError(f"no contender '{unknown[0]}': known are {', '.join(CONTENDERS)}")
        if "contenders" not in options and self.operation.bytes > FLOOR_BYTES:
            names.remove("floor")
        return names

    def run(self) -> None:
        for one in self.fields:
            self._make(one)
        if self.stream is not None and self.door.rank == 0:
            self.stream.wait_for_bytes()
        self.barrier()
        self.door.ready()
        for round_number in range(-self.warm_up, self.repeats):
            for turn in range(len(self.fields)):
                one = self.fields[(turn + round_number) % len(self.fields)]
                if one.in_the_race:
                    self._measure(one, counted=round_number >= 0)
            if round_number >= 0:
                self._stop_the_hopeless()
            self.door.record("step", step=round_number + self.warm_up)
            self.door.record("control", sent_bytes=self.told)
        for one in self.fields:
            if one.in_the_race and one.contender is not None and one.name not in LIMITS:
                self._verify(one, one.contender)
        self.door.record("control", sent_bytes=self.told)

    def close(self) -> None:
        for one in self.fields:
            if one.contender is not None:
                one.contender.close()
        if self.stream is not None:
            self.stream.close()

    def _make(self, one: Measured) -> None:
        """All ranks have it, or none."""
        self.barrier()
        try:
            store = dist.PrefixStore(one.name, self.store)
            one.contender = CONTENDERS[one.name](self.door, store, self.limit_s, self.operation)
            if self.operation.name not in one.contender.only:
                one.why_not = f"it has no {self.operation.name}"
        except (NotHereError, OSError) as error:
            one.why_not = str(error)
        self._agree(one)

    def _agree(self, one: Measured) -> None:
        out = torch.tensor([bool(one.why_not)], dtype=torch.int32)
        self._tell(out)
        if int(out[0]) and not one.why_not:
            one.why_not = "another rank had to stop: it could not, or was capped"

    def _measure(self, one: Measured, *, counted: bool) -> None:
        """A turn: calls in a row, each with its own time."""
        assert one.contender is not None
        # Calls of a blast have no numbers: in a row one would take another's packets for its own.
        burst = 1 if isinstance(one.contender, Blast) else self.burst
        tensors = [self.operation.tensors(self.values) for _ in range(burst)]
        self.barrier()
        link, cpu, beside = link_bytes(self.door.interface), cpu_seconds(), self._beside()
        seconds: list[float] = []
        try:
            for whole, part in tensors:
                seconds.append(self._call(one.contender, whole, part))
        except (RuntimeError, OSError) as error:
            words = str(error).splitlines()[0] if str(error) else ""
            one.why_not = (
                f"capped: a call took more than {self.limit_s:g} s, or failed ({words or type(error).__name__})"
            )
        if isinstance(one.contender, Lossy):
            one.contender.note()
        if counted and not one.why_not:
            one.seconds += seconds
            one.cpu_s += cpu_seconds() - cpu
            one.link_bytes += link_bytes(self.door.interface) - link
            one.stream_bytes += self._beside() - beside
        if not one.why_not and sum(one.seconds) > self.budget_s:
            one.why_not = f"capped after {len(one.seconds)} calls ({self.budget_s:g} s)"
        self._agree(one)

    def _verify(self, one: Measured, contender: Contender) -> None:
        """A call on numbers whose result is known; beyond the clock. Where packets may be lost, some are wrong."""
        whole, part = self.operation.known()
        self.barrier()
        try:
            self._call(contender, whole, part)
            one.wrong = self.operation.wrong(whole, part)
        except (RuntimeError, OSError):
            one.wrong = None  # its rows say already how it ended
        self.barrier()

    @staticmethod
    def _call(contender: Contender, whole: torch.Tensor, part: torch.Tensor) -> float:
        spare, start = 0.0, time.perf_counter()
        try:
            contender.call(whole, part)
        except Quiet as quiet:
            spare = quiet.seconds
        return time.perf_counter() - start - spare

    def _beside(self) -> int:
        return self.stream.received if self.stream is not None else 0

    def _stop_the_hopeless(self) -> None:
        """Nobody waits for what takes many times as long; all ranks see the same."""
        enough = max(TRIED, TURNS * self.burst if self.burst > 1 else 0)
        racing = [
            one for one in self.fields if one.in_the_race and one.name not in LIMITS and len(one.seconds) >= enough
        ]
        if not racing:
            return
        medians = torch.tensor([float(np.median(one.seconds)) for one in racing], dtype=torch.float64)
        self._tell(medians, dist.ReduceOp.MAX)
        best = min(float(median) for median in medians)
        for one, median in zip(racing, medians.tolist(), strict=True):
            if median > HOPELESS * best and len(one.seconds) < 2 * enough:
                one.why_not = f"stopped after {len(one.seconds)} calls: {median / best:.0f} x the fastest"

    def barrier(self) -> None:
        self._tell(torch.zeros(1))

    def _tell(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> None:
        """All ranks, reliably. What others send over that link meanwhile is not said to be ours."""
        self.control.allreduce([tensor], options_of(op)).wait()
        self.told = own.sent(self.agreeing)


def options_of(op: Any) -> Any:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    return options


def link_bytes(interface: str) -> int:
    """Sent on the data link, as the kernel counts it."""
    with open("/proc/net/dev", encoding="ascii") as file:
        for line in file:
            name, _, numbers = line.partition(":")
            if name.strip() == interface:
                return int(numbers.split()[8])
    return 0


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
