"""A failure explains itself: the test's last lines, what the machine was like meanwhile, how to run it alone.

With LOSSBENCH_FAILURES=FILE the same is added to that file: `.ci/run` ends with it. With LOSSBENCH_TESTED=FILE each
test that ended is a line of JSON there, as it ends (tests/bench/steady.py, tests/bench/all.py)."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

SECTION = "the machine meanwhile"
LAST_LINES = 25
_outcomes: dict[tuple[str, object], dict[str, object]] = {}  # by test and worker: several may run the same one
_begun: dict[str, tuple[list[int], list[str]]] = {}  # by test: ticks of the processors, what of ours stood


def _ticks() -> list[int]:
    with open("/proc/stat", encoding="ascii") as file:
        return [int(part) for part in file.readline().split()[1:9]]


def _namespaces() -> list[str]:
    try:
        return [name for name in os.listdir("/run/netns") if name.startswith("lb-")]
    except FileNotFoundError:
        return []


def _processes() -> list[str]:
    """That run lossbench, in this worker or elsewhere."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if "lossbench." in command and int(folder.name) != os.getpid():
            found.append(f"process {folder.name}: {command.strip()[-70:]}")
    return found


def _machine(before: list[int], stood: list[str]) -> str:
    spent = [after - b for b, after in zip(before, _ticks(), strict=True)]
    total = max(sum(spent), 1)
    available = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    return (
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors; idle {spent[3] / total:.0%}, stolen "
        f"{spent[7] / total:.0%} while it ran; {int(available.split()[1]) >> 10} MiB of memory free; "
        f"of ours before it: {', '.join(stood[:6]) or 'nothing'}; running at its end, here and in other workers: "
        f"{', '.join(_processes()[:6]) or 'nothing'}"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _begun[item.nodeid] = (_ticks(), _namespaces())
    result = yield
    _begun.pop(item.nodeid, None)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and item.nodeid in _begun:  # in a worker: the section travels with the report
        report.sections.append((SECTION, _machine(*_begun[item.nodeid])))
    return report


def explained(reports: list[pytest.TestReport]) -> Iterator[str]:
    """In lines."""
    for report in reports:
        machine = next((text for name, text in report.sections if name == SECTION), "not known: it ended too early")
        yield f"--- {report.nodeid} ({report.when})"
        yield from ("    " + line for line in report.longreprtext.splitlines()[-LAST_LINES:])
        yield f"  {SECTION}: {machine}"
        yield f"  alone: make setup && .venv/bin/python -m pytest {shlex.quote(report.nodeid)}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    failed = [*terminalreporter.stats.get("failed", []), *terminalreporter.stats.get("error", [])]
    lines = list(explained([one for one in failed if hasattr(one, "longreprtext")]))
    if not lines:
        return
    terminalreporter.section("what failed")
    for line in lines:
        terminalreporter.write_line(line)
    if name := os.environ.get("LOSSBENCH_FAILURES"):
        with open(name, "a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if os.environ.get("PYTEST_XDIST_WORKER") or "LOSSBENCH_TESTED" not in os.environ:
        return
    key = (report.nodeid, getattr(report, "node", None))
    row = _outcomes.setdefault(key, {"test": report.nodeid, "outcome": "passed", "s": 0.0})
    row["s"] = round(float(str(row["s"])) + report.duration, 2)
    if report.failed:
        machine = next((text for name, text in report.sections if name == SECTION), "")
        why = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
        row.update(outcome="failed", why=" ".join(why)[:600] or report.longreprtext[-600:], machine=machine)
    elif report.skipped and row["outcome"] == "passed":
        row["outcome"] = "skipped"
    if report.when in ("teardown", "???"):  # or its worker died
        with open(os.environ["LOSSBENCH_TESTED"], "a", encoding="utf-8") as file:
            file.write(json.dumps(_outcomes.pop(key)) + "\n")
