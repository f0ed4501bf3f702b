"""`lossbench report`: lists results, or shows some: at the terminal, as Markdown, CSV, LaTeX, JUnit, plots, a page."""

from __future__ import annotations

import importlib.util
import os
import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from lossbench.cli.console import Terminal, say
from lossbench.errors import NotAbleError, UsageError

if TYPE_CHECKING:
    from lossbench.report.content import Content
    from lossbench.results.index import Suite
    from lossbench.results.models import RunSummary
    from lossbench.runs.many.suite import SuiteResult

ROOT = Path("results/runs")
LIBRARIES = ("scipy", "matplotlib", "jinja2", "polars")


class Format(StrEnum):
    """How tables are written to standard output."""

    terminal = "terminal"
    markdown = "markdown"
    csv = "csv"
    latex = "latex"
    nccl_tests = "nccl-tests"


def libraries_missing() -> list[str]:
    return [name for name in LIBRARIES if importlib.util.find_spec(name) is None]


def need_libraries() -> None:
    missing = libraries_missing()
    if missing:
        raise NotAbleError(
            f"reports need {', '.join(missing)}",
            next_step=f"pip install {' '.join(missing)} (all that the extra [report] brings)",
        )


def known_runs(incomplete: str) -> list[str]:
    """For shell completion."""
    names = ["latest"]
    if ROOT.is_dir():
        names += [part for path in ROOT.iterdir() for part in (path.name.rpartition("_")[2],) if path.is_dir()]
    return [name for name in names if name.startswith(incomplete)]


RUNS = typer.Argument(
    None,
    metavar="RUN...",
    help="Folders, ids, suite names (their latest), commits, or `latest`.",
    autocompletion=known_runs,
)
IN = typer.Option(ROOT, "--in", help="Where results are.")


def report(
    runs: list[str] = RUNS,
    where: Path = IN,
    format_: Format = typer.Option(Format.terminal, "--format", help="Of the tables on standard output."),
    html: Path | None = typer.Option(None, "--html", help="One self-contained page."),
    plots: Path | None = typer.Option(None, "--plots", help="A folder for the plots (SVG, PDF, PNG)."),
    baseline: str = typer.Option(
        "",
        "--baseline",
        help="The line that others are compared with; else one called baseline, reliable without loss, the first.",
    ),
    findings: bool = typer.Option(False, "--findings", help="Say what came out, all of it, and show no tables."),
    bootstrap: bool = typer.Option(False, "--bootstrap", help="Intervals by bootstrap (from 20 seeds on)."),
    with_simulated: bool = typer.Option(False, "--with-simulated", help="Average simulated runs too; labels stay."),
    junit: Path | None = typer.Option(None, "--junit", help="Verdicts as a JUnit file, for CI."),
    github: bool = typer.Option(False, "--github-summary", help="Tables into $GITHUB_STEP_SUMMARY."),
    table: list[str] = typer.Option([], "--table", metavar="MODULE:FUNCTION", help="A table of your own, below ours."),
    suite: str = typer.Option("", "--suite", help="List only this suite."),
    verdict: str = typer.Option("", "--verdict", help="List only valid, failed or unknown ones."),
    since: str = typer.Option("", "--since", help="List only those from this day on (2026-11-15)."),
    commit: str = typer.Option("", "--commit", help="List only those made with this commit."),
    tag: str = typer.Option("", "--tag", help="List only those with this tag (lossbench tag)."),
) -> None:
    """Results, old and new. Without RUN: a list of what there is.

    Examples:

      lossbench report

      lossbench report --suite quickstart --verdict valid

      lossbench report latest --html report.html --plots plots/

      lossbench report ab12cd --baseline "reliable clean" --format latex > table.tex
    """
    need_libraries()
    check_targets(html=html, plots=plots, junit=junit, github=github)
    from lossbench.results import index

    console = Terminal(stderr=True)
    if not runs and (html or plots or junit or github or baseline):
        raise UsageError("which results?", next_step="name them, for example: lossbench report latest --html ...")
    if runs and (suite or verdict or since or commit or tag):
        words = "--suite, --verdict, --since, --commit and --tag are for the list"
        raise UsageError(words, next_step="drop RUN, or drop them")
    if not runs:
        chosen = index.Filter(suite=suite, verdict=verdict, since=since, commit=commit, tag=tag)
        suites, problems = index.scan(where)
        _list([one for one in suites if chosen.takes(one)], where, any_at_all=bool(suites))
        for text in [*problems, *(text for one in suites for text in one.problems if "did not end" not in text)]:
            console.print(text, markup=False, soft_wrap=True)
        return
    picked, problems = index.pick(runs, where)
    contents = gather_all(picked, baseline=baseline, bootstrap=bootstrap, with_simulated=with_simulated, more=table)
    for text in dict.fromkeys([*problems, *(text for one in contents for text in one.problems)]):
        console.print(text, markup=False, soft_wrap=True)
    for text in dict.fromkeys(text for one in contents for text in one.warnings):
        console.print(f"warning: {text}", markup=False, soft_wrap=True)
    if findings:
        _say_all(contents)
    else:
        _write_tables(contents, format_)
    _write_files(contents, problems, html=html, plots=plots, junit=junit, github=github, console=console)


def gather_all(suites: list[Suite], **how: Any) -> list[Content]:
    from lossbench.report.content import gather

    return [gather(one, **how) for one in suites]


