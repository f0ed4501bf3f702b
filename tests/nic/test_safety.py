"""Safe on a machine one cares about: what is refused, what comes back, who may be killed."""

from __future__ import annotations

import errno
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from lossbench.errors import NotAbleError, RunError
from lossbench.net import journal
from lossbench.net.host import namespaces
from lossbench.net.nic import facts as nic_facts
from lossbench.net.nic import impaired as nic_impaired
from lossbench.net.nic import layers, safety, snapshot, standing, state, takedown, watchdog
from lossbench.net.nic.facts import Facts, Ssh
from lossbench.net.nic.request import Request
from lossbench.net.nic.state import State
from lossbench.net.tc import kinds, offloads
from lossbench.net.tc.rtnl_messages import Filter
from lossbench.spec import profile as profiles
from tests.forms import forms, full
from tests.nic.victims import VICTIMS, applying, drill, impaired
from tests.nic.wire import ADDRESS, COMMAND, PORT, Wire, kill, until, watchdogs

SSH = "10.77.0.2 50000 10.77.0.1 22"


def furnished(wire: Wire) -> None:
    """An HTB tree with filters, filters at clsact, odd offload flags: somebody's, all of it."""
    kinds.install()
    with namespaces.inside(wire.here), IPRoute() as ip:
        index = ip.link_lookup(ifname="nic0")[0]
        ip.tc("add", "htb", index, 0x10000, default=0x10)
        ip.tc("add-class", "htb", index, 0x10001, parent=0x10000, rate="900mbit")
        ip.tc("add-class", "htb", index, 0x10010, parent=0x10001, rate="300mbit", ceil="900mbit", prio=1)
        ip.tc("add", "bfifo", index, 0x100000, parent=0x10010, limit=333_000)
        ip.tc("add-filter", "u32", index, parent=0x10000, prio=10, protocol=0x0800, target=0x10010, keys=["0x0/0x0+0"])
        ip.tc("add", "clsact", index)
        for parent in (0xFFFFFFF2, 0xFFFFFFF3):
            keys = {"protocol": 0x0800, "target": 0x10020, "keys": ["0xa000000/0xff000000+12"]}
            ip.tc("add-filter", "u32", index, parent=parent, prio=49152, **keys)
        ip.link("set", index=index, gso_max_segs=37, txqlen=777)
        offloads.switch("nic0", {"tx-tcp-segmentation": False, "rx-gro": True, "tx-checksum-ip-generic": False})


def tc_says(wire: Wire) -> str:
    """The same by other people's tools, where they are."""
    out = ""
    tc = [["tc", what, "show", "dev", "nic0"] for what in ("qdisc", "class", "filter")]
    hooks = [[*tc[2], side] for side in ("ingress", "egress")]
    for command in (*tc, *hooks, ["ethtool", "-k", "nic0"]):
        if shutil.which(command[0]):
            out += wire.run_here(command).communicate(timeout=30)[0]
    return out


# --- refused before anything is changed ------------------------------------------------------------------------------

PLAIN = Facts(name="eth1", index=2, mtu=1500)
FIRST = Filter(kind="u32", priority=1, handle=1, program_id=None, instructions=b"", target=None, acted=None)


@pytest.mark.parametrize(
    "facts, sides, word",
    [
        (replace(PLAIN, loopback=True), ("egress",), "no Ethernet"),
        (replace(PLAIN, ethernet=False), ("egress",), "no Ethernet"),
        (replace(PLAIN, master="bond bond0"), ("egress",), "member of bond bond0"),
        (replace(PLAIN, rdma=("mlx5_0",)), ("egress",), "RDMA"),
        (replace(PLAIN, hardware_tc=True), ("egress",), "offloaded to its hardware"),
        (replace(PLAIN, lro=True), ("ingress",), "large receive offload"),
        (replace(PLAIN, xdp=True), ("ingress",), "XDP"),
        (replace(PLAIN, old_ingress=True), ("egress",), "ingress qdisc"),
        (replace(PLAIN, ahead={"egress": 1}), ("egress",), "tcx"),
        (replace(PLAIN, filters={"egress": (FIRST,)}), ("egress",), "priority 1"),
        (replace(PLAIN, default_route=True), ("egress",), "default route"),
        (replace(PLAIN, ssh_here=True), ("egress",), "SSH session"),
    ],
)
def test_what_could_not_be_true_or_safe_is_refused_with_the_next_step(
    facts: Facts, sides: tuple[str, ...], word: str
) -> None:
    with pytest.raises(NotAbleError, match=word) as raised:
        safety.refuse(facts, sides, this_nic=False)  # type: ignore[arg-type]
    assert raised.value.next_step


