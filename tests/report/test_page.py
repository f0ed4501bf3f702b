"""The page and the pictures, as a browser and a reader meet them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lossbench.proof import prove, statistics
from lossbench.report import page
from lossbench.report.content import Content, gather
from lossbench.report.page import head
from lossbench.report.plots import canvas, distributions, paper
from lossbench.report.plots.figures import all_pictures
from lossbench.results.index import read_suite
from lossbench.spec import lossmodel

from . import made
from .test_figures import quickstart

STRATEGIES = ("reliable", "rps", "<b>&bold</b>")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def row(point: dict[str, Any], seed: int) -> dict[str, Any]:
    return {"train_loss": 1.0 + 0.1 * seed, "accuracy": 0.9, "ms_step": 5.0 + seed}


def full(folder: Path) -> Content:
    """Everything a page can show: curves, drift, samples, bursts, something unknown, something failed."""
    points = [{"workload.options.strategy": name} for name in STRATEGIES]
    place = made.suite(folder, points, 3, row)
    for number in range(9):
        run = place / f"{number:03d}"
        made.steps(run, [2.0 / (1 + n) for n in range(40)])
        made.samples(run, "step_ms", np.random.default_rng(number).exponential(5, size=500))
        proof = {
            "rule": "0:loss_10",
            "burst_seen": 1.1,
            "burst_asked": 1.11,
            "burst_counts": [90, 9, 1],
            "burst_shares": [0.9, 0.09, 0.01],
        }
        made.write(run / "proof.json", {"rows": [proof]})
    bad = json.loads((place / "004" / "summary.json").read_text())
    bad |= {"verdict": "failed", "columns": {"fault": "valid", "timing": "unknown", "outcome": "failed"}}
    bad["reasons"]["outcome"] = ["rank 1 ended with status 7; its last lines: <script>alert(1)</script>"]
    made.write(place / "004" / "summary.json", bad)
    return gather(read_suite(place))


@pytest.fixture
def html(tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    page.write([full(tmp_path)], ["photo.jpg: not a run folder: left out"], path)
    return path


def test_a_page_needs_nothing_else_and_trusts_nothing_it_shows(html: Path) -> None:
    text = html.read_text()
    assert not re.search(r'(src|href)="(https?:)?//', text)
    assert text.count("<script") == 1 and "<b>&bold" not in text and "&lt;script&gt;" in text


def test_what_came_out_is_said_first_then_drawn_then_tabled_then_how_it_was_made(html: Path) -> None:
    text = html.read_text()
    first = "rank 1 ended with status 7"
    places = [text.index(words) for words in (first, "<figure", "asked and proven", "made: results", "Where and how")]
    assert places == sorted(places) and "photo.jpg" in text


def test_below_the_title_stands_what_was_done(html: Path, tmp_path: Path) -> None:
    text = html.read_text()
    line = "suite made, 4 hosts, no rate limit; "
    assert text.index("<h1>") < text.index(line) < text.index("<figure") and "; 3 seeds; 2026-11-15</p>" in text
    place = made.suite(tmp_path / "own", [{"arm": {"name": "clean"}}, {"arm": {"name": "loss 5%"}}], 2, lambda *_: {})
    plan = made.read(place / "suite.json")
    for one in plan["plan"]:
        topology = {"hosts": 2, "rate_mbit": 1000.0}
        one["experiment"] = {"topology": topology, "workload": {"command": ["python", "train.py", "a b"]}}
    made.write(place / "suite.json", plan)
    said = head.done(read_suite(place))
    assert said == "python train.py 'a b', 2 hosts, 1000 Mbit/s; clean, loss 5%; 2 seeds; 2026-11-15"


def test_every_number_leads_to_its_run_folder(html: Path) -> None:
    """From each line of each table to the runs it stands on."""
    text = html.read_text()
    sources = text[text.index("Where every number") : text.index("All 9 runs")]
    lines = re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td>.*?</tr>", sources)
    links = re.findall(r'href="([^"]+)"', sources)
    assert links and all((html.parent / link / "summary.json").exists() for link in links)
    for measure in ("train_loss", "ms_step", "train_loss minus reliable", "step_ms p50", "kernel loss", "burst"):
        assert ("rps", measure) in lines, measure
    assert len(links) >= 3 * len(lines)


def test_pictures_share_no_ids_and_take_the_pages_colour(html: Path) -> None:
    text = html.read_text()
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids)) and canvas.INK not in text and "currentColor" in text
    for reference in re.findall(r"url\(#([^)]+)\)", text):
        assert reference in ids


def test_pictures_draw_themselves_where_their_data_is(tmp_path: Path) -> None:
    drawn = [picture.name for picture in all_pictures(full(tmp_path))]
    assert drawn == ["convergence", "convergence_in_time", "drift", "tail", "bursts"]
    bare = gather(read_suite(made.suite(tmp_path / "bare", [{"a": 1}], 1, row)))
    assert all_pictures(bare) == []


def test_a_numeric_sweep_is_drawn_with_its_intervals(tmp_path: Path) -> None:
    points = [{"impair.0.profile.loss.percent": p} for p in (0, 10, 20)]
    (picture,) = all_pictures(gather(read_suite(made.suite(tmp_path, points, 3, row))))
    axes = picture.panels[0].axes
    assert picture.name == "sweep" and axes.get_xlabel() == "loss (%)" and len(axes.containers) == 1
    assert axes.lines[0].get_xdata().tolist() == [0, 10, 20]


def test_a_sweep_of_ones_own_program_is_drawn_too(tmp_path: Path) -> None:
    points = [{"arm": f"loss {p}%"} for p in (0, 2, 5)]
    numbers = {"wall_s": 9.0, "packets": 100.0, "tcp_resent_percent": 1.5}
    place = made.suite(tmp_path, points, 2, lambda point, seed: dict(numbers))
    picture = next(one for one in all_pictures(gather(read_suite(place))) if one.name == "sweep")
    assert [one.axes.get_ylabel() for one in picture.panels] == ["wall (s)", "tcp resent (%)"]
    assert picture.panels[0].axes.get_xlabel() == "loss (%)" and picture.panels[0].keys[0].x == (0, 2, 5)


def test_two_points_of_a_sweep_are_drawn(tmp_path: Path) -> None:
    """As it was: the command that the README prints gave no picture of what was swept."""
    place = made.suite(tmp_path, [{"arm": f"loss {p}%"} for p in (0, 5)], 1, lambda point, seed: {"wall_s": 9.0})
    assert [one.name for one in all_pictures(gather(read_suite(place)))] == ["sweep"]


def test_drift_stands_on_both_formulas(tmp_path: Path) -> None:
    def drifted(point: dict[str, Any], seed: int) -> dict[str, Any]:
        return {"over_exact": 1.0 + 0.01 * seed, "arrived_2": 1 - point["percent"] / 100}

    points = [{"percent": p} for p in (5, 10, 40)]
    pictures = {p.name: p for p in all_pictures(gather(read_suite(made.suite(tmp_path, points, 3, drifted))))}
    exact, stated = pictures["theory"].panels[0].axes.lines[:2]
    at = np.searchsorted(exact.get_xdata(), 0.4)
    assert exact.get_ydata()[at] == pytest.approx(0.952, rel=0.02)
    assert stated.get_ydata()[at] == pytest.approx(0.571, rel=0.02)


def paper_like(place: Path, spec: dict[str, Any] | None = None, **changes: Any) -> Path:
    """Two runs with 0 and 10 % loss on every path; asked for as in the paper, but for what `spec` says."""
    for run, asked in (("000", 0.0), ("001", 0.1)):
        made.steps(place / run, [2.0] * 50)
        experiment = json.loads((place / run / "manifest.json").read_text())["experiment"]
        options = experiment["workload"]["options"]
        experiment["workload"]["options"] = paper.SET_UP["c" if options["data"] == "atis" else "a"] | options
        entry = {"profile": {"loss": {"model": "iid", "percent": 100 * asked}, "match": {"dscp": None}}, "hosts": "all"}
        experiment = {**experiment, "topology": {"hosts": 16}, "impair": [entry], **(spec or {})}
        more = {"path_loss": asked, "experiment": experiment}
        for name, parts in (("manifest.json", more), ("summary.json", {"asked_loss": [], **changes})):
            made.write(place / run / name, json.loads((place / run / name).read_text()) | parts)
    return place


LOST = {"model": "iid", "percent": 10}
BURSTS = {"model": "gilbert_elliott", "mean_percent": 10, "burst_packets_mean": 8}


@pytest.mark.parametrize(
    ("options", "spec", "drawn"),
    [
        ({}, {}, True),
        ({"strategy": "gradient_averaging", "strategy_options": {"owners": "random"}}, {}, True),
        ({"strategy": "gradient_averaging"}, {}, False),
        ({"strategy_options": {"every": 8}}, {}, False),
        ({"optimizer": "adamw"}, {}, False),
        ({"optimizer_options": {"momentum": 0.9}}, {}, False),
        ({"skew": 0.1}, {}, False),
        ({"coding": ["int8"]}, {}, False),
        ({}, {"topology": {"hosts": 4}}, False),
        ({}, {"impair": [{"profile": {"loss": {"model": "block", "percent": 10}}, "from_s": None}]}, True),
        ({}, {"impair": [{"profile": {"loss": BURSTS}}]}, False),
        ({}, {"impair": [{"profile": {"loss": LOST, "match": {"datagram": {"halves": ["all_gather"]}}}}]}, False),
        ({}, {"impair": [{"profile": {"loss": LOST}, "from_step": 0}]}, False),
        ({}, {"impair": [{"profile": {"loss": LOST}, "hosts": ["h1"]}]}, False),
    ],
)
def test_only_what_was_asked_for_as_in_the_paper_stands_beside_it(
    options: dict[str, Any], spec: dict[str, Any], drawn: bool, tmp_path: Path
) -> None:
    """As it was, by strategy, model and data alone: 4 workers with Adam stood beside its 16 with plain SGD."""
    like = {"strategy": "rps", "model": "resnet20", "data": "cifar10", **options}
    place = made.suite(tmp_path, [{"strategy": "s", "percent": p} for p in (0, 10)], 1, row, options=like)
    pictures = all_pictures(gather(read_suite(paper_like(place, spec))))
    assert ("paper" in [one.name for one in pictures]) is drawn


def test_a_simulated_run_is_drawn_beside_its_own_arrival_and_called_simulated(tmp_path: Path) -> None:
    """It was drawn beside the paper's points without loss, caption "genuine loss"."""
    points = [{"strategy": "rps", "percent": p} for p in (0, 10)]
    options = {"strategy": "rps", "model": "resnet20", "data": "cifar10"}
    place = paper_like(made.suite(tmp_path, points, 1, row, options=options), backend="simulated")
    first = all_pictures(gather(read_suite(place), with_simulated=True))[0]
    labels = [line.get_label() for line in first.panels[0].axes.lines]
    assert "paper 90%" in labels and "ours, simulated loss" in first.says


