"""What a newcomer types wrong, and what is answered: what is wrong with it, and what would be right."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from lossbench.cli import main
from lossbench.cli.making import run
from lossbench.cli.reading import export, report
from lossbench.errors import ExitCode, UsageError
from lossbench.results import index
from lossbench.runs.launch import program
from lossbench.runs.many import planning, suite
from lossbench.spec import units
from lossbench.spec.asking import adhoc
from lossbench.spec.experiment import Experiment
from lossbench.spec.userfile import check, read_toml
from tests.report import made


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where it is typed: an empty folder, a file, a result."""
    (tmp_path / "adir").mkdir()
    (tmp_path / "mine.toml").write_text('name = "mine\n[topology]\nhosts = 2\n')
    made.suite(tmp_path / "runs", [{"a": 1}], 1, lambda point, seed: {"x": 1.0}, name="broken", run_id="ab12cd")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def resumed(what: str) -> Any:
    return planning.planned(what, [], None, full=False, out=Path("runs"), resume=True)


MISTAKES: dict[str, tuple[Any, str]] = {
    "a loss below nothing": (lambda: adhoc.text(adhoc.Asked(loss="-3%")), "--loss: '-3%' is less than nothing"),
    "a key of a sweep": (lambda: adhoc.text(adhoc.Asked(sweep=("los=0,5",))), "no such key; did you mean loss?"),
    "a sweep without values": (lambda: adhoc.text(adhoc.Asked(sweep=("loss",))), "--sweep loss: not KEY=VALUE,VALUE"),
    "twice the same": (
        lambda: adhoc.text(adhoc.Asked(loss="3%", sweep=("loss=0,5",))),
        "--loss and --sweep loss exclude each other; give one of them; both values: --sweep loss=3%,0,5",
    ),
    "a script as a program": (lambda: program._present(["nosuch.py"]), "no such script: nosuch.py; paths are taken"),
    "a folder as a program": (lambda: program._present(["adir"]), "adir is a folder, no program"),
    "a folder as a script": (
        lambda: program._present([sys.executable, "adir"]),
        "adir is a folder without a __main__.py; name a script",
    ),
    "a key of a file": (
        lambda: check(Experiment, {"name": "x", "topology": {"hots": 2}}, origin="x"),
        "unknown key 'topology.hots'; did you mean hosts? allowed:",
    ),
    "a word for a number": (
        lambda: check(Experiment, {"name": "x", "topology": {"rate_mbit": "fast"}}, origin="x"),
        "topology.rate_mbit: 'fast' is not a number of kbit, mbit, gbit",
    ),
    "a quote that is missing": (lambda: read_toml(Path("mine.toml")), '(at line 1, column 13): name = "mine'),
    "a folder without results": (lambda: index.pick(["adir"], Path("none")), "adir holds no results"),
    "the same where there are some": (lambda: index.pick(["adir"], Path("runs")), "adir holds no results"),
    "a file for a result": (lambda: index.pick(["mine.toml"], Path("runs")), "mine.toml is a file; name a result"),
    "all results for one": (
        lambda: index.pick(["runs"], Path("none")),
        "runs holds several results; name one of them; lossbench report --in runs",
    ),
    "a result's name": (lambda: index.pick(["brokn"], Path("runs")), "no run 'brokn' in runs; did you mean broken?"),
    "a folder for a page": (
        lambda: report.check_targets(html=Path("adir"), plots=None, junit=None, github=False),
        "give a file: --html adir/report.html",
    ),
    "a file for a folder of tables": (lambda: export._refuse_files({"csv": Path("x.csv")}), "--csv x.csv: a folder"),
    "a file for the folder of results": (lambda: run._refuse_a_file(Path("mine.toml")), "--out mine.toml is a file"),
    "nothing to resume": (lambda: resumed("adir"), "adir: nothing was planned there that could be resumed"),
    "a folder to resume that is not there": (lambda: resumed("runs/x"), "runs/x: no such folder; lossbench report"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_named_with_what_would_be_right(what: str) -> None:
    asked, said = MISTAKES[what]
    with pytest.raises(UsageError) as caught:
        asked()
    assert said in str(caught.value) and "\n" not in str(caught.value), str(caught.value)


def test_a_folder_to_run_is_resumed_only_if_it_is_a_result(folder: Path) -> None:
    """As it was: "to continue an interrupted run add --resume", of any folder."""
    (result,) = (folder / "runs").iterdir()
    for what, said in (("adir", "give a suite"), (str(result), "add --resume")):
        with pytest.raises(UsageError, match=said):
            planning.planned(what, [], None, full=False, out=Path("runs"), resume=False)
    assert suite.is_one(result) and not suite.is_one(Path("adir"))


def test_resume_alone_is_asked_what() -> None:
    said = str(run._not_one_thing(None, resume=True))
    assert said.startswith("resume what? lossbench run FOLDER --resume")


def test_the_help_that_is_named_is_that_of_the_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was, of an option without its value: see lossbench --help."""
    for words, verb in ((["export", "x", "--csv"], "lossbench export"), (["net", "up", "--hosts"], "lossbench net up")):
        monkeypatch.setattr(sys, "argv", ["lossbench", *words])
        assert main._verb() == verb


def test_numbers_above_nothing_are_read_as_before() -> None:
    assert units.read("3%", "percent") == 3 and units.read("20ms", "s") == pytest.approx(0.02)


def test_what_may_not_be_read_comes_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def forbidden(**_: object) -> None:
        raise PermissionError(13, "Permission denied", "/root/x")

    monkeypatch.setattr("lossbench.cli.app.app", forbidden)
    assert main._run() == ExitCode.NOT_ABLE
    assert "check its permissions, or use sudo" in " ".join(capsys.readouterr().err.split())
