"""One run, from spec to verdict, in nine steps. Whatever happens, everything done is undone in reverse.

The file to read first. `lossbench run` calls `execute` once for every point and seed of a suite.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyroute2.netlink.exceptions import NetlinkError

from lossbench.errors import LossbenchError, RunError
from lossbench.net.conservation import Between, Met
from lossbench.net.counters import Reading, counters_as_json
from lossbench.net.journal import Journal
from lossbench.net.network import Network
from lossbench.net.tc.shaping import classes_as_json
from lossbench.proof import judge
from lossbench.proof.evidence import Proof
from lossbench.proof.judge_fault import met_by_workload
from lossbench.proof.probe.afterwards import changed_meanwhile
from lossbench.proof.probe.probing import Probes, prove_network
from lossbench.proof.verdict import Verdict
from lossbench.proof.watched import Watched
from lossbench.results.folders import RunFolder
from lossbench.runs import interrupt
from lossbench.runs.ground import Ground
from lossbench.runs.interrupt import held, undoing
from lossbench.runs.launch.environment import Identity
from lossbench.runs.launch.ranks import Ranks
from lossbench.runs.manifest import manifest
from lossbench.runs.watch import Progress, Watch
from lossbench.simulate import rules as simulation
from lossbench.simulate.no_network import not_proven
from lossbench.spec.experiment import Experiment
from lossbench.spec.placement import rules_ever, rules_in_force

BEFORE_S = -1.0  # by the run's clock, which has not begun


@dataclass(frozen=True)
class Result:
    run_id: str
    folder: Path
    seed: int
    backend: str
    proof: Proof | None
    verdict: Verdict
    met: Met
    watched: Watched


def execute(
    experiment: Experiment, *, seed: int, chosen: dict[str, Any], folder: RunFolder, ground: Ground, progress: Progress
) -> Result:
    at = checked(progress)
    # 1  The spec was read and checked when the experiment was made; its program must exist too.
    at("1 spec")
    ground.check(experiment.workload)
    # 2  The machine: which backend, and refuse what it can't do before anything is built.
    at("2 machine")
    backend, why = ground.backend(experiment)
    with undoing() as undo:
        with held():
            journal = Journal.claim(kind="run")
            undo.later("the journal", journal.undo_or_say)
        # 3  The manifest, before anything happens.
        at("3 manifest")
        folder.make()
        token = secrets.randbits(64)
        folder.write(
            "manifest.json", manifest(experiment, seed, chosen, backend, why, journal.id, folder.path, ground.about())
        )
        with plain_errors():
            # 4  Hosts and links.
            at("4 hosts and links")
            network = ground.network(backend, journal.id, experiment)
            undo.later("the network's handles", network.close)
            network.build(before_making=journal.before_making)
            # 5  Offloads, so that loss acts on MTU-sized packets.
            at("5 offloads")
            network.cut_to_mtu()
            folder.write("links.json", network.links_as_json())
            # 6  Profile, rate and priority in force, and read back.
            at("6 fault in force")
            put_in_force(experiment, network, seed)
            folder.write("read_back.json", as_read_back(network))
            # 7  The proof.
            at("7 proof")
            proof = prove(experiment, network, token, folder, ground.exchange_of(network))
            hold_back(experiment, network, seed)
            before = counted_anew(network)
            # 8  The workload, watched and limited in time.
            at("8 workload")
            ranks = Ranks(
                folder=journal.folder,
                experiment=experiment,
                store=folder,
                place_of=network.place,
                identity=Identity(run_id=journal.id, token=token, seed=seed),
                launcher=ground.launcher,
            )
            undo.later("the ranks", ranks.end)
            ranks.prepare(extra=None if network.genuine else {"simulated": simulation.layers(experiment)})
            ranks.start()
            watch = Watch(
                network=network,
                ranks=ranks,
                gauge=ground.gauge(ranks.pids),
                seed=seed,
                before=before,
                progress=progress,
            )
            watched = watch.run()
            # 9  Kernel counters joined with what the application saw; judged, stored; undone by the stack.
            at("9 verdict")
            met = store_counters(watched, network, folder)
            watched.lapsed(look_again(experiment, network, token, watched))
            verdict = judge.judge(experiment=experiment, backend=backend, proof=proof, watched=watched)
            folder.write("verdict.json", {**verdict.as_json(), "duration_s": watched.duration_s})
            return Result(journal.id, folder.path, seed, backend, proof, verdict, met, watched)


def checked(progress: Progress) -> Callable[[str], None]:
    """Between two steps an interruption that was lost on its way is found."""

    def at(step: str) -> None:
        interrupt.check()
        progress(step)

    return at


def put_in_force(experiment: Experiment, network: Network, seed: int) -> None:
    network.shape()
    network.expect(rules_ever(experiment, seed=seed, kept=network.keeps_time))
    network.put(rules_in_force(experiment, seed=seed, kept=network.keeps_time))


def hold_back(experiment: Experiment, network: Network, seed: int) -> None:
    """Windows that open with the run's clock stay shut until it begins; where the network keeps them it does that."""
    if not network.keeps_time:
        network.put(rules_in_force(experiment, seed=seed, elapsed_s=BEFORE_S))


def counted_anew(network: Network) -> Reading:
    """From here on all that moves is the workload's, and every change somebody else's."""
    network.restart()
    before, _ = network.settled()
    network.listen()
    return before


def as_read_back(network: Network) -> dict[str, Any]:
    return {hook.name: [asdict(one) for one in entries] for hook, entries in network.read_back().items()}


def prove(
    experiment: Experiment, network: Network, token: int, run_folder: RunFolder, exchange_of: Callable[..., Probes]
) -> Proof | None:
    if not experiment.probe.packets:
        return None
    if network.genuine:
        probe = experiment.probe
        proof = prove_network(
            network, packets=probe.packets, payload_bytes=probe.payload_bytes, token=token, exchange_of=exchange_of
        )
    else:
        proof = not_proven()
    run_folder.write(
        "proof.json",
        {
            "status": proof.judgement.status.word,
            "reasons": proof.judgement.reasons(),
            "rows": [row.as_json() for row in proof.rows],
        },
    )
    return proof


def look_again(experiment: Experiment, network: Network, token: int, watched: Watched) -> list[str]:
    """Where the proof sent packets that no rule is about, and the network still stands."""
    if not experiment.probe.packets or watched.after is None:
        return []
    return changed_meanwhile(network, payload_bytes=experiment.probe.payload_bytes, token=token)


def store_counters(watched: Watched, network: Network, run_folder: RunFolder) -> Met:
    """counters.json: everything that was counted during the workload, and what its packets met, by cause."""
    met = met_by_workload(watched)
    content: dict[str, Any] = {"met": met.as_json()}
    if watched.after is not None:
        between = Between(watched.before, watched.after)
        content |= {
            "hooks": counters_as_json(between.hooks),
            "links": {f"h{rank}": asdict(link) for rank, link in between.links.items()},
            "detours": [asdict(one) for hook in watched.after.detours for one in between.detours(hook)],
        }
        content["classes"] = classes_as_json(network.classes())
    run_folder.write("counters.json", content)
    return met


@contextmanager
def plain_errors() -> Iterator[None]:
    """Kernel refusals become one line; our own mistakes stay loud."""
    try:
        yield
    except LossbenchError:
        raise
    except NetlinkError as error:
        raise RunError(f"the kernel refused a request: {error.args[-1]} (code {error.code})") from error
    except OSError as error:
        raise RunError(f"a system call failed: {error}") from error
