"""A JUnit file: CI systems show one case per run; failed is a failure, unknown an error, with the reasons in words."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lossbench.files import disk_errors
from lossbench.results.models import RunSummary
from lossbench.results.naming import point_name

TAGS = {"failed": "failure", "unknown": "error"}


def write(suites: Iterable[tuple[str, list[RunSummary]]], path: Path) -> None:
    """`suites`: their names and the summaries of their runs; a run that did not end is one with verdict unknown."""
    root = ET.Element("testsuites")
    for name, rows in suites:
        _suite(root, f"lossbench.{name}", rows)
    for element in root.iter():  # logs may have anything in them, XML may not
        element.text = _plain(element.text)
        for key, value in element.attrib.items():
            element.set(key, _plain(value) or "")
    ET.indent(root)
    with disk_errors(path, full="give --junit another place"):
        path.parent.mkdir(parents=True, exist_ok=True)
        ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def unfinished(point: dict[str, Any], seed: int, folder: Path) -> RunSummary:
    return RunSummary(
        point=point,
        seed=seed,
        dir=str(folder),
        backend="",
        hosts=1,
        verdict="unknown",
        columns={"outcome": "unknown"},
        reasons={"outcome": ["the run did not end"]},
    )


def _plain(text: str | None) -> str | None:
    return None if text is None else re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)


def _suite(root: ET.Element, name: str, rows: list[RunSummary]) -> None:
    counts = {tag: str(sum(row.verdict == word for row in rows)) for word, tag in TAGS.items()}
    suite = ET.SubElement(
        root,
        "testsuite",
        name=name,
        tests=str(len(rows)),
        failures=counts["failure"],
        errors=counts["error"],
        time=f"{sum(row.duration_s for row in rows):.3f}",
    )
    for row in rows:
        title = f"{point_name(row.point)} seed {row.seed}"
        case = ET.SubElement(suite, "testcase", classname=name, name=title, time=f"{row.duration_s:.3f}")
        reasons = [
            f"{column} {status}: {reason}"
            for column, status in row.columns.items()
            if status == row.verdict
            for reason in row.reasons.get(column, [])
        ]
        if row.verdict in TAGS:
            ET.SubElement(case, TAGS[row.verdict], message=reasons[0] if reasons else "").text = "\n".join(reasons)
        ET.SubElement(case, "system-out").text = f"results: {row.dir}"
