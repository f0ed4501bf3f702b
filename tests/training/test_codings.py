"""Channels around a channel, and workers that train by themselves for a while."""

from __future__ import annotations

import threading
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch

from lossbench.workloads import sync
from lossbench.workloads.errors import OptionError
from lossbench.workloads.sync.channels.simulated import Rule
from lossbench.workloads.sync.coding import CODINGS, check, hadamard
from lossbench.workloads.sync.coding.bits import Bfloat16
from lossbench.workloads.sync.coding.hadamard import Hadamard
from lossbench.workloads.sync.patience import FIRST, Patience
from lossbench.workloads.training import prepare, settings
from lossbench.workloads.transport import tuning
from tests.training.test_strategies import alone_on_everything, train
from tests.training.workers import over_loopback, simulated, together

pytestmark = pytest.mark.training
WORLD, SIZE = 4, 40_000
COUNTS, OWNERS = (SIZE // WORLD,) * WORLD, tuple(range(WORLD))

OURS = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()


def around(coding: Any, channels: list[Any]) -> list[Any]:
    return [lambda make=make: coding(make()) for make in channels]


def test_reliable_directly_is_reliable_in_a_ring() -> None:
    """785 parameters among four: the last part is shorter."""
    wanted = alone_on_everything("adamw")
    for channels in (simulated(WORLD), over_loopback(WORLD)):
        for values in together(channels, lambda c: train(c, "reliable", "adamw", direct=True)):
            torch.testing.assert_close(values, wanted, rtol=1e-3, atol=1e-4)


def test_tcp_has_the_congestion_control_that_was_asked_for_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: the machine's, whatever that is; over links that lose a tenth cubic takes six times as long as bbr."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    before = tuning.own("127.0.0.1")
    asked = "reno" if "reno" not in {*before.values(), OURS} else "cubic"
    met = threading.Barrier(WORLD)

    def work(channel: Any) -> tuple[dict[int, str], list[str]]:
        for _ in range(3):
            channel.mean(torch.ones(SIZE))
        met.wait()
        found = {n: c for n, c in tuning.own("127.0.0.1").items() if n not in before}
        met.wait()
        return found, channel.notes

    for found, notes in together(over_loopback(WORLD, tcp=asked), work):
        assert set(found.values()) == {asked} and notes == [f"TCP: {asked}"]
    for _, notes in together(over_loopback(WORLD), work):
        assert notes == [f"TCP: {OURS}"]


def test_a_congestion_control_that_this_kernel_lacks_is_refused_with_those_it_has() -> None:
    with pytest.raises(OptionError, match=r"tcp: fast: this kernel has .*reno"):
        prepare.check([{"strategy": "reliable", "tcp": "fast"}])


def test_gradients_by_random_owners_are_the_same_mean_by_others_at_every_step() -> None:
    wanted = alone_on_everything("adamw")
    asked: list[tuple[int, ...]] = []

    def work(channel: Any) -> torch.Tensor:
        begin = channel.begin_scatter
        channel.begin_scatter = lambda values, **how: (asked.append(how["owners"]), begin(values, **how))[1]
        return train(channel, "gradient_averaging", "adamw", owners="random")

    for values in together(simulated(WORLD), work):
        torch.testing.assert_close(values, wanted, rtol=1e-3, atol=1e-4)
    assert len(set(asked)) > 2 and all(sorted(owners) == list(OWNERS) for owners in asked)


def test_optireduce_without_loss_is_the_mean_of_all_gradients() -> None:
    wanted = alone_on_everything("adamw")
    for channels in (simulated(WORLD), over_loopback(WORLD)):
        for values in together(channels, lambda c: train(c, "optireduce", "adamw")):
            torch.testing.assert_close(values, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "buckets"), [("optireduce", 1), ("bounded_drift", 2)])
