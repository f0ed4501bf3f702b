"""A result as a value, in Python and in notebooks: what came out in words, its tables as data frames, its pictures.
Report libraries are loaded when something is asked for."""

from __future__ import annotations

import html
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lossbench.errors import UsageError
from lossbench.results import index
from lossbench.results.index import Suite

if TYPE_CHECKING:
    import polars
    from rich.console import Console, ConsoleOptions, RenderResult

    from lossbench.report.content import Content
    from lossbench.results.models import RunSummary


@dataclass
class Results(Suite):
    """A suite's results: everything that Suite has, and ways to look at them."""

    @classmethod
    def at(cls, folder: Path) -> Results:
        return cls.of(index.read_suite(folder))

    @classmethod
    def of(cls, suite: Suite) -> Results:
        return cls(folder=suite.folder, plan=suite.plan, runs=suite.runs, problems=suite.problems)

    @property
    def run_id(self) -> str:
        return self.id

    @property
    def summaries(self) -> list[RunSummary]:
        return [run.summary for run in self.runs]

    @cached_property
    def content(self) -> Content:
        """Everything that a report says."""
        from lossbench.report.content import gather

        return gather(self)

    @property
    def findings(self) -> list[str]:
        """What came out, in sentences."""
        return self.content.findings

    def table(self, name: str = "results") -> polars.DataFrame:
        """A data frame: `results` (means with intervals), `differences`, `proven`, `runs` (one line each), `steps`."""
        from lossbench.report.export.frames import frame

        return frame(self.content, name)

    def plot(self, name: str = "", panel: int | None = None) -> Any:
        """A matplotlib figure by the picture's name (convergence, drift, sweep, tail, ...); without one, the first.
        Several panels stand side by side on it; `panel=2` is the third of them, alone."""
        from lossbench.report.plots.figures import all_pictures
        from lossbench.report.plots.together import figure_of

        pictures = {picture.name: picture for picture in all_pictures(self.content)}
        if not pictures:
            raise UsageError(f"{self.name} {self.id} has nothing to draw")
        if name and name not in pictures:
            raise UsageError(f"no picture '{name}'", next_step=f"known: {', '.join(pictures)}")
        return figure_of(pictures[name or next(iter(pictures))], panel)

    def page(self, path: Path | str) -> Path:
        """Everything as one HTML file."""
        from lossbench.report import page

        page.write([self.content], self.problems, Path(path))
        return Path(path)

    def __repr__(self) -> str:
        made = f"{len(self.runs)} of {len(self.plan.plan)} runs"
        return f"<lossbench {self.name} {self.id}: {self.verdict}, {made}, {self.folder}>"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console
        from rich.text import Text

        from lossbench.report.tables.table import rendered

        yield Text(repr(self))
        yield from map(Text, self.findings)
        for table in self.content.tables:
            yield from rendered(table, width=options.max_width)

    def _repr_html_(self) -> str:
        """For notebooks: the findings, then the table of results."""
        from lossbench.report.export.shown import as_html

        tables = [self.content.named[name] for name in ("proven", "results") if name in self.content.named]
        head = f"<b>{html.escape(self.name)}</b> {html.escape(self.id)}: {self.verdict}"
        return head + as_html(self.findings, tables)


class Progress:
    """In a notebook: one line that is overwritten."""

    def __init__(self) -> None:
        from IPython.display import HTML, display  # type: ignore[import-not-found]

        self._html, self._shown = HTML, display(HTML(""), display_id=True)

    def __call__(self, one: Any, total: int, todo: int, what: Any) -> None:
        from lossbench.results.naming import point_name

        stage = what if isinstance(what, str) else f"{float(what.get('elapsed_s', 0)):.0f} s"
        text = html.escape(f"run {total - todo + 1} of {total}: {point_name(one.chosen)}, seed {one.seed} ({stage})")
        self._shown.update(self._html(f'<progress max="{total}" value="{total - todo}"></progress> {text}'))
