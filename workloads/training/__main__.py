"""Training under loss: one loop, a record per rank and step, models judged at the end.

lossbench run quickstart            options: workloads/training/settings.py
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from lossbench.contract import Door, ready_together
from lossbench.workloads.errors import TrainingError, WorkloadError
from lossbench.workloads.training import checkpoint
from lossbench.workloads.training.build import Built, built
from lossbench.workloads.training.evaluate import gradient_square, judge_all
from lossbench.workloads.training.links import bytes_sent
from lossbench.workloads.training.measure import gradient_bias
from lossbench.workloads.training.report import Reached, mean_over_ranks, result_row
from lossbench.workloads.training.settings import read

QUIET_S, SETTLED_S = 0.3, 5.0  # after the last exchange nothing for so long: all is counted; at most so long


class Trainer:
    def __init__(self, doors: list[Door]) -> None:
        self.doors = doors
        self.job: Built = built(read(doors[0].options), doors)
        self.seats, self.crew, self.settings = self.job.seats, self.job.crew, self.job.settings
        records = Path(doors[0].records_path or ".")
        self.checkpoints = Path(self.settings.checkpoint_dir or records.parent.parent / "checkpoints")
        self.every = self.seats[0].strategy.every
        self.step_s: list[float] = []
        self.outside_s = 0.0
        self.drifts: list[dict[str, Any]] = []
        self.reached: Reached | None = None  # when the target first was
        self.squares: list[float] = []  # of gradients, where rank 0 lives: at the start, then at every evaluation
        self.sent: list[int | None] = []  # bytes, by seat: when the clock began

    def run(self) -> None:
        first = self._begin()
        steps = self.job.steps
        for step in range(first, steps):
            self._set_rates(step, steps)
            self._step(step)
            if self._due(self.settings.drift_every, step, self.every):
                self._drift(step)
            if self._due(self.settings.looks_every(steps), step, self.every) and step + 1 < steps:
                self._evaluate(step)
                self._meet()
            if self._due(self.settings.checkpoint_every, step):
                self.crew.each(lambda n, s=step: checkpoint.save(self.checkpoints, self.seats[n], s + 1))
                self._meet()
                self._say_control()
        self._finish(steps)

    def _meet(self) -> None:
        """Some had more to do than others: nobody's next step begins before the last one is back."""
        self.crew.each(lambda n: self.seats[n].control.gather(torch.zeros(1)))

    def _begin(self) -> int:
        """Everything that is slow the first time, before the clock: kernels, connections, a checkpoint."""
        self.job.engine(self.job.batches.at(0))
        self.crew.each(lambda n: self.seats[n].strategy.channel.total(torch.zeros(1)))
        first = 0
        if self.settings.resume:
            first = self.crew.each(lambda n: checkpoint.load(self.checkpoints, self.seats[n]))[0]
        if self.job.data is not None and "tokenizer" in self.job.data.about and self.doors[0].rank == 0:
            kept = Path(self.doors[0].records_path or ".").parent.parent / "tokenizer.json"
            kept.write_text(self.job.data.about["tokenizer"], encoding="utf-8")
        if self.settings.gradient_square and first == 0 and self.doors[0].rank == 0 and self.job.data is not None:
            most = self.settings.evaluate_items
            self.squares.append(gradient_square(self.seats[0], self.job.task, self.job.batches, most))
        self._synchronize()
        ready_together(self.doors)
        self.sent = self.crew.each(self._began)
        self._say_control()
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

    def _began(self, number: int) -> int | None:
        self.seats[number].control.began()
        return bytes_sent(self.doors[number])

    def _say_control(self) -> None:
        """What is measured goes beside the fault, and is no way around it."""
        for seat in self.seats:
            seat.door.record("control", sent_bytes=seat.control.sent)

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
        self._say_control()
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
        most, gradients = self.settings.evaluate_items, self.settings.gradient_square
        found = judge_all(self.seats, self.crew.each, self.job.task, self.job.batches, most, gradients=gradients)
        self._say_control()
        if "gradient_square" in found.get("mean", {}):
            self.squares.append(found["mean"]["gradient_square"])
        for seat, numbers in zip(self.seats, found["workers"], strict=True):
            seat.door.record("evaluation", step=step, model="worker", **numbers)
        for name in ("mean", "owners"):
            if name in found:
                self.seats[0].door.record("evaluation", step=step, model=name, **found[name])
        self._look(step, found["workers"])
        return found

    def _look(self, step: int, workers: list[dict[str, float]]) -> None:
        """Is the target reached, by what it took to train so far? Judging is not counted."""
        target, task = self.settings.target, self.job.task
        if target is None or self.reached is not None:
            return
        value = mean_over_ranks(self.job, [one[task.measure] for one in workers])
        if value >= target if task.higher_is_better else value <= target:
            took = mean_over_ranks(self.job, [sum(self.step_s)] * len(workers))
            resumed = len(self.step_s) <= step  # it may have been reached before
            self.reached = Reached() if resumed else Reached(steps=step + 1, seconds=took)

    def _finish(self, steps: int) -> None:
        sent = self._sent_since()
        found = self._evaluate(steps - 1)
        rows = result_row(
            self.job,
            found,
            step_s=self.step_s,
            outside_s=self.outside_s,
            drifts=self.drifts,
            reached=self.reached,
            sent=sent,
        )
        for seat, row in zip(self.seats, rows, strict=True):
            if seat.door.rank == 0:
                if self.squares and len(self.step_s) == steps:  # of a resumed run only its end is known
                    before = self.squares[:-1]  # each at the beginning of its steps; the last is after all of them
                    row["gradient_square"] = sum(before) / len(before)
                seat.door.record("row", **row)
            seat.door.record("summary", **{k: v for k, v in row.items() if isinstance(v, int | float)})
        self._say_traffic()
        self._say_control()
        self.crew.each(lambda n: self.seats[n].strategy.channel.close())

    def _sent_since(self) -> list[int] | None:
        """Bytes, by seat, since the clock began; none where there are no links."""
        now = self.crew.each(lambda n: bytes_sent(self.doors[n]))
        pairs = [(a, b) for a, b in zip(self.sent, now, strict=True) if a is not None and b is not None]
        return [b - a for a, b in pairs] if len(pairs) == len(now) else None

    def _say_traffic(self) -> None:
        """Datagrams that each rank sent and received: held against what the kernel dropped. Not all of them: a few more
        are sent when ranks take leave, and some strategies use TCP."""
        counts = [seat.strategy.channel.counters() for seat in self.seats]
        if not all(isinstance(one.get("sent"), list) for one in counts):
            return  # simulated
        if os.environ.get("LOSSBENCH_BESIDE"):  # then each program's missing packets are held against its class's drops
            counts = settled(lambda: [seat.strategy.channel.counters() for seat in self.seats])
        for seat, one in zip(self.seats, counts, strict=True):
            seat.door.record("traffic", sent=one["sent"], received=one["received"], complete=False)

    def _due(self, every: int, step: int, rounds: int = 1) -> bool:
        """`rounds`: not before an exchange of those that have one in so many steps: between two, workers are apart."""
        done = step + 1
        return bool(every) and done % rounds == 0 and done // every > (done - rounds) // every

    def _synchronize(self) -> None:
        if self.job.device.type == "cuda":
            torch.cuda.synchronize()


def settled(counters: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Once nothing more comes: what is repeated is repeated now, and behind a service that goes first the last packets
    wait in a queue for as long as it takes."""
    limit, now = time.monotonic() + SETTLED_S, counters()
    while True:
        before = now
        time.sleep(QUIET_S)
        now = counters()
        if [one["received"] for one in now] == [one["received"] for one in before] or time.monotonic() > limit:
            return now


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
