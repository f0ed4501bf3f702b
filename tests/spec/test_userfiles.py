"""Profiles and experiments: what users write, and what they are told when it is wrong."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from lossbench import files
from lossbench.errors import ExitCode, NotAbleError, UsageError
from lossbench.spec import about, placement, profile
from lossbench.spec.asking import points
from lossbench.spec.experiment import Experiment
from lossbench.spec.placement import Hook
from lossbench.spec.userfile import check

SHIPPED = [
    "clean",
    "loss_0p1",
    "loss_1",
    "loss_5",
    "loss_10",
    "bursty_1",
    "bursty_5",
    "dc_tail",
    "wan_40ms",
    "wan_40ms_loss_1",
    "wifi_like",
    "brownout",
    "gray_link",
]


def write(tmp_path: Path, text: str, name: str = "p.toml") -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def make(**keys: Any) -> Experiment:
    return check(Experiment, {"name": "test", **keys}, origin="test")


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_profile_loads_and_says_why(name: str) -> None:
    p = profile.load(name)
    assert p.name == name and len(p.why) > 20
    assert name in profile.names()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('why="x"\nlos="y"', "unknown key 'los'; did you mean loss? allowed: corrupt_percent, delay"),
        ('why="x"\n[loss]\nmodel="iid"\npercent=101', "loss.percent: input should be less than or equal to 100"),
        (
            'why="x"\n[loss]\nmodel="iid"\npercnt=1',
            "unknown key 'loss.percnt'; did you mean percent? allowed: correlation_percent, model, percent",
        ),
        ('why="x"\n[delay]\nmean_ms=-1', "delay.mean_ms: input should be greater than or equal to 0, not -1"),
        ('why="x"\n[loss]\nmodel="gilbert_elliott"\nmean_percent=5', "give either mean_percent and burst_packets_mean"),
        (
            'why="x"\n[loss]\nmodel="gilbert_elliott"\nmean_percent=90\nburst_packets_mean=2',
            "can't give a mean loss of 90.0%",
        ),
        ('why="x"\n[loss]\nmodel="nope"', "iid"),
        ('why="x"\n[loss]\nmodel="trace"\nbits="01x"', "bits may hold only 0 and 1"),
        ('why="x"\n[loss]\nmodel="trace"\nfile="missing.bits"', "the trace can't be read"),
        ('why="x"\n[match]\ndestinations=["nowhere!"]', "neither a host name such as h3 nor an address"),
        ('why="x"\n[match.datagram]\nhalves=["third"]', "'third' is none of reduce_scatter, all_gather"),
        ('why="x"\n[reorder]\npercent=5', "reorder needs a delay"),
        ('why="x"\n[match.datagram]\nsteps=[-1,5]', "match.datagram.steps"),
        ('why="x"\n[match.datagram]\nsteps=[5,2]', "the range from 5 up to 2 is empty"),
        ('why="x"\n[loss]\nmodel="trace"\nbits="  "', "bits may hold only 0 and 1"),
        ("loss = = 5", "not TOML"),
        ("", "key 'why' is missing"),
    ],
)
def test_a_wrong_profile_is_one_line_that_names_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        profile.load(path)
    assert message in str(caught.value)
    assert path in str(caught.value) or "missing.bits" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == ExitCode.USAGE


def test_an_unknown_profile_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no profile 'los_5'.*did you mean loss_5"):
        profile.load("los_5")
    with pytest.raises(UsageError, match=r"no profile 'nothing like it'.*known: .*bursty_1.*loss_5"):
        profile.load("nothing like it")


def test_a_trace_file_lies_beside_its_profile(tmp_path: Path) -> None:
    (tmp_path / "t.bits").write_text("0001\n1000\n")
    path = write(tmp_path, 'why="x"\n[loss]\nmodel="trace"\nfile="t.bits"')
    assert profile.load(path).mean_loss() == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"topology": {"hosts": 1}}, "topology.hosts"),
        (
            {"topology": {"host": 4}},
            "unknown key 'topology.host'; did you mean hosts? allowed: downlink_rate_mbit, family, hosts",
        ),
        ({"impair": [{"profile": "loss_5", "hosts": ["h9"]}]}, "no such host 'h9'; hosts are h0 to h3"),
        ({"impair": [{"profile": "loss_5", "pairs": [["h0", "x"]]}]}, "no such host 'x'"),
        ({"impair": [{"profile": "loss_5", "from_s": 20, "to_s": 10}]}, "the window from 20.0 to 10.0 is empty"),
        ({"backend": "no backend!"}, "backend"),
        ({"shaping": {"classes": [{"name": "web", "dscp": 8}]}}, "classes need a rate"),
        (
            {"topology": {"rate_mbit": 10}, "shaping": {"classes": [{"name": "web"}]}},
            "class 'web' needs a dscp or ports",
        ),
        ({"essential": ["luck"]}, "essential"),
        ({"essential": []}, "essential"),
        ({"impair": [{"profile": "loss_5", "hosts": []}]}, "impair.0.hosts"),
        ({"impair": [{"profile": "loss_5", "hosts": "h0"}]}, 'give "all" or a list, for example ["h0"]'),
        ({"impair": [{"profile": "loss_5", "hosts": ["h0", "h0"]}]}, "named twice"),
        ({"topology": {"rate_mbit": float("inf")}}, "topology.rate_mbit"),
        ({"topology": {"mtu": 576}}, "mtu must be at least 1280 for IPv6"),
        ({"workload": {"name": "/"}}, "workload.name"),
    ],
)
def test_a_wrong_experiment_is_one_line(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make(**keys)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_set_and_sweep_change_dotted_keys(tmp_path: Path) -> None:
    path = Path(
        write(
            tmp_path,
            '[[impair]]\nprofile="loss_5"\n[sweep]\n"impair.0.profile"=["clean","loss_1"]\n"topology.hosts"=[2,4]',
            "mine.toml",
        )
    )
    found = points.points(path, settings=["workload.options.steps=7", "topology.mtu=9000"])
    assert [(p.impair[0].profile.name, p.topology.hosts) for _, p in found] == [
        ("clean", 2),
        ("clean", 4),
        ("loss_1", 2),
        ("loss_1", 4),
    ]
    assert all(p.workload.options == {"steps": 7} and p.topology.mtu == 9000 for _, p in found)
    assert found[0][1].name == "mine"


ARMS = """
[workload]
options = { policy = "free" }
[sweep]
arm = [
  { name = "alone", "workload.name" = "noop", "workload.options" = {} },
  { name = "slow", "topology.rate_mbit" = 10, "workload.options.policy" = "pace=20" },
  { name = "fast", "topology.rate_mbit" = 100, "workload.options.policy" = "pace=20" },
]
"""


def arms_with(folder: Path, *settings: str) -> dict[str, tuple[float | None, dict[str, Any]]]:
    path = Path(write(folder, ARMS, "arms.toml"))
    found = points.points(path, settings=list(settings))
    return {chosen["arm"]: (one.topology.rate_mbit, one.workload.options) for chosen, one in found}


def test_what_is_set_goes_before_an_arm_and_the_arm_says_so(tmp_path: Path) -> None:
    """As it was: an arm won, silently, and a key was changed in some arms only."""
    assert arms_with(tmp_path, "workload.options.policy=pace=5") == {
        "alone": (None, {}),  # another program, with options of its own
        "slow, policy=pace=5": (10, {"policy": "pace=5"}),
        "fast, policy=pace=5": (100, {"policy": "pace=5"}),
    }
    assert arms_with(tmp_path, "arm=fast", "topology.rate_mbit=5") == {"fast, rate_mbit=5": (5, {"policy": "pace=20"})}


def test_what_makes_arms_alike_or_reaches_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="topology.rate_mbit makes points alike: 'slow, rate_mbit=5' and 'fast"):
        arms_with(tmp_path, "topology.rate_mbit=5")
    with pytest.raises(UsageError, match="--set workload.options.steps would change nothing"):
        arms_with(tmp_path, "arm=alone", "workload.options.steps=5")
    for name in ("shared queue", "strict"):
        with pytest.raises(UsageError, match="makes points alike"):
            points.points(points.find("colocation"), settings=["shaping.priority=0.25"])
        ((chosen, one),) = points.points(points.find("colocation"), settings=[f"arm={name}", "shaping.priority=0.25"])
        assert one.shaping is not None and one.shaping.priority == 0.25 and chosen["arm"] == f"{name}, priority=0.25"


def test_a_control_keeps_what_makes_it_one() -> None:
    """`--set workload.options.mbit=24` is about the arms in which something is offered."""
    found = points.points(points.find("colocation"), settings=["workload.options.mbit=24"])
    offered = {chosen["arm"]: one.workload.options["mbit"] for chosen, one in found}
    assert offered.pop("web alone") == 0 and set(offered.values()) == {24} and "strict" in offered
    with pytest.raises(UsageError, match="mbit would change nothing: every point keeps its own"):
        points.points(points.find("colocation"), settings=["arm=web alone", "workload.options.mbit=24"])


def test_what_others_stated_of_an_arm_is_not_stated_of_a_changed_one(tmp_path: Path) -> None:
    settings = ["arm=packets 10 %", "impair.0.profile.loss.percent=5"]
    ((_, one),) = points.points(points.find("packet-loss-llm"), settings=settings)
    assert one.impair[0].profile.mean_loss() == pytest.approx(0.05) and not one.stated


def test_arms_are_chosen_by_name_in_the_order_of_the_file(tmp_path: Path) -> None:
    assert list(arms_with(tmp_path, 'arm="fast"', "arm=alone")) == ["alone", "fast"]
    with pytest.raises(UsageError, match="no arm 'fats'") as caught:
        arms_with(tmp_path, "arm=fats")
    assert caught.value.next_step == "did you mean fast?"
    with pytest.raises(UsageError, match="no arm 'fast'"):
        points.points(points.find("proof"), settings=["arm=fast"])


@pytest.mark.parametrize("setting", ["nonsense", "impair.5.profile=clean", "impair.x=1", "name.x=1"])
def test_a_wrong_setting_is_refused(tmp_path: Path, setting: str) -> None:
    path = Path(write(tmp_path, 'name="a"\n[[impair]]\nprofile="loss_5"', "e.toml"))
    with pytest.raises(UsageError):
        points.points(path, settings=[setting])


def test_a_profile_file_is_found_beside_the_experiment(tmp_path: Path) -> None:
    write(tmp_path, 'why="mine"\n[loss]\nmodel="iid"\npercent=3', "mine.toml")
    path = Path(write(tmp_path, '[[impair]]\nprofile="mine.toml"', "e.toml"))
    ((_, e),) = points.points(path, settings=[])
    assert e.impair[0].profile.mean_loss() == pytest.approx(0.03)


def test_by_default_a_packet_meets_one_loss_point() -> None:
    e = make(impair=[{"profile": "loss_10"}])
    rules = placement.rules_in_force(e, seed=0)
    assert {hook.direction for hook in rules} == {"uplink"}
    assert placement.path_loss(
        rules, source=e.topology.host("h0"), destination=e.topology.host("h1"), family="both"
    ) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("direction", "match", "stands"),
    [
        ("uplink", {"sources": ["h1"]}, ["h1 uplink"]),
        ("uplink", {"destinations": ["h1"]}, ["h0 uplink", "h2 uplink", "h3 uplink"]),
        ("uplink", {"destinations": ["10.77.0.2"]}, ["h0 uplink", "h2 uplink", "h3 uplink"]),
        ("downlink", {"destinations": ["h1"]}, ["h1 downlink"]),
        ("downlink", {"sources": ["h1"]}, ["h0 downlink", "h2 downlink", "h3 downlink"]),
        ("downlink", {"sources": ["h1", "h2"]}, [f"h{rank} downlink" for rank in range(4)]),
        ("both", {"destinations": ["h1"]}, ["h0 uplink", "h2 uplink", "h3 uplink", "h1 downlink"]),
        ("uplink", {"sources": ["10.0.0.0/8"]}, [f"h{rank} uplink" for rank in range(4)]),
        ("uplink", {"sources": ["h1", "10.9.9.9"]}, [f"h{rank} uplink" for rank in range(4)]),  # may be anywhere
        # Nothing meets it; that is said where a rule stands and no probe finds it, not where there is none.
        ("uplink", {"sources": ["h1"], "destinations": ["h1"]}, [f"h{rank} uplink" for rank in range(4)]),
    ],
)
def test_no_rule_stands_where_only_others_packets_would_meet_it(
    direction: str, match: dict[str, Any], stands: list[str]
) -> None:
    """As it was: `sources = ["h1"]` stood at every uplink, and a standing network could not prove the other hosts';
    later `destinations = ["h1"]` stood at h1's own, and no run with it was valid."""
    one_way = {"name": "one_way", "why": "one", "loss": {"model": "iid", "percent": 3}, "match": match}
    e = make(topology={"hosts": 4}, impair=[{"profile": one_way, "direction": direction}])
    assert [hook.name for hook, rules in placement.rules_in_force(e, seed=0).items() if rules] == stands


