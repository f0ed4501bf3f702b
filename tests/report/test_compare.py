"""Two results side by side: what differs, and whether it is chance."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lossbench.report import page
from lossbench.report.between import compare, partners
from lossbench.report.between.agreement import agreement
from lossbench.report.between.compare import Line
from lossbench.report.between.limits import Limit
from lossbench.report.between.tails import with_tails
from lossbench.report.groups import groups_of
from lossbench.report.inference import Estimate, corrected, estimate, paired
from lossbench.report.tables.differences import difference_cell
from lossbench.results import provenance
from lossbench.results.index import read_suite
from tests.forked import lossbench
from tests.forms import full

from . import made

POINTS = [{"strategy": "rps"}, {"strategy": "ddp"}]


def row_of(shift: float) -> made.Row:
    def row(point: dict[str, Any], seed: int) -> dict[str, Any]:
        noise = np.random.default_rng([seed, round(100 * shift)]).normal()
        moved = shift if point["strategy"] == "ddp" else 0.0
        return {"train_loss": 1.0 + seed + moved + 0.01 * noise, "accuracy": 0.9}

    return row


def test_what_differs_in_spec_machine_and_result(tmp_path: Path) -> None:
    a = made.suite(tmp_path, POINTS, 5, row_of(0), run_id="aaaaaa")
    b = made.suite(tmp_path, POINTS, 5, row_of(0.2), run_id="bbbbbb", options={"lr": 0.2})
    told = json.loads((b / "suite.json").read_text())
    told["sessions"] = [made.session(machine={**made.MACHINE, "kernel": "6.12", "congestion_controls": "reno bbr"})]
    made.write(b / "suite.json", told)
    left, right = read_suite(a), read_suite(b)
    assert [[cell.text for cell in row] for row in compare.spec(left, right).rows] == [
        ["workload.options.lr", "0.1", "0.2", "all points"]
    ]
    assert [row[0].text for row in compare.machine(left, right).rows] == ["kernel"]
    lines = {(line.point, line.measure): line.change for line in compare.result_lines(left, right)}
    assert lines["ddp", "train_loss"].significant and not lines["rps", "train_loss"].significant
    assert not lines["ddp", "accuracy"].significant


def test_a_changed_script_and_other_packages_are_named(tmp_path: Path) -> None:
    """The user's script had changed in a dirty folder: "machine and code: no difference"."""
    sides = []
    for name, content, package in (("aaaaaa", "print(1)", "2.13"), ("bbbbbb", "print(2)", "2.11")):
        folder = tmp_path / "mine"
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text(content)
        program = provenance.of_program([sys.executable, "train.py"], folder)
        assert program["python"]["packages"]["numpy"] == np.__version__
        program["python"] = {**program["python"], "packages": {"torch": package}}
        place = made.suite(tmp_path / name, POINTS, 1, row_of(0), run_id=name)
        told = json.loads((place / "suite.json").read_text())
        told["sessions"] = [made.session(programs=[program])]
        made.write(place / "suite.json", told)
        sides.append(read_suite(place))
    changed = {row[0].text.rpartition("train.py.")[2] for row in compare.machine(*sides).rows}
    assert any("torch" in what for what in changed) and any("sha256" in what for what in changed), changed
    assert any("files" in row[0].text for row in compare.machine(*sides).rows)


def test_of_two_programs_only_what_differs_is_named(tmp_path: Path) -> None:
    """As it was: of another script every package of the interpreter, on both sides, in eighty lines."""
    sides = []
    for name, script in (("aaaaaa", "train.py"), ("bbbbbb", "junk.py")):
        program = {"command": ["python", script], "python": {"packages": {"torch": "2.13", "numpy": "2.4"}}}
        place = made.suite(tmp_path / name, [{"arm": name}, {"arm": f"{name} too"}], 1, lambda p, s: {}, run_id=name)
        told = json.loads((place / "suite.json").read_text())
        made.write(place / "suite.json", {**told, "sessions": [made.session(programs=[program])]})
        sides.append(read_suite(place))
    assert [row[0].text for row in compare.machine(*sides).rows] == ["program.0.command"]
    said = partners.nothing_in_common(*sides)
    assert "(A: aaaaaa, aaaaaa too; B: bbbbbb, bbbbbb too); compare two results of the same points" in said


