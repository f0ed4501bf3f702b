"""What is seen while a suite goes: the view at a terminal, the line of a notebook. Neither ends a run, whatever it is
told: so that something is shown is what these tests hold."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from lossbench.cli.console import Terminal
from lossbench.cli.screen import live
from lossbench.report.export.handle import Progress
from lossbench.runs.many.suite import Planned
from lossbench.spec.experiment import Experiment, Workload


def planned(number: int, *command: str) -> Planned:
    experiment = Experiment(name="mine", workload=Workload(command=command or ("true",)))
    return Planned(number=number, chosen={"arm": f"loss {number}%"}, experiment=experiment, seed=number)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    monkeypatch.setattr(live, "time", one)
    return one


def view(*, terminal: bool, **how: Any) -> tuple[live.View, io.StringIO]:
    out = io.StringIO()
    console = Terminal(file=out, force_terminal=terminal, width=120, color_system=None)
    return live.View(console, **{"quiet": False, **how}), out


def drawn(one: live.View) -> str:
    """What stands on the screen now."""
    shown = Terminal(file=io.StringIO(), record=True, width=120)
    shown.print(one._live.get_renderable())
    return shown.export_text()


def test_the_view_shows_where_a_run_is_what_it_says_and_how_long_it_takes(tmp_path: Path, clock: Clock) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("loading\nepoch 1 of 3\nhalf a li")
    told = {"elapsed_s": 5.0, "steps": 100, "last_step": 49, "loss": 0.25, "log": str(log), "network": lambda: (200, 6)}
    one, _ = view(terminal=True)
    with one:
        assert "looking at the machine" in drawn(one)
        one.show(planned(0), 4, 4, "2 building")
        assert "mine: run 1 of 4" in drawn(one) and "stage 2 building" in drawn(one) and "left" not in drawn(one)
        clock.now += 10
        one.show(planned(0), 4, 4, told)
        said = drawn(one)
        assert "loss 0%, seed 0" in said and "5 s, step 50 of 100, loss 0.25, 10 steps/s" in said
        assert "rank 0: epoch 1 of 3" in said, "its last line that is whole"
        assert "network: 6 of 200 packets lost (3.00 %)" in said
        assert "70 s left" in said, "half a run took 10 s; three and a half are left"
        log.write_text("loading\nepoch 1 of 3\nhalf a line\n")
        one.show(planned(0), 4, 4, "9 judging")
        assert "rank 0: half a line" in drawn(one) and "30 s left" in drawn(one)
        one.show(planned(1), 4, 3, "2 building")
        said = drawn(one)
        assert "run 2 of 4" in said and "loss 1%, seed 1" in said and "packets lost" not in said
        clock.now += 400
        one.show(planned(1), 4, 3, {**told, "log": ""})
        assert "11 min left" in drawn(one) and "rank 0" not in drawn(one)


@pytest.mark.parametrize("odd", [{"loss": "x", "steps": None}, {"steps": 0, "last_step": 3}, {"network": None}, {}])
def test_no_record_of_a_program_ends_a_run_or_its_view(odd: dict[str, Any], clock: Clock) -> None:
    one, _ = view(terminal=True)
    with one:
        one.show(planned(0), 2, 2, "5 running")
        one.show(planned(0), 2, 2, {"elapsed_s": 1.0, **odd})
        one.show(planned(1), 2, 1, "2 building")
        assert "run 2 of 2" in drawn(one)


def test_elsewhere_every_run_is_a_line_and_with_tee_so_is_what_rank_0_prints(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("first\n[bold]second[/]\nthi")
    one, out = view(terminal=False, tee=True)
    with one:
        for n in range(2):
            one.show(planned(n), 2, 2 - n, "2 building")
        one.show(planned(1), 2, 1, {"log": str(log)})
    assert out.getvalue() == ("run 1 of 2: loss 0%, seed 0\nrun 2 of 2: loss 1%, seed 1\nfirst\n[bold]second[/]\n")
    one, out = view(terminal=False, quiet=True)
    with one:
        one.show(planned(0), 2, 2, "2 building")
    assert out.getvalue() == ""


def test_the_interpreter_is_named_before_the_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: only --dry-run said it, and only of the word `python`."""
    said = {}
    for word in ("python", "python3", "true"):
        one, out = view(terminal=False, here=True)
        monkeypatch.setattr("lossbench.runs.launch.program.which", lambda name: f"/found{name}")
        for n in range(2):
            one.show(planned(n, word, "x.py"), 2, 2 - n, "2 building")
        said[word] = out.getvalue().splitlines()
    assert said["python"][0] == f"python is /found{sys.executable}" and len(said["python"]) == 3
    assert said["python3"][0].startswith("python3 is /foundpython3; `python` is the one that runs lossbench: ")
    assert len(said["true"]) == 2
    one, out = view(terminal=False)
    one.show(planned(0, "python", "x.py"), 1, 1, "2 building")
    assert out.getvalue() == "run 1 of 1: loss 0%, seed 0\n", "machines of a lab have their own"


def test_a_notebook_has_one_line_that_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    display = ModuleType("IPython.display")
    handle = SimpleNamespace(update=shown.append)
    vars(display).update(HTML=str, display=lambda text, display_id: handle)
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    progress = Progress()
    for n in range(2):
        progress(planned(n), 2, 2 - n, "2 <building>")
        progress(planned(n), 2, 2 - n, {"elapsed_s": 7.4})
        progress(planned(n), 2, 2 - n, {})
    assert [text.partition("</progress> ")[2] for text in shown[:3]] == [
        f"run 1 of 2: loss 0%, seed 0 ({stage})" for stage in ("2 &lt;building&gt;", "7 s", "0 s")
    ]
    assert '<progress max="2" value="1">' in shown[-1] and "run 2 of 2: loss 1%, seed 1" in shown[-1]
