"""Networks by name; `build(name, data.about)` makes one for a data set."""

from lossbench.workloads.errors import ModelError
from lossbench.workloads.training.models.registry import MODELS, build

__all__ = ["MODELS", "ModelError", "build"]
