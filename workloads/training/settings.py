"""Everything a training run may be told ([workload.options] of an experiment), checked before anything is built."""

from __future__ import annotations

import difflib
from dataclasses import fields
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lossbench.workloads import sync
from lossbench.workloads.errors import OptionError
from lossbench.workloads.transport.policy import Policy

OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "adafactor": torch.optim.Adafactor,
}

LOOKS = 20


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    strategy: str = "bounded_drift"
    """By name, or one of your own: my_module:Mine."""
    strategy_options: dict[str, Any] = {}
    """Of a strategy's own, by the names of its Options."""
    coding: tuple[str, ...] = ()
    """Channels around the channel, the first outermost: my_module:Mine."""
    rule: Literal["own", "zero"] = "own"
    """Gradient_averaging: a lost mean."""
    normaliser: Literal["count", "world", "expected"] | None = None
    """Of gradients that arrived; None: the strategy's own (bounded_drift: expected, which is unbiased; else count)."""
    data: str = "digits"
    """Or "random_walk": no data, gradients are noise."""
    data_dir: str = ""
    vocabulary: int = Field(0, ge=0)
    """Text: so many tokens of a byte-pair vocabulary, trained on the training text (needs tokenizers); 0: bytes."""
    model: str = "mlp"
    walk_size: int = Field(40_000, ge=1)
    skew: float = Field(0.0, ge=0)
    """Images: each worker has other labels more often, by a Dirichlet of this concentration (.1: a few labels each); 0:
    all alike."""

    steps: int = Field(300, ge=1)
    epochs: float | None = Field(None, gt=0)
    """Instead of steps."""
    batch: int = Field(32, ge=1)
    """Of every worker."""
    window: int = Field(64, ge=1)
    """Bytes (or tokens) of text per item."""
    optimizer: Literal["sgd", "adam", "adamw", "rmsprop", "adagrad", "adafactor"] = "adamw"
    lr: float = Field(2e-3, gt=0)
    optimizer_options: dict[str, Any] = {}
    schedule: Literal["constant", "cosine", "steps"] = "constant"
    warm_up: float = Field(0.0, ge=0, lt=1)
    """Share of all steps in which the rate rises."""
    drop_at: tuple[float, ...] = (0.5, 0.75)
    """Schedule steps: x 0.1 at these shares of all steps."""
    clip_norm: float | None = Field(None, gt=0)

    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    engine: Literal["auto", "loop", "vmap", "graph"] = "auto"
    trusted: Literal["gloo", "nccl", "lossy"] = "gloo"
    """Carries what `reliable` exchanges."""
    rto_min_ms: float = Field(0.0, ge=0)
    """Of its TCP; 0 leaves the kernel's 200 ms."""
    rto_max_ms: float = Field(0.0, ge=0)
    """How far its TCP backs off while nothing comes through, from 1000 on; 0 leaves the kernel's 120 s."""
    tcp: str = ""
    """The congestion control of its TCP (bbr, cubic, reno); "": the machine's own. The row's note says which it was."""
    policy: str = ""
    """Of the lossy transport, as in LOSSBENCH_POLICY: pace=20,timeout_s=60."""

    evaluate_every: int = Field(0, ge=0)
    """0: at the end only."""
    evaluate_items: int = Field(2000, ge=1)
    target: float | None = None
    """Of the task's measure (accuracy, perplexity, slot_f1), as workers' own models have it on average: how long did it
    take? Looked for at every evaluation; without evaluate_every twenty times."""
    gradient_square: bool = False
    """At the start and at every evaluation (twenty without evaluate_every): the squared gradient of the training loss
    at the mean model, for its mean over the run's steps."""
    drift_every: int = Field(25, ge=0)
    """Evaluations and drift of workers that meet every few steps wait for their next exchange."""
    bias_every: int = Field(0, ge=0)
    """Costs a reliable exchange of all gradients."""
    checkpoint_every: int = Field(0, ge=0)
    checkpoint_dir: str = ""
    resume: bool = False
    simulated: list[list[dict[str, Any]]] | None = None
    """Rules, from the harness: backend = "simulated"."""

    def looks_every(self, steps: int) -> int:
        """Steps between two evaluations; 0: at the end only."""
        return self.evaluate_every or (max(1, steps // LOOKS) if self.target is not None or self.gradient_square else 0)

    def of_strategy(self) -> dict[str, Any]:
        """Those of these settings that the strategy takes, and what is its own."""
        names = [one.name for one in fields(sync.find(self.strategy).Options) if one.name in type(self).model_fields]
        told = {name: getattr(self, name) for name in names}
        return {name: value for name, value in told.items() if value is not None} | self.strategy_options

    def coded(self, channel: sync.Channel, seed: int) -> sync.Channel:
        for path in reversed(self.coding):
            channel = sync.coding(path)(channel)
            channel.seed = seed
        return channel

    def learning_rate(self, step: int, steps: int) -> float:
        """A warm-up, then as the schedule says."""
        risen = min(1.0, (step + 1) / (self.warm_up * steps)) if self.warm_up else 1.0
        done = step / steps
        if self.schedule == "cosine":
            risen *= float(0.55 + 0.45 * torch.cos(torch.tensor(done * torch.pi)))
        if self.schedule == "steps":
            risen *= 0.1 ** sum(done >= share for share in self.drop_at)
        return self.lr * risen

    def make_optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return OPTIMIZERS[self.optimizer](parameters, lr=self.lr, **self.optimizer_options)


def read(options: Any) -> Settings:
    """One line that names the option and what it may be."""
    try:
        settings = Settings.model_validate(dict(options))
        try:
            sync.find(settings.strategy).told(settings.of_strategy())
            sync.check_codings((*sync.find(settings.strategy).brings, *settings.coding))
            if settings.coding and not sync.find(settings.strategy).coded:
                raise ValueError(f"{settings.strategy} has no halves that a coding could change")
            if "error_feedback" in settings.coding and not sync.find(settings.strategy).differences:
                raise ValueError(f"{settings.strategy} sends models: what was lost of one is worth nothing later")
        except ValueError as error:
            raise OptionError(f"workload.options.strategy: {error}") from None
        if settings.resume and not settings.checkpoint_dir:
            raise OptionError("workload.options.resume: give checkpoint_dir, the folder to resume from")
        return settings
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] != "extra_forbidden":
            raise OptionError(f"workload.options.{where}: {first['msg']}") from None
        near = difflib.get_close_matches(where, Settings.model_fields, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        known = f"{guess}known are {', '.join(Settings.model_fields)}"
        raise OptionError(f"workload.options.{where}: no such option; {known}") from None


def policy_here(settings: str = "") -> Policy:
    """The transport's, from the environment and these settings. All ranks are judged together, so none may be
    missing."""
    policy = Policy.from_environment().with_settings(settings)
    if policy.absent == "continue":
        raise OptionError("LOSSBENCH_POLICY absent=continue is for loops of your own: this workload measures all ranks")
    return policy
