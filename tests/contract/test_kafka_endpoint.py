"""The Kafka endpoint against a real broker: delivery, order, limits, topics that come, grow and go."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from devkit.clusters.kafka import Kafka, create_topic, delete_topic, grow_topic, limit_topic, read_topic
from devkit.waits import PATIENT_S, until
from remora.endpoints.kafka import KafkaEndpoint
from remora.model.errors import EndpointMisconfigured, EndpointUnavailable, EntryRefused
from remora.model.shard import Shard
from remora.model.topic import Target
from remora.ports.endpoint import Batch, Route
from support.kafka_sender import INCARNATION, PATIENT, ShardSender, Watcher, make_records, push_all, target, verdict

pytestmark = pytest.mark.kafka

SHARD = Shard("shard")


async def test_what_arrives(kafka: Kafka, endpoint: KafkaEndpoint) -> None:
    """Key, value and headers are the record's, and the partition is the one of Kafka's own clients."""
    topic = await create_topic(kafka.address, partitions=5)
    records = make_records(0, 50)

    async with endpoint.route(SHARD, INCARNATION, target(kafka, topic)) as route:
        await push_all(route, records)

    read = await read_topic(kafka.address, topic)
    by_id = {dict(each.headers)["remora-event-id"]: each for each in read}
    assert len(read) == len(records)
    for record in records:
        found = by_id[record.event_id]
        assert (found.key, found.value) == (record.key, record.body)
        assert list(found.headers) == [
            ("remora-shard", b"shard"),
            ("remora-pos", b"inc:" + record.position),
            ("remora-next", b"inc:" + record.next_position),
            ("remora-event-id", record.event_id),
        ]
    assert {each.partition for each in read} == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_compressions(kafka: Kafka, compression: Any) -> None:
    """Each compression is accepted by the broker and read back."""
    topic = await create_topic(kafka.address)
    records = make_records(0, 200)

    async with (
        KafkaEndpoint(replace(PATIENT, compression=compression)) as endpoint,
        endpoint.route(SHARD, INCARNATION, target(kafka, topic)) as route,
    ):
        await push_all(route, records)

    assert verdict(await read_topic(kafka.address, topic), records) == (set(), 0, [])


@pytest.mark.guarantee("order-per-object")
async def test_order_of_many_shards(kafka: Kafka) -> None:
    """Many shards that pipeline into the same partitions arrive whole, once, and in order per key."""
    topic = await create_topic(kafka.address, partitions=4)
    records = [make_records(shard, 3000) for shard in range(6)]
    settings = replace(PATIENT, max_batch_bytes=4096)

    async with KafkaEndpoint(settings) as endpoint:
        senders = [ShardSender(endpoint, f"q.{shard}", target(kafka, topic)) for shard in range(6)]
        await asyncio.gather(*(sender.send(each) for sender, each in zip(senders, records, strict=True)))

    sent = [each for shard in records for each in shard]
    assert verdict(await read_topic(kafka.address, topic), sent) == (set(), 0, [])
    assert [sender.failures for sender in senders] == [[]] * 6


# ------------------------------------------------------------------------------------------ topics


async def test_missing_then_created(kafka: Kafka, endpoint: KafkaEndpoint) -> None:
    """A missing topic is named and not created; once it exists, the next route works."""
    name = f"missing-then-created-{uuid.uuid4().hex[:8]}"  # the cluster is kept between runs
    async with asyncio.timeout(PATIENT_S):
        with pytest.raises(EndpointMisconfigured, match=f"topic {name} at .* no such topic"):
            async with endpoint.route(SHARD, INCARNATION, target(kafka, name)):
                pass

    await create_topic(kafka.address, name)

    async with asyncio.timeout(PATIENT_S), endpoint.route(SHARD, INCARNATION, target(kafka, name)) as route:
        await push_all(route, make_records(0, 10))
    assert len(await read_topic(kafka.address, name)) == 10


async def push_on(route: Route) -> None:
    """Push until it fails: Kafka's controller answers a deletion, of which the broker hears a moment later."""
    while True:
        await push_all(route, make_records(0, 10, start=10))


