"""What a page says first: made from the numbers, and never surer than they are."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lossbench.report import finding, papers
from lossbench.report.content import Content, gather
from lossbench.report.inference import paired
from lossbench.results.index import read_suite
from lossbench.results.naming import key_of, point_name
from lossbench.spec.asking import points
from lossbench.spec.experiment import Experiment

from . import made

POINTS = [
    {"strategy": "reliable", "percent": 0},
    {"strategy": "rps", "percent": 10},
    {"strategy": "tcp", "percent": 10},
]
SLOWER = {"reliable": 1.0, "rps": 1.1, "tcp": 4.6}
WORSE = {"reliable": 0.0, "rps": 0.0, "tcp": -0.2}


def row(point: dict[str, Any], seed: int) -> dict[str, Any]:
    name = point["strategy"]
    noise = ((seed * 37 + len(name) * 11) % 7 - 3) / 1000
    return {"accuracy": 0.9 + WORSE[name] + noise, "ms_step": (10 + noise) * SLOWER[name]}


def said(folder: Path, seeds: int, row_of: made.Row = row, **changes: Any) -> list[str]:
    place = made.suite(folder, POINTS, seeds, row_of, **changes)
    for number in range(seeds):
        path = place / f"{number:03d}" / "summary.json"
        made.write(path, {**made.read(path), "asked_loss": [0.0]})
    return gather(read_suite(place)).findings


def test_it_says_how_much_longer_and_whether_the_result_is_kept(tmp_path: Path) -> None:
    kept, lost = said(tmp_path, 5)
    assert kept.startswith("Against reliable 0, rps 10 takes 1.10 x the time (1.10 to 1.10, 5 seeds)"), kept
    assert "keeps its accuracy within 5 % (" in kept and ", 5 seeds)" in kept
    assert "tcp 10 takes 4.60 x the time" in lost and "has a worse accuracy (-22." in lost and "p = " in lost


def test_memory_is_no_result_and_a_reader_is_told_why_no_time_is_said(tmp_path: Path) -> None:
    """As it was: "ends with memory mb 319.6 instead of 320" first of all, and not a word about how long it took."""
    columns = {"fault": "valid", "timing": "unknown", "outcome": "valid"}
    numbers = {"wall_s": 9.0, "memory_mb": 320.0, "tcp_resent_percent": 4.0}
    known = {"measures": {name: {"better": "low"} for name in numbers}, "columns": columns}
    found = said(tmp_path, 1, lambda point, seed: {**numbers, "memory_mb": 320.0 + point["percent"]}, **known)
    assert found == [
        "Against reliable 0, rps 10 sends 4 % of its TCP segments again (one seed).",
        "Against reliable 0, tcp 10 sends 4 % of its TCP segments again (one seed).",
        "Times are marked ? and compared with nothing: the machine was too busy for times.",
    ]


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (0.98331, "ends with accuracy 0.98331 instead of 0.98329 (one seed: no test)"),
        (0.98329, "ends with the same accuracy (0.9833, one seed: no test)"),
    ],
)
def test_of_one_seed_the_digits_show_what_differs_or_it_is_called_the_same(
    tmp_path: Path, after: float, words: str
) -> None:
    """As it was: accuracy 0.9833 instead of 0.9833."""
    found = said(tmp_path, 1, lambda point, seed: {"accuracy": after if point["percent"] else 0.98329})
    assert found[0] == f"Against reliable 0, rps 10 {words}."


def asked_for(strategy: str, percent: float, delay_ms: float = 0.0) -> dict[str, Any]:
    """An experiment, as a plan stores it."""
    loss = {"model": "iid", "percent": percent} if percent else None
    profile = {"name": f"{percent} {delay_ms}", "loss": loss, "delay": {"mean_ms": delay_ms} if delay_ms else None}
    return {"name": "made", "workload": {"options": {"strategy": strategy}}, "impair": [{"profile": profile}]}


def found_of(folder: Path, points: list[dict[str, Any]]) -> list[str]:
    """Two seeds of each, a time for each line."""
    times = {key_of(point): 10.0 * (1 + n) for n, point in enumerate(points)}
    place = made.suite(folder, points, 2, lambda point, seed: {"ms_step": times[key_of(point)]})
    told = made.read(place / "suite.json")
    for number, planned in enumerate(told["plan"]):
        planned["experiment"] = asked_for(**planned["point"])
        path = place / f"{number:03d}" / "summary.json"
        made.write(path, {**made.read(path), "asked_loss": [planned["point"]["percent"] / 100]})
    made.write(place / "suite.json", told)
    return [text.partition(" takes")[0] for text in gather(read_suite(place)).findings]


def test_a_line_is_compared_with_its_own_loss_free_line(tmp_path: Path) -> None:
    """As it was: rps under loss against reliable without, whatever rps takes without loss."""
    points = [{"strategy": name, "percent": percent} for name in ("reliable", "rps") for percent in (0, 10)]
    points += [{"strategy": "tcp", "percent": 10}]
    assert found_of(tmp_path, points) == [
        "Against reliable 0, reliable 10",
        "Against rps 0, rps 10",
        "Against reliable 0, tcp 10",
    ]


def test_of_several_loss_free_lines_the_one_with_the_same_delay_is_meant(tmp_path: Path) -> None:
    """As it was: against no loss and no delay."""
    points = [{"strategy": "rps", "percent": percent, "delay_ms": ms} for percent in (0, 5) for ms in (0, 20)]
    assert found_of(tmp_path, points) == ["Against rps 0 0, rps 5 0", "Against rps 0 20, rps 5 20"]


def of_one_seed(folder: Path, means: dict[str, float]) -> list[str]:
    """Steps of one run each, with a spread of a tenth; by the strategy how long they take."""
    place = made.suite(folder, POINTS, 1, lambda point, seed: {"accuracy": 0.9, "ms_step_mean": 1.0})
    for number, point in enumerate(POINTS):
        path, mean = place / f"{number:03d}" / "summary.json", means[point["strategy"]]
        numbers = np.random.default_rng(number).normal(mean, mean / 10, 400)
        told = {**made.read(path), "asked_loss": [point["percent"] / 100]}
        told["rows"][0]["ms_step_mean"] = float(numbers.mean())
        made.write(path, told)
        made.samples(place / f"{number:03d}", "step_ms", numbers)
    return gather(read_suite(place)).findings


def test_one_seed_says_of_a_time_only_what_lies_far_apart_by_its_steps(tmp_path: Path) -> None:
    """As it was: 0.82 x the time (one seed), which was the noise of a busy machine."""
    near, far, why = of_one_seed(tmp_path, {"reliable": 10.0, "rps": 8.2, "tcp": 46.0})
    assert near == "Against reliable 0, rps 10 ends with the same accuracy (0.9, one seed: no test)."
    ends = re.search(r"takes (4\.\d\d) x the time \((4\.\d\d) to (4\.\d\d) by its steps, one seed\)", far)
    assert ends and float(ends[2]) < float(ends[1]) < float(ends[3]), far
    assert why == "Times of rps 10 are compared with nothing: one seed can't tell (--seeds 3)."


def test_one_seed_without_samples_says_nothing_of_time(tmp_path: Path) -> None:
    """A whole program's duration is one number: nobody knows what its next run takes."""
    first, _, why = said(tmp_path, 1)
    assert "the time" not in first and "(one seed: no test)" in first
    assert why == "Times are compared with nothing: one seed can't tell (--seeds 3)."