def test_an_argument_that_is_a_whole_program_is_no_file(tmp_path: Path) -> None:
    found = provenance.of_program([sys.executable, "-c", "x = 1\n" * 100, "no\0name", "."], tmp_path)
    assert found["files"] == {} and str(tmp_path) in found["folders"]


def test_the_users_own_checkout_is_recorded_with_what_is_not_committed(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(
            ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@t", *arguments], check=True
        )

    git("init", "-q")
    (tmp_path / "train.py").write_text("x = 1\n")
    git("add", "-A")
    git("commit", "-qm", "first")
    clean = provenance.folder_state(tmp_path)
    (tmp_path / "train.py").write_text("x = 2\n")
    (tmp_path / "new.py").write_text("y = 1\n")
    dirty = provenance.folder_state(tmp_path)
    assert clean["git"]["dirty"] is False and "untracked_sha256" not in clean
    assert dirty["git"]["dirty"] and dirty["git"]["diff_sha256"] and dirty["untracked_sha256"]
    assert "+x = 2" in provenance.git_diff(tmp_path)


def test_without_common_seeds_the_test_is_welchs() -> None:
    found = compare.difference({0: 1.0, 1: 1.1, 2: 0.9}, {7: 1.0, 8: 1.2, 9: 0.8})
    assert found is not None and found.method == "Welch t" and not found.significant


def test_what_was_resumed_elsewhere_differs_from_what_was_not(tmp_path: Path) -> None:
    """As it was: only the last session was looked at. Half of B's runs were of another kernel: "no difference"."""
    sides = [made.suite(tmp_path, POINTS, 1, row_of(0), run_id=name) for name in ("aaaaaa", "bbbbbb")]
    told = json.loads((sides[1] / "suite.json").read_text())
    told["sessions"] = [made.session(machine={**made.MACHINE, "kernel": "5.15"}), made.session()]
    made.write(sides[1] / "suite.json", told)
    rows = [[cell.text for cell in row] for row in compare.machine(*map(read_suite, sides)).rows]
    assert [row[0] for row in rows] == ["kernel"] and rows[0][2].split() == ["5.15", "then", made.MACHINE["kernel"]]


def test_points_that_only_one_has_are_named(tmp_path: Path) -> None:
    left = read_suite(made.suite(tmp_path, POINTS, 2, row_of(0), run_id="aaaaaa"))
    right = read_suite(made.suite(tmp_path, POINTS[:1], 3, row_of(0), run_id="bbbbbb"))
    rows = [[cell.text for cell in row] for row in compare.spec(left, right).rows]
    assert ["point ddp", "planned", "-", ""] in rows and ["seeds", "0, 1", "0, 1, 2", ""] in rows


def test_the_command_says_it_in_80_columns(tmp_path: Path) -> None:
    made.suite(tmp_path, POINTS, 5, row_of(0), run_id="aaaaaa")
    made.suite(tmp_path, POINTS, 5, row_of(0.2), run_id="bbbbbb")
    done = lossbench("compare", "aaaaaa", "bbbbbb", "--in", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "spec: no difference" in done.stdout and "*" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines() if not line.startswith(("A:", "B:"))) <= 80


def test_means_and_change_stand_on_the_same_seeds(tmp_path: Path) -> None:
    a = made.suite(tmp_path, POINTS, 5, row_of(0), run_id="aaaaaa")
    b = made.suite(tmp_path, POINTS, 2, row_of(0), run_id="bbbbbb")
    for line in compare.result_lines(read_suite(a), read_suite(b)):
        assert (line.a.n, line.b.n, line.change.n) == (2, 2, 2)
        assert line.b.mean - line.a.mean == pytest.approx(line.change.mean)


def test_a_difference_of_nothing_keeps_its_interval_in_percent() -> None:
    found = paired({0: 10.0, 1: 10.0}, {0: 9.0, 1: 11.0})
    assert "± 127" in difference_cell(found).text


@pytest.mark.parametrize(
    ("limits", "code", "said"),
    [
        (["train_loss > +5%"], 1, "broken: ddp: train_loss"),
        (["train_loss > +50%"], 0, "kept: train_loss in 2 lines, by the whole 95 % interval"),
        (["train_loss < -0.1"], 0, "kept"),
        (["train_loss < -1e-3"], 3, "its 95 % interval is not"),
        (["train_loss > 0.1", "accuracy < -0.01"], 1, "kept: accuracy"),
        (["speed > 5%"], 3, "speed: no valid line has such a number"),
        (["acuracy > 5%"], 3, "did you mean accuracy?"),
        (["speed > 5%", "train_loss > 0.1"], 1, "broken"),
        (["faster please"], 2, "not MEASURE > NUMBER"),
    ],
)
def test_a_limit_on_what_may_change_is_an_exit_code(tmp_path: Path, limits: list[str], code: int, said: str) -> None:
    made.suite(tmp_path, POINTS, 5, row_of(0), run_id="aaaaaa")
    made.suite(tmp_path, POINTS, 5, row_of(0.2), run_id="bbbbbb")
    asked = [word for limit in limits for word in ("--fail-if", limit)]
    done = lossbench("compare", "aaaaaa", "bbbbbb", "--in", str(tmp_path), *asked)
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr


def test_of_next_to_nothing_the_difference_itself_is_shown() -> None:
    found = paired({0: 0.001, 1: 0.002}, {0: 5.0, 1: 5.2})
    assert difference_cell(found).text.startswith("+5.1") and "%" not in difference_cell(found).text


@pytest.mark.parametrize(("after", "code"), [(0.0, 0), (3.0, 1), (-3.0, 0)])
def test_more_than_nothing_breaks_every_limit_in_percent(tmp_path: Path, after: float, code: int) -> None:
    made.suite(tmp_path, POINTS, 2, lambda point, seed: {"lost_percent": 0.0}, run_id="aaaaaa")
    made.suite(tmp_path, POINTS, 2, lambda point, seed: {"lost_percent": after + after / 30 * seed}, run_id="bbbbbb")
    assert limited(tmp_path, "lost_percent > +500%").returncode == code


def test_a_line_that_b_has_no_valid_number_of_is_unknown_not_kept(tmp_path: Path) -> None:
    made.suite(tmp_path, POINTS, 1, row_of(0), run_id="aaaaaa")
    made.suite(tmp_path, POINTS[:1], 1, row_of(0), run_id="bbbbbb")
    done = limited(tmp_path, "train_loss > +50%")
    assert done.returncode == 3 and "kept" not in done.stdout, done.stdout
    assert "train_loss is not valid on both sides" in done.stdout
    assert limited(tmp_path, "train_loss > -50%").returncode == 1, "what is broken is broken"


@pytest.mark.parametrize(("longer", "code"), [(1.0, 0), (1.5, 1)])
def test_a_limit_on_a_tail_of_samples_is_kept_or_broken(tmp_path: Path, longer: float, code: int) -> None:
    """As it was: only columns had a change, and of p99 nothing was known."""
    for run_id, factor in (("aaaaaa", 1.0), ("bbbbbb", longer)):
        place = made.suite(tmp_path, POINTS[:1], 3, row_of(0), run_id=run_id)
        for seed in range(3):
            rng = np.random.default_rng(seed)
            made.samples(place / f"{seed:03d}", "step_ms", factor * rng.uniform(90, 100, 2000 if seed else 1000))
    done = limited(tmp_path, "step_ms_p99 > +5%")
    assert done.returncode == code and "step_ms_p99" in done.stdout, done.stdout
    (tmp_path / place.name / "000" / "samples" / "step_ms.rank-0.f64").write_bytes(bytes(8 * 999))
    done = limited(tmp_path, "step_ms_p99 > +60%")
    assert done.returncode == 3 and "step_ms_p99 is not valid on both sides" in done.stdout, "fewer than 1000 samples"
    assert limited(tmp_path, "other_ms_p99 > +5%").returncode == 3
    assert limited(tmp_path, "step_ms_p100 > +5%").returncode == 3, "as it was: judged as p10"


def test_a_tail_with_numbers_that_are_none_is_kept_by_nobody_and_counts_in_its_own_unit(tmp_path: Path) -> None:
    """As it was: NaN was below every limit; and seconds were counted in thousandths."""
    for run_id, odd in (("aaaaaa", 1.0), ("bbbbbb", math.nan)):
        place = made.suite(tmp_path, POINTS[:1], 2, row_of(0), run_id=run_id)
        for seed in range(2):
            made.samples(place / f"{seed:03d}", "step_ms", np.append(np.ones(1999), odd))
            made.samples(place / f"{seed:03d}", "turn_s", np.full(2000, 1.2), unit="s")
    assert limited(tmp_path, "step_ms_p99 > +5%").returncode == 3
    assert limited(tmp_path, "turn_s_p99 > +0.1").returncode == 0
    groups = with_tails(groups_of(read_suite(place)), ["turn_s_p99"])
    assert [value.number for value in groups[0].values["turn_s_p99"]] == [pytest.approx(1.2)] * 2


def limited(folder: Path, limit: str) -> subprocess.CompletedProcess[str]:
    return lossbench("compare", "aaaaaa", "bbbbbb", "--in", str(folder), "--fail-if", limit)


@pytest.mark.parametrize(
    ("after", "code"),
    [((150.0, 190.0), 3), ((102.0, 97.0), 3), ((100.2, 100.1), 0), ((150.0, 150.1), 1), ((150.0, 50.0), 3)],
)
def test_a_limit_is_kept_only_where_the_whole_interval_is_within_it(
    tmp_path: Path, after: tuple[float, float], code: int
) -> None:
    """As it was: +70 % with two seeds was "kept", exit code 0; later what its mean alone kept (-.5 % ± 32 %, and
    changes that cancel out: +50 and -50 were "identical")."""
    for name, times in (("aaaaaa", (100.0, 100.0)), ("bbbbbb", after)):
        made.suite(tmp_path, POINTS[:1], 2, lambda _, seed, of=times: {"wall_s": of[seed]}, run_id=name)
    done = limited(tmp_path, "wall_s > +5%")
    assert (done.returncode, "kept:" in done.stdout) == (code, code == 0), done.stdout


def test_a_limit_is_corrected_for_the_lines_that_limits_name_alone(tmp_path: Path) -> None:
    """As it was: p = .017 of one number was no finding beside nine that nobody had asked for."""

    def row(shift: float) -> made.Row:
        beside = {f"other_{n}": np.random.default_rng(n + round(shift)) for n in range(9)}
        moved = (0.8, 1.0, 1.2)
        return lambda _, seed: {
            "wall_s": 10 + shift * moved[seed],
            **{name: float(drawn.normal()) for name, drawn in beside.items()},
        }

    made.suite(tmp_path, POINTS[:1], 3, row(0.0), run_id="aaaaaa")
    made.suite(tmp_path, POINTS[:1], 3, row(5.0), run_id="bbbbbb")
    done = limited(tmp_path, "wall_s > +5%")
    assert done.returncode == 1 and "p = 0.013" in done.stdout, done.stdout


def test_a_limit_may_be_on_a_number_that_no_table_shows(tmp_path: Path) -> None:
    """As it was: "no valid line has such a number on both sides"."""
    for name, accuracy in (("aaaaaa", 0.9), ("bbbbbb", 0.5)):
        folder = made.suite(tmp_path, POINTS[:1], 1, lambda _, seed: {"wall_s": 1.0}, run_id=name)
        told = made.read(folder / "000" / "summary.json")
        told["rows"][0]["fit_accuracy"] = accuracy
        made.write(folder / "000" / "summary.json", told)
    done = limited(tmp_path, "fit_accuracy < -0.1")
    assert done.returncode == 1 and "broken: rps: fit_accuracy" in done.stdout, done.stdout


@full
def test_what_may_be_chance_is_unknown_but_a_single_seed_breaks_a_limit(tmp_path: Path) -> None:
    def noisy(shift: float) -> made.Row:
        return lambda point, seed: {"wall_s": 10 + shift + 5 * float(np.random.default_rng(seed + 7).normal()) * shift}

    for seeds, code in ((5, 3), (1, 1)):
        folder = tmp_path / str(seeds)
        made.suite(folder, POINTS, seeds, noisy(0.0), run_id="aaaaaa")
        made.suite(folder, POINTS, seeds, noisy(3.0), run_id="bbbbbb")
        done = limited(folder, "wall_s > +1%")
        assert done.returncode == code, done.stdout


@pytest.mark.parametrize(
    ("limit", "after", "broken", "open_"),
    [
        ("x < +5%", (50.0, -50.0), False, True),  # as it was: broken, with certainty
        ("x > -10%", (-8.0, -6.0, -7.0), True, False),
        ("x > -10%", (-1.0, 1.0, 0.5), True, False),  # as it was: "may be chance", since no change was found
        ("x > -10%", (-8.0, -1.0, -12.0), False, True),  # as it was: broken by whatever differs from no change
        ("x > -10%", (-8.0, -8.0, -8.0), False, True),
        ("x > -10%", (-20.0, -21.0, -20.0), False, False),
        ("x > -10%", (0.0, 0.0), True, False),
        ("x > +5%", (-1.0,) * 10, False, False),  # as it was: "more seeds can tell", of any number of them
        ("x > +5%", (-1.0,) * 5, False, True),
        ("x > +5%", (8.0,) * 5, False, True),
        ("x > +5%", (8.0,) * 6, True, False),
    ],
)
def test_a_limit_is_broken_kept_or_open_by_what_was_seen_of_a_change(
    limit: str, after: tuple[float, ...], broken: bool, open_: bool
) -> None:
    (change,) = corrected([paired(dict.fromkeys(range(len(after)), 100.0), {n: 100 + x for n, x in enumerate(after)})])
    mean = Estimate(n=len(after), mean=100.0)
    line, asked = Line("p", "x", mean, mean, change), Limit.read(limit)
    assert (asked.broken(line), asked.unsure(line) or asked.doubtful(line)) == (broken, open_)
    assert ("six at least" in asked.why_open(line)) == (open_ and len(set(after)) == 1), "what can tell"


def test_seeds_of_b_that_a_lacks_are_not_passed_over(tmp_path: Path) -> None:
    """As it was: A with two seeds, B with five, three of them ten times as slow: "kept", exit code 0."""
    made.suite(tmp_path, POINTS[:1], 2, lambda _, seed: {"wall_s": 100 + seed}, run_id="aaaaaa")
    slow: made.Row = lambda _, seed: {"wall_s": (100 if seed < 2 else 1000) + seed}  # noqa: E731
    made.suite(tmp_path, POINTS[:1], 5, slow, run_id="bbbbbb")
    done = limited(tmp_path, "wall_s > +5%")
    assert done.returncode == 3 and "3 of B's 5 seeds have no valid number in A; run A" in done.stdout, done.stdout
    assert "0 the same within 10 %, 1 open" in done.stdout and "in no mean" in done.stdout
    turned = lossbench("compare", "bbbbbb", "aaaaaa", "--in", str(tmp_path), "--fail-if", "wall_s > +5%")
    assert turned.returncode == 0, "whatever B has was compared"


@pytest.mark.parametrize(
    "old, new, said, code",
    [
        ((105, 105.5), (180, 181), "the means differ", 1),
        ((90, 120), (150, 210), "may differ by more than 10%", 3),
        ((100, 100.2), (100.1, 100.1), "the means agree within 10% (2 seeds", 0),
        ((100, 101), (100, 101), "the means agree within 10%", 0),
        ((100, 100), (150, 50), "may differ by more than 10%", 3),
        ((100, 100), (100.1, 100.1), "of which only the number can tell: six at least (--seeds 6), and no --margin", 3),
    ],
)
def test_means_agree_only_where_the_whole_interval_is_within_a_margin(
    tmp_path: Path, old: tuple[float, float], new: tuple[float, float], said: str, code: int
) -> None:
    """As it was: 105 against 180, two seeds, p = .2: "the means agree"."""
    before, after = (
        read_suite(made.suite(tmp_path / name, [{"a": 1}], 2, lambda _, seed, of=of: {"wall_s": of[seed]}))
        for name, of in (("a", old), ("b", new))
    )
    found = agreement(groups_of(before), after, margin=0.1)
    assert (found.exit_code, said in found.in_words()) == (code, True), found.in_words()


def test_a_limit_is_not_kept_by_one_seed_nor_by_those_that_did_not_fail(tmp_path: Path) -> None:
    """As it was: both "kept", exit code 0."""
    for seeds in (1, 4):
        for name in ("aaaaaa", "bbbbbb"):
            made.suite(tmp_path / str(seeds), POINTS[:1], seeds, lambda _, seed: {"wall_s": 100 + seed}, run_id=name)
    assert limited(tmp_path / "1", "wall_s > +5%").returncode == 3
    assert limited(tmp_path / "4", "wall_s > +5%").returncode == 0
    (failed,) = (tmp_path / "4").glob("*bbbbbb/003/summary.json")
    told = made.read(failed)
    made.write(failed, {**told, "status": "failed", "columns": {**told["columns"], "outcome": "failed"}})
    done = limited(tmp_path / "4", "wall_s > +5%")
    assert done.returncode == 3 and "kept:" not in done.stdout and "in every seed of B" in done.stdout, done.stdout
    assert "0 the same within 10 %, 1 open" in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("new", "margin", "words"),
    [
        ((100.1, 101.0, 102.2), 0.1, "same"),
        ((100.1, 101.0, 102.2), 0.001, "can't tell"),
        ((100.0, 101.0, 102.0), 0.0, "identical"),
        ((100.0, 110.0, 95.0), 0.1, "can't tell"),
        ((101.0, 102.0, 103.0), 0.1, "can't tell"),  # by as much in every seed: nothing was seen of its spread
        ((92.0, 100.0, 97.0), 0.1, "can't tell"),  # -13 to +4: of one end alone it is the same
        ((108.0, 102.0, 107.0), 0.1, "can't tell"),  # and the other way round
        ((150.0, 152.0, 151.0), 0.1, "different"),
        ((103.0, 100.0, 100.0), 0.01, "can't tell"),  # +3, -1, -2: their mean is nothing
    ],
)
def test_a_number_is_the_same_only_where_its_whole_interval_is_within_the_margin(
    tmp_path: Path, new: tuple[float, ...], margin: float, words: str
) -> None:
    """As it was: no word of that: a difference without a * looked like none."""
    sides = [
        read_suite(made.suite(tmp_path / name, [{"a": 1}], 3, lambda _, seed, of=of: {"wall_s": of[seed]}))
        for name, of in (("a", (100.0, 101.0, 102.0)), ("b", new))
    ]
    (line,) = compare.result_lines(*sides)
    assert line.said(margin=margin) == words
    assert compare.results([line], margin=margin).rows[0][-1].text == words


