"""What papers say, as suites write it down: reports hold it against what was measured."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lossbench.spec.userfile import Frozen


class Stated(Frozen):
    """What a paper says of a point, to be held against what is measured here."""

    measure: str
    """Of the results, such as perplexity."""
    change_percent: float
    """Against the loss-free point."""
    at_most: bool = False
    """It is a bound (of what should be high: at least); else a figure, and what differs by over a quarter of it either
    way does not reproduce it."""
    source: str
    """Whose word it is."""


class Law(Frozen):
    """How a number is bounded by others: by a power of their product."""

    measure: str
    """Of the results."""
    over: Annotated[tuple[str, ...], Field(min_length=1)]
    """Dotted keys of numbers, such as topology.hosts."""
    exponent: float
    """As it is said of each of them: the slopes of the points' logarithms, one for each, are to be at most this."""
    source: str
    """Whose word it is."""
    beside: str = ""
    """What must be known to read the slopes."""
