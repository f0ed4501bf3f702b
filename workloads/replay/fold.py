"""Makes a recording of what a host sent during a training run: the step of median length, as it was. The mean of all
steps would be smoother than any of them."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lossbench.workloads.replay.recording import Recording

Floats = NDArray[np.float64]
BINS = 200  # of a step
LEAST_SHARE = 0.0005  # of a step's bytes: less in one of them is chatter
LEAST_STEPS = 5
WARM_UP = 2  # steps
PAYLOAD_SHARE = 1420 / 1514  # of what leaves a host in frames of the usual size


def typical(at_s: Floats, sent_bytes: Floats, steps_s: list[float]) -> tuple[Floats, float]:
    """(bytes in each part of the step of median length, how long it took). `steps_s`: when steps ended."""
    steps = sorted(pairwise(steps_s), key=lambda step: step[1] - step[0])
    begin, end = steps[len(steps) // 2]
    return np.diff(np.interp(np.linspace(begin, end, BINS + 1), at_s, sent_bytes)), end - begin


def bursts_of(shares: Floats) -> tuple[tuple[float, float], ...]:
    kept = np.flatnonzero(shares >= LEAST_SHARE)
    whole = shares[kept].sum()
    return tuple((round(int(at) / BINS, 6), round(float(shares[at] / whole), 6)) for at in kept)


def recording_of(folder: Path, role: str) -> tuple[Recording, int]:
    """And of how many steps it was made."""
    path = next(iter(sorted((folder / "samples").glob(f"{role}.at_s.rank-*.f64"))), None)
    if path is None:
        raise ValueError("nothing was counted")
    at_s = np.fromfile(path, "<f8")
    sent = np.fromfile(path.with_name(path.name.replace(".at_s.", ".sent_bytes.")), "<f8")
    ranks = sorted((folder / "records").glob("rank-*.jsonl"))
    said = _records(ranks[0]) if ranks else []  # steps end together
    steps = [r["time_s"] for r in said if r["kind"] == "step"][WARM_UP:]
    if len(steps) <= LEAST_STEPS:
        raise ValueError(f"only {max(len(steps) - 1, 0)} steps to choose from: {LEAST_STEPS} are needed")
    parts, step_s = typical(at_s, sent, steps)
    whole = float(parts.sum())
    if not whole:
        raise ValueError("nothing was sent in a step")
    bursts = bursts_of(parts / whole)
    source = (
        f"a step of {step_s:.3g} s, the median of {len(steps) - 1}: {whole / 1e6:.3g} MB left one of {len(ranks)} "
        f"hosts in {len(bursts) / BINS:.0%} of it"
    )
    # Two halves, in each of them all but its own share go to the others.
    model_bytes = round(whole * PAYLOAD_SHARE * len(ranks) / (2 * max(len(ranks) - 1, 1)))
    return Recording(name="recording", model_bytes=model_bytes, bursts=bursts, source=source), len(steps) - 1


def _records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> int:
    asked = json.load(sys.stdin)
    folder = Path(asked["folder"])
    try:
        recording, steps = recording_of(folder, asked["role"])
    except (OSError, ValueError) as error:
        print(json.dumps({"kind": "error", "message": f"no recording: {error}"}))
        return 0
    content = {"model_bytes": recording.model_bytes, "bursts": recording.bursts, "source": recording.source}
    (folder / "recording.json").write_text(json.dumps(content) + "\n", encoding="utf-8")
    most = max(share for _, share in recording.bursts)
    row = {"what": "recording.json", "steps": steps, "bursts": len(recording.bursts), "largest_share": most}
    print(json.dumps({"kind": "row", **row, "shown": list(row)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
