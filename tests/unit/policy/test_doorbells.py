"""Which doorbell a queue has, and when a commit rings it."""

from __future__ import annotations

from collections import Counter

import pytest

from remora.policy.delivery.doorbells import (
    BELLS,
    EVERY_S,
    MOST_KNOWN,
    NOTIFY_EVERY_S,
    PAUSE_S,
    RingPace,
    bell_of,
    pause_s,
)


@pytest.mark.parametrize(
    ("queue", "number"),
    [("orders", 14), ("orders.1", 5), ("orders.2", 15), ("orders@1", 12), ("Aufträge", 10), ("\udcff", 0)],
)
def test_which_bell(queue: str, number: int) -> None:
    """A queue has the same bell in each process and each release."""
    assert bell_of(queue) == number


def test_bells_are_shared_evenly() -> None:
    """A hundred queues of one topic have all bells among them, and none more than twice its share."""
    queues = Counter(bell_of(f"topic.{number}") for number in range(1, 100))

    assert set(queues) == set(range(BELLS))
    assert max(queues.values()) <= 2 * 100 / BELLS


@pytest.mark.parametrize(
    ("commits", "rung"),
    [
        ([("q", 0.0)], [True]),
        ([("q", 0.0), ("q", 0.0), ("q", 0.0), ("q", 0.0)], [True, True, True, False]),
        ([("q", 0.0), ("q", 0.0), ("q", 0.0), ("r", 0.0)], [True, True, True, True]),
        ([("q", EVERY_S * number) for number in range(50)], [True] * 50),
        ([("q", EVERY_S / 4 * number) for number in range(50)], [True] * 4 + [False] * 46),
        ([("q", 0.001 * number) for number in range(50)] + [("q", 1.0)], [True] * 3 + [False] * 47 + [True]),
    ],
    ids=["first", "few-at-once", "each-for-itself", "now-and-then", "busy", "quiet-again"],
)
def test_which_commits_ring(commits: list[tuple[str, float]], rung: list[bool]) -> None:
    """A commit rings unless its queue got many lately: a busy queue does not ring."""
    known = RingPace()

    assert [known.rings(queue, now) for queue, now in commits] == rung


@pytest.mark.parametrize(
    ("times", "notified"),
    [
        ([0.0] * 20, 16),
        ([NOTIFY_EVERY_S * number for number in range(100)], 100),
        ([NOTIFY_EVERY_S / 8 * number for number in range(800)], 116),
    ],
    ids=["all-bells-at-once", "now-and-then", "many-queues"],
)
def test_which_rings_notify(times: list[float], notified: int) -> None:
    """However many queues get events, the OSDs are not asked to notify more often than the budget says."""
    known = RingPace()

    assert sum(known.notifies(now) for now in times) == notified


def test_queues_are_forgotten() -> None:
    """What is remembered of queues does not grow with the number of all that there ever were."""
    known = RingPace()

    assert all(known.rings(f"q{number}", number * 0.001) for number in range(2 * MOST_KNOWN))

    assert len(known._rates) <= MOST_KNOWN


@pytest.mark.parametrize(
    ("since_ring_s", "unanswered", "expected_s"),
    [
        (float("inf"), 0, 0.0),
        (PAUSE_S, 0, 0.0),
        (PAUSE_S / 4, 0, PAUSE_S * 3 / 4),
        (0.0, 4, PAUSE_S * 5),
        (PAUSE_S * 5, 4, 0.0),
    ],
)
def test_when_a_bell_rings_again(since_ring_s: float, unanswered: int, expected_s: float) -> None:
    """Rings of one bell keep a distance, which grows while earlier ones are not answered."""
    assert pause_s(since_ring_s, unanswered) == pytest.approx(expected_s)
