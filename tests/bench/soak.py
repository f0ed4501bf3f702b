"""Runs, kills and cleans at random; afterwards nothing of ours is left and everything foreign stands.

python tests/bench/soak.py [--minutes 20] [--seed N]    random runs, ended at random, then `lossbench clean`
python tests/bench/soak.py --kills 50                   kill -9 of the harness, its nursery, its relay and `net set`,
                                                        at so many moments each, spread over all steps
Looked for after every one: namespaces, journals, processes (by a mark in their environment), mounts, temporary files; a
namespace with a qdisc, a mount and a process of somebody else must stand. At the end: memory and file descriptors of a
process that has made run after run."""

from __future__ import annotations

import argparse
import gc
import os
import random
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".package"), str(ROOT)]

from lossbench.net import journal  # noqa: E402
from lossbench.net.host import namespaces  # noqa: E402
from lossbench.net.kernel import Kernel  # noqa: E402
from lossbench.results.folders import RunFolder  # noqa: E402
from lossbench.runs import run  # noqa: E402
from lossbench.runs.ground import ThisMachine  # noqa: E402
from lossbench.spec.asking import points  # noqa: E402
from tests.shared import WIRE, foreign_network  # noqa: E402

LOSSBENCH = [sys.executable, "-m", "lossbench.cli.main"]
MARK = "LOSSBENCH_SOAK"
SHORT = ["--set", "workload.options.seconds=0.4"]
TRAINED = [
    "quickstart",
    "--set",
    "workload.options.steps=3",
    "--set",
    "topology.hosts=2",
    "--set",
    "probe.packets=4000",
    "--set",
    'workload.options.strategy="bounded_drift"',
]
PLAIN = ("probe.packets=2000",)


@dataclass(frozen=True)
class Kind:
    """What is run, and which process of it is killed ("" is the command itself)."""

    arguments: list[str]
    target: str = ""


RUNS = {
    "harness": Kind(["run", "proof", *SHORT]),
    "relay": Kind(["run", "proof", *WIRE], "lossbench.net.impair.relay.process"),
    "nursery": Kind(["run", *TRAINED], "lossbench.runs.launch.nursery"),
    "net set": Kind(["net", "set", "--profile", "bursty_5", "--direction", "both"]),
}
MORE = {
    "cbpf": Kind(["run", "proof", "--backend", "cbpf", *SHORT]),
    "program": Kind(["run", "proof", "--set", 'workload.command=["sleep","0.5"]', "--set", "workload.barrier=false"]),
    "rank": Kind(["run", "proof", *SHORT], "workloads."),
    "verify": Kind(["net", "verify", "--packets", "4000"]),
}


