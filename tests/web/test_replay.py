"""Bursts of an exchange: recorded as they were, offered as they were recorded."""

from __future__ import annotations

import errno
import json
import signal
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lossbench.workloads.errors import OptionError
from lossbench.workloads.replay import fold, prepare
from lossbench.workloads.replay.__main__ import TICK_S, Replay, Train, asked
from lossbench.workloads.replay.conclude import conclude
from lossbench.workloads.replay.recording import Recording, load, period_s
from lossbench.workloads.web.learning import load_doubt
from tests.shared import ROOT

STEP_S, STEP_BYTES = 2.0, 1_000_000
BEGAN_S = 1000.0


def run_folder(folder: Path, *, steps: int) -> Path:
    """A host that sends in two bursts: a quarter of its bytes from .5 to .6 of a step, the rest from .8 to .9."""
    per_step = round(STEP_S * 1000)
    passed, part = np.divmod(np.arange(per_step * steps + 1000), per_step)
    at, phase = BEGAN_S + (passed * per_step + part) / 1000, part / per_step
    within = 0.25 * np.clip((phase - 0.5) / 0.1, 0, 1) + 0.75 * np.clip((phase - 0.8) / 0.1, 0, 1)
    sent = (passed + within) * STEP_BYTES
    for name in ("samples", "records"):
        (folder / name).mkdir(parents=True)
    at.tofile(folder / "samples" / "record.at_s.rank-0.f64")
    sent.tofile(folder / "samples" / "record.sent_bytes.rank-0.f64")
    said = [{"kind": "begin", "time_s": BEGAN_S}]
    said += [{"kind": "step", "time_s": BEGAN_S + STEP_S * (1 + n)} for n in range(steps)]
    for rank in range(4):
        (folder / "records" / f"rank-{rank}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in said))
    return folder


def test_a_recording_has_the_bursts_where_they_were(tmp_path: Path) -> None:
    recording, steps = fold.recording_of(run_folder(tmp_path, steps=12), "record")
    assert steps == 9
    assert recording.model_bytes == pytest.approx(0.94 * STEP_BYTES * 4 / 6, rel=0.01), "of four ranks"
    shares = {name: sum(s for at, s in recording.bursts if low <= at < high) for name, low, high in SPANS}
    assert shares["first"] == pytest.approx(0.25, abs=0.01)
    assert shares["second"] == pytest.approx(0.75, abs=0.01)
    assert sum(share for _, share in recording.bursts) == pytest.approx(1.0, abs=1e-3)


def test_the_step_of_median_length_is_taken() -> None:
    """Of three: one second at 1 byte a second, then two at 10, then three at 100."""
    at_s, sent = np.array([0.0, 1.0, 3.0, 6.0]), np.array([0.0, 1.0, 21.0, 321.0])
    parts, step_s = fold.typical(at_s, sent, at_s.tolist())
    assert step_s == 2.0 and parts.sum() == pytest.approx(20.0)


@pytest.mark.parametrize("hosts", [2, 4, 16])
def test_all_hosts_together_offer_what_was_asked_for(hosts: int) -> None:
    """Each sends each other its share of the model twice in a step: once reduced, once gathered."""
    sent = hosts * (hosts - 1) * 2 * 1e6 / hosts
    assert sent * 8 / 1e6 / period_s(model_bytes=1e6, hosts=hosts, mbit=100) == pytest.approx(100)


SPANS = (("first", 0.495, 0.605), ("second", 0.795, 0.905))


def test_a_recording_can_be_loaded_again(tmp_path: Path) -> None:
    recording, _ = fold.recording_of(run_folder(tmp_path, steps=12), "record")
    path = tmp_path / "recording.json"
    path.write_text(json.dumps({"model_bytes": recording.model_bytes, "bursts": recording.bursts}))
    assert load(str(path)).bursts == recording.bursts


def test_too_few_steps_make_no_recording(tmp_path: Path) -> None:
    least = fold.WARM_UP + 1 + fold.LEAST_STEPS
    assert fold.recording_of(run_folder(tmp_path / "enough", steps=least), "record")[1] == fold.LEAST_STEPS
    with pytest.raises(ValueError, match="steps"):
        fold.recording_of(run_folder(tmp_path / "too few", steps=least - 1), "record")


def test_many_small_bursts_offer_as_much_as_one_large_one() -> None:
    """As it was: every burst was a packet at least, and rounded by itself."""
    fine = Recording(name="fine", model_bytes=1, bursts=tuple((n / 200, 1 / 200) for n in range(200)))
    assert sum(fine.packets(87.0)) == 87 and max(fine.packets(87.0)) == 1


@pytest.mark.parametrize("bursts", ([], [[0.0, 0.5]], [[1.0, 1.0]], "none"))
def test_a_damaged_recording_is_refused(tmp_path: Path, bursts: object) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"model_bytes": 1, "bursts": bursts}))
    with pytest.raises(OptionError, match="recording"):
        load(str(path))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"mbt": 5}, "no option 'mbt'"),
        ({"mbit": -1}, "mbit must be a number"),
        ({"saturate": 1}, "saturate is true or false"),
        ({"recording": "nothing"}, "there are resnet110, two_halves"),
    ],
)
def test_a_wrong_option_of_a_replay_is_named_before_anything_is_built(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        prepare.check(wrong)


def test_every_shipped_recording_can_be_loaded() -> None:
    for name in ("resnet110", "two_halves"):
        assert load(name).model_bytes > 6e6


@pytest.mark.parametrize("form", ("small", "full"))
@pytest.mark.parametrize("name", ("colocation", "colocation-cost", "colocation-queues"))
def test_requests_come_for_a_whole_number_of_steps(name: str, form: str) -> None:
    """As it was: 27 and 13 s of steps of 5 s (110 and 70 of 34.5), so that bursts at the end of a step were fewer than
    bursts at its beginning."""
    suite = tomllib.loads((ROOT / "workloads" / "suites" / "colocation" / f"{name}.toml").read_text(encoding="utf-8"))
    changed = suite["full"] if form == "full" else {}
    options, web = suite["workload"]["options"], suite["beside"][1]["options"]
    model_mb = changed.get("workload.options.model_mb", options["model_mb"])
    seconds = changed.get("beside.1.options.seconds", web["seconds"])
    step_s = period_s(model_bytes=model_mb * 1e6, hosts=suite["topology"]["hosts"], mbit=options["mbit"])
    assert seconds / step_s == pytest.approx(round(seconds / step_s)), (seconds, step_s)


@pytest.mark.parametrize(("form", "least"), (("small", 5_000), ("full", 20_000)))
def test_every_point_at_the_papers_load_has_completions_enough(form: str, least: int) -> None:
    """Of one seed, and four standard deviations of a Poisson process below what is expected."""
    suite = tomllib.loads((ROOT / "workloads" / "suites" / "colocation" / "colocation.toml").read_text("utf-8"))
    changed, web = suite["full"] if form == "full" else {}, suite["beside"][1]["options"]
    assert web["rate"] * web["factor"] == 10_000
    expected = web["rate"] * changed.get("beside.1.options.seconds", web["seconds"])
    assert expected - 4 * expected**0.5 >= least


def test_a_host_without_a_way_to_one_keeps_nobody_else_waiting_and_is_not_called_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it was: whoever came behind it in the queue waited too, and the host was said not to have come to send."""
    said: list[str] = []
    door = SimpleNamespace(options={"mbit": 1.0}, rank=0, world_size=3, port=0, dscp=0, token=1, seed=1)
    door.addresses = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    door.record = lambda kind, **_: said.append(kind)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process is told to end by others
    replay = Replay(door)  # type: ignore[arg-type]
    sent, gone = list[str](), {"127.0.0.2"}

    def send_rows(rows: np.ndarray, peer: tuple[str, int]) -> int:
        if peer[0] in gone:
            raise OSError(errno.EHOSTUNREACH, "no way")
        sent.extend([peer[0]] * len(rows))
        return len(rows)

    monkeypatch.setattr(replay.link, "send_rows", send_rows)
    burst = int(np.argmax(replay.packets))
    for step in range(2):
        replay._offer(step, burst, time.monotonic())
        replay._turn(0.0)
    each = 2 * replay.packets[burst]
    assert replay.sent == [0, 0, each] and sent == ["127.0.0.3"] * each
    assert replay.idle_s == 0 and not replay.refused, "its link had nothing to do, and rightly so"
    gone.clear()
    replay._turn(0.0)
    assert replay.sent == [0, each, each] and not replay.aside and not replay.to_send
    replay.link.close()


def replayed(folder: Path, *, offered: int, sent: int) -> Path:
    """Two hosts, a tenth is lost."""
    (folder / "records").mkdir()
    for rank in (0, 1):
        traffic = {"kind": "traffic", "sent": [0, sent], "received": [0, sent * 9 // 10], "complete": True}
        said = [{**traffic, "sent": [0, 0], "received": [0, 0]}, traffic, {"kind": "summary", "offered": offered}]
        (folder / "records" / f"rank-{rank}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in said))
    return folder


@pytest.mark.parametrize(("sent", "doubted"), [(960, False), (940, True)])
def test_what_the_recording_asked_for_stands_beside_what_was_sent(tmp_path: Path, sent: int, doubted: bool) -> None:
    """As it was: the loss of what was sent, however little of the recording that was."""
    said = list(conclude(replayed(tmp_path, offered=1000, sent=sent), "", {"mbit": 48}))
    (row,) = [one for one in said if one["kind"] == "row"]
    assert (row["offered"], row["packets"], row["learning_loss"]) == (2000, 2 * sent, pytest.approx(0.1, abs=1e-3))
    assert row["shown"] == ["what", "offered", "packets", "missing", "learning_loss"]
    doubts = [one["text"] for one in said if one["kind"] == "doubt"]
    assert doubts == (["less was sent than the recording asks for: 1880 of 2000 packets, 94%"] if doubted else [])


@pytest.mark.parametrize(("sent", "late"), [(960, False), (940, False), (1000, True)])
def test_the_loss_of_a_replay_that_did_not_offer_its_load_is_void(tmp_path: Path, sent: int, late: bool) -> None:
    """As it was: believed, by the replay itself and by every rate of the service beside it."""
    replayed(tmp_path, offered=1000, sent=sent)
    if late:
        with open(tmp_path / "records" / "rank-1.jsonl", "a") as file:
            file.write(json.dumps({"kind": "doubt", "text": "a burst of host 1 began 2 s late", "load": True}) + "\n")
    said = list(conclude(tmp_path, "", {"mbit": 48}))
    (row,) = [one for one in said if one["kind"] == "row"]
    why = "a burst of host 1 began" if late else "less was sent" if sent < 950 else ""
    assert row.get("doubted", []) == (["learning_loss"] if why else [])
    assert row.get("doubt", "").startswith(why) and load_doubt(tmp_path) == row.get("doubt", "")
    assert all(one["load"] for one in said if one["kind"] == "doubt"), "it is about what others met"


def test_what_saturates_is_offered_as_fast_as_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: more than the links carry was less than the recording asks for, and voided all times."""
    door = SimpleNamespace(options={"mbit": 0.001, "saturate": True, "recording": "two_halves"})
    vars(door).update(rank=0, world_size=2, port=0, dscp=0, token=1, seed=1, addresses=["127.0.0.1", "127.0.0.2"])
    said: dict[str, dict[str, Any]] = {}
    door.record, door.ready = lambda kind, **what: said.update({kind: what}), lambda: None
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process is told to end by others
    monkeypatch.setattr("lossbench.workloads.replay.__main__.QUIET_S", 0.0)
    replay = Replay(door)  # type: ignore[arg-type]
    taken = iter([5, 3, 0] * 100)  # of every train, as a slow link takes them

    def send(rows: Sequence[bytes], _: object) -> int:
        replay.ended = sum(replay.sent) > 100
        return min(len(rows), next(taken))

    monkeypatch.setattr(replay.link, "send_rows", send)
    monkeypatch.setattr(replay, "_waiting_bytes", lambda: 1)
    replay.run()
    replay.link.close()
    assert said["replays"]["saturate"] and "doubt" not in said
    assert said["summary"]["offered"] == said["summary"]["sent"] > 100, "a step takes hours"


def test_a_saturated_replay_says_so_in_its_row(tmp_path: Path) -> None:
    said = list(conclude(replayed(tmp_path, offered=940, sent=940), "", {"mbit": 48, "saturate": True}))
    (row,) = [one for one in said if one["kind"] == "row"]
    assert row["note"].startswith("Saturated") and "doubt" not in row


@pytest.mark.parametrize(("mbit", "kinds"), [(0, []), (48, ["error"])])
def test_nothing_sent_is_an_error_unless_nothing_was_asked_for(tmp_path: Path, mbit: float, kinds: list[str]) -> None:
    said = conclude(replayed(tmp_path, offered=0, sent=0), "", {"mbit": mbit})
    assert [one["kind"] for one in said if one["kind"] == "error"] == kinds


def test_a_burst_that_the_end_comes_between_is_not_missed_and_one_that_waits_for_a_step_is() -> None:
    waiting = [Train(1, 8, 5, 0, due=4.0), Train(2, 8, 5, 0, due=4.0), Train(1, 3, 6, 0, due=9.5)]
    assert asked(100, waiting, since=5.0) == 97
    assert asked(100, [], since=5.0) == 100


@pytest.mark.parametrize(("mbit", "often"), [(0, False), (48, True)])
def test_a_replay_that_offers_nothing_leaves_the_cores_to_the_service(
    monkeypatch: pytest.MonkeyPatch, mbit: float, often: bool
) -> None:
    """As it was: sixteen of them looked two hundred times a second each, a fifth of a core beside the service alone."""
    door = SimpleNamespace(options={"mbit": mbit, "recording": "two_halves"}, rank=0, world_size=2, port=0, dscp=0)
    vars(door).update(token=1, seed=1, addresses=["127.0.0.1", "127.0.0.2"])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    replay = Replay(door)  # type: ignore[arg-type]
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    replay._turn(0.2)
    replay.link.close()
    assert slept == ([TICK_S] if often else [0.2])
