"""lossbench from Python: values, nothing printed; the names that users import."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import lossbench
from lossbench.errors import UsageError
from lossbench.spec.asking.adhoc import Asked
from lossbench.spec.asking.in_python import taken
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


def test_a_comparison_shows_itself_as_the_commands_tables(tmp_path: Path) -> None:
    """As it was: a list of nested values, unreadable at a prompt and in a notebook."""
    pytest.importorskip("scipy")
    a = made.suite(tmp_path / "a", [{"a": 1}], 3, row)
    b = made.suite(tmp_path / "b", [{"a": 1}], 3, lambda point, seed: {"train_loss": 3.0 + 0.02 * seed})
    found = lossbench.compare(str(a), str(b))
    assert repr(found).startswith("<lossbench compare made abc123 with made abc123: of 1 numbers: 1 different")
    shown = Console(record=True, width=100, file=io.StringIO())
    shown.print(found)
    said = " ".join(shown.export_text().split())
    assert said.index("A: made abc123") < said.index("paired t") < said.index("1 different, 0 the same within 10 %")
    assert "train_loss" in found._repr_html_() and "<p>A: made abc123" in found._repr_html_()
    assert [line.measure for line in found] == ["train_loss"] and found.tables[-1].title == "results"


def test_a_program_is_asked_for_in_python_as_on_the_command_line() -> None:
    """As it was: it could not be run from Python, but for a class that nothing named."""
    how: dict[str, Any] = {"hosts": 4, "loss": 3, "delay": "20ms", "time_limit": "20m", "seeds": 2}
    how["sweep"] = {"loss": [0, 1.5, "5%"], "rate": ["1gbit"]}
    asked = taken("", ["python", "train.py"], how)
    assert asked == Asked(
        command=("python", "train.py"), hosts="4", loss="3", delay="20ms", time_limit="20m", sweep=asked.sweep
    )
    assert asked.sweep == ("loss=0,1.5,5%", "rate=1gbit") and how == {"seeds": 2}
    assert taken("", "sh -c 'a b'", {}) == Asked(command=("sh", "-c", "a b"))
    assert taken("quickstart", (), how) == "quickstart"


@pytest.mark.netns
def test_a_program_runs_from_python(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    how: dict[str, Any] = {"hosts": 2, "sweep": {"loss": [5]}, "settings": "probe.packets=1000", "out": tmp_path}
    result = lossbench.run(command=[sys.executable, "-c", "pass"], **how)
    assert [one.point for one in result.summaries] == [{"arm": "loss 5%"}] and result.summaries[0].own_program
    assert capfd.readouterr() == ("", "")


@pytest.mark.netns
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({}, 'nothing to run; a suite (lossbench.run("quickstart")), or for example'),
        ({"suite": "proof", "command": ["true"]}, "proof already has a program of its own; give a suite, or command"),
        ({"suite": "proof", "loss": 3}, 'loss applies only to a command; settings=["KEY=VALUE"] changes a suite'),
        ({"command": ["true"], "loss": "150%"}, 'loss="150%": at most 100%; for example loss="3%"'),
        ({"command": ["true"], "time_limit": 0}, 'time_limit="0": no time at all; without a limit: time_limit="off"'),
        ({"command": ["true"], "sweep": {"speed": [1]}}, "sweep={'speed': [1]}: not a key and a list of values"),
        ({"command": ["true"], "sweep": {"loss": "1,5"}}, "sweep={'loss': 1,5}: not a key and a list of values"),
        ({"command": ["true"], "sweep": "loss=1"}, 'sweep maps keys to lists of values; for example sweep={"loss": [0'),
        ({"command": ["no-such-program"]}, "no such program: no-such-program"),
    ],
)
def test_what_is_wrong_with_a_program_is_said_of_arguments(how: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        lossbench.run(out=tmp_path, **how)
    assert str(raised.value).startswith(said), str(raised.value)
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