@pytest.mark.parametrize(
    ("better", "moved", "style"),
    [("low", 1, "bad"), ("low", -1, "good"), ("high", 1, "good"), ("high", -1, "bad"), ("", 1, "")],
)
def test_a_change_is_good_or_bad_by_what_its_measure_calls_better(better: str, moved: int, style: str) -> None:
    before = {seed: 10.0 + seed for seed in range(5)}
    after = {seed: value + moved * (1 + 0.01 * seed) for seed, value in before.items()}
    change = paired(before, after)
    ends = [estimate(list(some.values())) for some in (before, after)]
    assert change is not None and change.significant and ends[0] is not None and ends[1] is not None
    line = Line("point", "m", ends[0], ends[1], change, better)
    assert compare.results([line]).rows[0][4].style == style


def test_compare_sums_up_and_what_one_side_has_alone_is_open(tmp_path: Path) -> None:
    made.suite(tmp_path, POINTS, 5, row_of(0), run_id="aaaaaa")
    made.suite(tmp_path, POINTS[:1], 5, row_of(0), run_id="bbbbbb")
    done = lossbench("compare", "aaaaaa", "bbbbbb", "--in", str(tmp_path), "--margin", "25")
    said = "of 4 numbers: 0 different, 2 the same within 25 %, 2 open (2 of them valid on one side only)"
    assert done.returncode == 0 and said in done.stdout, done.stdout


