"""Batches for several ranks at once. A batch is a pure function of seed, rank and step: nothing to save, any step
can be asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from lossbench.contract import derive_seed
from lossbench.workloads.errors import DataError
from lossbench.workloads.training.data.sets import DataSet

Batch = tuple[torch.Tensor, ...]
PIXEL_MEAN, PIXEL_STD = 120.0, 64.0
CROP = 4


class Batches:
    """`at(step)`: one tensor per part, [ranks, items, ...]. Every epoch all items are dealt out anew, each to one
    rank."""

    def __init__(
        self,
        data: DataSet,
        *,
        ranks: Sequence[int],
        world: int,
        items: int,
        seed: int,
        device: torch.device,
        window: int = 64,
        skew: float = 0.0,
    ) -> None:
        """`skew`: images of some labels more often, by a Dirichlet's draw for each rank; drawn with replacement."""
        self.data, self.ranks, self.world, self.items, self.seed = data, list(ranks), world, items, seed
        self.window, self._device = window, device
        self._train = tuple(part.to(device) for part in data.train)
        self._valid = tuple(part.to(device) for part in data.valid)
        self.steps_per_epoch = self._count() // (world * items)
        if self.steps_per_epoch < 1:
            raise DataError(f"{data.name} has {self._count()} items: too few for {world} ranks with {items} each")
        self._epoch, self._order, self._shift = -1, torch.empty(0), 0
        self._skewed = Skewed(data, world=world, skew=skew, seed=seed) if skew else None

    def _count(self) -> int:
        if self.data.kind == "text":  # one window less: every epoch begins somewhere else
            return (len(self.data.train[0]) - 1) // self.window - 1
        return len(self.data.train[0])

    def at(self, step: int) -> Batch:
        if self._skewed is not None:
            chosen = torch.from_numpy(self._skewed.at(step, self.ranks, self.items)).to(self._device)
        else:
            chosen = self._dealt(step)
        return tuple(part.view(len(self.ranks), self.items, *part.shape[1:]) for part in self._prepared(chosen, step))

    def _dealt(self, step: int) -> torch.Tensor:
        epoch, number = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            random = np.random.default_rng(derive_seed(self.seed, "data order", epoch))
            self._order = torch.from_numpy(random.permutation(self._count())).to(self._device)
            self._shift, self._epoch = int(random.integers(self.window)), epoch
        first = number * self.items * self.world
        dealt = self._order[first : first + self.items * self.world].view(self.items, self.world)
        return dealt[:, self.ranks].t().reshape(-1)

    def _prepared(self, chosen: torch.Tensor, step: int) -> Batch:
        if self.data.kind == "images":
            pixels, labels = (part[chosen] for part in self._train)
            if self.data.about["augment"]:
                pixels = self._shaken(pixels, step)
            return normalised(pixels), labels
        if self.data.kind == "text":
            return (windows(self._train[0], chosen * self.window + self._shift, self.window),)
        return tuple(part[chosen] for part in self._train)

    def _shaken(self, pixels: torch.Tensor, step: int) -> torch.Tensor:
        """Every image moved by up to four pixels, half of them mirrored; the same whichever ranks share this
        process."""
        random = np.random.default_rng(derive_seed(self.seed, "augmentation", step))
        drawn = random.integers(0, [2, 2 * CROP + 1, 2 * CROP + 1], (self.items, self.world, 3))
        here = torch.from_numpy(drawn[:, self.ranks].swapaxes(0, 1).reshape(-1, 3)).to(self._device)
        side = pixels.shape[-1]
        padded = torch.nn.functional.pad(pixels, (CROP,) * 4)
        line = torch.arange(side, device=self._device)
        columns = torch.where(here[:, :1].bool(), side - 1 - line, line) + here[:, 1:2]
        rows = line + here[:, 2:3]
        number = torch.arange(len(pixels), device=self._device)[:, None, None, None]
        channel = torch.arange(pixels.shape[1], device=self._device)[None, :, None, None]
        return padded[number, channel, rows[:, None, :, None], columns[:, None, None, :]]

    def parts(self, split: str, *, items: int, most: int) -> Iterator[Batch]:
        """For evaluation: at most `most` items of `split` (train, valid), in order, without augmentation."""
        source = self._train if split == "train" else self._valid
        count = (len(source[0]) - 1) // self.window if self.data.kind == "text" else len(source[0])
        some = torch.arange(min(count, most), device=self._device)
        for chosen in some.split(items):
            if self.data.kind == "images":
                yield normalised(source[0][chosen]), source[1][chosen]
            elif self.data.kind == "text":
                yield (windows(source[0], chosen * self.window, self.window),)
            else:
                yield tuple(part[chosen] for part in source)


class Skewed:
    """Workers whose data differ: how often each has each label (Hsu et al. 2019)."""

    def __init__(self, data: DataSet, *, world: int, skew: float, seed: int) -> None:
        if data.kind != "images":
            raise DataError(f"skew is about the labels of images; {data.name} is {data.kind}")
        labels = data.train[1].numpy()
        self._seed, self._items = seed, [np.flatnonzero(labels == label) for label in np.unique(labels)]
        random = np.random.default_rng(derive_seed(seed, "skew"))
        self._shares = random.dirichlet([skew] * len(self._items), world)

    def at(self, step: int, ranks: Sequence[int], items: int) -> NDArray[np.int64]:
        """Numbers of images, rank by rank."""
        return np.concatenate([self._of(step, rank, items) for rank in ranks])

    def _of(self, step: int, rank: int, items: int) -> NDArray[np.int64]:
        random = np.random.default_rng(derive_seed(self._seed, "skewed", step, rank))
        labels = random.choice(len(self._items), items, p=self._shares[rank])
        return np.array([random.choice(self._items[label]) for label in labels])


def normalised(pixels: torch.Tensor) -> torch.Tensor:
    return (pixels.float() - PIXEL_MEAN) / PIXEL_STD


def windows(text: torch.Tensor, starts: torch.Tensor, length: int) -> torch.Tensor:
    """[starts, length + 1]: a window and the byte after it."""
    return text[starts[:, None] + torch.arange(length + 1, device=text.device)].long()
