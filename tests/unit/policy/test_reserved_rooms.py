"""Which of the reserved rooms events take."""

from __future__ import annotations

import pytest

from remora.model.errors import IngestRefused, ReservationExceeded, ReservationMismatch
from remora.model.ingest import ReservedRoom, RoutedEvent
from remora.policy.ingest.reservations import rooms_taken


def rooms(*given: str) -> list[ReservedRoom]:
    """Rooms by key and bytes: `a3` is one of 3 bytes for key a."""
    return [ReservedRoom(0, each[:1].encode(), int(each[1:])) for each in given]


def events(*given: str) -> list[RoutedEvent]:
    """Events by key and bytes, in another shard than their rooms."""
    return [RoutedEvent(1, each[:1].encode(), bytes(int(each[1:]))) for each in given]


@pytest.mark.parametrize(
    ("reserved", "needed", "taken"),
    [
        (["a3", "b3"], ["a3", "b1"], [0, 1]),
        (["a3", "b3"], ["b3"], [1]),
        (["a3", "b3"], [], []),
        (["a3", "a9", "a3"], ["a9", "a3"], [1, 2]),
        (["a3", "a3", "b1"], ["a1", "b0"], [0, 2]),
        ([], [], []),
    ],
)
def test_each_takes_the_next_that_it_fits(reserved: list[str], needed: list[str], taken: list[int]) -> None:
    """Each event takes the next room of its key that has the bytes, and others are passed over."""
    assert rooms_taken(rooms(*reserved), events(*needed)) == taken


@pytest.mark.parametrize(
    ("reserved", "needed", "error"),
    [
        (["a3"], ["b1"], ReservationMismatch),
        (["a3", "b3"], ["b1", "a1"], ReservationMismatch),
        (["a3"], ["a1", "a1"], ReservationMismatch),
        (["a3", "b3"], ["a4"], ReservationExceeded),
        (["a9", "a3"], ["a1", "a4"], ReservationExceeded),
    ],
)
def test_what_has_no_room_is_refused(reserved: list[str], needed: list[str], error: type[IngestRefused]) -> None:
    """Events of other keys, in another order, too many or too large have no room."""
    with pytest.raises(error):
        rooms_taken(rooms(*reserved), events(*needed))
