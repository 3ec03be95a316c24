"""When a queue gets leaked room back, and how long what is left lasts."""

from __future__ import annotations

import math

import pytest

from remora.model.shard import QueueRoom
from remora.policy.queues.mends import Heal, RoomOverTime, is_full_by_leak, should_mend, words

MB = 1_000_000
RING = 128 * MB


def room(*, used: float = 0, leaked: float = 0, owed: float = 0, ring: int = RING) -> QueueRoom:
    """A queue of 128 MB with these megabytes."""
    return QueueRoom(ring, int(used * MB), int((leaked + owed) * MB), int(owed * MB))


@pytest.mark.parametrize(
    ("seen", "quiet_s", "off", "full", "calm"),
    [
        (room(), 3600, False, False, False),
        (room(leaked=127.9), 0, False, True, True),
        (room(leaked=121.7), 0, False, True, True),  # 4.9 % are left
        (room(leaked=121.5), 0, False, False, False),  # 5.1 %
        (room(leaked=121.5), 10, False, False, True),
        (room(used=64, leaked=64), 0, False, True, True),  # half of what is missing
        (room(used=64.1, leaked=63.9), 0, False, False, False),  # less: its entries fill it
        (room(used=64.1, leaked=63.9), 60, False, False, True),
        (room(owed=128), 60, False, False, False),  # reserved, and nothing leaked
        (room(used=128), 60, False, False, False),
        (room(leaked=1.0), 60, False, False, False),
        (room(leaked=1.1), 9.9, False, False, False),
        (room(leaked=1.1), 10, False, False, True),
        (QueueRoom(RING, 0, 2**64 - 10, 0), 0, False, True, True),  # a sum that wrapped below 0
    ],
)
def test_which_queues_are_mended(seen: QueueRoom, quiet_s: float, off: bool, full: bool, calm: bool) -> None:
    """A queue that refuses, or soon will, is mended where half is leaked or more; a calm one also with above 1 MB."""
    found: dict[Heal, bool] = {"off": off, "full": full, "calm": calm}

    assert {heal: should_mend(heal, seen, quiet_s) for heal in found} == found


@pytest.mark.parametrize(
    ("seen", "worn"),
    [(room(), False), (room(used=100, leaked=12.8), False), (room(leaked=12.9), True), (room(owed=64), False)],
)
def test_which_queues_are_mended_while_they_spill(seen: QueueRoom, worn: bool) -> None:
    """One that spills is mended where more than a tenth of its ring is leaked, unless nothing is to be mended."""
    heals: list[Heal] = ["off", "full", "calm"]
    assert [should_mend(heal, seen, 0.0, has_runs=True) for heal in heals] == [False, worn, worn]


def test_a_room_is_never_below_zero() -> None:
    """What is counted twice or wrapped leaves no room, and leaks no more than the queue holds."""
    wrapped = QueueRoom(1000, 300, 2**64 - 1, 0)

    assert (wrapped.room_bytes, wrapped.leaked_bytes, wrapped.taken_bytes) == (0, 1000, 1000)
    assert QueueRoom(1000, 300, 50, 80).leaked_bytes == 0


def looked(*looks: tuple[float, float]) -> RoomOverTime:
    """After looks at these times that found so many megabytes used."""
    known = RoomOverTime()
    for at, used in looks:
        known = known.after(room(used=used), at)
    return known


@pytest.mark.parametrize(
    ("looks", "seconds"),
    [
        ([(0, 28)], math.inf),  # no growth is known yet
        ([(0, 28), (15, 28)], math.inf),
        ([(0, 50), (15, 28)], math.inf),
        ([(0, 0), (10, 28)], 100 / 2.8),
        ([(0, 0), (300, 14), (600, 28)], 100 / (28 / 600)),
        ([(0, 100), (10, 0), (610, 28)], 100 / (28 / 600)),  # what was before the ten minutes is forgotten
        ([(0, 0), (5000, 28)], 100 / (28 / 5000)),  # looks may be rare
        ([(0, 0), (10, 128)], 0.0),
    ],
)
def test_how_long_a_queue_lasts(looks: list[tuple[float, float]], seconds: float) -> None:
    """Its room divided by its growth over the last ten minutes; for ever where it does not grow."""
    assert looked(*looks).seconds_until_full(room(used=looks[-1][1])) == pytest.approx(seconds)


def test_a_leak_is_growth() -> None:
    """What leaks fills a queue as entries do."""
    known = RoomOverTime().after(room(leaked=10), 0).after(room(leaked=28), 100)

    assert known.seconds_until_full(room(leaked=28)) == pytest.approx(100 / 0.18)


def test_a_mend_is_no_shrinking() -> None:
    """After a mend growth is counted anew: the room that was given back hides none."""
    known = RoomOverTime().after(room(leaked=127), 0).after_mend()
    known = known.after(room(used=1), 15).after(room(used=28), 25)

    assert known.seconds_until_full(room(used=28)) == pytest.approx(100 / 2.7)


def test_a_queue_is_quiet_while_nothing_comes() -> None:
    """It is quiet from the first look on that found the same as the one before."""
    first, second = QueueRoom(RING, 0, 0, 0, (1, 0)), QueueRoom(RING, 0, 0, 0, (2, 0))
    known = RoomOverTime()
    assert known.quiet_s(5) == 0

    known = known.after(first, 10).after(first, 25)
    assert known.quiet_s(30) == 20
    assert known.after(second, 40).quiet_s(45) == 5
    assert known.after(second, 40).after(second, 60).quiet_s(60) == 20


@pytest.mark.parametrize(
    ("seen", "seconds", "said"),
    [
        (room(), math.inf, ""),
        (room(), 86_400.0, ""),
        (room(), 86_399.0, "full in 24 h at its present growth"),
        (room(), 5400.0, "full in 90 min at its present growth"),
        (room(), 90.0, "full in 90 s at its present growth"),
        (room(used=128), 0.0, "full"),
        (room(leaked=127), 0.0, "full by a leak of 127 MB of Ceph < 19.2.4"),
        (room(leaked=0.96, ring=MB), math.inf, "full by a leak of 1.0 MB of Ceph < 19.2.4"),
    ],
)
def test_what_is_said_of_a_queues_room(seen: QueueRoom, seconds: float, said: str) -> None:
    """A leak is named as such; how long a queue lasts is said when it is less than a day."""
    assert words(seen, seconds) == said
    assert is_full_by_leak(seen) is ("leak" in said)
