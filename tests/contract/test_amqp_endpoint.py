"""The AMQP endpoint against a real RabbitMQ: what arrives, in which order, and what each refusal is called."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from urllib.parse import quote

import pytest
import uvloop

from devkit.clusters.rabbitmq import MAX_MESSAGE_BYTES, PASSWORD, Hearer, Message, RabbitMQ, bodies
from devkit.waits import PATIENT_S, until
from remora.config import AmqpSettings
from remora.endpoints.amqp import AmqpEndpoint
from remora.endpoints.tls import TlsFiles
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable, EntryRefused
from remora.model.record import DeadLetter, Record
from remora.model.shard import Shard
from remora.model.topic import Target
from remora.ports.endpoint import Endpoint
from support.kafka_sender import INCARNATION, ShardSender, make_records, push_all

SHARD = Shard("tenant:orders")
SETTINGS = AmqpSettings(connect_timeout_s=30, delivery_timeout_s=60)
ANYWHERE = TlsFiles(("/",), ("/",))


@pytest.fixture
def hearer() -> Hearer:
    return Hearer()


@pytest.fixture
async def amqp(hearer: Hearer) -> AsyncIterator[AmqpEndpoint]:
    """A running endpoint that reports to the hearer."""
    async with AmqpEndpoint(SETTINGS, hearer, ANYWHERE) as running:
        yield running
    assert hearer.defects == []


def target(rabbitmq: RabbitMQ, exchange: str, topic: str = "events", args: str = "") -> Target:
    return Target(f"amqp://{rabbitmq.address}", f"amqp-exchange={exchange}{args}", topic)


async def deliver(endpoint: Endpoint, meant: Target, records: Sequence[Record]) -> None:
    async with asyncio.timeout(PATIENT_S), endpoint.route(SHARD, INCARNATION, meant) as route:
        assert await push_all(route, records) == []


async def refusal(endpoint: Endpoint, meant: Target, kind: type[EndpointError] = EndpointMisconfigured) -> str:
    """Why nothing can be delivered there."""
    with pytest.raises(kind) as caught:
        await deliver(endpoint, meant, make_records(0, 5))
    return str(caught.value)


def in_order(messages: Sequence[Message]) -> bool:
    """Whether the messages of each key come in the order of their queue; `make_records` deals them to 20 keys."""
    keys: defaultdict[int, list[int]] = defaultdict(list)
    for number in numbers(messages):
        keys[number % 20].append(number)
    return all(each == sorted(each) for each in keys.values())


def numbers(messages: Sequence[Message]) -> list[int]:
    return [int(each.body.partition(b",")[0]) for each in messages]


def letter(at: int) -> DeadLetter:
    return DeadLetter(SHARD.queue, INCARNATION, f"0/{at}", f"0/{at + 1}", "refused", "why", 3, 1.0, 2.0, b"junk")


# ------------------------------------------------------------------------------------ what arrives


async def test_the_message(rabbitmq: RabbitMQ, amqp: AmqpEndpoint) -> None:
    """A message has radosgw's body and routing key, and is persistent; its id and headers name its place."""
    exchange, queue = await rabbitmq.bound()
    (record,) = make_records(0, 1)

    await deliver(amqp, target(rabbitmq, exchange, "a.b c/ä"), [record])

    (found,) = await rabbitmq.read(queue)
    properties = found.properties
    assert (found.body, found.routing_key) == (record.body, "a.b c/ä")
    assert (properties.delivery_mode, properties.content_type, properties.app_id) == (2, "application/json", "remora")
    assert properties.message_id == "tenant:orders/inc:0/0"
    assert properties.headers == {
        "remora-shard": "tenant:orders", "remora-pos": "inc:0/0", "remora-next": "inc:0/1",
        "remora-event-id": record.event_id.decode(),
    }  # fmt: skip
    assert properties.reply_to is None


async def test_odd_names(rabbitmq: RabbitMQ, amqp: AmqpEndpoint) -> None:
    """Exchange names that brokers allow work, also those that AMQP's own description forbids."""
    name = "ä! " + "x" * 240
    exchange = await rabbitmq.exchange(name=name)
    queue = await rabbitmq.queue(exchange)

    await deliver(amqp, target(rabbitmq, name), make_records(0, 3))

    assert len(await rabbitmq.read(queue)) == 3


