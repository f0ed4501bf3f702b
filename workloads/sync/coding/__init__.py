"""What happens to numbers on their way: a coding is a Channel around a Channel, so that any strategy can use it.

hadamard (losses spread over all numbers of a piece), bfloat16 and int8 (fewer bytes), fec (parity), error_feedback
(what was lost joins the next step), important (which parts are repaired first); a user's own is named by its import
path: workload.options.coding = ["hadamard", "my_module:Mine"]. The first is the outermost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from lossbench.contract import by_path
from lossbench.workloads.sync.coding.bits import Bfloat16, Int8
from lossbench.workloads.sync.coding.fec import Fec
from lossbench.workloads.sync.coding.feedback import ErrorFeedback
from lossbench.workloads.sync.coding.hadamard import Hadamard
from lossbench.workloads.sync.coding.important import Important
from lossbench.workloads.sync.coding.packed import Packed

CODINGS: dict[str, Any] = {
    "hadamard": Hadamard,
    "bfloat16": Bfloat16,
    "int8": Int8,
    "fec": Fec,
    "error_feedback": ErrorFeedback,
    "important": Important,
}


def coding(name: str) -> Any:
    """What makes a channel of one. ValueError says what is wrong."""
    if ":" in name:
        return by_path(name)
    found = re.fullmatch(r"(\w+)(?:\((\d+(?:, *\d+)*)\))?", name)
    if found is None or found[1] not in CODINGS:
        raise ValueError(f"no coding '{name}'; known are {', '.join(CODINGS)}; or module:Class of your own")
    made, given = CODINGS[found[1]], found[2]
    if given is None:
        return made
    if made is not Fec:
        raise ValueError(f"coding '{name}': {found[1]} takes no numbers")
    k, m = Fec.told([int(word) for word in given.split(",")])
    return partial(Fec, k=k, m=m)


def check(names: Sequence[str]) -> None:
    """Whether these go together, the first outermost. ValueError says what is wrong."""
    if double := [name for n, name in enumerate(names) if name in names[:n]]:
        raise ValueError(f"coding '{double[0]}' is there already")
    kinds = [getattr(coding(name), "func", coding(name)) for name in names]
    for name, kind in list(zip(names, kinds, strict=True))[:-1]:
        if isinstance(kind, type) and issubclass(kind, Packed):
            raise ValueError(f"coding '{name}' makes the packets: it must stand last, and alone of its kind")
    if any(outer is Bfloat16 and Hadamard in kinds[n:] for n, outer in enumerate(kinds)):
        raise ValueError("bfloat16 around hadamard can't tell what is missing: name hadamard first")
    if ErrorFeedback in kinds and Hadamard in kinds:
        raise ValueError(
            "error_feedback keeps what was lost, and hadamard turns it otherwise at every step: choose one"
        )
