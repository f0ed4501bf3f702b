"""Every data set: what it is, where it comes from, how its bytes become tensors. `load(name)`; embedded ones need
nothing."""

from __future__ import annotations

import hashlib
import lzma
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lossbench.workloads.errors import DataError
from lossbench.workloads.training.data.fetch import File, Source, data_folder, read

EMBEDDED = Path(__file__).resolve().parent / "embedded"
PAD, UNKNOWN = 0, 1
IGNORED = -100  # a label that no loss counts


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """`train` and `valid`: images (pixels uint8, labels), text (bytes,), utterances (words, slots, intents)."""

    name: str
    kind: str  # images, text, utterances
    train: tuple[torch.Tensor, ...]
    valid: tuple[torch.Tensor, ...]
    about: dict[str, Any] = field(default_factory=dict)

    def checksum(self) -> str:
        digest = hashlib.sha256()
        for tensor in (*self.train, *self.valid):
            digest.update(np.ascontiguousarray(tensor.numpy()).tobytes())
        return digest.hexdigest()[:16]


def load(name: str, data_dir: str = "") -> DataSet:
    if name not in SETS:
        raise DataError(f"no data set '{name}': known are {', '.join(SETS)}")
    return SETS[name](data_folder(data_dir))


# --- embedded --------------------------------------------------------------------------------------------------------


def digits(folder: Path | None) -> DataSet:
    """1,797 handwritten digits, 8 x 8 pixels of 0 to 16 (E. Alpaydin and C. Kaynak, UCI, CC BY 4.0)."""
    del folder
    table = np.frombuffer(lzma.decompress((EMBEDDED / "digits.xz").read_bytes()), np.uint8).reshape(-1, 65)
    order = np.random.default_rng(0).permutation(len(table))
    pixels = torch.from_numpy(np.minimum(table[order, :64].astype(int) * 16, 255).astype(np.uint8)).view(-1, 1, 8, 8)
    labels = torch.from_numpy(table[order, 64].astype(np.int64))
    about = {"classes": 10, "channels": 1, "side": 8, "augment": False}
    return DataSet(
        name="digits",
        kind="images",
        train=(pixels[:1437], labels[:1437]),
        valid=(pixels[1437:], labels[1437:]),
        about=about,
    )


