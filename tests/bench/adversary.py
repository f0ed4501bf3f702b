"""An adversary beside lossbench: at a random moment it bypasses, removes or changes what a run stands on.

A touched run must never be *valid* in the column concerned, an untouched one always. What it does, to which condition,
on which backend, to programs that count their packets and to such as report nothing, is drawn from the table of what a
verdict covers (tests/bench/deeds.py).

    python tests/bench/adversary.py --backends ebpf cbpf relay --touched 100 --untouched 50
    python tests/bench/adversary.py --workers 8 --minutes 8 --out FOLDER --seed 3    # side by side; again: the rest

Each worker has its own /run (tests/worker) and its own share of the cores, so that what steals one's CPU steals no
other's. FOLDER gets a line for each run as it ends: the same command goes on where it was stopped, another seed draws
others, and the score is that of all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".package"), str(ROOT)]

from lossbench.net.tc import kinds  # noqa: E402
from lossbench.proof.covers.conditions import CONDITIONS, NOT_JUDGED, REFUSED  # noqa: E402
from lossbench.spec.experiment import Experiment  # noqa: E402
from lossbench.spec.userfile import check  # noqa: E402
from tests.bench.deeds import ASKS, DEEDS, LIE, Deed, Running, experiment, honest, nothing  # noqa: E402
from tests.forked import begin  # noqa: E402
from tests.shared import wait_until_begun  # noqa: E402

__all__ = ["ASKS", "DEEDS", "honest", "run_with", "wrong"]
PATIENCE_S = 900  # of a whole run: what hangs for ever is wrong
LATE_WIRE = """
import sys, time
if "lossbench.net.impair.relay.process" in sys.orig_argv: time.sleep(0.6)
"""
LYING_WIRE = """
import os, random, sys
if "lossbench.net.impair.relay.process" in sys.orig_argv:
    draw = random.Random.random
    random.Random.random = lambda self: 0.5 if os.path.exists(TOLD) else draw(self)
"""
JUDGED = {one.name: [b for b, words in one.cells.items() if words not in (REFUSED, NOT_JUDGED)] for one in CONDITIONS}


def toml(value: Any) -> str:
    """Inline: what an experiment holds is simple enough."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {toml(v)}" for k, v in value.items()) + "}"
    return "[" + ", ".join(map(toml, value)) + "]" if isinstance(value, list) else json.dumps(value)


