"""What people see at a terminal when a suite has ended: the tables of a report, which fit 80 columns."""

from __future__ import annotations

import re
from pathlib import Path

from rich.console import Console
from rich.text import Text

from lossbench.cli.reading.report import libraries_missing, say_findings
from lossbench.report.content import gather
from lossbench.report.tables.table import STYLES, WORDS, terminal
from lossbench.results.index import read_suite
from lossbench.results.models import RunSummary
from lossbench.results.naming import beside_the_verdict, point_name
from lossbench.runs.many.suite import SuiteResult

LINES_SHOWN, MOST_SHOWN, FAILED_SHOWN = 2, 200, 3
OF_A_LIBRARY = re.compile(r"(\[rank\d+\]:)?\[?W\d{4} \d\d:\d\d:")  # a warning as torch and its like write them


def coloured(word: str) -> Text:
    return Text(word, style=STYLES[WORDS.get(word, "")])


def show_suite(console: Console, result: SuiteResult) -> None:
    """What came out, then the tables. Without the libraries of a report every seed has a line of its own, and nothing
    is found of them."""
    apart = bool(libraries_missing())
    content = gather(read_suite(result.folder), apart=apart)
    if not apart:
        say_findings(console, content)
    for table in content.tables:
        terminal(console, table)
    for text in content.reasons:
        console.print(text, markup=False)
    for text in content.warnings:
        console.print(f"warning: {text}", markup=False)
    _last_words(console, result)
    beside = beside_the_verdict([one.columns for one in result.summaries if one.verdict == "valid"])
    end = Text.assemble("verdict: ", coloured(result.status.word), f"{beside}   results: {result.folder}")
    console.print(end, soft_wrap=True)


def _last_words(console: Console, result: SuiteResult) -> None:
    """Of a program of the user's own: what its first rank said last, and where the rest is. Of the runs that failed,
    else of the last one: the table is what people look for."""
    own = [(one, log) for one in result.summaries if one.own_program and (log := _log(one)).is_file()]
    failed = [(one, log) for one, log in own if one.columns.get("outcome") == "failed"]
    for one, log in failed[:FAILED_SHOWN] or own[-1:]:
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        lines = [line for line in lines if not OF_A_LIBRARY.match(line)] or lines
        head = f"{point_name(one.point)}, seed {one.seed}, rank 0 said last ({log}):"
        console.print(head, markup=False, soft_wrap=True)
        for line in lines[-LINES_SHOWN:]:
            console.print(f"  | {line[:MOST_SHOWN]}", markup=False, soft_wrap=True)


def _log(one: RunSummary) -> Path:
    return Path(one.dir) / "logs" / "rank-0.log"
