"""Routes in transactions while brokers are killed and frozen."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest

from devkit.clusters.kafka import Kafka, create_topic, read_committed
from devkit.waits import until
from remora.config import KafkaSettings
from remora.endpoints.kafka import KafkaEndpoint
from remora.model.errors import EndpointUnavailable
from remora.model.topic import Target
from support.kafka_sender import INCARNATION, ExactSender, Watcher, make_records, verdict

# Brokers start and stop many times here, which takes minutes where others use the machine too.
pytestmark = pytest.mark.kafka

QUICK = KafkaSettings(delivery_timeout_s=5, connect_timeout_s=5)


@pytest.fixture(autouse=True)
async def mended(fragile_kafka: Kafka) -> AsyncIterator[None]:
    """Whatever a test did to the broker, the next one finds it well."""
    yield
    await fragile_kafka.mend()


async def test_killed_under_load(fragile_kafka: Kafka) -> None:
    """A broker killed under load: every record is read once, in order, by readers of committed records."""
    topic = await create_topic(fragile_kafka.address, partitions=3)
    records = [make_records(shard, 2000) for shard in range(3)]
    here = Target(f"kafka://{fragile_kafka.address}", "", topic)
    async with KafkaEndpoint(QUICK) as endpoint:
        senders = [ExactSender(endpoint, f"q.{shard}", here) for shard in range(3)]
        # What a new broker makes at its first transactions keeps some waiting longer than others.
        await asyncio.gather(*(each.send(mine[:50]) for each, mine in zip(senders, records, strict=True)))
        async with asyncio.TaskGroup() as sending:
            for sender, mine in zip(senders, records, strict=True):
                sending.create_task(sender.send(mine))
            await until(lambda: all(sender.at >= 400 for sender in senders), "some is delivered", 120)
            before = [len(sender.failures) for sender in senders]
            fragile_kafka.stop()
            await until(
                lambda: all(
                    len(sender.failures) > was or sender.at == len(mine)
                    for sender, was, mine in zip(senders, before, records, strict=True)
                ),
                "the outage is noticed",
            )
            assert any(len(sender.failures) > was for sender, was in zip(senders, before, strict=True))
            await fragile_kafka.start()

    sent = [each for shard in records for each in shard]
    read = await read_committed(fragile_kafka.address, topic)
    assert verdict(read, sent) == (set(), 0, [])


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_hurt_before_the_end(fragile_kafka: Kafka, monkeypatch: pytest.MonkeyPatch, how: signal.Signals) -> None:
    """A broker that dies or freezes as it is told to commit: the outcome is unknown, and the next route tells it."""
    topic = await create_topic(fragile_kafka.address, partitions=1)
    records, watcher = make_records(0, 200), Watcher()
    here = Target(f"kafka://{fragile_kafka.address}", "", topic)
    async with KafkaEndpoint(QUICK, watcher) as endpoint:
        sender = ExactSender(endpoint, "q", here)
        await sender.send(records[:100])
        async with endpoint.exact(sender.shard, INCARNATION, here) as route:
            producer = route._opened.producer
            end = producer._end

            async def hurt() -> None:
                fragile_kafka.stop(how=how)
                await end()

            monkeypatch.setattr(producer, "_end", hurt)
            with pytest.raises(EndpointUnavailable):
                await route.commit(route.pack(records[100:])[0], b"0/200")
        await fragile_kafka.mend()
        # It may or may not have been committed; sending what the position lacks makes it whole either way.
        await sender.send(records)

    assert "unknown" in watcher.outcomes
    read = await read_committed(fragile_kafka.address, topic)
    assert verdict(read, records) == (set(), 0, [])
