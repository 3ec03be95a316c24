"""Reads Kafka and the store from outside: what the checker then judges. Shares no code with what delivers."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.structs import ConsumerRecord

from devkit.chaos import entries
from devkit.chaos.reading import copy_of
from devkit.verdicts.history import Letter, Reached
from devkit.verdicts.verdict import Copy, Place
from remora.model.errors import StoreError
from remora.model.topic import own_topic_name
from remora.ports.store import ShardStore

READ_S = 90.0
"""A transaction that nobody ends is ended by the brokers well within this."""


@dataclass
class Log:
    """What has been read of one Kafka topic, and up to where a read_committed consumer has come."""

    seen: dict[tuple[int, int], Copy] = field(default_factory=dict)
    plain: dict[int, int] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)


class Witness:
    """Everything in some Kafka topics, read on from where the last look ended."""

    def __init__(self, bootstrap: str, topics: Mapping[str, bool], partitions: int) -> None:
        """`topics` says of each whether it is delivered exactly once."""
        self._bootstrap, self._topics = bootstrap, topics
        self._partitions = partitions
        self._logs = {name: Log() for name in topics}

    async def read(self) -> Mapping[str, Sequence[Copy]]:
        """All records so far, by topic. Raises TimeoutError when a transaction stays open."""
        exact = [name for name, is_exact in self._topics.items() if is_exact]
        async with asyncio.timeout(READ_S):
            ends = await self._follow("read_uncommitted", list(self._topics), {})
            if exact:
                await self._follow("read_committed", exact, ends)
        return {name: list(log.seen.values()) for name, log in self._logs.items()}

    async def _follow(
        self, isolation: str, topics: Sequence[str], ends: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """Read these topics up to the ends, or as far as they go; where that was."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            isolation_level=isolation,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=100,
        )
        await consumer.start()
        try:
            places = [TopicPartition(name, number) for name in topics for number in range(self._partitions)]
            consumer.assign(places)
            ends = ends or await consumer.end_offsets(places)
            for place in places:
                consumer.seek(place, self._reached(isolation, place.topic).get(place.partition, 0))
            left = set(places)
            while left := {place for place in left if await consumer.position(place) < ends[place]}:
                for records in (await consumer.getmany(*left, timeout_ms=500)).values():
                    for record in records:
                        self._take(record, isolation)
            for place in places:
                self._reached(isolation, place.topic)[place.partition] = ends[place]
            return ends
        finally:
            await consumer.stop()

    def _reached(self, isolation: str, topic: str) -> dict[int, int]:
        log = self._logs[topic]
        return log.committed if isolation == "read_committed" else log.plain

    def _take(self, record: ConsumerRecord, isolation: str) -> None:
        seen = self._logs[record.topic].seen
        at = (record.partition, record.offset)
        if isolation == "read_committed":
            seen[at] = seen.get(at, _seen(record))._replace(is_committed=True)
        else:
            seen.setdefault(at, _seen(record)._replace(is_committed=not self._topics[record.topic]))


def _seen(record: ConsumerRecord) -> Copy:
    """The record with the event's id that its body has, which a header could contradict."""
    return copy_of(record)._replace(event_id=json.loads(record.value)["Records"][0]["eventId"])


async def letters(store: ShardStore, topics: Sequence[str]) -> Mapping[str, Sequence[Letter]]:
    """All dead letters of these topics, by the topics that their queues belong to, as these are called."""
    found: dict[str, list[Letter]] = {topic: [] for topic in topics}
    async for each in store.letters.stored():
        if (topic := own_topic_name(each.queue)) in found:
            place = Place.read(each.queue, f"{each.incarnation}:{each.position}")
            end = Place.read(each.queue, f"{each.incarnation}:{each.next_position}")
            found[topic].append(Letter(entries.found_id(each.raw), place, end, each.cause, each.sequence))
    return found


async def without_letters(store: ShardStore, topics: Sequence[str], ids: Collection[str]) -> Collection[str]:
    """Which of these events are no dead letters of these topics; all while the store cannot be read."""
    try:
        found = await letters(store, topics)
    except StoreError:
        return ids
    return {*ids} - {each.event_id for some in found.values() for each in some}


async def reached(store: ShardStore, name: str) -> Reached | None:
    """How far the numbers of a topic have come; None for one that numbers no events, or is no topic of remora's own."""
    topic = await store.own_topics.find(name)
    if topic is None or not topic.is_sequenced:
        return None
    return Reached(topic.id, *dataclasses.astuple(await store.own_topics.sequence(topic)))
