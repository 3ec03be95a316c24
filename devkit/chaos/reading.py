"""Reads Kafka while the chaos goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import ConsumerRecord

from devkit.verdicts.verdict import Arrived, Copy, Place

FANNED = "fanned"
"""What the buckets begin with whose events go to several topics: each copy counts as an event of its own."""


def copy_id(topic: str, event_id: str) -> str:
    """The id of an event's copy in a topic."""
    return f"{topic}/{event_id}"


class Reader:
    """Everything that comes into some topics, as a read_committed consumer sees it.

    Those of `exact` are to show nothing twice. In the others nothing is ever in a transaction.
    """

    def __init__(self, bootstrap: str, topics: Sequence[str], partitions: int, exact: Collection[str] = ()) -> None:
        self.arrived, self._exact = Arrived(), exact
        self._places = [TopicPartition(topic, number) for topic in topics for number in range(partitions)]
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )

    async def __aenter__(self) -> Reader:
        await self._consumer.start()
        self._consumer.assign(self._places)
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._consumer.stop()

    async def to_the_end(self, patience_s: float) -> None:
        """Return when all that is in the topics now has been read. Raises TimeoutError."""
        async with asyncio.timeout(patience_s):
            ends = await self._consumer.end_offsets(self._places)
            while any([await self._consumer.position(place) < ends[place] for place in self._places]):
                self.check()
                await asyncio.sleep(0.05)

    def check(self) -> None:
        """Raise what has ended the reading, if anything has."""
        if self._task.done():
            self._task.result()

    async def _read(self) -> None:
        while True:
            for records in (await self._consumer.getmany(timeout_ms=200, max_records=2000)).values():
                for record in records:
                    self.arrived.add(copy_of(record), is_exact=record.topic in self._exact)


def copy_of(record: ConsumerRecord) -> Copy:
    """A record as its headers describe it."""
    headers = {name: text.decode() for name, text in record.headers}
    shard, event_id, key = headers["remora-shard"], headers["remora-event-id"], record.key
    if key.startswith(FANNED.encode()):
        event_id, key = copy_id(record.topic, event_id), b"%b/%b" % (record.topic.encode(), key)
    return Copy(
        event_id=event_id,
        key=key,
        place=Place.read(shard, headers["remora-pos"]),
        end=Place.read(shard, headers["remora-next"]),
        partition=record.partition,
        offset=record.offset,
        at=record.timestamp / 1000,
        nbytes=len(record.value),
        number=headers.get("remora-seq", ""),
        after=headers.get("remora-after", ""),
    )
