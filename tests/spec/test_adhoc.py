"""Words of a command line become an experiment, the same as a file that says it."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from lossbench.errors import UsageError
from lossbench.spec import units
from lossbench.spec.asking import adhoc
from lossbench.spec.asking.adhoc import Asked
from lossbench.spec.asking.points import points_of
from lossbench.spec.experiment import Experiment
from lossbench.spec.losses import GilbertElliottLoss, IidLoss
from lossbench.spec.userfile import check


def made(**words: Any) -> list[tuple[str, Experiment]]:
    asked = Asked(command=("python", "train.py"), **words)
    found = points_of(tomllib.loads(adhoc.text(asked)), path=Path("command line"), settings=[])
    return [(chosen["arm"], experiment) for chosen, experiment in found]


@pytest.mark.parametrize(
    ("text", "unit", "number"),
    [("3%", "percent", 3), ("20ms", "ms", 20), ("1.5 s", "ms", 1500), ("200us", "ms", 0.2), ("1gbit", "mbit", 1000)]
    + [("10m", "s", 600), ("2h", "s", 7200), ("500kbit", "mbit", 0.5), ("1e-3s", "ms", 1)],
)
def test_a_number_with_a_unit_is_understood(text: str, unit: str, number: float) -> None:
    assert units.read(text, unit) == pytest.approx(number)


def test_units_work_in_files_and_a_wrong_one_is_said_with_its_key() -> None:
    data = {"name": "x", "topology": {"rate_mbit": "1gbit"}, "workload": {"time_limit_s": "10m"}}
    profile = {"why": "x", "loss": {"model": "iid", "percent": "3%"}, "delay": {"mean_ms": "20ms", "jitter_ms": 1}}
    found = check(Experiment, {**data, "impair": [{"profile": profile}]}, origin="file")
    assert (found.topology.rate_mbit, found.workload.time_limit_s) == (1000, 600)
    data["workload"] = {"time_limit_s": "off"}
    assert Experiment.model_validate(data).workload.limit_s() == math.inf
    (entry,) = found.impair
    assert isinstance(entry.profile.loss, IidLoss) and entry.profile.loss.percent == 3
    assert entry.profile.delay is not None and entry.profile.delay.mean_ms == 20
    with pytest.raises(UsageError, match="rate_mbit: '3%' is not a number of kbit, mbit, gbit"):
        check(Experiment, {"name": "x", "topology": {"rate_mbit": "3%"}}, origin="file")


def test_a_condition_stands_beside_a_clean_network() -> None:
    (clean, first), (lossy, second) = made(hosts="3", loss="3%", burst="8", delay="20ms", rate="1gbit")
    assert (clean, lossy) == ("clean", "loss 3%, bursts of 8, 20 ms")
    assert first.topology.hosts == 3 and first.topology.rate_mbit == 1000
    assert first.impair[0].profile.loss is None and first.workload.command == ("python", "train.py")
    loss, wait = second.impair[0].profile.loss, second.impair[0].profile.delay
    assert isinstance(loss, GilbertElliottLoss) and (loss.mean_percent, loss.burst_packets_mean) == (3, 8)
    assert wait is not None and wait.mean_ms == 20 and not second.workload.barrier


def test_every_combination_of_a_sweep_is_a_point() -> None:
    found = made(sweep=("loss=0,1%,5", "rate=100mbit,1gbit"))
    assert [name for name, _ in found][:3] == ["loss 0%, 100mbit", "loss 0%, 1gbit", "loss 1%, 100mbit"]
    assert [round(100 * one.impair[0].profile.mean_loss()) for _, one in found] == [0, 0, 1, 1, 5, 5]
    assert {one.topology.rate_mbit for _, one in found} == {100, 1000}
    assert [one.topology.hosts for _, one in made(sweep=("hosts=2,8",))] == [2, 8]
    assert [name for name, _ in made(sweep=("profile=clean,bursty_5",))] == ["clean", "bursty_5"]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ({"loss": "0%"}, ["clean"]),
        ({"loss": "0"}, ["clean"]),
        ({"delay": "0ms"}, ["clean"]),
        ({"profile": "clean"}, ["clean"]),
        ({"sweep": ("loss=1,1%,5",)}, ["loss 1%", "loss 5%"]),
        ({"sweep": ("delay=0,20ms",)}, ["0 ms", "20 ms"]),
        ({"sweep": ("loss=0,5", "burst=2,8")}, ["loss 0%", "loss 5%, bursts of 2", "loss 5%, bursts of 8"]),
        ({"sweep": ("rate=1gbit,1000mbit",)}, ["clean, 1gbit"]),
        ({"sweep": ("hosts=2,02",)}, ["clean, 2 hosts"]),
    ],
)
def test_the_same_in_other_words_is_one_point(words: dict[str, Any], names: list[str]) -> None:
    """As it was: two points of one name, whose runs were merged as if they were seeds of one."""
    assert [name for name, _ in made(**words)] == names


def test_a_rate_is_named_with_its_unit() -> None:
    """As it was: points "clean, 10" and "clean, 100"."""
    assert [name for name, _ in made(sweep=("rate=10,100",))] == ["clean, 10mbit", "clean, 100mbit"]


def test_points_that_would_be_called_alike_are_refused(tmp_path: Path) -> None:
    """As it was: their runs were merged."""
    files = [tmp_path / name / "wifi.toml" for name in ("a", "b")]
    for percent, path in enumerate(files, start=1):
        path.parent.mkdir()
        path.write_text(f'name = "wifi"\nwhy = "x"\nloss = {{ model = "iid", percent = {percent} }}\n')
    with pytest.raises(UsageError, match="several points would be called 'wifi'; give each file a name of its own"):
        made(sweep=(f"profile={files[0]},{files[1]}",))


@pytest.mark.parametrize(
    "word", ['a "quoted" word', "back\\slash", "line\nfeed", "smile \N{SLIGHTLY SMILING FACE}", "\x7f"]
)
def test_words_of_a_command_reach_it_as_they_are(word: str) -> None:
    asked = Asked(command=("sh", "-c", word))
    assert tomllib.loads(adhoc.text(asked))["workload"]["command"] == ["sh", "-c", word]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"loss": "lots"}, "--loss: 'lots' is not a number"),
        ({"loss": "3%", "profile": "loss_5"}, "--profile is a whole condition"),
        ({"burst": "8"}, "give --loss too"),
        ({"loss": "3", "burst": "many"}, "--burst 'many'"),
        ({"hosts": "four"}, "--hosts 'four'"),
        ({"profile": "nowhere"}, "no profile 'nowhere'"),
        ({"sweep": ("speed=1,2",)}, "--sweep speed=1,2"),
        ({"sweep": ("loss=",)}, "--sweep loss="),
        ({"sweep": ("loss=1", "loss=5")}, "--sweep loss is given twice; in one: --sweep loss=1,5"),
        ({"rate": "1furlong"}, "--rate: '1furlong'"),
        ({"loss": "3x"}, "--loss: '3x' is not a number of %; for example --loss 3%"),
        ({"loss": "150%"}, "--loss 150%: at most 100%; for example --loss 3%"),
        ({"sweep": ("loss=1,150",)}, "--sweep loss=150: at most 100%; for example --sweep loss=3%"),
        ({"sweep": ("loss=0,5x",)}, "--sweep loss: '5x"),
        ({"sweep": ("burst=2,x",), "loss": "3"}, "--sweep burst='x' is not a number"),
        ({"sweep": ("hosts=2,1",)}, "--sweep hosts=1: at least 2; for example --sweep hosts=4"),
        ({"loss": "3", "burst": "0.2"}, "--burst 0.2: at least 1; for example --burst 8"),
        ({"loss": "3", "burst": "nan"}, "--burst nan: not a finite number; for example --burst 8"),
        ({"loss": "3", "burst": "inf"}, "--burst inf: not a finite number"),
        ({"loss": "3", "burst": "-inf"}, "--burst -inf: not a finite number"),
        ({"delay": "1e400"}, "--delay 1e400: not a finite number; for example --delay 20ms"),
        ({"loss": "1e400%"}, "--loss 1e400%: not a finite number"),
        ({"time_limit": "1e400s"}, "--time-limit 1e400s: not a finite number"),
        ({"loss": "100", "burst": "8"}, "--burst 8: where all is lost there are no bursts; give --loss below 100%"),
        ({"sweep": ("loss=1,100%",), "burst": "8"}, "--burst 8: where all is lost there are no bursts"),
        ({"rate": "2000gbit"}, "--rate 2000gbit: at most 1,000,000 mbit; for example --rate 1gbit"),
        ({"rate": "fast"}, "for example --rate 1gbit"),
        ({"rate": "10kbit"}, "--rate 10kbit: at least 0.1 mbit"),
        ({"time_limit": "never"}, "--time-limit: 'never' is not a number of .*; for example --time-limit 20m"),
        ({"hosts": "1"}, "--hosts 1: at least 2; for example --hosts 4"),
        ({"hosts": "999"}, "--hosts 999: at most 250"),
        ({"delay": "20m"}, "--delay: .20m. is not a number of us, ms, s"),
        ({"time_limit": "0"}, "--time-limit 0: no time at all; without a limit: --time-limit off"),
    ],
)
def test_a_mistake_is_named_by_its_option(words: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        made(**words)


def test_the_name_is_the_scripts() -> None:
    names = {("python", "-u", "My Train.py"): "my-train", ("/usr/bin/iperf3", "-s"): "iperf3", ("!!",): "program"}
    assert {command: tomllib.loads(adhoc.text(Asked(command=command)))["name"] for command in names} == names


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("python", "-m", "pkg.train"), "train"),
        (("/usr/bin/python3", "-X", "dev", "-m", "my_trainer", "--lr", "1"), "my_trainer"),
        (("python", "train.py", "-m", "fast"), "train"),
        (("iperf3", "-m", "x"), "iperf3"),
        (("python", "-m"), "python"),
    ],
)
def test_a_module_gives_its_name(command: tuple[str, ...], name: str) -> None:
    """As it was: every `python -m pkg.train` was stored as the suite "python"."""
    assert tomllib.loads(adhoc.text(Asked(command=command)))["name"] == name


@pytest.mark.parametrize(
    ("loss", "sweep", "doubted"),
    [
        ("0.03", (), ["0.03"]),
        ("", ("loss=0,.05,0.05%,.1", "rate=0.05"), [".05"]),
        ("", ("loss=0,.05,1,5",), []),  # beside 5 it is no share
        ("0.03%", (), []),
        ("0.5", (), []),
        ("0", ("loss=0.0,1",), []),
        ("3", (), []),
    ],
)
def test_a_loss_that_may_be_meant_as_a_share_is_doubted(loss: str, sweep: tuple[str, ...], doubted: list[str]) -> None:
    """As it was: --loss 0.03 lost three packets in ten thousand, without a word."""
    said = units.perhaps_shares(loss, sweep)
    assert [text.split()[3] for text in said] == doubted
    assert all(re.search(r"write [35]% if a share was meant, 0?\.0[35]% if not", text) for text in said)
