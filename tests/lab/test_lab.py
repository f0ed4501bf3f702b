"""Machines over real ssh: looked at, impaired together, given back, whatever fails on the way."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lossbench.net.host import namespaces
from lossbench.net.nic import state
from tests.forms import full
from tests.lab.machines import Machines, machines, missing
from tests.nic.wire import until

pytestmark = [pytest.mark.netns, pytest.mark.skipif(missing() is not None, reason=missing() or "")]
PORT = 29444


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Machines]:
    with machines(tmp_path) as made:
        yield made


def arrived(lab: Machines, count: int = 400) -> int:
    """Datagrams from h0 to h1 on the data network."""
    source, target = lab.hosts[:2]
    with namespaces.inside(lab.namespace(target)):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)
        receiver.bind((target.address("ipv4"), PORT))
        receiver.settimeout(0.5)
    with namespaces.inside(lab.namespace(source)):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    got = 0
    with sender, receiver:
        for _ in range(count):
            sender.sendto(b"x" * 100, (target.address("ipv4"), PORT))
        try:
            while receiver.recv(2000):
                got += 1
        except TimeoutError:
            return got
    return got


@full
def test_a_lab_is_checked_impaired_shown_and_given_back(lab: Machines) -> None:
    """One test for the whole way, since each step takes several logins."""
    before = lab.snapshots()
    found = json.loads(lab.lossbench("lab", "check", str(lab.file), "--json").stdout)["machines"]
    assert [row["wrong"] for row in found] == [[], [], []]
    for row in found:
        assert "ebpf" in row["about"]["backends"] and row["path"]["bare_loss"] == 0.0
        assert row["path"]["mtu"] == 1500 and row["path"]["dscp"] is True and abs(row["clock_ms"]) < 1000

    said = lab.lossbench("lab", "apply", str(lab.file), "--profile", "loss_10", "--port", str(PORT)).stdout
    assert "h2 (node2): loss_10 on eth0" in said
    got = arrived(lab)
    shown = json.loads(lab.lossbench("lab", "show", str(lab.file), "--json").stdout)["machines"]
    side = shown["h0"]["sides"]["egress"]
    assert (side["seen"], side["dropped"]) == (400, 400 - got) and got < 400
    assert {one["phase"] for one in shown.values()} == {state.STANDING}, "each was confirmed by a new connection"
    assert len({one["seed"] for one in shown.values()}) == 3, "no two machines lose the same packets"
    lab.lossbench("lab", "revert", str(lab.file))
    assert lab.snapshots() == before

    done = lab.lossbench("lab", "exec", str(lab.file), "h1", "--", "echo", "$(id)", "a;b", expect=0)
    assert done.stdout == "$(id) a;b\n", "words reach the program as they are"


@full
def test_a_machine_that_can_not_be_trusted_or_reached_keeps_the_others_untouched(lab: Machines) -> None:
    before = lab.snapshots()
    known = lab.folder / "known_hosts"
    right = known.read_text()
    lines = right.splitlines(keepends=True)
    known.write_text(lines[0] + lines[1].replace(lines[1].split()[2], lines[0].split()[2]) + lines[2])
    wrong_key = lab.lossbench("lab", "apply", str(lab.file), "--profile", "loss_10", expect=4)
    assert "h1 (node1)" in wrong_key.stderr and wrong_key.stderr.count("\n") == 1
    known.write_text(right)
    lab.servers[2].kill()
    lab.servers[2].wait()
    gone = lab.lossbench("lab", "apply", str(lab.file), "--profile", "loss_10", expect=4)
    assert "h2 (node2)" in gone.stderr and gone.stderr.count("\n") == 1
    table = lab.lossbench("lab", "check", str(lab.file), expect=4).stdout
    assert "h2 (node2) can't be used" in table and "h0 (node0) can't" not in table
    assert lab.snapshots() == before


@full
def test_a_profile_that_one_machine_refuses_is_on_none(lab: Machines) -> None:
    with namespaces.open_inside(lab.namespace(lab.hosts[1])) as ip:
        index = ip.link_lookup(ifname="eth0")[0]
        ip.tc("add", "clsact", index)
        keys = {"protocol": 0x0800, "target": 0x10020, "keys": ["0x0/0x0+0"]}
        ip.tc("add-filter", "u32", index, parent=0xFFFFFFF3, prio=1, **keys)
    before = lab.snapshots()
    checked = lab.lossbench("lab", "check", str(lab.file), expect=4).stdout
    assert (
        "h1 (node1) can't be used: eth0: a filter of others has priority 1" in checked and "h0 (node0)" not in checked
    )
    refused = lab.lossbench("lab", "apply", str(lab.file), "--profile", "loss_10", expect=4)
    assert "h1: eth0" in refused.stderr and "priority 1" in refused.stderr
    runs = lab.folder / "runs"
    begun = lab.lossbench("run", "proof", "--lab", str(lab.file), "--out", str(runs), expect=4)
    assert "h1: eth0" in begun.stderr and "priority 1" in begun.stderr
    assert not list(runs.glob("*")), "as it was: by the first point, in its midst"
    assert until(lambda: lab.snapshots() == before)


@full
def test_a_controller_that_is_killed_leaves_no_machine_impaired_unconfirmed(lab: Machines) -> None:
    before = lab.snapshots()
    process = lab.start("lab", "apply", str(lab.file), "--profile", "loss_10", "--for", "25s")
    assert until(lambda: lab.snapshots() != before, seconds=60)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert until(lambda: lab.snapshots() == before, seconds=90)


@full
def test_ssh_through_the_impaired_interface_survives_the_loss_of_everything_else(tmp_path: Path) -> None:
    everything = tmp_path / "everything.toml"
    everything.write_text('why = "test"\n[loss]\nmodel = "iid"\npercent = 100.0\n')
    with machines(tmp_path, count=2, over_data=True) as lab:
        before = lab.snapshots()
        asked = ["lab", "apply", str(lab.file), "--profile", str(everything), "--side", "both", "--for", "120s"]
        assert "your SSH session runs over it" in lab.lossbench(*asked, expect=4).stderr
        lab.lossbench(*asked, "--yes-these-nics")
        assert arrived(lab, 50) == 0
        session = lab.start("lab", "exec", str(lab.file), "h0", "--", "sh", "-c", "sleep 3; echo alive")
        time.sleep(1)
        assert session.communicate(timeout=60)[0] == "alive\n"
        lab.lossbench("lab", "revert", str(lab.file))
        assert lab.snapshots() == before and arrived(lab, 50) == 50