def test_what_a_device_below_has_is_refused_by_that_devices_name() -> None:
    """As it was: of a VLAN or a bond only its own flags were looked at, which it never has."""
    with pytest.raises(NotAbleError, match=r"of eth0, below it.*ethtool -K eth0 lro off"):
        safety.refuse(replace(PLAIN, lro=True, at={"lro": "eth0"}), ("ingress",), this_nic=False)
    with pytest.raises(NotAbleError, match=r"of eth0, below it.*ethtool -K eth0 hw-tc-offload off"):
        safety.refuse(replace(PLAIN, hardware_tc=True, at={"hardware_tc": "eth0"}), ("egress",), this_nic=False)


@pytest.mark.netns
def test_a_vlan_and_a_bridge_stand_on_the_devices_below_them_and_a_veth_on_none(wire: Wire) -> None:
    """As it was: nobody asked them. A bridge's members stand for a bond's: this kernel need not know bonds."""
    with namespaces.inside(wire.here), IPRoute() as ip:
        nic = ip.link_lookup(ifname="nic0")[0]
        ip.link("add", ifname="br7", kind="bridge")
        ip.link("add", ifname="nic0.5", kind="macvlan", link=nic, macvlan_mode="bridge")
        bridge, above = ip.link_lookup(ifname="br7")[0], ip.link_lookup(ifname="nic0.5")[0]
        ip.link("set", index=above, master=bridge)
        assert list(layers.below(ip, bridge).values()) == ["br7", "nic0.5", "nic0"]
        assert list(layers.below(ip, nic).values()) == ["nic0"]
        assert nic_facts.of("br7").at == dict.fromkeys(nic_facts.FEATURES, "br7")


def test_a_vrf_takes_no_packets_of_its_members_past_them_and_a_bridge_may() -> None:
    """As it was: a member of a VRF was refused, whose packets do pass its own clsact."""

    class Link(dict[str, Any]):
        def get_links(self, _: int) -> list[Link]:
            return [self]

        def get_attr(self, name: str) -> Any:
            return self[name]

    for kind, said in (("vrf", ""), ("bridge", "bridge m0"), ("bond", "bond m0")):
        one: Any = Link(IFLA_IFNAME="m0", IFLA_LINKINFO=Link(IFLA_INFO_KIND=kind))
        assert layers.master(one, 7) == said
    assert layers.master(None, None) == ""  # type: ignore[arg-type]


@pytest.mark.netns
def test_a_member_of_a_vrf_loses_what_it_is_asked_to_lose(wire: Wire, everything: str) -> None:
    with namespaces.open_inside(wire.here) as ip:
        try:
            ip.link("add", ifname="vrf7", kind="vrf", vrf_table=77)
        except NetlinkError as error:
            pytest.skip(f"no VRF in this kernel ({error})")
        ip.link("set", index=ip.link_lookup(ifname="vrf7")[0], state="up")
        ip.link("set", index=wire.index(), master=ip.link_lookup(ifname="vrf7")[0])
    with namespaces.inside(wire.here):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"vrf7")
        sender.connect((ADDRESS["there"], PORT))
    with namespaces.inside(wire.there):
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind((ADDRESS["there"], PORT))
        receiver.settimeout(0.5)
    with sender, receiver:
        sender.send(b"1234")
        assert receiver.recv(100) == b"1234"
        wire.lossbench("nic", "apply", "nic0", "--profile", everything, "--port", str(PORT))
        sender.send(b"1234")
        with pytest.raises(TimeoutError):
            receiver.recv(100)
    assert wire.shown()["sides"]["egress"]["dropped"] == 1


def test_what_concerns_the_other_side_alone_is_not_refused() -> None:
    for facts in (replace(PLAIN, lro=True, xdp=True), replace(PLAIN, filters={"ingress": (FIRST,)})):
        safety.refuse(facts, ("egress",), this_nic=False)
    safety.refuse(replace(PLAIN, default_route=True, ssh_here=True), ("egress", "ingress"), this_nic=True)


def test_the_port_of_the_operators_own_ssh_is_protected_beside_the_usual_one() -> None:
    facts = replace(PLAIN, ssh=Ssh(client="10.0.0.1", client_port=50000, server_port=2222), gateways=("10.0.0.254",))
    assert safety.protected(facts).ssh_ports == (22, 2222) and safety.protected(facts).gateways == ("10.0.0.254",)


def test_a_systemd_unit_is_asked_for_by_arguments_never_by_a_shell() -> None:
    """Built here; run by a real one in test_systemd.py."""
    command = watchdog.systemd_command("0a1b", 1, ["python", "-m", "x"], {"A": "b c; $(d)"})
    assert command[0] == "systemd-run" and "--setenv=A=b c; $(d)" in command and command[-3:] == ["python", "-m", "x"]


