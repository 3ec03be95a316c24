"""When entries of a queue are moved, when that ends, and what keeps them from being moved."""

from __future__ import annotations

import math

import pytest

from remora.model.shard import QueueRoom
from remora.policy.queues.spill import (
    SpillRules,
    is_urgent,
    look_again_s,
    near_bound,
    should_go_on,
    should_guard,
    should_start,
    why_refused,
)

RULES = SpillRules(enabled=True, topic_bytes=1000, total_bytes=5000)


def room(used: int, reserved: int = 0) -> QueueRoom:
    return QueueRoom(100_000, used, reserved, 0)


@pytest.mark.parametrize(
    ("used", "reserved", "lasts_s", "guards", "starts", "goes_on"),
    [
        (10_000, 0, math.inf, False, False, False),
        (10_000, 0, 100.0, True, False, False),
        (26_000, 0, math.inf, True, False, True),
        (60_000, 0, math.inf, True, False, True),
        (60_000, 0, 599.0, True, True, True),
        (60_000, 0, 601.0, True, False, True),
        (95_000, 0, math.inf, True, True, True),
        (10_000, 89_000, math.inf, True, True, False),
    ],
)
def test_when_entries_are_moved(
    used: int, reserved: int, lasts_s: float, guards: bool, starts: bool, goes_on: bool
) -> None:
    """Half is used and the rest lasts less than ten minutes, or nearly nothing is left; until a quarter is used."""
    seen = room(used, reserved)

    assert should_guard(RULES, seen, lasts_s) is guards
    assert should_start(RULES, seen, lasts_s) is starts
    assert should_go_on(RULES, seen) is goes_on


@pytest.mark.parametrize(("used", "reserved", "is_first"), [(0, 0, False), (90_000, 0, False), (1, 90_000, True)])
def test_when_moves_come_first(used: int, reserved: int, is_first: bool) -> None:
    """Moves come after others until nine tenths of the ring are taken."""
    assert is_urgent(room(used, reserved)) is is_first


@pytest.mark.parametrize(("used", "lasts_s", "pause_s"), [(0, math.inf, 0.5), (0, 8.0, 0.5), (99_000, 0.1, 0.5)])
def test_small_rings_are_looked_at_often(used: int, lasts_s: float, pause_s: float) -> None:
    """A ring that a flood fills in a moment is looked at twice a second, whatever came so far."""
    assert look_again_s(room(used), lasts_s) == pause_s


def test_large_rings_are_looked_at_four_times_until_they_are_full() -> None:
    """And at least every ten seconds."""
    ring = QueueRoom(128_000_000, 0, 0, 0)

    assert look_again_s(ring, math.inf) == 10
    assert look_again_s(ring, 20.0) == 5


def test_what_keeps_entries_in_their_ring() -> None:
    """The topic's bound, that of all topics, and a pool that is full, each with its reason."""
    assert "spill.topic_bytes" in why_refused(RULES, 1000, 1000, "")
    assert "spill.total_bytes" in why_refused(RULES, 0, 5000, "")
    assert why_refused(RULES, 0, 0, "pool p is 90% full") == "pool p is 90% full"
    assert not why_refused(RULES, 999, 4999, "")
    assert near_bound(RULES, 500, 500) == 0.5
    assert near_bound(RULES, 500, 4000) == 0.8
