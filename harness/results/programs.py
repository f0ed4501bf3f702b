"""Do the runs of a suite come of one program? A user's own may be edited while a sweep goes on, or before it is
resumed. Every run's manifest says what its programs were."""

from __future__ import annotations

import os.path
from collections import Counter
from collections.abc import Sequence
from typing import Any

UNREADABLE = "unreadable"
RUNS_IT = "the interpreter or program "
FILES_SHOWN = 4
CODE = (".py", ".pyz", ".sh", ".so")


def named(programs: Any) -> dict[str, str]:
    """What the commands themselves name as code, and who runs it: that is the program, whatever else lies beside it.
    Other files that they name may be what they write."""
    own = {os.path.normpath(name) for one in _each(programs) for name in _codes(one)}
    return {name: found for name, found in digests(programs).items() if name in own or name.startswith(RUNS_IT)}


def _each(programs: Any) -> list[dict[str, Any]]:
    return [one for one in programs if isinstance(one, dict)] if isinstance(programs, list) else []


def _codes(program: dict[str, Any]) -> list[str]:
    files = program.get("files")
    return [name for name in files if str(name).endswith(CODE)] if isinstance(files, dict) else []


def digests(programs: Any) -> dict[str, str]:
    """By file, from the folder that they ran in: as the manifest has it, which may be of before, or damaged. Of files
    that are no code only those are in it that a command names."""
    out: dict[str, Any] = {}
    for one in programs if isinstance(programs, list) else []:
        try:
            folders = one["folders"]
            here = next(iter(folders), "")
            out |= {os.path.normpath(name): found for name, found in one["files"].items()}
            out[f"{RUNS_IT}'{one['command'][0]}'"] = one["executable"]["sha256"]
            for folder, state in folders.items():
                inside = os.path.relpath(folder, here) if here else folder
                known = state.get("python_files", {})
                out |= {os.path.normpath(os.path.join(inside, name)): found for name, found in known.items()}  # noqa: PTH118
        except (TypeError, KeyError, IndexError, AttributeError, ValueError):
            continue
    return {name: found for name, found in out.items() if isinstance(found, str) and found != UNREADABLE}


def editions(runs: Sequence[dict[str, str]]) -> tuple[list[int], list[str]]:
    """(which edition of the programs each run is of, the files that differ). Files that only one of two runs knows tell
    nothing: a program may write some."""
    known: list[dict[str, str]] = []
    numbers: list[int] = []
    changed: dict[str, None] = {}
    for run in runs:
        differ = [[name for name, found in run.items() if before.get(name, found) != found] for before in known]
        number = differ.index([]) if [] in differ else len(known)
        if number == len(known):
            known.append({})
            changed |= dict.fromkeys(name for one in differ for name in one)
        known[number] |= run
        numbers.append(number)
    return numbers, list(changed)


def left_out(numbers: Sequence[int]) -> set[int]:
    """Places of the runs that are not of the edition which most are of; of equally many the later one."""
    if not numbers:
        return set()
    count = Counter(numbers)
    kept = max(count, key=lambda one: (count[one], one))
    return {place for place, one in enumerate(numbers) if one != kept}


def in_words(others: str, changed: Sequence[str], beside: Sequence[str]) -> list[str]:
    """`others`: runs that are left out; what changed of the program itself, and of the code that lies beside it."""
    out = []
    if others:
        out.append(
            f"{_some(changed)} changed between its runs: those of another program than most ({others}) are neither "
            "averaged nor compared with them. Run it again."
        )
    if beside:
        text = "changed between its runs: if that is a part of its program, they are runs of two programs"
        out.append(f"{_some(beside)} {text}")
    return out


def _some(files: Sequence[str]) -> str:
    return ", ".join(files[:FILES_SHOWN]) + (" and more" if files[FILES_SHOWN:] else "")
