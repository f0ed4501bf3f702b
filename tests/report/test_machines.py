"""What machines read: schemas, JUnit, the step summary of GitHub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lossbench import api
from lossbench.report.export import junit
from lossbench.results.models import RunSummary
from lossbench.runs.many.suite import Planned, plan_of
from lossbench.spec.asking import points
from lossbench.spec.experiment import Experiment
from tests.forked import lossbench
from tests.shared import ROOT

from . import made

jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema")


def row(point: dict[str, Any], seed: int) -> dict[str, Any]:
    return {"train_loss": 1.0 + seed}


@pytest.mark.parametrize("path", sorted(points.SUITES.rglob("*.toml")), ids=lambda path: path.stem)
def test_every_suite_that_comes_along_fits_the_schema_of_experiments(path: Path) -> None:
    jsonschema.validate(tomllib.loads(path.read_text()), schema("experiment"))


@cache
def schema(kind: str) -> dict[str, Any]:
    return api.schema(kind)


@pytest.mark.parametrize("path", sorted((ROOT / "netem_profiles").glob("*.toml")), ids=lambda path: path.stem)
def test_every_profile_fits_the_schema_of_profiles(path: Path) -> None:
    data = {"name": path.stem, **tomllib.loads(path.read_text())}
    jsonschema.validate(data, schema("profile"))


def test_a_typo_does_not_fit() -> None:
    with pytest.raises(jsonschema.ValidationError, match="hostz"):
        jsonschema.validate({"topology": {"hostz": 3}}, api.schema("experiment"))


def test_results_fit_their_schemas(tmp_path: Path) -> None:
    place = made.suite(tmp_path, [{"a": 1}], 2, row)
    jsonschema.validate(json.loads((place / "suite.json").read_text()), api.schema("suite"))
    jsonschema.validate(json.loads((place / "summary.json").read_text()), api.schema("result"))
    jsonschema.validate(json.loads((place / "000" / "summary.json").read_text()), api.schema("run"))
    with pytest.raises(ValueError, match="verdict"):
        RunSummary.model_validate(made.summary({}, 0, [], verdict="fine"))


@pytest.mark.parametrize("name", points.suite_names())
def test_a_plan_read_back_from_disk_is_the_plan_that_was_written(name: str) -> None:
    """That is what resuming and replaying stand on."""
    for full in (False, True):
        try:
            plan = plan_of(points.points(points.find(name), settings=[], full=full), seeds=2)
        except Exception as error:  # noqa: BLE001 - a suite without a full form
            assert "no full form" in str(error)
            continue
        for one in plan:
            told = json.loads(json.dumps(one.as_json()))
            again = Planned(
                number=one.number,
                chosen=told["point"],
                seed=told["seed"],
                experiment=Experiment.model_validate(told["experiment"]),
            )
            assert again.experiment == one.experiment and again.as_json() == told


def test_junit_tells_failed_from_unknown(tmp_path: Path) -> None:
    place = made.suite(tmp_path, [{"a": 1}, {"a": 2}, {"a": 3}], 1, row)
    found = json.loads((place / "summary.json").read_text())
    for number, word in ((1, "failed"), (2, "unknown")):
        one = found["summary"][number]
        one |= {"verdict": word, "columns": {"fault": "valid", "timing": "valid", "outcome": word}}
        one["reasons"]["outcome"] = [f"because & <{word}>"]
    junit.write(
        [("made", [RunSummary.model_validate(one) for one in found["summary"]])], tmp_path / "out" / "junit.xml"
    )
    (suite,) = ET.parse(tmp_path / "out" / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    bad = {case.get("name"): [child.tag for child in case if child.tag != "system-out"] for case in suite}
    assert bad == {"1 seed 0": [], "2 seed 0": ["failure"], "3 seed 0": ["error"]}
    assert suite[1][0].get("message") == "outcome failed: because & <failed>"


def test_a_step_summary_is_written_where_github_wants_it(tmp_path: Path) -> None:
    made.suite(tmp_path, [{"a": 1}], 2, row)
    target = tmp_path / "summary.md"
    command = [sys.executable, "-m", "lossbench.cli.main", "report", "made", "--in", str(tmp_path), "--github-summary"]
    environment = {**os.environ, "GITHUB_STEP_SUMMARY": str(target)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "## lossbench made: valid" in target.read_text() and "| 1 | 2 |" in target.read_text()
    environment.pop("GITHUB_STEP_SUMMARY")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "GITHUB_STEP_SUMMARY is not set" in done.stderr


def test_runs_that_did_not_end_are_errors_in_junit(tmp_path: Path) -> None:
    place = made.suite(tmp_path, [{"a": 1}], 4, row)
    (place / "002" / "summary.json").unlink()
    assert lossbench("report", "made", "--in", str(tmp_path), "--junit", "v.xml", cwd=tmp_path).returncode == 0
    (suite,) = ET.parse(tmp_path / "v.xml").getroot()
    assert (suite.get("tests"), suite.get("errors")) == ("4", "1")


def test_junit_stays_xml_whatever_a_log_says(tmp_path: Path) -> None:
    one = made.summary({"a": 1}, 0, [], verdict="failed", columns={"outcome": "failed"})
    said = {"reasons": {"outcome": ["rank 1: \x1b[31mred\x00 \udcff"]}}
    junit.write([("made", [RunSummary.model_validate(one).model_copy(update=said)])], tmp_path / "v.xml")
    assert "red" in str(ET.parse(tmp_path / "v.xml").getroot()[0][0][0].get("message"))