def test_a_line_whose_times_are_unknown_says_so(tmp_path: Path) -> None:
    """As it was: its sentence left the time out, and nobody was told that there was none."""
    place = made.suite(tmp_path, POINTS, 2, row)
    for number in range(len(POINTS) * 2):
        path = place / f"{number:03d}" / "summary.json"
        told = made.read(path)
        busy = "unknown" if told["point"]["strategy"] == "rps" else "valid"
        told |= {"asked_loss": [told["point"]["percent"] / 100]}
        made.write(path, {**told, "columns": {**told["columns"], "timing": busy}})
    kept, lost, why = gather(read_suite(place)).findings
    assert "rps 10" in kept and "the time" not in kept and "the time" in lost
    assert why == "Times of rps 10 are marked ? and compared with nothing: the machine was too busy for times."


def test_times_of_a_busy_machine_are_not_found_anything(tmp_path: Path) -> None:
    columns = {"fault": "valid", "timing": "unknown", "outcome": "valid"}
    first, _, why = said(tmp_path, 3, columns=columns)
    assert "the time" not in first and "accuracy" in first and "too busy" in why


@pytest.mark.parametrize("verdict", ["failed", "unknown"])
def test_of_what_was_not_proven_nothing_is_found(tmp_path: Path, verdict: str) -> None:
    columns = {"fault": verdict, "timing": "valid", "outcome": "valid"}
    assert said(tmp_path, 3, columns=columns, verdict=verdict) == []


