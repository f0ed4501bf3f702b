"""What ran: commit and uncommitted changes of a folder, the user's own files, the interpreter and its packages."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

from lossbench.processes import inherited, which

HERE = Path(__file__).resolve().parent
DIFF_LIMIT = 1_000_000
MOST_FILES, MOST_BYTES, MOST_ENTRIES = 500, 20_000_000, 20_000  # of a folder without git that are looked at
ASK = (
    "import json, sys\n"
    "from importlib import metadata\n"
    "found = {str(d.metadata['Name']).lower(): d.version for d in metadata.distributions() if d.metadata['Name']}\n"
    "print(json.dumps({'version': sys.version.split()[0], 'packages': found}))"
)


# A folder's own configuration may name programs: none of them runs for us, who may be root. No monitor, no hooks,
# nothing fetched that a partial clone lacks; no locks taken, no questions asked.
QUIET = {"core.fsmonitor": "false", "core.hooksPath": os.devnull, "core.untrackedCache": "false"}
ALONE = {"GIT_OPTIONAL_LOCKS": "0", "GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}
UNFILTERED = {"clean": "", "smudge": "", "process": "", "required": "false"}
PLAIN = ("--no-ext-diff", "--no-textconv", "--submodule=short", "--ignore-submodules=dirty")  # submodules have one too


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says; None: nothing, since there is no checkout here or it can't be asked safely."""
    root = next((one for one in (folder.resolve(), *folder.resolve().parents) if (one / ".git").exists()), None)
    if root is None:
        return None
    # Whatever program a folder names for cleaning its files before they are compared: not that. 1: it names none.
    status, listed = _ask_git(root, ("config", "--null", "--name-only", "--get-regexp", r"^filter\."), QUIET)
    if status not in (0, 1):
        return None
    drivers = {name.rpartition(".")[0] for name in listed.split("\0") if name.count(".") > 1}
    settings = QUIET | {f"{one}.{word}": value for one in drivers for word, value in UNFILTERED.items()}
    status, said = _ask_git(root, ("-C", str(folder.resolve()), *arguments), settings)
    return said.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if status == 0 else None


def _ask_git(root: Path, arguments: Sequence[str], settings: dict[str, str]) -> tuple[int, str]:
    """(status, output). Names may hold any byte, and come back as they are."""
    stated = {"GIT_CONFIG_COUNT": str(len(settings)), "GIT_WORK_TREE": str(root)}  # not another one that it names
    for number, (key, value) in enumerate(settings.items()):
        stated |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    others = {name: value for name, value in inherited().items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "--no-pager", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=10,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**others, **ALONE, **stated},
        )
    except (OSError, subprocess.TimeoutExpired):
        return -1, ""
    return done.returncode, done.stdout


def git_state(folder: Path = HERE) -> dict[str, Any]:
    """Commit and uncommitted changes of the checkout that a folder belongs to; empty if it belongs to none."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return {}
    diff = git_diff(folder)
    digest = hashlib.sha256(diff.encode()).hexdigest()[:16] if diff else None
    return {"commit": commit.strip(), "dirty": bool(diff), "diff_sha256": digest}


def git_diff(folder: Path = HERE) -> str:
    """What differs from the commit; kept beside the results, so that they can be made again."""
    return (_git(folder, "diff", *PLAIN, "HEAD") or "")[:DIFF_LIMIT]


def digest(path: Path) -> str:
    """Of a file's content; what can't be read has none."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError:
        return "unreadable"


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 - pathlib's raises where a whole program is taken for a name


