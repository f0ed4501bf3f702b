"""Service and learning in one table: what is compared with what, and what is read off the curve."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from lossbench.report import page
from lossbench.report.content import gather
from lossbench.report.gathered import Gathered
from lossbench.report.groups import groups_of
from lossbench.report.plots.figures import all_pictures
from lossbench.report.plots.over_time import lost_by_class, read
from lossbench.report.service import claims
from lossbench.report.service.arms import Arm, arms_of, curve, falling, loads, partner, ratio, speed_up_at, taken_back
from lossbench.report.service.cost import carried, costs
from lossbench.report.tables.colocation import colocation, cost
from lossbench.report.tables.slowdowns import slowdowns
from lossbench.report.tables.table import terminal
from lossbench.results.index import Suite, read_suite
from tests.report import made

ARMS = {"web alone": 1.0, "shared": 0.0, "middle": 0.5, "strict": 1.0}
MEAN = {"web alone": 100.0, "shared": 300.0, "middle": 200.0, "strict": 110.0}
LOSS = {"shared": 0.0, "middle": 0.08, "strict": 0.28}


def stored(folder: Path, seeds: int = 3, buffer_kb: float = 180) -> Suite:
    """A suite of four arms; every seed is a little slower than the one before."""
    place = made.suite(folder, [{"arm": name} for name in ARMS], seeds, lambda point, seed: {}, name="colo")
    summaries = []
    for number in range(len(ARMS) * seeds):
        run = place / f"{number:03d}"
        one = json.loads((run / "summary.json").read_text())
        name, seed = one["point"]["arm"], one["seed"]
        web = {"mean_ms": MEAN[name] * (1 + 0.01 * seed), "p99_ms": 5 * MEAN[name], "n": 5000, "n_independent": 900}
        web |= {
            "offered": 200.0,
            "equivalent": 10000.0,
            "factor": 50.0,
            "slowdown_by_decile": [[1000, 2.5], [50000, 4.0]],
        }
        rows: list[dict[str, Any]] = [
            {f"web.{key}": value for key, value in web.items()} | {"beside": "web", "web.at": "200/s"}
        ]
        rows[0]["shown"] = ["web.at", "web.mean_ms"]
        if name in LOSS:
            row = {"what": "learning", "learning_loss": LOSS[name]}
            rows.append({**row, "shown": list(row)})
        one["rows"] = rows
        made.write(run / "summary.json", one)
        summaries.append(one)
        experiment = {
            "name": "colo",
            "topology": {"hosts": 16},
            "shaping": {"priority": ARMS[name], "buffer_kb": buffer_kb},
        }
        experiment["workload"] = {"name": "replay", "options": {"mbit": 0 if name == "web alone" else 48}}
        made.write(run / "manifest.json", {"seed": seed, "experiment": experiment, "profiles": {}})
    made.write(
        place / "summary.json", {"run_id": "abc123", "verdict": "valid", "dir": str(place), "summary": summaries}
    )
    return read_suite(place)


def test_every_arm_is_compared_with_one_queue_for_all_and_with_the_service_alone(tmp_path: Path) -> None:
    arms = {arm.name: arm for arm in arms_of(groups_of(stored(tmp_path)))}
    assert list(arms) == list(ARMS) and arms["web alone"].alone and arms["shared"].shared
    (load,) = loads(arms.values())
    found = curve(list(arms.values()), load)
    assert [(arm.name, loss, round(speed.mean, 3)) for arm, loss, speed in found] == [
        ("shared", 0.0, 1.0),
        ("middle", 0.08, 1.5),
        ("strict", 0.28, round(300 / 110, 3)),
    ]
    back = taken_back(arms["strict"], arms["shared"], arms["web alone"])
    assert back is not None and back.mean == pytest.approx(0.95) and back.n == 3


def test_a_replay_that_saturates_is_no_point_of_the_curve_and_its_tail_is_judged(tmp_path: Path) -> None:
    suite = stored(tmp_path)
    for run in (one for one in suite.runs if one.summary.point["arm"] == "middle"):
        run.manifest["experiment"]["workload"]["options"]["saturate"] = True
    arms = arms_of(groups_of(suite))
    assert [arm.name for arm, _, _ in curve(arms, next(iter(loads(arms))))] == ["shared", "strict"]
    assert claims.tail_against_alone(arms[2], arms) is not None


def test_a_service_whose_mean_is_not_known_is_still_the_service(tmp_path: Path) -> None:
    """As it was: what has no mean was taken for the learner beside it."""
    suite = stored(tmp_path)
    for run in suite.runs:
        del run.summary.rows[0]["web.mean_ms"]
    arms = arms_of(groups_of(suite))
    assert [arm.name for arm in arms] == list(ARMS) and "p99_ms" in arms[1].web and not arms[1].learning.get("web.n")


def test_the_speed_up_at_a_loss_lies_between_its_neighbours(tmp_path: Path) -> None:
    arms = arms_of(groups_of(stored(tmp_path)))
    (load,) = loads(arms)
    at = speed_up_at(arms, load)
    assert at is not None and at.mean == pytest.approx(1.5 + (300 / 110 - 1.5) * 0.1, rel=1e-6)
    assert speed_up_at(arms, load, loss=0.9) is None, "not beyond the curve"


def by_seed(name: str, means: list[float], losses: list[float], *, priority: float, alone: bool = False) -> Arm:
    arm = made_arm(200, 0.0, priority=priority)
    arm.name, arm.alone, arm.web["mean_ms"], arm.loss = name, alone, dict(enumerate(means)), dict(enumerate(losses))
    return arm


def test_no_seed_is_left_out_for_how_it_came_out() -> None:
    """As it was: a seed in which sharing cost nothing, and one whose curve ended below 10 %, were dropped unsaid."""
    shared = by_seed("shared", [200, 220, 99], [0.0, 0.0, 0.0], priority=0)
    strict = by_seed("strict", [110, 120, 90], [0.3, 0.32, 0.09], priority=1)
    alone = by_seed("alone", [100, 110, 100], [], priority=1, alone=True)
    arms = [shared, strict, alone]
    back = taken_back(strict, shared, alone)
    assert back is not None and back.n == 3 and back.mean == pytest.approx((90 + 100 + 9) / (100 + 110 - 1))
    assert back.method == "Fieller" and back.low is None, "what sharing costs can't be told from nothing"
    at = speed_up_at(arms, shared.load)
    assert at is not None and at.n == 3 and at.method == "jackknife"
    assert claims.times(at, 5).endswith("3 of 5 seeds)")
    shared.web["mean_ms"][2], shared.loss = 210, {0: 0.0, 1: 0.0, 2: 0.0}
    back = taken_back(strict, shared, alone)
    assert back is not None and back.low is not None and back.high is not None and back.low < back.mean < back.high


def test_a_curve_that_surely_falls_is_said() -> None:
    shared = by_seed("shared", [200, 210, 220], [0, 0, 0], priority=0)
    middle = by_seed("middle", [100, 105, 110], [0.1, 0.1, 0.1], priority=0.5)
    strict = by_seed("strict", [120, 127, 131], [0.2, 0.2, 0.2], priority=1)
    ((before, after, by),) = falling([shared, middle, strict], shared.load)
    assert (before.name, after.name) == ("middle", "strict") and by.mean < 1
    strict.web["mean_ms"] = {0: 90, 1: 120, 2: 100}
    assert not falling([shared, middle, strict], shared.load), "it may be by chance"


@pytest.mark.parametrize(
    ("tail", "verdict"),
    [
        ([104, 103, 105], "within 15%"),
        ([130, 131, 129], "beyond 15%"),
        ([100, 120, 109], "if within 15% so few seeds can't tell"),
        ([104], "if within 15% one seed can't tell"),
    ],
)
def test_a_tail_is_judged_by_the_ends_of_its_interval(tail: list[float], verdict: str) -> None:
    """As it was: by a point estimate in the docs, and of replayed learning not at all."""
    strict, alone = (by_seed(name, [], [], priority=1, alone=name == "alone") for name in ("strict", "alone"))
    strict.web["p99_ms"], alone.web["p99_ms"] = dict(enumerate(tail)), dict(enumerate([100.0] * len(tail)))
    (said,) = claims.tails([strict, alone])
    assert said.startswith("With strict the service's p99 is ") and said.endswith(f"x what it is alone: {verdict}.")


def test_tails_are_compared_over_the_time_that_both_arms_have(tmp_path: Path) -> None:
    """As it was: of arms that lasted differently, over different requests."""
    strict, alone = (by_seed(name, [], [], priority=1, alone=name == "alone") for name in ("strict", "alone"))
    for arm, ends in ((strict, (5.0, 40.0)), (alone, (0.0, 20.0))):
        arm.web["p99_ms"] = {0: 999.0 if arm is strict else 100.0}
        arm.web["steady_from_s"], arm.web["steady_to_s"] = {0: ends[0]}, {0: ends[1]}
        arm.places = {0: tmp_path / arm.name}
        arm.places[0].mkdir()
        at = np.arange(0, ends[1], 0.01)
        took = np.where((at < 5) | (at > 20), 1000.0, 110.0 if arm is strict else 100.0)
        for name, values in (("at_s", at), ("completion_ms", took)):
            made.samples(arm.places[0], f"web.{name}", values)
    found = claims.tail_against_alone(strict, [strict, alone])
    assert found is not None and found.mean == pytest.approx(1.1)
    strict.web["steady_from_s"] = {0: 19.5}
    assert claims.tail_against_alone(strict, [strict, alone]) is None, "next to nothing in common"


@pytest.mark.parametrize("of", ["too few", "pages", "one in fifty unanswered"])
def test_no_tail_is_made_of_too_few_of_other_things_or_of_the_lucky_seeds(tmp_path: Path, of: str) -> None:
    """As it was: of 150 requests in common the slowest was called p99; of pages it was that of requests; and a seed
    with too many that were never answered was left out, so the luckier ones said "within 15%"."""
    strict, alone = (by_seed(name, [], [], priority=1, alone=name == "alone") for name in ("strict", "alone"))
    for arm, begins in ((strict, 0.0), (alone, 18.5 if of == "too few" else 2.0)):
        for seed in (0, 1):
            arm.web.setdefault("p99_ms", {})[seed] = 100.0
            arm.web.setdefault("steady_from_s", {})[seed] = begins
            arm.web.setdefault("steady_to_s", {})[seed] = 20.0
            arm.web.setdefault("pages_failed", {}).update({seed: 0.0} if of == "pages" else {})
            arm.places[seed] = tmp_path / f"{arm.name}{seed}"
            arm.places[seed].mkdir()
            at = np.arange(0, 20, 0.01)
            made.samples(arm.places[seed], "web.at_s", at)
            made.samples(arm.places[seed], "web.completion_ms", np.full(len(at), 100.0))
            lost = np.arange(4, 4.4, 0.01) if (arm, seed) == (strict, 1) and of.startswith("one") else np.empty(0)
            made.samples(arm.places[seed], "web.lost_s", lost)
    assert claims.tail_against_alone(strict, [strict, alone]) is None


def test_a_seed_that_carries_more_than_was_tried_is_not_left_out_of_what_is_carried() -> None:
    """As it was: the mean of the two seeds that carried less, "2 of 3" as if a run were missing."""
    arms = [made_arm(rate, rate / 80, priority=priority) for priority in (0.0, 1.0) for rate in (100, 300, 420)]
    for arm in arms:
        arm.web["mean_ms"] = dict.fromkeys(range(3), arm.web["mean_ms"][0])
    sure = {(one.target_ms, one.priority): one for one in costs(arms)}[5.0, 1.0]
    assert sure.rate is not None and sure.rate.n == 3 and sure.cost is not None
    arms[-1].web["mean_ms"][2] *= 0.9  # 4.7 ms at the last rate: below the target
    found = {(one.target_ms, one.priority): one for one in costs(arms)}
    assert (
        found[5.0, 1.0].rate is None and found[5.0, 1.0].cost is None and found[5.0, 1.0].beyond.startswith("above 4")
    )
    assert found[5.0, 0.0].rate is not None, "the other degree is what it was"


def test_arms_that_were_not_served_alike_are_named() -> None:
    arms = [by_seed(name, [], [], priority=1) for name in ("shared", "strict", "alone")]
    for arm, which in zip(arms, ("nginx", "nginx", "builtin"), strict=True):
        arm.served = frozenset({which})
    (said,) = claims.served(arms)
    assert "(nginx: shared, strict; builtin: alone)" in said
    assert not claims.served(arms[:2])


def test_accuracy_beside_a_service_is_judged_against_training_that_nothing_contends_with(tmp_path: Path) -> None:
    """As it was: the bar of the suite was printed nowhere, and the baseline was TCP beside the service."""
    lower = {"strict: reliable (TCP)": 0.0, "uncontended": 0.0, "strict: bounded_drift": 0.002, "strict: sgd": 0.03}

    def row(point: dict[str, Any], seed: int) -> dict[str, Any]:
        name = point["arm"]
        learned = 0.9 - lower[name] * (1 + 0.1 * seed) + 0.001 * seed
        return {"strategy": name.split()[-1], "accuracy": learned, "arrived_1": 0.8, "arrived_2": 0.8}

    place = made.suite(tmp_path, [{"arm": name} for name in lower], 3, row, asked_loss=[0.0])
    for path in sorted(place.glob("0*/summary.json")):
        one = made.read(path)
        web = {"web.at": "50/s", "web.offered": 50.0, "web.n": 900, "web.mean_ms": 100.0, "beside": "web"}
        one["rows"].append(web | {"shown": ["web.at", "web.mean_ms"]})
        made.write(path, one)
        experiment = {"shaping": {"priority": 1}, "workload": {"name": "training"}}
        made.write(path.with_name("manifest.json"), {"seed": one["seed"], "experiment": experiment, "profiles": {}})
    content = gather(read_suite(place))
    (said,) = [text for text in content.findings if text.startswith("Accuracy against uncontended")]
    assert "strict: bounded_drift -0.22 (-0.27 to -0.17, 3 seeds): within 1;" in said
    assert "strict: sgd -3.30 (" in said and said.endswith("): beyond 1.") and "uncontended +0" not in said
    assert "against 'uncontended" in content.named["differences"].title
    assert not any(row[0].text.endswith("50/s") for row in content.named["differences"].rows), "another program"


def test_arms_with_another_buffer_are_another_curve(tmp_path: Path) -> None:
    arms = [arm for kb in (90, 180) for arm in arms_of(groups_of(stored(tmp_path / str(kb), buffer_kb=kb)))]
    assert sorted(loads(arms).values()) == ["10000/s, 180 kB", "10000/s, 90 kB"]
    assert all(len(curve(arms, load)) == 3 for load in loads(arms))


def test_a_rate_whose_own_loss_is_not_known_has_none(tmp_path: Path) -> None:
    """As it was: that of the whole run, in which the other rates were."""
    suite = stored(tmp_path)
    for run in suite.runs:
        first = run.summary.rows[0]
        run.summary.rows.insert(1, {**first, "web.at": "300/s", "web.offered": 300.0, "web.learning_loss": 0.2})
    arms = [arm for arm in arms_of(groups_of(suite)) if arm.name.startswith("middle")]
    assert [set(arm.loss.values()) for arm in arms] == [set(), {0.2}]


def too_busy(suite: Suite) -> Suite:
    for run in suite.runs:
        run.summary.columns["timing"] = "unknown"
    return suite


def test_what_came_out_for_the_service_is_said_first(tmp_path: Path) -> None:
    """As it was: a page of a web service began without a finding."""
    at_loss, strict, tail = gather(stored(tmp_path)).findings
    assert at_loss.startswith("At 10% of learning loss and 10000/s the service is 1.62 (")
    assert strict.startswith("Against shared, with strict, the service is 2.73 (2.73 to 2.73, 3 seeds) x as fast, and")
    assert strict.endswith("learning loses 28 % of its packets instead of 0 %.")
    assert tail == "With strict the service's p99 is 1.10 (1.10 to 1.10, 3 seeds) x what it is alone: within 15%."
    busy = gather(too_busy(stored(tmp_path / "busy"))).findings
    assert busy[0] == "Against shared, with strict, learning loses 28 % of its packets instead of 0 %."
    assert busy[1].startswith("How fast the service was is not said: the machine was too busy")
    assert "2.73 (one seed) x as fast" in gather(stored(tmp_path / "one", seeds=1)).findings[1]


def test_step_times_of_a_busy_machine_are_in_the_table_with_a_question_mark(tmp_path: Path) -> None:
    """As it was: the column was not there."""
    suite = too_busy(stored(tmp_path, seeds=1))
    for run in suite.runs:
        run.summary.rows.append({"strategy": "rps", "ms_step": 250.0, "shown": ["strategy", "ms_step"]})
    table = colocation(Gathered(suite=suite, groups=groups_of(suite), sets=[]))
    assert table is not None and table.head[-1] == "step ms"
    assert {row[-1].text for row in table.rows} == {"250?"}


def test_a_search_is_drawn_by_rate_and_what_was_asked_for_is_no_picture(tmp_path: Path) -> None:
    """As it was: "offered by shaping priority", a flat line for every rate that was offered."""
    points = [{"shaping.priority": priority} for priority in (0, 0.5, 1)]
    place = made.suite(tmp_path, points, 1, lambda point, seed: {}, name="cost")
    for number, point in enumerate(points):
        run = place / f"{number:03d}"
        one = json.loads((run / "summary.json").read_text())
        one["rows"] = [
            {
                "beside": "web",
                "web.at": f"{rate}/s",
                "web.offered": float(rate),
                "web.equivalent": 50.0 * rate,
                "web.factor": 50.0,
                "web.n": 5000,
                "web.n_independent": 900,
                "web.mean_ms": 2.0 * rate / (1 + point["shaping.priority"]),
                "web.learning_loss": rate / 1000 * point["shaping.priority"],
                "shown": ["web.at", "web.offered", "web.mean_ms"],
            }
            for rate in (20, 200, 340)
        ]
        made.write(run / "summary.json", one)
        experiment = {"name": "cost", "topology": {"hosts": 16}, "shaping": {"buffer_kb": 180, "priority": number / 2}}
        experiment["workload"] = {"name": "replay", "options": {"mbit": 48}}
        made.write(run / "manifest.json", {"seed": 0, "experiment": experiment, "profiles": {}})
    found = gather(read_suite(place))
    assert all(text.startswith("At a mean completion of ") for text in found.findings), "what a search found, not each"
    assert "(one seed)" in found.findings[0] and "at the modelled speed" in found.findings[0]
    pictures = {one.name: one for one in all_pictures(found)}
    assert "sweep" not in pictures
    completion, lost = pictures["by_rate"].panels
    assert [key.name for key in lost.keys] == ["one queue for all", "priority 0.5", "priority 1"]
    assert completion.keys[-1].x == (1000, 10000, 17000) and completion.keys[-1].y == (0.4, 4.0, 6.8)


def made_arm(rate: float, mean_ms: float, *, priority: float, buffer_kb: float = 180, queue: str = "fifo") -> Arm:
    """Of one seed, at the modelled speed."""
    arm = Arm(
        name=f"{priority} {queue}",
        load=(rate, buffer_kb, 16),
        equivalent=rate,
        factor=1.0,
        priority=priority,
        alone=False,
        learner="",
        queue=queue,
    )
    arm.web, arm.loss = {"mean_ms": {0: mean_ms}}, {0: priority / 4}
    return arm


def test_fq_codel_is_not_one_queue_for_all() -> None:
    """As it was: whichever of both came first was what all others were compared with."""
    fair, shared, strict = (
        made_arm(100, 9.0, priority=0, queue="fq_codel"),
        made_arm(100, 8.0, priority=0),
        made_arm(100, 4.0, priority=1),
    )
    arms = [fair, shared, strict]
    assert not fair.shared and partner(strict, arms) is shared and partner(fair, arms) is shared
    assert [arm for arm, _, _ in curve(arms, shared.load)] == [shared, strict]


def test_costs_with_two_buffers_are_two_curves() -> None:
    """As it was: rates of both were one ladder."""
    means = {90: {0.0: 1.0, 1.0: 0.5}, 360: {0.0: 4.0, 1.0: 1.0}}
    arms = [
        made_arm(rate, rate / 100 * slope, priority=priority, buffer_kb=kb)
        for kb, slopes in means.items()
        for priority, slope in slopes.items()
        for rate in (50, 100, 200, 400)
    ]
    found = {(one.apart, one.priority): one for one in costs(arms) if one.target_ms == 2.0}
    assert {key: (one.loss.mean, one.cost.mean) for key, one in found.items() if one.loss and one.cost} == {
        ("90 kB", 0.0): (0.0, pytest.approx(1.0)),
        ("90 kB", 1.0): (0.25, pytest.approx(0.5)),
        ("360 kB", 0.0): (0.0, pytest.approx(1.0)),
        ("360 kB", 1.0): (0.25, pytest.approx(0.25)),
    }
    assert {one.apart for one in costs([arm for arm in arms if arm.load[1] == 90])} == {""}, "nothing to tell apart"


def test_a_target_that_was_not_reached_says_on_which_side() -> None:
    arms = [made_arm(rate, rate / 100, priority=priority) for priority in (0.0, 1.0) for rate in (300, 350, 400)]
    beyond = {one.target_ms: one.beyond for one in costs(arms)}
    assert beyond == {2.0: "below 300", 5.0: "above 400", 10.0: "above 400"}


def test_what_a_message_costs_is_a_table_with_what_was_carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arms = [
        made_arm(rate, rate / 100 * (1 - 0.5 * priority), priority=priority)
        for priority in (0.0, 1.0)
        for rate in (100, 200, 700)
    ]
    monkeypatch.setattr("lossbench.report.tables.colocation.arms_of", lambda groups, believed=True: arms)
    suite = stored(tmp_path)
    table = cost(Gathered(suite=suite, groups=groups_of(suite), sets=[]))
    assert table is not None
    said = {row[0].text: [cell.text.split("\n")[0] for cell in row[1:]] for row in table.rows}
    assert table.head[1] == "n" and said["2 ms, priority 0"] == ["1 of 3", "200", "0", "1", "100 to 200"]
    assert said["2 ms, priority 1"][2::2] == ["0.25", "200 to 700"]
    assert said["10 ms, priority 1"][:2] == ["0 of 3", "above 700"]


def test_a_rate_is_carried_where_learning_never_paused_and_only_its_loss_is_not_known() -> None:
    """As it was: such a rate was no rung of the ladder, and what is carried was "above" the one below it."""
    arms = [made_arm(rate, rate / 100, priority=priority) for priority in (0.0, 1.0) for rate in (100, 200, 300, 700)]
    arms[-1].loss = {}
    found = {(one.target_ms, one.priority): one for one in costs(arms)}
    assert (rate := found[5.0, 1.0].rate) is not None and rate.mean == pytest.approx(
        300 + 400 * math.log(5 / 3) / math.log(7 / 3)
    )
    assert found[5.0, 1.0].loss is None and found[5.0, 1.0].cost is not None
    assert (loss := found[2.0, 1.0].loss) is not None and loss.mean == 0.25


def test_a_rate_that_is_void_is_not_bridged() -> None:
    """As it was: the line between its neighbours, as if it had not been tried."""
    arms = [made_arm(rate, rate / 100, priority=priority) for priority in (0.0, 1.0) for rate in (100, 300, 400, 700)]
    arms[-2].web["mean_ms"], arms[-2].void = {}, frozenset({0})
    found = {(one.target_ms, one.priority): one for one in costs(arms)}
    assert found[5.0, 1.0].rate is None and found[5.0, 1.0].beyond == "300 to 700"
    assert found[5.0, 0.0].between == "400 to 700" and found[2.0, 1.0].between == "100 to 300"
    assert found[2.0, 1.0].rate is not None, "elsewhere it says nothing"


def in_rates(folder: Path, **changes: Any) -> Suite:
    """Two degrees of priority, three rates each, in one run; as `colocation-cost` makes them."""
    points = [{"shaping.priority": 0.0}, {"shaping.priority": 1.0}]
    place = made.suite(folder, points, 1, lambda point, seed: {}, name="cost", **changes)
    for number, point in enumerate(points):
        run, priority = place / f"{number:03d}", point["shaping.priority"]
        one = made.read(run / "summary.json")
        one["rows"] = [
            {
                "web.at": f"{rate}/s",
                "web.n": 900,
                "web.offered": rate,
                "web.equivalent": 50.0 * rate,
                "web.factor": 50.0,
            }
            | {"web.mean_ms": rate * (2 - priority), "web.learning_loss": priority / 4, "beside": "web"}
            | {"shown": ["web.at", "web.mean_ms"]}
            for rate in (40, 140, 280)
        ]
        made.write(run / "summary.json", one)
        shaping = {"priority": priority, "buffer_kb": 180}
        experiment = {"shaping": shaping, "workload": {"name": "replay", "options": {"mbit": 48}}}
        made.write(run / "manifest.json", {"seed": 0, "experiment": experiment, "profiles": {}})
    return read_suite(place)


def test_rates_of_a_run_whose_outcome_nobody_believes_keep_their_names(tmp_path: Path) -> None:
    """As it was: "0.5 at nan/s"."""
    suite = in_rates(tmp_path)
    for run in suite.runs:
        run.summary.columns["outcome"] = "unknown"
    names = [arm.name for arm in arms_of(groups_of(suite))]
    assert len(names) == 6 and not any("nan" in name for name in names), names


def test_a_page_of_a_service_leads_from_its_numbers_to_their_runs(tmp_path: Path) -> None:
    """As it was: no page at all, `KeyError: 'folders'`, for every suite with a web service in it."""
    suite = in_rates(tmp_path)
    content = gather(suite)
    page.write([content], [], tmp_path / "page.html")
    assert "what a message costs" in (tmp_path / "page.html").read_text()
    for name in ("colocation", "cost"):
        assert content.named[name].tidy and all(line["folders"] for line in content.named[name].tidy)


def test_numbers_of_a_busy_machine_are_shown_with_a_question_mark_and_why(tmp_path: Path) -> None:
    """As it was: a table of dashes, and no word of why."""
    columns = {"fault": "valid", "timing": "unknown", "outcome": "valid"}
    content = gather(in_rates(tmp_path, columns=columns))
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in content.named["cost"].rows}
    assert rows["5 ms, priority 0"] == ["0 of 1", "6548?", "0?", "1?", "2000 to 7000"]
    assert rows["5 ms, priority 1"] == ["0 of 1", "12856?", "0.25?", "0.5093?", "7000 to 14000"]
    assert rows["10 ms, priority 1"][1] == "above 14000?"
    for name in ("colocation", "cost"):
        table = content.named[name]
        assert any(note.startswith("?: not averaged: the machine") for note in table.notes)
        assert not [line for line in table.tidy if line["measure"] in ("mean_ms", "carried", "cost")]
    service = content.named["colocation"]
    assert [row[0].text for row in service.rows][:2] == ["priority 0.0 at 40/s", "priority 0.0 at 140/s"]
    assert service.head == ["arm", "n", "mean_ms", "learning loss"], "columns that say nothing are left out"
    assert not any("speed-up" in note for note in service.notes)


def test_the_table_of_costs_fits_80_columns_in_one_piece(tmp_path: Path) -> None:
    out = io.StringIO()
    terminal(Console(file=out, width=80, highlight=False), gather(in_rates(tmp_path)).named["cost"])
    assert "(continued)" not in out.getvalue() and max(map(len, out.getvalue().splitlines())) <= 80


def test_rates_of_separate_runs_and_several_buffers_are_no_ladder() -> None:
    """`colocation --full`, as it was: one curve of all its rates and buffers."""
    arms = [
        made_arm(rate, rate / 40 + kb / 90, priority=priority, buffer_kb=kb)
        for kb in (90, 180, 360)
        for priority in (0, 1)
        for rate in (40, 100, 200)
    ]
    for arm in arms:
        arm.load = (*arm.load, str(arm.load[0]))  # swept: a point of the plan of its own
    assert not costs(arms)


def test_a_ratio_is_paired_by_seed() -> None:
    found = ratio({0: 2.0, 1: 8.0, 2: 3.0}, {0: 1.0, 1: 4.0})
    assert found is not None and found.n == 2 and found.mean == pytest.approx(2.0)


def test_the_table_says_the_papers_number_beside_ours_and_the_factor(tmp_path: Path) -> None:
    suite = stored(tmp_path)
    gathered = Gathered(suite=suite, groups=groups_of(suite), sets=[])
    table = colocation(gathered)
    assert table is not None and [row[0].text for row in table.rows] == list(ARMS)
    assert any("the paper's simulation 1.21" in note for note in table.notes)
    assert any("1/50" in note for note in table.notes)
    slow = slowdowns(gathered)
    assert slow is not None and slow.head[1:] == ["n", "seeds", "to 1 kB", "to 50 kB"]
    assert slow.rows[0][3].text == "2.5"


@pytest.mark.parametrize(
    ("points", "target", "rate"),
    [
        ([(100, 1.0), (200, 2.0), (300, 4.0)], 3.0, 200 + 100 * math.log(3 / 2) / math.log(2)),
        ([(100, 1.0), (200, 0.9), (300, 3.0)], 2.0, 200 + 100 * math.log(2) / math.log(3)),
        ([(100, 1.0), (200, 2.0)], 3.0, None),
        ([(100, 4.0), (200, 5.0)], 3.0, None),
    ],
)
def test_the_highest_rate_at_a_mean_is_found_between_the_rates_that_were_tried(
    points: list[tuple[float, float]], target: float, rate: float | None
) -> None:
    assert carried(points, target) == (None if rate is None else pytest.approx(rate))


def test_backlog_is_the_mean_of_the_downlinks(tmp_path: Path) -> None:
    look = {
        "elapsed_s": 1.0,
        "backlog_bytes": {"h0 downlink": {"web": 2000}, "h1 downlink": {"web": 4000}, "h0 uplink": {"web": 9}},
    }
    (tmp_path / "q.jsonl").write_text(json.dumps(look) + "\nbroken\n")
    assert read(tmp_path / "q.jsonl") == {"web": ([1.0], [3.0])}
    assert read(tmp_path / "q.jsonl", "uplink") == {"web": ([1.0], [0.009])}
    assert not read(tmp_path / "none.jsonl")


def test_what_waits_in_the_sending_hosts_is_drawn_where_anything_does(tmp_path: Path) -> None:
    """As it was: downlinks alone, while most of the waiting is here."""
    suite = in_rates(tmp_path)
    for run, held in zip(suite.runs, (250_000, 0), strict=True):
        looks = [
            {"elapsed_s": 0.25 * n, "backlog_bytes": {"h0 uplink": {"web": held}, "h0 downlink": {"web": 9000}}}
            for n in range(8)
        ]
        (run.folder / "queues.jsonl").write_text("".join(json.dumps(look) + "\n" for look in looks))
    (picture,) = [one for one in all_pictures(gather(suite)) if one.name == "uplinks"]
    (panel,) = picture.panels
    assert set(panel.keys[0].y) == {250.0}


def decile_rows(place: Path, *, n: int = 20_000, known: bool = True) -> None:
    for path in sorted(place.glob("0*/summary.json")):
        one = made.read(path)
        interval = {"web.p99_low_ms": 1.0} if known else {}
        row = {"web.at": "200/s", "web.n": n, "web.n_independent": n, "web.slowdown_p99": 3.0, **interval}
        row |= {"web.slowdown_by_decile": [[1000, 2.0 + one["seed"]], [50000, 4.0]], "beside": "web"}
        one["rows"] = [row | {"shown": ["web.at", "web.slowdown_p99"]}]
        made.write(path, one)


def by_size(place: Path) -> list[str] | None:
    suite = read_suite(place)
    table = slowdowns(Gathered(suite=suite, groups=groups_of(suite), sets=[]))
    return None if table is None else [cell.text for cell in table.rows[0][1:]]  # n, seeds, sizes


def test_a_slowdown_by_size_is_over_seeds_and_no_surer_than_its_run(tmp_path: Path) -> None:
    """As it was: a line for each seed, whether its run may be believed or not, of however few messages."""
    sound = made.suite(tmp_path / "a", [{"a": 1}], 3, lambda point, seed: {})
    decile_rows(sound)
    assert by_size(sound) == ["60000", "3", "3\n± 2.484", "4"]
    changes: dict[str, Any] = {"columns": {"fault": "valid", "timing": "unknown", "outcome": "valid"}}
    changes["measures"] = {"web.slowdown_p99": {"better": "low", "column": "timing"}}
    place = made.suite(tmp_path / "b", [{"a": 1}], 3, lambda point, seed: {}, **changes)
    decile_rows(place)
    assert by_size(place) == ["60000", "3", "2?\nto 4?", "4?"]
    summary = made.read(place / "001" / "summary.json")
    made.write(place / "001" / "summary.json", summary | {"columns": summary["columns"] | {"timing": "valid"}})
    assert (by_size(place) or [])[:2] == ["20000", "1 of 3"], "as it was: messages of runs that the mean is not of"
    few = made.suite(tmp_path / "c", [{"a": 1}], 1, lambda point, seed: {})
    decile_rows(few, n=1900)
    assert by_size(few) is None, "950 of a size have no p99"
    decile_rows(few, known=False)
    assert by_size(few) is None, "of one seed none has an interval"


def test_a_rate_of_which_much_was_never_answered_is_the_end_of_what_is_carried(tmp_path: Path) -> None:
    """As it was: a rung without a mean was no rung, and what is carried "above" the one below it."""
    place = tmp_path / in_rates(tmp_path).folder
    for path in sorted(place.glob("0*/summary.json")):
        one = made.read(path)
        top = {**one["rows"][-1], "web.at": "340/s", "web.offered": 340, "web.equivalent": 17000.0, "web.failed": 90.0}
        one["rows"].append({name: value for name, value in top.items() if name != "web.mean_ms"})
        made.write(path, one)
    table = cost(Gathered(suite=read_suite(place), groups=groups_of(read_suite(place)), sets=[]))
    assert table is not None
    carried_at = {row[0].text: row[2].text for row in table.rows}
    assert carried_at["10 ms, priority 0"] == "12856" and carried_at["10 ms, priority 1"] == "14000"


def test_what_each_class_lost_over_time_is_drawn_where_anything_was_lost(tmp_path: Path) -> None:
    """As it was: stored, and in no picture."""
    suite = in_rates(tmp_path)
    looks = [
        {"elapsed_s": 0.25 * n, "backlog_bytes": {"h0 downlink": {"web": 0}}, "dropped": {"web": 0, "learning": 40 * n}}
        for n in range(8)
    ]
    for run, some in zip(suite.runs, (looks, [{**look, "dropped": {"web": 0}} for look in looks]), strict=True):
        (run.folder / "queues.jsonl").write_text("".join(json.dumps(look) + "\n" for look in some))
    lost = lost_by_class(suite.runs[0].folder / "queues.jsonl")
    assert lost["learning"][1].tolist() == [160.0] * 7 and not lost["web"][1].any()
    (picture,) = [one for one in all_pictures(gather(suite)) if one.name == "drops"]
    assert len(picture.panels) == 1, "one of the two runs lost nothing"
