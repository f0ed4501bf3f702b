"""The figures behind what is said about training: paired seeds against the reliable twin, drift against the formula.

python tests/bench/training_bars.py [text digits utterances drift] [--seeds 5]      minutes on two cores; not a test
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

TASKS: dict[str, tuple[str, list[str]]] = {  # the measure that is compared, and what makes the task
    "text": ("perplexity_agreed", ["data=pydoc", "model=llama_25k", "batch=8", "steps=1500", "evaluate_items=400"]),
    "digits": ("loss_agreed", ["data=digits", "model=mlp", "batch=32", "steps=300", "evaluate_items=1437"]),
    "utterances": ("loss_agreed", ["data=snips_small", "model=tagger_small", "batch=16", "steps=200"]),
}
OPTIMIZERS = {
    "adamw": ['optimizer="adamw"', 'schedule="cosine"', "warm_up=0.05", "clip_norm=1.0"],
    # Without clipping: rps steps before it averages, so it can only clip by the norm of single workers' gradients.
    "sgd": ['optimizer="sgd"', 'schedule="cosine"', "warm_up=0.05", "clip_norm=1e9"],
}
RATES = {
    "adamw": {"text": 3e-3, "digits": 1e-3, "utterances": 2e-3},
    "sgd": {"text": 0.05, "digits": 0.2, "utterances": 0.5},  # text: plain SGD on a transformer jumps at higher rates
}
EXPERIMENT = str(Path(__file__).with_name("training_bars.toml"))
DRIFT = [(data, percent) for data in ("random_walk", "digits") for percent in (5, 10, 20, 40)]
PAIRS = [("rps", "sgd"), ("bounded_drift", "sgd"), ("bounded_drift", "adamw"), ("gradient_averaging", "sgd")]


def settings(percent: float, options: list[str]) -> list[str]:
    return [*(f"workload.options.{option}" for option in options), f"impair.0.profile.loss.percent={percent}"]


def common(task: str, optimizer: str) -> list[str]:
    return [*TASKS[task][1], *OPTIMIZERS[optimizer], f"lr={RATES[optimizer][task]}"]


def planned() -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """All that this program may ask for: (suite, settings, full form)."""
    for task in TASKS:
        for strategy, optimizer in PAIRS:
            for percent, name in ((0, "reliable"), (10, strategy)):
                yield EXPERIMENT, tuple(settings(percent, [*common(task, optimizer), f'strategy="{name}"'])), False
    for data, percent in DRIFT:
        yield "drift", tuple(settings(percent, [f'data="{data}"'])), False


def rows(seeds: int, percent: float, options: list[str], suite: str = EXPERIMENT) -> list[dict[str, Any]]:
    """One row for each seed."""
    command = [sys.executable, "-m", "lossbench.cli.main", "run", suite, "--json", "--seeds", str(seeds)]
    for setting in settings(percent, options):
        command += ["--set", setting]
    command += ["--out", tempfile.mkdtemp()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    runs = json.loads(done.stdout)["summary"]
    bad = [r["reasons"] for r in runs if r["columns"]["fault"] != "valid" or not r["rows"]]
    assert not bad, bad
    return [run["rows"][0] for run in runs]


def paired(task: str, seeds: int) -> None:
    measure = TASKS[task][0]
    twins: dict[str, list[dict[str, Any]]] = {}
    for strategy, optimizer in PAIRS:
        told = common(task, optimizer)
        if optimizer not in twins:
            twins[optimizer] = rows(seeds, 0, [*told, 'strategy="reliable"'])
        twin = twins[optimizer]
        lossy = rows(seeds, 10, [*told, f'strategy="{strategy}"'])
        change = np.array([100 * (b[measure] / a[measure] - 1) for a, b in zip(twin, lossy, strict=True)])
        half = stats.t.ppf(0.975, len(change) - 1) * stats.sem(change) if len(change) > 1 else float("nan")
        drift = [np.mean([row[name] for row in lossy]) for name in ("drift_first", "drift_last")]
        print(
            f"{task:10} {strategy:18} {optimizer:5} {measure}: reliable {np.mean([a[measure] for a in twin]):.4f}; "
            f"{np.mean([b[measure] for b in lossy]):.4f}: {change.mean():+.2f} % +- {half:.2f} (n={len(change)}; "
            f"{' '.join(f'{c:+.2f}' for c in change)}); drift {drift[0]:.3g} -> {drift[1]:.3g}; "
            f"outside {100 * np.mean([b['outside'] for b in lossy]):.1f} %",
            flush=True,
        )


def drift(seeds: int) -> None:
    for data, percent in DRIFT:
        found = rows(seeds, percent, [f'data="{data}"'], suite="drift")
        text = ", ".join(
            f"{name} {np.mean([row[name] for row in found]):.3f}"
            for name in ("over_exact", "over_stated", "over_predicted", "owner_over_exact")
        )
        print(f"drift      {data:12} {percent} %: measured / theory: {text} (n={len(found)})", flush=True)


def main() -> None:
    words = sys.argv[1:]
    seeds = int(words[words.index("--seeds") + 1]) if "--seeds" in words else 5
    wanted = [word for word in words if word in (*TASKS, "drift")] or [*TASKS, "drift"]
    for name in wanted:
        drift(min(seeds, 2)) if name == "drift" else paired(name, seeds)


if __name__ == "__main__":
    main()
