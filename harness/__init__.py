"""Genuine packet loss for distributed training: builds lossy networks, proves the loss, runs training in them.

    import lossbench
    result = lossbench.run("quickstart", settings=["topology.hosts=8"])      # what `lossbench run` does, as a value
    from lossbench import Door, sync                                          # in a workload of your own
    import lossbench.torch                                                    # registers the backend "lossy"

Nothing is loaded before it is asked for."""

from __future__ import annotations

import importlib
import sys
from typing import Any

__version__ = "0.3.0"

_OFFERED = {
    "Door": "lossbench.contract:Door",
    "Network": "lossbench.runs.inside:Network",
    "sync": "lossbench.workloads.sync",
    **dict.fromkeys(("record", "summary"), "lossbench.workloads.say"),
    **dict.fromkeys(("run", "load", "compare", "doctor", "schema"), "lossbench.api"),
}
__all__ = [  # noqa: F822 - by __getattr__
    "Door",
    "Network",
    "__version__",
    "compare",
    "doctor",
    "load",
    "record",
    "run",
    "schema",
    "summary",
    "sync",
]


def __getattr__(name: str) -> Any:
    if name not in _OFFERED:
        raise AttributeError(f"module 'lossbench' has no attribute '{name}'")
    module, _, attribute = _OFFERED[name].partition(":")
    found = importlib.import_module(module)
    return found if module.endswith(f".{name}") else getattr(found, attribute or name)


if __name__ != "lossbench":  # the folder's own name, in a checkout: what it was called before
    from lossbench_former import alias

    sys.modules[__name__] = alias(__name__)