def _list(suites: list[Suite], where: Path, *, any_at_all: bool) -> None:
    from lossbench.report.tables.table import WORDS, Cell, Table, terminal

    console = Terminal()
    if not suites:
        said = f"no results in {where}; lossbench run quickstart makes some, --in names another folder"
        fitting = "no results that fit; lossbench report lists all that there are"
        console.print(fitting if any_at_all else said, markup=False, soft_wrap=True)
        return
    rows, tagged = [], any(one.notes.tags for one in suites)
    for one in suites:
        done, planned = len(one.runs), len(one.plan.plan)
        made = str(done) if done == planned else f"{done} of {planned}"
        texts = [one.id, one.started[:16].replace("T", " "), one.name, made]
        rows.append([*map(Cell, texts), Cell(one.verdict, WORDS[one.verdict]), Cell(one.commit.replace(" ", "\n"))])
        rows[-1] += [Cell("\n".join(one.notes.tags))] if tagged else []
    head = ["id", "started", "suite", "runs", "verdict", "commit", *(["tags"] if tagged else [])]
    terminal(console, Table("", head, rows))
    there = "" if where == ROOT else f" --in {shlex.quote(str(where))}"
    console.print(f"next: lossbench report {suites[-1].id}{there} --html report.html", markup=False)


def say_findings(console: Console, one: Content) -> None:
    """The first of them, and how the others are seen."""
    for text in one.brief:
        console.print(text, markup=False)
    more = len(one.findings) - len(one.brief)
    if more:
        folder = one.suite.folder
        run = one.suite.id if folder.parent.resolve() == ROOT.resolve() else shlex.quote(str(folder))
        console.print(f"{more} more: lossbench report {run} --findings", markup=False, soft_wrap=True)


def _say_all(contents: list[Content]) -> None:
    console = Terminal()
    for one in contents:
        for text in one.findings or [f"{one.suite.name}: there is nothing to compare, or nothing that may be believed"]:
            console.print(text, markup=False)


def _write_tables(contents: list[Content], format_: Format) -> None:
    from lossbench.report.tables import table as tables

    if format_ == Format.nccl_tests:
        from lossbench.report.export import nccl

        say(nccl.text(contents), nl=False)
        return
    every = [table for one in contents for table in one.tables]
    if format_ != Format.terminal:
        write = {Format.markdown: tables.markdown, Format.csv: tables.csv_text, Format.latex: tables.latex}[format_]
        say(write(every), nl=False)
        return
    console = Terminal()
    for one in contents:
        say_findings(console, one)
        for table in one.tables:
            tables.terminal(console, table)
        for text in one.reasons:
            console.print(text, markup=False)


def _write_files(
    contents: list[Content],
    problems: list[str],
    *,
    html: Path | None,
    plots: Path | None,
    junit: Path | None,
    github: bool,
    console: Console,
) -> None:
    if plots is not None:
        from lossbench.report.plots import canvas
        from lossbench.report.plots.figures import all_pictures

        for one in contents:
            folder = plots if len(contents) == 1 else plots / one.suite.id
            written = canvas.save(all_pictures(one), folder)
            console.print(f"plots: {len(written)} files in {folder}", markup=False, soft_wrap=True)
    if html is not None:
        from lossbench.report import page

        page.write(contents, problems, html)
        console.print(f"page: {html}", markup=False, soft_wrap=True)
    if junit is not None:
        from lossbench.report.export.junit import write

        write([(one.suite.name, _for_junit(one.suite)) for one in contents], junit)
    if github:
        _github(contents)


def _for_junit(suite: Suite) -> list[RunSummary]:
    """In the order of the plan; what did not end is not left out."""
    from lossbench.report.export.junit import unfinished

    ended = {run.number: run.summary.model_copy(update={"dir": str(run.folder)}) for run in suite.runs}
    return [
        ended.get(one.number) or unfinished(one.point, one.seed, suite.folder / f"{one.number:03d}")
        for one in suite.plan.plan
    ]


def check_targets(*, html: Path | None, plots: Path | None, junit: Path | None, github: bool) -> None:
    """Before anything is run: said now, not after an hour."""
    if html or plots or github:
        need_libraries()
    for option, path, like in (("--html", html, "report.html"), ("--junit", junit, "verdicts.xml")):
        if path is not None and path.is_dir():
            raise UsageError(f"{option} {path} is a folder", next_step=f"give a file: {option} {path / like}")
    if plots is not None and plots.exists() and not plots.is_dir():
        raise UsageError(f"--plots {plots} is a file", next_step="give a folder")
    if github and not os.environ.get("GITHUB_STEP_SUMMARY"):
        raise UsageError("GITHUB_STEP_SUMMARY is not set", next_step="--github-summary works inside GitHub Actions")


def files_of(result: SuiteResult, *, html: Path | None, plots: Path | None, junit: Path | None, github: bool) -> None:
    """After `lossbench run` with these options; a JUnit file needs no report library."""
    if junit is not None:
        from lossbench.report.export.junit import write

        write([(result.name, list(result.summaries))], junit)
    if html or plots or github:
        from lossbench.results import index

        suite = index.read_suite(result.folder)
        console = Terminal(stderr=True)
        _write_files(gather_all([suite]), [], html=html, plots=plots, junit=None, github=github, console=console)


def _github(contents: list[Content]) -> None:
    from lossbench.files import disk_errors
    from lossbench.report.tables import table as tables

    target = Path(os.environ["GITHUB_STEP_SUMMARY"])
    with disk_errors(target, full="see GITHUB_STEP_SUMMARY"), open(target, "a", encoding="utf-8") as file:
        for one in contents:
            file.write(f"## lossbench {tables.md(one.suite.name)}: {one.suite.verdict}\n\n")
            file.writelines(f"{tables.md(text)}\n\n" for text in one.findings)
            file.write(tables.markdown(one.tables) + "\n")
            file.writelines(f"- {tables.md(text)}\n" for text in one.reasons)