async def test_deleted_and_created_again(kafka: Kafka, watcher: Watcher) -> None:
    """A topic deleted under a route fails its pushes in time; created again, it is delivered to at once."""
    topic = await create_topic(kafka.address)
    async with KafkaEndpoint(PATIENT, watcher) as endpoint:
        async with endpoint.route(SHARD, INCARNATION, target(kafka, topic)) as route:
            await push_all(route, make_records(0, 10))
            await delete_topic(kafka.address, topic)
            route._settings = replace(PATIENT, delivery_timeout_s=2)
            async with asyncio.timeout(PATIENT_S):
                with pytest.raises(EndpointUnavailable):
                    await push_on(route)
        with pytest.raises(EndpointMisconfigured, match="no such topic"):
            async with endpoint.route(SHARD, INCARNATION, target(kafka, topic)):
                pass
        await create_topic(kafka.address, topic, partitions=2)

        async with asyncio.timeout(PATIENT_S), endpoint.route(SHARD, INCARNATION, target(kafka, topic)) as route:
            await push_all(route, make_records(0, 10, start=20))

    assert len(await read_topic(kafka.address, topic)) == 10


@pytest.mark.guarantee("order-per-object")
async def test_growth(kafka: Kafka, watcher: Watcher) -> None:
    """More partitions make a route stale; what it has packed still arrives, and a new one uses them all."""
    topic = await create_topic(kafka.address, partitions=2)
    settings = replace(PATIENT, metadata_max_age_s=0.2)
    async with KafkaEndpoint(settings, watcher) as endpoint:
        async with endpoint.route(SHARD, INCARNATION, target(kafka, topic)) as route:
            batches, _ = route.pack(make_records(0, 50))
            assert not route.stale
            await grow_topic(kafka.address, topic, 6)
            await until(lambda: route.stale, "growth is noticed")
            for batch in batches:
                await route.push(batch)
        async with endpoint.route(SHARD, INCARNATION, target(kafka, topic)) as route:
            await push_all(route, make_records(0, 50, start=50))
            assert not route.stale

    read = await read_topic(kafka.address, topic)
    assert {each.partition for each in read[:50]} <= {0, 1, 2, 3, 4, 5}
    assert {each.partition for each in read if int(each.value.partition(b",")[0]) < 50} == {0, 1}
    assert {each.partition for each in read if int(each.value.partition(b",")[0]) >= 50} == {0, 1, 2, 3, 4, 5}
    assert watcher.partitions == [(topic, 2, 6)]


# ------------------------------------------------------------------------------------------ limits


async def test_size_limit(kafka: Kafka, endpoint: KafkaEndpoint, watcher: Watcher) -> None:
    """Batches stay below the topic's limit; only a record that is above it alone is refused, before it is sent."""
    topic = await create_topic(kafka.address, partitions=1, max_message_bytes=5000)
    noise = Random(0).randbytes(6000)
    records = make_records(0, 200)
    records[50] = records[50]._replace(body=b"50," + noise)
    records[51] = records[51]._replace(body=b"51," + b"x" * 50_000)

    async with endpoint.route(SHARD, INCARNATION, target(kafka, topic)) as route:
        refused = await push_all(route, records)

    ((record, reason),) = refused
    assert record == records[50]
    assert "more than the Kafka topic's max.message.bytes 5000" in reason
    assert verdict(await read_topic(kafka.address, topic), records) == ({b"0.50"}, 0, [])
    assert watcher.retired == []


async def test_limit_lowered_at_run_time(kafka: Kafka, endpoint: KafkaEndpoint, watcher: Watcher) -> None:
    """A limit lowered under a route fails a push once; the next route splits what fits and refuses what does not."""
    topic = await create_topic(kafka.address, partitions=1)
    noise = Random(0).randbytes(3000)
    records = [each._replace(body=b"%d," % each.ordinal + noise) for each in make_records(0, 20)]
    records[7] = records[7]._replace(body=b"7," + Random(1).randbytes(9000))
    async with endpoint.route(SHARD, INCARNATION, target(kafka, topic)) as route:
        await limit_topic(kafka.address, topic, 8000)
        with pytest.raises(EndpointUnavailable, match="it is split"):
            await push_all(route, records)
        assert route.stale

    async with endpoint.route(SHARD, INCARNATION, target(kafka, topic)) as route:
        refused = await push_all(route, records)

    assert [each for each, _ in refused] == [records[7]]
    assert verdict(await read_topic(kafka.address, topic), records) == ({b"0.7"}, 0, [])
    assert watcher.retired == ["MessageSizeTooLargeError"]


