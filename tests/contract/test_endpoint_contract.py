"""What every kind of endpoint promises, against the real servers: Kafka, an HTTP receiver, RabbitMQ and NATS; and a
file, for the least that a kind takes (`tests/support/file_sink`)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from random import Random

import pytest

from devkit.receivers.bad_endpoints import hanging_endpoint
from devkit.waits import PATIENT_S, until
from remora.codec.rendering_cached import Renderer
from remora.config import Settings
from remora.endpoints.amqp import AmqpEndpoint, AmqpRoute
from remora.endpoints.http import HttpEndpoint
from remora.endpoints.http.endpoint import HttpRoute
from remora.endpoints.kafka import KafkaEndpoint, KafkaRoute
from remora.endpoints.kinds import offered_kinds
from remora.endpoints.nats import NatsEndpoint, NatsRoute
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable, EntryRefused
from remora.model.record import Page, Record
from remora.model.shard import Shard
from remora.model.topic import Target
from remora.ports.endpoint import Endpoint, LateEndpoint, Route, SucceedingRoute
from support.file_sink import FileEndpoint, FileRoute
from support.kafka_sender import INCARNATION, ShardSender, make_records, push_all
from support.offered import offer
from support.outlets import (
    WRONG_PASSWORD,
    AmqpOutlet,
    Arrived,
    FileOutlet,
    HttpOutlet,
    KafkaOutlet,
    NatsOutlet,
    Outlet,
    judge,
)
from unit.codec.samples import real_pairs

SHARD = Shard("tenant:orders")
KINDS = [
    pytest.param("kafka", marks=pytest.mark.kafka),
    "http",
    pytest.param("amqp", marks=pytest.mark.asks_for("rabbitmq")),
    pytest.param("nats", marks=pytest.mark.asks_for("nats_server")),
    "file",
]
FRAGILE = [
    pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.asks_for("fragile_kafka")]),
    "http",
    pytest.param("amqp", marks=pytest.mark.asks_for("fragile_rabbitmq")),
    pytest.param("nats", marks=pytest.mark.asks_for("fragile_nats_server")),
    "file",
]


@pytest.fixture(params=KINDS)
async def outlet(request: pytest.FixtureRequest) -> AsyncIterator[Outlet]:
    """A server of each kind, which no test hurts."""
    async for each in _outlet(request, request.param):
        yield each


@pytest.fixture(params=FRAGILE)
async def fragile(request: pytest.FixtureRequest) -> AsyncIterator[Outlet]:
    """A server of each kind that tests may hurt, as long as they mend it."""
    async for each in _outlet(request, request.param, "fragile_"):
        yield each


async def _outlet(request: pytest.FixtureRequest, kind: str, prefix: str = "") -> AsyncIterator[Outlet]:
    if kind == "http":
        http = HttpOutlet()
        await http.start()
        yield http
        http.thaw()
        await http.stop()
    elif kind == "file":
        file = FileOutlet(request.getfixturevalue("tmp_path"), _offered(request))
        yield file
        file.thaw()
    elif kind == "kafka":
        yield KafkaOutlet(request.getfixturevalue(f"{prefix}kafka"))
    elif kind == "nats":
        yield NatsOutlet(request.getfixturevalue(f"{prefix}nats_server"))
    else:
        yield AmqpOutlet(request.getfixturevalue(f"{prefix}rabbitmq"))


def _offered(request: pytest.FixtureRequest) -> type[FileEndpoint]:
    """The kind of a package that is found by its metadata, as one of somebody else's would be."""
    place = offer(request.getfixturevalue("tmp_path"), {"file": "support.file_sink:KIND"})
    request.getfixturevalue("monkeypatch").syspath_prepend(place)
    made = offered_kinds(()).kinds["file"].make(Settings(), None)
    assert isinstance(made, FileEndpoint)
    return type(made)


async def deliver(endpoint: Endpoint, to: Target, records: Sequence[Record], shard: Shard = SHARD) -> None:
    async with asyncio.timeout(PATIENT_S), endpoint.route(shard, INCARNATION, to) as route:
        assert await push_all(route, records) == []


async def refusal(endpoint: Endpoint, to: Target, kind: type[EndpointError]) -> str:
    """Why nothing can be delivered there."""
    with pytest.raises(kind) as caught:
        await deliver(endpoint, to, make_records(0, 5))
    return str(caught.value)


