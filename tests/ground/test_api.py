"""lossbench from Python: values, nothing printed; the names that users import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lossbench
from lossbench.errors import UsageError
from tests.report import made


def row(point: dict[str, int], seed: int) -> dict[str, float]:
    return {"train_loss": 1.0 + point["a"] + 0.01 * seed}


def test_results_are_loaded_and_compared_without_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("scipy")
    place = made.suite(tmp_path, [{"a": 1}, {"a": 2}], 3, row)
    (suite,) = lossbench.load(str(place), where=tmp_path)
    assert suite.name == "made" and len(suite.runs) == 6
    lines = lossbench.compare(str(place), str(place), where=tmp_path)
    assert lines and not any(line.change.significant for line in lines)
    assert lossbench.compare(suite, str(place), where=tmp_path) == lines
    assert capsys.readouterr() == ("", "")


@pytest.mark.netns
def test_a_run_is_a_value(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = lossbench.run("proof", settings=["workload.options.seconds=0.4"], out=tmp_path)
    assert result.verdict == "valid" and result.folder.parent == tmp_path
    assert result.summaries[0].columns["fault"] == "valid"
    assert lossbench.load("latest", where=tmp_path)[0].id == result.run_id
    assert capfd.readouterr() == ("", "")


@pytest.mark.netns
@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ({"seeds": 0}, UsageError, "seeds 0: at least 1"),
        ({"sets": ["topology.hosts=2"]}, TypeError, r"run\(\) has no argument 'sets'; did you mean"),
        ({"settings": "topolgy.hosts=2"}, UsageError, "proof.toml, with --set: unknown key 'topolgy'"),
    ],
)
def test_a_wrong_argument_is_said_before_anything_runs(
    how: dict[str, Any], error: type[Exception], said: str, tmp_path: Path
) -> None:
    """As it was: no seeds were as many as the suite has, a lone setting was taken letter by letter, and a misspelt
    argument was one of a function that nobody had called."""
    with pytest.raises(error, match=said):
        lossbench.run("proof", out=tmp_path, **how)
    assert not list(tmp_path.iterdir())


@pytest.mark.netns
def test_the_doctor_answers_with_values() -> None:
    found = lossbench.doctor()
    assert found["backend"]["name"] in found["backend"]["able"]


@pytest.mark.training
def test_the_names_that_users_import() -> None:
    code = (
        "from lossbench import Door, sync\n"
        "import torch.distributed as dist, lossbench.torch\n"
        "assert 'lossy' in dist.Backend.backend_list and sync.STRATEGIES['rps'] and Door.from_environment().rank == 0\n"
        "assert lossbench.torch.Policy is not None\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    code = "import sys, lossbench; print([m for m in ('numpy', 'pydantic', 'pyroute2', 'torch') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
    with pytest.raises(AttributeError):
        _ = lossbench.nothing_of_that_name


def test_numbers_of_a_network_may_be_numbers() -> None:
    """As it was: `loss=3` was a TypeError of ours; now it counts in the unit that people mean, as on a command line."""
    asked, words = (
        lossbench.Network(hosts=3, **one)._experiment()
        for one in (
            {"loss": 3, "burst": 8, "delay": 20.5, "rate": 100},
            {"loss": "3%", "burst": "8", "delay": "20.5ms", "rate": "100mbit"},
        )
    )
    assert asked == words and asked.topology.hosts == 3 and asked.topology.rate_mbit == 100
    assert lossbench.Network(loss=0)._experiment() == lossbench.Network()._experiment()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"loss": 150}, 'loss="150": at most 100%; for example loss="3%"'),
        ({"loss": "much"}, "loss: 'much' is not a number of %; for example loss=\"3%\""),
        ({"burst": 8}, "burst says how losses come together; give loss too"),
        ({"hosts": 1}, 'hosts="1": at least 2; for example hosts="4"'),
    ],
)
def test_a_mistake_in_python_is_not_said_of_options(how: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        lossbench.Network(**how)._experiment()
    assert str(raised.value) == said
