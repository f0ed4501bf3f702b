"""What every strategy promises: equal to its reliable twin without loss, workers that agree or drift as stated under
loss."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lossbench.cli import listing
from lossbench.workloads import sync
from lossbench.workloads.errors import AbsentError
from lossbench.workloads.sync.channels.simulated import Rule
from lossbench.workloads.sync.vectors.flat import Flat
from lossbench.workloads.sync.vectors.shards import cut
from tests.training.workers import batch, over_loopback, simulated, small_model, together

pytestmark = pytest.mark.training
WORLD, STEPS = 4, 6
MEETINGS = [("rps", 1, 4), ("rps", 8, 0), ("local_steps", 8, 0), ("reliable", 8, 0)]
EXCHANGING = ("gradient_averaging", "rps", "bounded_drift")
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, 1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, 1e-2),
    "adafactor": lambda p: torch.optim.Adafactor(p, 1e-2),
}


def train(channel: Any, name: str, optimizer: str = "sgd", steps: int = STEPS, **options: Any) -> torch.Tensor:
    torch.set_num_threads(1)
    model = small_model()
    strategy = sync.make(name, OPTIMIZERS[optimizer](model.parameters()), channel, **options)
    for step in range(steps):
        inputs, labels = batch(channel.rank, step)
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        strategy.step()
    return strategy.flat.values.clone()


def alone_on_everything(optimizer: str, steps: int = STEPS, clip: float | None = None) -> torch.Tensor:
    """The reliable twin, without any of our code: the mean of all workers' gradients, one optimizer."""
    model = small_model()
    one = OPTIMIZERS[optimizer](model.parameters())
    for step in range(steps):
        one.zero_grad()
        for rank in range(WORLD):
            inputs, labels = batch(rank, step)
            (torch.nn.functional.cross_entropy(model(inputs), labels) / WORLD).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        one.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["reliable", "gradient_averaging", "bounded_drift"])
