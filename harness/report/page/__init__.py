"""One HTML file that needs nothing else: what came out, in words; pictures; tables; then how it was made. Every number
leads to its runs."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from lossbench import __version__
from lossbench.files import disk_errors
from lossbench.report.content import Content
from lossbench.report.finding import untimed_apart
from lossbench.report.groups import columns_of
from lossbench.report.page import head
from lossbench.report.plots.canvas import Picture, numbers, svg
from lossbench.report.plots.figures import all_pictures
from lossbench.report.tables.digits import pads
from lossbench.report.tables.proven import COLUMNS, reasons
from lossbench.report.tables.table import Table
from lossbench.report.tables.words import in_words
from lossbench.results.index import Run, Suite
from lossbench.results.machine import tcp_in_words
from lossbench.results.measures import percent, short
from lossbench.results.models import Session
from lossbench.results.naming import beside_the_verdict, counted

HERE = Path(__file__).parent
DASHES = {"--": "7 3", ":": "2 2", "-.": "7 2 2 2"}  # of a line in a legend
MOST_REASONS = 12


def write(contents: Sequence[Content], problems: Sequence[str], path: Path) -> None:
    made = Environment(loader=PackageLoader("lossbench.report.page", ""), autoescape=True, undefined=StrictUndefined)
    made.filters["in_words"] = in_words
    made.filters["pads_of"] = _pads_of
    template = made.get_template("page.html.j2")
    script = (HERE / "page.js").read_text(encoding="utf-8")
    names = list(dict.fromkeys(one.suite.name for one in contents))
    views = [_view(one, path.parent) for one in contents]  # drawing may find further damage
    said = list(dict.fromkeys([*problems, *(text for one in contents for text in one.problems)]))
    text = template.render(
        title=", ".join(names),
        version=__version__,
        made=time.strftime("%Y-%m-%d %H:%M"),
        problems=said,
        css=(HERE / "page.css").read_text(encoding="utf-8"),
        script=script,  # the only one that the page allows to run: by its hash
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
        contents=views,
    )
    with disk_errors(path, full="give --html another place"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _pads_of(table: Table) -> list[list[str]]:
    """Of every cell's first line; what stands below it has smaller letters."""
    columns = [pads([cell.text.split("\n")[0] for cell in column]) for column in zip(*table.rows, strict=True)]
    return [["", *cells[1:]] for cells in zip(*columns, strict=True)]


def _view(content: Content, where: Path) -> dict[str, Any]:
    suite, session = content.suite, content.suite.plan.sessions[-1]
    first = suite.runs[0].manifest if suite.runs else {}
    beside = beside_the_verdict([run.summary.columns for run in suite.runs if run.summary.verdict == "valid"])
    findings, untimed = untimed_apart(content.findings)
    return {
        "id": suite.id,
        "name": suite.name,
        "verdict": suite.verdict,
        "beside": beside,
        "done": head.done(suite),
        "why": suite.plan.why,
        "note": suite.notes.note,
        "facts": _facts(content),
        "meanings": [
            (name, said) for name in columns_of(content.groups) if (said := content.groups[0].measure(name).meaning)
        ],
        "findings": findings,
        "untimed": untimed,
        "said": _why(suite),
        "tables": content.tables,
        "reasons": content.reasons,
        "warnings": content.warnings,
        "pictures": [_picture(picture, suite.id) for picture in all_pictures(content)],
        "sources": [_source(line, where) for table in content.tables for line in table.tidy if "mean" in line],
        "runs": [_run(run, where) for run in suite.runs],
        "spec": json.dumps({"experiment": first.get("experiment", {}), **_where(session)}, indent=1),
    }


def _picture(picture: Picture, suite: str) -> dict[str, Any]:
    panels = []
    for number, one in enumerate(picture.panels):
        own = f"{re.sub('[^a-zA-Z0-9]', '', suite)}-{picture.name}-{number}"
        keys = [{"name": key.name, "colour": key.colour, "dash": DASHES.get(key.dash, "none")} for key in one.keys]
        panels.append(
            {"own": own, "svg": svg(one, own=own, title=picture.title), "legend": keys, "numbers": numbers(one)}
        )
    return {"title": picture.title, "says": picture.says, "panels": panels}


