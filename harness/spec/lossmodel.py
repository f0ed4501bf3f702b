"""Loss models as numbers: one small Markov chain serves the kernel program, the prediction and the statistics.

Every model that netem knows (iid, Gilbert-Elliott, 4-state) is a chain of at most four states: on each packet, one
32-bit random word picks an outcome of the state held on arrival (next state, loss threshold) and a second word decides
the loss. The ebpf backend runs the same table in the kernel, so a seeded pattern can be predicted here exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

MASK64 = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15
MIX_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
ONE = 2**32  # a probability of 1, as a threshold on a 32-bit random word
MAX_STATES = 4
MAX_OUTCOMES = 3

Bits: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """With `probability`: go to `next_state` and lose the packet with probability `loss`."""

    probability: float
    next_state: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class Chain:
    """states[s] = the outcomes of a packet that meets state s; their probabilities add up to 1."""

    states: tuple[tuple[Outcome, ...], ...]

    def __post_init__(self) -> None:
        assert 1 <= len(self.states) <= MAX_STATES
        for outcomes in self.states:
            assert 1 <= len(outcomes) <= MAX_OUTCOMES
            assert abs(sum(o.probability for o in outcomes) - 1) < 1e-9

    def matrices(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(D0, D1): transition probabilities with the packet delivered, and with it lost."""
        size = len(self.states)
        delivered, lost = np.zeros((size, size)), np.zeros((size, size))
        for s, outcomes in enumerate(self.states):
            for o in outcomes:
                delivered[s, o.next_state] += o.probability * (1 - o.loss)
                lost[s, o.next_state] += o.probability * o.loss
        return delivered, lost


def threshold(probability: float) -> int:
    """Compared as u64 with a 32-bit random word, so that 0 and 1 are exact."""
    return round(min(max(probability, 0.0), 1.0) * ONE)


def iid(loss: float) -> Chain:
    return Chain(states=((Outcome(probability=1.0, next_state=0, loss=loss),),))


def gilbert_elliott(*, p: float, r: float, h: float, k: float) -> Chain:
    """netem's gemodel: good -> bad with p, bad -> good with r; delivered with k in good, with h in bad."""
    good = (Outcome(probability=p, next_state=1, loss=1 - k), Outcome(probability=1 - p, next_state=0, loss=1 - k))
    bad = (Outcome(probability=r, next_state=0, loss=1 - h), Outcome(probability=1 - r, next_state=1, loss=1 - h))
    return Chain(states=(good, bad))


def gilbert_from_means(*, mean: float, burst_packets_mean: float) -> Chain:
    """The simple Gilbert channel (bad loses all, good loses none) with this loss rate and mean burst length."""
    r = 1 / burst_packets_mean
    p = r * mean / (1 - mean)
    if p > 1:
        raise ValueError(f"bursts of {burst_packets_mean:g} packets can't give a mean loss of {mean:.1%}")
    return gilbert_elliott(p=p, r=r, h=0.0, k=1.0)


def state4(*, p13: float, p31: float, p32: float, p23: float, p14: float) -> Chain:
    """netem's `loss state`: 0 gap, 1 burst lost, 2 burst delivered, 3 isolated loss; lost on entering 1 or 3."""
    gap = (
        Outcome(probability=p14, next_state=3, loss=1.0),
        Outcome(probability=p13, next_state=1, loss=1.0),
        Outcome(probability=1 - p14 - p13, next_state=0, loss=0.0),
    )
    burst_lost = (
        Outcome(probability=p32, next_state=2, loss=0.0),
        Outcome(probability=p31, next_state=0, loss=0.0),
        Outcome(probability=1 - p32 - p31, next_state=1, loss=1.0),
    )
    burst_delivered = (
        Outcome(probability=p23, next_state=1, loss=1.0),
        Outcome(probability=1 - p23, next_state=2, loss=0.0),
    )
    isolated = (Outcome(probability=1.0, next_state=0, loss=0.0),)
    return Chain(states=(gap, burst_lost, burst_delivered, isolated))


# --- what a chain does in the long run -----------------------------------------------------------------------------


def stationary(chain: Chain) -> NDArray[np.float64]:
    """Long-run share of packets that meet each state, starting from state 0."""
    delivered, lost = chain.matrices()
    step = delivered + lost
    # Averaging over two steps keeps a periodic chain from oscillating; squaring 60 times reaches any horizon.
    power = (step + np.eye(len(step))) / 2
    for _ in range(60):
        power = power @ power
        power /= power.sum(axis=1, keepdims=True)
    share: NDArray[np.float64] = power[0]
    return share


@lru_cache(maxsize=256)
def mean_loss(chain: Chain) -> float:
    _, lost = chain.matrices()
    return float(stationary(chain) @ lost.sum(axis=1))


def none_lost(chain: Chain, packets: int) -> float:
    """The chance that all of them are delivered."""
    delivered, _ = chain.matrices()
    return float(stationary(chain) @ np.linalg.matrix_power(delivered, packets).sum(axis=1))