def run_with(deed: Deed, backend: str, *, seed: int, folder: Path, talks: str = "chatter") -> dict[str, Any]:
    """The run's summary, after the deed was done to it."""
    kinds.install()
    spec = folder / "adversary.toml"
    more = {"beside": deed.beside, "limit_s": deed.limit_s, "match": deed.match}
    asked = experiment(backend, deed.of, talks, seed=seed, folder=folder, **more)
    spec.write_text("".join(f"{k} = {toml(v)}\n" for k, v in asked.items()))
    path = [str(ROOT / ".package"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    if deed.late_wire or deed.lies:
        (folder / "wire").mkdir()
        lying = f"TOLD = {str(folder / LIE)!r}\n{LYING_WIRE}"
        (folder / "wire" / "sitecustomize.py").write_text(LATE_WIRE if deed.late_wire else lying)
        path.insert(0, str(folder / "wire"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    process = begin("run", str(spec), "--out", str(folder / "out"), "--json", cwd=ROOT, environment=environment)
    run = Running(process, random.Random(seed), check(Experiment, asked, origin="adversary"), seed, folder)
    try:
        wait_until_begun(process, folder)
        if deed.voids == "fault" and not deed.of.startswith("windows"):
            run.wait_until_it_talks()
        if deed.act is not nothing and process.poll() is None:
            run.pause(0.0 if deed.voids == "timing" else 0.1, 0.2 if deed.voids == "timing" else deed.within_s)
            deed.act(run)
        output, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        for helper in run.helpers:
            helper.kill()
            helper.wait()
    assert "Traceback" not in errors, errors
    (summary,) = json.loads(output)["summary"]
    return dict(summary)


def wrong(deed: Deed, summary: dict[str, Any]) -> str:
    """What the verdict should not have said; empty if it is right."""
    columns, reasons = summary["columns"], summary["reasons"]
    if deed.voids and columns[deed.voids] == "valid":
        return f"{deed.name}: false valid {deed.voids}: {reasons[deed.voids]}"
    if deed.voids != "fault" and columns["fault"] != "valid" and not was_late(deed, summary):
        return f"{deed.name}: false {columns['fault']} fault: {reasons['fault']}"
    if deed.voids == "" and columns["outcome"] != "valid":
        return f"{deed.name}: outcome {columns['outcome']}: {reasons['outcome']}"
    return ""


def decided(deed: Deed, columns: dict[str, str], reasons: dict[str, list[str]]) -> bool:
    """Was a touched run doubted for what was done to it? A machine that is busy enough has every run doubted."""
    said = reasons.get(deed.voids, [])
    return (
        not deed.voids
        or columns.get(deed.voids) == "valid"
        or any(words in text for text in said for words in deed.says)
    )


def was_late(deed: Deed, summary: dict[str, Any]) -> bool:
    """A wire in user space, or a harness that has to open a window, is late on a machine that is too busy for it, and
    says so: that is true, whoever did it. But nobody fails by that. Steps pass faster than a processor is called busy:
    what a harness opened steps late was late by the packets themselves."""
    words: tuple[str, ...] = ()
    busy = summary["columns"]["timing"] != "valid" or os.getloadavg()[0] > (os.cpu_count() or 1)
    if summary["backend"] in ("relay", "edt", "netem") and busy:
        words += ("ms late or more (", "the machine was too busy")
    by_harness = summary["backend"] not in ("ebpf", "edt")
    in_time, in_steps = deed.of == "windows in time", deed.of == "windows in steps"
    if (in_steps and (busy or by_harness)) or (in_time and busy and by_harness):
        words += (" late (", "before its ranks were let go")
    said = summary["reasons"]["fault"]
    return (
        summary["columns"]["fault"] == "unknown"
        and bool(said)
        and all(any(one in text for one in words) for text in said)
    )


# --- many ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    deed: Deed
    backend: str
    talks: str


def drawn(backends: list[str], touched: int, untouched: int, *, seed: int) -> list[Draw]:
    """Every deed of every backend comes up before one comes up again, so does every condition that is left alone."""
    chance = random.Random(seed)
    able = [Draw(d, b, w) for b in backends for d in DEEDS.values() if b in d.backends for w in d.workloads]
    alone = [
        Draw(deed, backend, talks)
        for backend in backends
        for of in ASKS
        if backend in JUDGED[of]
        for deed in honest(of)
        for talks in deed.workloads
    ]
    out = []
    for every, count in ((able, touched), (alone, untouched)):
        chance.shuffle(every)
        often: dict[tuple[str, str, str], int] = {}
        order = []
        for one in every:
            key = (one.deed.name, one.deed.of, one.backend)
            often[key] = often.get(key, 0) + 1
            order.append((often[key], one))
        order.sort(key=lambda pair: pair[0])
        out += [order[number % len(order)][1] for number in range(count)]
    chance.shuffle(out)
    return out


@dataclass(frozen=True)
class Scored:
    """One run, as a line of FOLDER."""

    seed: int  # of the plan
    number: int  # in the plan
    deed: str
    of: str
    backend: str
    talks: str
    left_alone: bool
    wrong: str  # empty: the verdict was right
    columns: dict[str, str]
    reasons: dict[str, list[str]]
    load: float
    commit: str

    @property
    def undecided(self) -> bool:
        """Touched, and doubted for something else: that says nothing of the deed. Nor does one of before."""
        if self.left_alone or self.wrong:
            return False
        return self.deed not in DEEDS or not decided(DEEDS[self.deed], self.columns, self.reasons)

    @property
    def late(self) -> bool:
        """Left alone and not valid, and right in that."""
        return self.left_alone and not self.wrong and self.columns["fault"] != "valid"

    def in_words(self) -> str:
        reason = next(iter(self.reasons.get("fault", [])), "")
        how = self.wrong or ("not decided" if self.undecided else "right")
        return f"{self.deed} ({self.of}), {self.backend}, {self.talks}: {how}  {reason[:110]}"


def tried(one: Draw, *, seed: int, number: int) -> Scored:
    """A run that ends without a verdict is wrong too, and no reason to stop."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            summary = run_with(one.deed, one.backend, seed=seed + number, folder=Path(folder), talks=one.talks)
            said = wrong(one.deed, summary)
        except Exception as error:  # noqa: BLE001 - netlink's, those of what it did not find: all are of this run alone
            summary, said = {"columns": {}, "reasons": {}}, f"{one.deed.name}: no verdict: {error!r}"
    return Scored(
        seed=seed,
        number=number,
        deed=one.deed.name,
        of=one.deed.of,
        backend=one.backend,
        talks=one.talks,
        left_alone=one.deed.voids == "",
        wrong=said,
        columns=summary["columns"],
        reasons=summary["reasons"],
        load=os.getloadavg()[0],
        commit=commit(),
    )


@lru_cache
def commit() -> str:
    """Empty where nobody can tell."""
    try:
        done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip()


def stored(folder: Path) -> list[Scored]:
    """Without the line that was being written when somebody pulled the plug."""
    lines = [line for one in sorted(folder.glob("*.jsonl")) for line in one.read_text().splitlines()]
    return [Scored(**json.loads(line)) for line in lines if line.endswith("}")]


def work(plan: list[Draw], asked: argparse.Namespace) -> list[Scored]:
    """This worker's part of the plan, as far as it has not been done and the time goes."""
    part, of = asked.part
    log = asked.out / f"seed{asked.seed}-{part}of{of}.jsonl" if asked.out else None
    done = {one.number for one in stored(asked.out) if one.seed == asked.seed} if asked.out else set()
    out = []
    for number in range(part, len(plan), of):
        if number in done:
            continue
        if time.time() > asked.until:
            break
        out.append(tried(plan[number], seed=asked.seed, number=number))
        if log:
            with log.open("a") as lines:
                lines.write(json.dumps(asdict(out[-1])) + "\n")
        print(f"{number + 1}/{len(plan)} {out[-1].in_words()}", flush=True)
    return out


def keep_to_own_cores(part: int, of: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    each = max(1, len(cores) // of)
    os.sched_setaffinity(0, {cores[(part * each + more) % len(cores)] for more in range(each)})


def side_by_side(asked: argparse.Namespace) -> bool:
    """Workers, each with its own /run; has every one done its part?"""
    command = [str(ROOT / "tests" / "worker"), __file__, *sys.argv[1:], "--until", str(asked.until)]
    children = [
        subprocess.Popen(
            [*command, "--part", str(number), str(asked.workers)], env={**os.environ, "WORKER_PYTHON": sys.executable}
        )
        for number in range(asked.workers)
    ]
    try:
        ended = [child.wait() for child in children]
    finally:
        for child in children:
            if child.poll() is None:
                child.terminate()
                child.wait()
    for number, status in enumerate(ended):
        if status:
            print(f"WRONG: worker {number} of {asked.workers} ended with status {status}")
    return not any(ended)


def show(every: list[Scored], backends: list[str]) -> bool:
    """The table of docs/fidelity.md; were there any verdicts, and every one right?"""
    print("| backend | touched | false valid | not decided | left alone | false alarm |", f"|{'---|' * 6}", sep="\n")
    for backend in backends:
        here = [one for one in every if one.backend == backend]
        touched, alone = ([one for one in here if one.left_alone is which] for which in (False, True))
        wrong_in, wrong_out = (sum(bool(one.wrong) for one in side) for side in (touched, alone))
        figures = [len(touched), wrong_in, sum(one.undecided for one in touched), len(alone), wrong_out]
        print(f"| {backend} | {' | '.join(map(str, figures))} |")
    alone = [one for one in every if one.left_alone]
    busy = sum(one.columns.get("timing") != "valid" for one in alone)
    late = sum(one.late for one in alone)
    print(f"of those left alone: timing unknown in {busy}, the fault not valid since it truly was late in {late}")
    for one in every:
        if one.undecided:
            print(f"not decided, seed {one.seed}, {one.number + 1}: {one.in_words()}")
    for one in every:
        if one.wrong:
            print(f"WRONG, seed {one.seed}, {one.number + 1}: {one.in_words()}")
    if not every:
        print("WRONG: no run has ended")
    return bool(every) and not any(one.wrong for one in every)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=["ebpf", "cbpf", "relay"])
    parser.add_argument("--touched", type=int, default=10)
    parser.add_argument("--untouched", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1e9, help="Begin no other run after so long.")
    parser.add_argument(
        "--workers", type=int, default=0, help="So many side by side, as root; two cores each are good."
    )
    parser.add_argument(
        "--out", type=Path, help="A line for each run goes to this folder; those in it are not repeated."
    )
    parser.add_argument("--part", type=int, nargs=2, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=0.0, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.until = asked.until or time.time() + 60 * asked.minutes
    if asked.workers and not asked.out:
        parser.error("--workers needs --out")
    if asked.out:
        asked.out = asked.out.resolve()
        asked.out.mkdir(parents=True, exist_ok=True)
    plan = drawn(asked.backends, asked.touched, asked.untouched, seed=asked.seed)
    if asked.part:
        keep_to_own_cores(*asked.part)
        work(plan, asked)
        return
    whole = True
    if asked.workers:
        whole = side_by_side(asked)
        every = stored(asked.out)
    else:
        asked.part = (0, 1)
        every = work(plan, asked)
        every = stored(asked.out) if asked.out else every
    right = show(every, asked.backends)
    sys.exit(not (whole and right))


if __name__ == "__main__":
    main()
