"""Training under loss: one loop, a record per rank and step, models judged at the end.

lossbench run quickstart            options: workloads/training/settings.py
"""

from __future__ import annotations

import math
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from lossbench.contract import Door, ready_together
from lossbench.workloads.errors import TrainingError, WorkloadError
from lossbench.workloads.training import checkpoint
from lossbench.workloads.training.build import Built, built
from lossbench.workloads.training.evaluate import judge_all
from lossbench.workloads.training.measure import gradient_bias
from lossbench.workloads.training.report import result_row
from lossbench.workloads.training.settings import read


class Trainer:
    def __init__(self, doors: list[Door]) -> None:
        self.doors = doors
        self.job: Built = built(read(doors[0].options), doors)
        self.seats, self.crew, self.settings = self.job.seats, self.job.crew, self.job.settings
        records = Path(doors[0].records_path or ".")
        self.checkpoints = Path(self.settings.checkpoint_dir or records.parent.parent / "checkpoints")
        self.step_s: list[float] = []
        self.outside_s = 0.0
        self.drifts: list[dict[str, Any]] = []

    def run(self) -> None:
        first = self._begin()
        steps = self.job.steps
        for step in range(first, steps):
            self._set_rates(step, steps)
            self._step(step)
            if self._due(self.settings.drift_every, step):
                self._drift(step)
            if self._due(self.settings.evaluate_every, step) and step + 1 < steps:
                self._evaluate(step)
            if self._due(self.settings.checkpoint_every, step):
                self.crew.each(lambda n, s=step: checkpoint.save(self.checkpoints, self.seats[n], s + 1))
        self._finish(steps)

    def _begin(self) -> int:
        """Everything that is slow the first time, before the clock: kernels, connections, a checkpoint."""
        self.job.engine(self.job.batches.at(0))
        self.crew.each(lambda n: self.seats[n].strategy.channel.total(torch.zeros(1)))
        first = 0
        if self.settings.resume:
            first = self.crew.each(lambda n: checkpoint.load(self.checkpoints, self.seats[n]))[0]
        self._synchronize()
        ready_together(self.doors)
        for seat in self.seats:
            seat.door.record(
                "begin",
                first_step=first,
                steps=self.job.steps,
                device=str(self.job.device),
                steps_per_epoch=self.job.batches.steps_per_epoch,
                engine=type(self.job.engine).__name__,
                parameters=len(seat.strategy.flat.values),
                data=self.job.data.checksum() if self.job.data else "noise",
                torch=torch.__version__,
            )
        return first

    def _step(self, step: int) -> None:
        begun = time.perf_counter()
        for seat in self.seats:
            seat.strategy.channel.set_step(step)  # DDP sends while autograd works
        losses = self.job.engine(self.job.batches.at(step)).tolist()  # waits for the GPU
        computed = time.perf_counter()
        grads = None
        if self._due(self.settings.bias_every, step):
            grads = [seat.strategy.flat.grads.clone() for seat in self.seats]
        self.crew.each(lambda n: self._synchronise_one(n))
        spent = max(s.strategy.busy_s() for s in self.seats)
        for seat, loss in zip(self.seats, losses, strict=True):
            seat.door.record("step", **seat.took(step, loss, computed - begun))
            if not math.isfinite(loss):
                raise TrainingError(f"rank {seat.door.rank}: the loss is {loss} at step {step}; a lower lr may help")
        self.step_s.append(time.perf_counter() - begun)
        self.seats[0].door.samples("step_ms", [1000 * self.step_s[-1]], unit="ms", together=True)
        self.outside_s += self.step_s[-1] - (computed - begun) - spent
        if grads is not None:
            self._bias(step, grads)

    def _synchronise_one(self, number: int) -> None:
        self.seats[number].strategy.step()
        if self.settings.drift_every:
            self.seats[number].meter.after_step()

    def _set_rates(self, step: int, steps: int) -> None:
        rate = self.settings.learning_rate(step, steps)
        for seat in self.seats:
            for group in seat.strategy.optimizer.param_groups:
                group["lr"] = rate

    def _drift(self, step: int) -> None:
        share = self.seats[0].share_arrived(1)
        found = self.crew.each(lambda n: self.seats[n].meter.measure(1.0 if share is None else share))[0]
        self.drifts.append({"step": step, **found})
        if self.seats[0].door.rank == 0:
            self.seats[0].door.record("drift", step=step, **found)

    def _bias(self, step: int, grads: list[torch.Tensor]) -> None:
        found = self.crew.each(lambda n: gradient_bias(self.seats[n].strategy, self.seats[n].control, grads[n]))
        for seat, numbers in zip(self.seats, found, strict=True):
            if numbers:
                seat.weights.append(numbers["weights"])
                seat.door.record("bias", step=step, **numbers)

    def _evaluate(self, step: int) -> dict[str, Any]:
        if self.job.data is None:
            return {}
        found = judge_all(self.seats, self.crew.each, self.job.task, self.job.batches, self.settings.evaluate_items)
        for seat, numbers in zip(self.seats, found["workers"], strict=True):
            seat.door.record("evaluation", step=step, model="worker", **numbers)
        for name in ("mean", "owners"):
            if name in found:
                self.seats[0].door.record("evaluation", step=step, model=name, **found[name])
        return found

    def _finish(self, steps: int) -> None:
        found = self._evaluate(steps - 1)
        rows = result_row(self.job, found, step_s=self.step_s, outside_s=self.outside_s, drifts=self.drifts)
        for seat, row in zip(self.seats, rows, strict=True):
            if seat.door.rank == 0:
                seat.door.record("row", **row)
            seat.door.record("summary", **{k: v for k, v in row.items() if isinstance(v, int | float)})
        self.crew.each(lambda n: self.seats[n].strategy.channel.close())

    def _due(self, every: int, step: int) -> bool:
        return bool(every) and (step + 1) % every == 0

    def _synchronize(self) -> None:
        if self.job.device.type == "cuda":
            torch.cuda.synchronize()


def main() -> None:
    doors = Door.seats_from_environment()
    try:
        Trainer(doors).run()
    except WorkloadError as error:
        with suppress(OSError):  # a full disk may be why
            doors[0].record("error", message=str(error))
        sys.exit(f"lossbench training: {error}")
    except OSError as error:
        sys.exit(f"lossbench training: {error}")


if __name__ == "__main__":
    main()