def of_program(command: list[str], folder: Path, *, each: bool = False) -> dict[str, Any]:
    """A user's own program: every file that its command names, the folder it runs in, and who interprets it. `each`:
    and every Python file there by itself, so that runs can be told apart by it (results.programs)."""
    found = which(command[0]) or command[0]
    files = {argument: digest(folder / argument) for argument in command[1:] if _is_file(folder / argument)}
    scripts = [(folder / argument).resolve().parent for argument in files]
    interpreter = interpreter_of(found)
    states = {str(place): folder_state(place) for place in dict.fromkeys((folder.resolve(), *scripts))}
    if each:
        states = {place: {**state, "python_files": _each_python_file(Path(place))} for place, state in states.items()}
    return {
        "command": command,
        "executable": {"path": found, "sha256": digest(Path(os.path.realpath(found)))},
        "files": files,
        "folders": states,
        "python": packages_of(interpreter) if interpreter else {},
    }


def folder_state(folder: Path) -> dict[str, Any]:
    """By git, with what it does not track yet; else by the content of its Python files."""
    state = git_state(folder)
    if state:
        listed = _git(folder, "ls-files", "--others", "--exclude-standard", "-z", "--", ".") or ""
        new = [folder / name for name in listed.split("\0") if name]
        return {"git": state, **({"untracked_sha256": _digest_of(new, folder)} if new else {})}
    return {"python_files_sha256": _digest_of(_python_files(folder), folder)}


def _python_files(folder: Path) -> Iterator[Path]:
    """In a fixed order, never more than are looked at: a home may hold millions."""
    places, entries = [folder], 0
    while places:
        here = places.pop()
        try:
            found = sorted(os.scandir(here), key=lambda one: one.name)
        except OSError:
            continue
        entries += len(found)
        if entries > MOST_ENTRIES:
            return
        yield from (Path(one.path) for one in found if one.name.endswith(".py") and one.is_file(follow_symlinks=False))
        places += [
            Path(one.path)
            for one in reversed(found)
            if one.is_dir(follow_symlinks=False) and not one.name.startswith(".")
        ]


def _each_python_file(folder: Path) -> dict[str, str]:
    size, out = 0, {}
    for path in islice(_python_files(folder), MOST_FILES):
        with suppress(OSError):
            size += path.stat().st_size
            if size > MOST_BYTES:
                break
            out[str(path.relative_to(folder))] = digest(path)
    return out


def _digest_of(paths: Iterable[Path], folder: Path) -> str:
    whole, size = hashlib.sha256(), 0
    for number, path in enumerate(paths):
        try:
            size += path.stat().st_size
        except OSError:
            continue
        if number >= MOST_FILES or size > MOST_BYTES:
            whole.update(b"and more")
            break
        whole.update(f"{path.relative_to(folder)} {digest(path)}\n".encode())
    return whole.hexdigest()[:16]


def interpreter_of(program: str) -> str:
    """The Python that runs it: the program itself, or the one its first line names; empty for what is no Python."""
    if Path(os.path.realpath(program)).name.startswith("python"):
        return program
    try:
        with open(program, "rb") as file:
            first = file.readline(512)
    except OSError:
        return ""
    words = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    found = which(words[0]) if words and "python" in Path(words[0]).name else None
    return found or ""


@lru_cache(maxsize=8)
def packages_of(interpreter: str) -> dict[str, Any]:
    """Version and installed packages of the interpreter that ranks will use."""
    if (
        os.path.realpath(interpreter) == os.path.realpath(sys.executable)
        and Path(interpreter).parent == Path(sys.executable).parent
    ):
        named = [(dist.metadata["Name"], dist.version) for dist in metadata.distributions()]
        packages = {str(name).lower(): version for name, version in named if name}
        return {"path": interpreter, "version": sys.version.split()[0], "packages": dict(sorted(packages.items()))}
    try:
        asked = subprocess.run(
            [interpreter, "-c", ASK], capture_output=True, text=True, timeout=30, check=False, cwd="/", env=inherited()
        )
        found = json.loads(asked.stdout)
        return {"path": interpreter, "version": found["version"], "packages": dict(sorted(found["packages"].items()))}
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError):
        return {"path": interpreter, "version": "unknown", "packages": {}}
