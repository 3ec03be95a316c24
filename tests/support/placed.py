"""The events of a body in their shards, part by part, as the ingest API stores them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from remora.codec.s3_events import encode
from remora.model.entry import Time
from remora.model.ingest import RoutedEvent
from remora.model.topic import Topic


class Placed(NamedTuple):
    """A part; see `s3_events.EventPart`."""

    events: list[RoutedEvent]
    dropped: int
    tests: int


def place(body: bytes, topic: Topic, *, ndjson: bool, most: int, created: Time, seed: bytes) -> Iterator[Placed]:
    """The parts of a body. Raises MalformedEvent."""
    for part in encode(body, topic, ndjson=ndjson, most=most, created=created, seed=seed):
        yield Placed(part.routed(topic.shards), part.dropped, part.tests)
