"""A strategy of one's own: gradients are averaged only every few steps. Named by its import path; model, data, records,
drift and tables come from lossbench's trainer."""

from dataclasses import dataclass

from lossbench import sync


class Sometimes(sync.Strategy):
    name = "sometimes"

    @dataclass(frozen=True, kw_only=True)
    class Options:
        every: int = 2

    def _step(self):
        if self.steps % self.options.every == 0:
            grads, owners = self.flat.grads, self.fixed_owners()
            for bucket, mean in self.begin_scatter(grads, owners):  # to the owners of its parts: some of it gets lost
                self.begin_gather(bucket, mean, grads, owners)  # and back; what is missing stays as it is here
            self.end_gather()
        self.optimize_own()
