"""What a file says is text: a terminal never obeys it."""

from __future__ import annotations

import ast
import io
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.style import Style
from rich.table import Table
from rich.text import Text

from lossbench.cli import clean, doctor, main
from lossbench.cli.console import Terminal, plain
from lossbench.cli.reading.report import say_findings
from lossbench.cli.screen import tables
from lossbench.errors import ExitCode, RunError
from lossbench.net.journal import Removed
from lossbench.report.content import gather
from lossbench.results.index import read_suite
from lossbench.results.naming import counted
from tests.forked import lossbench
from tests.forms import forms
from tests.report import made

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "tests" / "results" / "stored" / "20261116-020434_collectives_23bdd9"
CLIPBOARD, CLEAR, C1, TURNED = "\x1b]52;c;ZXZpbA==\x07", "\x1b[2J", "\x9b2J", "\u202e"
EVIL = f"a{CLIPBOARD}{CLEAR}{C1}\r{TURNED}z"
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.fixture
def doctored(tmp_path: Path) -> Path:
    folder = tmp_path / STORED.name
    shutil.copytree(STORED, folder)
    for path in folder.glob("*/summary.json"):
        found = json.loads(path.read_text())
        found["reasons"] = {"fault": [EVIL]}
        found["columns"]["fault"] = "unknown"
        found["rows"] = [{**row, "operation": f"all_reduce{EVIL}"} for row in found.get("rows", [])]
        path.write_text(json.dumps(found))
    (folder / "002").mkdir()
    (folder / "002" / "summary.json").write_text(f'{{"x{CLEAR}": 1}}')
    return folder


@forms("wanted", [[], ["--format", "csv"], ["--format", "markdown"]], ids=["tables", "csv", "markdown"])
def test_a_doctored_results_folder_says_nothing_to_the_terminal(doctored: Path, wanted: list[str]) -> None:
    """As it was: OSC 52 put words of a stranger's summary.json into the clipboard of whoever looked at it."""
    done = lossbench("report", str(doctored), *wanted)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "Traceback" not in said, said
    assert not OBEYED.search(said.replace("\r\n", "\n")), repr(OBEYED.search(said))
    assert wanted or "\\x1b" in said, "shown, not hidden"


def test_a_mistake_in_a_file_is_told_without_obeying_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        f'["to{EVIL.encode("unicode_escape").decode().replace(chr(92) + "x", chr(92) + "u00")}"]\nhosts = 2\n'
    )
    done = lossbench("run", str(path))
    assert done.returncode == 2 and not OBEYED.search(done.stdout + done.stderr), done.stderr


def test_colours_stay_and_what_stands_between_them_is_plain() -> None:
    out = io.StringIO()
    console = Terminal(file=out, force_terminal=True, color_system="standard", width=60)
    table = Table("head")
    table.add_row(EVIL)
    console.print(table)
    console.print("bad", style="red")
    said = out.getvalue()
    assert "\x1b[31mbad\x1b[0m" in said
    assert not OBEYED.search(re.sub(r"\x1b\[[0-9;]*m", "", said))
    assert plain("as it is\n\tü") == "as it is\n\tü"


def test_words_in_brackets_are_words(tmp_path: Path) -> None:
    """As it was: a cell of a file could be markup, with a link that holds raw control characters, or an error."""
    out = io.StringIO()
    console = Terminal(file=out, force_terminal=True, width=60)
    table = Table("head")
    table.add_row("a[link=x\x1bc\x1b_y]z")
    table.add_row("a[/b]z")
    console.print(table)
    console.print(Text("z", style=Style(link="http://x\x1bc")))
    assert not OBEYED.search(re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())) and "a[/b]z" in out.getvalue()


def test_every_word_of_the_command_line_goes_through_one_place() -> None:
    around = []
    for path in (ROOT / "harness" / "cli").rglob("*.py"):
        if path.parts[-2:] == ("cli", "console.py"):
            continue
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = [ast.unparse(one) for one in calls]
        around += [
            f"{path.name}: {name}" for name in names if name in ("typer.echo", "typer.secho", "Console", "print")
        ]
    assert around == []


@pytest.mark.parametrize("missing", [[], ["scipy"]])
def test_a_run_says_what_came_out_before_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: list[str]
) -> None:
    """As it was: the tables alone; `report` said it, `run` did not."""
    points = [{"strategy": "reliable"}, {"strategy": "rps"}]
    place = made.suite(tmp_path, points, 2, lambda point, seed: {"accuracy": 0.9, "ms_step": len(point["strategy"])})
    status = SimpleNamespace(word="valid")
    monkeypatch.setattr(tables, "libraries_missing", lambda: missing)
    written = io.StringIO()
    result: Any = SimpleNamespace(folder=place, summaries=[], status=status)
    tables.show_suite(Terminal(file=written, width=80), result)
    lines = written.getvalue().splitlines()
    assert lines[0].startswith("Against reliable, rps takes") is not bool(missing), lines
    assert max(map(len, (line for line in lines if "results: " not in line))) <= 80


