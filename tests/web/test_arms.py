"""Arms of the shipped suites, shortened, as users choose them: --arm, --set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lossbench.results.measures import number
from lossbench.spec import about
from lossbench.spec.asking import points
from lossbench.spec.userfile import read_toml
from lossbench.workloads.web.options import misfit, read_options
from tests.forked import lossbench
from tests.forms import forms
from tests.ground.test_docs import ROOT

HOSTS, SECONDS, STEPS = 4, 4, 10
SUITES = ("colocation-training", "colocation")


def arms(suite: str) -> list[str]:
    return [str(arm["name"]) for arm in read_toml(points.find(suite))["sweep"]["arm"]]


def shortened(folder: Path, suite: str, arm: str) -> dict[str, Any]:
    settings = {"topology.hosts": HOSTS, "probe.packets": 400, "beside.1.options.seconds": SECONDS}
    if suite == "colocation-training" and arm != "web alone":
        settings |= {"workload.options.steps": STEPS}
    if suite == "colocation" and arm != "web alone":
        settings |= {"workload.options.mbit": 3 * HOSTS, "workload.options.model_mb": 0.5}  # as many a host
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    done = lossbench("run", suite, "--arm", arm, *words, "--out", str(folder), "--json")
    assert done.stdout, done.stderr
    (one,) = json.loads(done.stdout)["summary"]
    return dict(one)


@pytest.mark.netns
@pytest.mark.training
@forms("suite, arm", [(suite, arm) for suite in SUITES for arm in arms(suite)])
def test_every_arm_of_a_shipped_suite_runs_and_is_what_it_says(tmp_path: Path, suite: str, arm: str) -> None:
    """As it was: the first to try them was a user. A service that is not alone shares links with learning that sent."""
    one = shortened(tmp_path, suite, arm)
    assert one["columns"]["fault"] == "valid" and one["columns"]["outcome"] == "valid", one["reasons"]
    assert one["point"]["arm"].split(", seconds=")[0] == arm
    web = next(row for row in one["rows"] if "web.n" in row)
    learning = [row for row in one["rows"] if number(row.get("packets")) or number(row.get("mb_step"))]
    assert bool(learning) == (arm != "web alone"), one["rows"]
    assert web["web.n"] + web.get("web.warm_up", 0) > 0 or arm.startswith("uncontended")
    if arm == "strict, saturated":
        assert learning[0]["offered"] == learning[0]["packets"], "what was offered is what was sent"
        assert learning[0]["packets"] * 1460 * 8 / SECONDS > 0.4e6 * 20 * HOSTS, "links are full of it"


@pytest.mark.parametrize("full", [False, True])
def test_factors_of_the_shipped_suites_are_those_of_their_links(tmp_path: Path, full: bool) -> None:
    found = 0
    for path in map(points.find, (*SUITES, "colocation-cost", "colocation-queues", "background-tail")):
        for _, one in points.points(path, settings=[], full=full):
            manifest = {"experiment": {"topology": {"rate_mbit": one.topology.rate_mbit}}}
            (tmp_path / "manifest.json").write_text(json.dumps(manifest))
            for options in (read_options(program.options) for program in one.beside if program.name == "web"):
                assert misfit(tmp_path, options) == "", path.name
                found += options.factor > 1
    assert found > 10
    (tmp_path / "manifest.json").write_text(
        json.dumps({"experiment": {"topology": {"uplink_rate_mbit": 40, "downlink_rate_mbit": 20}}})
    )
    slower = [misfit(tmp_path, read_options({"rate": 9, "factor": factor})) for factor in (50, 25)]
    assert slower[0] == "" and "link_mbit = 500" in slower[1], "links that are not alike go by the slower one"


def test_the_example_of_load_generators_of_others_is_an_experiment(tmp_path: Path) -> None:
    """As it was: there was none; that a class must go by its ports was to be found out."""
    text = (ROOT / "docs" / "colocation.md").read_text()
    block = text.partition("Load generators of others")[2].partition("Each host asks the next one")[0]
    lines = [line.removeprefix("    ") for line in block.splitlines() if line.startswith("    ")]
    shared = points.find("colocation").read_text().partition("[topology]")[2].partition("# A step takes")[0]
    (tmp_path / "mine.toml").write_text("[topology]" + shared + "\n".join(lines))
    ((_, one),) = points.points(tmp_path / "mine.toml", settings=[])
    server, load = one.beside
    assert (server.name, load.name, load.options["reads"]) == ("web.server", "web.external", "h2load")
    assert load.foreground and load.options["bytes"] == server.options["bytes"]


def test_the_service_alone_is_a_replay_that_is_silent_with_its_options() -> None:
    """`silent_with` of its workload.toml: what it was told not to send is no doubt, what it did not come to send is."""
    ((_, alone),) = points.points(points.find("colocation"), settings=["arm=web alone"])
    ((_, shared),) = points.points(points.find("colocation"), settings=["arm=shared queue"])
    assert about.about("replay").silent_with == {"mbit": 0}
    assert alone.workload.is_silent() and not shared.workload.is_silent()
