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

__version__ = "0.1.0"

_OFFERED = {
    "Door": "lossbench.contract:Door",
    "sync": "lossbench.workloads.sync",
    **dict.fromkeys(("run", "load", "compare", "doctor", "schema"), "lossbench.api"),
}
__all__ = ["Door", "__version__", "compare", "doctor", "load", "run", "schema", "sync"]  # noqa: F822 - by __getattr__


def __getattr__(name: str) -> Any:
    if name not in _OFFERED:
        raise AttributeError(f"module 'lossbench' has no attribute '{name}'")
    module, _, attribute = _OFFERED[name].partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute or name) if attribute or module == "lossbench.api" else found


if __name__ != "lossbench":  # the folder's own name, in a checkout: what it was called before
    from lossbench_former import alias

    sys.modules[__name__] = alias(__name__)
