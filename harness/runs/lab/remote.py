"""Processes on the machines of a lab, as a run keeps its own: started and asked through the machine's agent; what they
record and print comes over as they say it, into the same files as on this machine."""

from __future__ import annotations

import hashlib
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lossbench.errors import LossbenchError, RunError, VanishedError
from lossbench.net.lab.channel import Channel
from lossbench.net.lab.orders import Channels
from lossbench.net.lab.place import Remote
from lossbench.processes import Running
from lossbench.proof.watched import Quiet
from lossbench.runs.launch.program import Start
from lossbench.spec.experiment import Program

NEWS_S = 0.05
START_S = 240.0  # the first one loads its libraries
PATHS = ("LOSSBENCH_SPEC", "LOSSBENCH_RECORDS", "LOSSBENCH_GO", "OMP_NUM_THREADS")  # the agent has its own


@dataclass(kw_only=True)
class _Process:
    """See processes.Running."""

    pump: Pump
    key: str
    pid: int
    records: Path
    log: Path
    code: int | None = None
    _sum: Any = field(default_factory=hashlib.sha256)

    def poll(self) -> int | None:
        return -signal.SIGKILL if self.code is None and self.pump.lost is not None else self.code

    def signal(self, number: int) -> None:
        if self.code is None:
            with suppress(LossbenchError):  # a machine that is gone has ended its processes itself
                self.pump.channel.ask("ranks.signal", key=self.key, number=int(number))

    def catches(self, number: int) -> bool:
        with suppress(LossbenchError):
            return bool(self.pump.channel.ask("ranks.catches", key=self.key, number=int(number)))
        return False

    def reap(self) -> None:
        self.pump.end()

    def heard(self, said: dict[str, Any]) -> None:
        records, log = said["records"].encode("latin-1"), said["log"].encode("latin-1")
        for path, data in ((self.records, records), (self.log, log)):
            if data or not path.exists():
                with open(path, "ab") as file:
                    file.write(data)
        self._sum.update(records)
        if said["code"] is not None and said["sha256"] != self._sum.hexdigest():
            raise RunError(f"what {self.key} recorded on {self.pump.channel.name} did not arrive whole")
        self.code = said["code"]


class Pump:
    """Asks one machine for news of its processes, as long as a run has any there."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.lost: LossbenchError | None = None
        self._all: dict[str, _Process] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, one: _Process) -> None:
        self._all[one.key] = one
        if self._thread is None:
            self._ended.clear()
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            while not self._ended.wait(NEWS_S):
                self._hear(self.channel.ask("ranks.news"))
        except LossbenchError as error:
            self.lost = error
        except OSError as error:
            self.lost = RunError(f"what {self.channel.name} says can't be stored ({error})")
        except Exception as error:  # noqa: BLE001 - a thread that dies in silence would be waited for
            self.lost = RunError(f"{self.channel.name} answers nonsense ({type(error).__name__}: {error})")

    def _hear(self, news: dict[str, Any]) -> None:
        for name, text in news["samples"].items():
            if "/" not in name and not name.startswith("."):
                folder = next(iter(self._all.values())).records.parent.parent / "samples"
                folder.mkdir(exist_ok=True)
                with open(folder / name, "ab") as file:
                    file.write(text.encode("latin-1"))
        for key, said in news["processes"].items():
            if key in self._all and self._all[key].code is None:
                self._all[key].heard(said)

    def end(self) -> None:
        """Of a run: once for all its processes there."""
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        self._thread = None
        self._all.clear()
        if not isinstance(self.lost, VanishedError):
            self.lost = None  # the next run is another
        with suppress(LossbenchError):
            self.channel.ask("ranks.end")


class LabLauncher:
    """See launch.program.Launcher."""

    def __init__(self, machines: Channels) -> None:
        self._machines = machines
        self._pumps = {rank: Pump(channel) for rank, channel in machines.open.items()}

    def expect(self, programs: Sequence[Program]) -> None:
        """Told to machines when they prepare."""

    def start(self, start: Start) -> Running:
        assert isinstance(start.place, Remote)
        pump, variables = self._pumps[start.place.rank], start.variables
        pid = pump.channel.ask(
            "ranks.start",
            timeout_s=START_S,
            key=start.log.stem,
            host=start.place.name,
            program=start.program.model_dump(mode="json", include={"name", "command", "torchrun"}),
            variables={name: value for name, value in variables.items() if name not in PATHS},
            options=Path(variables["LOSSBENCH_SPEC"]).read_text(encoding="utf-8"),
            gated=bool(variables["LOSSBENCH_GO"]),
            held=start.held,
        )
        one = _Process(
            pump=pump, key=start.log.stem, pid=pid, records=Path(variables["LOSSBENCH_RECORDS"]), log=start.log
        )
        pump.add(one)
        return one

    def let_go(self) -> None:
        self._machines.all(lambda c: c.ask("ranks.let_go"))

    def check(self) -> None:
        for pump in self._pumps.values():
            if pump.lost is not None:
                raise pump.lost

    def close(self) -> None:
        for pump in self._pumps.values():
            pump.end()


class LabGauge:
    """See ground.Gauge: every machine watches its own load."""

    def __init__(self, machines: Channels) -> None:
        self._machines = machines

    def begin(self) -> None:
        self._machines.each(lambda c: c.ask("ranks.watch"))

    def sample(self) -> None: ...

    def into(self, quiet: Quiet) -> None:
        found = self._machines.each(lambda c: c.ask("ranks.load"))
        for rank, one in found.items():
            seen = Quiet() if isinstance(one, LossbenchError) or one is None else Quiet(**one)
            quiet.machines[f"h{rank}"] = seen
