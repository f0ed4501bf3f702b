"""Kills whoever has to do with an impaired NIC at random moments, and looks whether it is byte for byte as before,
within the lease and a second:

    python tests/bench/nic_soak.py --moments 200 [--lab] [--at-once 12] [--seed N]

The NIC is a veth with an HTB tree, filters of others and odd offload flags, in a namespace of its own; its maker,
holder, a watchdog, or the shell that it runs under are killed. With --lab the interfaces of two machines (over real ssh
where there is an sshd), during `lab apply` and `run --lab`; the controller, an agent or a watchdog are killed. On a
machine that has more to do than it has processors for, what is late is said, and is no failure. --at-once: so many side
by side, each with a /run of its own."""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".package"), str(ROOT)]

from lossbench.net.nic.state import LEASE_S  # noqa: E402
from tests.lab import machines as labs  # noqa: E402
from tests.lab import victims as lab_victims  # noqa: E402
from tests.nic import victims as nic_victims  # noqa: E402
from tests.nic.test_safety import furnished  # noqa: E402
from tests.nic.wire import until, wired  # noqa: E402

BOUND_S = LEASE_S + 1.0
PATIENCE_S = 60.0
Drill = Callable[[random.Random], tuple[str, bool]]
Back = Callable[[], bool]


@dataclass(frozen=True, kw_only=True)
class Moment:
    """`who` was killed; `s`: until all was as before."""

    who: str
    s: float
    back: bool
    busy: bool

    def late(self) -> bool:
        return self.back and self.s > BOUND_S


@contextmanager
def nic() -> Iterator[tuple[Drill, Back]]:
    with wired() as wire:
        furnished(wire)
        before = wire.snapshot()

        def drill(chance: random.Random) -> tuple[str, bool]:
            victim, after_s = chance.choice(nic_victims.VICTIMS), chance.uniform(0.0, 4.0)
            return f"{victim} after {after_s:.2f} s", nic_victims.drill(wire, victim, after_s)

        def back() -> bool:
            return not nic_victims.applying(wire) and not nic_victims.impaired(wire) and wire.snapshot() == before

        yield drill, back


@contextmanager
def lab() -> Iterator[tuple[Drill, Back]]:
    real = labs.missing() is None
    print("over ssh" if real else f"a stand-in for ssh ({labs.missing()})", flush=True)
    with tempfile.TemporaryDirectory() as folder, labs.machines(Path(folder), count=2, ssh=real) as made:
        before = made.snapshots()

        def drill(chance: random.Random) -> tuple[str, bool]:
            victim, run, after_s = chance.choice(lab_victims.VICTIMS), chance.random() < 0.5, chance.uniform(0.0, 4.0)
            stood = lab_victims.drill(made, victim, after_s, run=run, chance=chance)
            return f"{victim} ({'run' if run else 'apply'}) after {after_s:.2f} s", stood

        def back() -> bool:
            return not lab_victims.agents(made) and made.snapshots() == before

        yield drill, back


def soak(moments: int, seed: int, *, of_a_lab: bool) -> list[Moment]:
    chance, out = random.Random(seed), []
    with lab() if of_a_lab else nic() as (drill, back):
        for number in range(moments):
            who, stood = drill(chance)
            since = time.monotonic()
            came = until(back, seconds=PATIENCE_S)
            busy = os.getloadavg()[0] > (os.cpu_count() or 1)
            one = Moment(who=who, s=time.monotonic() - since, back=came, busy=busy)
            out.append(one)
            at = "" if stood else " (nothing was there yet, or any more)"
            word = "as before" if came else "NOT AS BEFORE"
            word += f", LATE (load {os.getloadavg()[0]:.1f})" if one.late() else ""
            print(f"{seed}/{number} {who}{at}: {word} {one.s:.2f} s later", flush=True)
    return out


def side_by_side(shares: list[int], seed: int, *, of_a_lab: bool) -> list[Moment]:
    """One process each. One that fails has no moments, which are missed in the sum."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, str(number)) for number in range(len(shares))]
        program = [str(ROOT / "tests" / "worker"), __file__, *(["--lab"] if of_a_lab else [])]
        keys = {"env": {**os.environ, "WORKER_PYTHON": sys.executable}, "stdin": subprocess.DEVNULL}
        children = [
            subprocess.Popen(
                [*program, "--moments", str(share), "--seed", str(seed + n), "--into", str(file)],
                **keys,  # type: ignore[call-overload]
            )
            for n, (share, file) in enumerate(zip(shares, files, strict=True))
        ]
        for child in children:
            child.wait()
        return [Moment(**one) for file in files if file.exists() for one in json.loads(file.read_text())]


def distribution(took: list[float]) -> str:
    ordered = sorted(took)
    shares = {"median": 0.5, "90 %": 0.9, "99 %": 0.99, "worst": 1.0}
    parts = [f"{name} {ordered[math.ceil(share * len(ordered)) - 1]:.2f} s" for name, share in shares.items()]
    return f"{len(took)} moments, back after: {', '.join(parts)}"


def told(found: list[Moment], moments: int) -> int:
    """The exit status."""
    for victim in sorted({one.who.partition(" after")[0] for one in found}):
        print(f"{victim}: {distribution([one.s for one in found if one.who.startswith(f'{victim} after')])}")
    print(distribution([one.s for one in found]) if found else "no moments")
    wrong, late = sum(not one.back for one in found), [one for one in found if one.late()]
    excused = sum(one.busy for one in late)
    print(f"{wrong} not as before, {len(late) - excused} late, {excused} late while the machine was busy")
    if missed := moments - len(found):
        print(f"{missed} moments were not tried: a process ended before")
    return int(wrong + len(late) - excused + missed > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--lab", action="store_true", help="two machines and their controller")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--into", type=Path, help="where the moments go, as JSON")
    asked = parser.parse_args()
    print(f"seed {asked.seed}; back within {BOUND_S:g} s is asked", flush=True)
    if asked.at_once > 1:
        shares = [len(range(n, asked.moments, asked.at_once)) for n in range(min(asked.at_once, asked.moments))]
        return told(side_by_side(shares, asked.seed, of_a_lab=asked.lab), asked.moments)
    found = soak(asked.moments, asked.seed, of_a_lab=asked.lab)
    if asked.into:
        asked.into.write_text(json.dumps([asdict(one) for one in found]))
        return 0
    return told(found, asked.moments)


if __name__ == "__main__":
    sys.exit(main())
