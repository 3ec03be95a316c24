"""Finds the records of an event in Kafka, for `remora explain`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from remora.model.errors import RemoraError
from remora.model.words import moment

EVENT_ID = "remora-event-id"
READ_MS = 5000
"""When a broker that has records sends none for this long, there are none."""


ANSWER_MS = 10_000
"""How long a broker may take for an answer."""


class KafkaNotReachable(RemoraError):
    """The broker that was named gives no answer."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """A record of the event. `timestamp` is seconds since the epoch, by the producer."""

    topic: str
    partition: int
    offset: int
    timestamp: float
    event_id: str

    @property
    def shown(self) -> str:
        """One line."""
        place = f"topic {self.topic}, partition {self.partition}, offset {self.offset}"
        return f"{place}, {moment(self.timestamp)}, event id {self.event_id or 'unknown'}"

    def as_json(self) -> dict[str, object]:
        """The same with the names that `remora explain --json` promises."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "timestamp": self.timestamp,
            "event_id": self.event_id,
        }


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search found, and which of the topics the broker does not have."""

    records: list[Delivered]
    missing: list[str]


async def find_delivered(bootstrap: str, topics: Sequence[str], wanted: Set[bytes], since: float) -> Searched:
    """The committed records since a time, in seconds since the epoch, whose key or event id is one of those wanted.

    Reads all of them up to the end that each partition has now. Raises KafkaNotReachable.
    """
    from aiokafka.errors import KafkaError

    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it fails with is said below, once
    try:
        async with _consumer(bootstrap) as consumer:
            known = await consumer.topics()  # asked for by their names, a broker might make them
        there = [each for each in topics if each in known]
        found: list[Delivered] = []
        if there:
            async with _consumer(bootstrap, *there) as consumer:
                found = [
                    _delivered(each)
                    async for each in _since(consumer, since)
                    if each.key in wanted or _event_id(each) in wanted
                ]
        return Searched(found, [each for each in topics if each not in known])
    except (KafkaError, OSError, ValueError) as exc:
        raise KafkaNotReachable(f"{bootstrap}: {exc}") from exc


@asynccontextmanager
async def _consumer(bootstrap: str, *topics: str) -> AsyncIterator[Any]:
    """A consumer of all partitions of the topics, in no group; it is closed also where it does not start."""
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        *topics,
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        group_id=None,
        request_timeout_ms=ANSWER_MS,
    )
    try:
        await consumer.start()
        yield consumer
    finally:
        await consumer.stop()


async def _since(consumer: Any, since: float) -> AsyncIterator[Any]:
    """The records of all partitions that the consumer has, from a time on to the present end of each."""
    parts = consumer.assignment()
    begins = await consumer.offsets_for_times(dict.fromkeys(parts, round(since * 1000)))
    ends = await consumer.end_offsets(parts)
    left = {part for part in parts if begins[part] is not None and begins[part].offset < ends[part]}
    for part in left:
        consumer.seek(part, begins[part].offset)
    while left:
        read = await consumer.getmany(*left, timeout_ms=READ_MS)
        for records in read.values():
            for each in records:
                yield each
        if not read:
            return  # what is left before the end are marks of transactions, or one of them is open
        left = {part for part in left if await consumer.position(part) < ends[part]}


def _event_id(record: Any) -> bytes:
    return next((value for name, value in record.headers if name == EVENT_ID), b"")


def _delivered(record: Any) -> Delivered:
    return Delivered(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp / 1000,
        _event_id(record).decode(errors="replace"),
    )
