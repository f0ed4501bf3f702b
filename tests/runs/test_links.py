"""Results go where they were begun: a name that leads elsewhere by then is not followed."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from lossbench.contract import Door
from lossbench.errors import NotAbleError
from lossbench.files import known_as
from lossbench.results.folders import RunFolder, SuiteFolder
from tests.forked import lossbench

SWAP = """
import os, pathlib, time
if os.environ["RANK"] == "0" and "LOSSBENCH_ROLE" not in os.environ:
    (run,) = pathlib.Path({out!r}).glob("*/000")
    run.rename(run.with_name("moved"))
    run.symlink_to({victim!r})
time.sleep(1.5)
import lossbench
lossbench.record("said", word=1)
"""


def victim(folder: Path) -> dict[str, str]:
    """Files of somebody else's under every name that a run may write."""
    names = (
        "timeline.jsonl",
        "verdict.json",
        "counters.json",
        "summary.json",
        "logs/late-0.log",
        "records/rank-0.jsonl",
    )
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine\n")
    return content(folder)


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.netns
def test_a_run_folder_that_is_swapped_during_the_run_is_not_written_through(tmp_path: Path) -> None:
    """As it was: one file of another folder was appended to, one was emptied."""
    out, other = tmp_path / "out", tmp_path / "other"
    before = victim(other)
    program = tmp_path / "swap.py"
    program.write_text(SWAP.format(out=str(out), victim=str(other)))
    spec = tmp_path / "mine.toml"
    spec.write_text(
        f'[topology]\nhosts = 2\n[probe]\npackets = 1000\n[[impair]]\nprofile = "loss_10"\nfrom_s = 1.0\n'
        f'[workload]\nbarrier = false\ncommand = ["python", "{program}"]\n'
        f'[[beside]]\nrole = "late"\nbarrier = false\nfrom_s = 0.7\ncommand = ["python", "{program}"]\nhosts = ["h1"]\n'
    )
    done = lossbench("run", str(spec), "--out", str(out))
    assert "Traceback" not in done.stderr, done.stderr
    assert content(other) == before
    (moved,) = out.glob("*/moved")
    assert {"timeline.jsonl", "verdict.json", "summary.json", "logs/late-0.log"} <= set(content(moved))
    said = [json.loads(line) for line in (moved / "records" / "rank-0.jsonl").read_text().splitlines()]
    assert [one["word"] for one in said if one["kind"] == "said"] == [1]


def test_a_suite_that_is_swapped_is_neither_written_nor_cleared_elsewhere(tmp_path: Path) -> None:
    suite = SuiteFolder.new(tmp_path, "mine", "0001")
    other = tmp_path / "other"
    with suite.locked():
        suite.write("suite.json", "{}")
        suite.path.rename(tmp_path / "moved")
        suite.path.symlink_to(other)
        before = victim(other) | victim(other / "000")
        before = content(other)
        suite.write("summary.json", "{}")
        here = suite.run_folder(0)
        here.make()
        here.write("verdict.json", {})
        here.append("timeline.jsonl", {})
    assert content(other) == before
    assert (tmp_path / "moved" / "000" / "verdict.json").exists()


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    here, other = RunFolder(tmp_path / "run"), tmp_path / "other"
    here.make()
    other.write_text("mine\n")
    (here.path / "timeline.jsonl").symlink_to(other)
    with pytest.raises(NotAbleError):
        here.append("timeline.jsonl", {})
    (here.path / "verdict.json").symlink_to(other)
    here.write("verdict.json", {})
    assert other.read_text() == "mine\n" and not (here.path / "verdict.json").is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_a_run_folder_that_somebody_else_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    os.chown(tmp_path / "run", 65534, 65534)
    with pytest.raises(NotAbleError, match="belongs to another user"):
        RunFolder(tmp_path / "run").make()


def test_people_are_told_the_name_that_they_know(tmp_path: Path) -> None:
    here = RunFolder(tmp_path / "run")
    here.make()
    assert known_as(here.log_path("rank-0")) == tmp_path / "run" / "logs" / "rank-0.log"
    assert known_as(Path("/proc/self")) == Path("/proc/self") and known_as(tmp_path) == tmp_path


def test_what_an_owners_default_acl_gives_to_others_is_taken_away(tmp_path: Path) -> None:
    """As it was: whoever owned --out could write into the folders of root's runs, and put links there."""
    nobody = struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", tag, 7, who)
        for tag, who in (
            (1, -1 & 0xFFFFFFFF),
            (2, 65534),
            (4, -1 & 0xFFFFFFFF),
            (16, -1 & 0xFFFFFFFF),
            (32, -1 & 0xFFFFFFFF),
        )
    )
    try:
        os.setxattr(tmp_path, "system.posix_acl_default", nobody)
    except OSError:
        pytest.skip("no ACLs on this file system")
    here = RunFolder(tmp_path / "run")
    here.make()
    for path in (here.path, here.path / "logs"):
        assert not [name for name in os.listxattr(path) if "acl" in name]
        assert not path.stat().st_mode & 0o022


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_a_file_system_that_gives_everything_to_one_user_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over 9p, NFS or a Windows disk: what we make belongs to somebody else there."""
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    here = RunFolder(tmp_path / "run")
    here.make()
    here.write("verdict.json", {})
    assert (tmp_path / "run" / "verdict.json").exists()


def test_a_program_that_can_not_go_through_the_handle_goes_by_name(tmp_path: Path) -> None:
    """As in a sandbox with a /proc of its own: as it was, `lossbench.record` failed there."""
    env = {"LOSSBENCH_RECORDS": "/proc/1/fd/99999/records/r.jsonl", "LOSSBENCH_RECORDS_NAME": str(tmp_path / "r.jsonl")}
    Door.from_environment(env).record("said", word=1)
    assert '"word":1' in (tmp_path / "r.jsonl").read_text()