def test_each_bucket_waits_at_most_as_long_as_most_of_its_first_halves_took(name: str, buckets: int) -> None:
    def work(channel: Any) -> list[float | None]:
        parameter = torch.nn.Parameter(torch.zeros(4000))
        optimizer = torch.optim.SGD([parameter], 0.1)
        strategy = sync.make(name, optimizer, channel, patience=90.0, buckets=buckets)
        seen, set_deadline = [], channel.set_deadline
        channel.set_deadline = lambda seconds: (seen.append(seconds), set_deadline(seconds))[1]
        for _ in range(25):
            parameter.grad = torch.ones(4000)
            strategy.step()
        return seen

    for seen in together(over_loopback(WORLD), work):
        assert len(seen) == 2 * 2 * buckets * 5, "twenty steps without a bound, then five with it, for every half"
        assert seen[1::2] == [None] * (2 * buckets * 5), "whatever else goes this way has the time it had"
        bounds = seen[::2]
        assert all(0 < bound < 60 for bound in bounds)
        assert len(set(bounds[: 2 * buckets])) == 2 * buckets, "each half of each bucket has its own"


def test_a_bound_follows_what_halves_take_lately_and_never_passes_the_first_ones() -> None:
    """As it was: frozen after twenty steps, however fast or slow halves became."""
    waits = Patience(95.0)
    for number in range(FIRST):
        assert waits.seconds("scatter", 0) is None
        waits.heard("scatter", 0, 0.1 + 0.001 * number)
    first = waits.seconds("scatter", 0)
    assert first == pytest.approx(0.118, abs=0.001)
    for _ in range(60):
        waits.heard("scatter", 0, 0.05)
    sooner = waits.seconds("scatter", 0)
    assert sooner is not None and sooner == pytest.approx(0.05 * 0.11805 / 0.1095, rel=0.01), (
        "with as much room as at first"
    )
    for _ in range(60):
        waits.heard("scatter", 0, 3.0)
    assert waits.seconds("scatter", 0) == first
    assert waits.seconds("gather", 0) is None


@pytest.mark.parametrize(("share", "moves"), [(0.2, False), (1.0, True)])
def test_optireduce_skips_an_update_of_which_too_much_is_missing(share: float, moves: bool) -> None:
    def work(channel: Any) -> tuple[float, list[str]]:
        parameter = torch.nn.Parameter(torch.zeros(SIZE))
        strategy = sync.make("optireduce", torch.optim.SGD([parameter], 0.1), channel, skip_above=share)
        for _ in range(3):
            parameter.grad = torch.ones(SIZE)
            strategy.step()
        return float(parameter.detach().abs().sum()), channel.notes

    for moved, notes in together(simulated(WORLD, Rule.iid(0.5)), work):
        assert (moved > 0) == moves
        assert any("skipped updates: 3" in note for note in notes) != moves


@pytest.mark.parametrize("half", [0, 1])
def test_one_half_of_which_too_much_is_missing_is_enough_to_skip(half: int) -> None:
    def work(channel: Any) -> float:
        parameter = torch.nn.Parameter(torch.zeros(SIZE))
        strategy = sync.make("optireduce", torch.optim.SGD([parameter], 0.1), channel, skip_above=0.2)
        parameter.grad = torch.ones(SIZE)
        strategy.step()
        return float(parameter.detach().abs().sum())

    assert together(simulated(WORLD, Rule.iid(0.9, halves=(half,))), work) == [0.0] * WORLD


def test_a_call_that_waits_for_its_turn_has_the_deadline_that_it_was_asked_with() -> None:
    """As calls on a GPU's tensors do: the bound was gone when their turn came."""

    def work(channel: Any) -> list[float]:
        parameter = torch.nn.Parameter(torch.zeros(4000))
        strategy = sync.make("bounded_drift", torch.optim.SGD([parameter], 0.1), channel, patience=100.0, buckets=2)
        endpoint, used = channel.group._endpoint, []
        begin, prepare = endpoint.begin, endpoint.prepare
        endpoint.begin = lambda run, queued: begin(run, queued=True)
        endpoint.prepare = lambda *halves: (prepare(*halves), used.extend(h.record.deadline for h in halves))[0]
        for _ in range(24):
            parameter.grad = torch.ones(4000)
            strategy.step()
        return used

    for used in together(over_loopback(WORLD), work):
        halves = [bound for bound in used if bound]
        assert len(halves) == 4 * 2 * 2 and len(used) == 24 * 2 * 2