def trained(folder: Path, run_id: str, options: dict[str, Any], done: int, *, times: bool = True) -> Path:
    """Results of so many steps, of which the row says how many were done."""

    def row(point: dict[str, Any], seed: int) -> dict[str, Any]:
        return {"steps": done, **row_of(0)(point, seed), **({"ms_step": 5.0 + seed} if times else {})}

    return made.suite(folder, POINTS, 5, row, run_id=run_id, options=options)


def test_what_comes_of_unequal_steps_is_not_compared(tmp_path: Path) -> None:
    """As it was: 20 steps against 3000 had a training loss "the same within 10 %", and kept a limit on it. Within one
    table it was known that they can't be compared."""
    a = read_suite(trained(tmp_path, "aaaaaa", {"steps": 3000}, 3000))
    b = read_suite(trained(tmp_path, "bbbbbb", {"steps": 20}, 20))
    assert {line.measure for line in compare.result_lines(a, b)} == {"ms_step"}
    done = lossbench("compare", "aaaaaa", "bbbbbb", "--in", str(tmp_path))
    assert "A trains for 3000 steps, B for 20 steps" in " ".join(done.stdout.split()), done.stdout
    assert "of 6 numbers: 0 different, 2 the same within 10 %, 4 open (4 of them of unequal steps)" in done.stdout
    done = limited(tmp_path, "train_loss > +50%")
    assert done.returncode == 3 and "A trains for 3000 steps, B for 20 steps" in done.stdout, done.stdout
    assert limited(tmp_path, "ms_step > +50%").returncode == 0, "times are compared"
    before = groups_of(a)
    assert "trained for 3000 steps, and for 20 steps this time" in agreement(before, b, margin=0.1).doubt


