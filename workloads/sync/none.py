"""No communication at all: every worker trains alone on its own data. What the others are compared with from below."""

from __future__ import annotations

from lossbench.workloads.sync.base import Strategy


class Alone(Strategy):
    name = "none"
    exchanges = "nothing"
    coded = False
    goes_on = True

    def _step(self) -> None:
        self.clip_alone(self.flat.grads)
        self.optimize_own()
