"""Which backend a run gets, and the network that comes of it; what this machine can't do is refused before anything is
built."""

from __future__ import annotations

from lossbench.errors import NotAbleError
from lossbench.net.impair import registry
from lossbench.net.impair.backend import Kind
from lossbench.net.kernel import Kernel
from lossbench.net.network import Network
from lossbench.net.star import handles
from lossbench.net.star.network import StarNetwork
from lossbench.simulate import rules as simulation
from lossbench.simulate.no_network import NoNetwork
from lossbench.spec.about import about
from lossbench.spec.experiment import Experiment
from lossbench.spec.placement import rules_ever
from lossbench.spec.topology import Topology

SIMULATED = "simulated"
ROUND_MBIT = (1000, 500, 200, 100, 50, 20, 10, 5, 2, 1)


def network_of(backend: str, network_id: str, experiment: Experiment) -> Network:
    if backend == SIMULATED:
        return NoNetwork(experiment)
    return StarNetwork(network_id=network_id, experiment=experiment, backend=backend)


def choose_backend(experiment: Experiment, kernel: Kernel) -> tuple[str, str]:
    """(its name, why)."""
    if experiment.backend == SIMULATED:
        _refuse_to_simulate(experiment)
        return SIMULATED, "asked for"
    handles.refuse(experiment)
    used = [entry.profile for entry in experiment.impair]
    chosen = registry.choose(
        experiment.backend,
        profiles=used,
        rules=rules_ever(experiment, seed=0),
        can=registry.able(kernel, also=experiment.backend),
    )
    topology, shaping = experiment.topology, experiment.shaping
    asked = ("htb", shaping.scheduler, *([shaping.queue] if shaping.queue != "fifo" else []))
    for needed in asked if topology.uplink_mbit() or topology.downlink_mbit() else ():
        missing = kernel.no_qdisc(needed)
        if missing is not None:
            step = (
                'scheduler = "htb", queue = "fifo" work on most; a stock kernel: lossbench vm run -- lossbench run ...'
            )
            raise NotAbleError(missing, next_step=step)
    kind = registry.find(chosen[0])
    outrun = kind.outrun_by(topology)
    if outrun is not None:
        step = f"{_fitting_rate(kind, topology)}; or a stock kernel: lossbench vm run -- lossbench run ..."
        raise NotAbleError(outrun, next_step=step)
    return chosen


def _fitting_rate(kind: Kind, topology: Topology) -> str:
    """The words that make it run here: the highest round rate that its backend carries."""
    key = "uplink_rate_mbit" if topology.uplink_rate_mbit else "rate_mbit"
    for mbit in ROUND_MBIT:
        if kind.outrun_by(topology.model_copy(update={key: float(mbit)})) is None:
            option = f"--rate {mbit}mbit (of a suite --set topology.{key}={mbit})"
            return f"with {option if key == 'rate_mbit' else f'--set topology.{key}={mbit}'} it runs here"
    return "fewer hosts may do"


def _refuse_to_simulate(experiment: Experiment) -> None:
    workload = experiment.workload
    if workload.command or not about(workload.name).simulates:
        raise NotAbleError("only the training workload can simulate loss", next_step="use --backend auto")
    if experiment.beside:
        raise NotAbleError("a simulation has no hosts for programs beside it", next_step="use --backend auto")
    if workload.ranks_per_process not in (0, experiment.topology.hosts):
        step = "add --set workload.ranks_per_process=0"
        raise NotAbleError("a simulation needs all ranks in one process", next_step=step)
    simulation.layers(experiment)
