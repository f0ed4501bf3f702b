"""What is learned: the loss of a batch, and how a trained model is judged, for each kind of data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from lossbench.workloads.training.data.batches import Batch
from lossbench.workloads.training.data.sets import IGNORED


@dataclass(frozen=True, kw_only=True)
class Task:
    """`loss(call, batch)`; `judge(model, batches)` -> numbers; `measure`: the number that a table shows, and its
    better side."""

    loss: Callable[[Any, Batch], torch.Tensor]
    judge: Callable[[torch.nn.Module, Any], dict[str, float]]
    measure: str
    higher_is_better: bool = True
    counts: str = "samples"  # what its speed is told in


def image_loss(call: Any, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(call(batch[0]).float(), batch[1])


def judge_images(model: torch.nn.Module, batches: Any) -> dict[str, float]:
    right = wrong = 0
    loss = 0.0
    for pixels, labels in batches:
        scores = model(pixels).float()
        loss += float(F.cross_entropy(scores, labels, reduction="sum"))
        hits = int((scores.argmax(1) == labels).sum())
        right, wrong = right + hits, wrong + len(labels) - hits
    return {"loss": loss / (right + wrong), "accuracy": right / (right + wrong)}


def text_loss(call: Any, batch: Batch) -> torch.Tensor:
    scores = call(batch[0][..., :-1]).float()
    return F.cross_entropy(scores.flatten(0, 1), batch[0][..., 1:].reshape(-1))


def judge_text(token_bytes: torch.Tensor | None, model: torch.nn.Module, batches: Any) -> dict[str, float]:
    """`token_bytes`: how many bytes each token stands for; none: tokens are bytes. Bits are by the bytes of this very
    text, as other text has longer words."""
    total, count, size = 0.0, 0, 0
    for (tokens,) in batches:
        foretold = tokens[..., 1:]
        total += float(text_loss(model, (tokens,))) * foretold.numel()
        count += foretold.numel()
        size += foretold.numel() if token_bytes is None else int(token_bytes.to(tokens.device)[foretold].sum())
    mean = total / count
    bits = total / math.log(2) / size
    return {"loss": mean, "perplexity": math.exp(min(mean, 700.0)), "bits_per_byte": bits}


def utterance_loss(call: Any, batch: Batch) -> torch.Tensor:
    """Of slots, and of the intent where the model names it."""
    slots, intents = call(batch[0])
    loss = F.cross_entropy(slots.float().flatten(0, 1), batch[1].reshape(-1), ignore_index=IGNORED)
    return loss if intents is None else loss + F.cross_entropy(intents.float(), batch[2])


def judge_utterances(names: list[str], model: torch.nn.Module, batches: Any) -> dict[str, float]:
    total, count, right = 0.0, 0, 0
    found = asked = hits = 0
    intent_scores: Any = None
    for words, slots, intents in batches:
        slot_scores, intent_scores = model(words)
        total += float(utterance_loss(lambda _, s=slot_scores, i=intent_scores: (s, i), (words, slots, intents))) * len(
            words
        )
        count += len(words)
        right += 0 if intent_scores is None else int((intent_scores.argmax(1) == intents).sum())
        for guess, truth in zip(slot_scores.argmax(2).tolist(), slots.tolist(), strict=True):
            length = sum(tag != IGNORED for tag in truth)
            a = spans([names[tag] for tag in guess[:length]])
            b = spans([names[tag] for tag in truth[:length]])
            found, asked, hits = found + len(a), asked + len(b), hits + len(a & b)
    f1 = 2 * hits / (found + asked) if found + asked else 1.0
    intent = {} if intent_scores is None else {"intent_accuracy": right / count}
    return {"loss": total / count, **intent, "slot_f1": f1}


def spans(tags: list[str]) -> set[tuple[int, int, str]]:
    """(start, end, kind) of every slot, as conlleval counts them: an I- that continues nothing begins a new one."""
    out, start, kind = set(), 0, ""
    for number, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        if kind and (prefix != "I" or name != kind):
            out.add((start, number, kind))
            kind = ""
        if prefix in ("B", "I") and not kind:
            start, kind = number, name
    return out


def noise_loss(call: Any, batch: Batch) -> torch.Tensor:
    return call(batch[0])  # its gradient is the noise itself


TASKS: dict[str, Callable[[dict[str, Any]], Task]] = {
    "images": lambda _: Task(loss=image_loss, judge=judge_images, measure="accuracy"),
    "text": lambda about: Task(
        loss=text_loss,
        judge=lambda m, b: judge_text(about.get("token_bytes"), m, b),
        measure="perplexity",
        higher_is_better=False,
        counts="tokens",
    ),
    "utterances": lambda about: Task(
        loss=utterance_loss, judge=lambda m, b: judge_utterances(about["slots"], m, b), measure="slot_f1"
    ),
    "noise": lambda _: Task(loss=noise_loss, judge=lambda *_: {}, measure=""),
}