@pytest.mark.parametrize("kind", ["direct", "fanout", "headers"])
async def test_other_kinds_of_exchange(rabbitmq: RabbitMQ, amqp: AmqpEndpoint, kind: str) -> None:
    """An exchange of another kind passes, as with radosgw: the broker looks at its name only."""
    exchange = await rabbitmq.exchange(kind=kind)
    queue = await rabbitmq.queue(exchange, "events")

    await deliver(amqp, target(rabbitmq, exchange), make_records(0, 3))

    assert len(await rabbitmq.read(queue)) == 3


async def test_sizes(rabbitmq: RabbitMQ, amqp: AmqpEndpoint) -> None:
    """An empty body and one of the most bytes arrive whole; one byte more is refused, and the next route knows it."""
    exchange, queue = await rabbitmq.bound()
    meant = target(rabbitmq, exchange)
    small, large, larger = (
        each._replace(body=b"x" * size, key=b"b/%d" % size)
        for each, size in zip(make_records(0, 3), (0, MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES + 1), strict=True)
    )
    await deliver(amqp, meant, [small, large])
    assert sorted(map(len, bodies(await rabbitmq.read(queue)))) == [0, MAX_MESSAGE_BYTES]

    async with amqp.route(SHARD, INCARNATION, meant) as route:
        with pytest.raises(EntryRefused, match=f"{MAX_MESSAGE_BYTES + 1} bytes, the broker takes {MAX_MESSAGE_BYTES}"):
            await push_all(route, [larger])
    async with amqp.route(SHARD, INCARNATION, meant) as route:
        ((refused, why),) = await push_all(route, [larger, *make_records(0, 5, start=10)])

    assert refused == larger
    assert "more than the broker's max_message_size" in why
    assert sorted(numbers(await rabbitmq.read(queue))) == [10, 11, 12, 13, 14]


# ------------------------------------------------------------------------------------------- levels


@pytest.mark.parametrize("level", ["", "&amqp-ack-level=broker", "&amqp-ack-level=none"])
async def test_unroutable_is_delivered(rabbitmq: RabbitMQ, amqp: AmqpEndpoint, hearer: Hearer, level: str) -> None:
    """A message that reaches no queue counts as delivered unless the level is routable, and is counted."""
    exchange = await rabbitmq.exchange()

    await deliver(amqp, target(rabbitmq, exchange, args=level), [*make_records(0, 20), make_records(0, 1, start=99)[0]])

    assert hearer.unroutable == 21


async def test_routable(rabbitmq: RabbitMQ, amqp: AmqpEndpoint, hearer: Hearer) -> None:
    """With routable such a message stays until a queue is bound; then each arrives once."""
    exchange = await rabbitmq.exchange()
    meant, records = target(rabbitmq, exchange, args="&amqp-ack-level=routable"), make_records(0, 100)

    assert "no queue is bound with this routing key" in await refusal(amqp, meant)
    queue = await rabbitmq.queue(exchange)
    await deliver(amqp, meant, records)

    assert sorted(numbers(await rabbitmq.read(queue))) == list(range(100))
    assert hearer.unroutable == 0
    assert hearer.connected == 1


async def test_nack_in_the_middle(rabbitmq: RabbitMQ, amqp: AmqpEndpoint) -> None:
    """A full queue is transient; when there is room again the rest arrives, in order, and nothing a second time."""
    exchange = await rabbitmq.exchange()
    queue = await rabbitmq.queue(exchange, x_max_length=40, x_overflow="reject-publish")
    sender = ShardSender(amqp, "shard", target(rabbitmq, exchange))
    found: list[Message] = []
    refusals: list[EndpointUnavailable] = []

    async with asyncio.TaskGroup() as group:
        sending = group.create_task(sender.send(make_records(0, 200)))
        while not sending.done():
            await until(lambda: sending.done() or bool(sender.failures), "the queue is full")
            refusals += sender.failures
            sender.failures.clear()
            found += await rabbitmq.read(queue)
    found += await rabbitmq.read(queue)

    assert refusals
    assert all("a queue may be full" in str(each) for each in refusals)
    assert sorted(numbers(found)) == list(range(200))
    assert in_order(found)