def _needs_addresses(outlet: Outlet) -> None:
    if not outlet.has_addresses:
        pytest.skip("it is reached at no address")


def test_fit_the_ports() -> None:
    """The classes fit the ports."""
    endpoints: tuple[type[Endpoint], ...] = (KafkaEndpoint, HttpEndpoint, AmqpEndpoint, NatsEndpoint, FileEndpoint)
    routes: tuple[type[Route], ...] = (KafkaRoute, HttpRoute, AmqpRoute, NatsRoute, FileRoute)

    assert len(endpoints) == len(routes) == 5


# --------------------------------------------------------------------------------------- what arrives


@pytest.mark.guarantee("no-loss", "order-per-object", "duplicates")
async def test_everything_once_in_order_and_with_its_place(outlet: Outlet) -> None:
    """Records of several shards that are delivered side by side arrive once, in order per key, each with its place."""
    to = await outlet.topic()
    records = {f"q.{number}": make_records(number, 300) for number in range(4)}

    async with asyncio.timeout(PATIENT_S), outlet.running() as endpoint:
        senders = [ShardSender(endpoint, shard, to) for shard in records]
        await asyncio.gather(*(each.send(records[each.shard.queue], 50) for each in senders))

    arrived = await outlet.arrivals(to)
    assert judge(arrived, records) == (set(), 0, [])
    assert [each.failures for each in senders] == [[]] * 4
    assert {each for each in arrived if each.shard == "q.2"} == {
        Arrived("q.2", f"inc:{r.position.decode()}", f"inc:{r.next_position.decode()}", r.event_id, r.body)
        for r in records["q.2"]
    }


async def test_the_first_record_says_where_the_shards_before_its_own_ended(outlet: Outlet) -> None:
    """It has the header also when it is packed again, and no other record has it; with ends that are too many for the
    receiver's headers it names their generation in their place."""
    to, records = await outlet.topic(), make_records(0, 30)
    many = b",".join(b"orders@3.%d=0123456789abcdef:0/12345" % number for number in range(400))

    async with asyncio.timeout(PATIENT_S), outlet.running() as endpoint:
        for shard, after in ((SHARD, b"t=i:0/7,t.1=i:0/9"), (Shard("many"), many)):
            async with endpoint.route(shard, INCARNATION, to) as route:
                if not isinstance(route, SucceedingRoute):
                    pytest.skip("it sends no headers that not every record has")
                route.succeeds(after)
                route.pack(records[:20])
                for some in (records[:20], records[20:]):
                    assert await push_all(route, some) == []

    told = {(each.shard, each.position): each.after for each in await outlet.arrivals(to) if each.after}
    assert told.pop((SHARD.queue, "inc:0/0")) == "t=i:0/7,t.1=i:0/9"
    assert told.pop(("many", "inc:0/0")) in ("generation=3", many.decode())
    assert not told


@pytest.mark.guarantee("radosgws-bytes")
async def test_radosgws_bytes(outlet: Outlet) -> None:
    """Of entries that radosgw 16.2, 18.2 and 20.2 committed exactly those bytes arrive that the same radosgw posted."""
    pairs = real_pairs()
    to = await outlet.topic()
    page = Page([b"0/%d" % number for number in range(len(pairs) + 1)], [each.entry for each in pairs], truncated=False)
    rendered, refused = Renderer().render(page)

    async with outlet.running() as endpoint:
        await deliver(endpoint, to, rendered)

    assert not refused
    assert len(pairs) >= 39
    assert sorted(each.body for each in await outlet.arrivals(to)) == sorted(each.body for each in pairs)


