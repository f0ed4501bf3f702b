"""An adversary beside lossbench: at a random moment it bypasses, removes or changes what a run stands on.

A touched run must never be *valid* in the column concerned, an untouched one always.

    python tests/bench/adversary.py --backend ebpf --touched 100 --untouched 100
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".package"), str(ROOT)]

from lossbench.net.bpf import syscalls  # noqa: E402
from lossbench.net.bpf.assembler import Assembler  # noqa: E402
from lossbench.net.host import namespaces  # noqa: E402
from lossbench.net.tc import kinds, offloads  # noqa: E402
from lossbench.net.tc.hook import PARENT as SIDES  # noqa: E402
from tests.conftest import namespaces_of  # noqa: E402
from tests.shared import wait_until_begun  # noqa: E402

LOSSBENCH = [sys.executable, "-m", "lossbench.cli.main"]
PARENT = {"uplink": SIDES["ingress"], "downlink": SIDES["egress"]}
PASS_ALL = struct.pack("<HBBI", 0x06, 0, 0, 0)  # classic BPF: return TC_ACT_OK, whatever comes after
SECONDS = 1.6  # that chatter talks
DELAY = {"why": "t", "loss": {"model": "iid", "percent": 5}, "delay": {"mean_ms": 10}}
LOSS = {"why": "t", "loss": {"model": "iid", "percent": 5}}
LATE_WIRE = """
import sys, time
if "lossbench.net.impair.relay.process" in sys.orig_argv: time.sleep(0.6)
"""


@dataclass
class Running:
    """A lossbench that runs, and the places of its network."""

    process: subprocess.Popen[str]
    random: random.Random
    helpers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def place(self, end: str) -> str:
        return next(name for name in namespaces_of(self.process.pid) if name.endswith(f"-{end}"))

    def pause(self, low: float, high: float) -> None:
        time.sleep(self.random.uniform(low, high))


def _pass_all(run: Running, direction: str) -> None:
    with namespaces.open_inside(run.place("sw")) as switch:
        port = switch.link_lookup(ifname="p0")[0]
        there = {"parent": PARENT[direction], "prio": 1, "handle": 7}
        switch.tc("add-filter", "bpf", port, ops=PASS_ALL, direct_action=True, **there)
        run.pause(0.05, 0.4)
        switch.tc("del-filter", "bpf", port, **there)


def filter_ahead(run: Running) -> None:
    _pass_all(run, "uplink")


def tcx_ahead(run: Running) -> None:
    """Runs before clsact; gone with its descriptor, and no netlink message tells of it."""
    with namespaces.open_inside(run.place("sw")) as switch:
        port = switch.link_lookup(ifname="p0")[0]
    code = Assembler()
    code.exit(0)
    program = syscalls.load_classifier(code.assemble(), name="ahead")
    with namespaces.inside(run.place("sw")):
        link = syscalls._bpf(28, struct.pack("<IIII32x", program, port, 46, 0))  # BPF_LINK_CREATE, tcx ingress
    run.pause(0.05, 0.4)
    os.close(link)
    os.close(program)


def remove_clsact(run: Running) -> None:
    with namespaces.open_inside(run.place("sw")) as switch:
        switch.tc("del", "clsact", switch.link_lookup(ifname="p1")[0])


def fault_away_for_a_moment(run: Running) -> None:
    """The filter is taken out; what comes back is not ours."""
    with namespaces.open_inside(run.place("sw")) as switch:
        port = switch.link_lookup(ifname="p1")[0]
        prio = max(f["info"] >> 16 for f in switch.get_filters(index=port, parent=PARENT["uplink"]))
        switch.tc("del-filter", "bpf", port, parent=PARENT["uplink"], prio=prio, handle=1)
        run.pause(0.05, 0.2)
        switch.tc(
            "add-filter", "bpf", port, parent=PARENT["uplink"], prio=prio, handle=1, ops=PASS_ALL, direct_action=True
        )


def remove_rate(run: Running) -> None:
    with namespaces.open_inside(run.place("h0")) as host:
        host.tc("del", index=host.link_lookup(ifname="eth0")[0], parent=0xFFFFFFFF)


def change_rate(run: Running) -> None:
    """And back again before anybody looks."""
    with namespaces.open_inside(run.place("sw")) as switch:
        port = switch.link_lookup(ifname="p1")[0]
        (link,) = [c for c in switch.get_classes(port) if c["handle"] == 0x10001]
        rate = link.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_PARMS")["ceil"]
        for now in (10 * rate, rate):
            more = {"burst": 20_000, "cburst": 20_000, "prio": 0, "quantum": 1514, "mtu": 1600}
            switch.tc("change-class", "htb", port, handle=0x10001, parent=0x10000, rate=now, ceil=now, **more)
            time.sleep(0.02)


def kill_the_wire(run: Running) -> None:
    for entry in Path("/proc").iterdir():
        try:
            words, status = (entry / "cmdline").read_bytes(), (entry / "status").read_text()
        except (OSError, ValueError):
            continue
        if b"relay.process" in words and f"PPid:\t{run.process.pid}\n" in status:
            os.kill(int(entry.name), signal.SIGKILL)


def flood_a_port(run: Running) -> None:
    with namespaces.inside(run.place("h0")):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sender:
        for _ in range(3000):
            sender.sendto(bytes(200), ("10.77.0.2", 9))


def another_mtu(run: Running) -> None:
    with namespaces.open_inside(run.place("sw")) as switch:
        port = switch.link_lookup(ifname="p0")[0]
        switch.link("set", index=port, mtu=1400)
        switch.link("set", index=port, mtu=1500)


def offloads_on(run: Running) -> None:
    with namespaces.inside(run.place("h1")):
        offloads.switch("eth0", {"tx-udp-segmentation": True, "tx-generic-segmentation": True})


def steal_cpu(run: Running) -> None:
    """Until the run ends."""
    for _ in range(2 * (os.cpu_count() or 1)):
        run.helpers.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))


def nothing(run: Running) -> None:
    del run


@dataclass(frozen=True)
class Deed:
    """`voids`: the column that must not be valid afterwards; empty if nothing may be voided."""

    act: Callable[[Running], None]
    voids: str = "fault"
    backends: tuple[str, ...] = ("ebpf", "cbpf", "relay", "netem", "edt")
    rate: bool = False  # of links that have one
    late_wire: bool = False

    @property
    def name(self) -> str:
        return "late_wire" if self.late_wire else self.act.__name__


ROOTED = ("ebpf", "relay", "netem", "edt")  # where bpf(2) is known to work
DEEDS = {
    deed.name: deed
    for deed in (
        Deed(filter_ahead),
        Deed(tcx_ahead, backends=("ebpf", "cbpf", "relay")),
        Deed(remove_clsact),
        Deed(fault_away_for_a_moment),
        Deed(remove_rate, rate=True),
        Deed(change_rate, rate=True),
        Deed(kill_the_wire, backends=("relay",)),
        Deed(flood_a_port),
        Deed(another_mtu),
        Deed(offloads_on),
        Deed(steal_cpu, voids="timing"),
        Deed(nothing, voids="", backends=("relay",), late_wire=True),
    )
}
UNTOUCHED = Deed(nothing, voids="")


def experiment(backend: str, *, rate: bool, seed: int) -> dict[str, Any]:
    rated = rate or backend == "relay"
    return {
        "name": "adversary",
        "backend": backend,
        "first_seed": seed,
        "topology": {"hosts": 3, **({"rate_mbit": 50} if rated else {})},
        "probe": {"packets": 3000},
        "impair": [{"profile": DELAY if backend in ("relay", "edt") else LOSS}],
        "workload": {"name": "chatter", "options": {"steps": round(SECONDS / 0.04), "blocks": 2, "spacing_ms": 40}},
    }


def toml(value: Any) -> str:
    """Inline: what an experiment holds is simple enough."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {toml(v)}" for k, v in value.items()) + "}"
    return "[" + ", ".join(map(toml, value)) + "]" if isinstance(value, list) else json.dumps(value)