@full
@pytest.mark.netns
def test_facts_are_those_of_the_real_interface(wire: Wire) -> None:
    with namespaces.open_inside(wire.here) as ip:
        ip.route("add", dst="default", gateway="10.77.0.2")
        ip.link("add", ifname="br7", kind="bridge")
        ip.link("add", ifname="m0", kind="veth", peer={"ifname": "m1"})
        index = ip.link_lookup(ifname="m0")[0]
        ip.link("set", index=index, master=ip.link_lookup(ifname="br7")[0])
    apply = ["nic", "apply", "nic0", "--profile", "loss_1"]
    assert "default route" in wire.lossbench(*apply, expect=4).stderr
    assert "SSH session runs over it" in wire.lossbench(*apply, expect=4, SSH_CONNECTION=SSH).stderr
    assert "bridge br7" in wire.lossbench("nic", "apply", "m0", "--profile", "loss_1", expect=4).stderr
    assert "no Ethernet" in wire.lossbench("nic", "apply", "lo", "--profile", "loss_1", expect=4).stderr
    assert wire.links() == ["br7", "lo", "m0", "m1", "nic0"]


@pytest.mark.netns
@forms("name", ["a;reboot", "nic0\n", "eth 0", "ni\u04410", "$(id)", "-x", "../../etc", "x" * 300, "%s%n"])
def test_a_hostile_name_of_an_interface_is_one_line_and_reaches_nothing(wire: Wire, name: str) -> None:
    done = wire.lossbench("nic", "apply", "--profile", "loss_1", "--", name, expect=2)
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


# --- and everything comes back ---------------------------------------------------------------------------------------


@pytest.mark.netns
@forms("side", ["both", "egress", "ingress"])
def test_a_furnished_nic_is_byte_for_byte_as_before_and_its_furniture_works_meanwhile(wire: Wire, side: str) -> None:
    furnished(wire)
    before, said, links = wire.snapshot(), tc_says(wire), wire.links()
    assert before["classes"] and before["features"] and len(before["filters"]) >= 3
    wire.lossbench("nic", "apply", "nic0", "--profile", "loss_5", "--side", side, "--port", str(PORT))
    assert wire.snapshot() != before
    assert 300 < len(wire.arrived(400)) <= 400
    done = wire.lossbench("nic", "revert", "nic0")
    assert "as it was before" in done.stdout
    assert wire.snapshot() == before and tc_says(wire) == said and wire.links() == links
    assert until(lambda: not watchdogs(wire)), "watchdogs end with their task"


@full
@pytest.mark.netns
def test_what_others_changed_meanwhile_is_said_and_not_undone(wire: Wire) -> None:
    wire.lossbench("nic", "apply", "nic0", "--profile", "loss_5")
    with namespaces.open_inside(wire.here) as ip:
        keys = {"protocol": 0x0800, "target": 0x10020, "keys": ["0x0/0x0+0"]}
        ip.tc("add-filter", "u32", wire.index(), parent=0xFFFFFFF3, prio=77, **keys)
    done = wire.lossbench("nic", "revert", "nic0", expect=1)
    assert "somebody else" in done.stderr and done.stderr.count("\n") == 1
    kept = wire.snapshot()
    assert kept["filters"], "theirs stays, and so does the clsact that holds it"
    assert wire.links() == ["lo", "nic0"]


@full
@pytest.mark.netns
def test_at_its_end_the_nic_is_as_before_by_itself(wire: Wire, everything: str) -> None:
    before = wire.snapshot()
    wire.lossbench("nic", "apply", "nic0", "--profile", everything, "--for", "8s")
    assert wire.arrived(20) == []
    assert until(lambda: wire.snapshot() == before and wire.links() == ["lo", "nic0"])
    assert len(wire.arrived(20)) == 20


@full
@pytest.mark.netns
def test_with_every_watchdog_killed_the_kernels_own_clock_ends_the_loss_and_clean_removes_the_rest(
    wire: Wire, everything: str
) -> None:
    before = wire.snapshot()
    wire.lossbench("nic", "apply", "nic0", "--profile", everything, "--for", "15s")
    while len(found := watchdogs(wire)) > 0:  # each starts the other again
        for pid in found:
            kill(pid, signal.SIGSTOP)
        if set(watchdogs(wire)) == set(found):
            for pid in found:
                kill(pid, signal.SIGKILL)
            break
    assert wire.arrived(20) == [] and wire.snapshot() != before
    assert until(lambda: len(wire.arrived(20)) == 20, seconds=40), "nobody is alive who could have ended it"
    assert wire.snapshot() != before
    assert "removed" in wire.lossbench("clean").stdout
    assert wire.snapshot() == before