# ------------------------------------------------------------------------------------ configuration


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_reasons(rabbitmq: RabbitMQ, runner: object, caplog: pytest.LogCaptureFixture) -> None:
    """Each refusal is called what it is, and no password stands in it or in the log."""
    caplog.set_level(logging.DEBUG)
    wrong, args = "wr0ng-pa55word", "amqp-exchange=amq.topic"
    name, secret = rabbitmq.address, quote(PASSWORD, safe="")
    expected = {
        (f"amqp://alice:{wrong}@{name}", args): "the broker refused user and password (reply 403)",
        (f"amqp://{name}/nothing", args): "there is no such virtual host",
        (f"amqp://{name}/", args): "there is no such virtual host",
        (f"amqp://{name}", "amqp-exchange=nothing"): "exchange nothing at .*: there is no such exchange (reply 404)",
        (f"amqp://reader:{secret}@{name}", args): "the user may not write to this exchange",
        (f"amqp://{rabbitmq.tls_address}", args): "this port speaks TLS, but the endpoint is amqp",
        (f"amqps://{name}", args): "the endpoint is amqps, but this port speaks no TLS",
        (f"amqps://{rabbitmq.tls_address}", args): "certificate is not trusted",
        (f"amqps://{rabbitmq.tls_address}", f"{args}&verify-ssl=false"): "it asks for a client certificate",
    }

    async def ask() -> dict[tuple[str, str], str]:
        async with AmqpEndpoint(SETTINGS, files=ANYWHERE) as endpoint:
            return {case: await refusal(endpoint, Target(*case, "t")) for case in expected}

    reasons = runner(ask())  # type: ignore[operator]  # either runner

    for case, reason in reasons.items():
        for part in expected[case].split(".*"):
            assert part in reason
    assert wrong not in caplog.text + "".join(reasons.values())
    assert PASSWORD not in caplog.text + "".join(reasons.values())


async def test_login(rabbitmq: RabbitMQ, amqp: AmqpEndpoint, hearer: Hearer) -> None:
    """A user of the URI or the arguments logs in; topics with another one have a connection of their own."""
    exchange, queue = await rabbitmq.bound()
    plain = target(rabbitmq, exchange)
    in_uri = Target(f"amqp://alice:{quote(PASSWORD, safe='')}@{rabbitmq.address}", plain.args, "t")
    in_args = Target(plain.uri, f"{plain.args}&user-name=alice&password={PASSWORD}", "t")

    for meant in (plain, in_uri, in_args):
        await deliver(amqp, meant, make_records(0, 2))

    assert len(await rabbitmq.read(queue)) == 6
    assert hearer.connected == 2


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_tls(rabbitmq: RabbitMQ, runner: object) -> None:
    """amqps delivers, shows a client certificate, and checks that of the broker."""
    files = f"&ssl-certificate-location={rabbitmq.client.certificate}&ssl-key-location={rabbitmq.client.key}"

    async def run() -> int:
        exchange, queue = await rabbitmq.bound()
        args = f"amqp-exchange={exchange}&ca-location={rabbitmq.own.certificate}{files}"
        async with AmqpEndpoint(SETTINGS, files=ANYWHERE) as endpoint:
            await deliver(endpoint, Target(f"amqps://localhost:{rabbitmq.tls_port}", args, "t"), make_records(0, 300))
        return len(await rabbitmq.read(queue))

    assert runner(run()) == 300  # type: ignore[operator]  # either runner


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
async def test_a_channel_that_is_killed(rabbitmq: RabbitMQ, amqp: AmqpEndpoint, hearer: Hearer) -> None:
    """An exchange that is deleted stops its own topic only: another one goes on over the same connection."""
    (bad, _), (good, queue) = await rabbitmq.bound(), await rabbitmq.bound()
    async with (
        amqp.route(SHARD, INCARNATION, target(rabbitmq, bad)) as first,
        amqp.route(SHARD, INCARNATION, target(rabbitmq, good)) as second,
    ):
        await push_all(first, make_records(0, 10))
        await rabbitmq.delete_exchange(bad)
        with pytest.raises(EndpointMisconfigured, match="there is no such exchange"):
            await push_all(first, make_records(0, 10, start=10))
        await push_all(second, make_records(0, 10))

    assert hearer.connected == 1
    assert hearer.disconnected == []
    assert len(await rabbitmq.read(queue)) == 10


async def test_away() -> None:
    """A closed port, and a name that does not resolve, are transient and named."""
    async with AmqpEndpoint(SETTINGS) as endpoint:
        closed = Target("amqp://127.0.0.1:1", "amqp-exchange=x", "t")
        unknown = Target("amqp://no-such-host.invalid", "amqp-exchange=x", "t")

        assert "127.0.0.1:1: Connection refused" in await refusal(endpoint, closed, EndpointUnavailable)
        assert "no-such-host.invalid:5672" in await refusal(endpoint, unknown, EndpointUnavailable)
        assert await endpoint.up(closed) == frozenset()


