"""The Kafka endpoint while brokers are killed, frozen and brought back."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from random import Random

import pytest
from aiokafka.structs import TopicPartition

from devkit.clusters.kafka import Kafka, create_topic, limit_topic, read_committed, read_topic, running_kafka
from devkit.waits import PATIENT_S, until
from remora.config import KafkaSettings
from remora.endpoints.kafka import KafkaEndpoint
from remora.model.errors import EndpointUnavailable, EntryRefused
from remora.model.record import Record
from remora.model.shard import Shard
from remora.model.topic import Target
from support.kafka_sender import (
    INCARNATION,
    PATIENT,
    ExactSender,
    ShardSender,
    Watcher,
    make_records,
    push_all,
    push_lanes,
    target,
    verdict,
)

# Brokers start and stop many times here, which takes minutes where others use the machine too.
pytestmark = pytest.mark.kafka

SHARD = Shard("shard")


@pytest.fixture(autouse=True)
async def mended(fragile_kafka: Kafka) -> AsyncIterator[None]:
    """Whatever a test did to the broker, the next one finds it well."""
    yield
    await fragile_kafka.mend()


QUICK = KafkaSettings(delivery_timeout_s=5, connect_timeout_s=5)


@pytest.fixture(scope="module")
def three_brokers() -> Iterator[Kafka]:
    """Three brokers, replication factor 3, of which two must be in sync."""
    with running_kafka("three", "--brokers", "3") as running:
        yield running


@pytest.mark.guarantee("no-loss", "order-per-object")
async def test_killed_under_load(fragile_kafka: Kafka) -> None:
    """A broker killed twice under load loses nothing, and each key's first copies are in order."""
    topic = await create_topic(fragile_kafka.address, partitions=4)
    records = [make_records(shard, 6000) for shard in range(4)]
    async with KafkaEndpoint(QUICK) as endpoint:
        senders = [ShardSender(endpoint, f"q.{shard}", target(fragile_kafka, topic)) for shard in range(4)]
        async with asyncio.TaskGroup() as sending:
            for sender, mine in zip(senders, records, strict=True):
                sending.create_task(sender.send(mine, 50))
            for part in (5, 2):
                await senders[0].wait_for(6000 // part)
                fragile_kafka.stop()
                await until(lambda: all(sender.failures for sender in senders), "the outage is noticed")
                await fragile_kafka.start()

    sent = [each for shard in records for each in shard]
    lost, doubled, moved = verdict(await read_topic(fragile_kafka.address, topic), sent)
    assert (lost, moved) == (set(), [])
    assert doubled <= 2 * 4 * 4 * 200  # at most what was under way: lanes of all shards, at both kills


@pytest.mark.guarantee("duplicates")
async def test_short_outage_doubles_nothing(fragile_kafka: Kafka) -> None:
    """An outage shorter than the time to deliver is ridden out: no failure, no duplicate."""
    topic = await create_topic(fragile_kafka.address, partitions=4)
    records = make_records(0, 3000)
    async with KafkaEndpoint(replace(PATIENT, delivery_timeout_s=240)) as endpoint:
        sender = ShardSender(endpoint, "q", target(fragile_kafka, topic))
        async with asyncio.TaskGroup() as sending:
            sending.create_task(sender.send(records, 50))
            await sender.wait_for(300)
            fragile_kafka.stop()
            await fragile_kafka.start()

    assert verdict(await read_topic(fragile_kafka.address, topic), records) == (set(), 0, [])
    assert sender.failures == []


async def test_who_is_up(fragile_kafka: Kafka) -> None:
    """A look finds the broker while it works, and nobody while it is frozen or gone, or where the target is wrong."""
    meant = target(fragile_kafka, "t")
    async with KafkaEndpoint(QUICK) as endpoint:
        while await endpoint.up(meant) != {"1"}:  # the test's own time bounds it
            pass

        fragile_kafka.stop(how=signal.SIGSTOP)
        assert await endpoint.up(meant) == frozenset()
        fragile_kafka.stop(how=signal.SIGCONT)
        while await endpoint.up(meant) != {"1"}:
            pass

        fragile_kafka.stop()
        assert await endpoint.up(meant) == frozenset()
        assert await endpoint.up(Target("kafka://", "", "t")) == frozenset()
        refused = Target(meant.uri, "use-ssl=true&ca-location=/nonexistent", "t")
        assert await endpoint.up(refused) == frozenset()


async def test_who_is_up_of_several(three_brokers: Kafka) -> None:
    """Of a cluster of which one broker is gone a look finds the others, whichever are named; then all again."""
    meant = target(three_brokers, "t")
    everybody = frozenset({"1", "2", "3"})
    async with KafkaEndpoint(QUICK) as endpoint:
        while await endpoint.up(meant) != everybody:  # the test's own time bounds it
            pass
        three_brokers.stop("broker.2")
        try:
            while await endpoint.up(meant) != everybody - {"2"}:  # the controller hears of it in some seconds
                pass
        finally:
            await three_brokers.start("broker.2")
        while await endpoint.up(meant) != everybody:
            pass


@pytest.mark.guarantee("order-per-object")
async def test_frozen(fragile_kafka: Kafka) -> None:
    """A frozen broker fails a push within its time and new routes within theirs; thawed, all arrive in order."""
    topic, watcher = await create_topic(fragile_kafka.address, partitions=2), Watcher()
    records = make_records(0, 400)
    async with KafkaEndpoint(QUICK, watcher) as endpoint:
        async with endpoint.route(SHARD, INCARNATION, target(fragile_kafka, topic)) as route:
            await push_all(route, records[:100])
            fragile_kafka.stop(how=signal.SIGSTOP)
            try:
                began = time.monotonic()
                with pytest.raises(EndpointUnavailable, match="not delivered within 5 s"):
                    await push_all(route, records[100:200])
                assert time.monotonic() - began < 60
                began = time.monotonic()
                with pytest.raises(EndpointUnavailable):
                    async with endpoint.route(SHARD, INCARNATION, target(fragile_kafka, topic)) as again:
                        await push_all(again, records[100:200])
                assert time.monotonic() - began < 60
            finally:
                fragile_kafka.stop(how=signal.SIGCONT)
        sender = ShardSender(endpoint, "shard", target(fragile_kafka, topic))
        async with asyncio.timeout(PATIENT_S):
            await sender.send(records[100:])

    lost, doubled, moved = verdict(await read_topic(fragile_kafka.address, topic), records)
    assert (lost, moved) == (set(), [])
    assert doubled <= 100 + 200 * len(sender.failures)


@pytest.mark.guarantee("duplicates")
async def test_given_up_batches_are_not_sent_later(fragile_kafka: Kafka) -> None:
    """What a push gave up while the broker was away is not delivered behind the caller's back."""
    topic, watcher = await create_topic(fragile_kafka.address, partitions=1), Watcher()
    async with (
        KafkaEndpoint(QUICK, watcher) as endpoint,
        endpoint.route(SHARD, INCARNATION, target(fragile_kafka, topic)) as route,
    ):
        await push_all(route, make_records(0, 10))
        fragile_kafka.stop()
        packed = [route.pack(make_records(0, 10, start=10 + 10 * number))[0] for number in range(4)]
        outcomes = await asyncio.gather(*(push_lanes(route, each) for each in packed), return_exceptions=True)
        await fragile_kafka.start()
        async with asyncio.timeout(PATIENT_S):
            sender = ShardSender(endpoint, "shard", target(fragile_kafka, topic))
            await sender.send(make_records(0, 10, start=100))
        await until(lambda: watcher.closed == len(watcher.retired), "the old producer is closed")

    assert all(isinstance(each, EndpointUnavailable) for each in outcomes)
    numbers = [int(each.value.partition(b",")[0]) for each in await read_topic(fragile_kafka.address, topic)]
    # A broker that has just begun may take what is sent to it then, and answer too late: that is sent again.
    assert list(dict.fromkeys(numbers)) == [*range(10), *range(100, 110)]


# ------------------------------------------------------------------ batches that several shards share


@asynccontextmanager
async def waiting_together(
    kafka: Kafka, endpoint: KafkaEndpoint, topic: str, records: Sequence[Sequence[Record]], *, limit: int | None = None
) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Pushes of a shard each to a topic of one partition, all but the first in one batch, which is not sent yet.

    The broker is frozen inside, and goes on behind it. The topic gets its `limit` when everything is packed.
    """
    async with AsyncExitStack() as routes:
        opened = [
            await routes.enter_async_context(endpoint.route(Shard(f"q.{number}"), INCARNATION, target(kafka, topic)))
            for number in range(len(records))
        ]
        batches = [route.pack(mine)[0][0] for route, mine in zip(opened, records, strict=True)]
        if limit is not None:
            await limit_topic(kafka.address, topic, limit)
        kafka.stop(how=signal.SIGSTOP)
        try:
            sender = opened[0]._slot.current
            assert sender is not None
            pushes = [asyncio.create_task(opened[0].push(batches[0]))]
            place = TopicPartition(topic, 0)
            await until(lambda: any(each.request for each in sender._queues.values()), "the first one is on its way")
            pushes += [
                asyncio.create_task(route.push(batch)) for route, batch in zip(opened[1:], batches[1:], strict=True)
            ]
            together = sum(map(len, records[1:]))
            await until(lambda: [len(each) for each in sender._queues[place].waiting] == [together], "the others wait")
            yield pushes
        finally:
            kafka.stop(how=signal.SIGCONT)
        await asyncio.wait(pushes)


async def test_what_waits_shares_a_batch(fragile_kafka: Kafka) -> None:
    """Batches of many shards that find their partition busy share one record batch, and all arrive once."""
    topic = await create_topic(fragile_kafka.address, partitions=1)
    records = [make_records(shard, 10) for shard in range(20)]
    async with (
        KafkaEndpoint(PATIENT) as endpoint,
        waiting_together(fragile_kafka, endpoint, topic, records) as pushes,
    ):
        pass

    assert [each.exception() for each in pushes] == [None] * 20
    sent = [each for mine in records for each in mine]
    assert verdict(await read_topic(fragile_kafka.address, topic), sent) == (set(), 0, [])


async def test_one_that_is_refused_in_company(fragile_kafka: Kafka) -> None:
    """A record that the broker refuses is refused alone: those that shared its batch arrive, each once."""
    topic = await create_topic(fragile_kafka.address, partitions=1)
    records = [make_records(shard, 3) for shard in range(5)]
    records[2] = [records[2][0]._replace(body=b"0," + Random(0).randbytes(3000))]
    async with (
        KafkaEndpoint(PATIENT) as endpoint,
        waiting_together(fragile_kafka, endpoint, topic, records, limit=2000) as pushes,
    ):
        pass

    outcomes = [each.exception() for each in pushes]
    assert isinstance(outcomes.pop(2), EntryRefused)
    assert outcomes == [None] * 4
    sent = [each for number, mine in enumerate(records) for each in mine if number != 2]
    assert verdict(await read_topic(fragile_kafka.address, topic), sent) == (set(), 0, [])


async def test_one_that_leaves_company(fragile_kafka: Kafka) -> None:
    """A push that is given up takes its records out of a batch that was not sent, and costs the others nothing."""
    topic, watcher = await create_topic(fragile_kafka.address, partitions=1), Watcher()
    records = [make_records(shard, 10) for shard in range(6)]
    async with (
        KafkaEndpoint(PATIENT, watcher) as endpoint,
        waiting_together(fragile_kafka, endpoint, topic, records) as pushes,
    ):
        pushes[3].cancel()
        await asyncio.wait([pushes[3]])

    assert [each.cancelled() or each.exception() for each in pushes] == [None, None, None, True, None, None]
    sent = [each for number, mine in enumerate(records) for each in mine if number != 3]
    read = await read_topic(fragile_kafka.address, topic)
    assert len(read) == len(sent)
    assert verdict(read, sent) == (set(), 0, [])
    assert watcher.retired == []


async def test_long_outage(fragile_kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """While a broker is away, no producers are made and thrown away, and the log stays short."""
    topic, watcher = await create_topic(fragile_kafka.address), Watcher()
    settings = KafkaSettings(delivery_timeout_s=10, connect_timeout_s=30)
    async with KafkaEndpoint(settings, watcher) as endpoint:
        async with endpoint.route(SHARD, INCARNATION, target(fragile_kafka, topic)) as route:
            await push_all(route, make_records(0, 10))
            fragile_kafka.stop()
            with pytest.raises(EndpointUnavailable):
                await push_all(route, make_records(0, 10, start=10))
        for _ in range(100):
            with pytest.raises(EndpointUnavailable, match=r"refused|cannot be reached|cannot be made|no answer"):
                async with endpoint.route(SHARD, INCARNATION, target(fragile_kafka, topic)):
                    pass
        lines = [each for each in caplog.records if each.name.startswith("remora")]
        await fragile_kafka.start()
        async with asyncio.timeout(PATIENT_S):
            sender = ShardSender(endpoint, "shard", target(fragile_kafka, topic))
            await sender.send(make_records(0, 10, start=10))

    assert watcher.opened == 2
    assert len(lines) < 10
    assert all(each.levelno <= logging.WARNING for each in lines)
    assert verdict(await read_topic(fragile_kafka.address, topic), make_records(0, 20)) == (set(), 0, [])


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_closing_without_a_broker(
    fragile_kafka: Kafka, how: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    """An endpoint whose broker is gone, with a push under way, is closed within seconds and without complaints."""
    topic, watcher = await create_topic(fragile_kafka.address), Watcher()
    loop = asyncio.get_running_loop()
    complaints: list[object] = []
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    try:
        async with KafkaEndpoint(PATIENT, watcher) as endpoint:
            route = await endpoint.route(SHARD, INCARNATION, target(fragile_kafka, topic)).__aenter__()
            await push_all(route, make_records(0, 10))
            fragile_kafka.stop(how=how)
            pushing = asyncio.create_task(push_all(route, make_records(0, 10, start=10)))
            await until(lambda: bool(endpoint_is_busy(endpoint)), "the push is under way")
            began = time.monotonic()
        took = time.monotonic() - began
        with pytest.raises(EndpointUnavailable):
            await pushing
    finally:
        if how is signal.SIGSTOP:
            fragile_kafka.stop(how=signal.SIGCONT)
        else:
            await fragile_kafka.start()

    assert took < PATIENT.delivery_timeout_s
    assert complaints == []
    assert "never retrieved" not in caplog.text
    assert [each.get_name() for each in asyncio.all_tasks() if "kafka" in repr(each.get_coro()).lower()] == []
    assert watcher.opened == watcher.closed


def endpoint_is_busy(endpoint: KafkaEndpoint) -> bool:
    """Whether any producer has something under way."""
    return any(slot.current and slot.current.under_way for slot in endpoint._senders._slots.values())


@pytest.mark.guarantee("no-loss", "order-per-object")
async def test_leader_killed(three_brokers: Kafka) -> None:
    """With three replicas, killing brokers one after the other loses, doubles and moves nothing that was acked."""
    topic = await create_topic(three_brokers.address, partitions=6, replicas=3)
    records = [make_records(shard, 6000) for shard in range(3)]
    async with KafkaEndpoint(KafkaSettings(delivery_timeout_s=30)) as endpoint:
        senders = [ShardSender(endpoint, f"q.{shard}", target(three_brokers, topic)) for shard in range(3)]
        async with asyncio.TaskGroup() as sending:
            for sender, mine in zip(senders, records, strict=True):
                sending.create_task(sender.send(mine, 50))
            for number, broker in enumerate(("broker.1", "broker.2")):
                await senders[0].wait_for(1000 * (1 + number))
                three_brokers.stop(broker)
                await three_brokers.start(broker)

    sent = [each for shard in records for each in shard]
    lost, _, moved = verdict(await read_topic(three_brokers.address, topic), sent)
    assert (lost, moved) == (set(), [])


async def test_leader_killed_in_transactions(three_brokers: Kafka) -> None:
    """With three replicas, a broker that is killed under transactions leaves every record committed once, in order."""
    topic = await create_topic(three_brokers.address, partitions=6, replicas=3)
    records = [make_records(shard, 1500) for shard in range(3)]
    async with KafkaEndpoint(KafkaSettings(delivery_timeout_s=10)) as endpoint:
        senders = [ExactSender(endpoint, f"q.{shard}", target(three_brokers, topic)) for shard in range(3)]
        async with asyncio.TaskGroup() as sending:
            for sender, mine in zip(senders, records, strict=True):
                sending.create_task(sender.send(mine))
            await until(lambda: all(sender.at >= 300 for sender in senders), "some is delivered", 120)
            three_brokers.stop("broker.3")
            await three_brokers.start("broker.3")

    sent = [each for shard in records for each in shard]
    read = await read_committed(three_brokers.address, topic)
    assert verdict(read, sent) == (set(), 0, [])
