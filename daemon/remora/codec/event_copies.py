"""Copies of an event's entry for the topics that notifications send it to.

An event that comes without a topic is encoded once, for no topic. A copy has the notification's id in the place of the
record's `configurationId`, the topic's opaque data where it has some, and behind the event what entries of the topic
have there; everything else is taken over byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from remora.codec.s3_events import behind_event
from remora.model.entry import Time
from remora.model.notification import Happening
from remora.model.topic import Target, Topic

NO_TARGET = Topic("", "", "", Target("", "", ""))
"""What an event is encoded for that has no topic yet."""

_U32 = Struct("<I").unpack_from
_U64 = Struct("<Q").unpack_from
_SIZE = Struct("<I").pack
_HEADERS = Struct("<BBIBBI")  # of the entry, then of the event inside
_TIME_BYTES = 8


class Original(NamedTuple):
    """An event that is encoded for no topic: what is asked of it, and its bytes around what differs in copies."""

    happening: Happening
    head: bytes
    middle: bytes
    opaque: bytes


def original_of(entry: bytes, *, with_pairs: bool) -> Original:
    """Take an entry apart that `place` has made for `NO_TARGET`; metadata and tags only where they are asked for."""
    begin = _HEADERS.size
    at = _behind(entry, begin, 3) + _TIME_BYTES
    name_end = at + 4 + _U32(entry, at)[0]
    name = entry[at + 4 : name_end]
    configuration = _behind(entry, name_end, 5)
    bucket_at = configuration + 4 + _U32(entry, configuration)[0]
    bucket_end = bucket_at + 4 + _U32(entry, bucket_at)[0]
    key_at = _behind(entry, bucket_end, 2)
    key_end = key_at + 4 + _U32(entry, key_at)[0]
    metadata_at = _behind(entry, key_end + 8, 5)
    metadata, tags_at = _pairs(entry, metadata_at, is_asked=with_pairs)
    tags, opaque_at = _pairs(entry, tags_at, is_asked=with_pairs)
    happening = Happening(
        entry[bucket_at + 4 : bucket_end], name, entry[key_at + 4 : key_end], _U64(entry, key_end)[0], metadata, tags
    )
    opaque_end = opaque_at + 4 + _U32(entry, opaque_at)[0]
    return Original(
        happening, entry[begin:configuration], entry[bucket_at:opaque_at], entry[opaque_at + 4 : opaque_end]
    )


def copier(topic: Topic, created: Time, context: bytes = b"") -> Callable[[Original, bytes], bytes]:
    """What makes the entry of a topic from an event and the id of the notification that sends it; `context` stands
    behind each."""
    tail, own = behind_event(topic, created), topic.opaque_data or b""

    def copy(event: Original, notification: bytes) -> bytes:
        opaque = own or event.opaque
        size = len(event.head) + len(notification) + len(event.middle) + len(opaque) + 8
        return b"".join((
            _HEADERS.pack(3, 1, 6 + size + len(tail), 4, 1, size),
            event.head, _SIZE(len(notification)), notification, event.middle, _SIZE(len(opaque)), opaque, tail, context,
        ))  # fmt: skip

    return copy


def _behind(entry: bytes, at: int, count: int) -> int:
    """Where the text ends that is the last of so many from here on."""
    for _ in range(count):
        at += 4 + _U32(entry, at)[0]
    return at


def _pairs(entry: bytes, at: int, *, is_asked: bool) -> tuple[tuple[tuple[bytes, bytes], ...], int]:
    """The pairs of a map, where they are asked for, and where it ends."""
    count = _U32(entry, at)[0]
    at += 4
    if not count:
        return (), at
    found = []
    for _ in range(count):
        middle = _behind(entry, at, 1)
        end = _behind(entry, middle, 1)
        if is_asked:
            found.append((entry[at + 4 : middle], entry[middle + 4 : end]))
        at = end
    return tuple(found), at
