"""What was measured, as rows: the same on all ranks, since a call takes as long as its slowest rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from lossbench.workloads.allreduce.bench import Bench, Measured, options_of
from lossbench.workloads.allreduce.blast import Blast
from lossbench.workloads.allreduce.contenders import FLOOR_BYTES, TCP, Lossy

MEDIAN_CALLS = 20
SAMPLES = {"p99_ms": 1000, "p95_ms": 200}  # calls that it takes, by our own rule: ten beyond it
COLUMNS = ["contender", "n", "p50_ms", "p99_ms", "gbit_s", "cpu_s_per_gb", "arrived_1", "arrived_2", "vs_tcp"]


class Rows:
    def __init__(self, bench: Bench) -> None:
        self._bench, self._door, self._operation = bench, bench.door, bench.operation

    def report(self) -> None:
        rows = [self._row(one) for one in self._bench.fields]
        limit = "floor" if self._operation.bytes <= FLOOR_BYTES else "udp-blast"
        for word, names in (("vs_gloo", [n for n in TCP if "gloo" in n]), ("vs_tcp", TCP), ("vs_limit", (limit,))):
            best = min((r["p50_ms"] for r in rows if r["contender"] in names and self._enough(r)), default=None)
            for row in rows:
                row[word] = round(best / row["p50_ms"], 2) if best and self._enough(row) else None
        shown = self._shown(rows)
        for row in rows:
            if self._door.rank == 0:
                self._door.record("row", **row, shown=shown)

    def _shown(self, rows: list[dict[str, Any]]) -> list[str]:
        """80 columns: the farthest percentile that there are calls for."""
        most = max((row["n"] for row in rows), default=0)
        tail = next((name for name, calls in SAMPLES.items() if most >= calls), "max_ms")
        return [tail if name == "p99_ms" else name for name in COLUMNS] + (["share"] if self._bench.stream else [])

    @staticmethod
    def _enough(row: dict[str, Any]) -> bool:
        """Of fewer calls there is no median to speak of, and no ratio of it."""
        return bool(row["n"] >= MEDIAN_CALLS)

    def _row(self, one: Measured) -> dict[str, Any]:
        operation = self._operation
        calls = self._common(len(one.seconds), min)
        times = torch.tensor(one.seconds[:calls], dtype=torch.float64)
        if calls:
            self._reduce(times, dist.ReduceOp.MAX)
        ms = times.numpy() * 1000
        median = float(np.median(ms)) if calls else 0.0
        payload = operation.bytes * operation.crossing
        lawful = getattr(one.contender, "least_bytes", operation.sent_by(self._door.rank))
        carried = one.link_bytes / max(len(one.seconds), 1) / lawful if lawful else np.inf
        sent = self._common(float(min(carried, 1e9)), min)
        cpu = self._common(one.cpu_s, sum)
        row: dict[str, Any] = {
            "contender": one.name,
            "op": operation.name,
            "dtype": operation.dtype,
            "mb": operation.bytes / 1e6,
            "n": calls,
            "p50_ms": _at(ms, 0.5),
            "p95_ms": _at(ms, 0.95),
            "p99_ms": _at(ms, 0.99),
            "max_ms": _at(ms, 1.0),
            "gbit_s": round(payload * 8 / median / 1e6, 3) if calls and self._enough({"n": calls}) else None,
            "algbw_gbit_s": round(operation.bytes * 8 / median / 1e6, 3) if calls else None,
            "cpu_s_per_gb": round(cpu / (payload * operation.world * calls / 1e9), 3) if calls else None,
            "arrived_1": None,
            "arrived_2": None,
            "wrong": self._wrong(one),
            "link_bytes": round(sent, 3),
            "path": ("ok" if sent >= 0.99 else "unknown") if calls else "-",
            "note": one.why_not,
        }
        if self._door.rank == 0 and calls:
            self._door.samples(f"{one.name}_ms", ms.tolist())
        self._add_arrived(row, one)
        if row["gbit_s"] is not None:
            row["gbit_s"] = round(row["gbit_s"] * _arrived(row), 3)  # what was lost has crossed nothing
        self._add_share(row, one)
        return row

    def _wrong(self, one: Measured) -> int | None:
        """Elements, over all ranks; None where some rank has none to count."""
        known = self._common(0 if one.wrong is None else 1, min)
        count = self._common(one.wrong or 0, sum)
        return count if known else None

    def _add_arrived(self, row: dict[str, Any], one: Measured) -> None:
        """All ranks ask each other as often: by what they have in common."""
        warm_up = self._bench.warm_up
        if isinstance(one.contender, Blast) and row["n"]:
            self._add_mean(row, "arrived_1", one.contender.shares[warm_up:])
            row["overflow"] = int(self._common(one.contender.overflow, sum))
        if not isinstance(one.contender, Lossy):
            return
        fractions = [found for found in one.contender.fractions[warm_up:] if found]
        halves = self._common(min((len(found) for found in fractions), default=0), min)
        for half in range(halves):
            self._add_mean(row, f"arrived_{half + 1}", [found[half] for found in fractions])
        counters = one.contender.group.counters
        for name in ("overflow", "late", "cut", "data_expected"):
            row[name] = int(self._common(counters[name], sum))
        self._door.record("counters", **counters)
        self._door.record("halves", calls=one.contender.halves[warm_up:], seconds=one.seconds)

    def _add_mean(self, row: dict[str, Any], name: str, shares: list[float]) -> None:
        mean = float(np.mean(shares)) if shares else 1.0
        row[name] = round(self._common(mean, sum) / self._door.world_size, 5)

    def _add_share(self, row: dict[str, Any], one: Measured) -> None:
        """Of rank 0's downlink, beside the stream: what came for it, without headers."""
        if self._bench.stream is None or not row["n"]:
            return
        came = self._operation.bytes * self._operation.crossing * len(one.seconds) * _arrived(row)
        mine = came / (came + one.stream_bytes) if self._door.rank == 0 else 0.0
        row["share"] = round(self._common(mine, sum), 3)

    def _common(self, value: float, how: Callable[..., Any]) -> Any:
        ops = {min: dist.ReduceOp.MIN, sum: dist.ReduceOp.SUM}
        tensor = torch.tensor([float(value)], dtype=torch.float64)
        self._reduce(tensor, ops[how])
        return int(tensor[0]) if isinstance(value, int) else float(tensor[0])

    def _reduce(self, tensor: torch.Tensor, op: Any) -> None:
        self._bench.control.allreduce([tensor], options_of(op)).wait()


def _arrived(row: dict[str, Any]) -> float:
    """Of both halves, where some may be lost."""
    shares = [row[name] for name in ("arrived_1", "arrived_2") if row[name] is not None]
    return float(np.mean(shares or [1.0]))


def _at(ms: Any, q: float) -> float | None:
    return round(float(np.quantile(ms, q)), 3) if len(ms) else None
