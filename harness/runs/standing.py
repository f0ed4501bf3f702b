"""Standing labs: networks that outlive the command that made them. Their state lies beside their journal."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lossbench.errors import LossbenchError, NotAbleError, RunError, UsageError
from lossbench.net import journal
from lossbench.net.counters import counters_as_json
from lossbench.net.host import cgroups, namespaces
from lossbench.net.host.enter import write_host_files
from lossbench.net.impair import registry
from lossbench.net.journal import Journal, Removed
from lossbench.net.kernel import Kernel
from lossbench.net.star.network import StarNetwork
from lossbench.net.tc.shaping import classes_as_json
from lossbench.processes import inherited
from lossbench.proof.evidence import Proof
from lossbench.proof.probe.probing import prove_network
from lossbench.results import machine
from lossbench.runs.choose import choose_backend
from lossbench.runs.interrupt import Undo, held, last_words, undoing
from lossbench.runs.launch.environment import Identity, outside_of_a_run
from lossbench.runs.launch.program import no_program
from lossbench.runs.run import as_read_back, plain_errors, put_in_force
from lossbench.spec.experiment import Experiment
from lossbench.spec.placement import Hook, Rules, rules_in_force
from lossbench.spec.userfile import check


@dataclass(frozen=True, kw_only=True)
class Lab:
    id: str
    experiment: Experiment
    backend: str
    seed: int
    state: dict[str, Any]
    in_doubt: bool = False  # a change was killed half-way: what the hooks do now is not what any file says

    def journal(self) -> Journal:
        return Journal(self.id)

    @contextmanager
    def network(self, *, shared: bool = False) -> Iterator[StarNetwork]:
        """Attached to what stands; nobody else changes it meanwhile."""
        with self.journal().taken(shared=shared), plain_errors():
            lab = _read(self.journal())
            if lab.in_doubt:
                step = f"lossbench net set --net {self.id} --profile NAME puts it right"
                raise RunError(f"{self.id}: a change was killed half-way: what is in force is unknown", next_step=step)
            with closing(lab._attached()) as network:
                yield network

    def _attached(self) -> StarNetwork:
        network = StarNetwork(network_id=self.id, experiment=self.experiment, backend=self.backend)
        # A hook that an earlier profile used stands on, with no rule.
        rules: Rules = {Hook.named(name): () for name in self.state}
        rules |= rules_in_force(self.experiment, seed=self.seed)
        try:
            network.attach(state=self.state, rules=rules)
        except BaseException:
            network.close()
            raise
        return network


def up(spec: dict[str, Any], *, seed: int) -> Lab:
    experiment = check(Experiment, spec, origin="lossbench net up")
    kernel = Kernel.tried()
    if kernel.namespaces is not None:
        raise NotAbleError(kernel.namespaces, next_step="run with sudo")
    backend, _ = choose_backend(experiment, kernel)
    if not registry.find(backend).stands_alone:
        raise NotAbleError(
            f"a network can't stand on backend {backend}", next_step="use a stock kernel: lossbench vm shell"
        )
    with undoing() as undo, plain_errors():
        book, network = put_up(undo, experiment, backend=backend, seed=seed, kind="net")
        lab = Lab(id=book.id, experiment=experiment, backend=backend, seed=seed, state=network.state())
        try:
            with held():
                _save(lab)
                network.close()
                undo.forget()  # it stands
                book.release()
        except KeyboardInterrupt:
            last_words(f"network {lab.id} stands; lossbench net down --net {lab.id} takes it down")
            raise
    return lab


def put_up(undo: Undo, experiment: Experiment, *, backend: str, seed: int, kind: str) -> tuple[Journal, StarNetwork]:
    """Namespaces with everything in force, and how to take them away again."""
    with held():
        book = Journal.claim(kind=kind)
        undo.later("the journal", book.undo_or_say)
    network = StarNetwork(network_id=book.id, experiment=experiment, backend=backend)
    undo.later("the network's handles", network.close)
    network.build(before_making=book.before_making)
    network.cut_to_mtu()
    put_in_force(experiment, network, seed)
    write_host_files(book.folder, experiment.topology)
    return book, network


def _save(lab: Lab) -> None:
    lab.journal().save_standing(
        {
            "experiment": lab.experiment.model_dump(),
            "backend": lab.backend,
            "seed": lab.seed,
            "state": lab.state,
            "in_doubt": lab.in_doubt,
        }
    )


def _read(book: Journal) -> Lab:
    saved = book.standing()
    try:
        if saved is None:
            raise UsageError("not JSON")
        return Lab(
            id=book.id,
            backend=saved["backend"],
            seed=int(saved["seed"]),
            state=dict(saved["state"]),
            in_doubt=bool(saved.get("in_doubt")),
            experiment=check(Experiment, saved["experiment"], origin=str(book.folder / "net.json")),
        )
    except (LossbenchError, KeyError, TypeError, ValueError, ArithmeticError) as error:
        step = f"lossbench net down --net {book.id}"
        raise RunError(f"the state of network {book.id} is damaged ({error})", next_step=step) from None


def books() -> list[Journal]:
    """Of all standing labs, also of those whose state can't be read."""
    return [book for book in journal.networks() if book.is_lab()]


def find(lab_id: str | None) -> Lab:
    return _read(_only(lab_id))


def _only(lab_id: str | None) -> Journal:
    found = [book for book in books() if lab_id in (None, book.id)]
    if not found:
        raise UsageError(f"no network '{lab_id}'" if lab_id else "no network is up", next_step="lossbench net up")
    if len(found) > 1:
        raise UsageError("several networks stand", next_step=f"choose with --net: {', '.join(one.id for one in found)}")
    return found[0]


