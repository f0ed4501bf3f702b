"""Training bars that need a GPU: CIFAR-10 as in the RPS paper, a LLaMA-style model on WikiText-2. Commands, not tests.

python tests/bench/gpu_training.py speed | cifar | llm        with LOSSBENCH_DATA; OUT for the rows; SECONDS as a limit
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from lossbench.net.kernel import Kernel
from lossbench.results.folders import SuiteFolder
from lossbench.runs.ground import ThisMachine
from lossbench.runs.launch.nursery import Nurseries
from lossbench.runs.many import suite as suites
from lossbench.spec.asking import points

OUT = Path(os.environ.get("OUT", "/tmp"))
LIMIT_S = float(os.environ.get("SECONDS_LIMIT", "100000"))
BEGAN = time.monotonic()
PACKETS, BLOCKS = "iid", "block"
NURSERIES = Nurseries()
TEXT = str(Path(__file__).with_name("training_bars.toml"))
IMAGES = "rps-convergence"


class Asked(NamedTuple):
    """One point."""

    name: str
    suite: str
    settings: tuple[str, ...]
    full: bool = False


def run(name: str, suite: str, settings: tuple[str, ...], full: bool) -> None:
    """One point, one seed; its row is kept in OUT/rows.jsonl, its curve in OUT/curves.jsonl."""
    if time.monotonic() - BEGAN > LIMIT_S:
        print(f"{name}: left out, no time", flush=True)
        return
    began = time.monotonic()
    ((chosen, experiment),) = points.points(points.find(suite), settings=list(settings), full=full)
    plan = suites.plan_of([(chosen, experiment)], seeds=1)
    folder = SuiteFolder(Path(tempfile.mkdtemp(prefix="lossbench-runs-")))
    found = suites.run_plan(
        plan, folder=folder, run_id="gpu", ground=ThisMachine(Kernel.tried(), NURSERIES), progress=lambda *_: None
    )
    result = found.as_json()["summary"][0]
    row, took = result["rows"][0] if result["rows"] else {}, time.monotonic() - began
    well = result["columns"]["outcome"] == "valid" and row
    keep = {
        "name": name,
        "took_s": round(took, 1),
        "columns": result["columns"],
        "row": row,
        "seed": result["seed"],
        "reasons": {} if well else result["reasons"],
    }
    with open(OUT / "rows.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(keep) + "\n")
    shown = {k: round(v, 4) for k, v in row.items() if isinstance(v, float) and not k.endswith("_mean_model")}
    print(name, f"{took:.0f} s", *result["columns"].values(), shown, keep["reasons"], flush=True)
    curve(name, Path(result["dir"]))


def curve(name: str, folder: Path, every: int = 20) -> None:
    """The mean training loss of all workers, in windows of steps."""
    losses: dict[int, list[float]] = {}
    for path in (folder / "records").glob("*.jsonl"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record["kind"] == "step":
                losses.setdefault(record["step"] // every, []).append(record["loss"])
    text = json.dumps(
        {"name": name, "every": every, "loss": [round(sum(v) / len(v), 5) for _, v in sorted(losses.items())]}
    )
    with open(OUT / "curves.jsonl", "a", encoding="utf-8") as file:
        file.write(text + "\n")


def speed() -> Iterator[Asked]:
    base = (
        "topology.hosts=8",
        "workload.options.steps=60",
        "impair.0.profile.loss.percent=10",
        "probe.packets=8000",
        "workload.options.drift_every=0",
        "workload.options.evaluate_items=256",
    )
    image = (*base, "arm=rps", "workload.options.data=digits32", "workload.options.model=resnet20")
    for per in (1, 2, 4, 0):
        yield Asked(f"resnet20 8 workers, {per} per process", IMAGES, (*image, f"workload.ranks_per_process={per}"))
    text = (*base, "workload.options.model=llama_6m", "workload.options.window=256", "workload.options.batch=16")
    for hosts, per in ((4, 1), (4, 0), (8, 1)):
        places = (f"topology.hosts={hosts}", f"workload.ranks_per_process={per}")
        yield Asked(f"llama_6m {hosts} workers, {per} per process", TEXT, (*text, *places))
    yield Asked("resnet20 simulated", IMAGES, (*image, "workload.ranks_per_process=0", "backend=simulated"))


def cifar(workers: int = 8, epochs: float = 12) -> Iterator[Asked]:
    """Arrival 100 / 95 / 90 % for rps, 100 / 99 / 95 % for gradient_averaging, by packets and by blocks."""
    common = (
        f"topology.hosts={workers}",
        f"workload.options.epochs={os.environ.get('EPOCHS', epochs)}",
        f"workload.options.lr={workers / 4}",
        "workload.options.warm_up=0.2",
        "workload.options.drift_every=100",
        f"workload.ranks_per_process={os.environ.get('PER', '1')}",
        "probe.packets=40000",
        "workload.options.schedule=constant",
    )
    plan = [
        ("rps", PACKETS, 0),
        ("rps", PACKETS, 10),
        ("gradient_averaging", PACKETS, 5),
        ("rps", BLOCKS, 10),
        ("gradient_averaging", BLOCKS, 5),
        ("gradient_averaging", PACKETS, 1),
        ("gradient_averaging", BLOCKS, 1),
        ("rps", PACKETS, 5),
        ("rps", BLOCKS, 5),
    ]  # without loss the two are equal
    for strategy, model, percent in plan:
        loss = f"impair.0.profile.loss={{model='{model}', percent={percent}}}"
        yield Asked(f"{strategy} {model} {percent}", IMAGES, (*common, loss, f"arm={strategy}"), full=True)


def llm_one(percent: str, seed: str) -> Iterator[Asked]:
    common = (
        "topology.hosts=4",
        f"workload.options.steps={os.environ.get('STEPS', '400')}",
        "workload.options.batch=32",
        f"workload.options.lr={os.environ.get('LR', '1e-3')}",
        "workload.options.drift_every=50",
        "probe.packets=20000",
        f"workload.ranks_per_process={os.environ.get('PER', '1')}",
    )
    own = (f"impair.0.profile.loss.percent={percent}", f"first_seed={seed}")
    yield Asked(f"llm {percent} seed {seed}", TEXT, (*common, *own), full=True)


def pairs() -> list[tuple[str, str]]:
    return [(percent, seed) for seed in os.environ.get("SEEDS", "0 1 2 3 4").split() for percent in ("0", "10")]


def llm() -> None:
    """SEEDS; the two runs of a seed side by side: their losses are asked for, not their times."""
    for two in zip(*[iter(pairs())] * 2, strict=True):
        for one in [subprocess.Popen([sys.executable, __file__, "llm_one", *words]) for words in two]:
            one.wait()


def planned() -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """All that this program may ask for."""
    for one in (*speed(), *cifar(), *(asked for words in pairs() for asked in llm_one(*words))):
        yield one.suite, one.settings, one.full


PARTS: dict[str, Callable[..., Iterator[Asked]]] = {"speed": speed, "cifar": cifar, "llm_one": llm_one}

if __name__ == "__main__":
    try:
        if sys.argv[1:] == ["llm"]:
            llm()
        else:
            for one in PARTS[sys.argv[1]](*sys.argv[2:]):
                run(*one)
    finally:
        NURSERIES.close()
