"""CloudEvents at a real Kafka and a real RabbitMQ, as CloudEvents' SDK for Python reads them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings.amqp import AMQPMessage
from cloudevents.core.bindings.amqp import from_binary_event as from_amqp
from cloudevents.core.bindings.kafka import KafkaMessage
from cloudevents.core.bindings.kafka import from_binary_event as from_kafka

from devkit.clusters.kafka import Kafka, create_topic, read_committed
from devkit.clusters.rabbitmq import Hearer, RabbitMQ
from devkit.entries.entries import raw_entry
from remora.codec.rendering_cached import Renderer
from remora.config import AmqpSettings
from remora.endpoints.amqp import AmqpEndpoint
from remora.endpoints.kafka import KafkaEndpoint
from remora.endpoints.tls import TlsFiles
from remora.model.record import Page, Record
from remora.model.shard import Shard
from remora.model.topic import Target
from support.kafka_sender import INCARNATION, push_all

SHARD = Shard("tenant:orders.3")
KEYS = ["a/b.txt", "\u00fcml\u00e4ut \u6f22.jpg", "x y&z"]
FORMAT = "remora-format=cloudevents"


def records() -> list[Record]:
    """What a page of a queue renders to."""
    positions = [b"0/%d" % at for at in range(len(KEYS) + 1)]
    return list(Renderer().render(Page(positions, [raw_entry(key, at) for at, key in enumerate(KEYS)], False))[0])


def check(event: Any, record: Record) -> None:
    """The event is the record's, as radosgw would call it, with an id that each of its copies has."""
    assert event.get_specversion() == "1.0"
    assert event.get_id() == f"{SHARD.queue}/{INCARNATION}:{record.position.decode()}"
    assert event.get_type() == "com.amazonaws.ObjectCreated:Put"
    assert event.get_source() == "ceph:s3.default.bkt"
    assert event.get_subject() == record.key.decode().partition("/")[2]
    assert event.get_extension("partitionkey") == record.key.decode()
    assert event.get_datacontenttype() == "application/json"
    assert abs((event.get_time() - datetime.fromtimestamp(record.event_ns / 1e9, UTC)).total_seconds()) < 1e-3
    assert event.get_data() == json.loads(record.body)


@pytest.mark.kafka
@pytest.mark.parametrize("exact", [False, True])
async def test_kafka(kafka: Kafka, endpoint: KafkaEndpoint, exact: bool) -> None:
    """In both modes each record is the event of its entry, and has remora's headers beside those of CloudEvents."""
    topic = await create_topic(kafka.address, partitions=2)
    meant, sent = Target(f"kafka://{kafka.address}", FORMAT, topic), records()

    if exact:
        async with endpoint.exact(SHARD, INCARNATION, meant) as way:
            batches, refused = way.pack(sent)
            await way.commit(batches, sent[-1].next_position)
            assert refused == []
    else:
        async with endpoint.route(SHARD, INCARNATION, meant) as route:
            assert await push_all(route, sent) == []

    read = {each.key: each for each in await read_committed(kafka.address, topic)}
    for record in sent:
        found, headers = read[record.key], dict(read[record.key].headers)
        check(from_kafka(KafkaMessage(headers=headers, key=found.key, value=found.value)), record)
        assert headers["ce_id"] == headers["remora-shard"] + b"/" + headers["remora-pos"]


async def test_amqp(rabbitmq: RabbitMQ) -> None:
    """Each message is the event of its entry, and has the headers of remora beside the properties of CloudEvents."""
    exchange, sent, hearer = await rabbitmq.exchange(), records(), Hearer()
    queue = await rabbitmq.queue(exchange, "events")
    meant = Target(f"amqp://{rabbitmq.address}", f"amqp-exchange={exchange}&{FORMAT}", "events")

    settings = AmqpSettings(connect_timeout_s=30, delivery_timeout_s=60)
    async with (
        AmqpEndpoint(settings, hearer, TlsFiles(("/",), ("/",))) as amqp,
        amqp.route(SHARD, INCARNATION, meant) as route,
    ):
        assert await push_all(route, sent) == []

    found = {each.properties.headers["cloudEvents:partitionkey"]: each for each in await rabbitmq.read(queue)}
    for record in sent:
        message = found[record.key.decode()]
        headers, properties = message.properties.headers, {"content-type": message.properties.content_type}
        check(from_amqp(AMQPMessage(properties, headers, message.body)), record)
        assert headers["cloudEvents:id"] == f"{headers['remora-shard']}/{headers['remora-pos']}"
