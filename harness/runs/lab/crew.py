"""The processes of a run on one machine of a lab, kept by its agent: started here, read here, ended with it."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lossbench.errors import RunError
from lossbench.files import Lock, no_room
from lossbench.net.host import cgroups
from lossbench.net.host.place import Here
from lossbench.net.journal import Journal
from lossbench.processes import Running
from lossbench.proof.watched import Quiet
from lossbench.runs.launch.nursery import Nurseries
from lossbench.runs.launch.program import Start, command_of, prepare
from lossbench.runs.load import Load
from lossbench.spec.experiment import Program

MOST_BYTES = 4 << 20  # of all files in one answer
FOLDER, LOCK = "lossbench-agent-", "lock"
YOUNG_S = 60.0  # a folder that its agent may not have locked yet
SAMPLE_S, TICK_S = 0.25, 0.02
SAID = (
    "cpu_busy",
    "busiest",
    "stolen",
    "waited",
    "each_ms",
    "unseen_waits",
    "own_cores",
    "late_ms",
    "throttled",
    "stalled",
    "stalled_alone",
    "watched_s",
    "suspended_s",
    "clock_set_s",
    "gpus",
    "cores",
)  # of Quiet


@dataclass(kw_only=True)
class _One:
    process: Running
    records: Path
    log: Path
    waiting: int  # processes that wait for the gate
    read_to: tuple[int, int] = (0, 0)


class Crew:
    """Every public method is a question. Libraries that were loaded once stay loaded from run to run."""

    def __init__(self) -> None:
        self._launcher = Nurseries()
        self._folder: Path | None = None
        self._lock: Lock | None = None  # in the folder, as long as it is ours
        self._book: Journal | None = None
        self._group = ""
        self._gate = -1
        self._all: dict[str, _One] = {}
        self._read_to: dict[str, int] = {}  # of samples
        self._watcher: _Watcher | None = None

    def _place(self) -> Path:
        if self._folder is None:
            _sweep()
            self._folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-"))
            with suppress(OSError):  # a file system without locks: then nobody sweeps there
                self._lock = Lock.take(self._folder / LOCK)
            for name in ("records", "logs"):
                (self._folder / name).mkdir()
            os.mkfifo(self._folder / "go")
            self._gate = os.open(self._folder / "go", os.O_RDWR)
        return self._folder

    def _joined(self) -> str:
        """What is started here ends here, whatever sessions it makes for itself; if we are killed, by `clean`."""
        if self._book is None:
            self._book = Journal.claim(kind="run")
            group = cgroups.folder(self._book.id)
            if group is not None:
                self._book.before_making("group", str(group))
                cgroups.make(group)
            self._group = cgroups.to_join(group)
        return self._group

    def start(
        self,
        *,
        key: str,
        host: str,
        program: dict[str, Any],
        variables: dict[str, str],
        options: str,
        gated: bool,
        held: bool = False,
    ) -> int:
        if "/" in key or key.startswith("."):
            raise RunError(f"no name for a process: {key[:40]}")
        folder = self._place()
        spec, records, log = folder / f"{key}.json", folder / "records" / f"{key}.jsonl", folder / "logs" / f"{key}.log"
        spec.write_text(options, encoding="utf-8")
        own = {
            "LOSSBENCH_SPEC": str(spec),
            "LOSSBENCH_RECORDS": str(records),
            "LOSSBENCH_GO": str(folder / "go") if gated else "",
        }
        asked = Program.model_validate(program)
        ranks = max(1, asked.torchrun)
        if "OMP_NUM_THREADS" not in os.environ:
            own["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // ranks))
        if "NCCL_NET" in os.environ:  # whoever has this machine has said so
            own["NCCL_NET"] = os.environ["NCCL_NET"]
        place = Here(host, group=self._joined())
        told = {**variables, **own}
        start = Start(program=asked, place=place, variables=told, log=log, hosts_path=folder / "none", held=held)
        process = self._launcher.start(start)
        self._all[key] = _One(process=process, records=records, log=log, waiting=gated * ranks + held)
        return process.pid

    def news(self) -> dict[str, Any]:
        """Since the last time, of each: what it recorded, what it printed, how it ended; and samples of all."""
        codes = {key: one.process.poll() for key, one in self._all.items()}  # before files are read: all is in them
        budget = _Budget()
        samples = self._samples(budget)
        out = {}
        for key, one in self._all.items():
            code = codes[key]
            records, log = budget.more(one.records, one.read_to[0]), budget.more(one.log, one.read_to[1])
            one.read_to = (one.read_to[0] + len(records), one.read_to[1] + len(log))
            if records or log or code is not None:
                code = None if budget.spent() else code
                if code:
                    log += no_room(one.log.parent).encode()
                out[key] = {
                    "records": records.decode("latin-1"),
                    "log": log.decode("latin-1"),
                    "code": code,
                    "sha256": _checksum(one.records) if code is not None else "",
                }
        return {"processes": out, "samples": samples}

    def _samples(self, budget: _Budget) -> dict[str, str]:
        """They only grow."""
        folder, out = self._place() / "samples", {}
        for path in sorted(folder.glob("*")) if folder.is_dir() else ():
            at = self._read_to.get(path.name, 0)
            if data := budget.more(path, at):
                self._read_to[path.name] = at + len(data)
                out[path.name] = data.decode("latin-1")
        return out

    def signal(self, key: str, number: int) -> None:
        self._all[key].process.signal(number)

    def catches(self, key: str, number: int) -> bool:
        return self._all[key].process.catches(number)

    def let_go(self) -> None:
        os.write(self._gate, b"g" * sum(one.waiting for one in self._all.values()))

    def end(self) -> None:
        """Killed, reaped, forgotten."""
        for one in self._all.values():
            one.process.signal(9)
        for one in self._all.values():
            one.process.reap()
        self._all.clear()
        self._read_to.clear()
        if self._folder is not None:
            os.close(self._gate)
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        if self._book is not None:
            self._book.undo_or_say()
            self._book = None  # else it is tried again

    def check(self, program: dict[str, Any]) -> None:
        """Is it there?"""
        command_of(Program.model_validate(program))

    def prepare(self, programs: list[dict[str, Any]]) -> None:
        """And libraries begin to load."""
        asked = [Program.model_validate(one) for one in programs]
        self._launcher.expect(asked)
        prepare(asked)

    def watch(self) -> None:
        """This machine's load, until it is asked for."""
        self._watcher = _Watcher(lambda: [one.process.pid for one in list(self._all.values())])

    def load(self) -> dict[str, Any] | None:
        one, self._watcher = self._watcher, None
        return one.end() if one is not None else None

    def close(self) -> None:
        try:
            self.end()
        finally:
            self._launcher.close()


