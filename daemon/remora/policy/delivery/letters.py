"""Which dead letters a command is about, and in which order they are re-driven."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from remora.model.position import Position
from remora.model.record import CorruptLetter, DeadLetter


@dataclass(frozen=True, slots=True)
class Selection:
    """What letters must be to be meant; None for whatever.

    `key` is an entry's key, `bucket/object`, or with a `*` at its end what keys begin with: letters whose entry cannot
    be decoded have none, and are not meant then. Ages are seconds since a letter was parked.
    """

    queues: frozenset[str] | None = None
    causes: frozenset[str] | None = None
    key: bytes | None = None
    older_than_s: float | None = None
    newer_than_s: float | None = None

    def means(self, letter: DeadLetter, key: bytes | None, now: float) -> bool:
        """Whether this letter is meant; `key` is None for one that cannot be decoded, `now` in s since the epoch.

        No age is known of a CorruptLetter, so it is older and newer than nothing.
        """
        age_s = math.nan if isinstance(letter, CorruptLetter) else now - letter.parked_at
        return (
            (self.queues is None or letter.queue in self.queues)
            and (self.causes is None or letter.cause in self.causes)
            and (self.key is None or _fits(self.key, key))
            and (self.older_than_s is None or age_s > self.older_than_s)
            and (self.newer_than_s is None or age_s < self.newer_than_s)
        )


def _fits(wanted: bytes, key: bytes | None) -> bool:
    if key is None:
        return False
    return key.startswith(wanted[:-1]) if wanted.endswith(b"*") else key == wanted


def in_order(letters: Iterable[DeadLetter]) -> Sequence[DeadLetter]:
    """Letters in the order in which their entries were committed, as far as it matters: that of each queue.

    A queue that was made anew comes after the one before it, by the time at which the first letter of each was stored.
    """
    known = list(letters)
    begun: dict[tuple[str, str], float] = {}
    for each in known:
        of = (each.queue, each.incarnation)
        if not isinstance(each, CorruptLetter):  # whose time is not known
            begun[of] = min(each.parked_at, begun.get(of, each.parked_at))
    return sorted(
        known,
        key=lambda each: (
            begun.get((each.queue, each.incarnation), 0.0),
            each.queue,
            each.incarnation,
            Position.parse(each.position),
        ),
    )
