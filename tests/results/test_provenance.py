"""What is asked of git, and that a folder's own configuration has nothing to say in it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lossbench.results import programs, provenance

NAMED = {  # where a configuration may name a program that git would start
    "fsmonitor": "[core]\nfsmonitor = {evil}\n",
    "hooks": "[core]\nhooksPath = {hooks}\n",
    "external diff": "[diff]\nexternal = {evil}\n",
    "diff driver": '[diff "mine"]\ncommand = {evil}\n',
    "textconv": '[diff "mine"]\ntextconv = {evil}\n',
    "clean filter": '[filter "mine"]\nclean = {evil}\nrequired = true\n',
    "filter with a dot and a sign": '[filter "mi.n=e"]\nclean = {evil}\n',
    "process filter": '[filter "mine"]\nprocess = {evil}\n',
    "pager": "[core]\npager = {evil}\n[pager]\ndiff = {evil}\n",
}


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=x", "-c", "user.email=x@y"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


def changed(folder: Path) -> Path:
    """A checkout with a file that differs from its commit."""
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "a.py").write_text("x = 1\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    (folder / "a.py").write_text("x = 2\n")
    return folder


def armed(folder: Path, text: str) -> Path:
    """Names a program everywhere; returns the file that it would make."""
    trap = folder.parent / "ran"
    evil = folder.parent / "evil.sh"
    hooks = folder.parent / "hooks"
    hooks.mkdir(exist_ok=True)
    for path in (evil, hooks / "post-index-change", hooks / "fsmonitor-watchman"):
        path.write_text(f"#!/bin/sh\ntouch {trap}\ncat\n")
        path.chmod(0o755)
    with open(folder / ".git" / "config", "a", encoding="utf-8") as file:
        file.write(text.format(evil=evil, hooks=hooks))
    named = "mi.n=e" if "mi.n" in text else "mine"
    (folder / ".git" / "info" / "attributes").write_text(f"*.py filter={named} diff=mine\n")
    return trap


@pytest.mark.parametrize("where", NAMED)
def test_no_program_that_a_folder_names_is_run(tmp_path: Path, where: str) -> None:
    """As it was: `core.fsmonitor=./evil.sh` in the current folder ran as root."""
    folder = changed(tmp_path / "checkout")
    trap = armed(folder, NAMED[where])
    assert provenance.git_state(folder)["dirty"]
    assert "+x = 2" in provenance.git_diff(folder)
    provenance.folder_state(folder)
    assert not trap.exists()


def test_no_program_that_a_submodule_names_is_run(tmp_path: Path) -> None:
    inner, outer = changed(tmp_path / "inner"), changed(tmp_path / "outer")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "sub")
    git(outer, "commit", "-qam", "with it")
    (outer / "sub" / "a.py").write_text("x = 3\n")
    evil = tmp_path / "evil.sh"
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    evil.chmod(0o755)
    git(outer / "sub", "config", "core.fsmonitor", str(evil))
    (tmp_path / "ran").unlink(missing_ok=True)
    provenance.folder_state(outer)
    assert not (tmp_path / "ran").exists()


def test_a_filter_whose_name_is_no_text_is_not_run_either(tmp_path: Path) -> None:
    """As it was: the name was read with a replacement character, and another filter was switched off."""
    folder = changed(tmp_path / "checkout")
    trap = armed(folder, "")
    with open(folder / ".git" / "config", "ab") as file:
        file.write(b'[filter "m\xff"]\nclean = ' + str(tmp_path / "evil.sh").encode() + b"\n")
    (folder / ".git" / "info" / "attributes").write_bytes(b"*.py filter=m\xff\n")
    assert "+x = 2" in provenance.git_diff(folder)
    assert not trap.exists()


def test_no_program_that_a_submodule_at_another_commit_names_is_run(tmp_path: Path) -> None:
    """As it was: `diff.submodule = diff` made git start another one there, which knew nothing of what we forbid."""
    inner, outer = changed(tmp_path / "inner"), changed(tmp_path / "outer")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "sub")
    git(outer, "commit", "-qam", "with it")
    git(outer / "sub", "commit", "-q", "--allow-empty", "-m", "later")
    (outer / "sub" / "a.py").write_text("x = 5\n")
    git(outer / "sub", "commit", "-qam", "later still")
    armed(outer, "[diff]\nsubmodule = diff\n")
    git(outer / "sub", "config", "diff.external", str(tmp_path / "evil.sh"))
    assert provenance.git_state(outer)["dirty"], "another commit of it is a change"
    assert not (tmp_path / "ran").exists()


def test_another_work_tree_that_a_folder_names_is_not_read(tmp_path: Path) -> None:
    """As it was: files of any folder that share a name with one of the checkout's came into the results."""
    folder, secret = changed(tmp_path / "checkout"), tmp_path / "secret"
    secret.mkdir()
    (secret / "a.py").write_text("password = 1\n")
    git(folder, "config", "core.worktree", str(secret))
    found = provenance.git_diff(folder)
    assert "password" not in found and "+x = 2" in found