def test_without_times_nothing_is_left_to_compare_of_unequal_steps(tmp_path: Path) -> None:
    a = read_suite(trained(tmp_path, "aaaaaa", {"epochs": 40, "steps": 7}, 400, times=False))
    b = read_suite(trained(tmp_path, "bbbbbb", {"epochs": 9.0, "steps": 7}, 90, times=False))
    assert compare.result_lines(a, b) == []
    assert "rps: A trains for 40 epochs, B for 9 epochs" in partners.nothing_in_common(a, b)


@pytest.mark.parametrize("options", [{"lr": 0.1}, {"steps": 300.0}])
def test_as_many_steps_are_compared_however_they_were_asked_for(tmp_path: Path, options: dict[str, Any]) -> None:
    """By default, or written down."""
    a = read_suite(trained(tmp_path, "aaaaaa", {"steps": 300}, 300))
    b = read_suite(trained(tmp_path, "bbbbbb", options, 300))
    assert {line.measure for line in compare.result_lines(a, b)} == {"train_loss", "accuracy", "ms_step"}


HOSTS = {"h0": {**made.MACHINE, "cpus": 64, "gpus": ["H200"]}, "h1": {**made.MACHINE, "cpus": 64, "gpus": ["H200"]}}
LAB = {"name": "rack", "switch": {"name": "sn5600", "notes": "shallow buffers"}}


