"""Workers of one process that lose packets by a random number generator: for fast tests and large sweeps. No network.

Whatever is made with it is labelled *simulated*. Packets are cut as the real transport cuts them, and the loss models
are the same chains; what a network adds (queues, one burst across several receivers, deadlines) is not here."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lossbench.contract import HALVES, HEADER_BYTES, derive_seed
from lossbench.workloads.collective.staging import codec_of
from lossbench.workloads.sync.channels.means import Means, spread
from lossbench.workloads.transport.half import Account
from lossbench.workloads.transport.packet.layout import Layout
from lossbench.workloads.transport.packet.wire import Bits, Bytes
from lossbench.workloads.transport.plan import Parcels, payload

DATAGRAM_BYTES = 1472  # MTU 1500
ASIDE: dict[str, Any] = {"ended": "all", "seconds": 0.0, "cut": 0, "lost": 0, "withheld": 0}
Chain = list[list[tuple[float, int, float]]]  # states -> outcomes (probability, next state, loss)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Which packets a chain, or a draw per block, decides on. None: all."""

    chain: Chain
    block_loss: float | None = None
    sources: tuple[int, ...] | None = None
    destinations: tuple[int, ...] | None = None
    halves: tuple[int, ...] | None = None
    steps: tuple[int, int] | None = None
    blocks: tuple[int, int] | None = None

    @classmethod
    def iid(cls, loss: float, **keys: Any) -> Rule:
        return cls(chain=[[(1.0, 0, loss)]], **keys)

    def takes(self, source: int, destination: int, step: int, half: int, block: int) -> bool:
        return (
            (self.sources is None or source in self.sources)
            and (self.destinations is None or destination in self.destinations)
            and (self.halves is None or half in self.halves)
            and (self.steps is None or self.steps[0] <= step < self.steps[1])
            and (self.blocks is None or self.blocks[0] <= block < self.blocks[1])
        )


def stationary(chain: Chain) -> NDArray[np.float64]:
    """The long-run share of packets that meet each state, from state 0 on: where a channel begins."""
    step = np.zeros((len(chain), len(chain)))
    for state, outcomes in enumerate(chain):
        for probability, next_state, _ in outcomes:
            step[state, next_state] += probability
    power = (step + np.eye(len(chain))) / 2
    for _ in range(60):
        power = power @ power
        power /= power.sum(axis=1, keepdims=True)
    return np.asarray(power[0])


class Path:
    """One rule from one source to one destination: its generator and the state its chain is in."""

    def __init__(self, rule: Rule, seed: int) -> None:
        self.rule, self._random = rule, np.random.default_rng(seed)
        self._state = int(self._random.choice(len(rule.chain), p=stationary(rule.chain)))

    def lost(self, packets: int) -> Bits:
        if self.rule.block_loss is not None:
            return np.full(packets, self._random.random() < self.rule.block_loss)
        if len(self.rule.chain) == 1:
            return np.asarray(self._random.random(packets) < self.rule.chain[0][0][2])
        return self._walk(packets)

    def _walk(self, packets: int) -> Bits:
        """As in the kernel: one number chooses the outcome of the state met, another one the loss."""
        out = np.zeros(packets, dtype=np.bool_)
        choices, losses = self._random.random(packets), self._random.random(packets)
        state = self._state
        for number in range(packets):
            choice, outcome = choices[number], self.rule.chain[state][-1]
            for candidate in self.rule.chain[state]:
                choice -= candidate[0]
                if choice < 0:
                    outcome = candidate
                    break
            _, state, loss = outcome
            out[number] = losses[number] < loss
        self._state = state
        return out


class Medium:
    """What all workers of the process share. `layers`: a packet passes them all (uplink, downlink); in each the first
    rule that takes it decides."""

    def __init__(self, world: int, layers: Sequence[Sequence[Rule]] = (), seed: int = 0) -> None:
        self.world, self.layers, self.seed = world, [list(rules) for rules in layers], seed
        self.posted: list[Any] = [None] * world
        self.barrier = threading.Barrier(world)
        self._paths: dict[tuple[int, int, int, int], Path] = {}

    def arrived(self, source: int, destination: int, *, step: int, half: int, block: int, packets: int) -> Bits:
        """Called by the destination's thread only: a path belongs to one thread."""
        out = np.ones(packets, dtype=np.bool_)
        for depth, rules in enumerate(self.layers):
            number = next((n for n, r in enumerate(rules) if r.takes(source, destination, step, half, block)), None)
            if number is None:
                continue
            key = (depth, number, source, destination)
            if key not in self._paths:
                self._paths[key] = Path(rules[number], derive_seed(self.seed, "simulated", *key))
            out &= ~self._paths[key].lost(packets)
        return out


@dataclass(frozen=True)
class Done:
    """A half: there is nothing to wait for."""

    out: Any
    account: Account

    def wait(self) -> tuple[Any, Account]:
        return self.out, self.account


