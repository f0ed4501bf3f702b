"""One HTML file that needs nothing else: asked and proven first, then results; every number leads to its runs."""

from __future__ import annotations

import json
import os
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
from lossbench.report.groups import shown_of
from lossbench.report.plots.canvas import svg
from lossbench.report.plots.figures import all_pictures
from lossbench.report.tables.proven import COLUMNS
from lossbench.results.index import Run
from lossbench.results.measures import percent, short
from lossbench.results.naming import beside_the_verdict

HERE = Path(__file__).parent


def write(contents: Sequence[Content], problems: Sequence[str], path: Path) -> None:
    template = Environment(
        loader=PackageLoader("lossbench.report", ""), autoescape=True, undefined=StrictUndefined
    ).get_template("page.html.j2")
    names = list(dict.fromkeys(one.suite.name for one in contents))
    views = [_view(one, path.parent) for one in contents]  # drawing may find further damage
    said = list(dict.fromkeys([*problems, *(text for one in contents for text in one.problems)]))
    text = template.render(
        title=", ".join(names),
        version=__version__,
        made=time.strftime("%Y-%m-%d %H:%M"),
        problems=said,
        css=(HERE / "page.css").read_text(encoding="utf-8"),
        contents=views,
    )
    with disk_errors(path, full="give --html another place"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _view(content: Content, where: Path) -> dict[str, Any]:
    suite, session = content.suite, content.suite.plan.sessions[-1]
    first = suite.runs[0].manifest if suite.runs else {}
    beside = beside_the_verdict([run.summary.columns for run in suite.runs if run.summary.verdict == "valid"])
    return {
        "id": suite.id,
        "name": suite.name,
        "verdict": suite.verdict,
        "beside": beside,
        "why": suite.plan.why,
        "facts": _facts(content),
        "meanings": [
            (name, said) for name in shown_of(content.groups) if (said := content.groups[0].measure(name).meaning)
        ],
        "tables": content.tables,
        "reasons": content.reasons,
        "warnings": content.warnings,
        "pictures": [{"title": p.title, "says": p.says, "svg": svg(p, prefix=suite.id)} for p in all_pictures(content)],
        "sources": [_source(line, where) for table in content.tables for line in table.tidy if "mean" in line],
        "runs": [_run(run, where) for run in suite.runs],
        "spec": json.dumps({"experiment": first.get("experiment", {}), "machine": session.machine}, indent=1),
    }


def _facts(content: Content) -> list[tuple[str, str]]:
    suite, session = content.suite, content.suite.plan.sessions[-1]
    machine = session.machine
    done, planned = len(suite.runs), len(suite.plan.plan)
    made = str(done) if done == planned else f"{done} of {planned}"
    out = [
        ("run", suite.id),
        ("started", suite.started),
        ("runs", made),
        ("commit", suite.commit or "not a checkout"),
        ("kernel", str(machine.get("kernel", ""))),
        ("machine", f"{machine.get('machine', '')}, {machine.get('cpus', '?')} cores, {machine.get('cpu', '')}"),
        ("command", shlex.join(session.command)),
        ("folder", str(suite.folder)),
    ]
    if session.gpus:
        out.append(("GPU", ", ".join(session.gpus)))
    if len(suite.plan.sessions) > 1:
        out.append(("resumed", f"{len(suite.plan.sessions) - 1} times"))
    return out


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