def test_another_data_set_is_not_a_figure_of_the_paper(tmp_path: Path) -> None:
    points = [{"strategy": "rps", "percent": p} for p in (0, 10)]
    options = {"strategy": "rps", "model": "resnet20", "data": "digits32"}
    place = paper_like(made.suite(tmp_path, points, 1, row, options=options))
    assert "paper" not in [one.name for one in all_pictures(gather(read_suite(place)))]


@pytest.mark.parametrize(("model", "drawn"), [("tagger_slots", True), ("tagger", False)])
def test_only_the_loss_of_slots_stands_beside_the_papers_atis(model: str, drawn: bool, tmp_path: Path) -> None:
    """As it was, the sum of two losses."""
    points = [{"strategy": "rps", "percent": p} for p in (0, 10)]
    options = {"strategy": "rps", "model": model, "data": "atis"}
    place = paper_like(made.suite(tmp_path, points, 1, row, options=options))
    assert ("paper" in [one.name for one in all_pictures(gather(read_suite(place)))]) == drawn


def test_asked_bursts_are_summed_to_one_length_and_each_pattern_counts_once(tmp_path: Path) -> None:
    """Rows that saw no long burst were left out of what was asked for long ones: asked 1.07, seen 9, truth 2.1."""
    chain = lossmodel.gilbert_from_means(mean=0.05, burst_packets_mean=8)
    place = made.suite(tmp_path, [{"p": "bursty_5"}], 3, row)
    for number in range(3):
        missing = lossmodel.predict(chain, seed=min(number, 1), count=4000)  # the last repeats the one before
        runs = statistics.bursts(missing)
        rows = [
            {
                "rule": "0:bursty_5",
                "burst_counts": prove._histogram(runs),
                "pattern": min(number, 1),
                "burst_shares": prove._asked_histogram(chain),
            }
        ]
        made.write(place / f"{number:03d}" / "proof.json", {"rows": rows})
    ((counts, asked),) = distributions.burst_lengths(gather(read_suite(place))).values()
    both = [statistics.bursts(lossmodel.predict(chain, seed=seed, count=4000)) for seed in (0, 1)]
    assert counts.sum() == sum(map(len, both))
    assert len(counts) == len(asked) == prove.LONGEST_BURST and asked.sum() == pytest.approx(counts.sum(), rel=1e-4)
    assert asked[15] == pytest.approx(counts.sum() * lossmodel.burst_lengths(chain, up_to=16)[15], rel=1e-3)