@full
@pytest.mark.netns
def test_clean_leaves_what_still_has_its_time_and_takes_it_with_all(wire: Wire) -> None:
    before = wire.snapshot()
    wire.lossbench("nic", "apply", "nic0", "--profile", "loss_5")
    assert "left alone" in wire.lossbench("clean").stdout and wire.snapshot() != before
    again = wire.lossbench("nic", "apply", "nic0", "--profile", "loss_1", expect=4)
    assert "impaired already" in again.stderr and "nic revert nic0" in again.stderr
    wire.lossbench("clean", "--all")
    assert wire.snapshot() == before


@full
@pytest.mark.netns
def test_an_interface_that_was_renamed_is_found_and_one_that_is_gone_leaves_nothing(wire: Wire) -> None:
    before = wire.snapshot()
    wire.lossbench("nic", "apply", "nic0", "--profile", "loss_5")
    with namespaces.open_inside(wire.here) as ip:
        index = ip.link_lookup(ifname="nic0")[0]
        for state_, name in (("down", "other0"), ("up", "other0")):
            ip.link("set", index=index, state=state_, ifname=name)
        wire.lossbench("nic", "revert", "other0")
        with namespaces.inside(wire.here):
            assert snapshot.of(index) == before
        wire.lossbench("nic", "apply", "other0", "--profile", "loss_5")
        ip.link("del", index=index)
    gone = wire.lossbench("nic", "revert", "other0", expect=1)
    assert "is gone" in gone.stderr and wire.links() == ["lo"]


@full
@pytest.mark.netns
def test_damage_at_ingress_is_refused_since_programs_would_meet_it(wire: Wire, tmp_path: Path) -> None:
    path = tmp_path / "damage.toml"
    path.write_text('why = "test"\ncorrupt_percent = 5.0\n')
    asked = ["nic", "apply", "nic0", "--profile", str(path)]
    assert "checksum" in wire.lossbench(*asked, "--side", "both", expect=4).stderr
    wire.lossbench(*asked, "--port", str(PORT))
    missing = 400 - len(wire.arrived(400))
    assert 0 < missing < 60, "the receiver's checksum throws the damaged ones away"


@full
@pytest.mark.netns
def test_a_command_that_outlives_the_time_is_told(wire: Wire) -> None:
    before = wire.snapshot()
    done = wire.lossbench("nic", "apply", "nic0", "--profile", "loss_1", "--for", "1s", "--", "sleep", "4", expect=3)
    assert "given back before the command ended" in done.stderr and wire.snapshot() == before


@full
@pytest.mark.netns
def test_a_mistyped_option_is_no_command_and_a_killed_one_says_by_what(wire: Wire) -> None:
    before = wire.snapshot()
    typo = wire.lossbench("nic", "apply", "nic0", "--profile", "loss_1", "--dry-rnu", expect=2)
    assert "--dry-rnu" in typo.stderr and wire.snapshot() == before
    wire.lossbench("nic", "apply", "nic0", "--profile", "loss_1", "--", "sh", "-c", "kill -9 $$", expect=137)
    assert wire.snapshot() == before


@full
@pytest.mark.netns
def test_what_htb_let_through_directly_and_flows_that_come_and_go_are_no_change(wire: Wire) -> None:
    kinds.install()
    with namespaces.open_inside(wire.here) as ip:
        ip.tc("add", "htb", wire.index(), 0x10000)
    wire.lossbench("nic", "apply", "nic0", "--profile", "loss_1")
    wire.arrived(100)
    assert "as it was before" in wire.lossbench("nic", "revert", "nic0").stdout


@pytest.mark.netns
def test_an_interface_whose_address_changes_meanwhile_keeps_nothing_of_ours(wire: Wire) -> None:
    """As it was: our clsact was taken for that of another interface with its number, stayed, and the journal went. A
    bridge takes its ports' address, a bond that of the link it fails over to."""
    wire.lossbench("nic", "apply", "nic0", "--profile", "loss_1")
    with namespaces.open_inside(wire.here) as ip:
        ip.link("set", index=wire.index(), address="02:00:00:00:77:01")
    wire.lossbench("nic", "revert", "nic0", expect=None)
    with namespaces.open_inside(wire.here) as ip:
        kinds_there = {one.get_attr("TCA_KIND") for one in ip.get_qdiscs() if one["index"] == wire.index()}
    assert "clsact" not in kinds_there


