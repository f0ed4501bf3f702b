"""The knob of priority: one queue, shares, strict; the same buffer in every mode."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from lossbench.spec.shaping import Shaping, TrafficClass

WEB = TrafficClass(name="web", dscp=18, buffer_percent=80)
LEARNING = TrafficClass(name="learning", rest=True)


def shaped(priority: float | None, **keys: object) -> tuple[TrafficClass, ...]:
    return Shaping(priority=priority, buffer_kb=200, classes=(WEB, LEARNING), **keys).resolved()  # type: ignore[arg-type]


@pytest.mark.parametrize("priority", [0, 0.25, 0.5, 1])
def test_every_degree_of_priority_has_the_same_buffer(priority: float) -> None:
    assert sum(c.queue_kb or 0 for c in shaped(priority)) == 200


def test_no_priority_is_one_queue_for_all() -> None:
    (only,) = shaped(0)
    assert only.takes_rest() and only.name == "shared" and only.share_percent == 100


@pytest.mark.parametrize(("priority", "kept"), [(0.001, 49.95), (0.5, 25), (0.9, 5), (1, 0.1)])
def test_above_none_the_others_keep_half_of_what_is_left_to_one(priority: float, kept: float) -> None:
    web, learning = shaped(priority)
    assert learning.share_percent == pytest.approx(kept) and web.share_percent == pytest.approx(100 - kept)
    assert (web.priority, learning.priority) == (0, 7)


def test_without_a_degree_classes_are_as_they_say_themselves() -> None:
    web, learning = shaped(None)
    assert (web.share_percent, web.queue_kb, learning.queue_kb) == (1.0, 160, 40)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"priority": 0.5, "classes": (LEARNING,)}, "two classes at least"),
        ({"priority": 0.5, "scheduler": "prio", "classes": (WEB, LEARNING)}, "strict priority only"),
        ({"classes": (WEB,), "buffer_kb": None}, "a part of shaping.buffer_kb"),
        ({"classes": (TrafficClass(name="a", rest=True), TrafficClass(name="rest"))}, "only one class"),
        ({"classes": (TrafficClass(name="a", dscp=1, buffer_percent=100),)}, "leave nothing"),
        ({"classes": (TrafficClass(name="a", rest=True, queue_kb=5),)}, "either shaping.buffer_kb"),
    ],
)
def test_what_makes_no_sense_is_said(keys: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Shaping(**({"buffer_kb": 200} | keys))  # type: ignore[arg-type]
