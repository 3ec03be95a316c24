"""Queue entries on their way to an endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Record(NamedTuple):
    """One entry, ready to be sent. A NamedTuple because one is made for every event.

    `key` is `bucket/object` and decides the order: records of one key are never sent side by side. `body` is the JSON
    that radosgw itself would post. `position` and `next_position` are the markers of this entry and of the one behind
    it, as ASCII bytes. `created_ns` is when the event's age begins, in ns since the epoch. `ordinal` is the entry's
    index in its page. `sequence` is `<topic id>:<number>` in the topic's order of commits, `traceparent` the trace
    context of the request that the event came with, as W3C writes it; both are empty where there is none. `event_ns` is
    the event's own time, the object's modification, in ns since the epoch: the body has its microseconds only.
    """

    key: bytes
    body: bytes
    event_id: bytes
    created_ns: int
    position: bytes
    next_position: bytes
    ordinal: int
    sequence: bytes = b""
    traceparent: bytes = b""
    event_ns: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a queue: `entries` in order, and one position more than entries.

    `positions[i]` is where `entries[i]` begins and `positions[i + 1]` where it ends, already carried over at the ring's
    end; the last one is where the next page starts. Positions are ASCII `gen/offset`. `nbytes` are the payload bytes of
    the page. `corrupt` has, by its index, the reason of each entry that is not what was committed: nothing that its
    bytes say may be relied on.

    `held_back` says what an empty page is for, where entries wait that must not be sent before others. A page that
    begins with the first entry of a queue that took over from others has in `after` where these ended, as the header
    `remora-after` has it.
    """

    positions: list[bytes]
    entries: list[bytes]
    truncated: bool
    corrupt: Mapping[int, str] = field(default_factory=dict)
    held_back: str = ""
    after: bytes = b""
    nbytes: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", sum(map(len, self.entries)))  # asked for several times

    def front(self, count: int) -> Page:
        """The first entries of this page, as a page."""
        corrupt = {i: why for i, why in self.corrupt.items() if i < count}
        return Page(self.positions[: count + 1], self.entries[:count], True, corrupt, after=self.after)


class CorruptBytes(bytes):
    """The bytes of an entry that are not those that were committed, for callers without a page; `why` is the reason."""

    why: str

    def __new__(cls, raw: bytes, why: str) -> CorruptBytes:
        made = super().__new__(cls, raw)
        made.why = why
        return made


@dataclass(frozen=True, slots=True)
class Attempt:
    """The number of attempts at an entry that failed, and when the first one was, in seconds since the epoch."""

    count: int
    first_tried: float


class LastAttempt(NamedTuple):
    """How the last attempt that failed did, and when, in seconds since the epoch."""

    failure: str
    at: float


CAUSES = ("undecodable", "corrupt", "too_large", "refused", "expired", "exhausted")
"""Why entries become dead letters."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An entry that left its queue without being delivered, with everything needed to send it later.

    `cause` is one of `CAUSES`; `reason` is a sentence for the operator. Times are seconds since the epoch.
    `sequence` is as in a Record, and empty for an entry that is corrupt. `last_failure` is what the last attempt came
    to, at `failed_at`; it is empty where none was made, and in letters of releases that did not keep it. Stores pass
    over fields that they do not know, so those releases read letters with it, too.
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
    sequence: str = ""
    last_failure: str = ""
    failed_at: float = 0.0

    @property
    def is_as_committed(self) -> bool:
        """Whether `raw` are the bytes that were committed, so that what they say may be relied on."""
        return self.cause != "corrupt"


@dataclass(frozen=True, slots=True)
class CorruptLetter(DeadLetter):
    """A dead letter whose bytes in the store are not those that were stored; `reason` says what was found.

    Only queue, incarnation and position are known: `cause` is `corrupt`, attempts and times are 0. `raw` is the entry
    as the bytes now have it, or all of the letter's bytes where they make no sense.
    """


class Redrive(NamedTuple):
    """A dead letter to re-drive, and the entry that is committed for it."""

    letter: DeadLetter
    payload: bytes


@dataclass(frozen=True, slots=True)
class LetterTotals:
    """The number of dead letters of a queue that commands have re-driven and dropped since the queue was first used."""

    redriven: int = 0
    dropped: int = 0