def test_in_a_time_namespace_with_a_clock_of_its_own_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: a day ahead, the kernel's own end of the loss came a day late; behind it, nothing was ever lost."""
    monkeypatch.setattr(nic_impaired, "clock_offset_ns", lambda clock: 86_400 * 10**9 if clock == "boottime" else 0)
    monkeypatch.setattr(nic_impaired.left, "found", lambda _: PLAIN)
    monkeypatch.setattr(nic_impaired.alone, "refuse", lambda: None)
    with pytest.raises(NotAbleError, match="not the kernel's"):
        nic_impaired.examined(Request.of(profiles.load("loss_1"), interface="eth1", for_s=1))


@full
@pytest.mark.netns
def test_a_gate_that_others_removed_is_said_and_so_is_what_stands_elsewhere(wire: Wire) -> None:
    wire.lossbench("nic", "apply", "nic0", "--profile", "loss_1")
    with namespaces.open_inside(wire.here) as ip:
        ip.tc("del", "clsact", wire.index())
    assert "the gate is gone" in wire.lossbench("nic", "show").stdout
    other = Wire(here=wire.there, there=wire.here)
    assert "more in other network namespaces" in other.lossbench("nic", "show").stdout
    (book,) = [one.folder for one, found in standing.standing(everywhere=True) if found.netns == identity(wire)]
    (book / "snapshot.json").write_text("{")
    done = wire.lossbench("nic", "revert", "--all", expect=1)
    assert "can't be read any more" in done.stderr and done.stderr.count("\n") == 1 and wire.links() == ["lo", "nic0"]


def identity(wire: Wire) -> str:
    with namespaces.inside(wire.here):
        return namespaces.current()


# --- who may be killed -----------------------------------------------------------------------------------------------


@pytest.mark.netns
@forms("victim", VICTIMS)
def test_whoever_is_killed_the_nic_is_as_before_byte_for_byte(wire: Wire, victim: str) -> None:
    """A few moments of many; `python tests/bench/nic_soak.py` takes 200, and says how soon."""
    furnished(wire)
    before, chance = wire.snapshot(), random.Random(victim)
    for _ in range(3):
        drill(wire, victim, chance.uniform(0.0, 3.0))
        assert until(lambda: not applying(wire) and not impaired(wire) and wire.snapshot() == before), victim


