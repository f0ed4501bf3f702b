"""All-reduces of one size by every contender in turns; a row each: time, bandwidth, what arrived, CPU, path proof.

Options: mb, repeats, warm_up, limit_s (one call), budget_s (all calls of a contender), contenders.

    lossbench run collectives
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from lossbench.contract import Door, derive_seed
from lossbench.workloads.allreduce.contenders import CONTENDERS, TCP, Contender, Lossy, Quiet
from lossbench.workloads.errors import OptionError
from lossbench.workloads.transport.tuning import NotHereError

SHOWN = ["contender", "n", "p50_ms", "p99_ms", "max_ms", "gbit_s", "arrived_1", "arrived_2", "vs_tcp"]  # 80 columns
MEDIAN_CALLS = 20
CONTROL_LIMIT = timedelta(seconds=300)


@dataclass
class Measured:
    """One contender on one rank."""

    name: str
    contender: Contender | None = None
    why_not: str = ""
    seconds: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    link_bytes: int = 0

    @property
    def in_the_race(self) -> bool:
        return self.contender is not None and not self.why_not


class Bench:
    def __init__(self, door: Door) -> None:
        self.door = door
        torch.set_num_threads(1)
        options = door.options
        self.elements = int(float(options.get("mb", 16)) * 1e6) // 4
        self.repeats, self.warm_up = int(options.get("repeats", 20)), int(options.get("warm_up", 2))
        self.limit_s, self.budget_s = float(options.get("limit_s", 10)), float(options.get("budget_s", 10))
        names = list(options.get("contenders", CONTENDERS))
        unknown = [name for name in names if name not in CONTENDERS]
        if unknown:
            raise OptionError(f"no contender '{unknown[0]}': known are {', '.join(CONTENDERS)}")
        self.store = dist.TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), door.world_size, door.rank == 0
        )
        options_ctl = dist.ProcessGroupGloo._Options()
        options_ctl._devices = [dist.ProcessGroupGloo.create_device(interface="ctl0")]
        options_ctl._timeout = CONTROL_LIMIT
        self.control = dist.ProcessGroupGloo(
            dist.PrefixStore("control", self.store), door.rank, door.world_size, options_ctl
        )
        self.fields = [Measured(name) for name in names]
        generator = np.random.default_rng(derive_seed(door.seed, "tensor", door.rank))
        self.values = generator.standard_normal(self.elements).astype(np.float32)

    def run(self) -> None:
        for one in self.fields:
            self._make(one)
        self.door.ready()
        for round_number in range(-self.warm_up, self.repeats):
            for turn in range(len(self.fields)):
                one = self.fields[(turn + round_number) % len(self.fields)]
                if one.in_the_race:
                    self._measure(one, counted=round_number >= 0)
            self.door.record("step", step=round_number + self.warm_up)
        self._report()

    def _make(self, one: Measured) -> None:
        """All ranks have it, or none."""
        self._barrier()
        try:
            store = dist.PrefixStore(one.name, self.store)
            one.contender = CONTENDERS[one.name](self.door, store, self.limit_s)
        except (NotHereError, OSError) as error:
            one.why_not = str(error)
        self._agree(one)

    def _agree(self, one: Measured) -> None:
        out = torch.tensor([bool(one.why_not)], dtype=torch.int32)
        self.control.allreduce([out]).wait()
        if int(out[0]) and not one.why_not:
            one.why_not = "another rank could not"

    def _measure(self, one: Measured, *, counted: bool) -> None:
        assert one.contender is not None
        tensor = torch.from_numpy(self.values.copy())
        self._barrier()
        bytes_before, cpu_before, start = link_bytes(self.door.interface), cpu_seconds(), time.perf_counter()
        spare = 0.0
        try:
            one.contender.call(tensor)
        except Quiet as quiet:
            spare = quiet.seconds
        except (RuntimeError, OSError) as error:
            one.why_not = f"capped: a call took more than {self.limit_s:g} s ({type(error).__name__})"
        took = time.perf_counter() - start - spare
        if counted and not one.why_not:
            one.seconds.append(took)
            one.cpu_s += cpu_seconds() - cpu_before
            one.link_bytes += link_bytes(self.door.interface) - bytes_before
        if not one.why_not and sum(one.seconds) > self.budget_s:
            one.why_not = f"capped after {len(one.seconds)} calls ({self.budget_s:g} s)"
        self._agree(one)

    def _barrier(self) -> None:
        self.control.allreduce([torch.zeros(1)]).wait()

    # --- results -------------------------------------------------------------------------------------------------

    def _report(self) -> None:
        rows = [self._row(one) for one in self.fields]
        for word, names in (("vs_gloo", [n for n in TCP if "gloo" in n]), ("vs_tcp", TCP)):
            best = min((r["p50_ms"] for r in rows if r["contender"] in names and self._enough(r)), default=None)
            for row in rows:
                row[word] = round(best / row["p50_ms"], 2) if best and self._enough(row) else None
        for row in rows:
            if self.door.rank == 0:
                self.door.record("row", **row, shown=SHOWN)
        for one in self.fields:
            if one.contender is not None:
                one.contender.close()

    def _enough(self, row: dict[str, Any]) -> bool:
        """A median of one call that ended is no match for the median of twenty."""
        return bool(row["n"] >= min(MEDIAN_CALLS, self.repeats))

    def _row(self, one: Measured) -> dict[str, Any]:
        """The same on all ranks: a call takes as long as its slowest rank."""
        calls = self._common(len(one.seconds), min)
        times = torch.tensor(one.seconds[:calls], dtype=torch.float64)
        if calls:
            self.control.allreduce([times], _options(dist.ReduceOp.MAX)).wait()
        ms = times.numpy() * 1000
        payload = self.elements * 4 * 2 * (self.door.world_size - 1) / self.door.world_size
        cpu = self._common(one.cpu_s, sum)
        sent = self._common(one.link_bytes / max(len(one.seconds), 1) / payload, min)
        row = {
            "contender": one.name,
            "mb": self.elements * 4 / 1e6,
            "n": calls,
            "p50_ms": _at(ms, 0.5),
            "p99_ms": _at(ms, 0.99),
            "max_ms": _at(ms, 1.0),
            "gbit_s": round(payload * 8 / np.median(ms) / 1e6, 3) if calls >= min(MEDIAN_CALLS, self.repeats) else None,
            "cpu_s_per_gb": round(cpu / (payload * self.door.world_size * calls / 1e9), 3) if calls else None,
            "arrived_1": None,
            "arrived_2": None,
            "link_bytes": round(sent, 3),
            "path": ("ok" if sent >= 0.99 else "unknown") if calls else "-",
            "note": one.why_not,
        }
        if self.door.rank == 0 and calls:
            self.door.samples(f"{one.name}_ms", ms.tolist())
        if isinstance(one.contender, Lossy) and one.contender.fractions:
            self._add_lossy(row, one.contender, own_s=one.seconds)
        return row

    def _add_lossy(self, row: dict[str, Any], lossy: Lossy, *, own_s: list[float]) -> None:
        for half in (0, 1):
            mean = float(np.mean([f[half] for f in lossy.fractions[self.warm_up :]]))
            row[f"arrived_{half + 1}"] = round(self._common(mean, sum) / self.door.world_size, 5)
        counters = lossy.group.counters
        for name in ("overflow", "late", "cut", "data_expected"):
            row[name] = int(self._common(counters[name], sum))
        self.door.record("counters", **counters)
        self.door.record("halves", calls=lossy.halves[self.warm_up :], seconds=own_s)

    def _common(self, value: float, how: Callable[..., Any]) -> Any:
        ops = {min: dist.ReduceOp.MIN, sum: dist.ReduceOp.SUM}
        tensor = torch.tensor([float(value)], dtype=torch.float64)
        self.control.allreduce([tensor], _options(ops[how])).wait()
        return int(tensor[0]) if isinstance(value, int) else float(tensor[0])


def _options(op: Any) -> Any:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    return options


def _at(ms: Any, q: float) -> float | None:
    return round(float(np.quantile(ms, q)), 3) if len(ms) else None


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


if __name__ == "__main__":
    try:
        Bench(Door.from_environment()).run()
    except OptionError as error:
        sys.exit(f"lossbench allreduce: {error}")