def test_loss_in_both_directions_adds_up_on_the_path() -> None:
    e = make(impair=[{"profile": "loss_10", "direction": "both"}])
    rules = placement.rules_in_force(e, seed=0)
    assert placement.path_loss(
        rules, source=e.topology.host("h0"), destination=e.topology.host("h1"), family="both"
    ) == pytest.approx(0.19)


def test_the_last_entry_that_matches_wins() -> None:
    e = make(
        impair=[
            {"profile": "loss_1"},
            {"profile": "loss_10", "hosts": ["h2"]},
            {"profile": "brownout", "pairs": [["h0", "h3"]]},
        ]
    )
    rules = placement.rules_in_force(e, seed=0)

    def loss(a: str, b: str) -> float:
        return placement.path_loss(rules, source=e.topology.host(a), destination=e.topology.host(b), family="both")

    assert (loss("h1", "h0"), loss("h2", "h0"), loss("h0", "h1"), loss("h0", "h3")) == pytest.approx(
        (0.01, 0.1, 0.01, 0.4)
    )


def test_windows_of_time_and_step_open_and_close() -> None:
    e = make(
        impair=[{"profile": "brownout", "from_s": 10, "to_s": 20}, {"profile": "loss_1", "from_step": 5, "to_step": 6}]
    )
    hook = Hook(rank=0, direction="uplink")

    def labels(**now: Any) -> list[str]:
        return [rule.profile.name for rule in placement.rules_in_force(e, seed=0, **now)[hook]]

    assert labels(elapsed_s=9.9) == []
    assert labels(elapsed_s=10) == ["brownout"]
    assert labels(elapsed_s=20, step=5) == ["loss_1"]
    assert labels(elapsed_s=15, step=5) == ["loss_1"], "what it overrules is not even in the kernel"
    assert labels(elapsed_s=20, step=6) == []


