"""Reads the topic back and judges it. Shares no code with the daemon.

Each check returns what it found wrong, as texts; an empty list is a good one.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

Event = tuple[str, int]


@dataclass(frozen=True)
class Message:
    """One record of the Kafka topic."""

    partition: int
    key: bytes
    value: bytes
    headers: dict[str, str]

    @property
    def event(self) -> Event:
        """Name and object size; its JSON may hold control characters, because radosgw's does."""
        (record,) = json.loads(self.value.decode(errors="surrogateescape"), strict=False)["Records"]
        return record["eventName"], record["s3"]["object"]["size"]

    @property
    def queue(self) -> tuple[str, str]:
        """Queue and incarnation: a chain of positions of its own."""
        return self.headers["remora-shard"], self.headers["remora-pos"].rpartition(":")[0]

    @property
    def begins(self) -> tuple[int, ...]:
        return _place(self.headers["remora-pos"])

    @property
    def ends(self) -> tuple[int, ...]:
        """Where the next entry of the queue begins."""
        return _place(self.headers["remora-next"])


def _place(header: str) -> tuple[int, ...]:
    """`<incarnation>:<turn>/<offset>` as numbers that can be compared."""
    return tuple(map(int, header.rpartition(":")[2].split("/")))


async def read_topic(bootstrap: str, topic: str, partitions: int, at_least: int, timeout_s: float) -> list[Message]:
    """Everything in the topic, as soon as it is so much, or when the time is over; in order of each partition."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="earliest")
    places = [TopicPartition(topic, number) for number in range(partitions)]
    deadline = asyncio.get_running_loop().time() + timeout_s
    found: list[Any] = []
    async with consumer:
        consumer.assign(places)
        while len(found) < at_least and asyncio.get_running_loop().time() < deadline:
            for batch in (await consumer.getmany(timeout_ms=200)).values():
                found += batch
        ends = await consumer.end_offsets(places)  # more than was waited for is read too: it is to be seen
        while any([await consumer.position(place) < ends[place] for place in places]):
            for batch in (await consumer.getmany(timeout_ms=200)).values():
                found += batch
    return [
        Message(each.partition, each.key, each.value, {name: text.decode() for name, text in each.headers})
        for each in sorted(found, key=lambda each: (each.partition, each.offset))
    ]


# --------------------------------------------------------------------------------------------- checks


def missing(messages: Sequence[Message], expected: Mapping[bytes, Sequence[Event]]) -> list[str]:
    """Notifications that were caused and are not there, or are there and were not caused."""
    wanted = Counter((key, event) for key, events in expected.items() for event in events)
    there = Counter({(each.key, each.event): 1 for each in messages})
    lacking, surplus = list((wanted - there).elements()), list((there - wanted).elements())
    return [f"missing: {each}" for each in lacking] + [f"nobody caused: {each}" for each in surplus]


def doubled(messages: Sequence[Message]) -> list[str]:
    """Entries that are there more than once, by their place in the queue."""
    places = Counter((each.queue, each.begins) for each in messages)
    return [f"{count} times: {place}" for place, count in places.items() if count > 1]


def disordered(messages: Sequence[Message], expected: Mapping[bytes, Sequence[Event]]) -> list[str]:
    """Keys that are spread over partitions, or whose events are not in the order in which they were caused."""
    by_key: dict[bytes, list[Message]] = defaultdict(list)
    for each in messages:
        by_key[each.key].append(each)
    spread = [f"in several partitions: {key!r}" for key, of in by_key.items() if len({m.partition for m in of}) > 1]
    return spread + [
        f"order of {key!r}: {[each.event for each in of]}"
        for key, of in by_key.items()
        if [each.event for each in of] != list(expected.get(key, ()))
        or any(before.begins >= after.begins for before, after in itertools.pairwise(of))
    ]


def gaps(messages: Sequence[Message]) -> list[str]:
    """Places where an entry of the queue ends and no other one begins, save at the queue's end."""
    queues: dict[tuple[str, str], list[Message]] = defaultdict(list)
    for each in messages:
        queues[each.queue].append(each)
    return [
        f"after {before.headers['remora-next']} comes {after.headers['remora-pos']}"
        for of in queues.values()
        for before, after in itertools.pairwise(sorted(of, key=lambda each: each.begins))
        if before.ends != after.begins
    ]


def differences(bodies: Iterable[bytes], posted: Iterable[bytes]) -> list[str]:
    """Bodies that radosgw did not post in exactly these bytes, and those of its posts that are not there."""
    ours, theirs = Counter(bodies), Counter(posted)
    only_ours, only_theirs = (ours - theirs).elements(), (theirs - ours).elements()
    return [f"only in Kafka: {each!r}" for each in only_ours] + [f"only from radosgw: {each!r}" for each in only_theirs]


def masked(bodies: Iterable[bytes]) -> Iterator[bytes]:
    """The bodies without what two notifications of one operation never share: two clock readings and a name."""
    for each in bodies:
        yield re.sub(rb'"(eventId|sequencer|configurationId)":"[^"]*"', rb'"\1":"..."', each)


# -------------------------------------------------------------------------------------------- metrics


def quantile(share: float, buckets: Mapping[float, float]) -> float:
    """As Prometheus' histogram_quantile: `buckets` are cumulative counts by their upper bounds, +Inf included."""
    bounds = sorted(buckets)
    rank = share * buckets[bounds[-1]]
    lower, below = 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= rank:
            if bound == float("inf"):
                break
            return lower + (bound - lower) * (rank - below) / max(1e-9, buckets[bound] - below)
        lower, below = bound, buckets[bound]
    return lower
