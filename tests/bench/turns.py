"""Are this checkout's calls slower than an earlier one's, or than its own under another policy? Two groups of ranks at
once, a burst of calls in turns.

python tests/bench/turns.py COMMIT|FOLDER [--kb 64] [--ranks 4] [--turns 60] [--burst 20] [--launches 7]
python tests/bench/turns.py . --policy POLICY --policy-before POLICY         as in LOSSBENCH_POLICY; . is this checkout

Whole runs, as against.py makes them, differ by tenths on a few cores, whatever their code. Here the processes of both
stand beside each other on one loopback (in a network namespace of its own, MTU 1500), one group sleeps while the other
calls, and the order changes with every turn; so a busy moment meets both. A call takes as long as its slowest rank; a
turn's number is the median of its calls, a launch's ratio the median over its turns. Where memory and threads happen to
lie makes some percent, as long as a process lives: so there are several launches,
and the interval is drawn from them."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute

ROOT = Path(__file__).resolve().parents[2]
ALONE, WARM = "TURNS_ALONE", 10


def be(rank: int, world: int, port: int, floats: int) -> None:
    """A rank of either group: a number of calls as a line, their times as the answer."""
    import torch
    import torch.distributed as dist

    from lossbench.contract import Door
    from lossbench.workloads.collective.group import LossyGroup
    from lossbench.workloads.transport.policy import Policy

    torch.set_num_threads(1)
    store, limit = dist.TCPStore("127.0.0.1", port, world, rank == 0), timedelta(seconds=60)
    door = Door(rank=rank, world_size=world, addresses=("127.0.0.1",) * world, interface="lo")
    group = LossyGroup(dist.PrefixStore("lossy", store), rank, world, limit, Policy.from_environment(), door)
    tensor = torch.empty(floats)
    print(sys.modules[LossyGroup.__module__].__file__, flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            tensor.fill_(rank + 1.0)
            begun = time.perf_counter()
            group.allreduce([tensor]).wait()
            times.append(time.perf_counter() - begun)
        right = bool((tensor == world * (world + 1) / 2).all())
        print(json.dumps([times, time.process_time(), right]), flush=True)
    group.shutdown()


class Group:
    def __init__(self, tree: Path, port: int, policy: str, asked: argparse.Namespace) -> None:
        package = tree / ".package"
        path = [str(package), str(tree), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {"PYTHONPATH": os.pathsep.join(path), "TORCH_CPP_LOG_LEVEL": "ERROR", "LOSSBENCH_POLICY": policy}
        self.cpu_s = 0.0
        self.ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--be", f"{n} {asked.ranks} {port} {round(asked.kb * 250)}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
                env=os.environ | own,
                cwd=tree,
            )
            for n in range(asked.ranks)
        ]

    def hear(self) -> list[str]:
        lines = [one.stdout.readline() for one in self.ranks if one.stdout is not None]
        if not all(lines):
            raise SystemExit("a rank ended; what it said stands above")
        return lines

    def turn(self, calls: int) -> float:
        """Seconds of a call: its slowest rank's, the median of the calls; the first, which wakes everybody, is none."""
        for one in self.ranks:
            assert one.stdin is not None
            one.stdin.write(f"{calls + 1}\n")
        every: list[Any] = [json.loads(line) for line in self.hear()]
        if not all(right for _, _, right in every):
            raise SystemExit("a sum was not right")
        self.cpu_s = sum(cpu for _, cpu, _ in every)
        return statistics.median(map(max, list(zip(*(times for times, _, _ in every), strict=True))[1:]))

    def end(self) -> None:
        for one in self.ranks:
            one.communicate(timeout=60)


def launch(before: Path, asked: argparse.Namespace) -> tuple[float, float]:
    """How many times the time and the processor time of before a call takes now."""
    groups = {
        "before": Group(before, 29401, asked.policy_before, asked),
        "now": Group(ROOT, 29402, asked.policy, asked),
    }
    for tree, group in zip((before, ROOT), groups.values(), strict=True):
        if not all(Path(line.strip()).resolve().is_relative_to(tree.resolve()) for line in group.hear()):
            raise SystemExit(f"not what lies in {tree} was run")
    found: dict[str, list[float]] = {name: [] for name in groups}
    spent: dict[str, float] = {}
    for number in range(-WARM, asked.turns):
        if number == 0:
            spent = {name: group.cpu_s for name, group in groups.items()}
        for name in ("before", "now") if number % 2 else ("now", "before"):
            seconds = groups[name].turn(asked.burst)
            if number >= 0:
                found[name].append(seconds)
    old, now = (1e6 * (group.cpu_s - spent[name]) / asked.turns / (asked.burst + 1) for name, group in groups.items())
    for group in groups.values():
        group.end()
    ratio = statistics.median(new / past for past, new in zip(found["before"], found["now"], strict=True))
    medians = [statistics.median(found[name]) * 1e6 for name in ("before", "now")]
    print(f"  {medians[0]:.0f} us before, {medians[1]:.0f} now: {ratio:.3f} x;", end=" ")
    print(f"processor time of all ranks {old:.0f} and {now:.0f} us: {now / old:.3f} x", flush=True)
    return ratio, now / old


def between(ratios: list[float]) -> str:
    """The median and its 95 % interval, drawn from launches."""
    draw = random.Random(0)
    again = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return f"{statistics.median(ratios):.3f} x ({again[50]:.3f} to {again[1949]:.3f})"


def compare(before: Path, asked: argparse.Namespace) -> None:
    print(f"{asked.kb:g} kB, {asked.ranks} ranks, {asked.turns} turns of {asked.burst} calls:")
    for which, policy in (("before", asked.policy_before), ("now", asked.policy)):
        if policy:
            print(f"  {which}: {policy}")
    time_s, cpu_s = zip(*(launch(before, asked) for _ in range(asked.launches)), strict=True)
    print(f"  {asked.launches} launches: time of a call {between(list(time_s))}, of processors {between(list(cpu_s))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", nargs="?", default="")
    parser.add_argument("--kb", type=float, default=64)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--launches", type=int, default=7)
    parser.add_argument("--burst", type=int, default=20)
    usual = os.environ.get("LOSSBENCH_POLICY", "")
    parser.add_argument("--policy", default=usual, help="of the calls now, as in LOSSBENCH_POLICY")
    parser.add_argument("--policy-before", default=usual, help="of those before")
    parser.add_argument("--be", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.be:
        be(*map(int, asked.be.split()))
        return
    if not asked.before:
        parser.error("COMMIT or FOLDER: against what?")
    if ALONE not in os.environ:
        again = ["unshare", "-n", sys.executable, *sys.argv]
        raise SystemExit(subprocess.run(again, env=os.environ | {ALONE: "1"}).returncode)
    with IPRoute() as kernel:
        kernel.link("set", index=1, mtu=1500, state="up")
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before"
        if Path(asked.before).resolve() == ROOT:
            before = ROOT
        elif Path(asked.before).is_dir():
            shutil.copytree(asked.before, before)
        else:
            subprocess.run(["git", "clone", "-q", str(ROOT), str(before)], check=True)
            subprocess.run(["git", "checkout", "-q", asked.before], cwd=before, check=True)
        compare(before, asked)


if __name__ == "__main__":
    main()
