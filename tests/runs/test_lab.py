"""A standing lab: up, exec, show, verify, set, down; across processes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forked import LOSSBENCH, lossbench

pytestmark = pytest.mark.netns


@pytest.fixture
def lab() -> Iterator[str]:
    done = lossbench("net", "up", "--hosts", "3", "--rate-mbit", "500", "--profile", "bursty_1", "--seed", "5")
    assert done.returncode == 0, done.stderr
    name = done.stdout.split(":")[0]
    yield name
    lossbench("net", "down", "--net", name)


def test_a_lab_outlives_its_command_and_is_shown_verified_changed_and_taken_down(lab: str) -> None:
    shown = json.loads(lossbench("net", "show", "--net", lab, "--json").stdout)
    assert [h["name"] for h in shown["hosts"]] == ["h0", "h1", "h2"] and shown["profiles"] == ["bursty_1"]
    assert shown["classes"]["h0 uplink"][0]["rate_mbit"] == 500
    verified = lossbench("net", "verify", "--net", lab, "--packets", "9000")
    assert verified.returncode == 0 and "exact" in verified.stdout, verified.stdout
    assert lossbench("net", "set", "--net", lab, "--profile", "loss_10", "--direction", "both").returncode == 0
    again = lossbench("net", "verify", "--net", lab, "--packets", "9000")
    assert again.returncode == 0 and "10 %" in again.stdout and "downlink" in again.stdout, again.stdout
    assert lossbench("net", "set", "--net", lab, "--profile", "clean").returncode == 0
    clean = lossbench("net", "verify", "--net", lab, "--packets", "9000")
    assert clean.returncode == 0 and "receivers miss 0 packets" in clean.stdout, clean.stdout


def test_programs_run_in_hosts_with_names_and_their_own_exit_status(lab: str) -> None:
    script = "hostname; getent hosts h2; getent hosts h2-ctl; echo $RANK $WORLD_SIZE $GLOO_SOCKET_IFNAME; exit 9"
    done = lossbench("net", "exec", "h1", "--net", lab, "--", "sh", "-c", script)
    assert done.returncode == 9
    lines = done.stdout.split("\n")
    assert lines[0] == "h1" and "h2" in lines[1] and lines[2].startswith("10.78.0.3")
    assert "1 3 eth0" in done.stdout


def test_a_program_still_running_is_ended_with_the_lab(lab: str) -> None:
    process = subprocess.Popen(
        [*LOSSBENCH, "net", "exec", "h0", "--net", lab, "--", "sh", "-c", "echo up; sleep 600"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    down = lossbench("net", "down", "--net", lab)
    assert " ended" in down.stdout
    assert process.wait(timeout=120) != 0


def test_a_lab_does_not_need_its_profile_file_any_more(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('why = "x"\n[loss]\nmodel = "iid"\npercent = 7')
    name = lossbench("net", "up", "--hosts", "2", "--profile", str(path)).stdout.split(":")[0]
    path.unlink()
    assert lossbench("net", "verify", "--net", name, "--packets", "4000").returncode == 0
    assert lossbench("net", "down", "--net", name).returncode == 0


def test_a_condition_in_words_as_run_takes_them() -> None:
    up = lossbench("net", "up", "--hosts", "2", "--loss", "20%", "--rate", "100mbit")
    assert up.returncode == 0 and "loss 20%" in up.stdout, up.stderr
    name = up.stdout.split(":")[0]
    try:
        verified = lossbench("net", "verify", "--net", name, "--packets", "4000")
        assert verified.returncode == 0 and "20 %" in verified.stdout, verified.stdout
        changed = lossbench("net", "set", "--net", name, "--loss", "5", "--burst", "4")
        assert "loss 5%, bursts of 4 in force" in changed.stdout, changed.stderr
        again = lossbench("net", "verify", "--net", name, "--packets", "4000")
        assert again.returncode == 0 and "5 %" in again.stdout, again.stdout
        nothing = lossbench("net", "set", "--net", name)
        assert nothing.returncode == 2 and "set what?" in nothing.stderr
        both = lossbench("net", "set", "--net", name, "--loss", "5%", "--profile", "loss_5")
        assert both.returncode == 2 and "--profile is a whole condition" in both.stderr
    finally:
        lossbench("net", "down", "--net", name)


def test_clean_leaves_a_standing_lab_alone(lab: str) -> None:
    assert f"{lab}: a standing network, left alone" in lossbench("clean").stdout
    assert lossbench("net", "show", "--net", lab).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["exec", "h9", "--", "true"], "no such host 'h9'; hosts are h0 to h2"),
        (["exec", "h0", "--", "nosuchprogram"], "no such program: nosuchprogram"),
        (["exec", "h0"], "no command given"),
        (["set", "--profile", "nope"], "no profile 'nope'"),
    ],
)
def test_mistakes_in_a_lab_are_one_line(lab: str, arguments: list[str], words: str) -> None:
    done = lossbench("net", arguments[0], *(["--net", lab] if arguments[0] != "exec" else []), *arguments[1:])
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr
