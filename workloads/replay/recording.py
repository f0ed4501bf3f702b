"""When an exchange sends: shares of its bytes over the time of a step, recorded from runs of ours or made up."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lossbench.workloads.errors import OptionError

SHIPPED = Path(__file__).parent
SHARE_ERROR = 1e-3


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One step of one host. `bursts`: (when it begins, share of the step's bytes), times as shares of a step."""

    name: str
    model_bytes: int
    bursts: tuple[tuple[float, float], ...]
    source: str = ""

    def packets(self, of_step: float) -> list[int]:
        """Of each burst, if a step has so many; what is less than a packet goes with the next."""
        due = np.round(np.cumsum([share for _, share in self.bursts]) * of_step)
        return [int(count) for count in np.diff(due, prepend=0)]

    def scaled(self, *, model_bytes: int) -> Recording:
        return Recording(name=self.name, model_bytes=model_bytes, bursts=self.bursts, source=self.source)


def period_s(*, model_bytes: float, hosts: int, mbit: float) -> float:
    """How long a step takes: all hosts together offer `mbit`, and each sends each other its share twice."""
    return 2 * model_bytes * 8 * (hosts - 1) / (mbit * 1e6)


def load(name: str) -> Recording:
    path = SHIPPED / f"{name}.json" if "/" not in name and not name.endswith(".json") else Path(name)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        bursts = tuple((float(at), float(share)) for at, share in found["bursts"])
        recording = Recording(
            name=path.stem, model_bytes=int(found["model_bytes"]), bursts=bursts, source=str(found.get("source", ""))
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        known = ", ".join(sorted(one.stem for one in SHIPPED.glob("*.json")))
        raise OptionError(f"replay: recording '{name}' can't be read ({error}); there are {known}") from None
    whole = abs(sum(share for _, share in bursts) - 1) <= SHARE_ERROR
    if not bursts or not whole or not all(0 <= at < 1 for at, _ in bursts):
        raise OptionError(f"replay: recording '{name}': shares must add up to 1, times lie in [0, 1)")
    return recording