def loss_variance_per_packet(chain: Chain) -> float:
    """Variance of the number of losses among n packets, divided by n, for large n (p(1-p) if independent)."""
    delivered, lost = chain.matrices()
    step, share = delivered + lost, stationary(chain)
    mean = float(share @ lost.sum(axis=1))
    size = len(share)
    # Sum of the autocovariances through the chain's deviation matrix.
    deviation = np.linalg.pinv(np.eye(size) - step + np.outer(np.ones(size), share)) - np.outer(np.ones(size), share)
    covariance = float(share @ lost @ deviation @ lost.sum(axis=1))
    return max(mean * (1 - mean) + 2 * covariance, 0.0)


def memory_packets(chain: Chain) -> float:
    """After so many packets a channel's state says e times less about its beginning; infinite if it never forgets."""
    delivered, lost = chain.matrices()
    reachable = stationary(chain) > 0
    step = (delivered + lost)[np.ix_(reachable, reachable)]
    sizes = sorted(abs(np.linalg.eigvals(step)), reverse=True)
    second = float(sizes[1]) if len(sizes) > 1 else 0.0
    return 0.0 if second <= 0 else float("inf") if second >= 1 else -1 / float(np.log(second))


def burst_lengths(chain: Chain, *, up_to: int) -> NDArray[np.float64]:
    """P(a run of consecutive losses has length 1, 2, ... up_to); what is longer is the missing rest."""
    delivered, lost = chain.matrices()
    # State seen by the first loss after a delivery, in the long run.
    start = stationary(chain) @ delivered
    alive = start @ lost
    total = float(alive.sum())
    if total == 0:
        return np.zeros(up_to)
    alive = alive / total
    out = np.zeros(up_to)
    for length in range(up_to):
        out[length] = float((alive @ delivered).sum())
        alive = alive @ lost
    return out


def burst_mean(chain: Chain) -> float:
    """Mean run of consecutive losses; 0 for a channel that loses nothing, infinite if it loses everything."""
    delivered, lost = chain.matrices()
    start = stationary(chain) @ delivered @ lost
    total = float(start.sum())
    if total == 0:
        return float("inf") if mean_loss(chain) > 0 else 0.0
    return float((start / total) @ np.linalg.solve(np.eye(len(lost)) - lost, np.ones(len(lost))))


# --- the exact pattern of a seeded channel -------------------------------------------------------------------------


def mix(z: int) -> int:
    """splitmix64's finaliser."""
    for shift, factor in MIX_ROUNDS:
        z = ((z ^ (z >> shift)) * factor) & MASK64
    return z ^ (z >> 31)


def random_words(seed: int, count: int) -> NDArray[np.uint64]:
    """The first `count` 64-bit words of splitmix64, as the kernel program draws them."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed & MASK64) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GAMMA)
        for shift, factor in MIX_ROUNDS:
            z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
        return z ^ (z >> np.uint64(31))


def advanced(seed: int, words: int) -> int:
    """Where the generator stands after it has drawn so many."""
    return (seed + words * GAMMA) & MASK64


def first_state(chain: Chain, *, seed: int) -> int:
    """The state that a seeded channel's first packet meets, drawn from the long-run shares: a channel that always began
    in its good state would lose too little for as long as its bursts are."""
    if len(chain.states) == 1:
        return 0
    drawn = mix(seed ^ MASK64) / 2**64
    limits = np.cumsum(stationary(chain))
    return min(int(np.searchsorted(limits, drawn, side="right")), len(chain.states) - 1)


def predict(chain: Chain, *, seed: int, count: int, state: int | None = None) -> Bits:
    """Which of the next `count` packets a seeded chain loses; `seed` is the generator's current value, `state` the
    chain's (None: this is the channel's beginning)."""
    state = first_state(chain, seed=seed) if state is None else state
    words = random_words(seed, count)
    first, second = words >> np.uint64(32), words & np.uint64(ONE - 1)
    if len(chain.states) == 1 and len(chain.states[0]) == 1:
        return second < np.uint64(threshold(chain.states[0][0].loss))
    table = [
        [(c, o.next_state, threshold(o.loss)) for c, o in zip(cumulative(s), s, strict=True)] for s in chain.states
    ]
    lost = np.zeros(count, dtype=np.bool_)
    for i, (u, v) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
        for limit, next_state, loss in table[state]:
            if u < limit:
                lost[i] = v < loss
                state = next_state
                break
    return lost


def cumulative(outcomes: tuple[Outcome, ...]) -> list[int]:
    """Thresholds on the first random word, the last one always ONE so that some outcome is taken."""
    total, limits = 0.0, []
    for o in outcomes:
        total += o.probability
        limits.append(threshold(total))
    limits[-1] = ONE
    return limits


def block_lost(*, seed: int, step: int, half: int, source: int, destination: int, block: int, loss: float) -> bool:
    """Is this whole block lost? The ebpf program computes the same hash from the datagram's header."""
    z = mix((seed & MASK64) ^ ((step << 32) | block))
    z = mix((z + ((half << 32) | (source << 16) | destination)) & MASK64)
    return (z >> 32) < threshold(loss)
