"""What people see at a terminal when a suite has ended: the tables of a report, which fit 80 columns."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from lossbench.cli.report import libraries_missing
from lossbench.report.content import gather
from lossbench.report.tables.table import STYLES, WORDS, terminal
from lossbench.results.index import read_suite
from lossbench.results.naming import beside_the_verdict
from lossbench.runs.suite import SuiteResult


def coloured(word: str) -> Text:
    return Text(word, style=STYLES[WORDS.get(word, "")])


def show_suite(console: Console, result: SuiteResult) -> None:
    """Without the libraries of a report every seed has a line of its own."""
    content = gather(read_suite(result.folder), apart=bool(libraries_missing()))
    for table in content.tables:
        terminal(console, table)
    for text in content.reasons:
        console.print(text, markup=False)
    for text in content.warnings:
        console.print(f"warning: {text}", markup=False)
    beside = beside_the_verdict([one.columns for one in result.summaries if one.verdict == "valid"])
    end = Text.assemble("verdict: ", coloured(result.status.word), f"{beside}   results: {result.folder}")
    console.print(end, soft_wrap=True)
