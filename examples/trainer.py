"""A trainer with callbacks, as Hugging Face's is, without network access; the callback puts numbers into lossbench's
table. Outside of `lossbench run` it trains just the same: the calls do nothing there."""

import argparse
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import lossbench


class LossbenchCallback:
    """Every step for the live view and the curves; at the end, columns of the table."""

    def on_step_end(self, trainer, loss):
        lossbench.record("step", step=trainer.step, loss=loss)

    def on_train_end(self, trainer, losses, seconds):
        speed, last = trainer.step / seconds, losses[-10:]
        lossbench.summary(final_loss=sum(last) / max(1, len(last)), steps_s=speed, units={"steps_s": "1/s"})


class Trainer:
    def __init__(self, model, dataset, arguments, callbacks):
        self.model = DistributedDataParallel(model)
        self.dataset, self.arguments, self.callbacks = dataset, arguments, callbacks
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=arguments.learning_rate)
        self.step = 0

    def train(self):
        began, losses = time.monotonic(), []
        while self.step < self.arguments.steps:
            inputs, labels = self.dataset(self.step)
            loss = torch.nn.functional.cross_entropy(self.model(inputs), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
            for callback in self.callbacks:
                callback.on_step_end(self, losses[-1])
            self.step += 1
        for callback in self.callbacks:
            callback.on_train_end(self, losses, time.monotonic() - began)


def synthetic(rank):
    """A teacher's labels; every rank its own examples."""
    teacher = torch.randn(64, 10, generator=torch.Generator().manual_seed(0))

    def batch(step):
        inputs = torch.randn(32, 64, generator=torch.Generator().manual_seed(1000 * rank + step))
        return inputs, (inputs @ teacher).argmax(1)

    return batch


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 10))
    Trainer(model, synthetic(dist.get_rank()), arguments, [LossbenchCallback()]).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