def on_a_lab(folder: Path, run_id: str, **changes: Any) -> Path:
    place = made.suite(folder, POINTS, 2, row_of(0), run_id=run_id)
    told = json.loads((place / "suite.json").read_text())
    told["sessions"] = [made.session(**{"machines": HOSTS, "lab": LAB, **changes})]
    made.write(place / "suite.json", told)
    return place


def test_what_differs_between_labs_is_their_machines_and_not_who_controlled_them(tmp_path: Path) -> None:
    """As it was: the controller was called the machine, and of the machines nothing was known."""
    newer = {**HOSTS, "h1": {**HOSTS["h1"], "kernel": "6.12"}}
    other = {"name": "rack", "switch": {"name": "sn5600", "notes": "deep buffers"}}
    laptop = {**made.MACHINE, "kernel": "6.9"}
    sides = [on_a_lab(tmp_path, "aaaaaa"), on_a_lab(tmp_path, "bbbbbb", machines=newer, lab=other, machine=laptop)]
    rows = compare.machine(*(read_suite(one) for one in sides)).rows
    assert [row[0].text for row in rows] == ["h1.kernel", "lab.switch.notes", "controller.kernel"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, [("lab", "rack"), ("h0, h1", "64 cores"), ("h0, h1", "H200"), ("switch", "sn5600: shallow buffers")]),
        ({"machines": {"h0": {"gpus": [3]}}, "lab": {"switch": 7}}, [("h0", "? cores"), ("controller", "2 cores")]),
    ],
)
def test_a_page_names_the_machines_of_a_lab_and_who_controlled_them(
    tmp_path: Path, changes: dict[str, Any], words: list[tuple[str, str]]
) -> None:
    session = read_suite(on_a_lab(tmp_path, "aaaaaa", **changes)).plan.sessions[-1]
    found = dict(page._machines(session))
    assert all(text in found[name] for name, text in words) and "machine" not in found
