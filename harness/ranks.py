"""Starts one process per host, waits until all are ready, watches them, ends them. Knows processes, not networks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import rootless
from harness.contract import DATA_PORT
from harness.enter import hosts_file, stepper
from harness.errors import RunError, UsageError
from harness.experiment import Experiment, Workload
from harness.net import namespaces
from harness.nursery import Child, Nurseries
from harness.processes import Started, catches, module_command, module_environment
from harness.store import RunFolder
from harness.topology import CONTROL_INTERFACE, DATA_INTERFACE, Host, Topology

MASTER_PORT = 29500
PREPARED = {"training": "workloads.training.prepare"}  # asked once, with all options, before anything is built
PRELOADED = {"training": ("workloads.training.build", "torch._dynamo")}  # forked from a process that has loaded this
LOG_LINES_SHOWN, STACK_LINES_SHOWN, RANKS_SHOWN = 8, 16, 3
GRACE_S = 3.0


def command_of(workload: Workload) -> list[str]:
    """The program and its arguments; `python` is the interpreter that runs lossbench."""
    if workload.command:
        return _present(command_of_user(list(workload.command)))
    module = Path(__file__).resolve().parent.parent / "workloads" / workload.name.replace(".", "/")
    if not module.with_suffix(".py").exists() and not (module / "__main__.py").exists():
        known = sorted(p.stem for p in module.parent.glob("*.py") if not p.stem.startswith("_"))
        raise UsageError(f"no workload '{workload.name}'", next_step=f"known: {', '.join(known)}; or give a command")
    return module_command(f"workloads.{workload.name}")


def _present(command: list[str]) -> list[str]:
    """A user's program that is not there is said before anything is built."""
    if shutil.which(command[0]) is None:
        raise UsageError(f"no such program: {command[0]}", next_step="check workload.command and PATH")
    script = next(iter(command[1:]), "")
    if "python" in Path(command[0]).name and script.endswith(".py") and not Path(script).is_file():
        raise UsageError(f"no such script: {script}", next_step=f"paths are taken from {Path.cwd()}")
    return command


def command_of_user(command: list[str]) -> list[str]:
    first, *rest = command
    return [sys.executable if first == "python" else first, *rest]


def prepare(workloads: Sequence[Workload]) -> None:
    """Workloads that can say beforehand what is wrong, and fetch what hosts without a way outside can't."""
    if any("simulated" in w.options for w in workloads if w.name in PREPARED):
        raise UsageError("workload.options.simulated is the harness's own", next_step="use --backend simulated")
    for name, module in PREPARED.items():
        options = [dict(w.options) for w in workloads if w.name == name and not w.command]
        distinct = list({json.dumps(one, sort_keys=True): one for one in options}.values())
        if not distinct:
            continue
        status, said = rootless.run_outside(
            module_command(module), text=json.dumps(distinct), environment=module_environment(os.environ)
        )
        if status:
            raise UsageError((said.strip().splitlines() or [f"{module} failed"])[-1])


def environment(host: Host, topology: Topology, *, run_id: str, token: int, seed: int, folder: Path, records: Path,
                threads: int) -> dict[str, str]:  # fmt: skip
    """The door's variables (harness/contract.py) and what stops libraries from guessing interfaces."""
    out = {
        "RANK": str(host.rank),
        "WORLD_SIZE": str(topology.hosts),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "LOSSBENCH_RANKS_HERE": str(topology.hosts),
        "MASTER_ADDR": Host(rank=0).control_ipv4,
        "MASTER_PORT": str(MASTER_PORT),
        "LOSSBENCH_RUN": run_id,
        "LOSSBENCH_TOKEN": f"{token:016x}",
        "LOSSBENCH_SEED": str(seed),
        "LOSSBENCH_INTERFACE": DATA_INTERFACE,
        "LOSSBENCH_CONTROL_INTERFACE": CONTROL_INTERFACE,
        "LOSSBENCH_ADDRESSES": ",".join(h.address(topology.family) for h in topology.all_hosts()),
        "LOSSBENCH_PORT": str(DATA_PORT),
        "LOSSBENCH_SPEC": str(folder / "options.json"),
        "LOSSBENCH_RECORDS": str(records),
        "LOSSBENCH_GO": str(folder / "go"),
        # torch: bytes go over the data link; ranks of one machine do not take shortcuts past it.
        "GLOO_SOCKET_IFNAME": DATA_INTERFACE,
        "NCCL_SOCKET_IFNAME": DATA_INTERFACE,
        "NCCL_HOSTID": f"{run_id}-{host.name}",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_P2P_DISABLE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",  # a rank that hangs can be asked for its stack
    }
    if "OMP_NUM_THREADS" not in os.environ:
        out["OMP_NUM_THREADS"] = str(threads)
    return out