async def test_single_record_above_a_lowered_limit(kafka: Kafka, endpoint: KafkaEndpoint) -> None:
    """A record that was packed alone before the limit was lowered is refused for good."""
    topic = await create_topic(kafka.address, partitions=1)
    async with endpoint.route(SHARD, INCARNATION, target(kafka, topic)) as route:
        batches, _ = route.pack([make_records(0, 1)[0]._replace(body=Random(0).randbytes(2000))])
        await limit_topic(kafka.address, topic, 100)

        with pytest.raises(EntryRefused, match="larger than the broker accepts"):
            await route.push(batches[0])


async def test_recompressing_broker(kafka: Kafka, endpoint: KafkaEndpoint) -> None:
    """Where the broker unpacks batches, one that only fits when compressed is refused, and the rest arrives."""
    topic = await create_topic(kafka.address, partitions=1, max_message_bytes=5000, compression_type="uncompressed")
    records = make_records(0, 100)
    async with endpoint.route(SHARD, INCARNATION, target(kafka, topic)) as route:
        batches, _ = route.pack([records[0]._replace(body=b"0," + b"x" * 50_000)])
        with pytest.raises(EntryRefused):
            await route.push(batches[0])
    async with endpoint.route(SHARD, INCARNATION, target(kafka, topic)) as route:
        await push_all(route, records[1:])

    assert verdict(await read_topic(kafka.address, topic), records[1:]) == (set(), 0, [])


# -------------------------------------------------------------------------------- sharing producers


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
async def test_failure_costs_only_its_topic(kafka: Kafka, endpoint: KafkaEndpoint, watcher: Watcher) -> None:
    """Topics that share a producer with one that keeps failing lose, double and delay nothing."""
    good = [await create_topic(kafka.address, partitions=2) for _ in range(2)]
    bad = await create_topic(kafka.address, partitions=2)
    noise = Random(0).randbytes(500)
    records = [make_records(shard, 1000) for shard in range(4)]
    senders = [ShardSender(endpoint, f"q.{shard}", target(kafka, good[shard % 2])) for shard in range(4)]

    async def fail_again_and_again() -> None:
        async with endpoint.route(SHARD, INCARNATION, target(kafka, bad)) as route:
            await limit_topic(kafka.address, bad, 200)
            while True:
                batches, _ = route.pack([each._replace(body=noise) for each in make_records(0, 20)])
                outcomes = await asyncio.gather(*map(route.push, batches), return_exceptions=True)
                assert any(isinstance(each, EndpointUnavailable | EntryRefused) for each in outcomes)

    failing = asyncio.create_task(fail_again_and_again())
    for _ in range(3):
        retired = len(watcher.retired)
        await asyncio.gather(*(sender.send(each, 20) for sender, each in zip(senders, records, strict=True)))
        await watcher.wait_for_retirement(retired)
        for sender in senders:
            sender.arrived.clear()
    failing.cancel()
    await asyncio.wait([failing])

    for topic, mine in zip(good, (records[0] + records[2], records[1] + records[3]), strict=True):
        read = await read_topic(kafka.address, topic)
        assert len(read) == 3 * len(mine)
    assert [sender.failures for sender in senders] == [[]] * 4


async def test_new_producer_during_a_look_at_other_topics(kafka: Kafka, endpoint: KafkaEndpoint) -> None:
    """A producer that replaces another sends to a topic at once, although a look without that topic is under way."""
    topic, other = [await create_topic(kafka.address, partitions=2) for _ in range(2)]
    records = make_records(0, 50)
    async with endpoint.route(SHARD, INCARNATION, target(kafka, topic)) as route:
        batches, _ = route.pack(records)
        slot = route._slot
        assert slot.current is not None
        slot.current.stop_taking("the test says so")
        client = (await slot.ready()).client
        await client.add_topic(other)  # with no topic at all it would look at every one
        look = client.force_metadata_update()
        for _ in range(5):  # the look is under way before the batches are handed over
            await asyncio.sleep(0)
        await asyncio.gather(*map(route.push, batches))
        await look

    assert verdict(await read_topic(kafka.address, topic), records) == (set(), 0, [])


async def test_failure_beside_the_same_partition(kafka: Kafka, endpoint: KafkaEndpoint) -> None:
    """A batch refused for its size does not fail another shard's batch that waits for the same partition."""
    topic = await create_topic(kafka.address, partitions=1)
    noise = Random(0).randbytes(3000)
    async with (
        endpoint.route(SHARD, INCARNATION, target(kafka, topic)) as large,
        endpoint.route(Shard("other"), INCARNATION, target(kafka, topic)) as small,
    ):
        (too_large,), _ = large.pack([make_records(0, 1)[0]._replace(body=b"0," + noise)])
        batches = [small.pack(make_records(1, 5, start=5 * number))[0][0] for number in range(10)]
        await limit_topic(kafka.address, topic, 2000)

        outcomes = await asyncio.gather(large.push(too_large), _push_in_turn(small, batches), return_exceptions=True)

    assert isinstance(outcomes[0], EntryRefused)
    assert outcomes[1] is None
    assert verdict(await read_topic(kafka.address, topic), make_records(1, 50)) == (set(), 0, [])


