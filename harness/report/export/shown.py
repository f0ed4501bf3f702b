"""Sentences and tables as a notebook shows them."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence

from lossbench.report.tables.table import Table, terminal

WIDTH = 110  # letters


def as_html(said: Sequence[str], tables: Sequence[Table]) -> str:
    from rich.console import Console

    out = Console(record=True, file=io.StringIO(), width=WIDTH, highlight=False, force_jupyter=False)
    for table in tables:
        terminal(out, table)
    shown = out.export_html(inline_styles=True, code_format="<pre style='line-height:1.2'>{code}</pre>")
    return "".join(f"<p>{html.escape(text)}</p>" for text in said) + shown
