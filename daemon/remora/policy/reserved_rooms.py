"""Which of the reserved rooms events take, where room was reserved for more events than there are."""

from __future__ import annotations

from collections.abc import Sequence

from remora.model.errors import ReservationExceeded, ReservationMismatch
from remora.model.ingest import ReservedRoom, RoutedEvent


def rooms_taken(rooms: Sequence[ReservedRoom], events: Sequence[RoutedEvent]) -> list[int]:
    """The place of the room that each event takes: the next one of its key that has the bytes.

    So events stay in the order of their rooms, and where they can all have one they do. Their shards do not count: the
    topic may have other ones than when room was reserved. Raises ReservationMismatch, and ReservationExceeded where
    only larger rooms are missing.
    """
    taken: list[int] = []
    place = 0
    for number, event in enumerate(events):
        too_small = None
        while place < len(rooms) and (rooms[place].key != event.key or len(event.payload) > rooms[place].nbytes):
            if rooms[place].key == event.key:
                too_small = rooms[place].nbytes
            place += 1
        if place == len(rooms):
            if too_small is not None:
                raise ReservationExceeded(f"event {number} has {len(event.payload)} bytes, not at most {too_small}")
            key = event.key.decode(errors="replace")
            raise ReservationMismatch(f"event {number} is of {key!r}, and no room that is left was reserved for it")
        taken.append(place)
        place += 1
    return taken
