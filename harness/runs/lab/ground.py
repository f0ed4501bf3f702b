"""A lab's machines as the ground that runs stand on: a host is a machine; suites and proofs stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

from lossbench.contract import MASTER_PORT
from lossbench.errors import NotAbleError, UsageError
from lossbench.net.impair import registry
from lossbench.net.lab import fit
from lossbench.net.lab.channel import Channel
from lossbench.net.lab.network import LabNetwork
from lossbench.net.lab.orders import Channels
from lossbench.net.lab.place import Remote
from lossbench.net.network import Network
from lossbench.net.nic.impaired import BACKENDS
from lossbench.proof.probe.probing import Probes
from lossbench.runs.ground import About, Gauge
from lossbench.runs.lab.exchange import LabExchange
from lossbench.runs.lab.remote import LabGauge, LabLauncher
from lossbench.runs.launch.program import Launcher
from lossbench.spec.experiment import Experiment, Program
from lossbench.spec.lab import ONE_RANK, Lab
from lossbench.spec.placement import rules_ever
from lossbench.spec.topology import Placed
from lossbench.spec.userfile import check

PREPARE_S = 1800.0  # a data set may have to be fetched


class LabGround:
    """See runs.ground.Ground. Channels are opened once for a suite."""

    launcher: Launcher

    def __init__(self, lab: Lab, *, these_nics: bool = False, again: str = "--lab FILE") -> None:
        """`again`: how a replay is told of this lab."""
        self.lab, self._these_nics, self._again = lab, these_nics, again
        self._machines = Channels(lab)
        try:
            self._machines.connect()
            self._machines.all_or_refuse()
            self._about = self._machines.all(_about)
            self._placed = tuple(_placed(self._about[rank]) for rank in range(len(lab.machine)))
            self._refuse()
        except BaseException:
            self._machines.close()
            raise
        self.launcher = LabLauncher(self._machines)

    def _refuse(self) -> None:
        mtus = {f"h{rank}": one["interface"]["mtu"] for rank, one in self._about.items()}
        for text, step in fit.mixed(mtus, [one.address for one in self._placed]):
            raise NotAbleError(text, next_step=step)
        refuse_shared(self._placed, these_nics=self._these_nics)
        if len(self._placed) < 2:
            raise NotAbleError("a run needs two machines", next_step="one alone: lossbench nic apply")
        self._machines.all(self._examined)

    def _examined(self, channel: Channel) -> None:
        """Before the first point is begun, and not in its midst."""
        channel.ask(
            "network.examined",
            interface=channel.machine.interface,
            peers=[one.address for one in self._placed if one.address != channel.machine.address],
            past_rdma=channel.machine.past_rdma,
            this_nic=self._these_nics,
        )

    def about(self) -> About:
        """Not by whom, and by which names, the machines are reached."""
        said = self.lab.model_dump(
            mode="json", exclude={"ssh_config": True, "machine": {"__all__": {"ssh", "control"}}, "switch": {"folder"}}
        )
        machines = {f"h{rank}": one["facts"] for rank, one in sorted(self._about.items())}
        return About(machines=machines, lab=said, again=self._again)

    def placed(self, experiment: Experiment, asked: Collection[str] = ()) -> Experiment:
        fit_for_a_lab(experiment)
        machines = experiment.topology.machines
        if machines and machines != self._placed:
            raise NotAbleError("this was planned for other machines", next_step="give the lab that it was begun in")
        content = experiment.model_dump()
        content["workload"] |= {"ranks_per_process": 1, "torchrun": self._ranks_each(experiment.workload)}
        own = {
            "hosts": len(self._placed),
            "family": "ipv6" if ":" in self._placed[0].address else "ipv4",
            "mtu": self._about[0]["interface"]["mtu"],
        }
        refuse_others(experiment, own, asked)
        content["topology"] |= {**own, "machines": [one.model_dump() for one in self._placed]}
        return check(Experiment, content, origin=f"{experiment.name} on lab {self.lab.name}")

    def _ranks_each(self, workload: Program) -> int:
        """Several ranks on a machine are torchrun's business; what comes with lossbench has one rank on each."""
        each = {machine.ranks for machine in self.lab.machine}
        if each == {1} or workload.torchrun or not workload.command:
            return workload.torchrun
        if len(each) > 1:
            text = f"machines have different numbers of ranks ({', '.join(map(str, sorted(each)))})"
            raise NotAbleError(text, next_step="ranks = the same in lab.toml, or --ranks N")
        return each.pop()

    def _one_rank(self, workload: Program) -> str:
        """That the lab's own number is for others, where it is."""
        said = self.lab.most_ranks()
        return "" if said == 1 or workload.command else ONE_RANK.format(said)

    def backend(self, experiment: Experiment) -> tuple[str, str]:
        can: dict[str, str | None] = dict.fromkeys(registry.KINDS, "it does not stand on a machine's own interface")
        for name in BACKENDS:
            lacking = [f"h{rank}" for rank, one in self._about.items() if name not in one["machine"]["backends"]]
            can[name] = f"not on {', '.join(lacking)}" if lacking else None
        if experiment.backend not in ("auto", *can):
            can[experiment.backend] = "it does not stand on a machine's own interface"
        profiles = [entry.profile for entry in experiment.impair]
        rules = rules_ever(experiment, seed=0)
        name, why = registry.choose(experiment.backend, profiles=profiles, rules=rules, can=can)
        return name, "; ".join(filter(None, [why, self._one_rank(experiment.workload)]))

    def network(self, backend: str, network_id: str, experiment: Experiment) -> Network:
        del network_id  # every machine has a journal of its own
        ranks = {host.name: host.rank for host in experiment.topology.all_hosts()}
        shared = any(one.control_interface == one.interface for one in self._placed)
        ports = range(MASTER_PORT, MASTER_PORT + 1 + len(experiment.beside))
        return LabNetwork(
            machines=self._machines,
            experiment=experiment,
            backend=backend,
            places=lambda name: Remote(name, ranks[name]),
            spared=tuple(ports) if shared else (),
            these_nics=self._these_nics,
        )

    def exchange_of(self, network: Network) -> Callable[..., Probes]:
        assert isinstance(network, LabNetwork)
        return partial(LabExchange, network)

    def gauge(self, ours: Callable[[], Iterable[int]]) -> Gauge:
        del ours  # each machine knows its own
        return LabGauge(self._machines)

    def check(self, program: Program) -> None:
        self._machines.all(lambda c: c.ask("ranks.check", program=_sent(program)))

    def prepare(self, programs: Sequence[Program]) -> None:
        sent = [_sent(one) for one in programs]
        self._machines.all(lambda c: c.ask("ranks.prepare", programs=sent, timeout_s=PREPARE_S))

    def close(self) -> None:
        self.launcher.close()
        self._machines.close()


