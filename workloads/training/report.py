"""The line of the result table that a training run ends in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lossbench.workloads.training import engine as engines
from lossbench.workloads.training.build import Built
from lossbench.workloads.training.settings import Settings

LAST = 0.1  # of all steps: the training loss is their mean
WORST_TAIL = 0.99
CUT_SAID = 0.001
NOT_REACHED = "not reached"
MIXING = {"alpha_1": "left", "alpha_2": "shifted"}  # of RPS
THEORY = ("over_exact", "over_stated", "over_predicted")  # of strategies whose parameters have owners
SPEEDS = ("samples_s", "samples_s_worker", "tokens_s", "tokens_s_worker")
SHOWN = [
    "strategy",
    "train_loss",
    "MEASURE",
    "drift_first",
    "drift_last",
    *THEORY,
    *MIXING,
    "arrived",
    "mb_step",
    "ms_step",
    "ms_step_mean",
    "reached",
    "target_s",
    *SPEEDS,
]
UNITS = {"ms_step": "ms", "ms_step_mean": "ms", "target_s": "s", "ms_step_p99": "ms", **dict.fromkeys(SPEEDS, "1/s")}
SHOWN_OF_NOISE = ["strategy", "drift_last", *THEORY, "owner_over_exact", "arrived"]


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The target, after so many steps, which took so many seconds; of a resumed run nobody knows."""

    steps: int | None = None
    seconds: float | None = None


def result_row(
    job: Built,
    found: dict[str, Any],
    *,
    step_s: list[float],
    outside_s: float,
    drifts: list[dict[str, Any]],
    reached: Reached | None = None,
    sent: list[int] | None = None,
) -> list[dict[str, Any]]:
    """One row for each rank here, equal on all but for its own judgement; rank 0's goes into the table."""
    settings, measure = job.settings, job.task.measure
    ms = 1000 * np.array(step_s) if step_s else np.zeros(1)
    typical = float(np.median(by_rounds(ms, job.seats[0].strategy.every)))
    last = max(1, round(LAST * len(step_s)))
    ran = bool(step_s)  # a resumed run may have nothing left to do
    train_loss = mean_over_ranks(job, [float(np.mean(s.losses[-last:])) for s in job.seats]) if ran else None
    shared: dict[str, Any] = {
        "strategy": _name(job),
        "workers": job.seats[0].door.world_size,
        "steps": job.steps,
        "train_loss": train_loss,
        **(_speed(job, float(ms.mean())) if ran and measure else {}),
        "ms_step": typical,
        "ms_step_mean": float(ms.mean()),
        "ms_step_p99": float(np.quantile(ms, WORST_TAIL)),
        "arrived_1": _arrived(job, 0),
        "arrived_2": _arrived(job, 1),
        "outside": outside_s / max(sum(step_s), 1e-9),
        "simulated": settings.simulated is not None,
    }
    shared |= _drift(drifts) | (_target(settings, reached) if measure else {})  # noise learns nothing
    if found:
        shared |= _judged(job, found, measure)
    halves = [share for share in (shared["arrived_1"], shared["arrived_2"]) if share is not None]
    shared["arrived"] = sum(halves) / len(halves) if halves else None
    shown = SHOWN if measure else SHOWN_OF_NOISE
    shown = [name.replace("MEASURE", measure) for name in shown]
    shared |= _heard(job)
    shared |= _memory(job) | _sent(job, sent, len(step_s))
    shared["cut"] = mean_over_ranks(job, [seat.cut / max(seat.expected, 1) for seat in job.seats])
    note = "; ".join(_notes(job, shared["cut"]))
    shown = [name for name in shown if name in shared]
    return [{**shared, "shown": shown, "note": note, "units": UNITS} for _ in job.seats]


def by_rounds(times: NDArray[np.float64], every: int) -> NDArray[np.float64]:
    """The mean step of each round of so many, which has one exchange: the median of steps of which seven in eight send
    nothing would be of those."""
    rounds = len(times) // every
    return times[: rounds * every].reshape(rounds, every).mean(1) if rounds else times.mean(keepdims=True)


def _memory(job: Built) -> dict[str, float]:
    """What torch had of the GPU at most, all workers together; every process has a context of its own beside it."""
    device = job.seats[0].strategy.flat.values.device
    if device.type != "cuda":
        return {}
    here = torch.cuda.max_memory_allocated(device) / len(job.seats) / 1e6
    return {"gpu_mb": job.seats[0].door.world_size * mean_over_ranks(job, [here] * len(job.seats))}


def _sent(job: Built, sent: list[int] | None, steps: int) -> dict[str, float]:
    """Of all workers together, per step."""
    if sent is None or not steps:
        return {}
    return {"mb_step": job.seats[0].door.world_size * mean_over_ranks(job, [float(one) for one in sent]) / steps / 1e6}


