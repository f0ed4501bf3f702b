"""Everything that reaches a terminal goes through here. What a file, a program or a name says is text: its control
characters are shown, as they would be written in Python, and never obeyed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

# C0 and C1 but for line ends and tabs, and the marks that turn the direction of a text.
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    """The same without anything that a terminal would obey."""
    return OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """A line, unadorned."""
    typer.echo(plain(text), err=err, nl=nl)


class Terminal(Console):
    """Colours are ours; what stands between them is plain."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"highlight": False, "markup": False, **settings})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for one in super().render(renderable, options):
            style = one.style.update_link(None) if one.style is not None and one.style.link else one.style
            yield one if one.control else Segment(plain(one.text), style)