def test_an_interruption_that_comes_out_as_another_error_is_still_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that was closed in the middle of a request failed in turn, and the command ended with status 1."""

    def interrupted(**_: object) -> None:
        try:
            try:
                raise KeyboardInterrupt
            finally:
                raise OSError("busy")
        except OSError as error:
            raise RunError("a system call failed") from error

    monkeypatch.setattr("lossbench.cli.app.app", interrupted)
    assert main._run() == ExitCode.INTERRUPTED


def last_words(folder: Path, outcomes: list[str], *, after: str = "") -> str:
    """Below the tables of so many runs of a program of one's own, each of which printed a line."""
    points = [{"arm": f"loss {number}%"} for number in range(len(outcomes))]
    place = made.suite(folder, points, 1, lambda point, seed: {"wall_s": 9.0}, own_program=True)
    summaries = []
    for number, (run, outcome) in enumerate(zip(read_suite(place).runs, outcomes, strict=True)):
        (run.folder / "logs").mkdir()
        (run.folder / "logs" / "rank-0.log").write_text(f"the words of {number}\n{after}")
        columns = run.summary.columns | {"outcome": outcome}
        summaries.append(run.summary.model_copy(update={"dir": str(run.folder), "columns": columns}))
    written = io.StringIO()
    result: Any = SimpleNamespace(folder=place, summaries=summaries, status=SimpleNamespace(word="valid"))
    tables._last_words(Terminal(file=written, width=80), result)
    return written.getvalue()


def test_last_words_are_those_of_what_failed_else_of_the_last_run(tmp_path: Path) -> None:
    """As it was: three lines for every run stood between fifteen runs' table and their verdict."""
    said = last_words(tmp_path / "a", ["valid"] * 5)
    assert "the words of 4" in said and said.count("said last") == 1
    said = last_words(tmp_path / "b", ["valid", "failed", "valid", "failed", "valid"])
    assert "the words of 1" in said and "the words of 3" in said and said.count("said last") == 2
    assert last_words(tmp_path / "c", ["failed"] * 9).count("said last") == tables.FAILED_SHOWN


def test_last_words_are_the_programs_own_and_no_librarys_warning(tmp_path: Path) -> None:
    """As it was: what a program said last was torch's, about host names that nobody can look up."""
    torchs = "[W1119 03:12:44.123456789 socket.cpp:767] [c10d] The IPv6 network addresses of (h0) cannot be retrieved\n"
    of_a_rank = "[rank0]:[W1119 03:12:45.1 ProcessGroup.cpp:9] Warning: destroy_process_group() was not called\n"
    said = last_words(tmp_path / "a", ["valid"], after=torchs + of_a_rank)
    assert "the words of 0" in said and "c10d" not in said and "ProcessGroup" not in said
    (tmp_path / "b").mkdir()
    assert "W1 is a layer" in last_words(tmp_path / "b" / "c", ["valid"], after="W1 is a layer\n")


def test_what_a_machine_lacks_stands_apart() -> None:
    """As it was: "netem no netem no prio", all in one row."""
    assert doctor.yes({"fq": True, "netem": False, "htb": True, "prio": False}).plain == "fq htb; missing: netem, prio"
    assert doctor.yes({"fq": True}).plain == "fq" and doctor.yes({"fq": False}).plain == "missing: fq"


def test_one_thing_is_no_things() -> None:
    assert [counted(n, "run") for n in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
    assert counted(1, "process", "processes") == "1 process" and counted(2, "process", "processes") == "2 processes"
    removed = Removed(network="x", names=("lb-x",), pids=(7,), failed=())
    assert clean._removed(removed) == "x: removed 1 thing (lb-x), ended 1 process, deleted its temporary files"


def test_findings_that_are_not_shown_are_counted_with_a_command_that_shows_them(tmp_path: Path) -> None:
    """As it was: "1 more line in the table below", where it was not."""
    points = [{"strategy": f"s{n}"} for n in range(8)]
    place = made.suite(
        tmp_path, points, 2, lambda point, seed: {"accuracy": 0.9, "ms_step": 1 + int(point["strategy"][1])}
    )
    written = io.StringIO()
    say_findings(Terminal(file=written, width=80), gather(read_suite(place)))
    more = written.getvalue().splitlines()[-1]
    count, _, command = more.partition(" more: ")
    assert count == "3" and command.startswith("lossbench report "), more
    done = lossbench(*command.split()[1:])
    assert done.returncode == 0 and " ".join(done.stdout.split()).count("Against s0,") == 7, done.stdout + done.stderr