def digits32(folder: Path | None) -> DataSet:
    """The same digits as 3 x 32 x 32 images: for networks made for CIFAR-10."""
    small = digits(folder)

    def grown(split: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return split[0].repeat_interleave(4, 2).repeat_interleave(4, 3).expand(-1, 3, -1, -1).contiguous(), split[1]

    about = {**small.about, "channels": 3, "side": 32}
    return DataSet(name="digits32", kind="images", train=grown(small.train), valid=grown(small.valid), about=about)


def pydoc(folder: Path | None) -> DataSet:
    """CPython's own documentation of its topics, as bytes: 465 kB of English that every Python carries."""
    del folder
    from pydoc_data.topics import topics

    return _text("pydoc", "\n".join(topics[name] for name in sorted(topics)).encode(), None)


def snips_small(folder: Path | None) -> DataSet:
    """300 utterances of each of SNIPS' seven intents for training, its 700 for validation (Coucke et al. 2018, CC0)."""
    del folder
    train, valid = lzma.decompress((EMBEDDED / "snips.xz").read_bytes()).decode().split("\n\n")
    return _utterances("snips_small", _tabbed(train), _tabbed(valid))


# --- fetched ---------------------------------------------------------------------------------------------------------

CIFAR = Source(url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", archive="tar")
CIFAR_SHA256 = {
    "data_batch_1": "54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd",
    "data_batch_2": "766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8",
    "data_batch_3": "0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9",
    "data_batch_4": "3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b",
    "data_batch_5": "d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154",
    "test_batch": "f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831",
}


def cifar10(folder: Path | None) -> DataSet:
    """Krizhevsky 2009; no terms stated, so it is never shipped."""

    def batch(name: str) -> tuple[np.ndarray, list[int]]:
        file = File(
            name=f"cifar10/cifar-10-batches-py/{name}", sha256=CIFAR_SHA256[name], sources=(CIFAR,), member=name
        )
        content = pickle.loads(read(file, folder), encoding="bytes")  # noqa: S301 - its checksum is known
        return content[b"data"], content[b"labels"]

    def joined(names: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        parts = [batch(name) for name in names]
        pixels = torch.from_numpy(np.concatenate([p for p, _ in parts])).view(-1, 3, 32, 32)
        return pixels, torch.tensor([label for _, labels in parts for label in labels])

    about = {"classes": 10, "channels": 3, "side": 32, "augment": True}
    return DataSet(
        name="cifar10",
        kind="images",
        train=joined([n for n in CIFAR_SHA256 if n.startswith("data")]),
        valid=joined(["test_batch"]),
        about=about,
    )


def _wikitext(name: str, sha256: str) -> File:
    mirror = f"https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/{name}.txt"
    return File(
        name=f"wikitext2/wiki.{name}.tokens",
        sha256=sha256,
        member=f"wiki.{name}.tokens",
        sources=(Source(url="https://wikitext.smerity.com/wikitext-2-v1.zip", archive="zip"), Source(url=mirror)),
    )


WIKITEXT = (
    _wikitext("train", "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f"),
    _wikitext("valid", "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
)


def wikitext2(folder: Path | None) -> DataSet:
    """WikiText-2, the version with <unk> (Merity et al. 2016, CC BY-SA), as bytes."""
    return _text("wikitext2", read(WIKITEXT[0], folder), read(WIKITEXT[1], folder))


def shakespeare(folder: Path | None) -> DataSet:
    url = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
    sha256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
    file = File(name="shakespeare/input.txt", sha256=sha256, sources=(Source(url=url),))
    return _text("shakespeare", read(file, folder), None)


def atis(folder: Path | None) -> DataSet:
    """Air travel questions with slots and intent (an LDC corpus: never shipped)."""
    base = "https://raw.githubusercontent.com/yvchen/JointSLU/master/data"
    sums = {
        "train": "e0a1e3de978345b4fbfa4f2eefa8bb974460f0f7f38330e179ccaecc80d68178",
        "test": "744bc272bce1c6a828df7b5580b47a4aee2ad2019e5d2376c348bea1c15f0d6e",
    }

    def part(split: str) -> list[tuple[list[str], list[str], str]]:
        name = f"atis.{split}.w-intent.iob"
        file = File(name=f"atis/{name}", sha256=sums[split], sources=(Source(url=f"{base}/{name}"),))
        return [_iob(line) for line in read(file, folder).decode().splitlines() if line.strip()]

    return _utterances("atis", part("train"), part("test"))


SNIPS_SHA256 = {
    "train/label": "bfd7df6cf9dd76c5da5d8b61bc85f90386197bdd3d7510c1d324c051537b962f",
    "train/seq.in": "04ad1e3f2121d83c6478f9a4b17d2dbdc21d06d6127f73cb7af835ed733f9855",
    "train/seq.out": "fd5f2121d8055827e5d6b3d3bac30f3d7e94e82a5d437751960cbdd9e1b4f6d3",
    "test/label": "37a26da3ad079bb41c42c85a3a8f827eb47efec4c5917ce5d08f4b2736e4f830",
    "test/seq.in": "c1e341173fcea2951a8ca371956a6f81c76de87b9583c62eb87edd6158fa3a7c",
    "test/seq.out": "58c07c9097d5e1f78889765c2a535a160f6455b90b3142055c8051847afcca47",
}


def snips(folder: Path | None) -> DataSet:
    base = "https://raw.githubusercontent.com/MiuLab/SlotGated-SLU/master/data/snips"

    def lines(name: str) -> list[str]:
        file = File(name=f"snips/{name}", sha256=SNIPS_SHA256[name], sources=(Source(url=f"{base}/{name}"),))
        return read(file, folder).decode().splitlines()

    def part(split: str) -> list[tuple[list[str], list[str], str]]:
        columns = (lines(f"{split}/{name}") for name in ("seq.in", "seq.out", "label"))
        return [(words.split(), slots.split(), intent.strip()) for words, slots, intent in zip(*columns, strict=True)]

    return _utterances("snips", part("train"), part("test"))


SETS: dict[str, Callable[[Path | None], DataSet]] = {
    "digits": digits,
    "digits32": digits32,
    "pydoc": pydoc,
    "snips_small": snips_small,
    "cifar10": cifar10,
    "atis": atis,
    "snips": snips,
    "wikitext2": wikitext2,
    "shakespeare": shakespeare,
}

# --- from bytes to tensors -------------------------------------------------------------------------------------------


def _text(name: str, train: bytes, valid: bytes | None) -> DataSet:
    """Without a validation part of its own, the last tenth."""
    if valid is None:
        edge = len(train) * 9 // 10
        train, valid = train[:edge], train[edge:]
    as_tensor = [torch.from_numpy(np.frombuffer(part, np.uint8).copy()) for part in (train, valid)]
    return DataSet(name=name, kind="text", train=(as_tensor[0],), valid=(as_tensor[1],), about={"vocabulary": 256})


Utterance = tuple[list[str], list[str], str]


def _tabbed(text: str) -> list[Utterance]:
    rows = (line.split("\t") for line in text.strip().splitlines())
    return [(words.split(), slots.split(), intent) for words, slots, intent in rows]


def _iob(line: str) -> Utterance:
    """BOS words EOS <tab> a label for each but EOS, whose label is the intent."""
    words, labels = line.split("\t")
    return words.split()[1:-1], labels.split()[1:-1], labels.split()[-1]


def _utterances(name: str, train: list[Utterance], valid: list[Utterance]) -> DataSet:
    words = {word: n + 2 for n, word in enumerate(sorted({w for u in train for w in u[0]}))}
    slots = {slot: n for n, slot in enumerate(sorted({s for u in (*train, *valid) for s in u[1]}))}
    intents = {intent: n for n, intent in enumerate(sorted({u[2] for u in (*train, *valid)}))}
    longest = max(len(u[0]) for u in (*train, *valid))

    def tensors(part: list[Utterance]) -> tuple[torch.Tensor, ...]:
        ids = torch.full((len(part), longest), PAD)
        tags = torch.full((len(part), longest), IGNORED)
        for row, (some, labels, _) in enumerate(part):
            ids[row, : len(some)] = torch.tensor([words.get(w, UNKNOWN) for w in some])
            tags[row, : len(labels)] = torch.tensor([slots[s] for s in labels])
        return ids, tags, torch.tensor([intents[u[2]] for u in part])

    about = {"vocabulary": len(words) + 2, "slots": list(slots), "intents": len(intents)}
    return DataSet(name=name, kind="utterances", train=tensors(train), valid=tensors(valid), about=about)
