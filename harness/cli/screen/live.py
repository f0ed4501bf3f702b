"""How a suite goes, while it goes: a live view on a terminal, a line per run elsewhere, nothing when quiet."""

from __future__ import annotations

import time
from contextlib import suppress
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lossbench.results import measures
from lossbench.results.naming import point_name
from lossbench.runs.launch.program import interpreter
from lossbench.runs.many.suite import Planned

LOOK_S = 2.0  # how often the network's counters are read for the view
REDRAW_PER_S = 4
MOST_READ = 1 << 20  # of a log, at a time


class View:
    """`show` is told everything that happens; what is drawn is one screenful that is overwritten."""

    def __init__(self, console: Console, *, quiet: bool, tee: bool = False, here: bool = False) -> None:
        """`here`: programs are started on this machine, by an interpreter that can be named."""
        self.console, self.quiet, self.tee, self.here = console, quiet, tee, here
        self._log, self._read_to, self._last_line = "", 0, ""
        self._live = Live(console=console, refresh_per_second=REDRAW_PER_S, transient=True)
        self._on_screen = console.is_terminal and not quiet
        self._began = time.monotonic()
        self._number, self._made, self._stage = -1, 0, "looking at the machine"
        self._now: dict[str, Any] = {}
        self._looked, self._network = 0.0, ""

    def __enter__(self) -> View:
        if self._on_screen:
            self._live.start()
            self._live.update(Text(self._stage))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._on_screen:
            self._live.stop()

    def show(self, one: Planned, total: int, todo: int, what: str | dict[str, Any]) -> None:
        """`todo`: runs still to be made, this one included. A view never ends a run, whatever a workload records."""
        try:
            self._show(one, total, todo, what)
        except Exception:  # noqa: BLE001 - see above
            self._now = {}

    def _show(self, one: Planned, total: int, todo: int, what: str | dict[str, Any]) -> None:
        if one.number != self._number:
            self._next_point(one, total, todo)
        if isinstance(what, dict):
            numbers = {name: measures.number(value) for name, value in what.items()}
            self._now = {name: value for name, value in numbers.items() if value is not None}
            self._look_at_network(what)
            self._read_log(str(what.get("log", "")))
        else:
            self._stage = what
            self._read_log(self._log)
        if self._on_screen:
            self._live.update(self._screen(one, total, todo))

    def _next_point(self, one: Planned, total: int, todo: int) -> None:
        if self._number < 0:
            self._began = time.monotonic()
            if self.here and not self.quiet and (said := interpreter(one.experiment.workload)):
                self.console.print(said, markup=False, soft_wrap=True)
        self._number, self._now, self._network = one.number, {}, ""
        self._made += 1
        if not self._on_screen and not self.quiet:
            self.console.print(f"run {total - todo + 1} of {total}: {_name(one)}", markup=False, soft_wrap=True)

    def _look_at_network(self, now: dict[str, Any]) -> None:
        if not self._on_screen or time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        try:
            seen, dropped = now["network"]()
        except Exception:  # noqa: BLE001 - a view never ends a run; the verdict says what is wrong
            return
        share = f" ({100 * dropped / seen:.2f} %)" if seen else ""
        self._network = f"network: {dropped} of {seen} packets lost{share}"

    def _read_log(self, path: str) -> None:
        """What rank 0 has printed since: its last line is shown, with `tee` all of it."""
        if path != self._log:
            self._log, self._read_to, self._last_line = path, 0, ""
        if not path or not (self._on_screen or self.tee):
            return
        with suppress(OSError), open(path, "rb") as file:
            file.seek(self._read_to)
            text = file.read(MOST_READ)
            whole = text[: text.rfind(b"\n") + 1]
            self._read_to += len(whole)
            lines = whole.decode("utf-8", "replace").splitlines()
            self._last_line = next((line for line in reversed(lines) if line.strip()), self._last_line)
            if self.tee and lines:
                self.console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)

    # --- what is drawn ---------------------------------------------------------------------------------------------

    def _screen(self, one: Planned, total: int, todo: int) -> Group:
        within = self._within()
        head = Table.grid(padding=(0, 1))
        head.add_row(
            Text(f"{one.experiment.name}: run {total - todo + 1} of {total}"),
            ProgressBar(total=total, completed=total - todo + within, width=24),
            Text(self._left(within, todo), style="dim"),
        )
        lines = [Text(_name(one), style="bold", overflow="ellipsis", no_wrap=True), Text(f"stage {self._stage}")]
        said = f"rank 0: {self._last_line}" if self._last_line else ""
        known = [text for text in (self._workload(), said, self._network) if text]
        lines += [Text(text, overflow="ellipsis", no_wrap=True) for text in known]
        return Group(head, *lines)

    def _within(self) -> float:
        """The share of this run that is done, by its steps."""
        if self._stage.startswith("9"):
            return 1.0
        steps, last = self._now.get("steps"), self._now.get("last_step", -1)
        return min(1.0, (last + 1) / steps) if steps else 0.0

    def _left(self, within: float, todo: int) -> str:
        """By what this session has made so far; nothing is said of what was finished before."""
        spent, made = time.monotonic() - self._began, self._made - 1 + within
        if made < 0.3:
            return ""
        left = spent / made * (todo - within)
        return f"{left:.0f} s left" if left < 90 else f"{left / 60:.0f} min left"

    def _workload(self) -> str:
        now, last = self._now, int(self._now.get("last_step", -1)) + 1
        words = [f"{now['elapsed_s']:.0f} s"] if "elapsed_s" in now else []
        if last:
            words.append(f"step {last} of {int(now['steps'])}" if "steps" in now else f"step {last}")
        if "loss" in now:
            words.append(f"loss {now['loss']:.4g}")
        if last and now.get("elapsed_s"):
            words.append(f"{last / now['elapsed_s']:.3g} steps/s")
        arrived = [f"{now[half]:.4f}" for half in ("arrived_1", "arrived_2") if half in now]
        if arrived:
            words.append(f"arrived {' / '.join(arrived)}")
        return ", ".join(words)


def _name(one: Planned) -> str:
    return f"{point_name(one.chosen)}, seed {one.seed}"
