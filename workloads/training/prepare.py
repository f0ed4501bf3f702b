"""Before anything is built, outside all namespaces: are the options right, is the data here? Downloads what is missing.

echo '[{"data": "cifar10"}]' | python -m lossbench.workloads.training.prepare        (lossbench run does this by itself)
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from lossbench.workloads.errors import OptionError, WorkloadError
from lossbench.workloads.training.build import loaded
from lossbench.workloads.training.data.sets import DataSet
from lossbench.workloads.training.models import build
from lossbench.workloads.training.settings import Settings, policy_here, read
from lossbench.workloads.transport import tuning


def check(every: list[dict[str, Any]]) -> None:
    known: dict[tuple[str, str, int], DataSet] = {}
    for options in every:
        settings = read(options)
        policy_here(settings.policy)
        check_alone(settings)
        if settings.data == "random_walk":
            continue
        key = (settings.data, settings.data_dir, settings.vocabulary)
        if key not in known:
            known[key] = loaded(settings)
        with torch.device("meta"):  # shapes only
            model = build(settings.model, kind=known[key].kind, about=known[key].about)
        context = getattr(getattr(model, "shape", None), "context", settings.window)
        if settings.window > context:
            raise OptionError(f"workload.options.window: {settings.model} looks back {context} at most")


def check_alone(settings: Settings) -> None:
    """What can be said without any data."""
    if settings.trusted == "nccl" and not torch.cuda.is_available():
        raise OptionError("workload.options.trusted: nccl needs a GPU; say gloo")
    try:
        if settings.tcp:
            tuning.check(settings.tcp)
    except tuning.NotHereError as error:
        raise OptionError(f"workload.options.tcp: {error}") from None
    try:
        settings.make_optimizer([torch.nn.Parameter(torch.empty(2, 2, device="meta"))])
    except (TypeError, ValueError) as error:
        raise OptionError(f"workload.options.optimizer_options: {error}") from None


def main() -> None:
    """The reason goes to standard output; a download's progress bar has the other one."""
    try:
        check(json.load(sys.stdin))
    except WorkloadError as error:
        print(error)
        sys.exit(2)


if __name__ == "__main__":
    main()
