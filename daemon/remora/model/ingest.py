"""Events on their way into a topic of remora's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

RESERVATION_AGE_S = 120.0
"""The least time for which the room of announced events is kept, in seconds; a later commit may be refused."""


class RoutedEvent(NamedTuple):
    """One encoded event, and the number of the shard of its topic that it goes to.

    `key` is `bucket:object`, which the shard was chosen by. `payload` is an `event_entry_t`.
    """

    shard: int
    key: bytes
    payload: bytes


class ReservedRoom(NamedTuple):
    """The room that one announced event needs: shard and key as in RoutedEvent, and the most bytes of its payload."""

    shard: int
    key: bytes
    nbytes: int


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """Identifies a request, so that its repetition is recognised.

    `key` is the client's, unique within a topic. `digest` is of the request's contents: another digest under the same
    key is a mistake of the client and not a repeat.
    """

    key: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The answer to events that are stored; `repeated` when the same request had stored them before."""

    events: int
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Removed:
    """What a removed topic took with it: its shards, and the pending entries that were discarded."""

    shards: int
    entries: int