def run_with(deed: Deed, backend: str, *, seed: int, folder: Path) -> dict[str, Any]:
    """The run's summary, after the deed was done to it."""
    kinds.install()
    spec = folder / "adversary.toml"
    spec.write_text("".join(f"{k} = {toml(v)}\n" for k, v in experiment(backend, rate=deed.rate, seed=seed).items()))
    environment = dict(os.environ)
    if deed.late_wire:
        (folder / "late").mkdir()
        (folder / "late" / "sitecustomize.py").write_text(LATE_WIRE)
        environment["PYTHONPATH"] = os.pathsep.join((str(folder / "late"), environment.get("PYTHONPATH", "")))
    process = subprocess.Popen(
        [*LOSSBENCH, "run", str(spec), "--out", str(folder / "out"), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=Path(__file__).resolve().parents[2],
    )
    run = Running(process, random.Random(seed))
    try:
        wait_until_begun(process, folder)
        if deed.act is not nothing:
            run.pause(0.0 if deed.voids == "timing" else 0.1, 0.2 if deed.voids == "timing" else 0.6 * SECONDS)
            deed.act(run)
        output, errors = process.communicate(timeout=900)
    finally:
        process.kill()
        for helper in run.helpers:
            helper.kill()
            helper.wait()
    assert "Traceback" not in errors, errors
    (summary,) = json.loads(output)["summary"]
    return dict(summary)


def wrong(deed: Deed, summary: dict[str, Any]) -> str:
    """What the verdict should not have said; empty if it is right."""
    columns = summary["columns"]
    if deed.voids and columns[deed.voids] == "valid":
        return f"{deed.name}: false valid {deed.voids}: {summary['reasons'][deed.voids]}"
    # A wire in user space is late on a machine that is too busy for it, and says so: that is true, whoever did it.
    said = summary["reasons"]["fault"]
    honest = (
        summary["backend"] == "relay" and columns["timing"] != "valid" and said and all("ms late; " in r for r in said)
    )
    if deed.voids != "fault" and columns["fault"] != "valid" and not honest:
        return f"{deed.name}: false {columns['fault']} fault: {summary['reasons']['fault']}"
    if deed.voids == "" and columns["outcome"] != "valid":
        return f"{deed.name}: outcome {columns['outcome']}: {summary['reasons']['outcome']}"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="ebpf")
    parser.add_argument("--touched", type=int, default=10)
    parser.add_argument("--untouched", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    able = [deed for deed in DEEDS.values() if asked.backend in deed.backends]
    plan = [able[n % len(able)] for n in range(asked.touched)] + [UNTOUCHED] * asked.untouched
    random.Random(asked.seed).shuffle(plan)
    mistakes, busy = [], 0
    for number, deed in enumerate(plan):
        with tempfile.TemporaryDirectory() as folder:
            summary = run_with(deed, asked.backend, seed=asked.seed + number, folder=Path(folder))
        said = wrong(deed, summary)
        busy += deed is UNTOUCHED and summary["columns"]["timing"] != "valid"
        mistakes += [said] if said else []
        reason = summary["reasons"][deed.voids][0] if deed.voids else ""
        print(f"{number + 1}/{len(plan)} {deed.name}: {said or 'right'}  {reason[:110]}", flush=True)
    print(
        f"{asked.backend}: {asked.touched} touched, {asked.untouched} untouched, {len(mistakes)} wrong verdicts; "
        f"timing unknown in {busy} untouched runs"
    )
    sys.exit(bool(mistakes))


if __name__ == "__main__":
    main()
