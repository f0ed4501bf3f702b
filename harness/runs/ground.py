"""What runs stand on: this machine with its namespaces, or a lab's machines (runs/lab). A run asks its ground for a
network, a launcher and a gauge of the load, and need not know which it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lossbench.errors import NotAbleError
from lossbench.net.kernel import Kernel
from lossbench.net.network import Network
from lossbench.proof.probe.exchange import Exchange
from lossbench.proof.probe.probing import Probes
from lossbench.proof.watched import Quiet
from lossbench.runs.choose import choose_backend, network_of
from lossbench.runs.launch.nursery import Nurseries
from lossbench.runs.launch.program import Exec, Launcher, command_of, prepare
from lossbench.runs.load import Load
from lossbench.spec.experiment import Experiment, Program


class Gauge(Protocol):
    """How busy the machines are, while a workload runs."""

    def begin(self) -> None: ...

    def sample(self) -> None: ...

    def into(self, quiet: Quiet) -> None:
        """What was seen, at the end."""


@dataclass(frozen=True, kw_only=True)
class About:
    """Of machines that results were made on, if not on this one."""

    machines: dict[str, dict[str, Any]] = field(default_factory=dict)  # by host: see results.machine.facts
    lab: dict[str, Any] = field(default_factory=dict)  # as its file says
    again: str = ""  # what `lossbench replay` must be told


class Places(Protocol):
    """All that a plan asks of the ground it is made for."""

    def placed(self, experiment: Experiment, asked: Collection[str] = ()) -> Experiment:
        """As it is to be run here; refuses what can't be. `asked`: dotted keys that its point is called by."""


class Ground(Places, Protocol):
    launcher: Launcher

    def about(self) -> About:
        """What stands beside results that are made here."""

    def backend(self, experiment: Experiment) -> tuple[str, str]:
        """(its name, why)."""

    def network(self, backend: str, network_id: str, experiment: Experiment) -> Network: ...

    def exchange_of(self, network: Network) -> Callable[..., Probes]:
        """Who sends probes over it."""

    def gauge(self, ours: Callable[[], Iterable[int]]) -> Gauge:
        """`ours`: the run's processes on this machine."""

    def check(self, program: Program) -> None:
        """Is it there?"""

    def prepare(self, programs: Sequence[Program]) -> None:
        """See launch.program.prepare."""

    def close(self) -> None: ...


class ThisMachine:
    """Namespaces."""

    def __init__(self, kernel: Kernel, launcher: Launcher | None = None) -> None:
        self.kernel, self.launcher = kernel, launcher or Exec()

    @classmethod
    def tried(cls) -> ThisMachine:
        """For a suite: processes that have loaded their libraries are kept."""
        kernel = Kernel.tried()
        if kernel.namespaces is not None:
            raise NotAbleError(kernel.namespaces, next_step="run with sudo")
        return cls(kernel, Nurseries())

    def about(self) -> About:
        return About()

    def placed(self, experiment: Experiment, asked: Collection[str] = ()) -> Experiment:
        del asked
        if experiment.topology.machines:
            raise NotAbleError("this was planned for the machines of a lab", next_step="give that lab: --lab FILE")
        return experiment

    def backend(self, experiment: Experiment) -> tuple[str, str]:
        return choose_backend(experiment, self.kernel)

    def network(self, backend: str, network_id: str, experiment: Experiment) -> Network:
        return network_of(backend, network_id, experiment)

    def exchange_of(self, network: Network) -> Callable[..., Probes]:
        del network
        return Exchange

    def gauge(self, ours: Callable[[], Iterable[int]]) -> Gauge:
        return Load(ours)

    def check(self, program: Program) -> None:
        command_of(program)

    def prepare(self, programs: Sequence[Program]) -> None:
        """What it loads for that is loaded for the ranks at the same time."""
        self.launcher.expect(programs)
        prepare(programs)

    def close(self) -> None:
        self.launcher.close()
