"""Queue entries on their way to an endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Record(NamedTuple):
    """One entry, ready to be sent. A NamedTuple because one is made for every event.

    `key` is `bucket/object` and decides the order: records of one key are never sent side by side.
    `body` is what radosgw itself would post. `position` and `next_position` are this entry's marker and the
    marker right behind it, as ASCII bytes. `created_ns` is the event's age zero in ns since the epoch.
    `ordinal` is the entry's place in the listing it came from.
    """

    key: bytes
    body: bytes
    event_id: bytes
    created_ns: int
    position: bytes
    next_position: bytes
    ordinal: int


@dataclass(frozen=True, slots=True)
class Page:
    """One reply of a queue: `entries` in order, and one position more than entries.

    `positions[i]` is where `entries[i]` begins and `positions[i + 1]` where it ends, already carried over at
    the ring's end; the last one is where the next listing starts. Positions are ASCII `gen/offset`.
    `nbytes` are the payload bytes held. `corrupt` says of those entries, by their place, that are not what was
    committed, how the store knows; nothing that their bytes say may be relied on.
    """

    positions: list[bytes]
    entries: list[bytes]
    truncated: bool
    corrupt: Mapping[int, str] = field(default_factory=dict)
    nbytes: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", sum(map(len, self.entries)))  # asked for several times

    def front(self, count: int) -> Page:
        """Its first entries as a listing of their own."""
        corrupt = {i: why for i, why in self.corrupt.items() if i < count}
        return Page(self.positions[: count + 1], self.entries[:count], True, corrupt)


class CorruptBytes(bytes):
    """An entry's bytes that are not those that were committed, where there is no listing to say so; `why` says it."""

    why: str

    def __new__(cls, raw: bytes, why: str) -> CorruptBytes:
        made = super().__new__(cls, raw)
        made.why = why
        return made


@dataclass(frozen=True, slots=True)
class Attempt:
    """How often an entry was tried in vain, and when for the first time, in seconds since the epoch."""

    count: int
    first_tried: float


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An entry that left its queue without being delivered, with everything needed to send it later.

    `cause` is one of a small closed set (`undecodable`, `corrupt`, `too_large`, `refused`, `expired`, `exhausted`);
    `reason` is the sentence for a person. Times are seconds since the epoch.
    """

    queue: str
    incarnation: str
    position: str
    next_position: str
    cause: str
    reason: str
    attempts: int
    first_seen: float
    parked_at: float
    raw: bytes = field(repr=False)

    @property
    def is_as_committed(self) -> bool:
        """Whether what `raw` says may be relied on, as far as it can be decoded."""
        return self.cause != "corrupt"


@dataclass(frozen=True, slots=True)
class CorruptLetter(DeadLetter):
    """A dead letter whose bytes in the store are not those that were stored; `reason` says what was found.

    Only queue, incarnation and position are known: `cause` is `corrupt`, attempts and times are 0. `raw` is the entry
    as the bytes now have it, or all of the letter's bytes where they make no sense.
    """


class Redrive(NamedTuple):
    """A dead letter that is to be re-driven, and the entry that is committed for it."""

    letter: DeadLetter
    payload: bytes


@dataclass(frozen=True, slots=True)
class LetterTotals:
    """How many dead letters of a queue commands have re-driven and dropped since it was first used."""

    redriven: int = 0
    dropped: int = 0
