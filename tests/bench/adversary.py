"""An adversary beside lossbench: at a random moment it bypasses, removes or changes what a run stands on.

A touched run must never be *valid* in the column concerned, an untouched one always. What it does, to which condition,
on which backend, to programs that count their packets and to such as report nothing, is drawn from the table of what a
verdict covers (tests/bench/deeds.py).

    python tests/bench/adversary.py --backends ebpf cbpf relay --touched 100 --untouched 50
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".package"), str(ROOT)]

from lossbench.net.tc import kinds  # noqa: E402
from lossbench.proof.covers.conditions import CONDITIONS, NOT_JUDGED, REFUSED  # noqa: E402
from lossbench.spec.experiment import Experiment  # noqa: E402
from lossbench.spec.userfile import check  # noqa: E402
from tests.bench.deeds import ASKS, DEEDS, Deed, Running, experiment, honest, nothing  # noqa: E402
from tests.forked import begin  # noqa: E402
from tests.shared import wait_until_begun  # noqa: E402

__all__ = ["DEEDS", "honest", "run_with", "wrong"]
LATE = re.compile(r"delay ([\d.]+) ms, asked ([\d.]+) ms")  # of the probes
LATE_WIRE = """
import sys, time
if "lossbench.net.impair.relay.process" in sys.orig_argv: time.sleep(0.6)
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
    asked = experiment(backend, deed.of, talks, seed=seed, folder=folder, beside=deed.beside)
    spec.write_text("".join(f"{k} = {toml(v)}\n" for k, v in asked.items()))
    environment = dict(os.environ)
    if deed.late_wire:
        (folder / "late").mkdir()
        (folder / "late" / "sitecustomize.py").write_text(LATE_WIRE)
        environment["PYTHONPATH"] = os.pathsep.join((str(folder / "late"), environment.get("PYTHONPATH", "")))
    process = begin("run", str(spec), "--out", str(folder / "out"), "--json", cwd=ROOT, environment=environment)
    run = Running(process, random.Random(seed), check(Experiment, asked, origin="adversary"), seed)
    try:
        wait_until_begun(process, folder)
        if deed.act is not nothing and process.poll() is None:
            run.pause(0.0 if deed.voids == "timing" else 0.1, 0.2 if deed.voids == "timing" else deed.within_s)
            deed.act(run)
        output, errors = process.communicate(timeout=900)
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


def was_late(deed: Deed, summary: dict[str, Any]) -> bool:
    """A wire in user space, or a harness that has to open a window, is late on a machine that is too busy for it, and
    says so: that is true, whoever did it."""
    words: tuple[str, ...] = ()
    if summary["backend"] == "relay" and summary["columns"]["timing"] != "valid":
        words += ("ms late or more (", "delay late")
    if deed.of == "windows in steps" or (deed.of == "windows in time" and summary["backend"] not in ("ebpf", "edt")):
        words += (" late (", "before its ranks were let go")
    said = [LATE.sub(_late, text) for text in summary["reasons"]["fault"]]
    return bool(said) and all(any(one in text for one in words) for text in said)


def _late(found: re.Match[str]) -> str:
    return "delay late" if float(found[1]) > float(found[2]) else found[0]


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=["ebpf", "cbpf", "relay"])
    parser.add_argument("--touched", type=int, default=10)
    parser.add_argument("--untouched", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1e9, help="Begin no other run after so long.")
    asked = parser.parse_args()
    plan = drawn(asked.backends, asked.touched, asked.untouched, seed=asked.seed)
    score = {backend: [0, 0, 0, 0] for backend in asked.backends}  # touched, false valid, untouched, false alarm
    busy, late, until = 0, 0, time.monotonic() + 60 * asked.minutes
    for number, one in enumerate(plan):
        if time.monotonic() > until:
            break
        with tempfile.TemporaryDirectory() as folder:
            seed = asked.seed + number
            summary = run_with(one.deed, one.backend, seed=seed, folder=Path(folder), talks=one.talks)
        said = wrong(one.deed, summary)
        left_alone = one.deed.voids == ""
        score[one.backend][2 * left_alone] += 1
        score[one.backend][2 * left_alone + 1] += bool(said)
        busy += left_alone and summary["columns"]["timing"] != "valid"
        late += left_alone and not said and summary["columns"]["fault"] != "valid"
        reason = next(iter(summary["reasons"][one.deed.voids or "fault"]), "")
        what = f"{one.deed.name} ({one.deed.of}), {one.backend}, {one.talks}"
        print(f"{number + 1}/{len(plan)} {what}: {said or 'right'}  {reason[:110]}", flush=True)
    print("| backend | touched | false valid | left alone | false alarm |", "|---|---|---|---|---|", sep="\n")
    for backend, figures in score.items():
        print(f"| {backend} | {' | '.join(str(one) for one in figures)} |")
    print(f"of those left alone: timing unknown in {busy}, the fault not valid since it truly was late in {late}")
    sys.exit(any(figures[1] or figures[3] for figures in score.values()))


if __name__ == "__main__":
    main()
