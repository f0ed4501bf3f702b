"""A lossy network for Python and notebooks, as long as a block lasts.

with lossbench.Network(hosts=4, loss="3%") as net:
    server = net.host(0).popen(["iperf3", "-s", "-1"])
    print(net.host(1).run(["iperf3", "-c", net.host(0).address]).stdout)
    print(net.lost())
"""

from __future__ import annotations

import html
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from lossbench.errors import NotAbleError, UsageError
from lossbench.net.host.loops import in_any_thread
from lossbench.net.journal import Journal
from lossbench.net.kernel import Kernel
from lossbench.net.star.network import StarNetwork
from lossbench.processes import inherited
from lossbench.proof.evidence import Proof
from lossbench.proof.probe.probing import prove_network
from lossbench.runs import interrupt
from lossbench.runs.choose import choose_backend
from lossbench.runs.launch.environment import Identity, outside_of_a_run
from lossbench.runs.run import plain_errors
from lossbench.runs.standing import put_up
from lossbench.spec.asking import adhoc
from lossbench.spec.asking.in_python import CONDITION, said_of_arguments, word
from lossbench.spec.asking.points import points_of
from lossbench.spec.experiment import Experiment
from lossbench.spec.topology import Host

PROBES = 20_000


@dataclass(kw_only=True)
class Network:
    """Hosts around a switch, their links as asked (units as on the command line); `profile` instead of single words. It
    needs root, and ends its programs and itself with the block."""

    hosts: int = 4
    loss: str | float = ""
    burst: str | float = ""
    delay: str | float = ""
    rate: str | float = ""
    profile: str = ""
    seed: int = 0
    _stack: ExitStack = field(default_factory=ExitStack, repr=False)
    _network: StarNetwork | None = field(default=None, repr=False)
    _book: Journal = field(init=False, repr=False)

    @in_any_thread
    def __enter__(self) -> Network:
        experiment, kernel = self._experiment(), Kernel.tried()
        if kernel.namespaces is not None:
            raise NotAbleError(kernel.namespaces, next_step="start Python as root")
        backend, _ = choose_backend(experiment, kernel)
        try:
            self._build(experiment, backend)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    @in_any_thread
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._network = None
        self._stack.__exit__(kind, value, trace)

    def _experiment(self) -> Experiment:
        words: dict[str, Any] = {name: word(getattr(self, name)) for name in CONDITION}
        with said_of_arguments():
            text = adhoc.text(adhoc.Asked(**words))
        return points_of(tomllib.loads(text), path=Path("Network"), settings=[])[-1][1]

    def _build(self, experiment: Experiment, backend: str) -> None:
        undo = self._stack.enter_context(interrupt.undoing())
        with plain_errors():
            self._book, self._network = put_up(undo, experiment, backend=backend, seed=self.seed, kind="run")
        interrupt.check()

    @property
    def network(self) -> StarNetwork:
        if self._network is None:
            raise UsageError("this network does not stand", next_step="use it inside: with lossbench.Network() as net")
        return self._network

    def host(self, rank: int) -> Inside:
        hosts = self.network.experiment.topology.all_hosts()
        if not 0 <= rank < len(hosts):
            raise UsageError(f"no host {rank}", next_step=f"hosts are 0 to {len(hosts) - 1}")
        return Inside(self, hosts[rank])

    @in_any_thread
    def lost(self) -> tuple[int, int]:
        """(packets that rules dropped, packets that met a rule) so far, counted by the kernel."""
        here = [one for counters in self.network.counters().values() for one in counters.values()]
        return sum(one.dropped for one in here), sum(one.seen for one in here)

    def __repr__(self) -> str:
        asked = {name: word(getattr(self, name)) for name in CONDITION if name != "hosts"}
        words = [
            f"{self.hosts} hosts",
            *(f"{name} {said}" for name, said in asked.items() if said),
            f"seed {self.seed}",
        ]
        return f"<lossbench network: {', '.join(words)}, {self._now()}>"

    def _repr_html_(self) -> str:
        """For notebooks: what was asked, what the kernel has dropped so far, and where the hosts are."""
        hosts = [] if self._network is None else [self.host(rank) for rank in range(self.hosts)]
        rows = "".join(f"<tr><td>{one.about.name}</td><td>{one.address}</td></tr>" for one in hosts)
        table = f"<table><tr><th>host</th><th>address</th></tr>{rows}</table>" if rows else ""
        return f"<p>{html.escape(repr(self)[1:-1])}</p>{table}"

    def _now(self) -> str:
        if self._network is None:
            return "not standing"
        dropped, seen = self.lost()
        return f"{dropped} of {seen} packets dropped so far"

    @in_any_thread
    def prove(self, packets: int = PROBES) -> Proof:
        """Send probes and compare: what was asked, what the kernel dropped, what receivers miss."""
        with plain_errors():
            return prove_network(self.network, packets=packets, payload_bytes=64, token=1)


@dataclass(frozen=True)
class Inside:
    """One host."""

    net: Network
    about: Host

    @property
    def address(self) -> str:
        """On the data link, where packets get lost."""
        return self.about.address("ipv4")

    def popen(self, command: Sequence[str], **keys: Any) -> subprocess.Popen[Any]:
        """As subprocess.Popen, in this host; it dies with this Python."""
        network, book = self.net.network, self.net._book
        topology = network.experiment.topology
        run = Identity(run_id=book.id, token=0, seed=self.net.seed)
        threads = max(1, (os.cpu_count() or 1) // topology.hosts)
        own = outside_of_a_run(self.about, topology, run, folder=book.folder, threads=threads)
        keys["env"] = inherited(**{**own, **(keys.get("env") or {})})
        step_in = network.star.place(self.about.name).stepper(book.folder / "hosts", mortal=True)
        return subprocess.Popen(list(command), preexec_fn=step_in, start_new_session=True, **keys)

    def run(self, command: Sequence[str], *, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
        """To its end; what it prints is kept."""
        keys: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with self.popen(command, **keys) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(list(command), process.returncode, out, err)