def _why(suite: Suite) -> list[tuple[str, str]]:
    """(what is wrong, the lines that a program left) of the runs that are not valid; each once."""
    wrong = [run for run in suite.runs if run.summary.verdict != "valid"]
    out = [(first, lines) for text in reasons(suite, wrong) for first, _, lines in [text.partition("\n")]]
    missing = len(suite.plan.plan) - len(suite.runs)
    if missing:
        step = f"continue it: lossbench run {suite.folder} --resume"
        out = [*out[: MOST_REASONS - 1], (f"{missing} of {len(suite.plan.plan)} runs did not end; {step}", "")]
    return out[:MOST_REASONS]


def _facts(content: Content) -> list[tuple[str, str]]:
    suite, session = content.suite, content.suite.plan.sessions[-1]
    done, planned = len(suite.runs), len(suite.plan.plan)
    made = str(done) if done == planned else f"{done} of {planned}"
    out = [
        ("run", suite.id),
        ("started", suite.started),
        ("runs", made),
        ("commit", suite.commit or "not a checkout"),
        *_machines(session),
        ("command", shlex.join(session.command)),
        ("folder", str(suite.folder)),
    ]
    if suite.notes.tags:
        out.append(("tags", ", ".join(suite.notes.tags)))
    if session.gpus and not session.machines:
        out.append(("GPU", ", ".join(session.gpus)))
    if len(suite.plan.sessions) > 1:
        out.append(("resumed", counted(len(suite.plan.sessions) - 1, "time")))
    return out


def _machines(session: Session) -> list[tuple[str, str]]:
    """What results were made on: this machine, or a lab's; those that are alike are named together."""
    here = session.machine
    if not session.machines:
        tcp = [("TCP", words)] if (words := tcp_in_words(here)) else []
        return [("kernel", str(here.get("kernel", ""))), ("machine", _hardware(here)), *tcp]
    alike: dict[str, list[str]] = {}
    for name, one in session.machines.items():
        gpus = f"; {said}" if (said := session.gpus_of(name)) else ""
        alike.setdefault(f"kernel {one.get('kernel', '')}; {_hardware(one)}{gpus}", []).append(name)
    out = [("lab", str(session.lab.get("name", "")))] + [(", ".join(names), text) for text, names in alike.items()]
    out += [("switch", said)] if (said := session.switch()) else []
    return [*out, ("controller", f"kernel {here.get('kernel', '')}; {_hardware(here)}")]


def _hardware(one: dict[str, Any]) -> str:
    return f"{one.get('machine', '')}, {one.get('cpus', '?')} cores, {one.get('cpu', '')}"


def _where(session: Session) -> dict[str, Any]:
    if not session.machines:
        return {"machine": session.machine}
    return {"machines": session.machines, "lab": session.lab, "controller": session.machine}


def _href(folder: Path, where: Path) -> str:
    return quote(os.path.relpath(folder.resolve(), where.resolve()))


def _run(run: Run, where: Path) -> dict[str, Any]:
    summary = run.summary
    return {
        "number": f"{run.number:03d}",
        "name": run.name,
        "seed": summary.seed,
        "href": _href(run.folder, where),
        "asked": ", ".join(percent(a) for a in summary.asked_loss[:3]) or "-",
        "kernel": percent(summary.kernel.loss),
        "receiver": percent(summary.receiver.loss),
        "columns": [summary.columns.get(c, "unknown") for c in COLUMNS],
        "seconds": f"{summary.duration_s:.1f}",
    }


def _source(line: dict[str, Any], where: Path) -> dict[str, Any]:
    given = {name: line.get(name) for name in ("mean", "sd", "low", "high")}
    number = {name: "-" if value is None else short(value) for name, value in given.items()}
    folders = [Path(text) for text in line["folders"]]
    return {
        "point": line["point"],
        "measure": line["measure"],
        "mean": number["mean"],
        "n": line["n"],
        "sd": number["sd"],
        "interval": f"{number['low']} to {number['high']}" if given["low"] is not None else "-",
        "void": f"{line['void']}: {line.get('why_void', 'not all valid')}" if line.get("void") else "",
        "runs": [{"href": _href(folder, where), "name": folder.name} for folder in folders],
    }
