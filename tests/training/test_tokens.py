"""Text as tokens of a vocabulary of its own."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lossbench.workloads.errors import DataError
from lossbench.workloads.training.data.sets import load
from lossbench.workloads.training.data.tokens import tokenised
from lossbench.workloads.training.models import build
from lossbench.workloads.training.tasks import judge_text
from tests.forms import full
from tests.training.test_trainer import QUICK, records, trained

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
    for ours, theirs in ((data.train, text.train), (data.valid, text.valid)):
        assert int(data.about["token_bytes"][ours[0].long()].sum()) == len(theirs[0]) > 1.5 * len(ours[0])
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


def test_bits_are_by_the_bytes_of_the_very_text_that_was_judged() -> None:
    """As it was, by those of all held-out text, which also stood for training text."""
    sizes = torch.tensor([1, 5])
    model: Any = lambda tokens: torch.zeros(*tokens.shape, 2)  # noqa: E731 - knows nothing
    for token, size in ((0, 1), (1, 5)):
        text = torch.full((3, 9), token)
        found = judge_text(sizes, model, [(text,)])
        assert found["bits_per_byte"] == pytest.approx(1 / size) and found["perplexity"] == pytest.approx(2)
    assert judge_text(None, model, [(torch.zeros(3, 9, dtype=torch.long),)])["bits_per_byte"] == pytest.approx(1)


@full
def test_a_model_has_a_row_for_every_token_and_is_judged_per_token_and_per_byte(tmp_path: Path) -> None:
    trained(tmp_path, data="pydoc", model="llama_25k", vocabulary=512, window=16, steps=4)
    (row,) = records(tmp_path, 0, "row")
    data = tokenised(load("pydoc"), 512)
    for split, kind in ((data.valid[0], ""), (data.train[0], "fit_")):
        said = split[1 : 1 + 16 * QUICK["evaluate_items"]].long()  # foretold: all but the first
        per_token = float(data.about["token_bytes"][said].double().mean())
        assert row[f"{kind}bits_per_byte"] == pytest.approx(row[f"{kind}loss"] / math.log(2) / per_token)
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
