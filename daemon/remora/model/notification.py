"""A notification: which events of which buckets go to which topics of remora's own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

MOST_NOTIFICATIONS = 1000
"""The most that a store has."""

NOTIFICATION_ID = re.compile(r"[A-Za-z0-9_-]{1,200}")
"""What the name of a notification may be. It stands in each record that it sends, as `configurationId`."""

Named = tuple[tuple[str, str], ...]
"""Names with the value that each must have, in the order of the names."""


@dataclass(frozen=True, slots=True)
class EventFilter:
    """What an event must be like; all that is given must match, and an empty text or None is not given.

    The three rules of keys count in bytes of the decoded key. `regex` is RE2's and must match the whole key, as in
    radosgw. Names of metadata count in small letters.
    """

    prefix: str = ""
    suffix: str = ""
    regex: str = ""
    size_min: int | None = None
    size_max: int | None = None
    metadata: Named = ()
    tags: Named = ()


@dataclass(frozen=True, slots=True)
class Notification:
    """Each event that matches is sent to each of the topics. Without buckets, or without events, all of them match."""

    id: str
    topics: tuple[str, ...]
    buckets: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    filter: EventFilter = EventFilter()


class Happening(NamedTuple):
    """What notifications ask of an event.

    `name` is the event's with or without `s3:`. `metadata` and `tags` are the pairs that its record has.
    """

    bucket: bytes
    name: bytes
    key: bytes
    size: int = 0
    metadata: tuple[tuple[bytes, bytes], ...] = ()
    tags: tuple[tuple[bytes, bytes], ...] = ()


class ExpectedEvent(NamedTuple):
    """An event to come, as far as it is known: None is what nobody has said of it."""

    bucket: bytes
    key: bytes
    name: bytes | None = None
    size: int | None = None
    metadata: tuple[tuple[bytes, bytes], ...] | None = None
    tags: tuple[tuple[bytes, bytes], ...] | None = None


@dataclass(frozen=True, slots=True)
class Definitions:
    """The notifications of a store by their ids' order, and the version that grows with each change of them."""

    notifications: tuple[Notification, ...] = ()
    version: int = 0

    def naming(self, topic: str) -> tuple[str, ...]:
        """The ids of the notifications that send to this topic."""
        return tuple(each.id for each in self.notifications if topic in each.topics)
