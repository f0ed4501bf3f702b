"""Figures 4 and 5 of the RPS paper (Yu et al., ICML 2019): its digitised points beside our curves."""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from lossbench.report.groups import Group
from lossbench.report.plots.canvas import COLOURS, Picture, panel
from lossbench.report.plots.curves import Curve, Curves
from lossbench.results import measures
from lossbench.results.measures import short

PAPER = Path(__file__).with_name("rps_figures.csv")
HOSTS = 16
WHOLE = "base"  # as the paper's points call what arrives whole
UNITS = {"iid": "packets", "block": "blocks"}  # what is lost at once: as on a network, as in the paper
DASHES = {  # of blocks, of zero for a lost mean; colours are taken by what arrived
    (False, False): "-",
    (True, False): "--",
    (False, True): "-.",
    (True, True): ":",
}
WHERE_AND_WHEN = ("pairs", "from_s", "to_s", "from_step", "to_step")  # of an entry: narrower than all


@lru_cache(maxsize=1)
def paper() -> dict[str, dict[str, list[tuple[float, float]]]]:
    """figure -> series -> points, digitised from the paper (Yu et al., ICML 2019)."""
    out: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with open(PAPER, encoding="utf-8") as file:
        for row in csv.DictReader(file):
            out.setdefault(row["figure"], {}).setdefault(row["series"], []).append((float(row["x"]), float(row["y"])))
    return out


COLUMNS = {("resnet20", "cifar10"): "a", ("resnet110", "cifar10"): "b", ("tagger_slots", "atis"): "c"}
ROWS = {"rps": ("4", {}), "gradient_averaging": ("5", {"owners": "random"})}  # owners are drawn anew in both
IMAGES = {"lr": 4.0, "batch": 32, "schedule": "steps", "warm_up": 0.03125, "optimizer": "sgd"}
TAGS = {"lr": 1.0, "batch": 16, "optimizer": "sgd"}  # rate and batch are ours, the paper has none for ATIS
SET_UP = {"a": IMAGES, "b": IMAGES, "c": TAGS}  # as the full forms of the suites rps-figure-* say it
EPOCHS = {"a": 160, "b": 160, "c": 20}
UNSAID = {"batch": 32, "schedule": "constant", "drop_at": [0.5, 0.75], "normaliser": "count", "precision": "fp32"}
KNOWN = ("strategy", "strategy_options", "model", "data", "rule")  # held against the figure by themselves
LENGTH = ("epochs", "steps")  # may be shorter, and is said
NO_MATTER = (
    *("data_dir", "device", "engine", "trusted", "rto_min_ms", "rto_max_ms", "tcp", "window", "walk_size"),
    *("evaluate_every", "evaluate_items", "target", "gradient_square", "drift_every", "bias_every"),
    *("checkpoint_every", "checkpoint_dir", "resume", "simulated"),
)


def _paper_figure(group: Group) -> str:
    """fig4a, fig5c, ...: by all that was asked for; empty for what the paper does not have."""
    spec = _part(group.runs[0].manifest, "experiment")
    options = _part(spec, "workload", "options")
    row, own = ROWS.get(str(options.get("strategy")), ("", {}))
    column = COLUMNS.get((str(options.get("model")), str(options.get("data"))), "")
    if not row or not column:
        return ""
    alike = (
        _part(spec, "topology").get("hosts") == HOSTS
        and (options.get("strategy_options") or {}) == own
        and _set_up_as(SET_UP[column], options)
        and (options.get("epochs") or 0) <= EPOCHS[column]
        and all(_loses_as_there(entry) for entry in spec.get("impair") or ())
    )
    return f"fig{row}{column}" if alike else ""


def _set_up_as(there: dict[str, Any], options: dict[str, Any]) -> bool:
    """Whatever changes what is learned is the paper's; what is not said is the trainer's own."""
    names = {*there, *options} - {*KNOWN, *LENGTH, *NO_MATTER}
    return all((options.get(name) or UNSAID.get(name)) == there.get(name, UNSAID.get(name)) for name in names)


def _length(figure: str, epochs: float) -> str:
    """Of a run that is shorter than the paper's."""
    whole, column = EPOCHS[figure[-1]], figure[-1]
    if round(epochs) >= whole:
        return ""
    squeezed = ", the schedule squeezed" if "schedule" in SET_UP[column] else ""
    return f" Figure {figure[3:]}: {short(round(epochs, 1))} of {whole} epochs{squeezed}."


