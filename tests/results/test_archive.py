"""Results from one machine to another."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lossbench.cli.app import app
from lossbench.errors import UsageError
from lossbench.results import archive
from lossbench.results.folders import SuiteFolder
from lossbench.results.index import read_suite
from tests.results.test_stored import STORED


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    (to,) = archive.pack([(STORED, STORED.name)], tmp_path / "way" / "all.tar.gz")
    return to


def _cut(packed: Path) -> list[Path]:
    return archive._cut(packed, packed.stat().st_size // 3)


def test_what_is_packed_in_parts_arrives_byte_by_byte_by_any_parts_name(packed: Path, tmp_path: Path) -> None:
    parts = _cut(packed)
    assert len(parts) > 2 and not packed.exists()
    for named in (packed, parts[1]):
        into = tmp_path / f"into-{named.name}"
        assert archive.bring_in(named, into) == [(into / STORED.name, 2, 0)]
        assert _files(into / STORED.name) == _files(STORED) and len(list(into.iterdir())) == 1


def test_a_missing_part_is_named(packed: Path, tmp_path: Path) -> None:
    _cut(packed)[1].unlink()
    with pytest.raises(UsageError, match="part 2 of .* is missing"):
        archive.bring_in(packed, tmp_path / "into")


def test_runs_of_elsewhere_complete_what_was_begun_here_and_replace_nothing(packed: Path, tmp_path: Path) -> None:
    into = tmp_path / "into"
    shutil.copytree(STORED, into / STORED.name)
    (into / STORED.name / "001" / "summary.json").unlink()
    kept = into / STORED.name / "000" / "summary.json"
    kept.write_text(kept.read_text() + "\n")
    mine = kept.read_text()
    assert archive.bring_in(packed, into) == [(into / STORED.name, 1, 1)]
    assert kept.read_text() == mine and len(read_suite(into / STORED.name).runs) == 2


def test_an_archive_that_points_elsewhere_writes_nothing_there(tmp_path: Path) -> None:
    bad = tmp_path / "bad.tar.gz"
    with tarfile.open(bad, "w:gz") as file:
        member = tarfile.TarInfo("../outside/suite.json")
        member.size = 2
        file.addfile(member, io.BytesIO(b"{}"))
    with pytest.raises(UsageError):
        archive.bring_in(bad, tmp_path / "a" / "into")
    assert not (tmp_path / "a" / "outside").exists()
    assert list((tmp_path / "a" / "into").iterdir()) == []


def test_an_archive_that_was_damaged_on_its_way_is_refused_whole(packed: Path, tmp_path: Path) -> None:
    """As it was: of one flipped bit in two, tar said nothing, and other numbers came in."""
    sound = packed.read_bytes()
    for number in range(20):
        at = 20 + number * (len(sound) - 40) // 20
        packed.write_bytes(sound[:at] + bytes([sound[at] ^ 4]) + sound[at + 1 :])
        with pytest.raises(UsageError, match="damaged"):
            archive.bring_in(packed, tmp_path / "into")
    assert list((tmp_path / "into").iterdir()) == []


def test_parts_of_an_older_archive_do_not_get_into_a_new_one(packed: Path, tmp_path: Path) -> None:
    copy = packed.read_bytes()
    archive._cut(packed, len(copy) // 5)
    packed.write_bytes(copy)
    parts = archive._cut(packed, len(copy) // 2)
    assert archive.parts_of(packed) == parts
    parts[0].with_name("all.tar.gz.part-1-of-9").write_bytes(b"")
    with pytest.raises(UsageError, match="parts of several archives"):
        archive.parts_of(packed)


def test_notes_and_sessions_of_here_stay_and_those_of_there_join(packed: Path, tmp_path: Path) -> None:
    here = tmp_path / "into" / STORED.name
    shutil.copytree(STORED, here)
    (here / "001" / "summary.json").unlink()
    (here / "notes.json").write_text('{"tags": ["mine"], "note": ""}')
    plan = json.loads((here / "suite.json").read_text())
    plan["sessions"] = [{**plan["sessions"][0], "started": "2030-01-01T00:00:00+0000"}]
    (here / "suite.json").write_text(json.dumps(plan))
    archive.bring_in(packed, tmp_path / "into")
    assert "mine" in (here / "notes.json").read_text()
    joined = read_suite(here)
    assert len(joined.plan.sessions) == 2 and len(joined.runs) == 2
    assert len(json.loads((here / "summary.json").read_text())["summary"]) == 2


def test_a_suite_is_the_same_by_its_id_and_plan_whatever_its_folder_is_called(packed: Path, tmp_path: Path) -> None:
    """As it was: by the folder's name alone, so that a renamed one came in twice, and half a suite stayed half."""
    into = tmp_path / "into"
    shutil.copytree(STORED, into / "renamed")
    (into / "renamed" / "001" / "summary.json").unlink()
    assert archive.bring_in(packed, into) == [(into / "renamed", 1, 1)]
    assert [path.name for path in into.iterdir()] == ["renamed"]