def test_a_profiles_own_seed_pins_its_pattern_whatever_the_runs_seed(tmp_path: Path) -> None:
    path = write(tmp_path, 'why="x"\nseed=42\n[loss]\nmodel="iid"\npercent=3')
    for name, same in ((path, True), ("loss_1", False)):
        e = make(impair=[{"profile": name}])
        one, other = (placement.rules_in_force(e, seed=s)[Hook(rank=0, direction="uplink")] for s in (1, 2))
        assert (one[0].seed == other[0].seed) == same


def test_two_pairs_of_one_source_are_two_rules_with_two_patterns() -> None:
    e = make(impair=[{"profile": "loss_10", "pairs": [["h0", "h1"], ["h0", "h2"]]}])
    one, other = placement.rules_in_force(e, seed=0)[Hook(rank=0, direction="uplink")]
    assert one.label != other.label and one.seed != other.seed


def test_a_profile_can_be_written_in_place_and_needs_no_file_later() -> None:
    table = {"why": "mine", "loss": {"model": "iid", "percent": 3}}
    e = make(impair=[{"profile": table}])
    assert check(Experiment, e.model_dump(), origin="saved") == e


def test_every_shipped_suite_is_valid() -> None:
    for name in points.suite_names():
        assert points.points(points.find(name), settings=[])


def test_only_workloads_are_known_as_workloads() -> None:
    assert about.known() == ["allreduce", "chatter", "noop", "replay", "training", "web"]
    assert not about.is_ours("errors") and about.module_of("errors") == "errors"


@pytest.mark.parametrize(
    ("number", "step"),
    [
        (errno.EEXIST, "give another name: this one is taken"),
        (errno.EROFS, "give --out"),
        (errno.ENOSPC, "free some space or give --out"),
    ],
)
def test_what_to_do_about_a_file_that_can_not_be_written_depends_on_why(number: int, step: str) -> None:
    """As it was: "free some space", of a read-only disk and of a name that is taken."""
    with pytest.raises(NotAbleError, match=f"; {step}$"), files.disk_errors(Path("x")):
        raise OSError(number, os.strerror(number))
