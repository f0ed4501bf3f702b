"""Starts the programs of a run, waits until all are ready, watches them, ends them. Knows processes, not networks."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lossbench.contract import DATA_PORT, MASTER_PORT
from lossbench.files import known_as
from lossbench.net.host.enter import write_host_files
from lossbench.net.host.place import Place
from lossbench.processes import Running
from lossbench.results import machine
from lossbench.results.folders import RunFolder
from lossbench.runs.launch import capture
from lossbench.runs.launch.environment import Identity, environment, gpu_for
from lossbench.runs.launch.member import Member
from lossbench.runs.launch.program import Exec, Launcher, Start, comes_later, knows_no_gate, last_lines, lines_after
from lossbench.spec.experiment import Beside, Experiment, Program
from lossbench.spec.topology import Host

STACK_LINES_SHOWN, RANKS_SHOWN = 16, 3
GRACE_S = 3.0
CATCHES_S = 1.0


@dataclass(kw_only=True)
class Ranks:
    """All programs of one run, started host by host."""

    folder: Path  # private to this run: gate, options, hosts file
    experiment: Experiment
    store: RunFolder
    place_of: Callable[[str], Place]
    identity: Identity
    launcher: Launcher = field(default_factory=Exec)
    members: list[Member] = field(default_factory=list)
    damaged_lines: int = 0
    _later: list[tuple[Beside, int]] = field(default_factory=list)
    _gate: int = -1
    _captures: list[Running] = field(default_factory=list)

    def prepare(self, *, extra: dict[str, Any] | None = None) -> None:
        """`extra`: options that the harness itself adds to the workload's."""
        write_host_files(self.folder, self.experiment.topology)
        self._write("options.json", {**self.experiment.workload.options, **(extra or {})})
        for program in self.experiment.beside:
            self._write(f"options-{program.role}.json", dict(program.options))
        os.mkfifo(self.folder / "go")
        self._gate = os.open(self.folder / "go", os.O_RDWR)  # held open, so that no rank ever blocks in open(2)

    def _write(self, name: str, value: Any) -> Path:
        path = self.folder / name
        path.write_text(json.dumps(value), encoding="utf-8")
        return path

    def start(self) -> None:
        self._captures = capture.start(self.experiment, self.place_of, self.store, self.folder / "hosts")
        for number, program in enumerate(self.experiment.beside, start=1):
            if comes_later(program):
                self._later.append((program, number))
            else:
                self._start_beside(program, number)
        self._start_workload()

    def never_came(self) -> list[str]:
        """Programs whose time to begin lay behind the run's end."""
        return [program.role for program, _ in self._later]

    def come_and_go(self, elapsed_s: float) -> None:
        """Programs beside the workload that begin or end at a time of their own."""
        for program, number in [one for one in self._later if elapsed_s >= (one[0].from_s or 0)]:
            self._later.remove((program, number))
            self._start_beside(program, number)
        for member in self.members:
            member.end_at(elapsed_s)

    def _start_workload(self) -> None:
        experiment, hosts = self.experiment, self.experiment.topology.all_hosts()
        each = experiment.workload.ranks_per_process
        crews = [hosts[n : n + each] for n in range(0, len(hosts), each)] if each else [hosts]
        held, ranks_each = knows_no_gate(experiment.workload), max(1, experiment.workload.torchrun)
        threads = max(1, (os.cpu_count() or 1) // len(crews) // ranks_each)
        foreground = not any(program.foreground for program in experiment.beside)
        shared = not experiment.topology.machines
        for number, crew in enumerate(crews):
            first = crew[0]
            variables = self._environment(first, self.store.records_path(f"rank-{first.rank}"), threads)
            if experiment.beside:
                variables["LOSSBENCH_BESIDE"] = ",".join(program.role for program in experiment.beside)
            if shared:
                variables |= gpu_for(number, machine.gpus(), os.environ, ranks=ranks_each)
            if len(crew) > 1:
                variables["LOSSBENCH_SEATS"] = str(self._seats(crew))
            log = self.store.log_path(f"rank-{first.rank}")
            process = self._launch(first, variables, log, experiment.workload, held=held)
            self.members += [
                Member(
                    number=host.rank,
                    process=process,
                    records=self.store.records_path(f"rank-{host.rank}"),
                    log=log,
                    foreground=foreground,
                    barrier=experiment.workload.barrier,
                    held=held and host is first,
                    waiting=ranks_each + held,
                )
                for host in crew
            ]

    def _start_beside(self, program: Beside, number_of_role: int) -> None:
        """Ranks of its own, among the hosts that it runs on. The foreground begins with the run's clock; what serves it
        has begun by then."""
        held, later = program.foreground and knows_no_gate(program), comes_later(program)
        topology, hosts = self.experiment.topology, self.experiment.hosts_of(program)
        for number, host in enumerate(hosts):
            member = f"{program.role}-{number}"
            records, log = self.store.records_path(member), self.store.log_path(member)
            variables = self._environment(host, records, 1, program) | {
                "RANK": str(number),
                "WORLD_SIZE": str(len(hosts)),
                "LOSSBENCH_RANKS_HERE": str(1 if topology.machines else len(hosts)),
                "MASTER_ADDR": hosts[0].control_ipv4,
                "MASTER_PORT": str(MASTER_PORT + number_of_role),
                "LOSSBENCH_PORT": str(DATA_PORT + number_of_role),
                "LOSSBENCH_ROLE": program.role,
                "LOSSBENCH_ADDRESSES": ",".join(one.address(topology.family) for one in hosts),
                "LOSSBENCH_SPEC": str(self.folder / f"options-{program.role}.json"),
            }
            if later:
                variables["LOSSBENCH_GO"] = ""  # the gate is open
            self.members.append(
                Member(
                    number=number,
                    role=program.role,
                    process=self._launch(host, variables, log, program, held=held),
                    records=records,
                    log=log,
                    foreground=program.foreground,
                    barrier=program.barrier and not later,
                    held=held,
                    waiting=max(1, program.torchrun) + held,
                    to_s=program.to_s,
                )
            )

    def _environment(self, host: Host, records: Path, threads: int, program: Program | None = None) -> dict[str, str]:
        dscp = self.experiment.dscp_of(program or self.experiment.workload)
        marked = {"LOSSBENCH_DSCP": str(dscp)} if dscp is not None else {}
        marked["LOSSBENCH_RECORDS_NAME"] = str(known_as(records))
        return marked | environment(
            host, self.experiment.topology, self.identity, folder=self.folder, records=records, threads=threads
        )

    def _launch(self, host: Host, variables: dict[str, str], log: Path, program: Program, *, held: bool) -> Running:
        return self.launcher.start(
            Start(
                program=program,
                place=self.place_of(host.name),
                variables=variables,
                log=log,
                hosts_path=self.folder / "hosts",
                held=held,
            )
        )

    def _seats(self, crew: Sequence[Host]) -> Path:
        """What a process needs to know of every rank it hosts."""
        return self._write(
            f"seats-{crew[0].rank}.json",
            [
                {
                    "rank": host.rank,
                    "records": str(self.store.records_path(f"rank-{host.rank}")),
                    "namespace": self.place_of(host.name).where,
                }
                for host in crew
            ],
        )

    def open_gate(self) -> float:
        """Every rank waits for one byte of the FIFO: all are let through at once, and none can come too late for it.
        Returns when, by the monotonic clock: ranks that wake may keep us from looking at it afterwards."""
        opened = time.monotonic()
        os.write(self._gate, b"g" * sum(member.waiting for member in self.members))
        self.launcher.let_go()
        return time.monotonic() if self.experiment.topology.machines else opened

    def read(self) -> list[tuple[str, dict[str, Any]]]:
        """New records of all ranks, whole lines only; each with the role of who said it (empty: the workload)."""
        out = []
        for rank in self.members:
            records, damaged = rank.new_records()
            self.damaged_lines += damaged
            out += [(rank.role, record) for record in records]
        return out

    def not_ready(self) -> list[str]:
        """Of those that are waited for."""
        return [rank.name for rank in self.members if rank.barrier and not rank.ready]

    def not_at_gate(self) -> list[str]:
        """Of programs that know of none, those in whose place nobody waits there yet."""
        return [rank.name for rank in self.members if rank.held and not rank.ready]

    def ended_early(self) -> bool:
        """Of those that are waited for, one is gone before all could begin."""
        return any(rank.barrier and rank.process.poll() is not None for rank in self.members)

    def running(self) -> list[str]:
        """Of those whose end is the run's."""
        return [rank.name for rank in self.members if rank.foreground and rank.process.poll() is None]

    def pids(self) -> list[int]:
        return [rank.process.pid for rank in self.members]

    def gone(self) -> list[str]:
        """Programs beside the foreground that have ended by themselves."""
        beside = [rank for rank in self.members if not rank.foreground and not rank.ended]
        return [rank.name for rank in beside if rank.process.poll() is not None]

    def check_alive(self) -> None:
        """A rank that died ends the run, with its last words; so does a machine that is gone."""
        self.launcher.check()
        for rank in self.members:
            rank.check_alive()

    def stuck(self, names: Sequence[str]) -> str:
        """Last lines, and stacks if they are Python, of ranks that should have ended or begun: they do not live on."""
        chosen = [rank for rank in self.members if rank.name in names and rank.process.poll() is None]
        chosen = list({rank.process.pid: rank for rank in chosen}.values())[:RANKS_SHOWN]
        before = {rank.name: last_lines(rank.log) for rank in chosen}
        sizes = {rank.name: rank.log.stat().st_size for rank in chosen if rank.log.exists()}
        asked = _that_catch(chosen, signal.SIGABRT)
        for rank in asked:
            rank.process.signal(signal.SIGABRT)
        _wait([rank.process for rank in asked], time.monotonic() + GRACE_S)
        out = ""
        for rank in chosen:
            out += f"\n{rank.name}, its last lines ({known_as(rank.log)}):\n{before[rank.name]}"
            stack = lines_after(rank.log, sizes.get(rank.name, 0)) if rank in asked else []
            out += "".join(f"\n  > {line}" for line in stack[:STACK_LINES_SHOWN])
        return out

    def stop(self, *, in_turn: bool = False) -> None:
        """By process group, politely first; what they say at their end can still be read. `in_turn`, after a good end:
        the last program of the file first, so that whoever asks a service is through before the service goes. All turns
        share one time: whoever does not end keeps the others waiting once, not once for each."""
        until = time.monotonic() + (GRACE_S if in_turn else 0.0)
        for role in reversed(["", *(program.role for program in self.experiment.beside)]):
            _tell([rank.process for rank in self.members if rank.role == role], signal.SIGTERM, until)
        everyone = [rank.process for rank in self.members]
        _wait(everyone, until + GRACE_S)
        _tell(self._captures, signal.SIGTERM, time.monotonic() + GRACE_S)
        everyone += self._captures
        _tell(everyone, signal.SIGKILL, time.monotonic() + GRACE_S)

    def end(self) -> None:
        """Every child is stopped, and reaped last of all."""
        self.stop()
        for rank in self.members:
            rank.process.reap()
        self.members.clear()
        for one in self._captures:
            one.reap()
        self._captures.clear()
        if self._gate >= 0:
            os.close(self._gate)
            self._gate = -1


def _tell(processes: Sequence[Running], number: int, until: float) -> None:
    """And wait for them."""
    for process in processes:
        process.signal(number)
    _wait(processes, until)


def _wait(processes: Sequence[Running], until: float) -> None:
    """Until all have ended, or that moment of the monotonic clock."""
    while any(process.poll() is None for process in processes) and time.monotonic() < until:
        time.sleep(0.01)


def _that_catch(ranks: Sequence[Member], number: int) -> list[Member]:
    """Those with a handler for a signal; a program that has just begun has it in a moment."""
    deadline = time.monotonic() + CATCHES_S
    while time.monotonic() < deadline and not all(rank.process.catches(number) for rank in ranks):
        time.sleep(0.05)
    return [rank for rank in ranks if rank.process.catches(number)]