def fit_for_a_lab(experiment: Experiment) -> None:
    """Refuses what no machine of any lab could do."""
    topology = experiment.topology
    if topology.uplink_mbit() or topology.downlink_mbit():
        text = f"{experiment.name} asks for a rate (topology): links of a lab have the rate that they have"
        raise NotAbleError(text, next_step="an experiment without one; for the switch's own queues: switch-marks")
    if experiment.backend == "simulated":
        raise NotAbleError("a simulation needs no lab", next_step="leave --lab out")
    if experiment.capture.packets:
        raise NotAbleError("packets are captured in namespaces only", next_step="in a lab: lossbench lab exec, tcpdump")
    if any(one.options.get("until") for one in (experiment.workload, *experiment.beside)):
        text = "a service that ends when its numbers are known well enough reads what all of its clients measured"
        raise NotAbleError(f"{text}: not on machines of their own", next_step="leave --until out")


class OnPaper:
    """A lab of so many machines that nobody has asked yet: for a plan."""

    def __init__(self, machines: int) -> None:
        self._own = {"hosts": machines}

    def placed(self, experiment: Experiment, asked: Collection[str] = ()) -> Experiment:
        fit_for_a_lab(experiment)
        refuse_others(experiment, self._own, asked)
        content = experiment.model_dump()
        content["topology"] |= self._own
        return check(Experiment, content, origin=experiment.name)


def refuse_shared(placed: Sequence[Placed], *, these_nics: bool) -> None:
    """Whoever is reached without SSH (Slurm) has no session that its agent could see run over the interface."""
    shared = [f"h{rank}'s {one.interface}" for rank, one in enumerate(placed) if one.control_interface == one.interface]
    if shared and not these_nics:
        raise NotAbleError(
            f"control and data share an interface ({', '.join(shared)}): it would be impaired under the controller",
            next_step="--yes-these-nics if you mean it (SSH and the rendezvous are spared), or another interface",
        )


def refuse_others(experiment: Experiment, own: dict[str, Any], asked: Collection[str]) -> None:
    """What a suite's file says of its network is the lab's to say; what a point is called by must be what it runs at.
    `asked`: the keys that the command line, the sweep or an arm sets."""
    for name, here in own.items():
        value = getattr(experiment.topology, name)
        if value != here and f"topology.{name}" in asked:
            text = f"{experiment.name}: topology.{name} = {value} is asked for, this lab has {here}"
            step = f"--set topology.{name}={here} is what this lab can run of it; or set the lab up so"
            raise UsageError(text, next_step=step)


def _sent(program: Program) -> dict[str, Any]:
    return program.model_dump(mode="json", include={"name", "command", "options", "torchrun"})


def _about(channel: Channel) -> dict[str, Any]:
    machine = channel.machine
    return {
        "machine": channel.ask("machine.about"),
        "facts": channel.ask("facts.told"),
        "interface": channel.ask("network.about", interface=machine.interface),
        "control": channel.ask("machine.control", asked=machine.control),
        "address": machine.address,
        "name": machine.interface,
    }


def _placed(about: dict[str, Any]) -> Placed:
    return Placed(
        address=about["address"],
        control=about["control"]["address"],
        interface=about["name"],
        control_interface=about["control"]["interface"],
        mac=about["interface"]["mac"],
    )