class Simulated:
    simulated = True

    def __init__(self, medium: Medium, rank: int) -> None:
        self._medium, self.rank, self.world = medium, rank, medium.world
        self._step = 0
        self.notes: list[str] = []
        self.present, self.members = tuple(range(self.world)), None
        self._counts = {"data_expected": 0, "data_arrived": 0, "payload_bytes": 0}
        self._means = Means()

    def set_step(self, step: int) -> None:
        self._step = step

    def set_deadline(self, seconds: float | None) -> None:
        """There is nothing to wait for."""

    def _meet(self, mine: Any) -> list[Any]:
        """What everybody gives; `_part` when nobody reads it any more."""
        self._medium.posted[self.rank] = mine
        self._medium.barrier.wait(timeout=600)
        return self._medium.posted

    def _part(self) -> None:
        self._medium.barrier.wait(timeout=600)

    def begin_scatter(
        self,
        values: torch.Tensor,
        *,
        counts: tuple[int, ...],
        owners: tuple[int, ...],
        normaliser: str = "count",
        slot: int = 0,
    ) -> Done:
        del slot
        begun = time.perf_counter()
        layout, block = self._layout(values, counts), owners[self.rank]
        posted = self._meet(values)
        low = layout.offsets[block]
        own = posted[self.rank][low : low + counts[block]]
        arrived = {
            peer: self._arrived(peer, HALVES["reduce_scatter"], block, layout.packets[block]) for peer in self._peers()
        }
        given = [(peer, posted[peer][low : low + counts[block]], bits, layout.width) for peer, bits in arrived.items()]
        mean = self._means.of(own, given, normaliser=normaliser, world=self.world)
        self._part()
        return Done(mean, self._account(HALVES["reduce_scatter"], arrived, layout.segment - HEADER_BYTES, begun))

    def begin_gather(
        self,
        mine: torch.Tensor,
        out: torch.Tensor,
        *,
        counts: tuple[int, ...],
        owners: tuple[int, ...],
        zero_missing: bool = False,
        slot: int = 0,
    ) -> Done:
        del slot
        begun = time.perf_counter()
        layout = self._layout(out, counts)
        posted = self._meet(mine.clone())
        arrived = {}
        for peer in self._peers():
            block = owners[peer]
            arrived[peer] = self._arrived(peer, HALVES["all_gather"], block, layout.packets[block])
            here = out[layout.offsets[block] : layout.offsets[block] + counts[block]]
            mask = spread(arrived[peer], layout.width, here)
            here.copy_(torch.where(mask, posted[peer], torch.zeros_like(here) if zero_missing else here))
        own = owners[self.rank]
        out[layout.offsets[own] : layout.offsets[own] + counts[own]] = mine
        self._part()
        return Done(out, self._account(HALVES["all_gather"], arrived, layout.segment - HEADER_BYTES, begun))

    datagram_bytes = DATAGRAM_BYTES

    def begin_exchange(
        self,
        send: Mapping[int, Bytes],
        sizes: Mapping[int, int],
        *,
        half: str,
        size: int,
        cut: Parcels,
        reliable: bool = False,
    ) -> Done:
        del size
        begun = time.perf_counter()
        posted = self._meet({peer: data.copy() for peer, data in send.items()})
        taken, arrived = {}, {}
        for peer, count in sizes.items():
            width = cut.width or payload(count, DATAGRAM_BYTES)
            packets, block = -(-count // width), cut.taken[peer] if cut.taken else 0
            bits = np.ones(packets, np.bool_) if reliable else self._arrived(peer, HALVES[half], block, packets)
            taken[peer], arrived[peer] = posted[peer][self.rank] * np.repeat(bits, width)[:count], bits
        self._part()
        if reliable:  # no part of what may get lost
            return Done(taken, Account(**ASIDE, half=HALVES[half], step=self._step, arrived=arrived))
        return Done(taken, self._account(HALVES[half], arrived, cut.width, begun))

    def mean(self, values: torch.Tensor, *, direct: bool = False) -> None:
        del direct
        total = torch.stack(self._meet(values)).mean(0)
        self._part()
        values.copy_(total)

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        out = torch.stack([one.double().cpu() for one in self._meet(numbers)]).sum(0)
        self._part()
        return out

    def counters(self) -> dict[str, Any]:
        return dict(self._counts)

    def close(self) -> None:
        """Nothing is open."""

    # --- packets -----------------------------------------------------------------------------------------------------

    def _peers(self) -> list[int]:
        return [rank for rank in range(self.world) if rank != self.rank]

    def _layout(self, values: torch.Tensor, counts: tuple[int, ...]) -> Layout:
        return Layout.plan(counts, codec=codec_of(values), datagram_bytes=DATAGRAM_BYTES)

    def _arrived(self, peer: int, half: int, block: int, packets: int) -> Bits:
        return self._medium.arrived(peer, self.rank, step=self._step, half=half, block=block, packets=packets)

    def _account(self, half: int, arrived: dict[int, Bits], payload_bytes: int, begun: float) -> Account:
        expected, came = sum(len(b) for b in arrived.values()), sum(int(b.sum()) for b in arrived.values())
        self._counts["data_expected"] += expected
        self._counts["data_arrived"] += came
        self._counts["payload_bytes"] += came * payload_bytes
        return Account(
            half=half,
            step=self._step,
            ended="simulated",
            seconds=time.perf_counter() - begun,
            waited=time.perf_counter() - begun,
            arrived=arrived,
            cut=0,
            lost=expected - came,
            withheld=0,
        )
