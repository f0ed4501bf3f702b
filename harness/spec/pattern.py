"""Which packets a seeded rule must lose: asked by the proof before a run and by the judge after it. Pure."""

from __future__ import annotations

import numpy as np

from lossbench.spec import lossmodel
from lossbench.spec.losses import BlockLoss, TraceLoss
from lossbench.spec.lossmodel import Bits
from lossbench.spec.placement import Rule


def predicted(
    rule: Rule, count: int, *, first: int = 0, seed: int | None = None, state: int | None = None
) -> Bits | None:
    """Of the `count` packets that match next; None if that can't be said (whole blocks: `blocks_predicted`). `first`:
    so many have matched before; `seed`, `state`: where its generator stands, by default at the beginning."""
    loss = rule.profile.loss
    if isinstance(loss, TraceLoss):
        pattern = loss.pattern()
        index = np.arange(first, first + count)
        return pattern[index % len(pattern)] & ((index < len(pattern)) | loss.loop)
    chain = rule.profile.chain()
    if chain is None or isinstance(loss, BlockLoss):
        return None
    return lossmodel.predict(chain, seed=rule.seed if seed is None else seed, count=count, state=state)


def lost_by_trace(loss: TraceLoss, count: int) -> int:
    """Of the first packets, however many: whole rounds and a rest."""
    pattern = loss.pattern()
    rounds, rest = divmod(count, len(pattern)) if loss.loop else (0, count)
    return rounds * int(pattern.sum()) + int(pattern[:rest].sum())


def blocks_predicted(rule: Rule, blocks: tuple[int, ...], header: dict[str, int]) -> Bits | None:
    """Of packets of these blocks; None if the rule is not about blocks."""
    loss = rule.profile.loss
    if not isinstance(loss, BlockLoss):
        return None
    share = loss.percent / 100
    return np.array([lossmodel.block_lost(seed=rule.block_seed, block=b, loss=share, **header) for b in blocks])
