"""A topic's row, and the topic that it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from remora.model.shard import Origin, Shard
from remora.model.topic import LayoutState, Target, Topic, TopicLayout, shard_of

COLUMNS = "name, uid, shards, closed, sequence IS NOT NULL, generation, former, attributes"
"""What `topic_of_row` takes."""

IS_SEQUENCED = 4
"""The index of that column."""


class _Attributes(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a row does not have a column for. A newer version may add fields, which are skipped."""

    uri: str
    args: str
    topic: str
    opaque_data: bytes | None = None
    time_to_live_s: int | None = None
    max_retries: int | None = None
    retry_sleep_s: int | None = None
    capacity_bytes: int | None = None


_NO_LAYOUTS = "[]"

_decoder = msgspec.json.Decoder(_Attributes)


def encoded(topic: Topic) -> bytes:
    """A topic's attributes for its row. ValueError for text that is not Unicode."""
    target = topic.target
    return msgspec.json.encode(
        _Attributes(
            target.uri,
            target.args,
            target.topic,
            topic.opaque_data,
            topic.time_to_live_s,
            topic.max_retries,
            topic.retry_sleep_s,
            topic.capacity_bytes,
        )
    )


class TopicColumns(NamedTuple):
    """The columns of `COLUMNS`; of the attributes nothing is known before they are decoded."""

    name: str
    uid: str
    shards: int
    closed: int
    is_sequenced: int
    generation: int
    former: str
    attributes: Any


class LayoutColumns(NamedTuple):
    """The columns of a row that say how its topic is divided."""

    name: str
    shards: int
    generation: int
    former: str

    @classmethod
    def of(cls, row: Sequence[Any]) -> LayoutColumns:
        """Those of a row of `COLUMNS`."""
        return cls(row[0], row[2], row[5], row[6])

    @property
    def former_layouts(self) -> tuple[TopicLayout, ...]:
        """The layouts before the one that takes events, which have queues yet."""
        return decoded_layouts(self.former)

    @property
    def queues(self) -> list[Shard]:
        """All queues, by layout and number."""
        places = [(each.generation, each.shards) for each in self.former_layouts]
        return [
            shard_of(self.name, number, Origin.REMORA, generation)
            for generation, shards in (*places, (self.generation, self.shards))
            for number in range(shards)
        ]


def decoded_layouts(text: str) -> tuple[TopicLayout, ...]:
    """Former layouts as a row has them."""
    if text == _NO_LAYOUTS:
        return ()
    found = msgspec.json.decode(text, type=list[tuple[int, int]])
    return tuple(TopicLayout(generation, shards, LayoutState.SHUT) for generation, shards in found)


def topic_of_row(row: Sequence[Any]) -> Topic:
    """The topic of a row of `COLUMNS`. msgspec.MsgspecError for attributes that cannot be read."""
    name, uid, shards, closed, is_sequenced, generation, former, attributes = row
    found = _decoder.decode(attributes if isinstance(attributes, bytes | str) else b"")  # which cannot be read either
    return Topic(
        name=name,
        tenant="",
        queue=name,
        target=Target(found.uri, found.args, found.topic),
        opaque_data=found.opaque_data,
        time_to_live_s=found.time_to_live_s,
        max_retries=found.max_retries,
        retry_sleep_s=found.retry_sleep_s,
        shards=shards,
        origin=Origin.REMORA,
        id=uid,
        closed=bool(closed),
        is_sequenced=bool(is_sequenced),
        generation=generation,
        former=decoded_layouts(former),
        capacity_bytes=found.capacity_bytes,
    )
