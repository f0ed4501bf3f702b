"""What a load generator must keep: the same requests in every arm, sizes as published, and doubts where they belong."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lossbench.contract import Door
from lossbench.workloads.errors import OptionError
from lossbench.workloads.web import checks
from lossbench.workloads.web.__main__ import Clients
from lossbench.workloads.web.conclude import conclude
from lossbench.workloads.web.learning import learning_loss
from lossbench.workloads.web.options import Options, misfit, read_options
from lossbench.workloads.web.samples import Floats, Lost, Measured, read, times
from lossbench.workloads.web.schedule import Schedule, draw
from lossbench.workloads.web.sizes import Sizes, distributions
from lossbench.workloads.web.slowdown import slowdowns
from lossbench.workloads.web.steer import Steer

RNG = np.random.default_rng(5)  # one stream: a test alone draws other numbers than in a row, and must hold too


def drawn(seed: int = 1, rank: int = 2, rate: float = 400, seconds: float = 50, **keys: object) -> Schedule:
    defaults = {"world": 16, "from_s": 0.0, "sizes": Sizes.fixed(100_000)}
    return draw(seed=seed, rank=rank, rate=rate, seconds=seconds, **(defaults | keys))  # type: ignore[arg-type]


def test_the_same_seed_draws_the_same_requests_and_a_longer_run_begins_with_them() -> None:
    short, same, longer = drawn(), drawn(), drawn(seconds=80)
    assert np.array_equal(short.at_s, same.at_s) and np.array_equal(short.server, same.server)
    assert np.array_equal(longer.at_s[: len(short)], short.at_s)
    assert np.array_equal(longer.server[: len(short)], short.server)


def test_another_seed_rank_or_phase_shares_no_arrival() -> None:
    one = drawn()
    for other in (drawn(seed=2), drawn(rank=3), drawn(from_s=50.0)):
        assert not set(np.round(one.at_s, 9)) & set(np.round(other.at_s, 9))


def test_all_clients_together_ask_at_the_rate_and_never_themselves() -> None:
    clients = [drawn(rank=rank) for rank in range(16)]
    total = sum(len(one) for one in clients)
    assert abs(total - 20_000) < 6 * np.sqrt(20_000)
    assert all(rank not in one.server for rank, one in enumerate(clients))
    asked = np.bincount(np.concatenate([one.server for one in clients]), minlength=16)
    assert asked.min() > 0.85 * total / 16


def test_arrivals_of_one_client_are_exponential_and_regular_ones_are_not() -> None:
    at = drawn(seconds=400).at_s
    assert checks.exponential_p(np.diff(at)) > checks.ERROR
    assert checks.exponential_p(np.full(500, 0.04) + RNG.normal(0, 0.001, 500)) < checks.ERROR
    assert checks.exponential_p(np.diff(np.ceil(at / 0.02) * 0.02)) < checks.ERROR, "sent on a tick of 20 ms"


def test_the_test_of_arrivals_doubts_sound_ones_as_often_as_it_says() -> None:
    p = np.array([checks.exponential_p(RNG.exponential(1.0, 300)) for _ in range(2000)])
    assert 0.03 < (p < 0.05).mean() < 0.075
    assert (p < checks.ERROR).mean() < 0.004


def test_a_page_is_one_arrival_and_as_slow_as_its_slowest_request() -> None:
    one = drawn(rate=7000, page=70)
    assert len(one) % 70 == 0 and len(np.unique(one.at_s)) == len(one) // 70
    columns = {"at_s": [0, 0, 1, 1], "completion_ms": [3, 9, 4, 1], "size_bytes": [1] * 4, "page": [0, 0, 1, 1]}
    here = Measured(
        **{k: np.array(v, float) for k, v in columns.items()}, client=np.zeros(4), lag_ms=np.zeros(4), sent_s=()
    )
    assert times(here, 2).ms.tolist() == [9, 4]
    assert times(here, 3).ms.tolist() == [np.inf, np.inf], "a page that misses a request never ended"


def test_a_page_whose_requests_were_all_dropped_is_counted() -> None:
    """As it was: it vanished."""
    columns = {"at_s": [0, 0], "completion_ms": [3, 9], "size_bytes": [1, 1], "page": [0, 0], "client": [0, 0]}
    dropped = {"at_s": [1, 1], "size_bytes": [1, 1], "page": [1, 1], "client": [0, 0]}
    here = Measured(
        **{k: np.array(v, float) for k, v in columns.items()},
        lost=Lost(**{k: np.array(v, float) for k, v in dropped.items()}),
        lag_ms=np.zeros(2),
        sent_s=(),
    )
    assert times(here, 2).ms.tolist() == [9, np.inf]


@pytest.mark.parametrize("name", sorted(distributions()))
def test_sizes_are_drawn_as_published(name: str) -> None:
    sizes = Sizes.named(name)
    drawn_now = sizes.draw(RNG.random(400_000))
    assert abs(drawn_now.mean() / sizes.mean() - 1) < 0.1
    assert set(np.unique(drawn_now)) <= set(sizes.sizes)


def test_a_limit_cuts_sizes_and_says_how_much_of_the_bytes_it_took() -> None:
    cut = Sizes.named("w4_fb_hadoop", most_bytes=1_000_000)
    assert max(cut.sizes) == 1_000_000 and 0.2 < cut.cut < 0.95
    assert Sizes.named("w1_memcached", most_bytes=1_000_000).cut == 0


def test_the_steady_state_is_found_behind_a_slow_start_and_nothing_is_cut_without_one() -> None:
    values = RNG.exponential(10.0, 5000)
    values[:600] += np.linspace(80, 0, 600)
    assert 350 <= checks.warm_up(values) <= 1700
    assert sum(checks.warm_up(RNG.exponential(10.0, 5000)) > 0 for _ in range(50)) <= 2
    waves = 10 + 8 * (np.arange(5000) % 1000 < 300)
    assert sum(checks.warm_up(RNG.exponential(waves)) > 0 for _ in range(50)) <= 5, "load in waves is no warm-up"


def test_a_drifting_run_is_not_stationary_and_a_steady_one_is() -> None:
    values = RNG.exponential(10.0, 5000)
    assert checks.stationary_p(values) > checks.ERROR
    assert checks.stationary_p(values * np.linspace(1, 2, 5000)) < checks.ERROR


def modulated(links: int = 16, seconds: float = 30, rate: float = 200) -> np.ndarray:  # type: ignore[type-arg]
    """Requests in turns over many links, each of which is slow for a while now and then."""
    n = int(rate * seconds)
    slow = np.repeat(RNG.exponential(1.0, (links, int(seconds / 1.5) + 1)), int(1.5 * rate) + 1, axis=1)
    common = np.repeat(RNG.exponential(1.0, int(seconds / 1.5) + 1), int(1.5 * rate) + 1)
    which = RNG.integers(0, links, n)
    return np.array(RNG.exponential(10 * (slow[which, np.arange(n)] + common[:n])))


def test_independent_samples_are_as_many_as_they_are() -> None:
    assert checks.independent(RNG.exponential(1.0, 8000)) > 4000
    chain = np.zeros(8000)
    for n in range(1, 8000):
        chain[n] = 0.95 * chain[n - 1] + RNG.normal()
    assert 60 <= checks.independent(chain) <= 800, "8000 x (1 - .95) / (1 + .95) = 205"


def test_what_all_wait_for_is_not_hidden_by_taking_turns() -> None:
    """Neighbours are on other links and hardly correlated; the mean is as uncertain as the bursts are few."""
    truth = 20.0
    held = sum((found := checks.mean(modulated())).low <= truth <= found.high for _ in range(150))
    assert held / 150 > 0.8, held


def test_intervals_of_a_percentile_hold_the_truth_as_often_as_they_say() -> None:
    truth, held = -np.log(0.01), 0
    for _ in range(300):
        found = checks.quantile(RNG.exponential(1.0, 4000), 0.99)
        held += found.low <= truth <= found.high
    assert 0.88 <= held / 300 <= 0.995
    few = checks.quantile(RNG.exponential(1.0, 200), 0.99)
    assert few.value > 0 and np.isinf(few.high), "two samples beyond it say nothing of its upper end"


def chain(n: int, along: float) -> Floats:
    """AR(1), from its steady state on; variance 1, mean 0."""
    steps = RNG.normal(scale=math.sqrt(1 - along**2), size=n)
    out = np.empty(n)
    out[0] = RNG.normal()
    for at in range(1, n):
        out[at] = along * out[at - 1] + steps[at]
    return out


def bursts(n: int, *, on: float = 60, off: float = 240) -> Floats:
    """Exponential around 10, five times that while a burst is on; both last so many samples on average."""
    mean, times = np.empty(0), RNG.random() < on / (on + off)
    parts = []
    while sum(map(len, parts)) < n:
        parts.append(np.full(int(RNG.geometric(1 / (on if times else off))), 50.0 if times else 10.0))
        times = not times
    mean = np.concatenate(parts)[:n]
    return np.array(RNG.exponential(mean))


COVERED = 0.9  # of intervals that say 95 %
AGAIN = 200


@pytest.mark.parametrize(
    ("drawn", "mean", "q", "at"),
    [
        (lambda: chain(4000, 0.9), 0.0, 0.9, 1.2816),
        (lambda: chain(6000, 0.98), 0.0, 0.75, 0.6745),
        (lambda: bursts(6000), 18.0, 0.9, None),
        (lambda: modulated(), 20.0, 0.9, None),
    ],
    ids=["chain", "long chain", "bursts", "in turns"],
)
def test_intervals_hold_the_truth_where_samples_follow_from_each_other(
    drawn: Callable[[], Floats], mean: float, q: float, at: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was: z of few batches, of a length that was taken as soon as neighbours looked unlike (.84 to .93)."""
    monkeypatch.setitem(globals(), "RNG", np.random.default_rng(17))
    if at is None:
        at = float(np.quantile(np.concatenate([drawn() for _ in range(300)]), q))
    every = [drawn() for _ in range(AGAIN)]
    means = [checks.mean(values) for values in every]
    beyond = [one for values in every if math.isfinite((one := checks.quantile(values, q)).high)]
    assert sum(one.low <= mean <= one.high for one in means) / AGAIN >= COVERED
    assert len(beyond) > 0.8 * AGAIN and sum(one.low <= at <= one.high for one in beyond) / len(beyond) >= COVERED


