"""Which open reservations of a queue are given up, and which of the reserved rooms events take.

An open reservation is given up when its queue's holder has seen it for long enough. Each reservation carries the time
of the OSD that made it. Comparing that with a host's wall clock would let a host whose clock runs ahead free what a
gateway has just reserved, and the gateway's commit would be refused: a notification lost. An age that counts from
when the holder first saw the reservation, on the holder's monotonic clock, is never larger than the true one,
whatever any wall clock says.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from remora.model.errors import ReservationExceeded, ReservationMismatch
from remora.model.ingest import ReservedRoom, RoutedEvent

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Sightings(Generic[T]):
    """The open reservations of one queue, and when each was first seen, in seconds of the monotonic clock."""

    first_seen: Mapping[T, float] = field(default_factory=dict)

    def after_look(self, found: Iterable[T], now: float) -> Sightings[T]:
        """What is known after a look that found these: what has ended is forgotten, what is new was seen now."""
        return Sightings({each: self.first_seen.get(each, now) for each in found})

    def seen_for(self, age_s: float, now: float) -> list[T]:
        """Those that were first seen this long ago or longer, the oldest first."""
        old = [(since, each) for each, since in self.first_seen.items() if now - since >= age_s]
        return [each for _, each in sorted(old, key=lambda pair: pair[0])]


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