@dataclass(kw_only=True)
class _Rank:
    number: int
    process: Started | Child  # of this rank, and maybe of others too
    records: Path
    log: Path
    read_to: int = 0
    ready: bool = False


@dataclass(kw_only=True)
class Ranks:
    """All ranks of one run."""

    folder: Path  # private to this run: gate, options, hosts file
    nurseries: Nurseries | None = None  # of the suite; without one every rank is a fresh process
    members: list[_Rank] = field(default_factory=list)
    damaged_lines: int = 0
    _gate: int = -1

    def prepare(self, experiment: Experiment, *, extra: dict[str, Any] | None = None) -> None:
        """`extra`: options that the harness itself adds."""
        (self.folder / "hosts").write_text(hosts_file(experiment.topology), encoding="ascii")
        options = {**experiment.workload.options, **(extra or {})}
        (self.folder / "options.json").write_text(json.dumps(options), encoding="utf-8")
        os.mkfifo(self.folder / "go")
        self._gate = os.open(self.folder / "go", os.O_RDWR)  # held open, so that no rank ever blocks in open(2)

    def start(self, experiment: Experiment, *, store: RunFolder, namespace_of: Any, run_id: str, token: int,
              seed: int) -> None:  # fmt: skip
        hosts, each = experiment.topology.all_hosts(), experiment.workload.ranks_per_process
        crews = [hosts[n : n + each] for n in range(0, len(hosts), each)] if each else [hosts]
        threads = max(1, (os.cpu_count() or 1) // len(crews))
        for crew in crews:
            first = crew[0]
            variables = environment(
                first, experiment.topology, run_id=run_id, token=token, seed=seed, folder=self.folder,
                records=store.records_path(first.rank).resolve(), threads=threads,
            )  # fmt: skip
            if len(crew) > 1:
                variables["LOSSBENCH_SEATS"] = str(self._seats(crew, store, namespace_of))
            log = store.log_path(first.rank)
            process = self._process(
                experiment.workload, {**os.environ, **variables}, namespace=namespace_of(first.name), host=first.name,
                log=log,
            )  # fmt: skip
            for host in crew:
                records = store.records_path(host.rank)
                self.members.append(_Rank(number=host.rank, process=process, records=records, log=log))

    def _seats(self, crew: Sequence[Host], store: RunFolder, namespace_of: Any) -> Path:
        """What a process needs to know of every rank it hosts."""
        path = self.folder / f"seats-{crew[0].rank}.json"
        places = [(host, namespace_of(host.name)) for host in crew]
        seats = [
            {"rank": host.rank, "records": str(store.records_path(host.rank).resolve()),
             "namespace": str(namespaces.FOLDER / name) if name else ""}
            for host, name in places
        ]  # fmt: skip
        path.write_text(json.dumps(seats), encoding="utf-8")
        return path

    def _process(self, workload: Workload, variables: dict[str, str], *, namespace: str, host: str,
                 log: Path) -> Started | Child:  # fmt: skip
        hosts_path = self.folder / "hosts"
        modules = PRELOADED.get(workload.name, ()) if not workload.command else ()
        if self.nurseries is not None and modules:
            return self.nurseries.of(modules).fork(
                {"module": f"workloads.{workload.name}", "environment": variables, "log": str(log.resolve()),
                 "cwd": str(Path.cwd()), "namespace": namespace, "host": host, "hosts_path": str(hosts_path)}
            )  # fmt: skip
        command = command_of(workload)
        if not workload.command:
            variables = module_environment(variables)
        step_in = stepper(namespace=namespace, host=host, hosts_path=hosts_path, mortal=True)
        with open(log, "wb") as output:
            try:
                return Started(
                    subprocess.Popen(
                        command, env=variables, preexec_fn=step_in, start_new_session=True, stdin=subprocess.DEVNULL,
                        stdout=output, stderr=subprocess.STDOUT,
                    )
                )  # fmt: skip
            except (OSError, subprocess.SubprocessError) as error:
                said = f":\n{last_lines(log)}" if log.stat().st_size else f": {error}"
                raise RunError(f"the rank of {host} could not be started{said}") from None

    def open_gate(self) -> None:
        """Every rank waits for one byte of the FIFO: all are let through at once, and none can come too late for it."""
        os.write(self._gate, b"g" * len(self.members))

    def read(self) -> list[dict[str, Any]]:
        """New records of all ranks, whole lines only."""
        out = []
        for rank in self.members:
            try:
                with open(rank.records, "rb") as file:
                    file.seek(rank.read_to)
                    data = file.read()
            except FileNotFoundError:
                continue
            whole, _, _ = data.rpartition(b"\n")
            rank.read_to += len(whole) + 1 if whole else 0
            for line in whole.splitlines():
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    self.damaged_lines += 1
                    continue
                if isinstance(record, dict):
                    rank.ready = rank.ready or record.get("kind") == "ready"
                    out.append({**record, "rank": rank.number})
        return out

    def all_ready(self) -> bool:
        return all(rank.ready for rank in self.members)

    def running(self) -> list[int]:
        return [rank.number for rank in self.members if rank.process.poll() is None]

    def check_alive(self) -> None:
        """A rank that died ends the run, with its last words."""
        for rank in self.members:
            code = rank.process.poll()
            if code:
                how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with status {code}"
                raise RunError(f"rank {rank.number} {how}; its last lines ({rank.log}):\n{last_lines(rank.log)}")

    def stuck(self, numbers: Sequence[int]) -> str:
        """Last lines, and stacks if they are Python, of ranks that should have ended or begun: they do not live on."""
        chosen = [rank for rank in self.members if rank.number in numbers and rank.process.poll() is None]
        chosen = list({rank.process.pid: rank for rank in chosen}.values())[:RANKS_SHOWN]
        before = {rank.number: last_lines(rank.log) for rank in chosen}
        sizes = {rank.number: rank.log.stat().st_size for rank in chosen if rank.log.exists()}
        asked = [rank for rank in chosen if catches(rank.process.pid, signal.SIGABRT)]
        for rank in asked:
            rank.process.signal(signal.SIGABRT)
        deadline = time.monotonic() + GRACE_S
        while any(rank.process.poll() is None for rank in asked) and time.monotonic() < deadline:
            time.sleep(0.01)
        out = ""
        for rank in chosen:
            out += f"\nrank {rank.number}, its last lines ({rank.log}):\n{before[rank.number]}"
            stack = _after(rank.log, sizes.get(rank.number, 0)) if rank in asked else []
            out += "".join(f"\n  > {line}" for line in stack[:STACK_LINES_SHOWN])
        return out

    def end(self) -> None:
        """By process group, politely first; every child is reaped, last of all."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for rank in self.members:
                rank.process.signal(number)
            deadline = time.monotonic() + GRACE_S
            while self.running() and time.monotonic() < deadline:
                time.sleep(0.01)
        for rank in self.members:
            rank.process.reap()
        self.members.clear()
        if self._gate >= 0:
            os.close(self._gate)
            self._gate = -1


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def last_lines(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "(no log)"
    return "\n".join(f"  | {line}" for line in lines[-LOG_LINES_SHOWN:]) or "  | (nothing was printed)"


def _after(path: Path, size: int) -> list[str]:
    with open(path, "rb") as file:
        file.seek(size)
        return [line for line in file.read().decode("utf-8", errors="replace").splitlines() if line.strip()]