def test_a_percentile_needs_ten_independent_samples_beyond_it() -> None:
    assert checks.enough_for(0.99, 1000) and not checks.enough_for(0.99, 999)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rat": 5}, "no option 'rat'"),
        ({"rate": 0}, "rate must be above 0"),
        ({"sizes": "w9"}, "no sizes 'w9'"),
        ({"until": "p99"}, "is not like p99=5%"),
        ({"rates": [5, 3]}, "each higher"),
        ({"loop": "half"}, "loop is one of open, closed"),
        ({"until": "p99=5%", "rates": [1, 2]}, "until is for one rate"),
        ({"loop": "closed", "users": 5000}, "most_open"),
        ({"loop": "closed", "page": 70}, "a closed loop has users"),
        ({"seconds": 0, "until": "p99=5%"}, "longest time"),
        ({"requests": 1000}, "goes with rates"),
    ],
)
def test_a_wrong_option_is_named(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        read_options(wrong)


def test_each_of_several_rates_lasts_as_long_as_its_requests_take() -> None:
    options = read_options({"rates": [10, 20, 200], "requests": 1100, "seconds": 60, "hold_s": 15})
    assert options.plan() == ((10, 60.0), (20, 55.0), (200, 5.5))
    assert options.held(20) == 55.0 and options.held(200) == 15.0


# --- what is concluded of a run's folder ---------------------------------------------------------------------------


def stored(
    folder: Path, *, lag_ms: float = 0.1, failed: int = 0, failed_s: float = 15.0, completion: float = 20.0
) -> Path:
    """Two clients of a sound run; what failed was asked for from `failed_s` on."""
    (folder / "samples").mkdir()
    (folder / "records").mkdir()
    for rank in (0, 1):
        rng = np.random.default_rng(
            [5, rank]
        )  # the same whatever was drawn before: a sound run is doubted now and then
        at = np.cumsum(rng.exponential(0.01, 3000))
        sent = np.maximum.accumulate(at + rng.exponential(lag_ms, 3000) / 1000)  # one after the other
        columns = {
            "at_s": at,
            "completion_ms": rng.exponential(completion, 3000),
            "size_bytes": np.full(3000, 1e5),
            "page": np.arange(3000.0),
            "lag_ms": 1000 * (sent - at),
            "sent_s": sent,
            "lost_s": failed_s + 0.01 * np.arange(failed),
            "lost_page": np.arange(3000.0, 3000.0 + failed),
            "lost_bytes": np.full(failed, 1e5),
        }
        for name, values in columns.items():
            values.tofile(folder / "samples" / f"web.{name}.rank-{rank}.f64")
        count = {
            "sent": 3000 + failed,
            "completed": 3000,
            "failed": failed,
            "timed_out": 0,
            "dropped": 0,
            "unfinished": 0,
        }
        said = [{"kind": "requests", **count, "reasons": {"refused": failed} if failed else {}}]
        said += [{"kind": "alone", "ms": {"100000": 10.0}}] if rank == 0 else []
        (folder / "records" / f"web-{rank}.jsonl").write_text("\n".join(map(json.dumps, said)) + "\n")
    return folder


def test_where_no_request_was_due_there_is_nothing_to_doubt_and_where_none_was_sent_there_is(tmp_path: Path) -> None:
    """As it was: one request in five seconds, none in a short run: "no request was ever answered", and training beside
    it had failed; then its timing was unknown, in an arm that has next to no service on purpose."""
    (tmp_path / "samples").mkdir()
    (tmp_path / "records").mkdir()
    none = dict.fromkeys(("sent", "completed", "failed", "timed_out", "dropped", "missed", "unfinished"), 0)
    said = {"kind": "requests", **none, "reasons": {}, "told_to_end": True}
    (tmp_path / "records" / "web-0.jsonl").write_text(json.dumps(said) + "\n")
    (row,) = conclude(tmp_path, "web", Options(rate=0.2, seconds=0, factor=50))
    assert (row["kind"], row["n"], row["equivalent"]) == ("row", 0, 10)
    assert "No request was due at 0.2/s" in row["note"]
    (tmp_path / "records" / "web-0.jsonl").write_text(json.dumps({**said, "missed": 3}) + "\n")
    row, doubt = conclude(tmp_path, "web", Options(rate=0.2, seconds=0))
    assert "note" not in row and doubt["text"] == "none of 3 requests that were due at 0.2/s was sent"
    (tmp_path / "records" / "web-0.jsonl").write_text(json.dumps({**said, "sent": 3, "failed": 3}) + "\n")
    assert [one["kind"] for one in conclude(tmp_path, "web", Options(rate=0.2, seconds=0))] == ["error"]


def test_a_sound_run_is_concluded_without_doubt(tmp_path: Path) -> None:
    said = list(conclude(stored(tmp_path), "web", Options(rate=200)))
    assert [one["text"] for one in said if one["kind"] == "doubt"] == []
    (row,) = [one for one in said if one["kind"] == "row"]
    assert abs(row["mean_ms"] - 20) < 1.5 and abs(row["p99_ms"] - 92) < 12 and abs(row["slowdown"] - 2) < 0.15
    assert row["mean_low_ms"] < row["mean_ms"] < row["mean_high_ms"] and row["n_independent"] <= row["n"] <= 6000
    assert len(read(tmp_path, "web")) == 6000


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"lag_ms": 2.0}, "late (p99)"),
        (
            {"failed": 50},
            "100 of 6100 requests were not answered: 100 failed (refused: 100); 200/s are 160 Mbit/s of answers",
        ),
    ],
)
def test_a_generator_that_fell_behind_or_was_refused_is_doubted(
    tmp_path: Path, keys: dict[str, float], said: str
) -> None:
    found = list(conclude(stored(tmp_path, **keys), "web", Options(rate=200)))  # type: ignore[arg-type]
    assert any(said in one["text"] for one in found if one["kind"] == "doubt"), found


