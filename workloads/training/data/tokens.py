"""Text as tokens: a byte-pair vocabulary that is trained on the training text itself, so that perplexity is per token
as papers have it. Made once for a text and a size, and kept in the cache."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lossbench.workloads.errors import DataError
from lossbench.workloads.training.data.fetch import cache_folder
from lossbench.workloads.training.data.sets import DataSet

LEAST, MOST = 257, 1 << 17  # every byte is a token, too


def tokenised(data: DataSet, size: int) -> DataSet:
    """`about` then has `vocabulary`, `token_bytes` (how many each of them stands for) and `tokenizer` (its file)."""
    if data.kind != "text":
        raise DataError(f"a vocabulary is about text; {data.name} is {data.kind}")
    if not LEAST <= size <= MOST:
        raise DataError(f"workload.options.vocabulary: {LEAST} to {MOST}, or 0 for bytes")
    folder = cache_folder() / "tokens" / f"{data.name}-{data.checksum()}-{size}"
    if not (folder / "tokens.npz").exists():
        _make(data, size, folder)
    with np.load(folder / "tokens.npz") as kept:
        train, valid = (torch.from_numpy(kept[split].astype(np.int32)) for split in ("train", "valid"))
    tokenizer = (folder / "tokenizer.json").read_text(encoding="utf-8")
    about = {**data.about, "vocabulary": size, "token_bytes": _lengths(tokenizer, size), "tokenizer": tokenizer}
    return replace(data, train=(train,), valid=(valid,), about=about)


def _lengths(tokenizer: str, size: int) -> torch.Tensor:
    """Bytes of every token: a byte-level vocabulary writes each byte as one character."""
    out = torch.zeros(size, dtype=torch.long)
    for token, number in json.loads(tokenizer)["model"]["vocab"].items():
        out[number] = len(token)
    return out


def _make(data: DataSet, size: int, folder: Path) -> None:
    tokenizer = _trained(_lines(data.train[0]), size)
    train, valid = (_encoded(tokenizer, part[0]) for part in (data.train, data.valid))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
        half = folder / f"{os.getpid()}.npz"  # several may make it at once
        np.savez(half, train=train, valid=valid)
        os.replace(half, folder / "tokens.npz")
    except OSError as error:
        raise DataError(f"the cache {folder} can't be written ({error.strerror}): set LOSSBENCH_CACHE") from None


def _trained(lines: Iterable[str], size: int) -> Any:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise DataError("workload.options.vocabulary: needs tokenizers (pip install 'lossbench[text]')") from None
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def _lines(text: torch.Tensor) -> list[str]:
    """With their ends: nothing is left out."""
    return text.numpy().tobytes().decode("utf-8", errors="replace").splitlines(keepends=True)


def _encoded(tokenizer: Any, text: torch.Tensor) -> np.ndarray[Any, np.dtype[np.int32]]:
    rows = [one.ids for one in tokenizer.encode_batch(_lines(text))]
    return np.array([number for row in rows for number in row], np.int32)