@pytest.mark.parametrize("other", ["id", "plan"])
def test_another_suite_in_a_folder_of_the_same_name_is_not_mixed_with_it(
    packed: Path, tmp_path: Path, other: str
) -> None:
    """As it was: its missing runs were filled with those of the archive."""
    here = tmp_path / "into" / STORED.name
    shutil.copytree(STORED, here)
    (here / "001" / "summary.json").unlink()
    plan = json.loads((here / "suite.json").read_text())
    if other == "id":
        plan["run_id"] = "ffffff"
    else:
        plan["plan"][1]["seed"] = 77
    (here / "suite.json").write_text(json.dumps(plan))
    before = _files(tmp_path / "into")
    with pytest.raises(UsageError, match="is another suite than the archive's"):
        archive.bring_in(packed, tmp_path / "into")
    assert _files(tmp_path / "into") == before


def test_folders_of_one_name_do_not_get_into_one_archive(tmp_path: Path) -> None:
    """As it was: one over the other, and the second's runs among the first's."""
    for place in ("a", "b"):
        shutil.copytree(STORED, tmp_path / place / STORED.name)
    asked = ["pack", *(str(tmp_path / place / STORED.name) for place in ("a", "b")), "--to", str(tmp_path / "x.tar.gz")]
    done = CliRunner().invoke(app, asked)
    assert isinstance(done.exception, UsageError) and "have the same name" in str(done.exception)
    assert not (tmp_path / "x.tar.gz").exists()


def test_a_suite_that_is_being_run_is_not_touched(packed: Path, tmp_path: Path) -> None:
    shutil.copytree(STORED, tmp_path / "into" / STORED.name)
    with SuiteFolder(tmp_path / "into" / STORED.name).locked(), pytest.raises(UsageError, match="still being run"):
        archive.bring_in(packed, tmp_path / "into")


def test_something_else_is_no_archive_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(b"not at all")
    with pytest.raises(UsageError, match="is no archive of results"):
        archive.bring_in(tmp_path / "x.tar.gz", tmp_path / "into")


def test_the_commands_pack_and_import_without_logs_where_asked(tmp_path: Path) -> None:
    shutil.copytree(STORED, tmp_path / "runs" / STORED.name)
    (tmp_path / "runs" / STORED.name / "000" / "logs").mkdir(exist_ok=True)
    (tmp_path / "runs" / STORED.name / "000" / "logs" / "rank-0.log").write_text("said")
    asked = ["pack", "--all", "--light", "--in", str(tmp_path / "runs"), "--to", str(tmp_path / "a.tar.gz")]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["import", str(tmp_path / "a.tar.gz"), "--in", str(tmp_path / "back")])
    assert "2 runs" in done.output
    assert not (tmp_path / "back" / STORED.name / "000" / "logs").exists()
