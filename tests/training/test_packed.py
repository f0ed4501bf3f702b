"""Codings that make packets of their own: parity, bytes for numbers, what was lost joining the next step."""

from __future__ import annotations

from functools import partial
from math import comb
from typing import Any

import numpy as np
import pytest
import torch

from lossbench.workloads import sync
from lossbench.workloads.errors import OptionError
from lossbench.workloads.sync.channels.simulated import Rule
from lossbench.workloads.sync.coding import gf256
from lossbench.workloads.sync.coding.bits import Bfloat16, Int8
from lossbench.workloads.sync.coding.fec import Fec
from lossbench.workloads.sync.coding.feedback import ErrorFeedback
from lossbench.workloads.sync.coding.hadamard import Hadamard
from lossbench.workloads.sync.coding.important import Important
from lossbench.workloads.training import settings
from tests.forms import forms
from tests.training.test_codings import COUNTS, OWNERS, WORLD, around, gathered
from tests.training.test_strategies import alone_on_everything, train
from tests.training.workers import over_loopback, simulated, together

pytestmark = pytest.mark.training
LONG = 358 * 120  # numbers of a block: packets that fill their groups


@pytest.mark.parametrize(("k", "m"), [(1, 1), (4, 1), (10, 2), (20, 5), (128, 64)])
def test_any_k_of_k_and_m_packets_are_enough(k: int, m: int) -> None:
    random = np.random.default_rng(k)
    data = random.integers(0, 256, (k, 30, 16), dtype=np.uint8)
    matrix = gf256.cauchy(m, k)
    parity = gf256.combine(matrix, data)
    there = np.array([random.permutation(k + m) < k for _ in range(30)]).T  # exactly k, another choice in each group
    table, came = data * there[:k, :, None], there[:k].copy()
    gf256.restore(table, came, parity * there[k:, :, None], there[k:], matrix)
    assert came.all() and (table == data).all()
    assert (matrix[0] == 1).all(), "the first is their exclusive or"


def test_one_packet_too_few_restores_nothing_and_says_so() -> None:
    matrix = gf256.cauchy(2, 4)
    data = np.arange(4 * 5, dtype=np.uint8).reshape(4, 1, 5)
    there = np.array([[False], [False], [True], [True]])
    parity = gf256.combine(matrix, data)
    gf256.restore(data * there[..., None], there, parity, np.array([[True], [False]]), matrix)
    assert there[:, 0].tolist() == [False, False, True, True]


def residual(loss: float, k: int, m: int) -> float:
    """Lost, and of the others of its group too many as well."""
    others = k + m - 1
    return loss * sum(comb(others, n) * loss**n * (1 - loss) ** (others - n) for n in range(m, others + 1))


@forms(("k", "m", "loss"), [(10, 2, 0.1), (10, 1, 0.05), (4, 2, 0.2)])
def test_what_parity_does_not_bring_back_is_what_theory_says(k: int, m: int, loss: float) -> None:
    counts = (LONG,) * WORLD

    def work(channel: Any) -> tuple[int, int]:
        lost = packets = 0
        for step in range(40):
            channel.set_step(step)
            out = torch.zeros(sum(counts))
            _, account = channel.begin_gather(torch.ones(LONG), out, counts=counts, owners=OWNERS, slot=0).wait()
            packets += sum(len(bits) for bits in account.arrived.values())
            lost += account.lost
            assert int((out == 0).sum()) <= account.lost * 358
        return lost, packets

    found = together(around(partial(Fec, k=k, m=m), simulated(WORLD, Rule.iid(loss))), work)
    lost, packets = (sum(part) for part in zip(*found, strict=True))
    assert packets == 40 * 12 * 120
    assert lost / packets == pytest.approx(residual(loss, k, m), rel=0.1)


def test_the_largest_parts_of_a_gradient_go_first_and_every_packet_says_which_it_is() -> None:
    coding = Important(simulated(2)[0]())
    block = torch.arange(1000.0)  # the later the larger
    width = coding.width(1000, 4)
    rows = coding.write(block, width, half="reduce_scatter")
    packets = coding.packets(1000, 4, width)
    places = rows.reshape(packets, width)[:, :8].copy().view("<u8")[:, 0]
    assert packets > 2 and places[:-1].tolist() == sorted(places[:-1].tolist(), reverse=True)
    came = np.ones(packets, np.bool_)
    came[0] = False
    values, there, each = coding.read(rows, came, block)
    gone = int(places[0])
    assert there.tolist() == [place != gone for place in range(packets)]
    kept = torch.ones(1000, dtype=torch.bool)
    kept[gone * each : (gone + 1) * each] = False
    assert torch.equal(values[kept], block[kept]) and not values[~kept].any()


