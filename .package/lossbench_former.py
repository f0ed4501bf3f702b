"""The import names of before, `harness` and `workloads`, inside a checkout, for one release: other names for the same
modules, none of which is ever loaded twice."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType

NOW = {"harness": "lossbench", "workloads": "lossbench.workloads"}
MOVED = {
    "workloads.collectives": "lossbench.workloads.allreduce",
    "workloads.data": "lossbench.workloads.training.data",
    "workloads.models": "lossbench.workloads.training.models",
}


def alias(name: str) -> ModuleType:
    """The package that this name stands for now; names below it are found from here on."""
    warnings.warn(f"import {NOW[name]}: the name '{name}' goes with the next release", DeprecationWarning, stacklevel=3)
    if not any(isinstance(one, _Former) for one in sys.meta_path):
        sys.meta_path.insert(0, _Former())
    return importlib.import_module(NOW[name])


def now(name: str) -> str:
    for old, new in (MOVED | NOW).items():
        if name == old or name.startswith(f"{old}."):
            return new + name[len(old) :]
    return ""


class _Former(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if "." not in fullname or not now(fullname):
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(now(spec.name))
        self._own = module.__spec__  # which the import system is about to overwrite
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own
