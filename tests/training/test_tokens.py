"""Text as tokens of a vocabulary of its own."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from lossbench.workloads.errors import DataError
from lossbench.workloads.training.data.sets import load
from lossbench.workloads.training.data.tokens import tokenised
from lossbench.workloads.training.models import build
from tests.forms import full
from tests.training.test_trainer import records, trained

pytest.importorskip("tokenizers", reason="needs tokenizers (pip install 'lossbench[text]')")
pytestmark = pytest.mark.training


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOSSBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_tokens_say_all_that_the_bytes_say(cache: Path) -> None:
    from tokenizers import Tokenizer

    text = load("pydoc")
    data = tokenised(text, 512)
    tokenizer = Tokenizer.from_str(data.about["tokenizer"])
    assert tokenizer.get_vocab_size() == 512
    assert tokenizer.decode(data.valid[0].tolist()).encode() == text.valid[0].numpy().tobytes()
    assert int(data.train[0].max()) < 512 and data.about["vocabulary"] == 512
    assert data.about["bytes_per_token"] == len(text.valid[0]) / len(data.valid[0]) > 1.5
    (kept,) = cache.glob("**/tokens/*")
    assert sorted(path.name for path in kept.iterdir()) == ["tokenizer.json", "tokens.npz"]


def test_made_again_they_are_the_same_and_kept_ones_are_not_made_again(cache: Path) -> None:
    first = tokenised(load("pydoc"), 300)
    (kept,) = cache.glob("**/tokens/*")
    when = (kept / "tokens.npz").stat().st_mtime_ns
    assert torch.equal(tokenised(load("pydoc"), 300).train[0], first.train[0])
    assert (kept / "tokens.npz").stat().st_mtime_ns == when
    (kept / "tokens.npz").unlink()
    assert torch.equal(tokenised(load("pydoc"), 300).train[0], first.train[0])


@full
def test_a_model_has_a_row_for_every_token_and_is_judged_per_token_and_per_byte(tmp_path: Path) -> None:
    trained(tmp_path, data="pydoc", model="llama_25k", vocabulary=512, window=16, steps=4)
    (row,) = records(tmp_path, 0, "row")
    per_token = load("pydoc")
    data = tokenised(per_token, 512)
    assert row["bits_per_byte"] == pytest.approx(row["loss"] / math.log(2) / data.about["bytes_per_token"])
    assert row["perplexity"] == pytest.approx(np.exp(row["loss"]), rel=0.2)  # means over workers
    assert json.loads((tmp_path / "tokenizer.json").read_text())["model"]["type"] == "BPE"
    wide = build("llama_25k", kind="text", about=data.about)
    assert wide.shape.vocabulary == 512  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "size", "said"), [("digits", 512, "a vocabulary is about text"), ("pydoc", 100, "257 to 131072, or 0")]
)
def test_what_makes_no_sense_is_one_line(name: str, size: int, said: str) -> None:
    with pytest.raises(DataError, match=said):
        tokenised(load(name), size)