def _target(settings: Settings, reached: Reached | None) -> dict[str, Any]:
    """Of a run that did not reach it no time is known, only that it was not enough."""
    if settings.target is None:
        return {}
    if reached is None:
        return {"reached": 0.0, "target_s": NOT_REACHED}
    if reached.steps is None:
        return {"reached": 1.0}
    return {"reached": 1.0, "target_steps": reached.steps, "target_s": reached.seconds}


def _speed(job: Built, ms: float) -> dict[str, float]:
    """At the mean step, whose tail is a part of what training takes: of all workers together, and of one."""
    counts, world = job.task.counts, job.seats[0].door.world_size
    each = job.settings.batch * (job.batches.window if counts == "tokens" else 1) * 1000 / ms
    return {f"{counts}_s": world * each, f"{counts}_s_worker": each}


def _name(job: Built) -> str:
    return job.seats[0].strategy.label + (" (simulated)" if job.settings.simulated is not None else "")


def _notes(job: Built, cut: float) -> list[str]:
    out = [f"engine {engines.name_of(job.engine)}", *job.seats[0].strategy.channel.notes]
    if job.settings.simulated is not None:
        out.append("simulated loss: no packet crossed a network")
    if over := job.steps % job.seats[0].strategy.every:
        out.append(f"judged {over} steps after the last exchange")
    if cut > CUT_SAID:
        out.append(f"{100 * cut:.2g} % of the packets were cut by our own deadline, not lost by the network")
    return out


def _heard(job: Built) -> dict[str, Any]:
    """How much each worker counts in the other owners' means, 1 = as much as all others (bias_every)."""
    if not job.seats[0].weights:
        return {}
    mine = torch.tensor([np.mean(seat.weights, axis=0).tolist() for seat in job.seats], dtype=torch.float64)
    table = _everywhere(job, mine).reshape(-1, mine.shape[1])  # [owner, worker]
    table.fill_diagonal_(float("nan"))
    return {"heard": [round(float(w), 4) for w in table.nanmean(0) * len(table)]}


def _judged(job: Built, found: dict[str, Any], measure: str) -> dict[str, Any]:
    """`X`: mean over workers' own models; `X_agreed`: of the owners' model, or of the mean model where nobody owns."""
    names = list(found["workers"][0])
    table = torch.tensor([[one[name] for name in names] for one in found["workers"]], dtype=torch.float64)
    everybody = torch.cat(list(_everywhere(job, table)))
    agreed = found.get("owners") or found.get("mean") or {}
    out: dict[str, Any] = {name: float(everybody[:, n].mean()) for n, name in enumerate(names)}
    out |= {f"{name}_agreed": value for name, value in agreed.items()}
    out |= {f"{name}_mean_model": value for name, value in (found.get("mean") or {}).items()}
    spread = everybody[:, names.index(measure)]
    ends = sorted((float(spread.min()), float(spread.max())), reverse=not job.task.higher_is_better)
    return {**out, "worst_worker": ends[0], "best_worker": ends[1]}


def _everywhere(job: Built, table: torch.Tensor) -> torch.Tensor:
    """[world, 1, columns]: one row of `table` per seat here, gathered over all ranks."""
    return job.crew.each(lambda n: job.seats[n].control.gather(table[n : n + 1]))[0]


def mean_over_ranks(job: Built, values: list[float]) -> float:
    here = torch.tensor(values, dtype=torch.float64)[:, None]
    return float(_everywhere(job, here).mean())


def _arrived(job: Built, half: int) -> float | None:
    if job.seats[0].share_arrived(half) is None:
        return None
    return mean_over_ranks(job, [seat.share_arrived(half) or 0.0 for seat in job.seats])


def _drift(drifts: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean over the second half of the run, and over the first quarter: does it grow?"""
    if not drifts:
        return {}
    late = drifts[len(drifts) // 2 :]
    early = drifts[: max(1, len(drifts) // 4)]

    def mean(name: str, some: list[dict[str, Any]]) -> float | None:
        values = [d[name] for d in some if name in d]
        return float(np.mean(values)) if values else None

    out: dict[str, Any] = {"drift_last": mean("pair", late), "drift_first": mean("pair", early)}
    workers = mean("pair_of_workers", late)
    if workers is not None:
        out["drift_workers"] = workers
        for name in ("exact", "stated", "predicted"):
            theory = mean(name, late)
            out[f"over_{name}"] = workers / theory if theory else None
        owner, theory = mean("owner_and_worker", late), mean("exact_owner", late)
        out["owner_over_exact"] = owner / theory if owner and theory else None
    apart = sum(d.get("apart", 0.0) for d in drifts)
    if apart:
        out |= {name: sum(d.get(part, 0.0) for d in drifts) / apart for name, part in MIXING.items()}
    return out
