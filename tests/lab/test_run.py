"""Suites on machines over real ssh: as in namespaces, and whatever happens to a machine, an agent or the controller."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lossbench.net.host import namespaces
from lossbench.spec.experiment import Experiment
from lossbench.spec.placement import rules_in_force
from lossbench.spec.userfile import check
from tests.forked import Command
from tests.forms import forms, full
from tests.lab.machines import Machines, machines, missing
from tests.nic.wire import until

pytestmark = [pytest.mark.netns, pytest.mark.skipif(missing() is not None, reason=missing() or "")]
EXPERIMENT = """
name = "short"
essential = ["fault", "outcome"]
[topology]
hosts = 2
[workload]
name = "chatter"
options = {{ steps = {steps}, blocks = 4, chunks = 8, spacing_ms = 20 }}
[probe]
packets = 3000
[[impair]]
profile = "loss_10"
{more}
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Machines]:
    with machines(tmp_path) as made:
        yield made


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Machines]:
    with machines(tmp_path, count=2) as made:
        yield made


def written(lab: Machines, *, seconds: float = 1.0, more: str = "") -> str:
    path = lab.folder / "short.toml"
    path.write_text(EXPERIMENT.format(steps=int(seconds * 50), more=more))
    return str(path)


def started(lab: Machines, *arguments: str) -> Command:
    return lab.start("run", *arguments, "--lab", str(lab.file), "--out", str(lab.folder / "runs"), "--json")


def ran(lab: Machines, *arguments: str, expect: tuple[int, ...] = (0,)) -> dict[str, Any]:
    process = started(lab, *arguments)
    out, err = process.communicate(timeout=300)
    assert process.returncode in expect, f"{out}\n{err}"
    return dict(json.loads(out))


def run_folder(found: dict[str, Any], number: int = 0) -> Path:
    return Path(found["dir"]) / f"{number:03}"


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def doubtful(finding: dict[str, Any]) -> bool:
    return bool(finding["status"] != "valid")


@full
def test_a_suite_gives_on_machines_the_verdicts_that_it_gives_in_namespaces(lab: Machines) -> None:
    """Proof, schedule in time, downlinks, programs' own counts: exact to the packet, and nothing is left."""
    before = lab.snapshots()
    found = ran(lab, "chatter")
    columns = [one["columns"] for one in found["summary"]]
    assert [(one["fault"], one["outcome"]) for one in columns] == [("valid", "valid")] * 4
    for number in range(4):
        proof = read(run_folder(found, number) / "proof.json")
        assert {row["exact"] for row in proof["rows"]} == {True} and len(proof["rows"]) == 3
    links = read(run_folder(found) / "links.json")
    assert links["h2"]["address"] == lab.hosts[2].ipv4 and links["h2"]["control"] == lab.hosts[2].control_ipv4
    made_on = read(run_folder(found) / "manifest.json")
    assert sorted(made_on["machines"]) == ["h0", "h1", "h2"] and made_on["machines"]["h0"]["kernel"]
    assert made_on["repeat"].endswith(f" --lab {lab.file}") and made_on["lab"]["machine"][2]["address"]
    assert until(lambda: lab.snapshots() == before)

    later = '[[impair]]\nprofile = "loss_5"\nfrom_s = 0.5\nto_s = 1.5\ndirection = "downlink"\n'
    found = ran(lab, written(lab, seconds=2.5, more=later), expect=(0, 3))
    doubts = [one for one in read(run_folder(found) / "verdict.json")["columns"]["fault"]["findings"] if doubtful(one)]
    late = ("was asked from 0.5 s to 1.5 s and in force", "before its ranks were let go")
    assert all(any(word in one["text"] for word in late) for one in doubts), f"late at most, and said: {doubts}"
    counted = read(run_folder(found) / "counters.json")["hooks"]
    here = [counted[f"h{rank} downlink"] for rank in range(3)]
    down = [sum(rule["seen"] for label, rule in rules.items() if "loss_5" in label) for rules in here]
    assert all(down), "the window met packets on every machine"
    elsewhere = lab.lossbench("replay", found["dir"], expect=4)
    assert "planned for the machines of a lab; give that lab" in elsewhere.stderr
    again = lab.lossbench("replay", found["dir"], "--lab", str(lab.file), expect=3)
    assert "undecided" in again.stdout, "it ran; of a single run nothing can be said"
    assert until(lambda: lab.snapshots() == before)


@full
def test_the_transport_is_compared_on_machines_as_it_is_in_namespaces(lab: Machines) -> None:
    """Lossy beside TCP and a bare stream, exact to the packet; what is a machine's own is left alone."""
    pytest.importorskip("torch")
    small = {
        "repeats": 3,
        "budget_s": 4,
        "mb": 1,
        "contenders": '["lossy", "gloo-cubic", "gloo-cubic-5ms", "udp-blast"]',
    }
    asked = [word for name, value in small.items() for word in ("--set", f"workload.options.{name}={value}")]
    asked += ["--set", "topology.mtu=1500", "--set", "impair.0.profile=loss_5"]
    found = ran(lab, "collectives", *asked)
    (one,) = found["summary"]
    assert (one["columns"]["fault"], one["columns"]["outcome"]) == ("valid", "valid"), one["reasons"]
    assert {row["exact"] for row in read(run_folder(found) / "proof.json")["rows"]} == {True}
    rows = {row["contender"]: row for row in one["rows"]}
    assert rows["lossy"]["n"] and {"gloo-cubic", "udp-blast"} <= set(rows), rows  # TCP may be capped before any call
    assert "not ours to set" in rows["gloo-cubic-5ms"]["note"] and 0.8 < rows["lossy"]["arrived_1"] < 1


