"""`lossbench compare --fail-if 'rtt_ms > +5%'`: a limit on how far a number may move, for CI. Kept only where the
whole 95 % interval of the change is within it; of a mean beyond it that may be chance, nothing is known."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from lossbench.errors import UsageError
from lossbench.report.between.compare import Line
from lossbench.results.measures import told_apart

_WRITTEN = re.compile(r"\s*([\w.]+)\s*([<>])\s*([+-]?\d*\.?\d+(?:e[+-]?\d+)?)\s*(%?)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Limit:
    """On B's change against A: of the number itself, or in percent of A's."""

    measure: str
    above: bool
    number: float
    percent: bool

    @classmethod
    def read(cls, text: str) -> Limit:
        found = _WRITTEN.fullmatch(text)
        if found is None:
            step = "for example 'wall_s > +5%' or 'accuracy < -0.01'"
            raise UsageError(f"--fail-if '{text[:60]}': not MEASURE > NUMBER", next_step=step)
        return cls(found[1], found[2] == ">", float(found[3]), bool(found[4]))

    def about(self, lines: list[Line]) -> list[Line]:
        return [line for line in lines if line.measure == self.measure]

    def beyond(self, line: Line) -> bool:
        """By the mean."""
        return self._exceeded(line.change.mean, line.change.base)

    def broken(self, line: Line) -> bool:
        """Beyond it, and no seeds that could call it chance do."""
        change = line.change
        return self.beyond(line) and (change.p is None or change.significant or change.nothing)

    def doubtful(self, line: Line) -> bool:
        """Beyond it, and its seeds can't tell that from chance: neither broken nor kept."""
        return self.beyond(line) and not self.broken(line)

    def unsure(self, line: Line) -> bool:
        """Within it, as far as the mean goes: a part of its interval is not, or one seed has none."""
        change = line.change
        if self.beyond(line) or change.nothing:
            return False
        end = change.high if self.above else change.low
        if end is None or change.low == change.high:
            return True
        return self._exceeded(end, change.base)

    def _exceeded(self, moved: float, base: float) -> bool:
        moved = _percent(moved, base) if self.percent else moved
        return moved > self.number if self.above else moved < self.number

    def unmet(self, gone: list[tuple[str, str]]) -> list[str]:
        """The lines that have such a number in A and none that counts in B: nothing is known of their change."""
        return [point for point, measure in gone if measure == self.measure]

    def words(self, line: Line) -> str:
        change = line.change
        by = "" if change.relative is None else f" ({100 * change.relative:+.1f} %)"
        seeds = "one seed, no test" if change.p is None else f"p = {change.p_all or change.p:.2g}"
        before, after = told_apart(line.a.mean, line.b.mean)
        return f"{line.point}: {line.measure} {before} -> {after}{by}, {seeds}"


def _percent(moved: float, base: float) -> float:
    """Of A's mean; of nothing, whatever is more is without bound."""
    return 100 * moved / abs(base) if base else math.copysign(math.inf, moved) if moved else 0.0
