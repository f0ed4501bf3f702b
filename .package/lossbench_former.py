"""The import names of before, `harness` and `workloads`, inside a checkout, for one release: other names for the same
modules, none of which is ever loaded twice. No wheel contains this."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from types import CodeType, ModuleType

NOW = {"harness": "lossbench", "workloads": "lossbench.workloads"}
MOVED = {
    "harness.cli.comparing": "lossbench.cli.reading.compare",
    "harness.cli.guest_view": "lossbench.cli.vm",
    "harness.cli.lab": "lossbench.cli.net",
    "harness.cli.live": "lossbench.cli.screen.live",
    "harness.cli.machine_view": "lossbench.cli.doctor",
    "harness.cli.reporting": "lossbench.cli.reading.report",
    "harness.cli.running": "lossbench.cli.making.run",
    "harness.cli.tables": "lossbench.cli.screen.tables",
    "harness.conservation": "lossbench.net.conservation",
    "harness.counted": "lossbench.net.counters",
    "harness.delay": "lossbench.spec.delay",
    "harness.enter": "lossbench.net.host.enter",
    "harness.evidence": "lossbench.proof.evidence",
    "harness.experiment": "lossbench.spec.experiment",
    "harness.guest": "lossbench.net.guest",
    "harness.guest.boot": "lossbench.net.guest.boot",
    "harness.guest.image": "lossbench.net.guest.image",
    "harness.guest.recipe": "lossbench.net.guest.recipe",
    "harness.interrupt": "lossbench.runs.interrupt",
    "harness.journal": "lossbench.net.journal",
    "harness.judge": "lossbench.proof.judge",
    "harness.judge_fault": "lossbench.proof.judge_fault",
    "harness.judge_rules": "lossbench.proof.judge_rules",
    "harness.junit": "lossbench.report.junit",
    "harness.labs": "lossbench.runs.standing",
    "harness.load": "lossbench.runs.load",
    "harness.lossmodel": "lossbench.spec.lossmodel",
    "harness.machine": "lossbench.net.kernel",
    "harness.made": "lossbench.net.made",
    "harness.measures": "lossbench.results.measures",
    "harness.naming": "lossbench.results.naming",
    "harness.net.gauges": "lossbench.net.star.gauges",
    "harness.net.handles": "lossbench.net.star.handles",
    "harness.net.impair.base": "lossbench.net.impair.backend",
    "harness.net.impair.cbpf_program": "lossbench.net.bpf.classic",
    "harness.net.impair.clsact": "lossbench.net.tc.hook",
    "harness.net.impair.ebpf": "lossbench.net.impair.ebpf.backend",
    "harness.net.impair.ebpf_delay": "lossbench.net.impair.ebpf.delay",
    "harness.net.impair.ebpf_match": "lossbench.net.impair.ebpf.match",
    "harness.net.impair.ebpf_memory": "lossbench.net.impair.ebpf.memory",
    "harness.net.impair.ebpf_program": "lossbench.net.impair.ebpf.program",
    "harness.net.impair.netem": "lossbench.net.impair.netem.backend",
    "harness.net.impair.netem_options": "lossbench.net.impair.netem.options",
    "harness.net.impair.oversize": "lossbench.net.tc.oversize",
    "harness.net.impair.relay": "lossbench.net.impair.relay.backend",
    "harness.net.kinds": "lossbench.net.tc.kinds",
    "harness.net.namespaces": "lossbench.net.host.namespaces",
    "harness.net.network": "lossbench.net.star.network",
    "harness.net.offloads": "lossbench.net.tc.offloads",
    "harness.net.probe": "lossbench.proof.probe",
    "harness.net.probe.datagram": "lossbench.proof.probe.datagram",
    "harness.net.probe.exchange": "lossbench.proof.probe.exchange",
    "harness.net.probe.flows": "lossbench.proof.probe.flows",
    "harness.net.proving": "lossbench.proof.probe.probing",
    "harness.net.relay_process": "lossbench.net.impair.relay.process",
    "harness.net.rtnl": "lossbench.net.tc.rtnl",
    "harness.net.rtnl_messages": "lossbench.net.tc.rtnl_messages",
    "harness.net.shaping": "lossbench.net.tc.shaping",
    "harness.net.star": "lossbench.net.star.links",
    "harness.nursery": "lossbench.runs.launch.nursery",
    "harness.pace": "lossbench.proof.pace",
    "harness.placement": "lossbench.spec.placement",
    "harness.profile": "lossbench.spec.profile",
    "harness.proof": "lossbench.proof.prove",
    "harness.proof_tests": "lossbench.proof.significance",
    "harness.provenance": "lossbench.results.provenance",
    "harness.ranks": "lossbench.runs.launch.ranks",
    "harness.report.canvas": "lossbench.report.plots.canvas",
    "harness.report.curves": "lossbench.report.plots.curves",
    "harness.report.differences": "lossbench.report.tables.differences",
    "harness.report.distributions": "lossbench.report.plots.distributions",
    "harness.report.figures": "lossbench.report.plots.figures",
    "harness.report.index": "lossbench.results.index",
    "harness.report.outcomes": "lossbench.report.tables.outcomes",
    "harness.report.paper": "lossbench.report.plots.paper",
    "harness.report.proven": "lossbench.report.tables.proven",
    "harness.report.sweeps": "lossbench.report.plots.sweeps",
    "harness.report.tables": "lossbench.report.tables.table",
    "harness.report.tails": "lossbench.report.tables.tails",
    "harness.results": "lossbench.results.models",
    "harness.rootless": "lossbench.net.host.rootless",
    "harness.run": "lossbench.runs.run",
    "harness.samples": "lossbench.results.samples",
    "harness.schemas": "lossbench.api",
    "harness.simulated": "lossbench.simulate.no_network",
    "harness.statistics": "lossbench.proof.statistics",
    "harness.store": "lossbench.results.folders",
    "harness.suite": "lossbench.runs.suite",
    "harness.topology": "lossbench.spec.topology",
    "harness.userfile": "lossbench.spec.userfile",
    "harness.verdict": "lossbench.proof.verdict",
    "harness.watch": "lossbench.runs.watch",
    "harness.watched": "lossbench.proof.watched",
    "workloads.collectives": "lossbench.workloads.allreduce",
    "workloads.collectives.__main__": "lossbench.workloads.allreduce.__main__",
    "workloads.collectives.contenders": "lossbench.workloads.allreduce.contenders",
    "workloads.collectives.loop": "lossbench.workloads.allreduce.loop",
    "workloads.collectives.tcp": "lossbench.workloads.allreduce.tcp",
    "workloads.data": "lossbench.workloads.training.data",
    "workloads.data.batches": "lossbench.workloads.training.data.batches",
    "workloads.data.fetch": "lossbench.workloads.training.data.fetch",
    "workloads.data.sets": "lossbench.workloads.training.data.sets",
    "workloads.models": "lossbench.workloads.training.models",
    "workloads.models.llama": "lossbench.workloads.training.models.llama",
    "workloads.models.registry": "lossbench.workloads.training.models.registry",
    "workloads.models.resnet": "lossbench.workloads.training.models.resnet",
    "workloads.models.small": "lossbench.workloads.training.models.small",
    "workloads.models.tagger": "lossbench.workloads.training.models.tagger",
    "workloads.sync.flat": "lossbench.workloads.sync.vectors.flat",
    "workloads.sync.genuine": "lossbench.workloads.sync.channels.genuine",
    "workloads.sync.shards": "lossbench.workloads.sync.vectors.shards",
    "workloads.sync.simulated": "lossbench.workloads.sync.channels.simulated",
    "workloads.transport.admission": "lossbench.workloads.transport.udp.admission",
    "workloads.transport.codec": "lossbench.workloads.transport.packet.codec",
    "workloads.transport.layout": "lossbench.workloads.transport.packet.layout",
    "workloads.transport.link": "lossbench.workloads.transport.udp.link",
    "workloads.transport.native": "lossbench.workloads.transport.native.native",
    "workloads.transport.pump": "lossbench.workloads.transport.pump.pump",
    "workloads.transport.sender": "lossbench.workloads.transport.pump.sender",
    "workloads.transport.wire": "lossbench.workloads.transport.packet.wire",
}


def alias(name: str) -> ModuleType:
    """The package that this name stands for now; names below it are found from here on."""
    warnings.warn(f"import {NOW[name]}: the name '{name}' goes with the next release", DeprecationWarning, stacklevel=3)
    if not any(isinstance(one, _Former) for one in sys.meta_path):
        sys.meta_path.insert(0, _Former())
    return importlib.import_module(NOW[name])


def now(name: str) -> str:
    """What a module of before is called; empty if it never was one of ours."""
    if name in MOVED:
        return MOVED[name]
    root, _, rest = name.partition(".")
    return f"{NOW[root]}.{rest}" if root in NOW and rest else ""


class _Former(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        found = importlib.util.find_spec(now(fullname)) if now(fullname) else None
        if found is None:
            return None
        return importlib.machinery.ModuleSpec(
            fullname, self, origin=found.origin, is_package=found.submodule_search_locations is not None
        )

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(now(spec.name))
        self._own = module.__spec__  # which the import system is about to overwrite
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m`."""
        found = importlib.util.find_spec(now(fullname))
        loader = found.loader if found is not None else None
        return loader.get_code(now(fullname)) if isinstance(loader, importlib.abc.InspectLoader) else None