@full
def test_a_script_is_started_by_torchrun_with_several_ranks_on_a_machine(pair: Machines) -> None:
    pytest.importorskip("torch")
    script = pair.folder / "mine.py"
    script.write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.full((1000,), float(dist.get_rank()))\n"
        "dist.all_reduce(x)\n"
        "print('rank', dist.get_rank(), 'of', dist.get_world_size(), 'sum', x[0].item(), flush=True)\n"
        "dist.destroy_process_group()\n"
    )
    path = pair.folder / "mine.toml"
    path.write_text(
        f'name = "mine"\n[workload]\ncommand = ["python", "{script}"]\nbarrier = false\n'
        '[probe]\npackets = 1000\n[[impair]]\nprofile = "loss_1"\n'
    )
    text = pair.file.read_text()
    pair.file.write_text(text.replace("[[machine]]\n", "[[machine]]\nranks = 2\n"))
    found = ran(pair, str(path))
    logs = "".join(one.read_text() for one in sorted((run_folder(found) / "logs").iterdir()))
    assert all(f"rank {rank} of 4 sum 6.0" in logs for rank in range(4)), logs
    assert found["summary"][0]["columns"]["fault"] == "valid"


def switch_loses(lab: Machines, profile: str) -> None:
    """The star that the machines hang on is their switch: what it loses, no machine can count."""
    spec = {"name": "lab", "topology": {"hosts": len(lab.hosts) + 1}, "impair": [{"profile": profile}]}
    lab.network.put(rules_in_force(check(Experiment, spec, origin="test"), seed=1))


def ran_while_the_switch_loses(lab: Machines) -> dict[str, Any]:
    """From when its ranks are at work: of an idle network's probes none may be lost."""
    for old in (lab.folder / "runs").glob("*"):
        shutil.rmtree(old)
    process = started(lab, written(lab, seconds=4.0))
    assert until(lambda: runs_there(lab), seconds=120)
    switch_loses(lab, "loss_1")
    out, err = process.communicate(timeout=200)
    assert out, err
    lab.network.put(dict.fromkeys(lab.network.rules, ()))
    return dict(json.loads(out))


# What a switch of one's own would be asked over its management interface.
ASK = """
import json, sys
sys.path[:0] = {path!r}
from lossbench.net.host.place import Namespace
from lossbench.net.tc.rtnl import Reader
drops = [one.dropped for one in Reader(Namespace("sw", {name!r})).qdiscs() if one.kind == "clsact"]
print(json.dumps([{{"port": str(n), "queue": 0, "drops": count}} for n, count in enumerate(drops)]))
"""


@full
def test_loss_inside_the_switch_is_observed_and_counted_where_the_switch_can_be_asked(pair: Machines) -> None:
    found = ran_while_the_switch_loses(pair)
    verdict = read(run_folder(found) / "verdict.json")
    met = read(run_folder(found) / "counters.json")["met"]
    assert verdict["columns"]["fault"]["status"] == "valid", verdict
    assert verdict["marks"] == ["loss observed, not counted"] and met["lost_observed"] > 0 == met["lost_in_queues"]
    assert any("observed, not counted" in text for text in verdict["not_judged"])

    ask = pair.folder / "ask.py"
    ask.write_text(ASK.format(path=[one for one in sys.path if one], name=pair.network.star.namespace("sw")))
    pair.file.write_text(f'{pair.file.read_text()}[switch]\ncounters = ["{sys.executable}", "{ask}"]\n')
    found = ran_while_the_switch_loses(pair)
    verdict = read(run_folder(found) / "verdict.json")
    met = read(run_folder(found) / "counters.json")["met"]
    assert verdict["columns"]["fault"]["status"] == "valid", verdict
    assert verdict["marks"] == [] and met["lost_in_queues"] > 0 and "lost_observed" not in met


# --- what may happen -------------------------------------------------------------------------------------------------


def runs_there(lab: Machines) -> bool:
    """Its ranks are at work."""
    found = list((lab.folder / "runs").glob("*/000/timeline.jsonl"))
    return bool(found)


def agents(lab: Machines) -> dict[int, int]:
    """By rank: pid of the agent."""
    out = {}
    for host in lab.hosts:
        for pid in namespaces.pids_inside([lab.namespace(host)]):
            with suppress(OSError):  # it ends meanwhile
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"zipfile.ZipFile" in line and not line.startswith((b"sh\0", b"ssh", b"bash\0")):
                    out[host.rank] = pid
    return out


