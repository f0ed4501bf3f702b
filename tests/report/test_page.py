"""The page and the pictures, as a browser and a reader meet them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lossbench.proof import prove, statistics
from lossbench.report import page
from lossbench.report.content import Content, gather
from lossbench.report.plots import canvas, distributions, paper
from lossbench.report.plots.figures import all_pictures
from lossbench.results.index import read_suite
from lossbench.spec import lossmodel

from . import made

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
    assert "<script" not in text and "<b>&bold" not in text and "&lt;script&gt;" in text


def test_what_was_asked_and_proven_comes_first(html: Path) -> None:
    text = html.read_text()
    places = [text.index(words) for words in ("asked and proven", "made: results", "<svg", "Where every number")]
    assert places == sorted(places) and "photo.jpg" in text


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
    assert [p.name for p in all_pictures(full(tmp_path))] == ["convergence", "drift", "tail", "bursts"]
    bare = gather(read_suite(made.suite(tmp_path / "bare", [{"a": 1}], 1, row)))
    assert all_pictures(bare) == []


def test_a_numeric_sweep_is_drawn_with_its_intervals(tmp_path: Path) -> None:
    points = [{"impair.0.profile.loss.percent": p} for p in (0, 10, 20)]
    (picture,) = all_pictures(gather(read_suite(made.suite(tmp_path, points, 3, row))))
    axes = picture.figure.axes[0]
    assert picture.name == "sweep" and axes.get_xlabel() == "loss percent" and len(axes.containers) == 1
    assert axes.lines[0].get_xdata().tolist() == [0, 10, 20]


def test_drift_stands_on_both_formulas(tmp_path: Path) -> None:
    def drifted(point: dict[str, Any], seed: int) -> dict[str, Any]:
        return {"over_exact": 1.0 + 0.01 * seed, "arrived_2": 1 - point["percent"] / 100}

    points = [{"percent": p} for p in (5, 10, 40)]
    pictures = {p.name: p for p in all_pictures(gather(read_suite(made.suite(tmp_path, points, 3, drifted))))}
    exact, stated = pictures["theory"].figure.axes[0].lines[:2]
    at = np.searchsorted(exact.get_xdata(), 0.4)
    assert exact.get_ydata()[at] == pytest.approx(0.952, rel=0.02)
    assert stated.get_ydata()[at] == pytest.approx(0.571, rel=0.02)


def paper_like(place: Path, **changes: Any) -> Path:
    """Two runs with 0 and 10 % loss on every path."""
    for run, asked in (("000", 0.0), ("001", 0.1)):
        made.steps(place / run, [2.0] * 50)
        for name, more in (("manifest.json", {"path_loss": asked}), ("summary.json", {"asked_loss": [], **changes})):
            made.write(place / run / name, json.loads((place / run / name).read_text()) | more)
    return place


def test_a_simulated_run_is_drawn_beside_its_own_arrival_and_called_simulated(tmp_path: Path) -> None:
    """It was drawn beside the paper's points without loss, caption "genuine loss"."""
    points = [{"strategy": "rps", "percent": p} for p in (0, 10)]
    options = {"strategy": "rps", "model": "resnet20", "data": "cifar10"}
    place = paper_like(made.suite(tmp_path, points, 1, row, options=options), backend="simulated")
    first = all_pictures(gather(read_suite(place), with_simulated=True))[0]
    labels = [line.get_label() for line in first.figure.axes[0].lines]
    assert "paper 90%" in labels and "ours, simulated loss" in first.says


def test_another_data_set_is_not_a_figure_of_the_paper(tmp_path: Path) -> None:
    points = [{"strategy": "rps", "percent": p} for p in (0, 10)]
    options = {"strategy": "rps", "model": "resnet20", "data": "digits32"}
    place = paper_like(made.suite(tmp_path, points, 1, row, options=options))
    assert "paper" not in [one.name for one in all_pictures(gather(read_suite(place)))]


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


def test_the_papers_figures_stand_beside_ours(tmp_path: Path) -> None:
    points = [{"strategy": "rps", "percent": p} for p in (0, 10)]
    options = {"strategy": "rps", "model": "resnet20", "data": "cifar10"}
    place = paper_like(made.suite(tmp_path, points, 1, row, options=options))
    first = all_pictures(gather(read_suite(place)))[0]
    labels = [line.get_label() for line in first.figure.axes[0].lines]
    assert first.name == "paper" and labels == ["rps 0", "rps 10", "paper base", "paper 90%"]
    assert first.figure.axes[0].lines[0].get_xdata().max() == pytest.approx(5, rel=0.1)  # 50 steps, 10 an epoch
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
    (line, *_) = all_pictures(gather(read_suite(place)))[0].figure.axes[0].lines
    assert line.get_xdata()[-1] <= 60 and line.get_ydata()[-1] == pytest.approx(94.1, abs=0.2)


def test_curves_of_runs_that_were_not_proven_say_so(tmp_path: Path) -> None:
    columns = {"fault": "failed", "timing": "valid", "outcome": "valid"}
    place = made.suite(tmp_path, [{"a": 1}], 2, row, columns=columns)
    for run in ("000", "001"):
        made.steps(place / run, [1.0, 0.5, 0.4])
    (line, *_) = all_pictures(gather(read_suite(place)))[0].figure.axes[0].lines
    assert line.get_label() == "1 ?"
