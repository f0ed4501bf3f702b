"""Suites in order of importance, by the clock."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lossbench.errors import NotAbleError, UsageError
from lossbench.results.folders import SuiteFolder
from lossbench.results.models import RunSummary
from lossbench.runs.many import campaign, offline, planning, suite
from lossbench.runs.many.campaign import Part
from lossbench.runs.many.suite import Planned
from lossbench.spec.asking import campaign as campaigns
from lossbench.spec.asking import points
from lossbench.spec.userfile import read_toml
from tests.conftest import left_behind
from tests.forms import full
from tests.shared import ROOT

TWO = """why = "t"
set = ["probe.packets=2000"]
[[run]]
suite = "proof"
seeds = 2
set = ["workload.options.seconds=0.3"]
[[run]]
suite = "chatter"
minutes = 0.5
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mine.toml").write_text(TWO)
    return tmp_path / "mine.toml"


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(campaign.time, "monotonic", lambda: self.now)


def _made(part: Part, clock: Clock, *, limit: float, takes: Any) -> list[tuple[int, int]]:
    """(number, seed) of what is run until a limit, if a run takes so long."""
    out = []
    for one in campaign._taken(part, part.plan, limit):
        out.append((one.number, one.seed))
        clock.now += takes(one)
    return out


def test_every_point_has_its_first_seed_before_any_has_its_second(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part(name="chatter", plan=planning.planned("chatter", [], 2, full=False, out=Path(), resume=False)[2])
    made = _made(part, Clock(monkeypatch), limit=1e9, takes=lambda _: 1)
    assert [seed for _, seed in made] == [0] * 4 + [1] * 4


def test_a_suite_runs_seed_by_seed_into_the_folders_of_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: point by point, so whatever drifted on the machine was a difference of the points."""
    plan = planning.planned("chatter", [], 2, full=False, out=Path(), resume=False)[2]
    ran, shown = [], []

    def execute(experiment: Any, *, seed: int, folder: Any, progress: Any, **_: Any) -> None:
        del experiment
        folder.make()
        ran.append((int(folder.path.name), seed))
        progress("1 checking")

    def show(one: Planned, total: int, todo: int, what: str) -> None:
        del what
        shown.append((one.number, total, todo))

    def summary(chosen: Any, *_: Any) -> RunSummary:
        return RunSummary(
            point=chosen, seed=ran[-1][1], backend="ebpf", hosts=2, verdict="valid", columns={}, duration_s=1
        )

    monkeypatch.setattr(suite, "execute", execute)
    monkeypatch.setattr(suite, "summary", summary)
    folder = SuiteFolder.new(tmp_path, "chatter", "x")
    found = suite.run_plan(plan, folder=folder, run_id="x", ground=None, progress=show)  # type: ignore[arg-type]
    assert ran == [(0, 0), (2, 0), (4, 0), (6, 0), (1, 1), (3, 1), (5, 1), (7, 1)]
    assert shown == [(number, 8, 8 - place) for place, (number, _) in enumerate(ran)]
    assert [one.seed for one in found.summaries] == [0, 1] * 4, "as planned"


def test_seeds_begin_with_the_first_one_that_is_asked_for() -> None:
    for asked, seeds in ((None, [7, 8]), (3, [7, 8, 9])):
        settings = ["first_seed=7", "seeds=2"]
        plan = planning.planned("quickstart", settings, asked, full=False, out=Path(), resume=False)[2]
        assert [one.seed for one in plan[: len(seeds)]] == seeds and {one.seed for one in plan} == set(seeds)


def test_what_is_not_expected_to_fit_is_not_begun_and_what_is_cheaper_is(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part(name="chatter", plan=planning.planned("chatter", [], 2, full=False, out=Path(), resume=False)[2])
    clock = Clock(monkeypatch)
    dear = {part.plan[0].number, part.plan[1].number}  # both seeds of the first point
    # 10 + 1 + 1 + 1, then seed 1: the dear one (11 with what is spare) no longer fits before 23, the others do.
    made = _made(part, clock, limit=23.0, takes=lambda one: 10 if one.number in dear else 1)
    assert [number in dear for number, _ in made] == [True, False, False, False, False, False, False]
    assert clock.now <= 23.0


def test_a_mistake_in_the_last_suite_is_said_before_the_first_runs(file: Path) -> None:
    file.write_text(TWO.replace('"chatter"', '"chater"'))
    with pytest.raises(UsageError, match="no suite 'chater'"):
        planning.parts_of(file)
    file.write_text(TWO.replace("minutes", "minuts"))
    with pytest.raises(UsageError, match="minuts"):
        planning.parts_of(file)


def test_a_campaign_can_name_single_points_of_a_suite(file: Path) -> None:
    file.write_text(TWO.replace("minutes = 0.5", "only = [0, 3]\nseeds = 2"))
    plan = planning.parts_of(file)[1].plan
    assert [(one.number, one.experiment.impair[0].profile.name, one.seed) for one in plan] == [
        (0, "clean", 0),
        (1, "clean", 1),
        (2, "bursty_5", 0),
        (3, "bursty_5", 1),
    ]
    file.write_text(TWO.replace("minutes = 0.5", "only = [4]"))
    with pytest.raises(UsageError, match="chatter has no point 4: 0 to 3"):
        planning.parts_of(file)


def test_points_are_named_as_a_dry_run_has_them(file: Path) -> None:
    """As it was, by their places alone: a suite that got arms had others there, and the campaign ran those."""
    file.write_text(TWO.replace("minutes = 0.5", 'only = ["bursty_5", 1]'))
    assert [one.experiment.impair[0].profile.name for one in planning.parts_of(file)[1].plan] == ["loss_1", "bursty_5"]
    for name, said in (("bursty", "no point called 'bursty'"), ("proof", "no point called 'proof'")):
        file.write_text(TWO.replace("minutes = 0.5", f'only = ["{name}"]'))
        with pytest.raises(UsageError, match=f"chatter has {said}"):
            planning.parts_of(file)


def test_a_suite_under_another_name_is_called_by_it(file: Path) -> None:
    file.write_text(TWO + '[[run]]\nsuite = "chatter"\nset = ["name=other", "topology.hosts=3"]\n')
    assert [part.name for part in planning.parts_of(file)] == ["proof", "chatter", "other"]


PUBLISHED = sorted((ROOT / "results" / "published").glob("*.toml"))


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_published_campaigns_can_still_be_planned_and_name_their_points(path: Path) -> None:
    """Places shift when a suite gets arms: points are named, but where a name says what was changed."""
    assert all(part.plan for part in planning.parts_of(path))
    for one in campaigns.load(path).run:
        assert all(isinstance(point, str) for point in one.only) or one.suite == "rps-workers"


def test_every_suite_has_its_small_form_timed() -> None:
    """As it was: without colocation-queues and switch-marks."""
    asked = [one.suite for one in campaigns.load(ROOT / "results/published/small-forms.toml").run]
    assert sorted(asked) == sorted(points.suite_names())


def test_every_full_form_of_training_is_tried_at_two_points() -> None:
    asked = {one.suite: one for one in campaigns.load(ROOT / "results/published/full-forms.toml").run}
    full = {name for name in points.suite_names() if "full" in (found := read_toml(points.find(name)))
            and found["workload"]["name"] == "training"}  # fmt: skip
    of_the_service = {"colocation-training", "record-exchange"}
    assert set(asked) == full - of_the_service
    assert all(one.full and len(one.only) == 2 for one in asked.values())


def test_what_was_done_is_found_whatever_its_folder_is_called(file: Path, tmp_path: Path) -> None:
    """As it was: by the folder's name, and what had been renamed was run again."""
    part = planning.parts_of(file)[1]
    for name, day in (("20261115-100000_chatter_aaaaaa", "16"), ("moved", "17"), ("chatter", "15")):
        plan = {"format": 1, "run_id": "aaaaaa", "suite": "chatter", "sessions": [{"started": f"2026-11-{day}"}]}
        (tmp_path / "o" / name).mkdir(parents=True)
        (tmp_path / "o" / name / "suite.json").write_text(
            json.dumps({**plan, "plan": [one.as_json() for one in part.plan]})
        )
    part.find(tmp_path / "o")
    assert part.folder == tmp_path / "o" / "moved", "the newest"


def test_suites_that_are_called_alike_are_told_apart_and_none_is_run_twice(file: Path, tmp_path: Path) -> None:
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        text = f'name = "own"\nwhy = "{place}"\n[topology]\nhosts = 2\n[workload]\nname = "noop"\n'
        (tmp_path / place / "own.toml").write_text(text)
    file.write_text('why = "t"\n[[run]]\nsuite = "a/own.toml"\n[[run]]\nsuite = "b/own.toml"\n')
    assert [part.name for part in planning.parts_of(file)] == ["a/own.toml", "b/own.toml"]
    file.write_text('why = "t"\n[[run]]\nsuite = "proof"\n[[run]]\nsuite = "proof"\nseeds = 2\n')
    assert [part.name for part in planning.parts_of(file)] == ["proof", "proof, 2 seeds"]
    file.write_text('why = "t"\n[[run]]\nsuite = "proof"\n[[run]]\nsuite = "proof"\nminutes = 1\n')
    with pytest.raises(UsageError, match="proof is asked for twice"):
        planning.parts_of(file)


def test_a_suite_that_can_not_run_here_leaves_the_others_their_turn(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def run_suite(plan: Any, *, turns: Any, **_: Any) -> None:
        if plan[0].experiment.name == "proof":
            raise UsageError("no GPU")
        ran.extend(turns(plan))

    monkeypatch.setattr(campaign, "run_suite", run_suite)
    parts = planning.parts_of(file)
    campaign.run_campaign(parts, seconds=60, out=tmp_path, progress=print)
    assert str(parts[0].problem) == "no GPU" and {one.experiment.name for one in ran} == {"chatter"}


@pytest.fixture
def wheels(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / "lossbench-0-py3-none-any.whl").write_bytes(b"w")
    yield folder


def test_a_bundle_holds_wheels_data_and_the_campaigns_own_suites(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.toml").write_text('name = "own"\n[topology]\nhosts = 2\n[workload]\nname = "noop"\n')
    (tmp_path / "data" / "wikitext2").mkdir(parents=True)
    (tmp_path / "data" / "wikitext2" / "wiki.train.tokens").write_text("words")
    (tmp_path / "c.toml").write_text(
        'why = "t"\n[[run]]\nsuite = "own.toml"\n[[run]]\nsuite = "packet-loss-llm"\n'
        'set = ["workload.options.data=wikitext2"]\n'
    )
    monkeypatch.setattr(offline.program, "prepare", lambda programs: None)
    monkeypatch.setenv("LOSSBENCH_DATA", "elsewhere")
    made = offline.make(
        tmp_path / "c.toml", wheels=wheels, data=tmp_path / "data", to=tmp_path / "b.tar.gz", part_mib=0
    )
    with tarfile.open(made[0]) as file:
        inside = {name.removeprefix(f"{offline.NAME}/") for name in file.getnames()}
    assert {"install.sh", "c.toml", "own.toml", "data/wikitext2/wiki.train.tokens"} <= inside
    assert "wheels/lossbench-0-py3-none-any.whl" in inside


PROFILE = 'why = "t"\n[loss]\nmodel = "trace"\nfile = "lost.txt"\n'


def of_two_machines(folder: Path, *, suite: str, settings: str = "") -> Path:
    """A campaign with a profile of the user's own, and its trace."""
    (folder / "profiles").mkdir(parents=True)
    (folder / "profiles" / "mine.toml").write_text(PROFILE)
    (folder / "profiles" / "lost.txt").write_text("0100" * 50)
    entry = 'name = "own"\n[topology]\nhosts = 2\n[workload]\nname = "noop"\n[[impair]]\nprofile = "clean"\n[sweep]\n'
    named = folder / "profiles" / "mine.toml" if suite == "in full" else "profiles/mine.toml"
    (folder / "own.toml").write_text(f'{entry}"impair.0.profile" = ["clean", "{named}"]\n')
    (folder / "c.toml").write_text(f'why = "t"\n[[run]]\nsuite = "{suite}"\nset = [{settings}]\n')
    return folder / "c.toml"


@pytest.mark.parametrize(
    ("suite", "settings"), [("own.toml", ""), ("proof", '"impair.0.profile=profiles/mine.toml"')], ids=["named", "set"]
)
def test_a_bundle_holds_the_profiles_that_its_experiments_name_and_plans_the_same_there(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suite: str, settings: str
) -> None:
    """As it was: the experiment without its profile, and the campaign ended there in its first line."""
    file = of_two_machines(tmp_path / "here", suite=suite, settings=settings)
    monkeypatch.setattr(offline.program, "prepare", lambda programs: None)
    (made,) = offline.make(file, wheels=wheels, data=None, to=tmp_path / "b.tar.gz", part_mib=0)
    before = [part.plan for part in planning.parts_of(file)]
    shutil.rmtree(tmp_path / "here")
    with tarfile.open(made) as packed:
        packed.extractall(tmp_path / "there", filter="data")
    assert [part.plan for part in planning.parts_of(tmp_path / "there" / offline.NAME / "c.toml")] == before


def test_a_bundle_is_refused_where_a_file_would_not_be_found_there(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offline.program, "prepare", lambda programs: None)
    file = of_two_machines(tmp_path / "here", suite="in full")
    file.write_text('why = "t"\n[[run]]\nsuite = "own.toml"\n')
    with pytest.raises(NotAbleError, match=r"mine.toml would not be found there"):
        offline.make(file, wheels=wheels, data=None, to=tmp_path / "b.tar.gz", part_mib=0)
    own = tmp_path / "here" / "own.toml"
    own.write_text('name = "own"\n[topology]\nhosts = 2\n[workload]\nname = "noop"\n')
    file.write_text(f'why = "t"\n[[run]]\nsuite = "own.toml"\nset = ["workload.options.recording={own}"]\n')
    with pytest.raises(NotAbleError, match="is a file of yours"):
        offline.make(file, wheels=wheels, data=None, to=tmp_path / "b.tar.gz", part_mib=0)


def test_a_bundle_without_our_wheel_says_how_to_make_it(file: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="make wheelhouse"):
        offline.make(file, wheels=tmp_path, data=None, to=tmp_path / "b.tar.gz", part_mib=0)


def command(file: Path, tmp_path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "lossbench.cli.main", "campaign", str(file), "--out", str(tmp_path / "o"), *more]
    return subprocess.run(line, capture_output=True, text=True, timeout=280, check=False)


@full
@pytest.mark.netns
def test_time_that_is_up_ends_a_run_leaves_nothing_and_the_same_command_goes_on(file: Path, tmp_path: Path) -> None:
    file.write_text('why = "t"\nset = ["probe.packets=2000"]\n[[run]]\nsuite = "chatter"\nseeds = 2\n')
    first = command(file, tmp_path, "--minutes", "0.15")
    assert " left: run the same command again to continue" in first.stdout and first.returncode == 3, (
        first.stdout,
        first.stderr,
    )
    assert "Traceback" not in first.stderr and left_behind() == []
    (folder,) = (tmp_path / "o").glob("*_chatter_*")
    before = len(list(folder.glob("*/summary.json")))
    then = command(file, tmp_path, "--minutes", "5", "--json")
    (said,) = json.loads(then.stdout)["suites"]
    assert (then.returncode, said["done"], said["runs"], said["verdict"]) == (0, 8, 8, "valid"), then.stderr
    assert before < 8 and len(list((tmp_path / "o").glob("*_chatter_*"))) == 1
    again = command(file, tmp_path, "--minutes", "5")
    assert "all is done" in again.stdout and again.returncode == 0


@full
@pytest.mark.netns
def test_a_run_that_outlasts_its_minutes_lets_the_others_have_their_turn(file: Path, tmp_path: Path) -> None:
    """As it was: it took all of every session, since nobody remembered how long it had had."""
    slow = TWO.replace("seconds=0.3", "seconds=600").replace("seeds = 2", "seeds = 1\nminutes = 0.15")
    file.write_text(slow.replace("minutes = 0.5", "only = [0]"))
    done = command(file, tmp_path, "--minutes", "0.5", "--json")
    slow_one, quick = json.loads(done.stdout)["suites"]
    assert (slow_one["done"], quick["done"]) == (0, 1), (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr and left_behind() == []
    kept = json.loads((Path(slow_one["dir"]) / "cut.json").read_text())
    part = planning.parts_of(file)[0]
    part.find(tmp_path / "o")
    assert part.expected_s(part.plan[0]) > min(kept.values()) > 1
