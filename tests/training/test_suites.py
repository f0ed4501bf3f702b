"""What the suites about training ask for, in their small and their full form: the papers' set-ups, contrasts that have
their zero, nothing that differs beside what is compared."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lossbench.spec.asking import points
from lossbench.spec.experiment import Experiment
from lossbench.spec.userfile import read_toml
from lossbench.workloads import sync
from lossbench.workloads.training import engine, settings
from lossbench.workloads.training.data.sets import load
from lossbench.workloads.training.models import build

pytestmark = pytest.mark.training
CONTRASTS = ("halves", "granularity", "uneven", "bursty", "wan")
# When training sends, not what it learns; beside a service, whose load would pause whenever models are judged.
NOT_JUDGED_ON_THE_WAY = ("record-exchange", "colocation-training")
STEPS_ARE_ITS_QUESTION = "rps-workers"
PAYLOAD = 1440  # bytes of numbers in a packet, about
CIFAR_ITEMS = 50_000
CIFAR = {"classes": 10, "channels": 3, "side": 32}


def experiments(name: str, *, full: bool) -> list[Experiment]:
    return [one for _, one in points.points(points.find(name), settings=[], full=full)]


def labelled(name: str, *, full: bool) -> list[tuple[str, Experiment]]:
    """With what their arm is called."""
    return [(str(point.get("arm")), one) for point, one in points.points(points.find(name), settings=[], full=full)]


def of_training() -> list[tuple[str, bool]]:
    """(suite, its full form)."""
    out = []
    for name in points.suite_names():
        if read_toml(points.find(name)).get("workload", {}).get("name") == "training":
            out += [(name, False)] + ([(name, True)] if "full" in read_toml(points.find(name)) else [])
    return out


def losses(one: Experiment) -> list[float]:
    """Mean loss of each rule."""
    return [entry.profile.mean_loss() for entry in one.impair]


@pytest.mark.parametrize(("name", "full"), of_training())
def test_every_point_of_both_forms_is_one_that_can_be_trained(name: str, full: bool) -> None:
    for one in experiments(name, full=full):
        settings.read(one.workload.options)


@pytest.mark.parametrize(("name", "full"), of_training())
def test_times_of_one_suite_are_of_one_engine(name: str, full: bool) -> None:
    """As it was, on a GPU ddp ran step by step where all others were CUDA graphs."""
    for device in map(torch.device, ("cpu", "cuda")):
        found = set()
        for one in experiments(name, full=full):
            options = settings.read(one.workload.options)
            ranks = one.workload.ranks_per_process or one.topology.hosts
            wrapped = options.strategy == "ddp"
            model = torch.nn.Linear(1, 1)
            found.add(engine.choose(options.engine, device=device, ranks=ranks, model=model, wrapped=wrapped))
        assert len(found) == 1


@pytest.mark.parametrize(("name", "full"), of_training())
def test_what_is_held_against_a_target_trains_as_long_as_the_others(name: str, full: bool) -> None:
    """As it was, TCP had 20 of 3000 steps to a perplexity that takes hundreds."""
    found = [settings.read(one.workload.options) for one in experiments(name, full=full)]
    if any(one.target is not None for one in found) and name != STEPS_ARE_ITS_QUESTION:
        assert len({(one.steps, one.epochs) for one in found}) == 1


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", ["rivals", "rivals-text", "wan"])
def test_who_meets_every_few_steps_is_judged_at_a_meeting(name: str, full: bool) -> None:
    rounds = set()
    for one in experiments(name, full=full):
        options = settings.read(one.workload.options)
        of_epoch = CIFAR_ITEMS // (one.topology.hosts * options.batch)
        steps = options.steps if options.epochs is None else round(options.epochs * of_epoch)
        every = getattr(sync.find(options.strategy).told(options.of_strategy()), "every", 1)
        assert steps % every == 0
        rounds.add(every)
    assert rounds == {1, 8}


@pytest.mark.parametrize("full", [False, True])
def test_local_steps_over_a_long_way_are_held_against_as_few_meetings_over_tcp(full: bool) -> None:
    """As it was, against TCP at every step: fewer meetings won, whatever was lost."""
    told = {label: settings.read(one.workload.options) for label, one in labelled("wan", full=full)}
    for label in ("TCP, every 8", "local steps"):
        assert sync.find(told[label].strategy).told(told[label].of_strategy()).every == 8
    assert told["TCP, every 8"].strategy_options["direct"], "as the others send"


@pytest.mark.parametrize("full", [False, True])
def test_each_size_of_a_model_stands_beside_tcp(full: bool) -> None:
    """With the rate it has over datagrams, and nothing that a paper says of loss; 200 k's is in packet-loss-llm."""
    found = labelled("packet-loss-sizes", full=full)
    by_arm = {label: settings.read(one.workload.options) for label, one in found}
    sizes = {label for label in by_arm if "TCP" not in label} - ({"200 k"} if not full else set())
    for label in sizes:
        over_tcp = by_arm[f"{label}, TCP"]
        assert over_tcp.strategy == "reliable"
        assert (over_tcp.model, over_tcp.lr, over_tcp.steps) == (
            by_arm[label].model, by_arm[label].lr, by_arm[label].steps)  # fmt: skip
    assert {("TCP" in label, bool(one.stated)) for label, one in found} == {(True, False), (False, True)}


