"""Which network is meant by a name, and for which kind of data it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from lossbench.workloads.errors import ModelError
from lossbench.workloads.training.models.llama import SHAPES, Llama
from lossbench.workloads.training.models.resnet import ResNet
from lossbench.workloads.training.models.small import Linear, Mlp, Walk
from lossbench.workloads.training.models.tagger import Tagger


def _mlp(about: Mapping[str, Any]) -> nn.Module:
    return Mlp(inputs=about["channels"] * about["side"] ** 2, classes=about["classes"])


def _linear(about: Mapping[str, Any]) -> nn.Module:
    return Linear(inputs=about["channels"] * about["side"] ** 2, classes=about["classes"])


def _resnet(depth: int, about: Mapping[str, Any]) -> nn.Module:
    return ResNet(depth=depth, channels=about["channels"], classes=about["classes"])


def _tagger(sizes: Mapping[str, int], about: Mapping[str, Any]) -> nn.Module:
    known = {"vocabulary": about["vocabulary"], "slots": len(about["slots"]), "intents": about["intents"]}
    return Tagger(**{**known, **sizes})


def _llama(name: str, about: Mapping[str, Any]) -> nn.Module:
    shape = SHAPES[name]
    words = int(about.get("vocabulary", 0))
    return Llama(shape if words <= shape.vocabulary else replace(shape, vocabulary=words))


MODELS: dict[str, tuple[str, Callable[[Mapping[str, Any]], nn.Module]]] = {
    "mlp": ("images", _mlp),
    "linear": ("images", _linear),
    "resnet20": ("images", partial(_resnet, 20)),
    "resnet110": ("images", partial(_resnet, 110)),
    "resnet8": ("images", partial(_resnet, 8)),
    "tagger": ("utterances", partial(_tagger, {})),
    "tagger_slots": ("utterances", partial(_tagger, {"intents": 0})),  # as the RPS paper has it
    "tagger_small": ("utterances", partial(_tagger, {"embedding": 32, "hidden": 48})),
    **{name: ("text", partial(_llama, name)) for name in SHAPES},
    "walk": ("noise", lambda about: Walk(**about)),
}


def build(name: str, *, kind: str, about: Mapping[str, Any]) -> nn.Module:
    if name not in MODELS:
        raise ModelError(f"no model '{name}': known are {', '.join(MODELS)}")
    wanted, make = MODELS[name]
    if wanted != kind:
        fitting = ", ".join(n for n, (k, _) in MODELS.items() if k == kind)
        raise ModelError(f"model '{name}' is for {wanted}, this data is {kind}: {fitting}")
    return make(about)