def test_burst_lengths_stand_in_the_order_of_points_the_three_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: loss_2, loss_5, loss_1 of a sweep, by their longest burst."""
    seen = {f"0:loss_{n}": (np.bincount([1, longest])[1:] * 60.0,) * 2 for n, longest in enumerate((3, 2, 5, 4))}
    monkeypatch.setattr(distributions, "burst_lengths", lambda _: seen)
    found = distributions.bursts(SimpleNamespace())  # type: ignore[arg-type]
    assert found is not None and [one.title for one in found.panels] == ["loss_0", "loss_2", "loss_3"]


def test_the_papers_figures_stand_beside_ours(tmp_path: Path) -> None:
    points = [{"strategy": "rps", "percent": p} for p in (0, 10)]
    options = {"strategy": "rps", "model": "resnet20", "data": "cifar10"}
    place = paper_like(made.suite(tmp_path, points, 1, row, options=options))
    first = all_pictures(gather(read_suite(place)))[0]
    labels = [line.get_label() for line in first.panels[0].axes.lines]
    assert first.name == "paper" and labels == ["rps 0", "rps 10", "paper base", "paper 90%"]
    assert first.panels[0].axes.lines[0].get_xdata().max() == pytest.approx(5, rel=0.1)  # 50 steps, 10 an epoch
    assert paper.paper()["fig4a"]["60%"][0] == (1.0, 2.1327)


def test_plots_are_saved_as_vector_and_png(tmp_path: Path) -> None:
    written = canvas.save(all_pictures(full(tmp_path))[:1], tmp_path / "plots")
    assert sorted(path.suffix for path in written) == [".pdf", ".png", ".svg"]
    assert (tmp_path / "plots" / "convergence.png").read_bytes()[:4] == b"\x89PNG"
    ET.parse(tmp_path / "plots" / "convergence.svg")


def look(page_file: Path, shot: Path, width: int, height: int) -> subprocess.CompletedProcess[str]:
    command = [
        str(BROWSER),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        f"--screenshot={shot}",
        f"--window-size={width},{height}",
        "--enable-logging=stderr",
        f"--user-data-dir={shot.parent / 'profile'}",
        page_file.as_uri(),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One that can show an empty page: else it says nothing about ours."""
    if BROWSER is None:
        pytest.skip("needs a browser (apt-get install chromium)")
    folder = tmp_path_factory.mktemp("browser")
    (folder / "empty.html").write_text("<!doctype html><title>empty</title>")
    try:
        look(folder / "empty.html", folder / "empty.png", 200, 200)
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"the browser does not run here: {error}")
    if not (folder / "empty.png").exists():
        pytest.skip("the browser does not run here: it shows not even an empty page")


