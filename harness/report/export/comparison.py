"""Two results side by side as a value: numbers, line by line, and the tables that `lossbench compare` prints."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from rich.text import Text

from lossbench.report.between import compare as comparing
from lossbench.report.between import partners
from lossbench.report.between.compare import Line
from lossbench.report.between.sameness import MARGIN_PERCENT, summed_up
from lossbench.report.export.shown import as_html
from lossbench.report.tables.table import Table, rendered
from lossbench.results.index import Suite

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


class Comparison(list[Line]):
    """A list of lines: one measure of one point each, in A and in B."""

    def __init__(self, a: Suite, b: Suite, *, with_simulated: bool = False) -> None:
        super().__init__(comparing.result_lines(a, b, with_simulated=with_simulated))
        self.a, self.b, self._with_simulated = a, b, with_simulated

    @cached_property
    def tables(self) -> list[Table]:
        """What was asked for, where it was made, what came out; only where there is something to say."""
        both = [comparing.spec(self.a, self.b), comparing.machine(self.a, self.b)]
        note = partners.unequal_note(self._unequal)
        return [one for one in both if one.rows] + ([comparing.results(self, unequal=note)] if self else [])

    @cached_property
    def _unequal(self) -> list[tuple[str, str]]:
        return partners.unequal(self.a, self.b, with_simulated=self._with_simulated)

    @property
    def summary(self) -> str:
        """How many numbers are different, the same, or open."""
        if not self:
            return partners.nothing_in_common(self.a, self.b)
        alone = partners.on_one_side(self.a, self.b, with_simulated=self._with_simulated)
        words = [line.said() for line in self]
        return summed_up(words, alone, margin=MARGIN_PERCENT / 100, unequal=len(self._unequal))

    def _sides(self) -> list[str]:
        return [f"{side}: {one.name} {one.id}, {one.folder}" for side, one in (("A", self.a), ("B", self.b))]

    def __repr__(self) -> str:
        return f"<lossbench compare {self.a.name} {self.a.id} with {self.b.name} {self.b.id}: {self.summary}>"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console
        yield from map(Text, self._sides())
        for table in self.tables:
            yield from rendered(table, width=options.max_width)
        yield Text(self.summary)

    def _repr_html_(self) -> str:
        return as_html([*self._sides(), self.summary], self.tables)
