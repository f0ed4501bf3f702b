"""One run, from spec to verdict, in nine steps. Whatever happens, everything done is undone in reverse.

The file to read first. `lossbench run` calls `execute` once for every point and seed of a suite.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from pyroute2.netlink.exceptions import NetlinkError

from harness import interrupt, judge, machine, simulated, store
from harness.conservation import Between, Met
from harness.contract import SEEDS_VERSION
from harness.counted import counters_as_json
from harness.errors import LossbenchError, NotAbleError, RunError
from harness.evidence import Proof
from harness.experiment import Experiment
from harness.interrupt import held, undoing
from harness.journal import Journal
from harness.judge_fault import met_by_workload
from harness.machine import Kernel
from harness.net import handles
from harness.net.impair import registry
from harness.net.impair.relay import too_fast
from harness.net.network import Network, classes_as_json
from harness.nursery import Nurseries
from harness.placement import path_loss, rules_ever, rules_in_force
from harness.provenance import git_state, of_program
from harness.ranks import Ranks, command_of
from harness.store import RunFolder
from harness.verdict import Verdict
from harness.watch import Progress, Watch
from harness.watched import Watched


@dataclass(frozen=True, kw_only=True)
class Result:
    run_id: str
    folder: Path
    seed: int
    backend: str
    proof: Proof | None
    verdict: Verdict
    met: Met
    summaries: tuple[dict[str, Any], ...]
    rows: tuple[dict[str, Any], ...]
    units: dict[str, str]
    not_numbers: tuple[str, ...]  # values that were infinite, too large or no numbers, in words
    duration_s: float


def execute(experiment: Experiment, *, seed: int, chosen: dict[str, Any], folder: Path, kernel: Kernel,
            progress: Progress, nurseries: Nurseries | None = None) -> Result:  # fmt: skip
    at = checked(progress)
    # 1  The spec was read and checked when the experiment was made; its program must exist too.
    at("1 spec")
    command_of(experiment.workload)
    # 2  The machine: which backend, and refuse what it can't do before anything is built.
    at("2 machine")
    backend, why = choose_backend(experiment, kernel)
    with undoing() as undo:
        with held():
            journal = Journal.claim(kind="run")
            undo.later("the journal", journal.undo_or_say)
        # 3  The manifest, before anything happens.
        at("3 manifest")
        run_folder = RunFolder(folder)
        token = secrets.randbits(64)
        run_folder.write("manifest.json", manifest(experiment, seed, chosen, backend, why, journal.id, folder))
        with plain_errors():
            # 4  Hosts and links.
            at("4 hosts and links")
            network = network_of(backend, journal.id, experiment)
            undo.later("the network's handles", network.close)
            network.build(before_making=journal.before_making)
            # 5  Offloads, so that loss acts on MTU-sized packets.
            at("5 offloads")
            network.cut_to_mtu()
            run_folder.write("links.json", network.star.links_as_json())
            # 6  Profile, rate and priority in force, and read back.
            at("6 fault in force")
            network.shape()
            network.expect(rules_ever(experiment, seed=seed))
            network.put(rules_in_force(experiment, seed=seed))
            run_folder.write(
                "read_back.json", {h.name: [asdict(e) for e in es] for h, es in network.read_back().items()}
            )
            # 7  The proof.
            at("7 proof")
            proof = prove(experiment, network, token, run_folder)
            network.restart()
            before, _ = network.settled()
            network.listen()
            # 8  The workload, watched and limited in time.
            at("8 workload")
            ranks = Ranks(folder=journal.folder, nurseries=nurseries)
            undo.later("the ranks", ranks.end)
            simulation = {"simulated": simulated.layers(experiment)} if backend == "simulated" else None
            ranks.prepare(experiment, extra=simulation)
            ranks.start(
                experiment, store=run_folder, namespace_of=network.star.namespace, run_id=journal.id, token=token,
                seed=seed,
            )  # fmt: skip
            watched = Watch(
                experiment=experiment, network=network, ranks=ranks, store=run_folder, seed=seed, before=before,
                progress=progress,
            ).run()  # fmt: skip
            # 9  Kernel counters joined with what the application saw; judged, stored; undone by the stack.
            at("9 verdict")
            met = store_counters(watched, network, run_folder)
            verdict = judge.judge(experiment=experiment, backend=backend, proof=proof, watched=watched)
            run_folder.write("verdict.json", {**verdict.as_json(), "duration_s": watched.duration_s})
            return Result(
                run_id=journal.id, folder=folder, seed=seed, backend=backend, proof=proof, verdict=verdict, met=met,
                summaries=tuple(watched.summaries), rows=tuple(watched.rows), units=watched.units,
                not_numbers=tuple(f"{name}: not a finite number" for name in watched.not_numbers),
                duration_s=watched.duration_s,
            )  # fmt: skip


def checked(progress: Progress) -> Callable[[str], None]:
    """Between two steps an interruption that was lost on its way is found."""

    def at(step: str) -> None:
        interrupt.check()
        progress(step)

    return at


def network_of(backend: str, network_id: str, experiment: Experiment) -> Network:
    made = simulated.NoNetwork if backend == "simulated" else Network
    return cast(Network, made(network_id=network_id, experiment=experiment, backend=backend))


def choose_backend(experiment: Experiment, kernel: Kernel) -> tuple[str, str]:
    if experiment.backend == "simulated":
        if experiment.workload.name != "training":
            raise NotAbleError("only the training workload can simulate loss", next_step="use --backend auto")
        if experiment.workload.ranks_per_process not in (0, experiment.topology.hosts):
            step = "add --set workload.ranks_per_process=0"
            raise NotAbleError("a simulation needs all ranks in one process", next_step=step)
        simulated.layers(experiment)
        return "simulated", "asked for"
    handles.refuse(experiment)
    used = [entry.profile for entry in experiment.impair]
    rules = rules_ever(experiment, seed=0)
    chosen = registry.choose(experiment.backend, profiles=used, rules=rules, able=kernel.able())
    shaped = experiment.topology.uplink_mbit() or experiment.topology.downlink_mbit()
    scheduler = experiment.shaping.scheduler
    if shaped and not (kernel.qdiscs.get("htb") and (scheduler == "htb" or kernel.qdiscs.get(scheduler))):
        missing = scheduler if kernel.qdiscs.get("htb") else "htb"
        step = 'scheduler = "htb" works on most kernels; on a stock one: lossbench vm run -- lossbench run ...'
        raise NotAbleError(f"this kernel has no sch_{missing}", next_step=step)
    if chosen[0] == "relay":
        _refuse_what_outruns_the_relay(experiment)
    return chosen


def _refuse_what_outruns_the_relay(experiment: Experiment) -> None:
    topology = experiment.topology
    reason = too_fast(hosts=topology.hosts, rate_mbit=topology.uplink_mbit(), mtu=topology.mtu)
    if reason is not None:
        raise NotAbleError(reason, next_step="lower the rate; or a stock kernel: lossbench vm run -- lossbench run ...")


def prove(experiment: Experiment, network: Network, token: int, run_folder: RunFolder) -> Proof | None:
    if not experiment.probe.packets:
        return None
    proof = network.prove(packets=experiment.probe.packets, payload_bytes=experiment.probe.payload_bytes, token=token)
    run_folder.write(
        "proof.json",
        {
            "status": proof.judgement.status.word,
            "reasons": proof.judgement.reasons(),
            "rows": [row.as_json() for row in proof.rows],
        },
    )
    return proof


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
        }  # fmt: skip
        content["classes"] = classes_as_json(network.classes())
    run_folder.write("counters.json", content)
    return met


def manifest(
    experiment: Experiment, seed: int, chosen: dict[str, Any], backend: str, why: str, run_id: str, folder: Path
) -> dict[str, Any]:
    """Enough to understand and repeat the run."""
    topology = experiment.topology
    rules = rules_in_force(experiment, seed=seed)
    hosts = topology.all_hosts()
    losses = {
        f"{a.name} to {b.name}": round(path_loss(rules, source=a, destination=b, family=topology.family), 9)
        for a in hosts for b in hosts if a != b
    }  # fmt: skip
    distinct = sorted(set(losses.values()))
    return {
        "run_id": run_id,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": store.command_line(),
        "seed": seed,
        "seeds_version": SEEDS_VERSION,
        "chosen": chosen,
        "experiment": experiment.model_dump(mode="json"),
        "profiles": {e.profile.name: e.profile.model_dump(mode="json") for e in experiment.impair},
        "backend": {"name": backend, "why": why},
        "warnings": [text for e in experiment.impair for text in e.profile.warnings()],
        "hook": "MTU-sized packets of a host on entering its switch port (uplink) or leaving it (downlink)",
        "path_loss": distinct[0] if len(distinct) == 1 else losses,  # when the run starts; see timeline.jsonl
        "machine": machine.facts(),
        "gpus": machine.gpus(),
        "git": git_state(),
        "program": of_program(command_of(experiment.workload), Path.cwd()) if experiment.workload.command else None,
        "repeat": f"lossbench replay {folder}",
    }


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