@pytest.mark.usefixtures("browser")
@pytest.mark.parametrize(("width", "height"), [(1200, 1600), (390, 844)])
def test_a_browser_shows_the_page_without_a_complaint_or_a_request(width: int, height: int, html: Path) -> None:
    """The page forbids itself every request (Content-Security-Policy); a browser that refuses one says so."""
    assert "default-src 'none'" in html.read_text()
    shot = html.with_suffix(".png")
    done = look(html, shot, width, height)
    assert shot.exists(), done.stderr[-2000:]
    assert "CONSOLE" not in done.stderr, done.stderr[-2000:]
    assert len(shot.read_bytes()) > 5_000  # an empty one has a few hundred


@pytest.mark.usefixtures("browser")
def test_the_check_with_the_browser_can_fail(html: Path) -> None:
    html.write_text(html.read_text().replace("</body>", '<img src="http://192.0.2.1/x.png"></body>'))
    with pytest.raises(AssertionError, match="Content Security Policy"):
        test_a_browser_shows_the_page_without_a_complaint_or_a_request(800, 600, html)


DRIVE = """<script>
const figure = document.querySelector("figure"), [first] = figure.querySelectorAll("button");
const curve = document.getElementById(figure.dataset.own + "-c1").querySelector("path");
const box = curve.getBoundingClientRect();
const at = {clientX: box.left + 1, clientY: box.top + 1};
figure.querySelector("svg").dispatchEvent(new PointerEvent("pointermove", at));
const pointed = figure.querySelector("output").textContent;
first.click();
const gone = document.getElementById(figure.dataset.own + "-c0").style.display;
const cell = document.querySelector("td[data-more]");
cell.click();
document.body.dataset.seen = [gone, pointed, !document.getElementById("more").hidden].join("|");
</script></body>"""


