"""A dry run's netem is the one that the kernel gets: what is printed, read as tc reads it, is what is sent."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import Any

import pytest

from lossbench.net.host import namespaces
from lossbench.net.impair.netem.options import decoded, differences, options_of
from lossbench.net.nic import plan
from lossbench.net.nic.request import Request
from lossbench.net.tc import kinds
from lossbench.spec import profile as profiles
from lossbench.spec.placement import Rule
from lossbench.spec.profile import Profile
from tests.nic.wire import Wire

WHOLE = {
    "whole": {
        "loss": {"model": "iid", "percent": 1.5, "correlation_percent": 25},
        "delay": {"mean_ms": 10.5, "jitter_ms": 2, "distribution": "pareto", "correlation_percent": 12.5},
        "reorder": {"percent": 25, "gap": 5, "correlation_percent": 50},
        "slot": {"min_ms": 0.8, "max_ms": 1.2, "packets": 32, "bytes": 64_000},
        "duplicate_percent": 0.1,
        "corrupt_percent": 0.2,
        "rate_mbit": 1234.56789,
        "queue_limit_packets": 77,
        "ecn": True,
    },
    "bursts": {
        "loss": {"model": "gilbert_elliott", "p_percent": 1, "r_percent": 20, "h_percent": 30, "k_percent": 99},
        "ecn": True,
    },
    "plain": {"delay": {"mean_ms": 3}, "reorder": {"percent": 10}, "slot": {"min_ms": 1, "max_ms": 1}, "ecn": True},
}
EVERY = [*profiles.names(), *WHOLE]
# Of tc-netem(8): how many numbers stand behind a word, at least and at most.
SYNTAX = {
    "limit": (1, 1),
    "delay": (1, 3),
    "distribution": (1, 1),
    "random": (1, 2),
    "state": (1, 5),
    "gemodel": (1, 4),
    "ecn": (0, 0),
    "corrupt": (1, 2),
    "duplicate": (1, 2),
    "reorder": (1, 2),
    "gap": (1, 1),
    "rate": (1, 4),
    "slot": (1, 2),
    "packets": (1, 1),
    "bytes": (1, 1),
    "seed": (1, 1),
}


def the_rule(name: str) -> Rule:
    one = profiles.load(name) if name not in WHOLE else Profile.model_validate({"why": "", **WHOLE[name], "name": name})
    return Request.of(one, interface="eth1", for_s=60.0, seed=7).rules["egress"][0]


def understood(words: str) -> dict[str, Any]:
    """In netem's own units."""
    said: dict[str, list[str]] = {}
    word = ""
    for one in words.replace("loss ", "").split():
        if one in SYNTAX:
            word = one
            said[word] = []
        else:
            assert re.fullmatch(r"[0-9.]+(e-?[0-9]+)?(%|ms|mbit)?|normal|pareto|paretonormal", one), one
            said[word].append(one)
    for word, some in said.items():
        least, most = SYNTAX[word]
        assert least <= len(some) <= most, f"{word} {some}"

    def shares(word: str, count: int) -> list[int]:
        found = [kinds.netem_u32(float(one[:-1]) / 100) for one in said.get(word, []) if one.endswith("%")]
        return [*found, *[0] * (count - len(found))]

    def times(word: str) -> list[int]:
        found = [round(float(one[:-2]) * 1e6) for one in said.get(word, []) if one.endswith("ms")]
        return [*found, 0, 0][:2]

    def number(word: str) -> int:
        return int(said[word][0]) if word in said else 0

    (loss, loss_again), (latency, jitter), (shortest, longest) = shares("random", 2), times("delay"), times("slot")
    out: dict[str, Any] = {"limit": number("limit"), "seed": number("seed"), "ecn": int("ecn" in said)}
    out |= {"loss": loss, "latency_ns": latency, "jitter_ns": jitter, "gap": number("gap")}
    out["corr"] = {"delay": shares("delay", 1)[0], "loss": loss_again, "duplicate": shares("duplicate", 2)[1]}
    out["duplicate"] = shares("duplicate", 1)[0]
    two = ("reorder", "corrupt")
    out |= {word: dict(zip(("probability", "correlation"), shares(word, 2), strict=True)) for word in two}
    out["slot"] = {"min_delay": shortest, "max_delay": longest}
    out["slot"] |= {"max_packets": number("packets"), "max_bytes": number("bytes")}
    if "rate" in said:
        out["rate_bytes_s"] = round(float(said["rate"][0].removesuffix("mbit")) * 1e6 / 8)
    if "state" in said:
        out["state4"] = dict(zip(("p13", "p31", "p32", "p23", "p14"), shares("state", 5), strict=True))
    if "gemodel" in said:
        p, r, lost, lost_in_good = shares("gemodel", 4)
        out["gilbert"] = {"p": p, "r": r, "h": kinds.U32_MAX - lost, "k1": lost_in_good}
    return out | ({"distribution": said["distribution"][0]} if "distribution" in said else {})