@pytest.mark.parametrize("count", [1, 2, 3, 1000, 16_384, 50_001])
def test_the_transform_is_its_own_inverse_and_keeps_lengths(count: int) -> None:
    values = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(count))
    turned = hadamard.turn(values, (count,))
    assert sum(size * times for size, times in hadamard.pieces(count)) == count
    torch.testing.assert_close(hadamard.turn(turned, (count,)), values)
    assert float(turned.norm()) == pytest.approx(float(values.norm()))


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_with_the_transform_a_lost_packet_reaches_numbers_without_a_gradient(name: str) -> None:
    """And Adam moves those as far as all others, each worker elsewhere: the drift of optireduce on text."""
    generator = torch.Generator().manual_seed(0)
    given, without = torch.randn(SIZE, generator=generator), torch.rand(SIZE, generator=generator) < 0.5
    given[without] = 0.0
    lr = 1e-3

    def moved(channel: Any) -> torch.Tensor:
        values = torch.nn.Parameter(torch.zeros(SIZE))
        optimizer = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[name]([values], lr=lr)
        strategy = sync.find("gradient_averaging")(optimizer, channel, rule="zero")
        values.grad = given.clone()
        strategy.step()
        return values.detach()[without].clone()

    def found(coding: Any) -> torch.Tensor:
        channels = simulated(WORLD, Rule.iid(0.1))
        return torch.stack(together(around(coding, channels) if coding else channels, moved))

    assert not found(None).any(), "nothing comes of a gradient that is missing where it was nothing"
    turned = found(Hadamard)
    typical = float(turned.abs().median()) / lr
    low, high = {"adamw": (0.9, 1.1), "sgd": (0.0, 0.3)}[name]
    assert low < typical < high
    assert float((turned[0].sign() != turned[1].sign()).double().mean()) > 0.3


@pytest.mark.parametrize("name", ["gradient_averaging", "bounded_drift"])
def test_without_loss_hadamard_changes_nothing(name: str) -> None:
    wanted = alone_on_everything("adamw")
    for channels in (simulated(WORLD), over_loopback(WORLD)):
        for values in together(around(Hadamard, channels), lambda c: train(c, name, "adamw", buckets=3)):
            torch.testing.assert_close(values, wanted, rtol=1e-3, atol=1e-4)


def gathered(channel: Any, *, zero_missing: bool = True) -> torch.Tensor:
    """Everybody's block of ones; what is missing is zero, or what was there."""
    channel.set_step(3)
    out = torch.full((SIZE,), 5.0)
    half = channel.begin_gather(
        torch.ones(COUNTS[0]), out, counts=COUNTS, owners=OWNERS, zero_missing=zero_missing, slot=0
    )
    half.wait()
    return out


def test_a_lost_packet_takes_a_little_of_many_numbers_instead_of_all_of_some() -> None:
    lost = Rule.iid(0.3)
    plain = together(simulated(WORLD, lost), gathered)[0]
    spread = together(around(Hadamard, simulated(WORLD, lost)), gathered)[0]
    share = float((plain == 0).float().mean())
    assert 0.1 < share < 0.4
    assert float((spread.abs() < 1e-3).float().mean()) < share / 4, "hardly anything is gone altogether"
    errors = [float((one - 1).square().mean()) for one in (plain, spread)]
    assert errors[1] == pytest.approx(errors[0], rel=0.3), "what is lost is lost, but shared"


