"""Routes in transactions against a real broker: what becomes visible, what the position says, who is fenced."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from remora.config import KafkaSettings
from remora.endpoints.kafka import ExactKafkaRoute, KafkaEndpoint
from remora.model.errors import EndpointFenced, EndpointUnavailable
from remora.model.record import DeadLetter, Record
from remora.model.shard import Shard
from remora.model.topic import Target
from remora.ports import ExactRoute
from support.kafka import Kafka, create_topic, read_topic
from support.kafka_sender import INCARNATION, Watcher, make_records, verdict

pytestmark = pytest.mark.kafka

SHARD = Shard("tenant:shard")


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture
async def endpoint(watcher: Watcher) -> AsyncIterator[KafkaEndpoint]:
    async with KafkaEndpoint(KafkaSettings(), watcher) as running:
        yield running


def target(kafka: Kafka, topic: str, args: str = "") -> Target:
    return Target(f"kafka://{kafka.address}", args, topic)


async def make_topic(kafka: Kafka, partitions: int = 3, **configs: Any) -> str:
    """A topic whose leaders take records; the probes that show it have no headers.

    A leader takes a moment to know that it is one, and a transaction is not repeated for that.
    """
    topic = await create_topic(kafka.address, partitions=partitions, **configs)
    probe = AIOKafkaProducer(bootstrap_servers=kafka.address)
    await probe.start()
    try:
        for partition in range(partitions):
            await probe.send_and_wait(topic, b"probe", partition=partition)
    finally:
        await probe.stop()
    return topic


async def commit(route: ExactRoute, records: list[Record], letters: list[DeadLetter] | None = None) -> None:
    """Pack and commit at once; nothing may be refused."""
    parcels, refused = route.pack(records)
    assert refused == []
    await route.commit(parcels, records[-1].next_position, letters or [])


async def committed(kafka: Kafka, topic: str) -> list[Any]:
    """What a reader of committed records finds."""
    return await read_topic(kafka.address, topic, isolation_level="read_committed")


def dead_letter(at: int, raw: bytes = b"junk") -> DeadLetter:
    return DeadLetter(SHARD.queue, INCARNATION, f"0/{at}", f"0/{at + 1}", "undecodable", "why", 0, 1.0, 2.0, raw)


def test_is_a_route() -> None:
    """The class fits the port."""
    route: type[ExactRoute] = ExactKafkaRoute

    assert route


async def test_committed(kafka: Kafka, endpoint: KafkaEndpoint, watcher: Watcher) -> None:
    """What was committed is read once, in order, and the next route of the shard knows the position."""
    topic = await make_topic(kafka)
    records = make_records(0, 3000)

    async with endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as route:
        first = route.reached
        for at in range(0, 3000, 1000):
            await commit(route, records[at : at + 1000])
    async with endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as route:
        again = route.reached

    assert (first, again) == (None, b"0/3000")
    assert verdict(await committed(kafka, topic), records) == (set(), 0, [])
    assert watcher.outcomes == ["committed"] * 3


async def test_many_batches_of_a_partition(kafka: Kafka) -> None:
    """Batches of one partition that travel without waiting for each other arrive in their order."""
    topic = await make_topic(kafka, 2)
    records = make_records(0, 2000, keys=3)

    async with (
        KafkaEndpoint(KafkaSettings(max_batch_bytes=2048)) as endpoint,
        endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as route,
    ):
        await commit(route, records)

    assert verdict(await committed(kafka, topic), records) == (set(), 0, [])


async def test_position_alone(kafka: Kafka, endpoint: KafkaEndpoint) -> None:
    """A transaction may hold nothing but the position."""
    topic = await make_topic(kafka)

    async with endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as route:
        await route.commit([], b"3/77")
    async with endpoint.exact(SHARD, INCARNATION, target(kafka, topic)) as route:
        assert route.reached == b"3/77"


async def test_shards_and_incarnations_are_apart(kafka: Kafka, endpoint: KafkaEndpoint) -> None:
    """A position counts for one shard, one incarnation and one Kafka topic, and nobody fences those of others."""
    topic, other = [await make_topic(kafka) for _ in range(2)]
    here = target(kafka, topic)

    async with endpoint.exact(SHARD, INCARNATION, here) as route:
        await route.commit([], b"0/5")
        for shard, incarnation, where in (
            (Shard("tenant:shard.1"), INCARNATION, here),
            (SHARD, "another", here),
            (SHARD, INCARNATION + "x", target(kafka, other)),
        ):
            async with endpoint.exact(shard, incarnation, where) as theirs:
                assert theirs.reached is None
                await theirs.commit([], b"0/1")
        await route.commit([], b"0/6")
    async with endpoint.exact(SHARD, INCARNATION, here) as route:
        assert route.reached == b"0/6"


# ------------------------------------------------------------------------------------------- fencing


async def test_fenced(kafka: Kafka, watcher: Watcher) -> None:
    """Whoever enters later fences the earlier one, whose next commit is refused and stays invisible."""
    topic = await make_topic(kafka)
    old, new = make_records(0, 100), make_records(0, 100, start=100)
    async with (
        KafkaEndpoint(KafkaSettings(), watcher) as one,
        KafkaEndpoint(KafkaSettings()) as two,
        one.exact(SHARD, INCARNATION, target(kafka, topic)) as first,
    ):
        await commit(first, old)
        async with two.exact(SHARD, INCARNATION, target(kafka, topic)) as second:
            assert second.reached == b"0/100"
            with pytest.raises(EndpointFenced, match="another producer of this queue"):
                await commit(first, new)
            with pytest.raises(EndpointUnavailable, match="failed before"):
                await commit(first, new)
            await commit(second, new)

    assert verdict(await committed(kafka, topic), old + new) == (set(), 0, [])
    assert watcher.outcomes == ["committed", "fenced"]
