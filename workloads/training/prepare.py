"""Before anything is built, outside all namespaces: are the options right, is the data here? Downloads what is missing.

echo '[{"data": "cifar10"}]' | python -m workloads.training.prepare        (lossbench run does this by itself)
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from workloads import sync
from workloads.data.fetch import DataError
from workloads.data.sets import load
from workloads.models import ModelError, build
from workloads.training.settings import read


def check(every: list[dict[str, Any]]) -> None:
    loaded = {}
    for options in every:
        settings = read(options)
        if settings.strategy not in sync.STRATEGIES:
            known = ", ".join(sync.STRATEGIES)
            raise SystemExit(f"workload.options.strategy: no strategy '{settings.strategy}'; known are {known}")
        if settings.data == "random_walk":
            continue
        key = (settings.data, settings.data_dir)
        if key not in loaded:
            loaded[key] = load(*key)
        with torch.device("meta"):  # shapes only
            build(settings.model, kind=loaded[key].kind, about=loaded[key].about)


def main() -> None:
    """The reason goes to standard output; a download's progress bar has the other one."""
    try:
        check(json.load(sys.stdin))
    except (DataError, ModelError, SystemExit) as error:
        print(error)
        sys.exit(2)


if __name__ == "__main__":
    main()