def test_equal_times_are_called_equal(tmp_path: Path) -> None:
    def alike(point: dict[str, Any], seed: int) -> dict[str, Any]:
        return {"ms_step": 10 + ((seed * 37 + len(point["strategy"]) * 11) % 7 - 3) / 10}

    assert "takes as long (" in said(tmp_path, 5, alike)[0]


@pytest.mark.parametrize("of_before", [False, True])
def test_times_are_compared_by_the_mean_step_where_it_was_kept(of_before: bool, tmp_path: Path) -> None:
    """As it was, by the median: whoever waits long now and then took as long as whoever never does."""

    def bursty(point: dict[str, Any], seed: int) -> dict[str, Any]:
        mean = {} if of_before else {"ms_step_mean": 10.0 * SLOWER[point["strategy"]]}
        return {"ms_step": 10.0 + seed / 100, **mean}

    lost = said(tmp_path, 2, bursty)[1]
    assert ("tcp 10 takes 4.60 x the time" in lost) is not of_before and ("takes as long" in lost) is of_before


def test_contenders_in_turns_are_compared_at_the_highest_loss_even_on_a_busy_machine(tmp_path: Path) -> None:
    def rows(contender: str, ms: float) -> dict[str, Any]:
        return {"contender": contender, "p50_ms": ms, "n": 100, "shown": ["contender", "p50_ms"]}

    points = [{"percent": p} for p in (0, 10)]
    place, rng = made.suite(tmp_path, points, 1, lambda point, seed: {}), np.random.default_rng(5)
    for number, slow in ((0, 1.0), (1, 5.0)):
        path = place / f"{number:03d}" / "summary.json"
        found = [rows("lossy", 10.0), rows("gloo", 10 * slow), rows("nccl", 11.0)]
        asked = {"asked_loss": [0.1 * number], "rows": found, "marks": ["ratios only"]}
        made.write(path, {**made.read(path), **asked})
        for one in found:
            numbers = rng.normal(one["p50_ms"], one["p50_ms"] / 20, 101)
            made.samples(path.parent, f"{one['contender']}_ms", numbers)
    text, why = gather(read_suite(place)).findings
    known = r"At 10, against lossy: gloo takes 5\.00 x the time \(4\.[89]\d to 5\.[01]\d by its turns, one seed\)\."
    assert re.fullmatch(known, text), text
    assert why == "Times of nccl are compared with nothing: one seed can't tell (--seeds 3)."


def test_an_interval_that_says_nothing_is_not_called_equal(tmp_path: Path) -> None:
    def wild(point: dict[str, Any], seed: int) -> dict[str, Any]:
        return {"ms_step": 10.0 * (4.0 ** ((seed * 7 + len(point["strategy"])) % 3))}

    assert "seeds can't tell" in said(tmp_path, 3, wild)[0]


def test_a_result_that_is_down_by_half_is_not_called_kept_because_seeds_are_few(tmp_path: Path) -> None:
    """As it was: keeps its accuracy as far as 3 seeds can tell (-52.7 % ± 36.8 %)."""

    def half(point: dict[str, Any], seed: int) -> dict[str, Any]:
        return {"accuracy": 0.42 + (seed - 1) / 10 if not point["percent"] else 0.2 - (seed - 1) / 50}

    assert "may keep its accuracy or not: 3 seeds can't tell (-52.4 % ± " in said(tmp_path, 3, half)[0]


def test_a_result_that_is_the_same_in_every_seed_is_kept_even_if_it_is_nothing(tmp_path: Path) -> None:
    found = said(tmp_path, 3, lambda point, seed: {"accuracy": 0.0})[0]
    assert "keeps its accuracy (0 in all 3 seeds)" in found