def planned() -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Of its runs: (suite, settings, full form)."""
    for _, *words in (kind.arguments for kind in (RUNS | MORE).values() if kind.arguments[0] == "run"):
        yield words[0], tuple(word for before, word in pairwise(words) if before == "--set"), False
    yield "proof", PLAIN, False


# --- what belongs to others ------------------------------------------------------------------------------------------


@contextmanager
def foreign(folder: Path) -> Iterator[Callable[[], list[str]]]:
    """Yields a function that says what of it does not stand any more."""
    mounted = folder / "mounted"
    mounted.mkdir()
    with foreign_network() as (name, stands):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(mounted)], check=True)
        with namespaces.inside(name):
            bystander = subprocess.Popen(["sleep", "100000"])

        def missing() -> list[str]:
            out = [] if bystander.poll() is None else ["a process"]
            out += [] if os.path.ismount(mounted) else ["a mount"]
            return out + ([] if stands() else ["a qdisc"])

        try:
            yield missing
        finally:
            bystander.kill()
            bystander.wait()
            subprocess.run(["umount", str(mounted)], check=True)


# --- what is ours ----------------------------------------------------------------------------------------------------


class Place:
    """Where the soak's own commands run: marked processes, a temporary folder of their own."""

    def __init__(self, folder: Path, missing: Callable[[], list[str]]) -> None:
        self.mark, self.missing = secrets.token_hex(8), missing
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.results = folder / "results"
        self.environment = {
            **os.environ,
            MARK: self.mark,
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": ":".join([str(ROOT / ".package"), os.environ.get("PYTHONPATH", "")]).rstrip(":"),
        }
        self.mounts, self.networks = mounts(), {one.id for one in journal.networks()}
        self.names = set(os.listdir(namespaces.FOLDER))

    def start(self, arguments: list[str]) -> subprocess.Popen[str]:
        out = ["--out", str(self.results)] if arguments[0] == "run" else []
        return subprocess.Popen(
            [*LOSSBENCH, *arguments, *out],
            env=self.environment,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def left(self) -> list[str]:
        """What is there that was not there before."""
        out = [f"namespace {name}" for name in set(os.listdir(namespaces.FOLDER)) - self.names]
        out += [f"journal {one.id}" for one in journal.networks() if one.id not in self.networks]
        out += [f"process {pid}" for pid in marked(self.mark)]
        out += [f"mount {mount}" for mount in mounts() - self.mounts]
        # torch keeps a cache of its own there
        out += [f"file {path}" for path in self.temporary.iterdir() if not path.name.startswith("torchinductor")]
        return out + [f"{what} of somebody else is gone" for what in self.missing()]

    def cleaned(self, *, every: bool = False) -> list[str]:
        """After `lossbench clean`; processes that were told to end get a moment."""
        said = subprocess.run(
            [*LOSSBENCH, "clean", *(["--all"] if every else [])],
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        deadline = time.monotonic() + 10
        while marked(self.mark) and time.monotonic() < deadline:
            time.sleep(0.05)
        wrong = [f"clean said: {said.stderr.strip()}"] if said.returncode or "Traceback" in said.stderr else []
        return wrong + self.left()


def marked(mark: str) -> list[int]:
    out = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and f"{MARK}={mark}".encode() in Path("/proc", entry, "environ").read_bytes():
                out.append(int(entry))
        except OSError:
            continue
    return out


def mounts() -> set[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {f"{line.split()[4]} {line.split(' - ')[1].split()[0]}" for line in lines}


def found(process: subprocess.Popen[str], target: str, mark: str) -> int | None:
    """The process to be killed; the command itself if none is named."""
    if not target:
        return process.pid
    for pid in marked(mark):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(word.startswith(target) for word in words) and pid != process.pid:
            return pid
    return None


def appears(process: subprocess.Popen[str], target: str, mark: str) -> None:
    while process.poll() is None and found(process, target, mark) is None:
        time.sleep(0.005)


def kill_at(place: Place, kind: Kind, delay_s: float, number: int) -> str:
    """Run, signal the target so long after it was there, wait for the end. Returns how it went."""
    process = place.start(kind.arguments)
    appears(process, kind.target, place.mark)
    time.sleep(delay_s)
    pid, sent = found(process, kind.target, place.mark), False
    if pid is not None and process.poll() is None:
        try:
            handle = os.pidfd_open(pid)
            signal.pidfd_send_signal(handle, number)
            os.close(handle)
            sent = True
        except ProcessLookupError:
            sent = False
    errors = process.communicate()[1]
    # A helper that is told to stop while its interpreter still starts says so in Python's own words.
    spoke = kind.target.startswith("workloads") or (kind.target and number == signal.SIGINT)
    assert "Traceback" not in errors or spoke or "Exception ignored in" in errors, errors[-3000:]
    return f"{signal.Signals(number).name if sent else 'too late'} after {delay_s:.2f} s, exit {process.returncode}"


def lasts(place: Place, kind: Kind) -> float:
    """From the moment the target is there to the end."""
    process = place.start(kind.arguments)
    appears(process, kind.target, place.mark)
    began = time.monotonic()
    process.communicate()
    return time.monotonic() - began


@contextmanager
def lab(place: Place, needed: bool) -> Iterator[None]:
    if needed:
        place.start(["net", "up", "--hosts", "3", "--profile", "loss_5"]).communicate()
    yield


def kills(place: Place, count: int) -> int:
    wrong = 0
    for name, kind in RUNS.items():
        is_lab = kind.arguments[0] == "net"
        with lab(place, is_lab):
            whole = lasts(place, kind)
        place.cleaned(every=True)
        for n in range(count):
            with lab(place, is_lab):
                how = kill_at(place, kind, whole * (n + 0.5) / count, signal.SIGKILL)
            left = place.cleaned(every=True)
            wrong += bool(left)
            print(f"{name} {n + 1}/{count}: {how}: {', '.join(left) or 'nothing left'}", flush=True)
    return wrong


def at_random(place: Place, minutes: float, seed: int) -> int:
    dice, wrong, done = random.Random(seed), 0, 0
    until = time.monotonic() + 60 * minutes
    everything = {**RUNS, **MORE}
    before = grown()
    while time.monotonic() < until:
        name = dice.choice(list(everything))
        kind = everything[name]
        number = dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
        with lab(place, kind.arguments[0] == "net"):
            how = kill_at(place, kind, dice.uniform(0, 4), number)
        left = place.cleaned(every=True)
        wrong += bool(left)
        done += 1
        print(f"{done} {name}: {how}: {', '.join(left) or 'nothing left'}", flush=True)
    after = grown()
    print(f"one process, run after run: {before} -> {after} (resident kB, file descriptors)")
    wrong += after[1] > before[1] or after[0] > 1.05 * before[0] + 2048
    print(f"{done} runs, {wrong} wrong", flush=True)
    return wrong


def grown(rounds: int = 6) -> tuple[int, int]:
    """(peak resident kB, file descriptors) of this process after some more runs in it."""
    ((_, asked),) = points.points(points.find("proof"), settings=list(PLAIN))
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            run.execute(
                asked,
                seed=number,
                chosen={},
                folder=RunFolder(Path(folder) / "r"),
                ground=ThisMachine(Kernel.tried()),
                progress=lambda _: None,
            )
    gc.collect()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, len(os.listdir("/proc/self/fd"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--only", default="", help="one of the kinds of --kills")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    asked = parser.parse_args()
    if asked.only:
        for name in list(RUNS):
            if name != asked.only:
                del RUNS[name]
    print(f"seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory() as name, foreign(Path(name)) as missing:
        place = Place(Path(name), missing)
        wrong = kills(place, asked.kills) if asked.kills else at_random(place, asked.minutes, asked.seed)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
