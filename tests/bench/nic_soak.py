"""Kills whoever has to do with an impaired NIC at random moments, and looks whether it is byte for byte as before,
within the lease and a second:

    python tests/bench/nic_soak.py --moments 200

The NIC is a veth with an HTB tree, filters of others and odd offload flags, in a namespace of its own. On a machine
that has more to do than it has processors for, what is late is said, and is no failure."""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".package"), str(ROOT)]

from lossbench.net.nic.state import LEASE_S  # noqa: E402
from tests.nic.test_safety import furnished  # noqa: E402
from tests.nic.victims import VICTIMS, applying, drill, impaired  # noqa: E402
from tests.nic.wire import until, wired  # noqa: E402

BOUND_S = LEASE_S + 1.0
PATIENCE_S = 60.0


def busy() -> bool:
    return os.getloadavg()[0] > (os.cpu_count() or 1)


def distribution(took: list[float]) -> str:
    ordered = sorted(took)
    shares = {"median": 0.5, "90 %": 0.9, "99 %": 0.99, "worst": 1.0}
    parts = [f"{name} {ordered[math.ceil(share * len(ordered)) - 1]:.2f} s" for name, share in shares.items()]
    return f"{len(took)} moments, back after: {', '.join(parts)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    asked = parser.parse_args()
    print(f"seed {asked.seed}; back within {BOUND_S:g} s is asked")
    chance, wrong, late, late_busy = random.Random(asked.seed), 0, 0, 0
    took: dict[str, list[float]] = {}
    with wired() as wire:
        furnished(wire)
        before = wire.snapshot()
        for number in range(asked.moments):
            victim, moment = chance.choice(VICTIMS), chance.uniform(0.0, 4.0)
            stood = drill(wire, victim, moment)
            since = time.monotonic()
            back = until(
                lambda: not applying(wire) and not impaired(wire) and wire.snapshot() == before, seconds=PATIENCE_S
            )
            seconds = time.monotonic() - since
            took.setdefault(victim, []).append(seconds)
            too_late, word = back and seconds > BOUND_S, "as before" if back else "NOT AS BEFORE"
            wrong += not back
            late += too_late and not busy()
            late_busy += too_late and busy()
            word += f", LATE (load {os.getloadavg()[0]:.1f})" if too_late else ""
            at = "" if stood else " (nothing was there yet, or any more)"
            print(f"{number} {victim} after {moment:.2f} s{at}: {word} {seconds:.2f} s later", flush=True)
    for victim, some in took.items():
        print(f"{victim}: {distribution(some)}")
    print(distribution([seconds for some in took.values() for seconds in some]))
    print(f"{wrong} not as before, {late} late, {late_busy} late while the machine was busy")
    return int(wrong + late > 0)


if __name__ == "__main__":
    sys.exit(main())