@forms("victim", ["agent", "link", "controller", "hung"])
def test_whoever_is_lost_in_the_middle_no_machine_stays_impaired(pair: Machines, victim: str) -> None:
    before = pair.snapshots()
    process = started(pair, written(pair, seconds=60))
    assert until(lambda: runs_there(pair), seconds=120)
    assert pair.snapshots() != before
    lost_at = time.monotonic()
    if victim == "controller":
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    elif victim == "agent":
        os.kill(agents(pair)[1], signal.SIGKILL)
    elif victim == "hung":
        hung = agents(pair)[1]
        os.kill(hung, signal.SIGSTOP)
    else:
        with namespaces.open_inside(pair.network.star.namespace("sw")) as switch:
            switch.link("set", index=switch.link_lookup(ifname=pair.hosts[1].control_port)[0], state="down")
    if victim != "controller":
        out, err = process.communicate(timeout=120)
        assert out, err
        found = json.loads(out)
        assert process.returncode == 3 and found["summary"][0]["verdict"] == "unknown", (process.returncode, out, err)
        verdict = read(run_folder(found) / "verdict.json")
        assert "h1 (node1)" in verdict["columns"]["outcome"]["reasons"][0]
        assert (run_folder(found) / "records" / "rank-0.jsonl").stat().st_size, "what the other one said is kept"
    assert until(lambda: pair.snapshots() == before, seconds=60)
    if victim == "hung":
        os.kill(hung, signal.SIGCONT)
    assert until(lambda: not agents(pair), seconds=60), "whoever held something for it is gone too"
    assert time.monotonic() - lost_at < 120


@full
def test_a_data_link_that_goes_down_in_the_middle_ends_the_run_with_its_name_and_is_given_back(pair: Machines) -> None:
    """Its machine can still be asked: it says so, and gives its interface back as it was. As it was: of a machine's
    interface "switch ports" was said."""
    before = pair.snapshots()
    process = started(pair, written(pair, seconds=60))
    assert until(lambda: runs_there(pair), seconds=120)
    with namespaces.open_inside(pair.network.star.namespace("sw")) as switch:
        port = switch.link_lookup(ifname=pair.hosts[1].port)[0]
        switch.link("set", index=port, state="down")
        out, err = process.communicate(timeout=200)
        switch.link("set", index=port, state="up")
    assert out, err
    verdict = read(run_folder(dict(json.loads(out))) / "verdict.json")["columns"]
    assert verdict["outcome"]["reasons"] == ["links went away during the run: h1's eth0"], verdict
    assert process.returncode == 1 and verdict["fault"]["status"] == "unknown", verdict
    assert until(lambda: pair.snapshots() == before, seconds=60)


@full
def test_what_an_agent_holds_can_be_ended_on_its_machine_and_the_run_is_told(pair: Machines) -> None:
    """As it was: "is being worked on by root", and nothing but the run's own end took it away."""
    before = pair.snapshots()
    process = started(pair, written(pair, seconds=60))
    assert until(lambda: runs_there(pair), seconds=120)
    said = pair.lossbench("lab", "revert", str(pair.file)).stdout
    assert said.count("as it was before") == 2 and pair.snapshots() == before
    out, err = process.communicate(timeout=120)
    assert process.returncode not in (0, None) and "it was taken back" in out + err, (process.returncode, out, err)


@full
def test_a_machine_whose_disk_is_full_fails_the_run_with_its_reason_and_keeps_nothing(tmp_path: Path) -> None:
    """As it was: a rank ended with status 1, and nothing was printed."""
    with machines(tmp_path, count=2, disk="4k") as lab:
        before = lab.snapshots()
        found = ran(lab, written(lab), expect=(1,))
        (reason,) = read(run_folder(found) / "verdict.json")["columns"]["outcome"]["reasons"]
        assert "no room is left on the disk of" in reason and "lossbench-agent" in reason
        assert until(lambda: lab.snapshots() == before)


AHEAD = """#!/bin/sh
PYTHONPATH="{folder}" exec "{python}" "$@"
"""
A_MINUTE = "import time\n_time = time.time\ntime.time = lambda: _time() + 60\n"


@full
def test_a_clock_off_by_a_minute_is_said_and_changes_no_verdict(pair: Machines) -> None:
    """What a run needs of clocks is compared while it runs."""
    (pair.folder / "sitecustomize.py").write_text(A_MINUTE)
    python = pair.folder / "python"
    python.write_text(AHEAD.format(folder=pair.folder, python=sys.executable))
    python.chmod(0o755)
    first, second = pair.file.read_text().split("[[machine]]")[1:]
    head = pair.file.read_text().split("[[machine]]")[0]
    pair.file.write_text(f"{head}[[machine]]{first}[[machine]]{second.replace(sys.executable, str(python))}")
    rows = json.loads(pair.lossbench("lab", "check", str(pair.file), "--json", expect=None).stdout)["machines"]
    assert any("its clock is +60.0 s off" in note for note in rows[1]["notes"]) and abs(rows[0]["clock_ms"]) < 1000
    assert ran(pair, written(pair))["summary"][0]["columns"]["fault"] == "valid"