def stood_still(folder: Path, requests: int) -> None:
    """One client sent so many at once, the first of them three seconds late."""
    for name in ("lag_ms", "sent_s", "completion_ms"):
        path = folder / "samples" / f"web.{name}.rank-0.f64"
        values = np.fromfile(path)
        late = np.linspace(3, 0.5, requests)
        values[1000 : 1000 + requests] += late if name == "sent_s" else 1000 * late
        (np.maximum.accumulate(values) if name == "sent_s" else values).tofile(path)


@pytest.mark.parametrize("late", [2, 20])
def test_a_tail_that_is_of_the_clients_own_lateness_is_not_said_or_doubted(tmp_path: Path, late: int) -> None:
    """As it was: p99 of the lag was judged, p99.9 of the service printed: all of what lies beyond it had been sent
    seconds late, and counts from the intended time."""
    stored(tmp_path)
    stood_still(tmp_path, late)
    found = list(conclude(tmp_path, "web", Options(rate=200)))
    (row,) = [one for one in found if one["kind"] == "row"]
    assert "p99.9_ms" not in row and "p99_ms" in row and "No p99.9: " in row["note"]
    assert any("late by more than 5% of p99" in one["text"] for one in found if one["kind"] == "doubt") == (late == 20)


def test_requests_that_were_due_and_never_sent_are_a_doubt(tmp_path: Path) -> None:
    """As it was: only where nothing at all was sent. Those of a client that stood still would have been the slowest."""
    path = stored(tmp_path) / "records" / "web-1.jsonl"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"missed": 30}) + "\n")
    found = list(conclude(tmp_path, "web", Options(rate=200)))
    said = [one["text"] for one in found if one["kind"] == "doubt"]
    assert said == ["30 requests that were due, beside 6000, were never sent"]