def test_a_partial_clone_fetches_nothing(tmp_path: Path) -> None:
    """What it lacks it would fetch from an address in its configuration, which may be a program."""
    whole = changed(tmp_path / "whole")
    git(whole, "config", "uploadpack.allowFilter", "true")
    part = tmp_path / "part"
    git(tmp_path, "clone", "-q", "--no-checkout", "--filter=blob:none", f"file://{whole}", str(part))
    git(part, "config", "remote.origin.url", f"ext::sh -c touch% {tmp_path / 'ran'}")
    git(part, "config", "protocol.ext.allow", "always")
    (part / "a.py").write_text("x = 3\n")
    provenance.git_state(part)
    assert not (tmp_path / "ran").exists()


def test_variables_of_an_outer_git_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook that starts a run has them set, for another folder."""
    mine, other = changed(tmp_path / "mine"), changed(tmp_path / "other")
    git(other, "commit", "-qam", "second")
    before = provenance.git_state(mine)["commit"]
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert provenance.git_state(mine)["commit"] == before


def made_by(cwd: str, **files: str) -> dict[str, str]:
    """What a manifest would say of `python train.py`, whose files have such digests."""
    named = {name: found for name, found in files.items() if name == "train.py"}
    folders = {cwd: {"python_files": files}, f"{cwd}/src": {"git": {}, "python_files": {"model.py": "m"}}}
    python = {"path": "/usr/bin/python", "sha256": "p"}
    one = {"command": ["python", "train.py"], "executable": python, "files": named, "folders": folders}
    return programs.digests([one])


def test_a_program_is_told_from_its_earlier_editions_by_what_both_have() -> None:
    first = made_by("/a", **{"train.py": "1"})
    assert first == {"train.py": "1", "src/model.py": "m", "the interpreter or program 'python'": "p"}
    moved = made_by("/b", **{"train.py": "1", "out.py": "x"})  # which wrote a file, elsewhere
    edited = made_by("/a", **{"train.py": "2", "out.py": "y"})
    assert programs.editions([first, moved, edited, {}, first, edited]) == ([0, 0, 1, 0, 0, 1], ["train.py", "out.py"])
    assert programs.left_out([0, 0, 1, 0]) == {2} and programs.left_out([0, 1]) == {0} and not programs.left_out([])
    for odd in (None, [None], [{"folders": []}], [{"folders": {"/a": None}, "files": {}, "command": []}]):
        assert programs.digests(odd) == {}


def test_what_a_command_writes_and_what_lies_beside_it_makes_no_other_program_of_it() -> None:
    """`train.py --log loss.csv`: the second run found what the first one had written there."""
    python = {"path": "/usr/bin/python", "sha256": "p"}

    def one(log: str, plot: str) -> list[dict[str, object]]:
        files = {"train.py": "1", "loss.csv": log}
        return [
            {
                "command": ["python", "train.py", "--log", "loss.csv"],
                "executable": python,
                "files": files,
                "folders": {"/a": {"python_files": {"train.py": "1", "plot.py": plot}}},
            }
        ]

    runs = [one("a", "x"), one("b", "x"), one("c", "y")]
    assert programs.editions([programs.named(run) for run in runs]) == ([0, 0, 0], [])
    assert "plot.py" in programs.editions([programs.digests(run) for run in runs])[1], "said, and no more than that"
    assert programs.named([{"files": None}]) == programs.named(None) == {}


def test_of_a_program_each_file_stands_in_the_manifest_by_itself(tmp_path: Path) -> None:
    """Also in a checkout, whose state changes with whatever is written there."""
    folder = changed(tmp_path / "checkout")
    found = provenance.of_program(["python", "a.py"], folder, each=True)
    before = programs.digests([found])
    (folder / "results").mkdir()
    (folder / "results" / "log.txt").write_text("x")
    same = programs.digests([provenance.of_program(["python", "a.py"], folder, each=True)])
    assert same == before and "a.py" in same
    (folder / "b.py").write_text("y = 1\n")
    assert programs.editions(
        [before, programs.digests([provenance.of_program(["python", "a.py"], folder, each=True)])]
    ) == ([0, 0], [])
    (folder / "a.py").write_text("x = 3\n")
    after = programs.digests([provenance.of_program(["python", "a.py"], folder, each=True)])
    assert programs.editions([before, after]) == ([0, 1], ["a.py"])