def test_without_loss_a_strategy_equals_training_on_all_gradients(name: str, optimizer: str) -> None:
    wanted = alone_on_everything(optimizer)
    for values in together(simulated(WORLD), lambda channel: train(channel, name, optimizer)):
        torch.testing.assert_close(values, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("name", ["gradient_averaging", "bounded_drift"])
def test_bucket_by_bucket_is_the_same_training(name: str, clip: float | None) -> None:
    """Over real sockets, where several are under way at once, and in this process."""
    wanted = alone_on_everything("adamw", clip=clip)
    for channels in (simulated(WORLD), over_loopback(WORLD)):
        for values in together(channels, lambda c: train(c, name, "adamw", clip_norm=clip, buckets=3)):
            torch.testing.assert_close(values, wanted, rtol=1e-4, atol=1e-5)


def test_an_exchange_that_is_made_again_does_not_step_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank may die when owners have stepped and their values are on their way."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    strategy = sync.make("bounded_drift", optimizer, simulated(1)[0](), buckets=2)
    inputs, labels = batch(0, 0)
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    strategy.flat.collect()
    with torch.no_grad():
        with monkeypatch.context() as patch:
            patch.setattr(strategy, "end_gather", lambda: (_ for _ in ()).throw(AbsentError("rank 1 is gone", (1,))))
            with pytest.raises(AbsentError):
                strategy._step()
        moved = strategy.flat.values.clone()
        strategy.begin_exchange()
        strategy._step()
    assert torch.equal(strategy.flat.values, moved)
    counts = [state["step"].item() for shard in strategy.shards for state in shard.inner.state.values()]
    assert counts == [1.0, 1.0]


def test_rps_bucket_by_bucket_averages_every_element() -> None:
    wanted = alone_on_everything("sgd")
    for values in together(over_loopback(WORLD), lambda channel: train(channel, "rps", "sgd", buckets=5)):
        torch.testing.assert_close(values, wanted, rtol=1e-4, atol=1e-5)


def test_every_element_of_every_bucket_has_one_owner() -> None:
    def owned(channel: Any) -> tuple[list[slice], torch.Tensor]:
        strategy = sync.make("bounded_drift", OPTIMIZERS["sgd"](small_model().parameters()), channel, buckets=3)
        return strategy.own_parts(), strategy.owners_of(torch.arange(len(strategy.flat.values)))

    found = together(simulated(WORLD), owned)
    for rank, (parts, owners) in enumerate(found):
        mine = torch.cat([torch.arange(part.start, part.stop) for part in parts])
        assert torch.equal(mine, torch.nonzero(owners == rank).reshape(-1))
    assert sum(part.stop - part.start for parts, _ in found for part in parts) == len(found[0][1])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_an_optimizer_has_learned_before_is_taken_over(optimizer: str) -> None:
    """As it was: bounded_drift began with a fresh state, and said nothing."""
    whole = alone_on_everything(optimizer, steps=2 * STEPS)

    def resumed(channel: Any) -> torch.Tensor:
        model = small_model()
        mine = OPTIMIZERS[optimizer](model.parameters())
        for step in range(2 * STEPS):
            mine.zero_grad()
            if step < STEPS:  # alone, on everybody's data
                for rank in range(WORLD):
                    inputs, labels = batch(rank, step)
                    (torch.nn.functional.cross_entropy(model(inputs), labels) / WORLD).backward()
                mine.step()
                continue
            if step == STEPS:
                strategy = sync.make("bounded_drift", mine, channel)
            inputs, labels = batch(channel.rank, step)
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            strategy.step()
        return strategy.flat.values.clone()

    for values in together(simulated(WORLD), resumed):
        torch.testing.assert_close(values, whole, rtol=1e-4, atol=1e-5)


class HalfPrecise(torch.nn.Module):
    """The model of the other tests, its last layer in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_model()
        self.inner[-1].to(torch.bfloat16)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.inner[-1](self.inner[:-1](inputs).to(torch.bfloat16)).float()


@pytest.mark.parametrize("name", ["reliable", "gradient_averaging", "rps", "bounded_drift"])
def test_parameters_of_different_types_train_as_one_vector(name: str) -> None:
    """As it was: refused. bounded_drift keeps true values of the narrow ones in the wide vector."""
    wanted = alone_on_everything("sgd")

    def mixed(channel: Any) -> tuple[torch.Tensor, bool]:
        torch.set_num_threads(1)
        model = HalfPrecise()
        strategy = sync.make(name, torch.optim.SGD(model.parameters(), 0.1), channel)
        for step in range(STEPS):
            inputs, labels = batch(channel.rank, step)
            model.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            strategy.step()
        vector = strategy.flat.values
        parts = torch.split(vector, strategy.flat.counts)
        same = all(
            torch.equal(p.reshape(-1), part.to(p.dtype)) for p, part in zip(model.parameters(), parts, strict=True)
        )
        return vector.clone(), same and model.inner[-1].weight.dtype == torch.bfloat16

    for values, same in together(simulated(WORLD), mixed):
        torch.testing.assert_close(values, wanted, rtol=0.03, atol=0.003)
        assert same, "the model holds what the vector holds"


def test_every_parameter_and_group_is_watched() -> None:
    """As it was: the first parameter only."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    strategy = sync.make("rps", optimizer, simulated(1)[0]())
    list(model.parameters())[-1].data = torch.zeros(5)
    with pytest.raises(RuntimeError, match="moved or cast after its strategy was made"):
        strategy.step()
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    strategy = sync.make("rps", optimizer, simulated(1)[0]())
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))]})
    with pytest.raises(RuntimeError, match="parameters changed after its strategy was made"):
        strategy.step()