@pytest.mark.netns
@pytest.mark.parametrize("when", ["it is looked at", "devices are made"])
def test_an_interface_that_goes_away_meanwhile_is_one_line_and_leaves_nothing(
    wire: Wire, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """As it was: a traceback, or "No such device" of nobody knew what."""

    def deleted(what: Callable[..., object]) -> Callable[..., object]:
        def instead(*arguments: object) -> object:
            with IPRoute() as ip:
                for index in ip.link_lookup(ifname="nic0"):
                    ip.link("del", index=index)
            return what(*arguments)

        return instead

    where, name = (nic_facts, "_features") if when == "it is looked at" else (nic_impaired, "_open_gates")
    monkeypatch.setattr(where, name, deleted(getattr(where, name)))
    monkeypatch.setattr(watchdog, "arm", lambda book: None)
    monkeypatch.setattr(nic_impaired.alone, "refuse", lambda: None)
    request, others = Request.of(profiles.load("loss_5"), interface="nic0", for_s=60), _impairments()
    with namespaces.inside(wire.here), pytest.raises(RunError, match="nic0 went away meanwhile"):
        nic_impaired.apply(request)
    assert wire.links() == ["lo"] and _impairments() == others


def _impairments() -> set[str]:
    """Others' too: of tests before this one, whose time is not over."""
    return {str(one.path) for one in journal.networks() if state.read(one) is not None}


@pytest.mark.netns
def test_another_device_that_goes_away_meanwhile_is_not_said_to_be_the_interface(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: "nic0 went away meanwhile" while it was there. Looked at once more, it is as it is."""
    looks = []

    def torn(*arguments: object) -> object:
        looks.append(arguments)
        if len(looks) == 1:
            raise NetlinkError(errno.ENODEV, "No such device")
        return features(*arguments)  # type: ignore[arg-type]

    features = nic_facts._features
    monkeypatch.setattr(nic_facts, "_features", torn)
    with namespaces.inside(wire.here):
        assert nic_facts.of("nic0").name == "nic0" and len(looks) == 2
        with pytest.raises(RunError, match="nic0: a device beside it went away"), nic_facts.present("nic0"):
            raise OSError(errno.ENODEV, "No such device")
        with pytest.raises(RunError, match="nic9 went away"), nic_facts.present("nic9"):
            raise OSError(errno.ENXIO, "No such device or address")


@pytest.mark.netns
def test_what_a_killed_one_left_keeps_nobody_from_applying_again(wire: Wire) -> None:
    """Its watchdogs may not have looked yet, or be dead as well. As it was: a dry run took away what was left, and so
    did an apply that was then refused."""
    before = wire.snapshot()
    process = wire.start("nic", "apply", "nic0", "--profile", "loss_5", "--", "sleep", "60")
    assert until(lambda: wire.links() != ["lo", "nic0"] and wire.shown()["phase"] == "attached")
    for pid in watchdogs(wire):
        kill(pid, signal.SIGSTOP)
    process.kill()
    process.wait()
    left, links = wire.snapshot(), wire.links()
    said = wire.lossbench("nic", "apply", "nic0", "--profile", "loss_5", "--dry-run").stdout
    assert "is taken away first" in said and "dev nic0 clsact" in said and "egress pref 1 " in said
    wire.lossbench("nic", "apply", "nic0", "--profile", "loss_5", "--backend", "relay", expect=2)
    assert (wire.snapshot(), wire.links()) == (left, links), "neither has changed anything"
    wire.lossbench("nic", "apply", "nic0", "--profile", "loss_5", "--for", "60s")
    assert wire.shown()["phase"] == "standing" and len(wire.links()) == 4, "the pair of one, not of two"
    assert "impaired already" in wire.lossbench("nic", "apply", "nic0", "--profile", "loss_5", expect=4).stderr
    wire.lossbench("nic", "revert", "nic0")
    assert wire.snapshot() == before and wire.links() == ["lo", "nic0"]


@full
@pytest.mark.netns
def test_a_watchdog_that_dies_is_replaced_by_one_and_that_one_does_the_work(wire: Wire) -> None:
    before = wire.snapshot()
    wire.lossbench("nic", "apply", "nic0", "--profile", "loss_5", "--for", "40s")
    first, second = watchdogs(wire)
    kill(first, signal.SIGKILL)
    assert until(lambda: wire.shown()["watchdogs"] == 2)
    assert len(watchdogs(wire)) == 2, "not one for every look"
    kill(second, signal.SIGKILL)
    assert until(lambda: wire.shown()["watchdogs"] == 2)
    (wire_folder,) = [one.folder for one, found in standing.standing(everywhere=True) if found.netns == identity(wire)]
    (wire_folder / state.FILE).write_text("{")  # and one whose state is damaged is no more in force for ever
    assert until(lambda: wire.snapshot() == before)


@pytest.mark.netns
def test_a_maker_that_slept_through_its_time_makes_nothing_more_and_forgets_nothing() -> None:
    """While it lives its journal stays, whatever it has yet to make; with its lock the journal goes."""
    book = journal.Journal.claim(kind="nic")
    a_state(id=book.id, phase=state.APPLYING, until=state.now() - 1).save(book)
    assert watchdog._undone(book) and takedown.revoked(book) and book.folder.exists()
    with pytest.raises(RunError, match="taken back"):
        nic_impaired._not_revoked(book)(kind="link", name="lb0", before={})
    book.release()
    assert watchdog._undone(book) and not book.folder.exists()


@pytest.mark.netns
@full
def test_a_holder_that_hangs_loses_its_lease(wire: Wire, everything: str) -> None:
    before = wire.snapshot()
    process = wire.start("nic", "apply", "nic0", "--profile", everything, "--", "sleep", "60")
    assert until(lambda: wire.arrived(3) == [])
    process.send_signal(signal.SIGSTOP)
    try:
        assert until(lambda: len(wire.arrived(3)) == 3), "the kernel's deadline was not put off any more"
        assert until(lambda: wire.snapshot() == before)
    finally:
        process.kill()
        process.wait()


@pytest.mark.netns
def test_a_command_runs_under_it_and_its_status_is_ours(wire: Wire) -> None:
    before = wire.snapshot()
    done = wire.lossbench("nic", "apply", "nic0", "--profile", "loss_1", "--", "sh", "-c", "exit 7", expect=7)
    assert wire.snapshot() == before and "Traceback" not in done.stderr
    missing = wire.lossbench("nic", "apply", "nic0", "--profile", "loss_1", "--", "/no/such", expect=2)
    assert wire.snapshot() == before and missing.stderr.count("\n") == 1


LAPSED = """
import socket
from lossbench.net.nic import standing, state
from lossbench.net.nic.way.clock import Clock
clock = Clock.opened(standing.find("nic0")[1].maps)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
    for _ in range(20):
        clock.set(state.now() - 0.2)
        one.sendto(b"x", ("10.77.0.2", 29444))
"""


@full
@pytest.mark.netns
def test_a_command_in_whose_time_the_lease_lapsed_is_no_success(wire: Wire) -> None:
    """As it was: a holder that slept for a moment and came back (a suspended machine, a full one) ended with 0."""
    apply = ["nic", "apply", "nic0", "--profile", "loss_1", "--", sys.executable, "-c"]
    done = wire.lossbench(*apply, LAPSED, expect=3)
    assert "packets passed untouched" in done.stderr and done.stderr.count("\n") == 1
    wire.lossbench(*apply, "pass")


ALONE = """
mkdir -m 700 "$0" "$0/$2" && mount --bind "$1/$2" "$0/$2" && mount --rbind "$0" "$1" && shift 2 && exec "$@"
"""


@full
@pytest.mark.netns
@pytest.mark.parametrize("words", [("nic", "revert", "nic0"), ("clean", "--all")])
def test_what_a_command_holds_can_be_ended_on_the_machine(wire: Wire, tmp_path: Path, words: tuple[str, ...]) -> None:
    """As it was: "is being worked on by ...", and nothing ended it but the holder's own end. It is said where no other
    journal can be seen: `clean --all` means all."""
    before, end = wire.snapshot(), tmp_path / "end"
    command = ["sh", "-c", f"while [ ! -e {end} ]; do sleep 0.1; done"]
    process = wire.start("nic", "apply", "nic0", "--profile", "loss_1", "--", *command)
    assert until(lambda: wire.snapshot() != before and wire.shown()["phase"] == "attached")
    (book,) = [one for one, found in standing.standing(everywhere=True) if found.netns == identity(wire)]
    inside = ["unshare", "-m", "--propagation", "private", "sh", "-c", ALONE]
    inside += [str(tmp_path / "run"), str(journal.ROOT), book.id]
    done = wire.run_here([*inside, *COMMAND, *words])
    said = done.communicate(timeout=100)
    assert done.returncode == 0 and wire.snapshot() == before and wire.links() == ["lo", "nic0"], said
    assert takedown.revoked(book), "whoever holds it finds that it was taken"
    end.touch()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 3 and "given back before the command ended" in errors
    assert not book.folder.exists()


FULL = """
mount -t tmpfs -o size=256k tmpfs "$0" && head -c "$1" /dev/zero > "$0/full" && shift && exec "$@"
"""


@full
@pytest.mark.netns
@pytest.mark.parametrize("pages", [0, 2, 4, 5])
def test_where_the_journal_has_no_room_nothing_is_changed_and_it_is_said(wire: Wire, pages: int) -> None:
    """The disk is full at once, or at a later step of putting it there."""
    before, links = wire.snapshot(), wire.links()
    journal.private_folder(journal.ROOT)
    taken = str((64 - pages) * 4096)
    inside = ["unshare", "-m", "--propagation", "private", "sh", "-c", FULL, str(journal.ROOT), taken]
    process = wire.run_here([*inside, *COMMAND, "nic", "apply", "nic0", "--profile", "loss_10"])
    _, err = process.communicate(timeout=100)
    assert process.returncode == 4 and "can't be written (No space left on device); free some space" in err
    assert err.count("\n") == 1 and until(lambda: (wire.snapshot(), wire.links()) == (before, links))


@pytest.mark.netns
def test_ctrl_c_takes_it_back(wire: Wire) -> None:
    before = wire.snapshot()
    process = wire.start("nic", "apply", "nic0", "--profile", "loss_1", "--", "sleep", "60")
    assert until(lambda: any(name.startswith("lb") for name in wire.links()))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in errors and wire.snapshot() == before, errors


BETWEEN = """
import sys
from lossbench.cli import main
from lossbench.cli.hardware import nic
def interrupted(*_):
    raise KeyboardInterrupt
nic._while = interrupted
sys.argv = ["lossbench", "nic", "apply", "nic0", "--profile", "loss_1", "--", "true"]
main.main()
"""


@full
@pytest.mark.netns
def test_ctrl_c_between_the_last_rule_and_the_command_takes_it_back(wire: Wire) -> None:
    """It stood until its lease had ended: nobody held it in that moment."""
    before = wire.snapshot()
    process = wire.run_here([sys.executable, "-c", BETWEEN])
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "have been undone" in errors and wire.snapshot() == before


# --- over SSH --------------------------------------------------------------------------------------------------------


@contextmanager
def session(wire: Wire, server: socket.socket, port: int = 22) -> Iterator[str]:
    """A connection to sshd's port, and its SSH_CONNECTION."""
    with namespaces.inside(wire.there):
        client = socket.create_connection((ADDRESS["here"], port))
    with client, server.accept()[0]:
        yield f"{ADDRESS['there']} {client.getsockname()[1]} {ADDRESS['here']} {port}"


@full
@pytest.mark.netns
def test_over_ssh_it_waits_for_a_connection_that_is_newer_to_confirm(wire: Wire) -> None:
    """As it was: a session that names a connection of yesterday (tmux) confirmed, since that one was not there."""
    apply = ["nic", "apply", "nic0", "--profile", "loss_1", "--yes-this-nic", "--confirm-within", "120s"]
    with namespaces.inside(wire.here):
        server = socket.create_server((ADDRESS["here"], 22))
    with namespaces.inside(wire.here):
        another = socket.create_server((ADDRESS["here"], 2222))
    with another, server, session(wire, server) as first, session(wire, server) as second, \
            session(wire, another, 2222) as third:  # fmt: skip
        said = wire.lossbench(*apply, SSH_CONNECTION=first).stdout
        assert "nic confirm nic0" in said and wire.shown()["phase"] == "unconfirmed"
        for older in (first, second, third):
            refused = wire.lossbench("nic", "confirm", "nic0", expect=2, SSH_CONNECTION=older)
            assert "new SSH connection" in refused.stderr
        with session(wire, server) as ended:
            pass
        tmux = wire.lossbench("nic", "confirm", "nic0", expect=2, SSH_CONNECTION=ended)
        assert "is no more" in tmux.stderr and wire.shown()["phase"] == "unconfirmed"
        nobody = wire.lossbench("nic", "confirm", "nic0", expect=2)
        assert "no SSH connection and no terminal" in nobody.stderr
        with session(wire, server) as newer:
            wire.lossbench("nic", "confirm", "nic0", SSH_CONNECTION=newer)
    assert wire.shown()["phase"] == "standing" and wire.shown()["left_s"] > 120
    wire.lossbench("nic", "revert", "nic0")


@full
@pytest.mark.netns
def test_without_a_confirmation_it_is_taken_back(wire: Wire, everything: str) -> None:
    before = wire.snapshot()
    wire.lossbench("nic", "apply", "nic0", "--profile", everything, "--yes-this-nic", SSH_CONNECTION=SSH)
    since = time.monotonic()
    assert wire.arrived(5) == []
    assert until(lambda: wire.snapshot() == before, seconds=60)
    assert time.monotonic() - since < state.CONFIRM_S + 20  # a full machine takes its time


@pytest.mark.netns
def test_a_session_behind_sudo_is_still_known(wire: Wire) -> None:
    """sudo forgets SSH_CONNECTION; the shell that it was called from does not."""
    inner = f"env -u SSH_CONNECTION {' '.join([*COMMAND, 'nic', 'apply', 'nic0', '--profile', 'loss_1'])}; :"
    done = wire.run_here(["sh", "-c", inner], SSH_CONNECTION=SSH)
    _, errors = done.communicate(timeout=60)
    assert "SSH session runs over it" in errors


# --- pure ------------------------------------------------------------------------------------------------------------


def a_state(**changed: object) -> State:
    plain = {"id": "0a1b", "interface": "eth1", "index": 2, "netns": "1 1", "phase": state.STANDING, "until": 1e9,
             "expires": 1e9, "profile": "p", "backend": "ebpf", "seed": 1, "sides": ("egress",)}  # fmt: skip
    return State(**{**plain, **changed})  # type: ignore[arg-type]


def test_when_its_time_is_over_and_when_not() -> None:
    now = state.now()
    assert not a_state().over(holder_alive=False), "who made it may go"
    assert a_state(phase=state.ATTACHED).over(holder_alive=False) == "its holder is gone"
    assert a_state(phase=state.APPLYING).over(holder_alive=False) == "its holder is gone"
    assert not a_state(phase=state.ATTACHED).over(holder_alive=True, lease=now + 1)
    assert a_state(phase=state.ATTACHED).over(holder_alive=True, lease=now - 2) == "its holder hangs"
    assert a_state(until=now - 1).over(holder_alive=True) == "its time is over"
    assert a_state(phase=state.UNCONFIRMED, until=now - 1).over(holder_alive=True) == "not confirmed in time"


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"sides": 3}', "\x00", '{"id": 1, "until": "x"}'])
def test_a_state_that_can_not_be_read_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(journal, "ROOT", tmp_path)
    book = journal.Journal("0a1b")
    book.folder.mkdir()
    (book.folder / state.FILE).write_text(text)
    assert state.read(book) is None


def test_what_stood_before_the_machine_started_stands_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: where the journal outlived the machine, its NIC was "impaired already" for ever."""
    monkeypatch.setattr(journal, "ROOT", tmp_path)
    book = journal.Journal.claim(kind="nic")
    times: dict[str, float] = {"until": 1e12, "expires": 1e12}
    about = {"interface": "eth0", "profile": "loss_5", "phase": state.STANDING, "netns": "1", "backend": "ebpf"}
    one = State(id=book.id, index=2, seed=1, sides=("egress",), **about, **times)  # type: ignore[arg-type]
    one.save(book)
    assert state.read(book) == one
    monkeypatch.setattr(journal, "boot_id", lambda: "another")
    assert state.read(book) is None
    book.release()