SHOWN_BY_SKEW = ("granularity", "halves", "uneven", "bursty", "rps-convergence", "rps-arrival", "rps-figure-4a",
                 "rps-figure-4b", "rps-figure-5a", "rps-figure-5b", "quickstart", "rivals")  # fmt: skip


@pytest.mark.parametrize("name", SHOWN_BY_SKEW)
def test_on_digits_workers_differ_and_in_the_papers_setups_they_do_not(name: str) -> None:
    """With alike data who is heard less, or goes on alone, does as well: 30 % of the blocks lost cost gradient
    averaging nothing on digits."""
    assert {settings.read(one.workload.options).skew for one in experiments(name, full=False)} == {0.3}
    for one in experiments(name, full=True) if name not in ("quickstart", "rivals") else []:
        assert settings.read(one.workload.options).skew == 0


@pytest.mark.parametrize(("name", "full"), of_training())
def test_every_suite_that_learns_says_how_long_a_target_took(name: str, full: bool) -> None:
    for one in experiments(name, full=full):
        told = settings.read(one.workload.options)
        assert told.target is not None or told.data == "random_walk" or name in NOT_JUDGED_ON_THE_WAY


def test_what_is_unbiased_stands_beside_the_mean_of_arrivals() -> None:
    """In the same suite, named so; the default is the paper's."""
    for name in ("rivals", "uneven", "packet-loss-llm"):
        for full in (False, True):
            by_arm = {one.workload.options.get("normaliser"): label for label, one in labelled(name, full=full)
                      if one.workload.options["strategy"] == "bounded_drift"}  # fmt: skip
            assert "mean of arrivals" in by_arm["count"] and "mean of arrivals" not in by_arm.get(None, "")


@pytest.mark.parametrize("full", [False, True])
def test_ideas_that_rivals_have_together_stand_there_by_themselves(full: bool) -> None:
    """optireduce is zero for what is missing, and a transform, and a bound on waiting: which of them helps?"""
    found = [settings.read(one.workload.options) for one in experiments("rivals", full=full)]
    have = {(one.strategy, one.rule, one.coding) for one in found}
    for coding in ((), ("hadamard",)):
        assert ("gradient_averaging", "zero", coding) in have
    for strategy in ("gradient_averaging", "bounded_drift"):
        assert (strategy, "own", ("error_feedback",)) in have
    outer = [one.strategy_options for one in found if one.strategy == "local_steps"]
    assert {} in outer and {"outer_lr": 0.7, "outer_momentum": 0.9} in outer


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", CONTRASTS)
def test_a_contrast_has_its_zero_and_the_same_optimizer_for_all(name: str, full: bool) -> None:
    found = experiments(name, full=full)
    free = {settings.read(one.workload.options).strategy for one in found if not any(losses(one))}
    assert free == {settings.read(one.workload.options).strategy for one in found}, "each strategy has its own zero"
    how = {(one.workload.options["optimizer"], one.workload.options["lr"], str(one.workload.options.get("clip_norm")))
           for one in found}  # fmt: skip
    assert len(how) == 1 and "None" in next(iter(how))


def test_contrasts_at_the_papers_rates_have_its_warm_up_and_drops() -> None:
    """As it was, `uneven` trained sixty epochs at rate 1 from the first step to the last."""
    for name in CONTRASTS:
        for one in map(settings.read, (one.workload.options for one in experiments(name, full=True))):
            if one.lr >= 1.0:
                assert (one.schedule, one.warm_up) == ("steps", 0.03125), name


