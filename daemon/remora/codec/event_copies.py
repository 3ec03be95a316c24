"""Copies of an event's entry for the topics that notifications send it to, and what is kept of such events that a
reservation announces.

An event that comes without a topic is encoded once, for no topic. A copy has the notification's id in the place of the
record's `configurationId`, the topic's opaque data where it has some, and behind the event what entries of the topic
have there; everything else is taken over byte by byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import NamedTuple

import msgspec

from remora.model.notification import Happening, Notification
from remora.model.topic import Target, Topic

NO_TARGET = Topic("", "", "", Target("", "", ""))
"""What an event is encoded for that has no topic yet."""

_U32 = Struct("<I").unpack_from
_U64 = Struct("<Q").unpack_from
_SIZE = Struct("<I").pack
_HEADERS = Struct("<BBIBBI")  # of the entry, then of the event inside
_TIME_BYTES = 8

Sends = list[tuple[bytes, tuple[str, ...]]]
"""For each notification its id and its topics."""


class TopicMatches(NamedTuple):
    """What notifications send to a topic: what each event's shard is chosen by, its entry for no topic, and the id of
    the notification."""

    keys: list[bytes]
    entries: list[bytes]
    notifications: list[bytes]


def happening_of(entry: bytes) -> Happening:
    """What notifications ask of the event of an entry that `place` has made."""
    name_at, _, bucket_at, key_at, metadata_at = _places(entry)
    metadata, tags_at = _pairs(entry, metadata_at)
    tags, _ = _pairs(entry, tags_at)
    return Happening(
        _text(entry, bucket_at), _text(entry, name_at), _text(entry, key_at),
        _U64(entry, _behind(entry, key_at, 1))[0], metadata, tags,
    )  # fmt: skip


def distribute(
    events: Sequence[tuple[bytes, bytes]],
    places: Sequence[Sequence[int]],
    sends: Sends,
    by_topic: dict[str, TopicMatches],
) -> int:
    """Add events, each a key and an entry, to what the topics get to which the notifications at these places send
    them; the bytes of all."""
    total = 0
    for (key, entry), some in zip(events, places, strict=True):
        for place in some:
            notification, topics = sends[place]
            for topic in topics:
                if (matches := by_topic.get(topic)) is None:
                    matches = by_topic[topic] = TopicMatches([], [], [])
                keys, entries, notifications = matches
                keys.append(key)
                entries.append(entry)
                notifications.append(notification)
                total += len(entry)
    return total


def copies(
    entries: Sequence[bytes], notifications: Sequence[bytes], opaque: bytes, tail: bytes, context: bytes
) -> list[bytes]:
    """The entries of a topic for events that notifications send it. `opaque` is the topic's, or empty; `tail` stands
    behind each event, and `context` behind each entry."""
    found = []
    for entry, notification in zip(entries, notifications, strict=True):
        _, configuration_at, bucket_at, _, metadata_at = _places(entry)
        _, tags_at = _pairs(entry, metadata_at)
        _, opaque_at = _pairs(entry, tags_at)
        head, middle = entry[_HEADERS.size : configuration_at], entry[bucket_at:opaque_at]
        own = opaque or _text(entry, opaque_at)
        size = len(head) + len(notification) + len(middle) + len(own) + 8
        found.append(b"".join((
            _HEADERS.pack(3, 1, 6 + size + len(tail), 4, 1, size),
            head, _SIZE(len(notification)), notification, middle, _SIZE(len(own)), own, tail, context,
        )))  # fmt: skip
    return found


def _places(entry: bytes) -> tuple[int, int, int, int, int]:
    """Where name, configuration's id, bucket, key and metadata begin."""
    name_at = _behind(entry, _HEADERS.size, 3) + _TIME_BYTES
    configuration_at = _behind(entry, name_at, 6)
    bucket_at = _behind(entry, configuration_at, 1)
    key_at = _behind(entry, bucket_at, 3)
    return name_at, configuration_at, bucket_at, key_at, _behind(entry, _behind(entry, key_at, 1) + 8, 5)


def _text(entry: bytes, at: int) -> bytes:
    return entry[at + 4 : at + 4 + _U32(entry, at)[0]]


def _behind(entry: bytes, at: int, count: int) -> int:
    """Where the text ends that is the last of so many from here on."""
    for _ in range(count):
        at += 4 + _U32(entry, at)[0]
    return at


def _pairs(entry: bytes, at: int) -> tuple[tuple[tuple[bytes, bytes], ...], int]:
    """The pairs of a map, and where it ends."""
    count = _U32(entry, at)[0]
    at += 4
    found = []
    for _ in range(count):
        middle = _behind(entry, at, 1)
        end = _behind(entry, middle, 1)
        found.append((entry[at + 4 : middle], entry[middle + 4 : end]))
        at = end
    return tuple(found), at


class Announcement(msgspec.Struct, frozen=True, array_like=True):
    """The events to come, and where they may go: kept as a msgpack array, which a newer version may lengthen.

    It has the notifications that count for the events, as they were then: what a commit stores does not depend on what
    they say by now.

    `events` has key (`bucket:object`) and most bytes of each. `rooms` has by topic, for each copy that there is room
    for, the number of its event and the place in `notifications` of the one that may send it. `ids` are the topics'.
    """

    notifications: tuple[Notification, ...]
    events: Sequence[tuple[bytes, int]]
    rooms: Mapping[str, Sequence[tuple[int, int]]]
    ids: Mapping[str, str]


encode_announcement = msgspec.msgpack.Encoder().encode
decode_announcement = msgspec.msgpack.Decoder(Announcement).decode
"""Raises msgspec.MsgspecError for what is none."""