def change(lab: Lab, impair: list[dict[str, Any]]) -> int:
    """In place. Hooks that are no longer asked for stay, with no rule. Killed half-way it leaves a lab that says so."""
    spec = {**lab.experiment.model_dump(), "impair": impair}
    experiment = check(Experiment, spec, origin="lossbench net set")
    backend, _ = choose_backend(experiment.model_copy(update={"backend": lab.backend}), Kernel.tried())
    assert backend == lab.backend
    with lab.journal().taken(), plain_errors(), held():  # an interruption waits: half a change is none
        lab = _read(lab.journal())  # as the change before this one left it
        _save(replace(lab, in_doubt=True))
        with closing(_made_anew(lab) if lab.in_doubt else lab._attached()) as network:
            nothing: Rules = dict.fromkeys(network.rules, ())
            changed = network.put(nothing | rules_in_force(experiment, seed=lab.seed))
            _save(replace(lab, experiment=experiment, state=network.state(), in_doubt=False))
    return len(changed)


def _made_anew(lab: Lab) -> StarNetwork:
    """With bare hooks: what a change that was killed left there is known to nobody."""
    network = StarNetwork(network_id=lab.id, experiment=lab.experiment, backend=lab.backend)
    network.attach(state={}, rules={})
    network.strip()
    return network


def describe(lab: Lab) -> dict[str, Any]:
    with lab.network(shared=True) as network:
        counters, topology = network.counters(), lab.experiment.topology
        inside = namespaces.pids_inside(network.star.names())
        hosts = []
        for host in topology.all_hosts():
            mine = [
                c
                for hook, here in counters.items()
                if hook.rank == host.rank and hook.direction == "uplink"
                for c in here.values()
            ]
            hosts.append(
                {
                    "name": host.name,
                    "namespace": network.star.namespace(host.name),
                    "addresses": host.addresses(topology.family),
                    "control": host.control_ipv4,
                    "seen": sum(c.seen for c in mine),
                    "dropped": sum(c.dropped for c in mine),
                    "processes": sum(place == network.star.namespace(host.name) for place in inside.values()),
                }
            )
        return {
            "id": lab.id,
            "backend": lab.backend,
            "seed": lab.seed,
            "profiles": [entry.profile.name for entry in lab.experiment.impair],
            "experiment": lab.experiment.model_dump(),
            "hosts": hosts,
            "tcp": tcp(lab),
            "read_back": as_read_back(network),
            "counters": counters_as_json(counters),
            "classes": classes_as_json(network.classes()),
        }


def tcp(lab: Lab) -> dict[str, str]:
    """The congestion controls that programs in its hosts find."""
    network = StarNetwork(network_id=lab.id, experiment=lab.experiment, backend=lab.backend)
    with network.star.place("h0").inside():
        return machine.tcp()


def verify(lab: Lab, *, packets: int) -> Proof:
    with lab.network() as network:
        busy = bool(namespaces.pids_inside(network.star.names()))
        return prove_network(
            network, packets=packets, payload_bytes=64, token=secrets.randbits(64), bystanders=busy, limit_s=60
        )


def become(lab: Lab, host_name: str, command: list[str]) -> None:
    """This process steps into the host and turns into the user's program: signals and exit status are its own."""
    host = lab.experiment.topology.host(host_name)
    folder = lab.journal().folder
    threads = max(1, (os.cpu_count() or 1) // lab.experiment.topology.hosts)
    run = Identity(run_id=lab.id, token=0, seed=lab.seed)
    variables = outside_of_a_run(host, lab.experiment.topology, run, folder=folder, threads=threads)
    network = StarNetwork(network_id=lab.id, experiment=lab.experiment, backend=lab.backend)
    made = next((Path(one.name) for one in lab.journal().made() if one.kind == "group"), None)
    place = network.star.place(host.name)
    step_in = place.stepper(folder / "hosts", mortal=False, group=cgroups.to_join(made))
    with plain_errors():
        step_in()
    try:
        os.execvpe(command[0], command, inherited(**variables))
    except (FileNotFoundError, PermissionError):
        raise no_program(command[0]) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"'{command[0]}' can't be executed ({getattr(error, 'strerror', None) or error})") from None


def down(lab_id: str | None, *, every: bool) -> list[Removed]:
    """Needs nothing but the journal: a lab can always be taken down. Somebody else's only by its name."""
    chosen = books() if every else [_only(lab_id)]
    if not every and lab_id is None and (maker := chosen[0].owner().get("user")) != journal.user():
        step = f"if it is yours to take down: lossbench net down --net {chosen[0].id}"
        raise UsageError(f"network {chosen[0].id} was brought up by {maker}", next_step=step)
    out = []
    for book in chosen:
        with book.taken(), held():
            out.append(book.undo())
    return out


def listed() -> list[dict[str, Any]]:
    """One line for each: who made it, when, what is in force."""
    out = []
    for book in books():
        owner, saved = book.owner(), book.standing() or {}
        try:
            lab = _read(book)
            about = f"{lab.experiment.topology.hosts} hosts, backend {lab.backend}"
            profiles = ", ".join(dict.fromkeys(entry.profile.name for entry in lab.experiment.impair))
            state = "in doubt: a change was killed half-way" if saved.get("in_doubt") else profiles
        except RunError:
            about, state = "?", "damaged: take it down"
        out.append(
            {"id": book.id, "user": owner.get("user"), "since": owner.get("since"), "about": about, "state": state}
        )
    return out
