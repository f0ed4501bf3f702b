"""The words of a command line as arguments in Python, and mistakes in them said of arguments."""

from __future__ import annotations

import inspect
import re
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lossbench.errors import UsageError
from lossbench.spec.asking.adhoc import SWEPT, Asked
from lossbench.spec.units import perhaps_shares
from lossbench.spec.userfile import did_you_mean

CONDITION = ("hosts", "loss", "burst", "delay", "rate", "profile")
WORDS = (*CONDITION, "time_limit", "sweep")  # of a command
EXAMPLE = 'for example lossbench.run(command=["python", "train.py"], loss="3%")'


def known_to(asked: Callable[..., Any], how: Mapping[str, Any]) -> None:
    """A misspelt argument is said with the name that was meant, as an option would be."""
    names = [name for name in inspect.signature(asked).parameters if name not in ("suite", "progress")]
    known = [*names, "command", *WORDS]
    for name in how:
        if name not in known:
            raise TypeError(f"run() has no argument '{name}'; {did_you_mean(name, known)}")


def taken(suite: str | Asked, command: Sequence[str] | str, how: dict[str, Any]) -> str | Asked:
    """What is to be run; the words that describe its network are taken out of `how`."""
    words = {name: how.pop(name) for name in WORDS if name in how}
    if not command:
        if words:
            step = f'settings=["KEY=VALUE"] changes a suite; {EXAMPLE}'
            raise UsageError(f"{next(iter(words))} applies only to a command", next_step=step)
        if not suite:
            raise UsageError("nothing to run", next_step=f'a suite (lossbench.run("quickstart")), or {EXAMPLE}')
        return suite
    if suite:
        raise UsageError(f"{suite} already has a program of its own", next_step="give a suite, or command")
    program = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    sweep = _swept(words.pop("sweep", None))
    for text in perhaps_shares(word(words.get("loss")), sweep):
        warnings.warn(text, stacklevel=3)
    return Asked(command=tuple(program), sweep=sweep, **{name: word(value) for name, value in words.items()})


def _swept(sweep: Mapping[str, Sequence[Any]] | None) -> tuple[str, ...]:
    if sweep is not None and not isinstance(sweep, Mapping):
        raise UsageError("sweep maps keys to lists of values", next_step='for example sweep={"loss": [0, 1, 5]}')
    for key, values in (sweep or {}).items():
        if key not in SWEPT or isinstance(values, str) or not isinstance(values, Sequence) or not values:
            step = f'for example sweep={{"loss": [0, 1, 5]}}; keys: {", ".join(SWEPT)}'
            raise UsageError(f"sweep={{'{key}': {str(values)[:60]}}}: not a key and a list of values", next_step=step)
    return tuple(f"{key}={','.join(map(word, values))}" for key, values in (sweep or {}).items())


def word(value: str | float | None) -> str:
    """As on a command line, where a bare number counts in the unit that people mean: loss=3 is 3%."""
    return "" if value is None else str(value)


@contextmanager
def said_of_arguments() -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise UsageError(_as_arguments(error.message), next_step=_as_arguments(error.next_step)) from None


def _as_arguments(text: str) -> str:
    """Options, as Python calls them: --loss 3% is loss="3%"."""
    text = text.replace("--time-limit", "--time_limit")
    text = re.sub(r"--sweep (\w+)=([^\s:;]+)", r'sweep={"\1": [\2]}', text)
    option = rf"--({'|'.join(WORDS)})\b"
    return re.sub(option, r"\1", re.sub(rf"{option} (\d[^\s:;,]*|off\b)", r'\1="\2"', text))
