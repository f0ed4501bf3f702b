"""matplotlib's only door: figures look the same in every folder, and none has a program started.

matplotlib reads the file `matplotlibrc` of the current folder before any other, when it is imported. Such a file can
have every text set by `latex`, with a preamble of its own, and older versions evaluate what it says; so that file is
not read, and whatever a user's own file says is not in force while we draw."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lossbench.processes import absolute_folders


@contextmanager
def nothing_of_the_folder() -> Iterator[None]:
    """It asks by `os.path.exists` whether there is a file; and it starts fc-list when it has no list of fonts yet."""
    exists, path = os.path.exists, os.environ.get("PATH")
    os.path.exists = lambda path: not _its_file(path) and exists(path)
    os.environ["PATH"] = absolute_folders(path)
    try:
        yield
    finally:
        os.path.exists = exists
        if path is None:
            del os.environ["PATH"]
        else:
            os.environ["PATH"] = path


def _its_file(asked: Any) -> bool:
    return isinstance(asked, str) and os.path.basename(asked) == "matplotlibrc" and not asked.startswith(os.sep)


if "matplotlib" not in sys.modules:
    with nothing_of_the_folder():
        importlib.import_module("matplotlib.figure")

import matplotlib  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter  # noqa: E402

__all__ = ["Axes", "Figure", "FuncFormatter", "LogLocator", "MaxNLocator", "NullFormatter", "drawing", "matplotlib"]


@contextmanager
def drawing(style: dict[str, Any]) -> Iterator[None]:
    """By matplotlib's own defaults and `style`, and nothing else."""
    with matplotlib.rc_context():
        with warnings.catch_warnings():  # of settings that it has given up, and still has defaults for
            warnings.simplefilter("ignore", matplotlib.MatplotlibDeprecationWarning)
            defaults = matplotlib.rcParamsDefault
            matplotlib.rcParams.update({name: defaults[name] for name in defaults if name != "backend"})
        matplotlib.rcParams.update(style)
        yield