def _checksum(path: Path) -> str:
    """What came over must have the same."""
    with suppress(OSError):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return hashlib.sha256(b"").hexdigest()


class _Budget:
    """An answer has an end; the next one brings the rest."""

    def __init__(self) -> None:
        self._left = MOST_BYTES

    def more(self, path: Path, at: int) -> bytes:
        try:
            with open(path, "rb") as file:
                file.seek(at)
                data = file.read(self._left)
        except FileNotFoundError:
            return b""
        self._left -= len(data)
        return data

    def spent(self) -> bool:
        return self._left == 0


def _sweep() -> None:
    """What agents that were killed left behind: folders whose lock nobody holds. The number in a name is no more than a
    second opinion: where machines or containers share this place, it may be of a process that we can't see."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}*-*"):
        with suppress(OSError):
            found = folder.lstat()
            if found.st_uid != os.geteuid() or time.time() - found.st_mtime < YOUNG_S:
                continue
            nobody = not Path("/proc", folder.name.removeprefix(FOLDER).partition("-")[0]).exists()
            lock = Lock.take(folder / LOCK, make=nobody)  # none: killed before it could make it
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                lock.release()


class _Watcher:
    """Begins when it is made."""

    def __init__(self, ours: Callable[[], Iterable[int]]) -> None:
        self._load, self._late, self._ended = Load(ours), list[float](), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._load.begin()
        self._thread.start()

    def _watch(self) -> None:
        next_sample = time.monotonic() + SAMPLE_S
        while not self._ended.is_set():
            before = time.monotonic()
            time.sleep(TICK_S)
            now = time.monotonic()
            self._late.append((now - before - TICK_S) * 1000)
            if now >= next_sample:
                self._load.sample()
                next_sample = now + SAMPLE_S

    def end(self) -> dict[str, Any]:
        self._ended.set()
        self._thread.join()
        quiet = Quiet(late_ms=[round(one, 2) for one in self._late])
        self._load.into(quiet)
        return {name: getattr(quiet, name) for name in SAID}