def test_in_the_second_half_no_part_is_always_the_last() -> None:
    coding = Important(simulated(2)[0]())
    width, last = coding.width(4000, 4), set()
    for step in range(30):
        coding.set_step(step)
        rows = coding.write(torch.arange(4000.0), width, half="all_gather")
        last.add(int(rows.reshape(-1, width)[-1, :8].copy().view("<u8")[0]))
    assert len(last) > 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_packet_that_names_an_impossible_part_is_read_as_none(dtype: torch.dtype) -> None:
    coding = Important(simulated(2)[0]())
    block = torch.full((3000,), -1.5, dtype=dtype)
    width = coding.width(3000, block.element_size())
    rows = coding.write(block, width, half="reduce_scatter").copy()
    rows[:8] = 255
    values, there, each = coding.read(rows, np.ones(len(rows) // width, np.bool_), block)
    assert values.dtype == dtype and int((~there).sum()) == 1 and 0 < int((values == 0).sum()) <= each
    assert set(values.tolist()) == {0.0, -1.5}


def test_what_is_large_is_large_whatever_its_sign_and_type() -> None:
    coding = Important(simulated(2)[0]())
    block = torch.full((4000,), -0.001, dtype=torch.bfloat16)
    block[3000:] = 100.0
    width = coding.width(4000, 2)
    rows = coding.write(block, width, half="reduce_scatter")
    values, there, _ = coding.read(rows, np.ones(len(rows) // width, np.bool_), block)
    assert there.all() and torch.equal(values, block)
    first = int(rows[:8].copy().view("<u8")[0])
    assert first == len(there) - 1 or first == len(there) - 2, "where the hundreds are"


@pytest.mark.parametrize("coding", [Fec, ErrorFeedback, Important])
@forms("name", ["bounded_drift", "gradient_averaging"])
def test_without_loss_the_result_is_that_of_one_worker_with_all_data(coding: Any, name: str) -> None:
    wanted = alone_on_everything("adamw")
    for channels in (simulated(WORLD), over_loopback(WORLD)):
        for values in together(around(coding, channels), lambda c: train(c, name, "adamw", buckets=3)):
            torch.testing.assert_close(values, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("coding", [Fec, Int8, ErrorFeedback])
@pytest.mark.parametrize("zero", [True, False])
def test_what_did_not_come_keeps_what_was_there_or_is_zero(coding: Any, zero: bool) -> None:
    out = together(around(coding, simulated(WORLD, Rule.iid(1.0))), lambda c: gathered(c, zero_missing=zero))[0]
    assert out[COUNTS[0] :].unique().tolist() == [0.0 if zero else 5.0]
    torch.testing.assert_close(out[: COUNTS[0]], torch.ones(COUNTS[0]))


def test_the_mean_is_of_what_can_be_read_by_every_normaliser() -> None:
    def work(channel: Any) -> list[torch.Tensor]:
        found = []
        for normaliser in ("count", "world", "expected"):
            values = torch.full((sum(COUNTS),), float(channel.rank + 1))
            half = channel.begin_scatter(values, counts=COUNTS, owners=OWNERS, normaliser=normaliser)
            found.append(half.wait()[0])
        return found

    plain = together(simulated(WORLD, Rule.iid(0.3), seed=4), work)
    coded = together(around(partial(Fec, k=128, m=1), simulated(WORLD, Rule.iid(0.3), seed=4)), work)
    for ours, theirs in zip(coded[0], plain[0], strict=True):
        assert float(ours.mean()) == pytest.approx(float(theirs.mean()), rel=0.05)
    count, world, expected = (float(one.mean()) for one in coded[0])
    assert 1.5 < count < 2.6 and 1.5 < world < 2.2 and expected == pytest.approx(2.5, rel=0.1)


@pytest.mark.parametrize("coding", [lambda c: c, Important])
def test_a_worker_that_is_heard_less_counts_as_much_where_means_are_unbiased(coding: Any) -> None:
    """As it was, `expected` divided by what came of all workers together: of one that loses 40 % its weight was .17."""
    bad = Rule.iid(0.4, sources=(1,))

    def work(channel: Any) -> float:
        seen = []
        for step in range(40):
            channel.set_step(step)
            values = torch.full((sum(COUNTS),), float(channel.rank == 1))
            mean, _ = channel.begin_scatter(values, counts=COUNTS, owners=OWNERS, normaliser="expected").wait()
            seen.append(float(mean.mean()))
        return float(np.mean(seen))

    weights = together(around(coding, simulated(WORLD, bad)), work)
    assert weights == pytest.approx([1 / WORLD] * WORLD, abs=0.02)


def test_sums_of_bfloat16_are_made_in_float32() -> None:
    """As it was where loss is simulated, 256 + 1 + 1 + 1 was 256."""

    def work(channel: Any) -> float:
        values = torch.full((sum(COUNTS),), 256.0 if channel.rank == 0 else 1.0)
        return float(channel.begin_scatter(values, counts=COUNTS, owners=OWNERS).wait()[0][0])

    for channels in (simulated(WORLD), over_loopback(WORLD)):
        assert together(around(Bfloat16, channels), work) == pytest.approx([259 / 4] * WORLD, abs=0.26)


@pytest.mark.parametrize("size", [1, 7, 1400, 5000])
def test_int8_is_near_by_half_a_step_of_its_packet_and_right_on_average(size: int) -> None:
    values = torch.randn(size, generator=torch.Generator().manual_seed(size)) * 3
    (channel,) = simulated(1)
    coding = Int8(channel())
    width = coding.width(size, 4)

    def once(half: str) -> torch.Tensor:
        rows = coding.write(values, width, half=half)
        assert len(rows) == coding.packets(size, 4, width) * width
        return coding.read(rows, np.ones(len(rows) // width, np.bool_), values)[0]

    step = float(values.abs().max()) / 127
    assert float((once("all_gather") - values).abs().max()) <= step / 2 + 1e-6
    mean = torch.stack([once("reduce_scatter") for _ in range(400)]).mean(0)
    assert float((mean - values).abs().max()) < 6 * step / 2 / 400**0.5


def test_int8_sends_a_quarter_and_workers_stay_together() -> None:
    def work(channel: Any) -> tuple[torch.Tensor, int]:
        gathered(channel)
        sent = int(channel.counters()["payload_bytes"])
        return train(channel, "gradient_averaging", steps=4), sent

    wide = together(over_loopback(WORLD), work)
    narrow = together(around(Int8, over_loopback(WORLD)), work)
    assert narrow[0][1] == pytest.approx(wide[0][1] / 4, rel=0.1)
    assert all(torch.equal(values, narrow[0][0]) for values, _ in narrow), "whoever sent a mean uses what others got"
    torch.testing.assert_close(narrow[0][0], wide[0][0], rtol=0.1, atol=0.03)


@pytest.mark.parametrize("coding", [Bfloat16, Int8, lambda c: Hadamard(Int8(c)), lambda c: Hadamard(Bfloat16(c))])
def test_an_owners_own_values_are_not_rounded(coding: Any) -> None:
    """As it was, steps smaller than what bfloat16 can tell apart were lost at every broadcast of bounded_drift."""

    def work(channel: Any) -> torch.Tensor:
        parameter = torch.nn.Parameter(torch.full((4 * WORLD,), 1.0))
        strategy = sync.make("bounded_drift", torch.optim.SGD([parameter], 1e-4), channel)
        for _ in range(20):
            parameter.grad = torch.ones(4 * WORLD)
            strategy.step()
        return parameter.detach()[channel.rank * 4 : channel.rank * 4 + 4]

    for own in together(around(coding, simulated(WORLD)), work):
        torch.testing.assert_close(own, torch.full((4,), 1 - 20e-4))


def test_a_number_that_is_none_takes_its_packet_with_it_not_the_others() -> None:
    coding = Int8(simulated(1)[0]())
    values = torch.ones(3000)
    values[0] = float("nan")
    rows = coding.write(values, coding.width(3000, 4), half="all_gather")
    out = coding.read(rows, np.ones(3, np.bool_), values)[0]
    assert bool(out[0].isnan()) and not bool(out[1500:].isnan().any())


def test_what_was_lost_joins_the_next_step() -> None:
    """Everything lost in the first step, nothing in the second: the owner has both."""
    first = Rule.iid(1.0, halves=(0,), steps=(0, 1))

    def work(channel: Any) -> list[float]:
        seen = []
        for step in range(3):
            channel.set_step(step)
            values = torch.full((sum(COUNTS),), 1.0)
            mean, _ = channel.begin_scatter(values, counts=COUNTS, owners=OWNERS).wait()
            seen.append(float(mean.mean()))
        return seen

    seen = together(around(ErrorFeedback, simulated(WORLD, first)), work)[0]
    assert seen == pytest.approx([1 / WORLD, (1 + 2 * (WORLD - 1)) / WORLD, 1.0])


def test_with_error_feedback_all_of_every_gradient_arrives_in_the_end() -> None:
    def work(channel: Any) -> float:
        total = 0.0
        for step in range(60):
            channel.set_step(step)
            mean, _ = channel.begin_scatter(torch.ones(sum(COUNTS)), counts=COUNTS, owners=OWNERS).wait()
            total += float(mean.mean())
        return total / 60

    with_it = together(around(ErrorFeedback, simulated(WORLD, Rule.iid(0.4))), work)
    assert np.mean(with_it) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize(
    ("strategy", "names", "said"),
    [
        ("rps", ["error_feedback"], "rps sends models"),
        ("bounded_drift", ["fec", "hadamard"], "'fec' makes the packets: it must stand last"),
        ("bounded_drift", ["int8", "fec"], "it must stand last"),
        ("bounded_drift", ["hadamard", "error_feedback"], "choose one"),
        ("bounded_drift", ["hadamard", "hadamard"], "'hadamard' is there already"),
        ("optireduce", ["hadamard"], "'hadamard' is there already"),
        ("optireduce", ["error_feedback"], "choose one"),
        ("bounded_drift", ["fec(0,2)"], r"packets of data \(1 to 128\)"),
        ("bounded_drift", ["fec(10)"], r"packets of data \(1 to 128\)"),
        ("bounded_drift", ["int8(3)"], "int8 takes no numbers"),
        ("bounded_drift", ["fec(10,2"], "no coding"),
    ],
)
def test_codings_that_do_not_go_together_are_refused(strategy: str, names: list[str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        settings.read({"strategy": strategy, "coding": names})
    settings.read({"strategy": "rps", "coding": ["hadamard", "bfloat16", "fec(8,3)"]})


def test_other_seeds_round_and_turn_otherwise() -> None:
    def work(channel: Any, seed: int, make: Any) -> torch.Tensor:
        coding = make(channel)
        coding.seed = seed
        values = torch.arange(float(sum(COUNTS)))
        return coding.begin_scatter(values, counts=COUNTS, owners=OWNERS).wait()[0]

    for make in (Int8, lambda c: Hadamard(Int8(c))):
        one, same, other = (together(simulated(WORLD), lambda c, s=s, m=make: work(c, s, m))[0] for s in (1, 1, 2))
        assert torch.equal(one, same) and not torch.equal(one, other)


@pytest.mark.parametrize("coding", [Fec, Int8, ErrorFeedback])
def test_over_real_sockets_it_is_the_same(coding: Any) -> None:
    for out in together(around(coding, over_loopback(WORLD)), gathered):
        torch.testing.assert_close(out, torch.ones(sum(COUNTS)))


@pytest.mark.gpu
@pytest.mark.parametrize("coding", [Hadamard, Bfloat16, Int8, Fec, ErrorFeedback])
def test_numbers_of_a_gpu_are_coded_as_those_of_a_processor(coding: Any) -> None:
    def work(channel: Any, device: str) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(channel.rank)
        values = torch.randn(sum(COUNTS), generator=generator).to(device)
        out = torch.zeros(sum(COUNTS), device=device)
        mean, _ = channel.begin_scatter(values, counts=COUNTS, owners=OWNERS).wait()
        channel.begin_gather(mean, out, counts=COUNTS, owners=OWNERS).wait()
        assert mean.device.type == out.device.type == device
        return [mean.cpu(), out.cpu()]

    here = together(around(coding, over_loopback(WORLD)), lambda c: work(c, "cpu"))
    there = together(around(coding, over_loopback(WORLD)), lambda c: work(c, "cuda"))
    for a, b in zip(here, there, strict=True):
        for one, other in zip(a, b, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)
