"""What people write on a result afterwards: tags and a note, in a file of their own beside what was measured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from lossbench.errors import UsageError
from lossbench.files import as_json, disk_errors, write_durably
from lossbench.results import models
from lossbench.results.models import Stored

FILE = "notes.json"
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+-]{0,39}")


class Notes(Stored):
    """notes.json of a suite."""

    tags: list[str] = []
    """Short words to find it by."""
    note: str = ""
    """In words."""


def read(folder: Path) -> Notes:
    """Empty where there is none; a damaged one is no reason to lose sight of results."""
    path = folder / FILE
    if not path.exists():
        return Notes()
    try:
        return models.read(path, Notes)
    except UsageError:
        return Notes()


def check(words: Sequence[str]) -> None:
    for word in words:
        if not _TAG.fullmatch(word):
            raise UsageError(f"'{word[:40]}' is no tag", next_step="letters, digits and ._:/+-, at most 40, no spaces")


def change(folder: Path, *, add: Sequence[str] = (), remove: Sequence[str] = (), note: str | None = None) -> Notes:
    check([*add, *remove])
    old = read(folder)
    tags = [word for word in dict.fromkeys([*old.tags, *add]) if word not in remove]
    new = Notes(tags=tags, note=old.note if note is None else note)
    with disk_errors(folder):
        write_durably(folder / FILE, as_json(new.model_dump(), indent=1) + "\n")
    return new