@pytest.mark.parametrize("full", [False, True])
def test_bursts_grow_to_several_blocks(full: bool) -> None:
    """As it was, the full form's ended at two thirds of one."""
    found = experiments("bursty", full=full)
    options = settings.read(found[0].workload.options)
    about: dict[str, Any] = CIFAR if full else load("digits").about
    model = build(options.model, kind="images", about=about)
    block = sum(p.numel() for p in model.parameters()) * 4 / found[0].topology.hosts / PAYLOAD
    longest = max(getattr(one.impair[0].profile.loss, "burst_packets_mean", 0.0) for one in found)
    assert longest > 3 * block > 10


@pytest.mark.parametrize(("row", "strategy"), [("4", "rps"), ("5", "gradient_averaging")])
@pytest.mark.parametrize(
    ("column", "model", "epochs"), [("a", "resnet20", 160), ("b", "resnet110", 160), ("c", "tagger_slots", 20)]
)
def test_a_figure_of_the_rps_paper_is_asked_for_as_it_was(
    row: str, strategy: str, column: str, model: str, epochs: int
) -> None:
    found = experiments(f"rps-figure-{row}{column}", full=True)
    for one in found:
        options = settings.read(one.workload.options)
        assert (options.strategy, options.model, options.epochs, one.topology.hosts) == (strategy, model, epochs, 16)
        assert options.optimizer == "sgd" and not options.optimizer_options and options.clip_norm is None
        assert strategy == "rps" or options.strategy_options == {"owners": "random"}
        if column != "c":  # of ATIS the paper says neither
            assert (options.lr, options.batch, options.schedule) == (4.0, 32, "steps")
            assert options.warm_up == 5 / 160 and options.drop_at == (80 / 160, 120 / 160)
    rates = {(one.impair[0].profile.loss.model, round(100 * losses(one)[0])) for one in found}
    asked = (0, 1, 5, 10, 20, 40) if strategy == "rps" else (0, 1, 5)
    assert {rate for model, rate in rates if model == "iid"} == set(asked)
    assert {rate for model, rate in rates if model == "block"} == set(asked) - {0}


def test_figures_4_and_5_in_one_suite_differ_in_what_is_averaged_alone() -> None:
    """As it was, gradients had fixed owners there, models random ones."""
    by_strategy = {one.workload.options["strategy"]: one for one in experiments("rps-convergence", full=True)}
    assert by_strategy["gradient_averaging"].workload.options["strategy_options"] == {"owners": "random"}
    assert set(by_strategy) == {"rps", "gradient_averaging"}


def test_the_papers_changes_are_held_against_text_of_both_kinds() -> None:
    """Blocks, which is what the paper loses, as well as packets: as it was, blocks had fewer figures. What the abstract
    does not say is a reader's."""
    for full in (False, True):
        by_unit: dict[str, set[tuple[int, str, float]]] = {"iid": set(), "block": set()}
        for one in experiments("packet-loss-llm", full=full):
            unit, percent = one.impair[0].profile.loss.model, round(100 * losses(one)[0])
            by_unit[unit] |= {(percent, claim.measure, claim.change_percent) for claim in one.stated}
            assert all(("reader" in c.source) != (c.at_most and c.change_percent == 0.8) for c in one.stated)
        all_of_them = {(10, "perplexity", 1.17), (40, "perplexity", 6.65)}
        for percent, change in ((10, 0.8), (20, 2.6), (30, 3.8)):
            all_of_them |= {(percent, "perplexity", change), (percent, "fit_perplexity", change)}
        assert by_unit["iid"] == all_of_them
        assert by_unit["block"] == {claim for claim in all_of_them if full or claim[0] in (10, 30)}


def test_the_long_form_loses_packets_and_blocks_at_the_same_rates() -> None:
    """As it was, blocks at 10 and 30 % alone."""
    ours = [one for one in experiments("packet-loss-llm", full=True) if one.workload.options["strategy"] != "reliable"]
    found = {(one.impair[0].profile.loss.model, round(100 * losses(one)[0])) for one in ours}
    assert found == {("iid", 0), *((model, rate) for model in ("iid", "block") for rate in (10, 20, 30, 40))}