async def _push_in_turn(route: Route, batches: list[Batch]) -> None:
    for batch in batches:
        await route.push(batch)


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
async def test_equal_targets_share(kafka: Kafka, endpoint: KafkaEndpoint, watcher: Watcher) -> None:
    """Topics on one cluster share a producer, whatever their other arguments; another identity has its own."""
    topics = [await create_topic(kafka.address) for _ in range(3)]
    targets = [target(kafka, topics[0]), target(kafka, topics[1], "kafka-ack-level=none&persistent=true")]

    for each in targets:
        async with endpoint.route(SHARD, INCARNATION, each) as route:
            await push_all(route, make_records(0, 5))
    assert watcher.opened == 1

    other = Target(f"kafka://localhost:{kafka.address.rpartition(':')[2]}", "", topics[2])
    async with endpoint.route(SHARD, INCARNATION, other) as route:
        await push_all(route, make_records(0, 5))
    assert watcher.opened == 2


async def test_many_at_once_open_one_producer(kafka: Kafka, endpoint: KafkaEndpoint, watcher: Watcher) -> None:
    """Shards that start together wait for the same connection."""
    topic = await create_topic(kafka.address)

    async def deliver(number: int) -> None:
        async with endpoint.route(Shard(f"q.{number}"), INCARNATION, target(kafka, topic)) as route:
            await push_all(route, make_records(number, 5))

    await asyncio.gather(*map(deliver, range(11)))

    assert watcher.opened == 1


async def test_idle(kafka: Kafka, watcher: Watcher) -> None:
    """An unused producer is closed, also under an open route, and opened again by the next push."""
    topic = await create_topic(kafka.address)
    async with (
        KafkaEndpoint(replace(PATIENT, idle_timeout_s=0.2), watcher) as endpoint,
        endpoint.route(SHARD, INCARNATION, target(kafka, topic)) as route,
    ):
        await push_all(route, make_records(0, 5))
        await until(lambda: watcher.closed == 1, "the idle producer is closed")
        async with asyncio.timeout(PATIENT_S):
            await push_all(route, make_records(0, 5, start=5))

    assert watcher.opened == watcher.closed == 2
    assert watcher.retired == []
    assert verdict(await read_topic(kafka.address, topic), make_records(0, 10)) == (set(), 0, [])


# ------------------------------------------------------------------------------------------ the end


async def test_cancelled_push(kafka: Kafka, endpoint: KafkaEndpoint, watcher: Watcher) -> None:
    """Cancelled pushes leave nothing behind that could arrive later or trouble those that follow."""
    topic = await create_topic(kafka.address, partitions=1)
    async with endpoint.route(SHARD, INCARNATION, target(kafka, topic)) as route:
        batches = [route.pack(make_records(0, 100, start=100 * number))[0][0] for number in range(6)]
        pushes = [asyncio.create_task(route.push(batch)) for batch in batches]
        await pushes[0]
        for push in pushes[1:]:
            push.cancel()
        await asyncio.wait(pushes)
        await push_all(route, make_records(0, 100, start=600))

    first = [int(each.value.partition(b",")[0]) for each in await read_topic(kafka.address, topic)]
    assert sorted(first) == sorted(set(first))
    assert first[:100] == list(range(100))
    assert first[-100:] == list(range(600, 700))


async def test_closed_endpoint(kafka: Kafka, watcher: Watcher) -> None:
    """Leaving the endpoint closes every producer, and a route that is still open fails its pushes."""
    topic = await create_topic(kafka.address)
    async with KafkaEndpoint(PATIENT, watcher) as endpoint:
        context = endpoint.route(SHARD, INCARNATION, target(kafka, topic))
        route = await context.__aenter__()
        await push_all(route, make_records(0, 5))

    assert watcher.opened == watcher.closed == 1
    with pytest.raises(EndpointUnavailable, match="closed"):
        await push_all(route, make_records(0, 5))
    await context.__aexit__(None, None, None)