def test_workers_that_part_are_named_even_if_the_result_looks_well(tmp_path: Path) -> None:
    def drifting(point: dict[str, Any], seed: int) -> dict[str, Any]:
        later = {"reliable": 0.0, "rps": 0.1, "tcp": 0.9}[point["strategy"]]
        return {"accuracy": 0.9, "drift_first": 0.2 if later else 0.0, "drift_last": later}

    together, parted = said(tmp_path, 3, drifting)
    assert "apart" not in together and "its workers drift apart (0.2 at first, 0.9 later)" in parted


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        (2, "may keep its accuracy or not: 2 seeds"),
        (6, "keeps its accuracy within 5 %"),
        (0, "keeps its accuracy (0.9"),
    ],
)
def test_what_moved_alike_in_few_seeds_is_not_called_kept(seeds: int, said: str) -> None:
    """As it was: -.5 points in both of two seeds, of whose spread nothing is known: "keeps its accuracy within 5 %"."""
    before = dict.fromkeys(range(seeds or 2), 0.9)
    change = paired(before, {seed: value - (0.005 if seeds else 0.0) for seed, value in before.items()})
    assert change is not None and said in finding._undecided("accuracy", "-0.6 %", change)
    claim = papers._verdict(change, -1.0, better_high=True, at_most=True)
    assert ("not decidable" in claim) == (seeds == 2), claim


def of_many(folder: Path, contenders: int, subject: str = "") -> Content:
    """Lines c0, c1, ... with and without loss; c1 is much worse under it, and what the suite is about the last."""
    points = [{"strategy": f"c{n}", "percent": percent} for n in range(contenders) for percent in (0, 10)]

    def of(point: dict[str, Any], seed: int) -> dict[str, Any]:
        noise = ((seed * 37 + int(point["strategy"][1:]) * 11) % 7 - 3) / 1000
        worse = 0.3 if point["strategy"] == "c1" else 0.0
        return {"accuracy": 0.9 + noise - (worse + seed / 1000 if point["percent"] else 0.0)}

    place = made.suite(folder, points, 3, of)
    told = made.read(place / "suite.json")
    for number, planned in enumerate(told["plan"]):
        planned["experiment"] = asked_for(**planned["point"]) | ({"subject": [subject]} if subject else {})
        path = place / f"{number:03d}" / "summary.json"
        made.write(path, {**made.read(path), "asked_loss": [planned["point"]["percent"] / 100]})
    made.write(place / "suite.json", told)
    return gather(read_suite(place))


def test_what_a_suite_is_about_is_said_first_and_then_what_surely_differs(tmp_path: Path) -> None:
    """As it was: four sentences in the table's order, and "1 more line in the table below" was bounded_drift's."""
    said = of_many(tmp_path / "a", 7, "c6").findings
    assert [text.split(",")[1].split()[0] for text in said[:3]] == ["c6", "c1", "c0"] and len(said) == 7
    assert of_many(tmp_path / "b", 3).findings[0].startswith("Against c0 0, c0 10"), "few are in the table's order"


def test_no_line_takes_the_place_of_the_only_one_that_it_hides(tmp_path: Path) -> None:
    five, seven = of_many(tmp_path / "a", 5), of_many(tmp_path / "b", 7)
    assert five.brief == five.findings and len(five.findings) == 5
    assert seven.brief == seven.findings[:4]


def test_what_a_suite_says_it_is_about_is_among_its_points() -> None:
    """And every suite says it whose lines of one loss are several, but for those that speak of a service or of sides
    measured in turns: they have an order of their own."""
    for name in points.suite_names():
        for full in (False, True):
            if full and "[full]" not in points.find(name).read_text():
                continue
            found = points.points(points.find(name), settings=[], full=full)
            names, first = [point_name(one) for one, _ in found], found[0][1]
            assert all(any(word in re.split(r"[\s:]+", name) for name in names) for word in first.subject), (
                name,
                names,
            )
            others = bool(first.beside) or first.workload.name != "training"
            several = max(Counter(map(worst_of, (one for _, one in found))).values()) > 1
            assert first.subject or others or not several, name


def worst_of(experiment: Experiment) -> str:
    return " ".join(str(one.profile.loss) for one in experiment.impair)
