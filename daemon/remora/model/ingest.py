"""Events on their way into a topic of remora's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

RESERVATION_AGE_S = 120.0
"""How long room is kept for announced events at least, in seconds; a commit that comes later may be refused."""


class RoutedEvent(NamedTuple):
    """One event, encoded, and the number of the shard in its topic that it belongs into.

    `key` is `bucket:object`, what the shard was chosen by. `payload` is an `event_entry_t`.
    """

    shard: int
    key: bytes
    payload: bytes


class ReservedRoom(NamedTuple):
    """What one event to come will need: its shard and key as in RoutedEvent, and the most bytes of its payload."""

    shard: int
    key: bytes
    nbytes: int


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """What makes a request recognisable when it is repeated.

    `key` is the client's, within a topic. `digest` is of what was asked for: another one under the same key is a
    mistake of the client and not a repeat.
    """

    key: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The answer to events that are stored; `repeated` when they had been stored by the same request before."""

    events: int
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Removed:
    """What went with a topic that was removed: its shards, and the entries that nobody will deliver."""

    shards: int
    entries: int