async def test_sizes(outlet: Outlet, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty body and a very large one arrive whole; one that is too large is refused alone, and told by its place.

    What its lane has before it has arrived, and what comes behind it arrives in the next route.
    """
    monkeypatch.setattr("remora.endpoints.http.endpoint.POISON_APART_S", 0.05)
    to = await outlet.topic(most_bytes=outlet.largest_bytes)
    records = make_records(0, 7, keys=1)
    records[1] = records[1]._replace(body=b"1," + b"x" * (outlet.largest_bytes - 2))
    records[3] = records[3]._replace(body=b"3," + Random(0).randbytes(outlet.largest_bytes + 5000))
    left, refused = deque(records), []
    others = iter(make_records(1, 10_000))

    async with (
        asyncio.timeout(PATIENT_S),
        outlet.running() as endpoint,
        endpoint.route(Shard("other"), INCARNATION, to) as fellow,
    ):
        while left:
            async with endpoint.route(SHARD, INCARNATION, to) as route:
                batches, unpacked = route.pack(list(left))
                refused += [record for record, _ in unpacked]
                for batch in batches:
                    pushing = asyncio.create_task(route.push(batch))
                    while not pushing.done():  # a receiver refuses a record only where others arrive
                        with suppress(EndpointUnavailable):  # a broker may end the channel of both
                            await push_all(fellow, [next(others)])
                    try:
                        await pushing
                    except EntryRefused as exc:
                        refused.append(batch.records[exc.arrived])
                        left = deque(each for each in left if each.ordinal > batch.records[exc.arrived].ordinal)
                        break
                else:
                    left.clear()

    arrived = [each for each in await outlet.arrivals(to) if each.shard == SHARD.queue]
    assert refused == [records[3]]
    assert [each.body for each in arrived] == [each.body for each in records if each is not records[3]]


async def test_refused_records_in_a_quiet_topic(outlet: Outlet) -> None:
    """Two records that are refused for good are told as that, though nothing else is delivered any more, and pushes are
    too short for more than one answer of a receiver's."""
    to = await outlet.topic(most_bytes=outlet.largest_bytes)
    good, *bad = make_records(0, 3, keys=3)
    bad = [each._replace(body=each.body + Random(0).randbytes(outlet.largest_bytes + 5000)) for each in bad]
    left, refused, pushes = deque(bad), list[Record](), 0

    async with asyncio.timeout(PATIENT_S), outlet.running(is_quick=True) as endpoint:
        await _until_arrived(endpoint, to, good)
        while left:
            with suppress(EndpointUnavailable):  # the server may be busy, or need the next push
                async with endpoint.route(SHARD, INCARNATION, to) as route:
                    batches, unpacked = route.pack(list(left))
                    refused += [record for record, _ in unpacked]
                    for batch in batches:
                        pushes += 1
                        try:
                            await route.push(batch)
                        except EntryRefused as exc:
                            refused.append(batch.records[exc.arrived])
            left = deque(each for each in left if each not in refused)

    assert sorted(refused) == bad
    assert [each.body for each in await outlet.arrivals(to)] == [good.body]
    assert pushes <= 12


async def _until_arrived(endpoint: Endpoint, to: Target, record: Record) -> None:
    """Deliver a record; a server that is busy may need more than one push."""
    while True:
        with suppress(EndpointUnavailable):
            return await deliver(endpoint, to, [record])


# ------------------------------------------------------------------------------------------- failures


@pytest.mark.guarantee("no-loss", "order-per-object", "duplicates")
async def test_stopped_and_frozen_under_load(fragile: Outlet) -> None:
    """A server that ends and comes back under load, and then falls silent, loses nothing; first arrivals are in order,
    and each fault makes at most as many copies as were under way."""
    to = await fragile.topic()
    records = {f"q.{number}": make_records(number, fragile.load) for number in range(2)}
    async with asyncio.timeout(2 * PATIENT_S), fragile.running(is_quick=True) as endpoint:
        while not await endpoint.up(to):  # a server that was just begun may need more than a look's time
            pass
        senders = [ShardSender(endpoint, shard, to) for shard in records]
        async with asyncio.TaskGroup() as sending:
            for sender in senders:
                sending.create_task(sender.send(records[sender.shard.queue][: fragile.load // 2], 50))
            await senders[0].wait_for(fragile.load // 5)
            noticed = [len(each.failures) for each in senders]
            await fragile.stop()
            await until(lambda: _failed_since(senders, noticed), "the outage is noticed")
            assert await endpoint.up(to) == frozenset()
            await fragile.start()  # all of this part may have been sent when it says that it has begun
        async with asyncio.TaskGroup() as sending:
            for sender in senders:
                sending.create_task(sender.send(records[sender.shard.queue], 50))
            await senders[0].wait_for(fragile.load // 2 + fragile.load // 10)
            await fragile.freeze()
            noticed = [len(each.failures) for each in senders]
            await until(lambda: _failed_since(senders, noticed), "the silence is")
            fragile.thaw()

    lost, copies, moved = judge(await fragile.arrivals(to), records)
    assert (lost, moved) == (set(), [])
    assert copies <= sum(len(each.failures) for each in senders) * fragile.at_once


def _failed_since(senders: Sequence[ShardSender], before: Sequence[int]) -> bool:
    """Whether each has failed more often than before."""
    return all(len(each.failures) > was for each, was in zip(senders, before, strict=True))


async def test_a_port_that_accepts_and_is_silent(outlet: Outlet) -> None:
    """Shards of a topic whose server never says a word fail in time, over few connections, of which none stays."""
    _needs_addresses(outlet)
    async with hanging_endpoint() as mute:
        async with asyncio.timeout(PATIENT_S), outlet.running(is_quick=True) as endpoint:
            shards = [Shard(f"bad.{number}") for number in range(20)]
            failed = await asyncio.gather(
                *(deliver(endpoint, outlet.elsewhere(mute.address), make_records(0, 1), each) for each in shards),
                return_exceptions=True,
            )
        await until(lambda: not mute.open, "all connections are closed")

    assert {type(each) for each in failed} == {EndpointUnavailable}
    assert 1 <= mute.most <= 20


async def test_nobody_there(outlet: Outlet) -> None:
    """A closed port, and a name that does not resolve, are transient and named; nobody is up there."""
    _needs_addresses(outlet)
    async with outlet.running() as endpoint:
        closed, unknown = outlet.elsewhere("127.0.0.1:1"), outlet.elsewhere("no-such-host.invalid")

        assert "127.0.0.1:1" in await refusal(endpoint, closed, EndpointUnavailable)
        assert "no-such-host.invalid" in await refusal(endpoint, unknown, EndpointUnavailable)
        assert await endpoint.up(closed) == await endpoint.up(unknown) == frozenset()


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
async def test_a_topic_that_is_missing(outlet: Outlet) -> None:
    """A topic that its server does not have is a matter of configuration, and costs another one there nothing."""
    to = await outlet.topic()
    async with outlet.running() as endpoint, endpoint.route(SHARD, INCARNATION, to) as route:
        await push_all(route, make_records(0, 20, keys=1))
        await refusal(endpoint, outlet.missing(), EndpointMisconfigured)
        await push_all(route, make_records(0, 20, start=20, keys=1))

    assert judge(await outlet.arrivals(to), {SHARD.queue: make_records(0, 40, keys=1)}) == (set(), 0, [])


async def test_a_wrong_password(outlet: Outlet, caplog: pytest.LogCaptureFixture) -> None:
    """It is a matter of configuration, and stands neither in the reason nor in any line of the log."""
    caplog.set_level(logging.DEBUG)
    async with outlet.running() as endpoint:
        reason = await refusal(endpoint, outlet.intruder(), EndpointMisconfigured)

    assert WRONG_PASSWORD not in reason + caplog.text


# ---------------------------------------------------------------------------------------- connections


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
async def test_who_shares_a_connection(outlet: Outlet) -> None:
    """Topics of one server share connections, and somebody else who logs in there has one of his own."""
    first, second = await outlet.topic(), await outlet.topic()
    async with outlet.running() as endpoint:
        for number, to in enumerate((first, second, first)):
            await deliver(endpoint, to, make_records(number, 1), Shard(f"q.{number}"))
        assert outlet.opened == 1
        await deliver(endpoint, outlet.stranger(first), make_records(9, 1), Shard("q.9"))
        assert outlet.opened == 2

    assert len(await outlet.arrivals(first)) == 3
    assert outlet.closed == 2


async def test_an_idle_connection(outlet: Outlet) -> None:
    """A connection that nobody uses is closed, and the next record opens another one."""
    to = await outlet.topic()
    async with outlet.running(idle_timeout_s=0.2) as endpoint:
        await deliver(endpoint, to, make_records(0, 5, keys=1))
        await until(lambda: outlet.closed == 1, "the idle connection is closed")
        await deliver(endpoint, to, make_records(0, 5, start=5, keys=1))

    assert (outlet.opened, outlet.closed) == (2, 2)
    assert judge(await outlet.arrivals(to), {SHARD.queue: make_records(0, 10, keys=1)}) == (set(), 0, [])


# -------------------------------------------------------------------------------------------- the end


async def test_cancelled_pushes(outlet: Outlet) -> None:
    """Cancelled pushes leave nothing behind that arrives later, or troubles those that follow."""
    to = await outlet.topic()
    async with asyncio.timeout(PATIENT_S), outlet.running() as endpoint:
        async with endpoint.route(SHARD, INCARNATION, to) as route:
            for batch in route.pack(make_records(0, 20, keys=1))[0]:
                await route.push(batch)
        async with endpoint.route(SHARD, INCARNATION, to) as route:
            batches, _ = route.pack(make_records(0, 200, start=20))
            pushes = [asyncio.create_task(route.push(each)) for each in batches]
            await asyncio.sleep(0)
            for each in pushes:
                each.cancel()
            await asyncio.wait(pushes)
        await deliver(endpoint, to, make_records(0, 20, start=500, keys=1))

    numbers = [int(each.body.partition(b",")[0]) for each in await outlet.arrivals(to)]
    assert [each for each in numbers if each < 20] == list(range(20))
    assert [each for each in numbers if each >= 500] == list(range(500, 520))
    assert len(set(numbers)) == len(numbers)
    by_key = {key: [n for n in numbers if 20 <= n < 220 and n % 20 == key] for key in range(20)}
    assert all(each == sorted(each) for each in by_key.values())


async def test_an_answer_that_comes_too_late(fragile: Outlet) -> None:
    """A push without an answer says that its record may have arrived; where the connection outlives it, the record has
    once the server answers over it, and is told as that once."""
    to, number = await fragile.topic(), 0
    async with asyncio.timeout(2 * PATIENT_S), fragile.running(is_quick=True) as endpoint:
        assert isinstance(endpoint, LateEndpoint)
        while True:
            number += 1
            [first, record] = [each._replace(created_ns=time.time_ns()) for each in make_records(number, 2, keys=1)]
            await _until_arrived(endpoint, to, first)
            try:
                error = await _unanswered(fragile, endpoint, to, record)
            finally:
                fragile.thaw()
            arrived = await endpoint.arrived_late(SHARD, INCARNATION, to, [record.position])
            if error is not None and bool(arrived) == fragile.hears_late:
                break  # else nothing was sent, or a server that was slow to thaw came too late even for that
        assert await endpoint.arrived_late(SHARD, INCARNATION, to, [record.position]) == frozenset()
        assert arrived <= {record.position}
        assert list(error.unclear) == [0]
        if arrived:
            assert record.body in {each.body for each in await fragile.arrivals(to)}


async def _unanswered(outlet: Outlet, endpoint: Endpoint, to: Target, record: Record) -> EndpointUnavailable | None:
    """Push a record to a server that is frozen by then; None where nothing was sent."""
    try:
        async with endpoint.route(SHARD, INCARNATION, to) as route:
            [batch] = route.pack([record])[0]
            await outlet.freeze()
            await route.push(batch)
    except EndpointUnavailable as exc:
        return exc if exc.unclear else None
    return None


async def test_an_endpoint_that_is_closed(fragile: Outlet) -> None:
    """Leaving an endpoint while its server is silent fails the push under way and a later one, and leaves no task."""
    to = await fragile.topic()
    before = asyncio.all_tasks()
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    try:
        async with asyncio.timeout(PATIENT_S), fragile.running() as endpoint:
            context = endpoint.route(SHARD, INCARNATION, to)
            route = await context.__aenter__()
            await push_all(route, make_records(0, 5, keys=1))
            await fragile.freeze()
            pushing = asyncio.create_task(push_all(route, make_records(0, 5, start=5, keys=1)))
            await asyncio.sleep(0)
        with pytest.raises(EndpointError):
            await pushing
        with pytest.raises(EndpointUnavailable):
            await push_all(route, make_records(0, 5, start=10, keys=1))
        await context.__aexit__(None, None, None)
    finally:
        fragile.thaw()

    left = {each for each in asyncio.all_tasks() - before if not isinstance(fragile, HttpOutlet)}
    assert (left, complaints) == (set(), [])
    assert fragile.opened == fragile.closed