def test_without_loss_rps_with_plain_sgd_equals_training_on_all_gradients() -> None:
    """Averaging models after a linear step is averaging gradients."""
    for values in together(simulated(WORLD), lambda channel: train(channel, "rps")):
        torch.testing.assert_close(values, alone_on_everything("sgd"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["reliable", "gradient_averaging", "bounded_drift"])
def test_clipping_is_to_the_global_norm(name: str) -> None:
    wanted = alone_on_everything("sgd", clip=0.1)
    for values in together(simulated(WORLD), lambda channel: train(channel, name, clip_norm=0.1)):
        torch.testing.assert_close(values, wanted, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(wanted, alone_on_everything("sgd"), atol=1e-3), "the clip does something here"


@pytest.mark.parametrize(("name", "every", "asks"), MEETINGS)
def test_steps_between_two_meetings_clip_alone_and_ask_nobody(name: str, every: int, asks: int) -> None:
    """As it was: a reliable exchange at every local step, for the sake of networks that are slow or far."""
    inputs, labels = batch(0, 0)
    channel = simulated(1)[0]()
    asked: list[int] = []
    total = channel.total
    channel.total = lambda numbers: (asked.append(len(numbers)), total(numbers))[1]
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    strategy = sync.make(name, optimizer, channel, clip_norm=0.1, every=every)
    for _ in range(4):
        before = strategy.flat.values.clone()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        strategy.step()
        assert float((strategy.flat.values - before).norm()) == pytest.approx(0.1, rel=1e-3), "it is clipped"
    assert len(asked) == asks


@pytest.mark.parametrize("name", ["reliable", *EXCHANGING])
def test_real_sockets_without_loss_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    wanted = alone_on_everything("sgd")
    for values in together(over_loopback(WORLD), lambda channel: train(channel, name)):
        torch.testing.assert_close(values, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("direct", [False, True])
def test_reliable_every_few_steps_is_rps_every_few_steps_without_loss(direct: bool) -> None:
    """What local steps over a lossy network are held against: as few meetings, and nothing lost. Six steps, two of them
    meetings."""
    wanted = together(simulated(WORLD), lambda channel: train(channel, "rps", "momentum", every=3))
    found = together(simulated(WORLD), lambda channel: train(channel, "reliable", "momentum", every=3, direct=direct))
    for values, twin in zip(found, wanted, strict=True):
        torch.testing.assert_close(values, twin, rtol=1e-4, atol=1e-5)


def test_reliable_sends_at_meetings_alone_and_is_called_by_them() -> None:
    sent: list[int] = []
    channel = simulated(1)[0]()
    mean = channel.mean
    channel.mean = lambda values, direct=False: (sent.append(len(values)), mean(values, direct=direct))[1]
    train(channel, "reliable", every=3)
    assert len(sent) == 2
    optimizer = torch.optim.SGD(small_model().parameters(), lr=1.0)
    made = [sync.make("reliable", optimizer, channel, every=8, direct=way) for way in (False, True)]
    assert [one.label for one in made] == ["reliable 8", "reliable 8 direct"]
    with pytest.raises(ValueError, match="every 0: at least 1"):
        sync.make("reliable", optimizer, channel, every=0)


def test_the_own_repeating_transport_is_a_reliable_one_too() -> None:
    for values in together(over_loopback(WORLD, trusted="lossy"), lambda channel: train(channel, "reliable")):
        torch.testing.assert_close(values, alone_on_everything("sgd"), rtol=1e-4, atol=1e-5)


def test_an_error_inside_a_collective_reaches_whoever_waits_for_it() -> None:
    """torch's own wrapper of a future swallows it: a strategy would go on with half a result."""

    def work(channel: Any) -> None:
        with pytest.raises(NotImplementedError, match="no sparse tensors"):
            channel.group.allreduce([torch.zeros(4).to_sparse()]).wait()

    together(over_loopback(2), work)


def test_none_trains_alone() -> None:
    results = together(simulated(WORLD), lambda channel: train(channel, "none"))
    assert not torch.allclose(results[0], results[1], atol=1e-3)


def spread(results: list[torch.Tensor]) -> float:
    return float(torch.stack(results).var(0).mean())


def test_gradient_averaging_drifts_more_and_more_and_bounded_drift_does_not() -> None:
    loss = Rule.iid(0.3)

    def drift(name: str, steps: int) -> float:
        return spread(together(simulated(WORLD, loss), lambda channel: train(channel, name, steps=steps)))

    assert drift("gradient_averaging", 80) > 2 * drift("gradient_averaging", 20) > 0
    assert drift("bounded_drift", 80) < 2 * drift("bounded_drift", 20)
    assert 0 < drift("bounded_drift", 80) < drift("gradient_averaging", 80) / 5


def test_a_lost_value_stays_old_until_the_next_success_wipes_it_out() -> None:
    """Everything lost in steps 2 and 3, nothing before and after: after step 4 all workers agree again."""
    gap = Rule.iid(1.0, steps=(2, 4))
    apart = together(simulated(WORLD, gap), lambda channel: train(channel, "bounded_drift", steps=4))
    assert spread(apart) > 0
    again = together(simulated(WORLD, gap), lambda channel: train(channel, "bounded_drift", steps=5))
    assert spread(again) == 0


@pytest.mark.parametrize(("rule", "kept"), [("own", True), ("zero", False)])
def test_what_gradient_averaging_does_with_a_lost_mean(rule: str, kept: bool) -> None:
    """All second halves lost: with `own` every worker steps with its own gradient, with `zero` only its own block
    moves."""

    def work(channel: Any) -> tuple[torch.Tensor, int, int]:
        values = train(channel, "gradient_averaging", steps=1, rule=rule)
        return values, channel.rank, len(values) // WORLD

    before = torch.cat([p.detach().reshape(-1) for p in small_model().parameters()])
    for values, rank, block in together(simulated(WORLD, Rule.iid(1.0, halves=(1,))), work):
        moved = values != before
        other = torch.ones_like(moved)
        other[rank * block : (rank + 1) * block + 4] = False
        assert bool(moved[other].any()) == kept


def test_rps_keeps_its_own_updated_block_when_the_mean_is_lost() -> None:
    lost = together(simulated(WORLD, Rule.iid(1.0, halves=(1,))), lambda channel: train(channel, "rps", steps=1))
    alone = together(simulated(WORLD), lambda channel: train(channel, "none", steps=1))
    for with_loss, by_itself in zip(lost, alone, strict=True):
        same = torch.isclose(with_loss, by_itself)
        assert 0.7 < same.float().mean() < 1, "all blocks but the one this worker averaged"


def test_rps_owners_are_a_fresh_permutation_that_all_workers_draw_alike() -> None:
    def owners(channel: Any) -> list[tuple[int, ...]]:
        model = small_model()
        strategy: Any = sync.make("rps", OPTIMIZERS["sgd"](model.parameters()), channel, seed=7)
        out = []
        for _ in range(30):
            strategy.flat.grads.zero_()
            out.append(strategy.drawn_owners())
            strategy.step()
        return out

    drawn = together(simulated(WORLD), owners)
    assert all(one == drawn[0] for one in drawn)
    assert all(sorted(one) == list(range(WORLD)) for one in drawn[0])
    assert len(set(drawn[0])) > 10


@pytest.mark.parametrize("name", [n for n in sync.STRATEGIES if n != "ddp"])
def test_a_strategy_resumes_where_it_was(name: str) -> None:
    def in_two_parts(channel: Any) -> torch.Tensor:
        model = small_model()
        strategy = sync.make(name, OPTIMIZERS["adam"](model.parameters()), channel)
        for step in range(STEPS):
            if step == 3:
                state, values = copy.deepcopy(strategy.state_dict()), strategy.flat.values.clone()
                model = small_model(seed=5)
                strategy = sync.make(name, OPTIMIZERS["adam"](model.parameters()), channel)
                strategy.load_state_dict(state)
                strategy.flat.values.copy_(values)
            inputs, labels = batch(channel.rank, step)
            model.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            strategy.step()
        return strategy.flat.values.clone()

    loss = Rule.iid(0.2)
    whole = together(simulated(WORLD, loss), lambda channel: train(channel, name, "adam"))
    parts = together(simulated(WORLD, loss), in_two_parts)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other)


def test_options_of_the_users_optimizer_are_followed() -> None:
    """Groups with different options, a learning-rate schedule: the shard's optimizer obeys both."""

    def work(channel: Any) -> torch.Tensor:
        model = small_model()
        groups = [{"params": [model[0].weight, model[0].bias], "lr": 0.0}, {"params": list(model[2].parameters())}]
        optimizer = torch.optim.SGD(groups, lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.0)
        strategy = sync.make("bounded_drift", optimizer, channel)
        for step in range(2):
            inputs, labels = batch(channel.rank, step)
            model.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            strategy.step()
            schedule.step()
            if step == 0:
                first = strategy.flat.values.clone()
        assert torch.equal(strategy.flat.values, first), "the rate is zero after the first step"
        assert torch.equal(model[0].weight, small_model()[0].weight), "the first group has rate zero"
        return strategy.flat.values.clone()

    for values in together(simulated(WORLD), work):
        assert not torch.equal(values, torch.cat([p.detach().reshape(-1) for p in small_model().parameters()]))


def test_shards_for_optimizers_that_need_whole_tensors_end_at_tensor_boundaries() -> None:
    flat = Flat([small_model().parameters()])
    ends = {sum(flat.counts[:n]) for n in range(len(flat.counts) + 1)}
    for world in (2, 3, 4, 7):
        counts = cut(flat, world, whole_tensors=True)
        assert sum(counts) == sum(flat.counts)
        assert {sum(counts[:n]) for n in range(world + 1)} <= ends


def test_muon_moves_whole_matrices_at_their_owner() -> None:
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")

    def work(channel: Any) -> torch.Tensor:
        model = torch.nn.Sequential(torch.nn.Linear(20, 30, bias=False), torch.nn.Linear(30, 5, bias=False))
        with torch.no_grad():
            for n, parameter in enumerate(model.parameters()):
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(n)))
        strategy = sync.make("bounded_drift", torch.optim.Muon(model.parameters(), lr=0.02), channel)
        reference = copy.deepcopy(model)
        one = torch.optim.Muon(reference.parameters(), lr=0.02)
        for step in range(3):
            inputs, labels = batch(0, step)  # the same for all: the twin needs no communication
            for each in (model, reference):
                each.zero_grad()
                torch.nn.functional.cross_entropy(each(inputs), labels).backward()
            strategy.step()
            one.step()
        wanted = torch.cat([p.detach().reshape(-1) for p in reference.parameters()])
        torch.testing.assert_close(strategy.flat.values, wanted, rtol=1e-3, atol=1e-4)
        return wanted

    together(simulated(3), work)


def test_wrong_names_say_which_are_known() -> None:
    optimizer = OPTIMIZERS["sgd"](small_model().parameters())
    with pytest.raises(ValueError, match="no strategy 'rsp'; did you mean rps\\? known are none, reliable"):
        sync.make("rsp", optimizer, simulated(1)[0]())
    with pytest.raises(ValueError, match="own .* or zero"):
        sync.make("gradient_averaging", optimizer, simulated(1)[0](), rule="both")
    with pytest.raises(RuntimeError, match="init_process_group"):
        sync.make("rps", optimizer)


def test_a_model_moved_after_its_strategy_was_made_is_noticed() -> None:
    model = small_model()
    strategy = sync.make("none", OPTIMIZERS["sgd"](model.parameters()), simulated(1)[0]())
    model.to(torch.float64)
    with pytest.raises(RuntimeError, match="make the strategy last"):
        strategy.step()


def test_the_strategies_that_are_listed_are_those_that_there_are() -> None:
    """As it was: `lossbench list` offered `patience`, which is a part of some."""
    assert set(listing._strategies()) == set(sync.STRATEGIES)
