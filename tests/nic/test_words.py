"""What the commands about interfaces say: of what failed never that it is gone. Nothing is changed here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lossbench.cli.hardware import lab, nic, words
from lossbench.errors import NotAbleError, RunError, UsageError, VanishedError
from lossbench.net.host import namespaces
from lossbench.net.host.place import Here
from lossbench.net.nic import plan
from lossbench.net.nic.facts import Facts
from lossbench.net.nic.request import Request
from lossbench.net.tc.hook import PARENT
from lossbench.net.tc.rtnl import Reader
from lossbench.spec import profile as profiles
from tests.forms import full
from tests.nic.wire import Wire


def test_what_could_not_be_taken_away_is_said_apart_from_what_others_changed() -> None:
    """As it was: "somebody else changed it meanwhile; what we added is gone", also of what had failed."""
    failed = RunError("filter x is still there", next_step="lossbench clean")
    with pytest.raises(RunError) as raised:
        nic._complain({"eth1": ["mtu: 1500, was 9000"], "eth2": []}, {"eth3": failed})
    text = str(raised.value)
    assert text == "eth3 was not taken away: filter x is still there; eth1: mtu: 1500, was 9000; lossbench clean"
    with pytest.raises(RunError, match="what we added is gone"):
        nic._complain({"eth1": ["mtu: 1500, was 9000"]}, {})
    nic._complain({"eth1": []}, {})


def test_a_machine_that_failed_is_never_said_to_end_by_itself() -> None:
    """As it was: "not reached; it ends there by itself" of every error, and the error's own words were not said."""
    said = lab.reverted_words(RunError("h1: filter x is still there", next_step="lossbench clean"))
    assert said == "not taken away (h1: filter x is still there; lossbench clean)"
    assert lab.reverted_words(NotAbleError("h1 (node1): refused")) == "not taken away (h1 (node1): refused)"
    assert lab.reverted_words(VanishedError("h1 is gone")) == "not known to be taken away (h1 is gone)"
    assert lab.reverted_words([]) == "as it was before" and "nothing of ours" in lab.reverted_words(None)
    assert "somebody else" in lab.reverted_words(["mtu"])


@full
@pytest.mark.netns
def test_a_dry_run_says_what_is_done(wire: Wire) -> None:
    """As it was: the interface's own MTU for devices that have the longest, other priorities, and another order."""
    asked = ["nic", "apply", "nic0", "--profile", "loss_1", "--backend", "ebpf", "--side", "both"]
    said = wire.lossbench(*asked, "--dry-run").stdout
    wire.lossbench(*asked)
    with namespaces.inside(wire.here):
        reader = Reader(Here())
        links = {link.name: link for link in reader.links().values()}
        made = next(name for name in links if re.fullmatch("lb.{4}ea", name))[2:6]
        for name, mtu in re.findall(r"(lbXXXX\w+) mtu (\d+)", said):
            assert links[name.replace(plan.ID, made)].mtu == int(mtu)
        found = set()
        for name, side, priority in re.findall(r"filter add dev (\w+) (\w+) pref (\d+)", said):
            one = links[name.replace(plan.ID, made)]
            there = [each.priority for each in reader.filters(one.index, PARENT[side])]  # type: ignore[index]
            assert int(priority) in there
            found.add((one.name, side))
        assert len(found) == 4
        reader.close()
    lines = said.splitlines()
    assert "dev nic0 ingress" in lines[-2] and "dev nic0 egress" in lines[-3], "gates open last"
    wire.lossbench("nic", "revert", "nic0")


def test_a_dry_run_of_netem_names_its_limit_and_priorities() -> None:
    request = Request.of(profiles.load("loss_1"), interface="eth1", for_s=60.0, seed=1)
    lines = plan.lines(request, Facts(name="eth1", index=2, mtu=1500), "netem")
    text = "\n".join(lines)
    assert "root handle 1: netem limit " in text and "loss 1%" in text and "mtu 65535" in text
    assert re.findall(r"lbXXXXeb ingress pref (\d+)", text) == ["2", "28672", "28673"]


# --- a condition in words --------------------------------------------------------------------------------------------


def test_a_condition_in_words_is_the_profile_that_they_say() -> None:
    """As it was: "No such option: --loss", of what `run` and `net up` take."""
    made = words.condition(loss="3%", burst="8", delay="20ms", rate="1gbit")
    assert made.mean_loss() == pytest.approx(0.03) and made.delay is not None and made.delay.mean_ms == 20
    assert made.rate_mbit == 1000 and made.name == "loss_3_bursts_of_8_20_ms_rate_1000_mbit"
    assert words.condition(loss="3").loss == words.condition(loss="3%").loss
    assert words.condition(profile="loss_1") == profiles.load("loss_1")
    limited = words.condition(rate="100mbit")
    assert (limited.name, limited.rate_mbit, limited.loss) == ("rate_100_mbit", 100, None)
    assert words.condition(profile="loss_1", rate="1gbit").name == "loss_1_rate_1000_mbit"


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ({}, "which condition"),
        ({"profile": "loss_1", "loss": "3%"}, "a whole condition"),
        ({"burst": "8"}, "losses come together"),
        ({"loss": "300%"}, "at most 100"),
        ({"rate": "fast"}, "--rate"),
    ],
)
def test_a_condition_that_nobody_can_mean_is_refused_with_the_next_step(said: dict[str, str], word: str) -> None:
    with pytest.raises(UsageError, match=word) as raised:
        words.condition(**said)
    assert raised.value.next_step


def test_a_rate_beside_a_profile_that_has_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "slow.toml"
    path.write_text('why = "test"\nrate_mbit = 10\n')
    with pytest.raises(UsageError, match="slow has a rate of its own"):
        words.condition(profile=str(path), rate="1gbit")


@pytest.mark.netns
def test_a_loss_in_words_stands_on_a_nic(wire: Wire) -> None:
    done = wire.lossbench("nic", "apply", "nic0", "--loss", "10%", "--burst", "8", "--backend", "ebpf", "--", "true")
    assert "No such option" not in done.stderr
    refused = wire.lossbench("nic", "apply", "nic0", "--dry-run", expect=2).stderr
    assert "which condition" in refused and "--loss 3%" in refused
