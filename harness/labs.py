"""Standing labs: networks that outlive the command that made them. Their state lies beside their journal."""

from __future__ import annotations

import os
import secrets
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from harness import journal, machine
from harness.counted import counters_as_json
from harness.enter import hosts_file, stepper
from harness.errors import NotAbleError, UsageError
from harness.evidence import Proof
from harness.experiment import Experiment
from harness.journal import Journal, Removed
from harness.net import namespaces
from harness.net.network import Network, classes_as_json
from harness.placement import Hook, Rules, rules_in_force
from harness.ranks import environment
from harness.run import choose_backend, plain_errors, undoing
from harness.userfile import check

Found = TypeVar("Found", "Lab", Journal)


@dataclass(frozen=True, kw_only=True)
class Lab:
    id: str
    experiment: Experiment
    backend: str
    seed: int
    state: dict[str, Any]

    def journal(self) -> Journal:
        return Journal(self.id)

    def network(self) -> Network:
        """Attached to what stands."""
        network = Network(network_id=self.id, experiment=self.experiment, backend=self.backend)
        # A hook that an earlier profile used stands on, with no rule.
        rules: Rules = {Hook.named(name): () for name in self.state}
        rules |= rules_in_force(self.experiment, seed=self.seed)
        with plain_errors():
            network.attach(state=self.state, rules=rules)
        return network


def up(spec: dict[str, Any], *, seed: int) -> Lab:
    experiment = check(Experiment, spec, origin="lossbench net up")
    kernel = machine.look()
    if kernel.namespaces is not None:
        raise NotAbleError(kernel.namespaces, next_step="run with sudo")
    backend, _ = choose_backend(experiment, kernel)
    if backend == "relay":
        raise NotAbleError("a lab can't hold packets back by relay", next_step="use a stock kernel: lossbench vm shell")
    with undoing() as undo, plain_errors():
        book = Journal.claim(kind="net")
        undo.callback(book.close)
        network = Network(network_id=book.id, experiment=experiment, backend=backend)
        undo.callback(network.remove)
        network.build(before_making=book.before_making)
        network.cut_to_mtu()
        network.shape()
        network.put(rules_in_force(experiment, seed=seed))
        (book.folder / "hosts").write_text(hosts_file(experiment.topology), encoding="ascii")
        lab = Lab(id=book.id, experiment=experiment, backend=backend, seed=seed, state=network.state())
        _save(lab)
        network.close()
        undo.pop_all()  # it stands
    return lab


def _save(lab: Lab) -> None:
    lab.journal().save_standing(
        {"experiment": lab.experiment.model_dump(), "backend": lab.backend, "seed": lab.seed, "state": lab.state}
    )


def standing() -> list[Lab]:
    out = []
    for book in journal.networks():
        saved = book.standing()
        if saved is not None:
            experiment = check(Experiment, saved["experiment"], origin=str(book.folder / "net.json"))
            out.append(
                Lab(
                    id=book.id,
                    experiment=experiment,
                    backend=saved["backend"],
                    seed=saved["seed"],
                    state=saved["state"],
                )
            )
    return out


def find(lab_id: str | None) -> Lab:
    return _only([lab for lab in standing() if lab_id in (None, lab.id)], lab_id)


def _only(found: list[Found], lab_id: str | None) -> Found:
    if not found:
        raise UsageError(f"no lab '{lab_id}'" if lab_id else "no lab is up", next_step="lossbench net up")
    if len(found) > 1:
        raise UsageError("several labs stand", next_step=f"choose with --net: {', '.join(one.id for one in found)}")
    return found[0]


def change(lab: Lab, impair: list[dict[str, Any]]) -> int:
    """In place. Hooks that are no longer asked for stay, with no rule."""
    spec = {**lab.experiment.model_dump(), "impair": impair}
    experiment = check(Experiment, spec, origin="lossbench net set")
    backend, _ = choose_backend(experiment.model_copy(update={"backend": lab.backend}), machine.look())
    assert backend == lab.backend
    with closing(lab.network()) as network, plain_errors():
        nothing: Rules = dict.fromkeys(network.rules, ())
        try:
            changed = network.put(nothing | rules_in_force(experiment, seed=lab.seed))
        finally:  # a change that broke off half-way must not leave a state that names what is gone
            state = network.state()
            _save(Lab(id=lab.id, experiment=experiment, backend=lab.backend, seed=lab.seed, state=state))
    return len(changed)


def describe(lab: Lab) -> dict[str, Any]:
    with closing(lab.network()) as network, plain_errors():
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
            "read_back": {hook.name: [asdict(e) for e in entries] for hook, entries in network.read_back().items()},
            "counters": counters_as_json(counters),
            "classes": classes_as_json(network.classes()),
        }


def verify(lab: Lab, *, packets: int) -> Proof:
    with closing(lab.network()) as network, plain_errors():
        busy = bool(namespaces.pids_inside(network.star.names()))
        return network.prove(packets=packets, payload_bytes=64, token=secrets.randbits(64), bystanders=busy, limit_s=60)


def become(lab: Lab, host_name: str, command: list[str]) -> None:
    """This process steps into the host and turns into the user's program: signals and exit status are its own."""
    host = lab.experiment.topology.host(host_name)
    folder = lab.journal().folder
    variables = environment(
        host, lab.experiment.topology, run_id=lab.id, token=0, seed=lab.seed, folder=folder, records=folder / "none",
        threads=max(1, (os.cpu_count() or 1) // lab.experiment.topology.hosts),
    )  # fmt: skip
    for name in ("LOSSBENCH_SPEC", "LOSSBENCH_RECORDS", "LOSSBENCH_GO"):  # there is no run to report to
        variables.pop(name)
    network = Network(network_id=lab.id, experiment=lab.experiment, backend=lab.backend)
    step_in = stepper(
        namespace=network.star.namespace(host.name), host=host.name, hosts_path=folder / "hosts", mortal=False
    )
    with plain_errors():
        step_in()
    try:
        os.execvpe(command[0], command, {**os.environ, **variables})
    except FileNotFoundError:
        raise UsageError(f"no such program: {command[0]}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"'{command[0]}' can't be executed ({getattr(error, 'strerror', None) or error})") from None


def down(lab_id: str | None, *, every: bool) -> list[Removed]:
    """Needs nothing but the journal: a lab can always be taken down."""
    books = [book for book in journal.networks() if book.standing() is not None]
    chosen = books if every else [_only([b for b in books if lab_id in (None, b.id)], lab_id)]
    return [journal.undo(book) for book in chosen]
