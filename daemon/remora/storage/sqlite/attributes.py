"""A topic's row, and the topic that it stands for."""

from __future__ import annotations

import msgspec

from remora.model.shard import Origin, Shard
from remora.model.topic import Target, Topic, shard_of

COLUMNS = "name, uid, shards, closed, sequence IS NOT NULL, attributes"
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
        )
    )


def topic_of_row(name: str, uid: str, shards: int, closed: int, is_sequenced: int, attributes: bytes) -> Topic:
    """The topic of a row. msgspec.MsgspecError for attributes that cannot be read."""
    found = _decoder.decode(attributes)
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
    )


def queues_of(name: str, _uid: str, shards: int, *_: object) -> list[Shard]:
    """The queues of a row's topic, whatever its attributes say."""
    return [shard_of(name, number, Origin.REMORA) for number in range(shards)]