@pytest.mark.parametrize("coding", [Hadamard, Bfloat16])
def test_what_did_not_come_keeps_what_was_there(coding: Any) -> None:
    out = together(around(coding, simulated(WORLD, Rule.iid(1.0))), lambda c: gathered(c, zero_missing=False))[0]
    own = slice(0, COUNTS[0])
    torch.testing.assert_close(out[COUNTS[0] :], torch.full((SIZE - COUNTS[0],), 5.0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out[own], torch.ones(COUNTS[0]), rtol=1e-4, atol=1e-4)


def test_bfloat16_halves_what_is_sent_and_trains_as_well() -> None:
    def work(channel: Any) -> tuple[torch.Tensor, int]:
        gathered(channel)
        return train(channel, "gradient_averaging", steps=3), int(channel.counters()["payload_bytes"])

    wide = together(over_loopback(WORLD), work)
    narrow = together(around(Bfloat16, over_loopback(WORLD)), work)
    assert narrow[0][1] == pytest.approx(wide[0][1] / 2, rel=0.1)
    torch.testing.assert_close(narrow[0][0], wide[0][0], rtol=0.05, atol=0.01)


def test_workers_meet_every_few_steps_and_say_nothing_between() -> None:
    def work(channel: Any) -> list[torch.Tensor]:
        return [train(channel, "local_steps", steps=steps, every=4) for steps in (4, 6)]

    found = together(simulated(WORLD), work)
    for values in found[1:]:
        torch.testing.assert_close(values[0], found[0][0])
        assert not torch.equal(values[1], found[0][1]), "two steps after the exchange"


def test_local_steps_of_one_are_the_mean_of_all_gradients() -> None:
    wanted = alone_on_everything("sgd")
    for values in together(simulated(WORLD), lambda c: train(c, "local_steps", every=1)):
        torch.testing.assert_close(values, wanted, rtol=1e-4, atol=1e-5)


def test_the_outer_step_is_nesterovs() -> None:
    """Two exchanges of one worker whose own steps are known: by hand."""

    def work(channel: Any) -> list[float]:
        parameter = torch.nn.Parameter(torch.zeros(4))
        options = {"every": 1, "outer_lr": 0.5, "outer_momentum": 0.9}
        strategy = sync.make("local_steps", torch.optim.SGD([parameter], 1.0), channel, **options)
        seen = []
        for _ in range(2):
            parameter.grad = torch.ones(4)
            strategy.step()
            seen.append(float(parameter.detach()[0]))
        return seen

    first = -0.5 * (1 + 0.9 * 1)
    second = first - 0.5 * (1 + 0.9 * 1.9)
    assert together(simulated(2), work)[0] == pytest.approx([first, second])


@pytest.mark.parametrize("outer", [{}, {"outer_lr": 0.7, "outer_momentum": 0.9}])
def test_workers_that_meet_once_without_loss_are_together_again(outer: dict[str, float]) -> None:
    """As it was, ways gone were averaged: whoever had missed a part of them once stayed apart for good."""
    lossy = Rule.iid(0.3, steps=(0, 16))
    for steps, equal in ((16, False), (20, True)):
        channels = simulated(WORLD, lossy)
        found = together(channels, lambda c, s=steps: train(c, "local_steps", steps=s, every=4, **outer))
        assert all(torch.equal(one, found[0]) for one in found[1:]) == equal


@pytest.mark.parametrize(("outer", "most"), [({}, 2.0), ({"outer_lr": 0.7, "outer_momentum": 0.9}, 4.0)])
def test_workers_that_lose_a_tenth_stay_as_near_as_those_of_rps(outer: dict[str, float], most: float) -> None:
    """25 rounds; as it was, six times as far and more. With momentum the steps, and so what is missed, are larger."""

    def apart(name: str, **options: Any) -> float:
        rounds = simulated(WORLD, Rule.iid(0.1))
        rows = torch.stack(together(rounds, lambda c: train(c, name, steps=100, every=4, **options)))
        return float(rows.var(0).sum())

    assert 0 < apart("local_steps", **outer) < most * apart("rps")


def test_plain_local_steps_without_loss_are_those_of_rps() -> None:
    ours, theirs = (
        together(simulated(WORLD), lambda c, n=name: train(c, n, every=3)) for name in ("local_steps", "rps")
    )
    torch.testing.assert_close(ours[0], theirs[0])


def test_what_was_lost_of_a_model_joins_no_next_step() -> None:
    with pytest.raises(OptionError, match="local_steps sends models"):
        settings.read({"strategy": "local_steps", "coding": ["error_feedback"]})


def test_local_steps_go_on_from_a_checkpoint() -> None:
    def work(channel: Any) -> tuple[torch.Tensor, torch.Tensor]:
        parameter = torch.nn.Parameter(torch.arange(8.0))
        strategy = sync.make("local_steps", torch.optim.SGD([parameter], 0.1), channel, every=3, outer_momentum=0.5)
        for _ in range(4):
            parameter.grad = torch.ones(8)
            strategy.step()
        state = strategy.state_dict()
        again = sync.make(
            "local_steps", torch.optim.SGD([torch.nn.Parameter(parameter.detach().clone())], 0.1), channel, every=3
        )
        again.load_state_dict(state)
        return strategy.anchors[0], again.anchors[0]

    before, after = together(simulated(2), work)[0]
    torch.testing.assert_close(before, after)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"every": 0}, "at least 1"), ({"outer_lr": 0.0}, "above 0"), ({"outer_momentum": 1.0}, "below 1")],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        sync.find("local_steps").told(options)


