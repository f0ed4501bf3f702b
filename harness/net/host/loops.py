"""pyroute2 brings event loops of its own, and none may run while another does. In a notebook one always runs: for the
time of a call it is out of sight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def out_of_sight() -> Iterator[None]:
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(running)


def in_any_thread(function: Callable[P, T]) -> Callable[P, T]:
    """As it is, and in a notebook too."""

    @wraps(function)
    def wrapped(*arguments: P.args, **keys: P.kwargs) -> T:
        with out_of_sight():
            return function(*arguments, **keys)

    return wrapped