@pytest.mark.usefixtures("browser")
def test_curves_can_be_pointed_at_and_put_away_and_cells_touched(html: Path) -> None:
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html.read_text())
    html.write_text(text.replace("</body>", DRIVE))
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"]
    command += ["--window-size=1200,900", f"--user-data-dir={html.parent / 'profile'}", html.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    seen = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert seen is not None, done.stderr[-1000:]
    gone, pointed, told = seen[1].split("|")
    assert gone == "none" and told == "true" and re.fullmatch(r".*: [\d.e+-]+, [\d.e+-]+", pointed), seen[1]


def test_many_curves_become_small_multiples_of_one_scale(tmp_path: Path) -> None:
    points = [{"percent": p, "strategy": name} for name in STRATEGIES for p in (0, 1, 5, 10)]
    place = made.suite(tmp_path, points, 1, row)
    for number in range(12):
        made.steps(place / f"{number:03d}", [2.0 + number - 0.01 * n for n in range(40)])
    picture = next(one for one in all_pictures(gather(read_suite(place))) if one.name == "convergence")
    assert [one.title for one in picture.panels] == list(STRATEGIES)
    assert [[key.name for key in one.keys] for one in picture.panels] == [["0", "1", "5", "10"]] * 3
    assert len({one.axes.get_ylim() for one in picture.panels}) == 1
    colours = [key.colour for key in picture.panels[0].keys]
    assert colours == [key.colour for key in picture.panels[1].keys] and len(set(colours)) == 4


def test_a_strategy_has_its_colour_in_every_picture(tmp_path: Path) -> None:
    points = [{"strategy": name, "percent": p} for name in STRATEGIES[:2] for p in (0, 10)]
    place = made.suite(tmp_path, points, 1, row)
    for number in range(4):
        made.steps(place / f"{number:03d}", [2.0 - 0.01 * n for n in range(40)])
        if number < 2:  # the first never drifts
            for path in (place / f"{number:03d}" / "records").iterdir():
                path.write_text(re.sub(r'"pair": [\d.]+', '"pair": 0.0', path.read_text()))
    pictures = {one.name: one for one in all_pictures(gather(read_suite(place)))}
    (loss,), (drift,) = pictures["convergence"].panels, pictures["drift"].panels
    colours = {key.name: key.colour for key in loss.keys}
    assert {key.name for key in drift.keys} == {"rps 0", "rps 10"}
    assert all(colours[key.name] == key.colour for key in drift.keys) and len(set(colours.values())) == 2


def test_the_tail_has_a_panel_for_each_kind_of_times_and_a_colour_for_each_point(tmp_path: Path) -> None:
    """As it was: lags of microseconds beside completions of seconds, two points to a panel, each in other colours."""
    place = made.suite(tmp_path, [{"arm": f"a{n}"} for n in range(4)], 1, row)
    for number in range(4):
        for name, scale in (("web.completion_ms", 100.0), ("web.lag_ms", 0.1)):
            made.samples(place / f"{number:03d}", name, scale * np.arange(1.0, 41.0))
    picture = next(one for one in all_pictures(gather(read_suite(place))) if one.name == "tail")
    assert [one.title for one in picture.panels] == ["web.completion", "web.lag"]
    completion, lag = ({key.name: key.colour for key in one.keys} for one in picture.panels)
    assert completion == lag and len(set(lag.values())) == 4


def test_numbers_below_a_short_logarithmic_axis_are_few_and_plain(tmp_path: Path) -> None:
    """As it was: 3x10^2 and 4x10^2 were written over each other."""
    place = made.suite(tmp_path, [{"arm": "a"}], 1, row)
    made.samples(place / "000", "step_ms", np.linspace(130.0, 1000.0, 60))
    picture = next(one for one in all_pictures(gather(read_suite(place))) if one.name == "tail")
    axis = picture.panels[0].axes.xaxis
    picture.panels[0].figure.draw_without_rendering()
    low, high = picture.panels[0].axes.get_xlim()
    shown = [tick.label1.get_text() for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    assert shown == ["200", "500", "1000"] and not any(tick.label1.get_text() for tick in axis.get_minor_ticks())


def test_of_a_failed_run_what_failed_is_said_first(tmp_path: Path) -> None:
    """As it was: behind whatever was not proven because of it."""
    said = {"fault": ["no packet passed"], "timing": ["too short"], "outcome": ["rank 1 ended\n  | SyntaxError"]}
    columns = {"fault": "unknown", "timing": "unknown", "outcome": "failed"}
    place = made.suite(tmp_path, [{"a": 1}], 1, row, columns=columns, reasons=said, verdict="failed")
    found = gather(read_suite(place))
    page.write([found], [], tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text()
    assert 0 < text.index("rank 1 ended") < text.index("no packet passed")
    assert found.reasons[0] == "outcome: rank 1 ended (1 #0):\n  | SyntaxError"


def test_a_page_says_the_same_failure_of_many_points_once(tmp_path: Path) -> None:
    """As it was: the traceback of the clean run, then of every other, word for word."""
    said = {"fault": [], "timing": [], "outcome": ["rank 1 ended\n  | SyntaxError"]}
    columns = {"fault": "valid", "timing": "valid", "outcome": "failed"}
    place = made.suite(tmp_path, [{"a": n} for n in "xyz"], 1, row, columns=columns, reasons=said, verdict="failed")
    page.write([gather(read_suite(place))], [], tmp_path / "out.html")
    first = (tmp_path / "out.html").read_text().partition("<h2>It failed</h2>")[2].partition("</section>")[0]
    assert first.count("SyntaxError") == 1 and "rank 1 ended (x #0; alike: every line):" in first, first


def test_that_no_time_is_said_is_folded_away_nowhere(tmp_path: Path) -> None:
    """As it was: behind "4 more findings"."""
    columns = {"fault": "valid", "timing": "unknown", "outcome": "valid"}
    points = [{"a": n} for n in "wxyz"]
    found = gather(read_suite(made.suite(tmp_path, points, 2, row, columns=columns)))
    page.write([found], [], tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text()
    folded = re.findall(r"<details><summary>\d+ more finding.*?</details>", text, re.DOTALL)
    untimed = [one for one in found.findings if one.startswith("Times are ")]
    assert untimed and all(one in text and not any(one in part for part in folded) for one in untimed), found.findings


def test_of_several_programs_each_has_its_outcome_said(tmp_path: Path) -> None:
    """As it was: one word for all of them, wherever people read."""
    said = {"fault": [], "timing": [], "outcome": ["web.ok = 0.5 (expected 0.9 to inf)"]}
    columns = {"fault": "valid", "timing": "valid", "outcome": "failed"}
    roles = {role: {"timing": "valid", "outcome": word} for role, word in (("", "valid"), ("web", "failed"))}
    more = {"columns": columns, "roles": roles, "reasons": said, "verdict": "failed"}
    found = gather(read_suite(made.suite(tmp_path, [{"a": 1}], 1, row, **more)))
    page.write([found], [], tmp_path / "out.html")
    assert any("by program: the workload valid, web failed" in text for text in found.reasons), found.reasons
    assert "by program: the workload valid, web failed" in (tmp_path / "out.html").read_text()


def test_times_that_are_not_valid_draw_no_curve_against_the_clock(tmp_path: Path) -> None:
    columns = {"fault": "valid", "timing": "unknown", "outcome": "valid"}
    place = made.suite(tmp_path, [{"a": 1}], 1, row, columns=columns)
    made.steps(place / "000", [2.0, 1.5, 1.0])
    drawn = [one.name for one in all_pictures(gather(read_suite(place)))]
    assert "convergence" in drawn and "convergence_in_time" not in drawn


def test_letters_have_twelve_pixels_on_a_phone() -> None:
    width = 390 - 2 * 8 - 2 * 4  # page.css: the body's and the figure's padding there
    assert float(str(canvas.STYLE["font.size"])) * width / (72 * canvas.WIDE) >= 12


def test_what_the_network_did_is_drawn_over_time(tmp_path: Path) -> None:
    place = made.suite(tmp_path, [{"a": 1}], 1, row)
    looks = [
        {"time_s": 100.0 + t, "hooks": {"h0 uplink": {"0:loss_10": {"seen": 50 * t, "dropped": 5 * t}}}}
        for t in range(6)
    ]
    (place / "000" / "counters.jsonl").write_text("".join(json.dumps(look) + "\n" for look in looks) + "{half a li")
    picture = next(one for one in all_pictures(gather(read_suite(place))) if one.name == "rates")
    sent, lost = picture.panels[0].keys
    assert set(sent.y) == {50.0} and set(lost.y) == {5.0}


def test_foreign_names_do_not_become_markup(tmp_path: Path) -> None:
    bad = 'q"><img src=x>'
    place = made.suite(tmp_path, [{"n": n} for n in (1, 2, 3)], 2, lambda p, s: {bad: 1.0 + s}, run_id='x"><meta x="')
    page.write([gather(read_suite(place))], [], tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text()
    assert "<img" not in text and '<meta x="' not in text


def test_seeds_of_different_lengths_are_averaged_at_the_same_steps(tmp_path: Path) -> None:
    place = made.suite(tmp_path, [{"a": 1}], 2, row)
    made.steps(place / "000", [100 - 0.1 * n for n in range(60)])
    made.steps(place / "001", [100 - 0.1 * n for n in range(600)])
    (line, *_) = all_pictures(gather(read_suite(place)))[0].panels[0].axes.lines
    assert line.get_xdata()[-1] <= 60 and line.get_ydata()[-1] == pytest.approx(94.1, abs=0.2)


def test_curves_of_runs_that_were_not_proven_say_so(tmp_path: Path) -> None:
    columns = {"fault": "failed", "timing": "valid", "outcome": "valid"}
    place = made.suite(tmp_path, [{"a": 1}], 2, row, columns=columns)
    for run in ("000", "001"):
        made.steps(place / run, [1.0, 0.5, 0.4])
    (line, *_) = all_pictures(gather(read_suite(place)))[0].panels[0].axes.lines
    assert line.get_label() == "1 ?"


PLACED = """<script>
document.body.dataset.seen = [document.querySelector("figure").getBoundingClientRect().top, innerHeight].join("|");
</script></body>"""


@pytest.mark.usefixtures("browser")
@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
def test_the_first_picture_is_seen_without_scrolling_and_a_page_is_below_a_megabyte(
    width: int, height: int, tmp_path: Path
) -> None:
    """The page that a first reader sees: quickstart's, with what came out above it."""
    content = gather(read_suite(quickstart(tmp_path, seeds=2)))
    assert len(content.findings) >= 2
    path = tmp_path / "report.html"
    page.write([content], [], path)
    assert path.stat().st_size < 1_000_000
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", path.read_text())
    path.write_text(text.replace("</body>", PLACED))
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"]
    command += [f"--window-size={width},{height}", f"--user-data-dir={tmp_path / 'profile'}", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    seen = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert seen is not None, done.stderr[-1000:]
    top, high = map(float, seen[1].split("|"))
    assert 0 < top < high, seen[1]


def test_numbers_on_a_logarithmic_axis_have_no_small_exponents(tmp_path: Path) -> None:
    """As it was: of 10^-4 the -4 had eight pixels on a telephone."""
    one = canvas.panel()
    one.axes.plot([1, 2, 3], [1e-4, 1e-2, 1.0])
    one.axes.set_yscale("log")
    one.plain_ticks()
    one.figure.draw_without_rendering()
    shown = [tick.label1.get_text() for tick in one.axes.yaxis.get_major_ticks()]
    assert {"0.0001", "0.01", "1"} <= set(shown) and not any("^" in text for text in shown), shown
    drawn = canvas.svg(one, own="x", title="x")
    assert ">0.0001<" in drawn and ">0.00<" not in drawn, "as it was: numbers at an axis were cut as places are"
    assert not re.search(r' d="[^"]*\.\d{3}', drawn)