@pytest.mark.parametrize("name", ["none", "reliable", "ddp"])
def test_a_coding_that_would_never_be_used_is_refused(name: str) -> None:
    """The table said "Hadamard" below lines that had none."""
    with pytest.raises(OptionError, match=f"{name} has no halves that a coding could change"):
        settings.read({"strategy": name, "coding": ["hadamard"]})
    assert settings.read({"strategy": "rps", "coding": ["hadamard", "bfloat16"]}).coding == ("hadamard", "bfloat16")


def test_a_coding_is_named_once_and_only_when_it_was_used() -> None:
    def work(channel: Any) -> list[list[str]]:
        coded, seen = Hadamard(Bfloat16(channel)), []
        for use in (lambda: None, lambda: train(coded, "gradient_averaging", steps=2)):
            use()
            seen.append(list(coded.notes))
        return seen

    assert together(simulated(WORLD), work)[0] == [[], ["Hadamard", "bfloat16 on the wire"]]


def test_a_coding_of_no_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="no coding 'nothing'; known are hadamard, bfloat16"):
        sync.coding("nothing")


PAIRS = list(permutations(("hadamard", "bfloat16", "int8", "fec", "error_feedback", "important"), 2))


def accepted(pair: tuple[str, ...]) -> bool:
    try:
        check(pair)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("pair", [(one,) for one in CODINGS] + [pair for pair in PAIRS if accepted(pair)], ids="+".join)
def test_codings_that_are_accepted_together_lose_what_one_loses(pair: tuple[str, ...]) -> None:
    """As it was, hadamard within bfloat16 spread what is marked as missing over whole pieces, and training was gone."""
    size, rounds = 20_000, 3
    counts = (size // 2,) * 2

    def work(channel: Any) -> list[float]:
        for name in reversed(pair):
            channel = sync.coding(name)(channel)
        generator = torch.Generator().manual_seed(channel.rank)
        off = []
        for step in range(rounds):
            channel.set_step(step)
            given, out = torch.randn(size, generator=generator), torch.zeros(size)
            mean = channel.begin_scatter(given, counts=counts, owners=(0, 1)).wait()[0]
            channel.begin_gather(mean, out, counts=counts, owners=(0, 1)).wait()
            off.append(float(out.square().mean()))
        return off

    for found in together(simulated(2, Rule.iid(0.1)), work):
        assert all(0.3 < one < 0.8 for one in found), "the mean of two is half as far from zero"


def test_codings_that_would_destroy_each_other_are_refused() -> None:
    for pair in (("bfloat16", "hadamard"), ("hadamard", "error_feedback"), ("error_feedback", "hadamard")):
        assert not accepted(pair)
    with pytest.raises(OptionError, match="bfloat16 around hadamard can't tell what is missing"):
        settings.read({"coding": ["bfloat16", "hadamard"]})
    assert settings.read({"coding": ["hadamard", "bfloat16"]}).coding == ("hadamard", "bfloat16")
