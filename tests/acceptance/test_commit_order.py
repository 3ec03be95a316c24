"""The events of a topic in the order of their commits, while the daemons that take and deliver them are killed."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from devkit.clusters.kafka import Kafka, create_topic
from devkit.entries.queues import LEASE_S
from devkit.processes.daemon import Daemon, running_daemon
from devkit.readers.consumer import Delivered, read_all
from devkit.testing.cases import cases
from devkit.waits import PATIENT_S
from remora.client import Checkpoint, CommitOrderReader, IngestClient
from support.ingest import record

pytestmark = pytest.mark.kafka

PARTITIONS = SHARDS = 11
EACH = 5
"""Events of a request, whose keys lie in several shards."""

LARGEST = 3_000


@dataclass(frozen=True)
class Answered:
    """A request whose events are stored: when it was sent and answered, and the ids of its events."""

    sent_at: float
    answered_at: float
    ids: tuple[str, ...]


@dataclass
class Sender:
    """Sends one request after the other to a daemon, for as long as it runs."""

    name: str
    daemon: Daemon
    topic: str
    answered: list[Answered] = field(default_factory=list)

    async def run(self, over: asyncio.Event) -> None:
        now = asyncio.get_running_loop().time
        async with IngestClient(self.daemon.ingest, deadline_s=600) as client:
            for number in itertools.count():
                if over.is_set():
                    return
                ids = tuple(f"{self.name}-{number}-{i}" for i in range(EACH))
                sent_at = now()
                await client.publish(self.topic, [event(each, f"k{(number + i) % 40}") for i, each in enumerate(ids)])
                self.answered.append(Answered(sent_at, now(), ids))

    async def until(self, more: int) -> None:
        """Return when this many more requests have been answered."""
        wanted = len(self.answered) + more
        async with asyncio.timeout(5 * PATIENT_S):
            while len(self.answered) < wanted:  # noqa: ASYNC110 - each is answered in a task of its own
                await asyncio.sleep(0.01)


def event(event_id: str, key: str, **more: Any) -> dict[str, Any]:
    return record(key, eventId=event_id, **more)


@dataclass
class Reading:
    """What a consumer that merges has got, over its stops and new beginnings."""

    address: str
    kafka_topic: str
    delivery: str
    got: list[tuple[int, str]] = field(default_factory=list)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)

    async def go_on(self, daemon: Daemon, topic: str, upto: int | None = None) -> None:
        """Read on from the checkpoint, for ever or up to a number; what was got is kept with the checkpoint."""
        async with (
            self._consumer() as consumer,
            self._consumer(committed=False) as ends,
            IngestClient(daemon.ingest) as client,
        ):
            reader = CommitOrderReader(client, topic, consumer, checkpoint=self.checkpoint, ends=ends, ask_s=0.1)
            async with aclosing(reader.__aiter__()) as records:  # type: ignore[type-var]  # a generator
                async for number, found in records:
                    self.got.append((number, dict(found.headers)["remora-event-id"].decode()))
                    self.checkpoint = reader.order.checkpoint()
                    if number == upto:
                        return

    @asynccontextmanager
    async def _consumer(self, *, committed: bool = True) -> AsyncIterator[AIOKafkaConsumer]:
        is_committed = committed and self.delivery == "exactly-once"
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.address,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed" if is_committed else "read_uncommitted",
        )
        await consumer.start()
        try:
            consumer.assign([TopicPartition(self.kafka_topic, number) for number in range(PARTITIONS)])
            yield consumer
        finally:
            await consumer.stop()


def sections(folder: Path) -> dict[str, dict[str, object]]:
    return {
        "store": {"kind": "sqlite"},
        "sqlite": {"directory": str(folder / "queues"), "files": 1},
        "supervisor": {"workers": 1, "watchdog": "4s"},
        "ownership": {
            "lease": f"{LEASE_S:g}s",
            "renew_interval": "1500ms",
            "trust_margin": "500ms",
            "discovery_interval": "500ms",
        },
        "delivery": {"retry_cap": "1s"},
    }


def check_order(got: Sequence[tuple[int, str]], sent: Sequence[Answered], holes: set[int]) -> None:
    """Dense but for the holes, each event once, each request's events in their order and in one piece, and no request
    behind one that was sent after it was answered."""
    numbers = [number for number, _ in got]
    assert sorted(holes | set(numbers)) == list(range(1, numbers[-1] + 1))
    assert numbers == sorted(set(numbers))
    at = {event_id: number for number, event_id in got}
    assert len(at) == len(got)
    spans = []
    for each in sent:
        first = at[each.ids[0]]
        assert [at[event_id] for event_id in each.ids] == list(range(first, first + EACH))
        spans.append((first, each))
    latest_sent = 0.0
    for _, each in sorted(spans, key=lambda span: span[0]):
        assert each.answered_at > latest_sent, (
            f"{each} has a larger number than one that was sent after it was answered"
        )
        latest_sent = max(latest_sent, each.sent_at)


def check_records(found: Sequence[Delivered], topic_id: str) -> None:
    """Every copy of an entry has its number, no two entries have one, and in a queue numbers increase."""
    entries: dict[tuple[str, str, tuple[int, int]], set[bytes]] = defaultdict(set)
    for each in found:
        entries[each.shard, each.place.incarnation, each.place.order].add(each.headers["remora-seq"])
    assert all(len(numbers) == 1 for numbers in entries.values())
    numbered = {place: int(numbers.pop().removeprefix(f"{topic_id}:".encode())) for place, numbers in entries.items()}
    assert len(set(numbered.values())) == len(numbered)
    for _, places in itertools.groupby(sorted(numbered), key=lambda place: place[0]):
        in_queue = [numbered[place] for place in places]
        assert in_queue == sorted(in_queue)


@pytest.mark.guarantee("order-over-all-shards")
@pytest.mark.parametrize("delivery", cases("exactly-once", more=["at-least-once"]))
async def test_eleven_partitions_are_merged_while_daemons_are_killed(kafka: Kafka, folder: Path, delivery: str) -> None:
    """Two daemons of one store are killed with SIGKILL in turn, the other one takes over, and the consumer stops and
    goes on: it gets every event but the dead letter once, in the order of the commits, by numbers without a hole."""
    topic = await create_topic(kafka.address, partitions=PARTITIONS, max_message_bytes=LARGEST)
    reading = Reading(kafka.address, topic, delivery)
    async with running_daemon(folder, sections(folder)) as one, running_daemon(folder, sections(folder)) as other:
        done = await one.command(
            "topic", "create", topic, "--endpoint", f"kafka://{kafka.address}", "--sequence", "--shards", str(SHARDS),
            "--delivery", delivery,
        )  # fmt: skip
        assert done.code == 0, done.err
        senders, over = [Sender("a", one, topic), Sender("b", other, topic)], asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for sender in senders:
                tasks.create_task(sender.run(over))
            merging = tasks.create_task(reading.go_on(other, topic))
            await senders[0].until(10)
            async with IngestClient(other.ingest) as client:
                noise = random.Random(0).randbytes(4_000).hex()
                await client.publish(topic, [event("too large", "k1", opaqueData=noise)])
            await one.kill_all()
            await senders[1].until(20)
            await one.start()
            await senders[0].until(5)
            merging.cancel()
            await asyncio.wait([merging])
            merging = tasks.create_task(reading.go_on(one, topic))
            await other.kill_all()
            await senders[0].until(20)
            await other.start()
            await senders[1].until(5)
            merging.cancel()
            over.set()
        shown = (await one.command("topic", "show", topic, "--json")).json
        await reading.go_on(one, topic, upto=shown["sequence"]["tail"])
        async with IngestClient(one.ingest) as client:

            async def is_delivered() -> bool:
                reached = await client.sequence(topic)
                return reached.delivered == reached.tail

            await one.until(is_delivered, "an empty topic")
        (letter,) = (await one.command("dlq", "list", "--json")).json
        found = await read_all(kafka.address, topic, committed=delivery == "exactly-once")

    prefix, _, hole = letter["sequence"].partition(":")
    assert (letter["cause"], prefix) == ("too_large", shown["id"])
    sent = [each for sender in senders for each in sender.answered]
    assert len(reading.got) == len(sent) * EACH
    check_order(reading.got, sent, {int(hole)})
    check_records(found, shown["id"])
