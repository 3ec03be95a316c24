"""Which open reservations of a queue are given up: those that their queue's holder has seen for long enough.

Each reservation carries the time of the OSD that made it. Comparing that with a host's wall clock would let a host
whose clock runs ahead free what a gateway has just reserved, and the gateway's commit would be refused: a
notification lost. An age that counts from when the holder first saw the reservation, on the holder's monotonic clock,
is never larger than the true one, whatever any wall clock says.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

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
