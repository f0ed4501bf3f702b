"""`lossbench compare --fail-if 'rtt_ms > +5%'`: a limit on how far a number may move, for CI. Kept only where the
whole 95 % interval of the change is within it; of a mean beyond it that may be chance, nothing is known."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from lossbench.errors import UsageError
from lossbench.report.between import sameness
from lossbench.report.between.compare import Line
from lossbench.results.measures import told_apart

SEEDS = 5  # that are advised first
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
        """Beyond it, and no seeds that could call it chance do. Where no change at all is beyond it, that there is one
        says nothing: then the whole interval has to be."""
        change = line.change
        if change.p is None or change.nothing or not self._exceeded(0.0, change.base):
            return self.beyond(line) and (change.p is None or change.nothing or change.significant)
        near = change.low if self.above else change.high
        return near is not None and not change.unseen and self._exceeded(near, change.base)

    def doubtful(self, line: Line) -> bool:
        """Beyond it, and its seeds can't tell that from chance: neither broken nor kept."""
        return self.beyond(line) and not self.broken(line)

    def unsure(self, line: Line) -> bool:
        """Within it, as far as the mean goes: a part of its interval is not, or one seed has none."""
        change = line.change
        if self.beyond(line) or change.nothing:
            return False
        end = change.high if self.above else change.low
        if end is None or change.unseen:
            return True
        return self._exceeded(end, change.base)

    def why_open(self, line: Line) -> str:
        """Of what is doubtful or unsure: why, and what can tell."""
        if line.change.unseen:
            return f"it {sameness.ALL_ALIKE}"
        step = f"more seeds can tell (--seeds {2 * line.change.n if line.change.n >= SEEDS else SEEDS})"
        if self.beyond(line):
            return f"beyond the limit, which may be chance; {step}"
        return f"within the limit by its mean, its 95 % interval is not; {step}"

    def _exceeded(self, moved: float, base: float) -> bool:
        moved = _percent(moved, base) if self.percent else moved
        return moved > self.number if self.above else moved < self.number

    def unmet(self, gone: list[tuple[str, str, str]]) -> list[str]:
        """The lines of whose change nothing is known, and why."""
        return [f"{point}: {why}" for point, measure, why in gone if measure == self.measure]

    def words(self, line: Line) -> str:
        change = line.change
        by = "" if change.relative is None else f" ({100 * change.relative:+.1f} %)"
        seeds = "one seed, no test" if change.p is None else f"p = {change.p_all or change.p:.2g}"
        before, after = told_apart(line.a.mean, line.b.mean)
        return f"{line.point}: {line.measure} {before} -> {after}{by}, {seeds}"


def _percent(moved: float, base: float) -> float:
    """Of A's mean; of nothing, whatever is more is without bound."""
    return 100 * moved / abs(base) if base else math.copysign(math.inf, moved) if moved else 0.0