async def test_up(rabbitmq: RabbitMQ, amqp: AmqpEndpoint) -> None:
    """A broker that lets the topic in is up by its name, connected or not; one that refuses the log-in is not."""
    exchange, _ = await rabbitmq.bound()
    meant = target(rabbitmq, exchange)

    assert await amqp.up(meant) == {rabbitmq.address}
    await deliver(amqp, meant, make_records(0, 1))
    assert await amqp.up(meant) == {rabbitmq.address}
    assert await amqp.up(Target(f"amqp://alice:x@{rabbitmq.address}", meant.args, "t")) == frozenset()


# ----------------------------------------------------------------------------------------- letters


async def test_dead_letters(rabbitmq: RabbitMQ, amqp: AmqpEndpoint) -> None:
    """Letters go to the same exchange with the key that the topic names; one that no queue gets is held back."""
    exchange = await rabbitmq.exchange()
    meant = target(rabbitmq, exchange, args="&remora-dead-letter-topic=dead")
    assert amqp.publishes_letters(meant)
    assert not amqp.publishes_letters(target(rabbitmq, exchange))

    async with amqp.route(SHARD, INCARNATION, meant) as route:
        with pytest.raises(EndpointMisconfigured, match="no queue is bound with dead, the routing key of dead letters"):
            await route.publish_letters([letter(1)])
        queue = await rabbitmq.queue(exchange, "dead")
        await route.publish_letters([letter(1), letter(2)])

    first, second = await rabbitmq.read(queue)
    assert (first.body, first.routing_key) == (b"junk", "dead")
    assert first.properties.headers["remora-cause"] == "refused"
    assert first.properties.headers["remora-attempts"] == "3"
    assert second.properties.headers["remora-pos"] == "inc:0/2"


async def test_a_letter_that_is_too_large(rabbitmq: RabbitMQ, amqp: AmqpEndpoint) -> None:
    """A letter of more bytes than the broker takes goes without them, and tells how many; others go whole, and once."""
    exchange = await rabbitmq.exchange()
    queue = await rabbitmq.queue(exchange, "dead")
    meant = target(rabbitmq, exchange, args="&remora-dead-letter-topic=dead")
    large = replace(letter(2), raw=b"x" * (MAX_MESSAGE_BYTES + 1))

    async with amqp.route(SHARD, INCARNATION, meant) as route:
        await route.publish_letters([letter(1), large, letter(3)])

    found = await rabbitmq.read(queue)
    assert bodies(found) == [b"junk", b"", b"junk"]
    assert found[1].properties.headers["remora-omitted-bytes"] == str(MAX_MESSAGE_BYTES + 1)


# -------------------------------------------------------------------------------- connections, outages


async def test_more_topics_than_channels(rabbitmq: RabbitMQ, amqp: AmqpEndpoint, hearer: Hearer) -> None:
    """Where a broker allows too few channels on a connection, further topics share another one."""
    exchange, queue = await rabbitmq.bound()

    for number in range(100):
        await deliver(amqp, target(rabbitmq, exchange, f"t{number}"), make_records(0, 1))

    assert hearer.connected == 2
    assert len(await rabbitmq.read(queue)) == 100


async def test_blocked(fragile_rabbitmq: RabbitMQ, hearer: Hearer) -> None:
    """A broker that blocks publishers is named; the connection stays, and afterwards there is not one copy."""
    broker = fragile_rabbitmq
    exchange, queue = await broker.bound()
    meant, records = target(broker, exchange), make_records(0, 60)
    async with AmqpEndpoint(replace(SETTINGS, delivery_timeout_s=10), hearer) as endpoint:
        await deliver(endpoint, meant, records[:20])
        await broker.control("set_vm_memory_high_watermark", "0")
        try:
            # The broker tells a connection that it is blocked when that publishes.
            for part in (records[20:40], records[20:60], records[20:60]):
                with pytest.raises(EndpointUnavailable, match="blocks publishers: low on memory"):
                    await deliver(endpoint, meant, part)
            assert await endpoint.up(meant) == frozenset()
        finally:
            await broker.control("set_vm_memory_high_watermark", "0.4")
        sender = ShardSender(endpoint, SHARD.queue, meant)
        await sender.send(records[20:])

    assert hearer.connected == 1
    assert sorted(numbers(await broker.read(queue))) == list(range(60))