@pytest.mark.parametrize("name", EVERY)
def test_a_dry_runs_words_for_netem_are_all_that_the_kernel_is_sent(name: str) -> None:
    """As it was: a distribution, correlations, reordering, slots, ecn and the seed were left out, and bursts were words
    that tc refuses."""
    rule = the_rule(name)
    asked, said = options_of(rule), understood(plan.netem_words(rule))
    if not rule.profile.mean_loss():
        asked["ecn"] = 0  # of nothing that is dropped
    for model in ("gilbert", "state4"):
        assert said.get(model, {}) == pytest.approx(asked.pop(model, {}), abs=2), "rounded once more"
        said.pop(model, None)
    assert differences(asked, said) == []
    assert [asked.get(one) for one in ("seed", "distribution")] == [said.get(one) for one in ("seed", "distribution")]


TC = shutil.which("tc") or shutil.which("tc", path="/usr/sbin:/sbin")


def known_to_tc(words: str) -> str:
    """A tc of before iproute2 6.6 knows no seed."""
    assert TC is not None
    help_ = subprocess.run([TC, "qdisc", "add", "dev", "lo", "netem", "help"], capture_output=True, text=True).stderr
    return words if "seed" in help_ else re.sub(r" seed \d+", "", words)


@pytest.mark.skipif(TC is None, reason="needs tc")
@pytest.mark.parametrize("name", EVERY)
def test_tc_takes_the_words_of_a_dry_run(name: str) -> None:
    """It reads all of them before it looks for the device, which there is none of."""
    assert TC is not None
    command = [TC, "qdisc", "replace", "dev", "lbXXXXec0", "root", "handle", "1:", "netem"]
    done = subprocess.run(
        [*command, *known_to_tc(plan.netem_words(the_rule(name))).split()],
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    if "distribution" in done.stderr and "No such file" in done.stderr:
        pytest.skip("this tc came without its tables")
    assert done.stderr.strip() == 'Cannot find device "lbXXXXec0"'


@pytest.mark.guest
@pytest.mark.netns
@pytest.mark.skipif(TC is None, reason="needs tc")
def test_what_tc_makes_of_a_dry_run_is_what_we_ask_the_kernel_for(wire: Wire) -> None:
    assert TC is not None
    kinds.install()
    for rule in map(the_rule, EVERY):
        words = known_to_tc(plan.netem_words(rule)).split()
        command = [TC, "qdisc", "replace", "dev", "nic0", "root", "handle", "1:", "netem", *words]
        done = wire.run_here(command)
        assert done.wait(60) == 0, (rule.label, done.communicate())
        with namespaces.open_inside(wire.here) as ip:
            (found,) = [one for one in ip.get_qdiscs(wire.index()) if one.get_attr("TCA_KIND") == "netem"]
            real = decoded(found.get_attr("TCA_OPTIONS"))
            ip.tc("del", index=wire.index(), parent=kinds.TC_H_ROOT)
        asked = options_of(rule)
        if not rule.profile.mean_loss():
            asked["ecn"] = 0
        for model in ("gilbert", "state4"):
            assert real.pop(model, {}) == pytest.approx(asked.pop(model, {}), abs=64), (rule.label, "tc rounds")
        differ = differences(asked, real)
        assert not [one for one in differ if not close(asked.get(one), real.get(one))], (rule.label, asked, real)


def close(one: Any, other: Any) -> bool:
    """tc takes shares to the 32nd bit in its own way."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(close(one.get(key, 0), other.get(key, 0)) for key in {*one, *other})
    return abs((one or 0) - (other or 0)) <= 64