def test_what_was_never_answered_takes_longer_than_any(tmp_path: Path) -> None:
    """Of 6050 requests 50 failed: p99 is higher than without them, p99.9 is not known."""
    (row,) = [one for one in conclude(stored(tmp_path, failed=25), "web", Options(rate=200)) if one["kind"] == "row"]
    (tmp_path / "b").mkdir()
    (sound,) = [one for one in conclude(stored(tmp_path / "b"), "web", Options(rate=200)) if one["kind"] == "row"]
    assert row["p99_ms"] > 1.2 * sound["p99_ms"] and "p99.9_ms" not in row and "p99.9_ms" in sound


def row_of(folder: Path, options: Options) -> dict[str, Any]:
    (row,) = [one for one in conclude(folder, "web", options) if one["kind"] == "row"]
    return row


def in_two_rates(folder: Path) -> None:
    """The first 12 s at one rate, the rest at another."""
    with open(folder / "records" / "web-0.jsonl", "a") as file:
        for from_s, to_s, rate in ((0.0, 12.0, 100), (12.0, 60.0, 200)):
            file.write(json.dumps({"kind": "phase", "rate": rate, "from_s": from_s, "to_s": to_s}) + "\n")


def test_what_was_never_answered_counts_for_the_rate_at_which_it_was_asked(tmp_path: Path) -> None:
    """As it was: with several rates, for none of them; percentiles were those of the lucky ones."""
    in_two_rates(stored(tmp_path, failed=60, failed_s=15.0))
    first, second = [one for one in conclude(tmp_path, "web", Options(rates=(100, 200))) if one["kind"] == "row"]
    assert (first["failed"], second["failed"]) == (0, 120)
    assert "p99_ms" in first and "mean_ms" in first and "doubt" not in first
    assert "p99_ms" not in second and "p50_ms" in second and "slowdown_p99" not in second
    assert "120 of" in second["doubt"] and "at 200/s" in second["doubt"]


def test_a_rate_that_was_too_much_says_nothing_against_those_below_it(tmp_path: Path) -> None:
    """As it was: the doubt of one voided the whole ladder."""
    in_two_rates(stored(tmp_path, failed=60, failed_s=15.0))
    said = list(conclude(tmp_path, "web", Options(rates=(100, 200))))
    assert not [one for one in said if one["kind"] == "doubt"]
    assert [("doubt" in one) for one in said if one["kind"] == "row"] == [False, True]


