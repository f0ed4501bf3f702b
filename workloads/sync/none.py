"""No communication at all: every worker trains alone on its own data. What the others are compared with from below."""

from __future__ import annotations

from lossbench.workloads.sync.base import Strategy


class Alone(Strategy):
    name = "none"
    exchanges = "nothing"
    coded = False
    goes_on = True

    def _step(self) -> None:
        if self.clip_norm is not None:  # nobody to ask: one's own norm
            norm = float(self.flat.grads.norm())
            if norm > self.clip_norm:
                self.flat.grads.mul_(self.clip_norm / (norm + 1e-6))
        self.optimize_own()
