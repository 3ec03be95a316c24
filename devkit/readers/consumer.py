"""Proves from a Kafka topic alone what was delivered. Shares no code with the daemon.

The headers say where in its queue each record stood (`remora-pos`) and where the next one begins (`remora-next`):
so a record that is missing, doubled or out of order shows, whatever the records are about.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from devkit.waits import PATIENT_S


@dataclass(frozen=True)
class Place:
    """A position of a queue: `<incarnation>:<turn>/<offset>`; comparable within one incarnation."""

    incarnation: str
    turn: int
    offset: int

    @classmethod
    def read(cls, header: bytes) -> Place:
        incarnation, _, marker = header.decode().rpartition(":")
        turn, _, offset = marker.partition("/")
        return cls(incarnation, int(turn), int(offset))

    @property
    def order(self) -> tuple[int, int]:
        return self.turn, self.offset


@dataclass(frozen=True)
class Delivered:
    """One record of the topic, as it stands there."""

    partition: int
    offset: int
    key: bytes
    value: bytes
    headers: dict[str, bytes]
    sent_at: float

    @property
    def shard(self) -> str:
        return self.headers["remora-shard"].decode()

    @property
    def place(self) -> Place:
        return Place.read(self.headers["remora-pos"])

    @property
    def next(self) -> Place:
        return Place.read(self.headers["remora-next"])

    @property
    def event_id(self) -> str:
        return self.headers["remora-event-id"].decode(errors="surrogateescape")

    @property
    def event(self) -> Any:
        """The one record of the notification; its JSON may hold control characters, because radosgw's does."""
        (event,) = json.loads(self.value.decode(errors="surrogateescape"), strict=False)["Records"]
        return event

    @property
    def what(self) -> tuple[str, str]:
        """The event's name and the object's key."""
        event = self.event
        return event["eventName"], event["s3"]["object"]["key"]


@dataclass
class Verdict:
    """What is wrong with a topic; each list is empty when nothing is."""

    count: int = 0
    lost: list[Any] = field(default_factory=list)
    unexpected: list[Any] = field(default_factory=list)
    duplicated: list[tuple[str, Place]] = field(default_factory=list)
    reordered: list[tuple[bytes, Place, Place]] = field(default_factory=list)
    scattered: list[bytes] = field(default_factory=list)
    gaps: list[tuple[str, Place]] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Nothing lost, nothing unexpected, doubled, reordered, scattered over partitions; no gap."""
        return not (self.lost or self.unexpected or self.duplicated or self.reordered or self.scattered or self.gaps)


async def read_all(address: str, topic: str, *, committed: bool = False) -> list[Delivered]:
    """Everything that is in a topic now, or all that is `committed`, partition by partition, each in its order."""
    return [_delivered(each) for each in await raw_records(address, topic, committed=committed)]


async def raw_records(address: str, topic: str, *, committed: bool = False) -> list[Any]:
    """As `read_all`: the records as aiokafka gives them, those that no remora has sent included."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=address,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed" if committed else "read_uncommitted",
    )
    await consumer.start()
    try:
        places = [TopicPartition(topic, number) for number in sorted(await _partitions(consumer, topic))]
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        found: dict[TopicPartition, list[Any]] = {place: [] for place in places}
        waiting = {place for place in places if ends[place]}
        while waiting:
            for place, batch in (await consumer.getmany(*waiting, timeout_ms=1000)).items():
                found[place] += [each for each in batch if each.offset < ends[place]]
            waiting = {place for place in waiting if await consumer.position(place) < ends[place]}
        return [record for place in places for record in found[place]]
    finally:
        await consumer.stop()


def _delivered(record: Any) -> Delivered:
    return Delivered(
        record.partition,
        record.offset,
        record.key or b"",
        record.value or b"",
        dict(record.headers),
        record.timestamp / 1000,
    )


async def _partitions(consumer: AIOKafkaConsumer, topic: str) -> Collection[int]:
    await consumer._client.force_metadata_update()
    await consumer._client._wait_on_metadata(topic)
    return consumer.partitions_for_topic(topic) or ()


async def read_until(
    address: str,
    topic: str,
    enough: int | Callable[[Sequence[Delivered]], bool],
    timeout_s: float = PATIENT_S,
    *,
    committed: bool = False,
) -> list[Delivered]:
    """Everything that is in a topic, as soon as it is enough: this many records, or what the function says."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = await read_all(address, topic, committed=committed)
        if len(found) >= enough if isinstance(enough, int) else enough(found):
            return found
        assert time.monotonic() < deadline, f"{topic}: {len(found)} records after {timeout_s} s, wanted {enough}"
        await asyncio.sleep(0.05)


def check(
    records: Iterable[Delivered],
    expected: Iterable[Any] | None = None,
    name: Callable[[Delivered], Any] = lambda each: each.what,
) -> Verdict:
    """The verdict on a topic, given in the order of its partitions.

    `expected` says how often each event is to be there, by what `name` makes of its record; None expects
    whatever is there. Repeated records count as duplicates, and only the first of them for order.
    """
    records = list(records)
    verdict = Verdict(count=len(records))
    firsts: list[Delivered] = []
    seen: set[tuple[str, Place]] = set()
    for each in records:
        at = (each.shard, each.place)
        if at in seen:
            verdict.duplicated.append(at)
        else:
            seen.add(at)
            firsts.append(each)
    _check_order(firsts, verdict)
    _check_chain(firsts, verdict)
    if expected is not None:
        wanted, there = Counter(expected), Counter(name(each) for each in firsts)
        verdict.lost = list((wanted - there).elements())
        verdict.unexpected = list((there - wanted).elements())
    return verdict


def _check_order(records: Iterable[Delivered], verdict: Verdict) -> None:
    """Records of one key lie in one partition, and there in the order of their queue."""
    last: dict[tuple[bytes, str, str], Delivered] = {}
    for each in sorted(records, key=lambda each: (each.partition, each.offset)):
        before = last.get(stream := (each.key, each.shard, each.place.incarnation))
        if before is not None and before.partition != each.partition:
            verdict.scattered.append(each.key)
        elif before is not None and each.place.order < before.place.order:
            verdict.reordered.append((each.key, before.place, each.place))
        last[stream] = each


def _check_chain(records: Iterable[Delivered], verdict: Verdict) -> None:
    """Where one record's entry ends the next one's begins, up to the last of each queue."""
    queues: dict[tuple[str, str], list[Delivered]] = defaultdict(list)
    for each in records:
        queues[each.shard, each.place.incarnation].append(each)
    for (shard, _), members in queues.items():
        members.sort(key=lambda each: each.place.order)
        verdict.gaps += [
            (shard, before.next) for before, after in itertools.pairwise(members) if before.next != after.place
        ]