def _loses_as_there(entry: Any) -> bool:
    """Packets or blocks each by itself, everywhere and always alike."""
    loss = _part(entry, "profile", "loss")
    by_itself = not loss or (loss.get("model") in ("iid", "block") and not loss.get("correlation_percent"))
    narrower = (*_part(entry, "profile", "match").values(), *(entry.get(name) for name in WHERE_AND_WHEN))
    return by_itself and entry.get("hosts", "all") == "all" and all(one in (None, [], ()) for one in narrower)


def _part(spec: Any, *path: str) -> dict[str, Any]:
    for part in path:
        spec = spec.get(part) if isinstance(spec, dict) else None
    return spec if isinstance(spec, dict) else {}


def beside_the_paper(drawn: Curves) -> Picture | None:
    ours: dict[str, list[tuple[Group, Curve]]] = {}
    for group in drawn.groups:
        found, name = drawn.loss(group), _paper_figure(group)
        if name in paper() and found is not None and drawn.epoch(group):
            ours.setdefault(name, []).append((group, found))
    if not ours:
        return None
    panels, lengths = [], ""
    for name, lines in sorted(ours.items()):
        one = panel(f"figure {name[3:]}")
        colours: dict[str, str] = {}
        last = 1.0
        for group, curve in lines:
            series = _arrival(group)
            colour = colours.setdefault(series, COLOURS[len(colours) % len(COLOURS)])
            scale = 1 / (drawn.epoch(group) or 1.0)
            last = max(last, float(curve.x[-1]) * scale)
            said = drawn.label(group) if len(lines) < 8 else _short(drawn.label(group), series, group)
            one.curve(curve, said, {"color": colour, "linestyle": _dash(group)}, scale=scale)
        lengths += _length(name, min(_epochs(drawn, group, curve) for group, curve in lines))
        for series, colour in colours.items():
            points = [(x, y) for x, y in paper()[name].get(series, []) if x <= max(last, 2) + 1]
            if points:
                dots = {"color": colour, "linestyle": "none", "marker": ".", "markersize": 3}
                one.curve(Curve(*np.array(points).T), f"paper {series}", dots)
        one.axes.set(xlabel="epoch", ylabel="training loss")
        panels.append(one)
    simulated = [run.simulated for lines in ours.values() for group, _ in lines for run in group.runs]
    kind = "genuine" if not any(simulated) else "simulated" if all(simulated) else "genuine and simulated"
    theirs = "Dots: digitised from Yu et al. 2019 (simulated loss, 16 workers)."
    says = f"Lines, dotted ones too: ours, {kind} loss. {theirs}{lengths}"
    return Picture("paper", "Beside the RPS paper", says, panels)


def _epochs(drawn: Curves, group: Group, curve: Curve) -> float:
    """As asked for; of steps by how far the curve goes."""
    asked = _part(group.runs[0].manifest, "experiment", "workload", "options").get("epochs")
    return float(asked or curve.x[-1] / (drawn.epoch(group) or 1.0))


def _arrival(group: Group) -> str:
    """Of what was asked of the paths, which a simulated run has too; not of probes."""
    asked = [_mean_loss(run.manifest.get("path_loss")) for run in group.runs]
    loss = float(np.mean(asked)) if asked else 0.0
    return WHOLE if loss == 0 else f"{short(100 * (1 - loss))}%"


def _kind(group: Group) -> list[str]:
    """What is lost at once, and what a lost mean becomes, where gradients are averaged."""
    spec = _part(group.runs[0].manifest, "experiment")
    models = {_part(entry, "profile", "loss").get("model") for entry in spec.get("impair") or ()}
    units = [name for model, name in UNITS.items() if model in models and _arrival(group) != WHOLE]
    options = _part(spec, "workload", "options")
    rules = [str(options.get("rule") or "own")] if options.get("strategy") == "gradient_averaging" else []
    return [*units, *rules]


def _short(label: str, series: str, group: Group) -> str:
    """Of many lines, with the mark of one whose numbers are not to be averaged."""
    return ", ".join([f"ours {series}", *_kind(group)]) + (" ?" if label.endswith(" ?") else "")


def _dash(group: Group) -> str:
    kind = _kind(group)
    return DASHES["blocks" in kind, "zero" in kind]


def _mean_loss(path_loss: Any) -> float:
    values = list(path_loss.values()) if isinstance(path_loss, dict) else [path_loss]
    known = [number for value in values if (number := measures.number(value)) is not None]
    return float(np.mean(known)) if known else 0.0
