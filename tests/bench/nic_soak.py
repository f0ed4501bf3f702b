"""Kills whoever has to do with an impaired NIC at random moments, and looks whether it is byte for byte as before:

    python tests/bench/nic_soak.py --moments 200

The NIC is a veth with an HTB tree, filters of others and odd offload flags, in a namespace of its own."""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.nic.test_safety import drill, furnished  # noqa: E402
from tests.nic.wire import until, wired  # noqa: E402

VICTIMS = ("watchdog", "maker", "holder")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    chance, took, wrong = random.Random(asked.seed), [], 0
    with wired() as wire:
        furnished(wire)
        before = wire.snapshot()
        for number in range(asked.moments):
            victim = chance.choice(VICTIMS)
            moment = chance.uniform(0.0, 4.0)
            drill(wire, victim, moment)
            since = time.monotonic()
            back = until(lambda: wire.snapshot() == before and wire.links() == ["lo", "nic0"], seconds=30)
            took.append(time.monotonic() - since)
            wrong += not back
            word = "as before" if back else "NOT AS BEFORE"
            print(f"{number} {victim} after {moment:.2f} s: {word} {took[-1]:.2f} s later", flush=True)
    middle = sorted(took)[len(took) // 2]
    print(f"{len(took)} moments, {wrong} wrong; back after {middle:.2f} s (median), {max(took):.2f} s (worst)")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