def test_losses_at_rates_beside_learning_that_was_not_offered_are_void(tmp_path: Path) -> None:
    in_two_rates(stored(tmp_path))
    done = [t // 10 for t in range(60)]
    traffic = [
        {"kind": "traffic", "time_s": 100 + t, "sent": [90 * n], "received": [80 * n]} for t, n in enumerate(done)
    ]
    lines = [*traffic, {"kind": "summary", "offered": 500}]
    (tmp_path / "records" / "rank-0.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    with open(tmp_path / "records" / "web-0.jsonl", "a") as file:
        file.write(json.dumps({"kind": "began", "time_s": 99.0}) + "\n")
    rows = [one for one in conclude(tmp_path, "web", Options(rates=(100, 200))) if one["kind"] == "row"]
    assert "learning_loss" in rows[0] and rows[0]["doubted"] == ["learning_loss"]
    assert rows[0]["doubt"].startswith("less was sent than the recording asks for")


def test_bytes_a_second_are_those_of_the_time_in_which_they_came(tmp_path: Path) -> None:
    """As it was: all bytes, by the time in which they were asked for: more than the links carry."""
    stored(tmp_path, completion=20.0)
    sound = row_of(tmp_path, Options(rate=200))["goodput_mbit"]
    at = read(tmp_path, "web").at_s
    assert sound == pytest.approx(6000 * 8e5 / (at[-1] - at[0]) / 1e6, rel=0.01)
    for rank in (0, 1):
        path = tmp_path / "samples" / f"web.completion_ms.rank-{rank}.f64"
        slow = np.fromfile(path) + 1000 * np.fromfile(tmp_path / "samples" / f"web.at_s.rank-{rank}.f64")
        slow.tofile(path)  # answered half as fast as it was asked
    assert row_of(tmp_path, Options(rate=200))["goodput_mbit"] == pytest.approx(sound / 2, rel=0.02)


def test_a_rate_at_which_nothing_was_answered_has_a_line(tmp_path: Path) -> None:
    """As it was: it vanished."""
    in_two_rates(stored(tmp_path, failed=60, failed_s=70.0))
    with open(tmp_path / "records" / "web-0.jsonl", "a") as file:
        file.write(json.dumps({"kind": "phase", "rate": 300, "from_s": 65.0, "to_s": 80.0}) + "\n")
    rows = [one for one in conclude(tmp_path, "web", Options(rates=(100, 200, 300))) if one["kind"] == "row"]
    assert [(row["offered"], row["failed"]) for row in rows] == [(100, 0), (200, 0), (300, 120)]
    assert rows[2]["n"] == 0 and not any(name.endswith("_ms") for name in rows[2])


@pytest.mark.parametrize(("timeout_s", "known"), [(0.4, True), (20.0, False)])
def test_the_mean_is_left_out_where_the_unanswered_could_move_it(tmp_path: Path, timeout_s: float, known: bool) -> None:
    """As it was: the mean of those that were answered. Two of 6002, of a mean of 20 ms: at most .7 %, or a third."""
    row = row_of(stored(tmp_path, failed=1), Options(rate=200, timeout_s=timeout_s))
    assert ("mean_ms" in row) is known and ("slowdown" in row) is known
    assert ("No mean: 2 requests were never answered" in row.get("note", "")) is not known
    assert "p99_ms" in row


def test_a_slowdown_is_of_the_steady_state_and_of_all_that_were_asked_for(tmp_path: Path) -> None:
    """As it was: with the warm-up, without those that were never answered."""
    stored(tmp_path)
    for rank in (0, 1):
        path = tmp_path / "samples" / f"web.completion_ms.rank-{rank}.f64"
        slow = np.fromfile(path)
        slow[:300] += 2000.0
        slow.tofile(path)
    row = row_of(tmp_path, Options(rate=200))
    assert row["warm_up"] > 300 and row["slowdown_p99"] < 20
    (tmp_path / "b").mkdir()
    assert "slowdown_p99" not in row_of(stored(tmp_path / "b", failed=60), Options(rate=200))


def test_a_slowdown_is_by_the_time_that_its_own_size_takes_alone() -> None:
    """Each took three times as long as alone, the small ones and the large ones."""
    sizes = np.tile([1000.0, 1_000_000.0], 1000)
    alone = {"1000": 1.0, "1000000": 50.0}
    took = 3 * np.where(sizes == 1000, 1.0, 50.0)
    at, none = np.arange(2000.0), np.zeros(2000)
    here = Measured(
        at_s=at, completion_ms=took, size_bytes=sizes, page=none, client=none, lag_ms=none, sent_s=(at,), lost=Lost()
    )
    found = slowdowns(here, alone, mean=True)
    assert (found["slowdown"], found["slowdown_p99"]) == (3.0, 3.0)


def test_pages_that_never_ended_are_counted_beside_their_requests(tmp_path: Path) -> None:
    """As it was: no page was ever missed whose requests were all lost."""
    row = row_of(stored(tmp_path, failed=4), Options(rate=200, page=1))
    assert (row["failed"], row["pages_failed"], row["n"] + row["warm_up"]) == (8, 8, 6000)


def test_a_client_of_whom_nothing_was_answered_is_read(tmp_path: Path) -> None:
    """As it was: whoever had no completion was not there, nor were its requests."""
    stored(tmp_path, failed=5)
    for path in (tmp_path / "samples").glob("web.completion_ms.rank-1.f64"):
        path.unlink()
    found = read(tmp_path, "web")
    assert len(found) == 3000 and len(found.lost) == 10 and len(found.sent_s) == 2


def test_a_precision_that_was_not_reached_in_time_is_a_doubt(tmp_path: Path) -> None:
    """As it was: nothing was said."""
    said = list(conclude(stored(tmp_path), "web", Options(rate=200, until="p99=1%", seconds=30)))
    doubts = [one["text"] for one in said if one["kind"] == "doubt"]
    assert len(doubts) == 1 and doubts[0].startswith("p99 was not known to 1% at the end of 30 s: it is known to")
    said = list(conclude(tmp_path, "web", Options(rate=200, until="p50=20%", seconds=30)))
    assert not [one for one in said if one["kind"] == "doubt"], "reached between the last look and the end"


@pytest.mark.parametrize("refused", (False, True))
def test_why_a_run_was_stopped_stands_in_its_row(tmp_path: Path, refused: bool) -> None:
    """As it was: in a record that nobody reads."""
    stored(tmp_path)
    decided = {"stop": "p99 is known to 4.9%"} | ({"refused": True} if refused else {})
    (tmp_path / "samples" / "web.steer.json").write_text(json.dumps(decided))
    said = list(conclude(tmp_path, "web", Options(rate=200, until="p99=1%")))
    (row,) = [one for one in said if one["kind"] == "row"]
    assert row["note"] == "Ended early: p99 is known to 4.9%."
    assert [one["text"] for one in said if one["kind"] == "doubt"] == (["p99 is known to 4.9%"] if refused else [])


@pytest.mark.parametrize("last", (0, 1))
def test_a_ratio_that_the_lowest_rate_is_above_already_is_not_found(tmp_path: Path, last: int) -> None:
    """As it was: the lowest rate was held as if it were the one that was looked for."""
    in_two_rates(stored(tmp_path))
    options = Options(rates=(100, 200), stop_ratio=1.5)
    steer(tmp_path, options).after_phase(last, 0.0, 60.0)
    doubts = [one["text"] for one in conclude(tmp_path, "web", options) if one["kind"] == "doubt"]
    assert [text.startswith("p99/p50 was ") and "(100/s)" in text for text in doubts] == ([True] if last == 0 else [])


def steer(folder: Path, options: Options) -> Steer:
    records = str(folder / "records" / "x")
    return Steer(Door(rank=0, world_size=2, addresses=("a", "b"), role="web", records_path=records), options)


@pytest.mark.parametrize(("failed", "last"), [(0, None), (60, 0)])
def test_a_rate_is_the_last_one_where_many_are_refused_however_fast_the_others_are(
    tmp_path: Path, failed: int, last: int | None
) -> None:
    """As it was: by the mean of those that were answered, 20 ms, and the search went on."""
    one = steer(stored(tmp_path, failed=failed), Options(rates=(100, 200), stop_mean_ms=100))
    one.after_phase(0, 0.0, 60.0)
    assert one.told("last_phase") == last


def test_a_tail_that_was_never_answered_is_long_enough(tmp_path: Path) -> None:
    one = steer(stored(tmp_path, failed=60), Options(rates=(100, 200), stop_ratio=100, hold_s=1))
    one.after_phase(0, 0.0, 60.0)
    assert (one.told("last_phase"), one.told("ratio")) == (0, math.inf)
    in_two_rates(tmp_path)
    said = [one["text"] for one in conclude(tmp_path, "web", one.options) if one["kind"] == "doubt"]
    assert any("was not known, since too few were answered, at the lowest rate already" in text for text in said), said


def test_what_waits_when_a_rate_ends_counts_by_how_long_it_has_waited(tmp_path: Path) -> None:
    """As it was: only what had been answered counted, and at the end of a rate that is the quick half."""
    stored(tmp_path)
    with open(tmp_path / "samples" / "web.sent_s.rank-0.f64", "ab") as sent:
        (40 + 0.01 * np.arange(1000.0)).tofile(sent)
    with open(tmp_path / "samples" / "web.lag_ms.rank-0.f64", "ab") as late:
        np.zeros(1000).tofile(late)
    measured = read(tmp_path, "web")
    assert len(measured.under_way_s) == 1000 and measured.under_way_s[0] == 40 and len(measured.lost) == 0
    for to_s, stop_mean_ms, last in ((60.0, 1500, 0), (60.0, 2500, None)):  # (6000 x .02 + 1000 x 15) / 7000 = 2.16 s
        (tmp_path / "samples" / "web.steer.json").unlink(missing_ok=True)
        one = steer(tmp_path, Options(rates=(100, 200), stop_mean_ms=stop_mean_ms))
        one.after_phase(0, 0.0, to_s)
        assert one.told("last_phase") == last


@pytest.mark.parametrize(
    ("failed", "said"),
    [(0, "p99 is known to"), (300, "p99 can't be known to 30% in 60 s: after")],
    ids=["answered", "refused"],
)
def test_until_is_about_all_that_were_asked_for(tmp_path: Path, failed: int, said: str) -> None:
    """As it was: a service that refuses one request in ten had a p99 that was known well."""
    one = steer(stored(tmp_path, failed=failed), Options(rate=200, until="p99=30%", seconds=60))
    one._next = 0.0
    assert one.enough() and said in str(one.told("stop")), one.told("stop")
    assert bool(one.told("refused")) == bool(failed)


def test_what_was_asked_for_after_enough_was_known_is_not_counted(tmp_path: Path) -> None:
    """As it was: clients end one after the other within two seconds, and that falling load was in the percentiles."""
    one = steer(stored(tmp_path), Options(rate=200, until="p99=30%", seconds=60))
    one._next = 0.0
    assert one.enough()
    until = min(float(np.fromfile(tmp_path / "samples" / f"web.at_s.rank-{rank}.f64").max()) for rank in (0, 1))
    assert one.told("until_s") == pytest.approx(until), "so far both had asked"
    decided = {"stop": "p99 is known to 4.9%", "until_s": 12.0}
    (tmp_path / "samples" / "web.steer.json").write_text(json.dumps(decided))
    row = row_of(tmp_path, Options(rate=200, until="p99=30%"))
    assert row["n"] + row["warm_up"] == int((read(tmp_path, "web").at_s < 12.0).sum())


def test_until_looks_at_what_came_before_the_oldest_that_is_under_way(tmp_path: Path) -> None:
    stored(tmp_path)
    with open(tmp_path / "samples" / "web.sent_s.rank-1.f64", "ab") as sent:
        np.array([1.5]).tofile(sent)
    with open(tmp_path / "samples" / "web.lag_ms.rank-1.f64", "ab") as late:
        np.array([500.0]).tofile(late)
    measured = read(tmp_path, "web")
    assert measured.under_way_s.tolist() == [1.0] and measured.ended().at_s.max() < 1.0


def test_who_is_told_to_end_counts_only_what_was_complete(tmp_path: Path) -> None:
    stored(tmp_path)
    path = tmp_path / "records" / "web-0.jsonl"
    said = [json.loads(line) for line in path.read_text().splitlines()]
    said[0] |= {"unfinished": 40, "told_to_end": True, "oldest_s": 10.0}
    path.write_text("\n".join(map(json.dumps, said)) + "\n{half a li")
    found = list(conclude(tmp_path, "web", Options(rate=200)))
    (row,) = [one for one in found if one["kind"] == "row"]
    assert row["n"] + row["warm_up"] == int((read(tmp_path, "web").at_s < 10.0).sum())
    assert not [one for one in found if one["kind"] == "doubt"]


@pytest.mark.parametrize(("from_s", "to_s"), [(9.3, 14.4), (4.5, 24.2), (0.0, 29.6)])
def test_a_phase_that_ends_within_a_burst_does_not_count_what_is_under_way_as_lost(
    tmp_path: Path, from_s: float, to_s: float
) -> None:
    """As it was: minus half a percent. Bursts of a second every five, a tenth is lost, the rest comes late."""
    (tmp_path / "records").mkdir()
    at = np.arange(0, 30, 0.25)

    def sent(when: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return 1000 * (when // 5 + np.clip(when % 5 - 4, 0, 1))

    for rank in (0, 1):
        rows = [
            {"kind": "traffic", "time_s": 100 + t, "sent": [0, float(s)], "received": [0, float(r)]}
            for t, s, r in zip(at, sent(at), 0.9 * sent(np.maximum(at - 0.5, 0)), strict=True)
        ]
        (tmp_path / "records" / f"rank-{rank}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = learning_loss(tmp_path, 100.0, {"from_s": from_s, "to_s": to_s})
    assert found == pytest.approx(0.1, abs=1e-6)


def test_without_a_pause_between_bursts_no_loss_is_printed(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    rows = [{"kind": "traffic", "time_s": t, "sent": [40 * t], "received": [36 * t - 5]} for t in range(30)]
    (tmp_path / "records" / "rank-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert learning_loss(tmp_path, 0.0, {"from_s": 5.0, "to_s": 25.0}) is None


def test_a_rate_at_which_requests_were_dropped_voids_itself_and_no_other(tmp_path: Path) -> None:
    """As it was: what is sent then is no Poisson process, and all rates of the ladder were void for it."""
    in_two_rates(stored(tmp_path))
    path = tmp_path / "samples" / "web.sent_s.rank-0.f64"
    sent = np.fromfile(path)
    sent[sent > 14] = 14 + np.arange((sent > 14).sum()) * 0.005
    sent.tofile(path)
    found = list(conclude(tmp_path, "web", Options(rates=(100, 200))))
    low, high = [one for one in found if one["kind"] == "row"]
    assert "doubt" not in low and "at 200/s arrivals are not a Poisson process" in high["doubt"]
    assert not [one["text"] for one in found if one["kind"] == "doubt" and "Poisson" in one["text"]]


def in_pages(folder: Path, begin: np.ndarray) -> None:  # type: ignore[type-arg]
    """Every client's requests come in pages of three, at these times, one after the other within a page."""
    rng = np.random.default_rng(7)
    for rank in (0, 1):
        due = np.repeat(begin, 3)
        lag = np.tile([0.05, 0.1, 0.15], len(begin))
        columns = {
            "at_s": due,
            "completion_ms": rng.exponential(20.0, len(due)),
            "size_bytes": np.full(len(due), 1e5),
            "page": np.repeat(np.arange(float(len(begin))), 3),
            "lag_ms": lag,
            "sent_s": due + lag / 1000,
        }
        for name, values in columns.items():
            values.tofile(folder / "samples" / f"web.{name}.rank-{rank}.f64")


@pytest.mark.parametrize("even", [False, True])
def test_pages_must_begin_as_a_poisson_process(tmp_path: Path, even: bool) -> None:
    """As it was: never looked at, and pages at even times were believed."""
    gaps = np.random.default_rng(5).exponential(0.03, 1000)
    in_pages(stored(tmp_path), 0.03 * np.arange(1.0, 1001.0) if even else np.cumsum(gaps))
    said = [one["text"] for one in conclude(tmp_path, "web", Options(rate=200, page=3)) if one["kind"] == "doubt"]
    assert [text.startswith("at 200/s beginnings of pages are not a Poisson process") for text in said] == [True] * even


def run_on(folder: Path, **topology: float) -> None:
    (folder / "manifest.json").write_text(json.dumps({"experiment": {"topology": topology}}))


@pytest.mark.parametrize(
    ("rate_mbit", "options", "fits"),
    [
        (20, {"factor": 50}, True),
        (20, {"factor": 25}, False),
        (20, {"factor": 25, "link_mbit": 500}, True),
        (20, {}, True),
        (None, {"factor": 25}, True),
    ],
)
def test_a_factor_that_is_not_that_of_the_links_is_no_label(
    tmp_path: Path, rate_mbit: float | None, options: dict[str, float], fits: bool
) -> None:
    """As it was: whatever was written down, in every row."""
    run_on(stored(tmp_path), rate_mbit=rate_mbit)
    given = Options(rate=200, **options)  # type: ignore[arg-type]
    said = misfit(tmp_path, given)
    assert (said == "") is fits
    row = row_of(tmp_path, given)
    assert row["equivalent"] == 200 * (given.factor if fits else 1) and ("factor" in row["shown"]) is (
        fits and given.factor != 1
    )
    door = Door(rank=0, world_size=2, addresses=("a", "b"), records_path=str(tmp_path / "records" / "x"))
    if not fits:
        assert "topology.rate_mbit" in said and "or say link_mbit = 500" in said and said in row["note"]
        with pytest.raises(OptionError, match="links of 20 Mbit/s are not those of 1000"):
            Clients(door, given)


def write_down(folder: Path, name: str, *records: dict[str, Any]) -> None:
    with open(folder / "records" / f"{name}.jsonl", "a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def test_what_served_is_a_word_of_the_row_and_two_of_them_are_a_doubt(tmp_path: Path) -> None:
    """As it was: written down, and read by nobody."""
    stored(tmp_path)
    write_down(tmp_path, "server-0", {"kind": "server", "which": "nginx"})
    assert row_of(tmp_path, Options(rate=200))["server"] == "nginx"
    write_down(tmp_path, "server-1", {"kind": "fallback", "to": "builtin", "why": "it did not come up"})
    write_down(tmp_path, "server-1", {"kind": "server", "which": "builtin"})
    row = row_of(tmp_path, Options(rate=200))
    assert row["server"] == "builtin on 1, nginx on 1"
    assert row["note"] == "The built-in server served, since nginx did not: it did not come up."
    said = [one["text"] for one in conclude(tmp_path, "web", Options(rate=200)) if one["kind"] == "doubt"]
    assert said == ["hosts were served by different servers: builtin on 1, nginx on 1"]


@pytest.mark.parametrize("given", [True, False])
def test_clients_that_were_late_without_real_time_priority_say_what_would_help(tmp_path: Path, given: bool) -> None:
    stored(tmp_path, lag_ms=2.0)
    write_down(tmp_path, "web-0", {"kind": "first_in_line", "given": given})
    (doubt,) = [one["text"] for one in conclude(tmp_path, "web", Options(rate=200)) if one["kind"] == "doubt"]
    assert ("run as root" in doubt) != given, doubt


def test_a_decile_says_on_how_many_independent_messages_its_p99_stands() -> None:
    """As it was: on all of its messages, of which thousands in one burst may be fifty."""
    rng = np.random.default_rng(3)
    count, sizes = 24_000, np.array([1000.0, 2000.0])
    size = rng.choice(sizes, count)
    waves = np.repeat(rng.exponential(1.0, count // 400), 400) + rng.exponential(0.01, count)
    for slow, few in ((rng.exponential(1.0, count), False), (waves, True)):
        none = np.empty(0)
        same = {"size_bytes": size, "page": size, "client": size, "lag_ms": none, "sent_s": ()}
        here = Measured(at_s=np.arange(count) / 100, completion_ms=1 + slow, **same)
        found = slowdowns(here, {"1000": 1.0, "2000": 1.0}, mean=True)["slowdown_by_decile"]
        assert [most for most, _, _ in found] == [1000, 2000]
        assert all((independent < 1000) == few for _, _, independent in found), found
