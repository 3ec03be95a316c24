"""The AMQP endpoint against a broker that does what no real one does: never an ack for what was not confirmed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest
from pamqp import commands, frame

from devkit.clusters.rabbitmq import Hearer
from devkit.receivers.amqp_server import Peer, scripted
from devkit.waits import PATIENT_S, until
from remora.config import AmqpSettings, Settings
from remora.endpoints.amqp import AmqpEndpoint
from remora.endpoints.amqp.frames import HEARTBEAT_FRAME
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable, EntryRefused
from remora.model.record import Record
from remora.model.shard import Origin, Shard
from remora.model.topic import Target
from support.kafka_sender import INCARNATION, make_records, push_all

SHARD = Shard("orders")
SETTINGS = AmqpSettings(connect_timeout_s=20, delivery_timeout_s=20)

Script = Callable[[Peer], Awaitable[None]]


def target(address: str) -> Target:
    return Target(f"amqp://{address}", "amqp-exchange=x", "t")


async def push(endpoint: AmqpEndpoint, address: str, records: list[Record]) -> None:
    async with endpoint.route(SHARD, INCARNATION, target(address)) as route:
        await push_all(route, records)


async def failure(script: Script, kind: type[EndpointError], settings: AmqpSettings = SETTINGS) -> str:
    """Why nothing can be delivered to a broker with this script."""
    async with asyncio.timeout(PATIENT_S), scripted(script) as address, AmqpEndpoint(settings) as endpoint:
        with pytest.raises(kind) as caught:
            await push(endpoint, address, make_records(0, 3, keys=1))
    return str(caught.value)


def says(data: bytes) -> Script:
    """A peer that says this as soon as the client begins."""

    async def script(peer: Peer) -> None:
        await peer.preamble()
        peer.raw(data)

    return script


def answers(*methods: tuple[int, object]) -> Script:
    """A broker that lets the client in, and answers its first message with these methods on these channels."""

    async def script(peer: Peer) -> None:
        await peer.shake_hands()
        await peer.open_channel()
        await peer.published()
        for channel, method in methods:
            peer.raw(method) if isinstance(method, bytes) else peer.send(method, channel)

    return script


# --------------------------------------------------------------------------------------- handshake


async def test_a_mute_port() -> None:
    """A port that accepts and never answers is transient, within the time to connect."""
    settings = replace(SETTINGS, connect_timeout_s=0.3)

    assert "no answer in time" in await failure(says(b""), EndpointUnavailable, settings)


@pytest.mark.parametrize(
    ("data", "kind", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", EndpointUnavailable, "begins with the byte 72"),
        (b"AMQP\x00\x01\x00\x00", EndpointMisconfigured, "another version of AMQP"),
        (b"\x15\x03\x03\x00\x02\x02\x28", EndpointMisconfigured, "this port speaks TLS"),
        (b"\x01\x00\x00\x7f\xff\xff\xff", EndpointUnavailable, "a frame of 2147483647 bytes"),
        (b"\x01\x00\x00\x00\x00\x00\x04\xff\xff\xff\xff\xce", EndpointUnavailable, "cannot be read"),
        (b"\x01\x00\x00\x00\x00\x00\x01\x00\xce", EndpointUnavailable, "cannot be read"),
        (b"\x02\x00\x01\x00\x00\x00\x00\xce", EndpointUnavailable, "channel 1, which is not open|cannot be read"),
        (b"\x08\x00\x01\x00\x00\x00\x00\xce", EndpointUnavailable, "a heartbeat on a channel"),
        (frame.marshal(commands.Connection.OpenOk(), 0), EndpointUnavailable, "out of turn"),
        (
            frame.marshal(commands.Connection.Start(0, 9, {}, "EXTERNAL", "en_US"), 0),
            EndpointMisconfigured,
            "no log-in with user and password",
        ),
        (
            frame.marshal(commands.Connection.Start(1, 0, {}, "PLAIN", "en_US"), 0),
            EndpointMisconfigured,
            "another version of AMQP",
        ),
    ],
)
async def test_other_servers(data: bytes, kind: type[EndpointError], reason: str) -> None:
    """Whatever else listens there, or begins otherwise than AMQP does, costs its topic only, and is named."""
    said = await failure(says(data), kind)

    assert any(each in said for each in reason.split("|"))


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x01\x00\x00\x00\x00\x01\x00half"])
async def test_hung_up(data: bytes) -> None:
    """A peer that hangs up in the middle is transient."""

    async def script(peer: Peer) -> None:
        await peer.preamble()
        peer.raw(data)
        peer.hang_up()

    assert "the connection broke" in await failure(script, EndpointUnavailable)


async def test_tiny_frames() -> None:
    """A broker whose frames are smaller than AMQP allows is transient."""

    async def script(peer: Peer) -> None:
        await peer.shake_hands(commands.Connection.Tune(1, 1, 60))

    assert "takes frames of 1 bytes" in await failure(script, EndpointUnavailable)


async def test_byte_by_byte() -> None:
    """A broker whose answers come a byte at a time, with heartbeats between, gets everything."""
    got: list[bytes] = []

    async def script(peer: Peer) -> None:
        whole = peer.raw

        def dribble(data: bytes) -> None:
            for at in range(len(data)):
                whole(data[at : at + 1])
            whole(HEARTBEAT_FRAME)

        peer.raw = dribble  # type: ignore[method-assign]
        await peer.shake_hands(commands.Connection.Tune(1, 4096, 60))
        await peer.open_channel()
        for _ in range(3):
            message = await peer.published()
            got.append(message.body)
            peer.send(commands.Basic.Ack(message.tag))

    records = make_records(0, 3, keys=1, size=10_000)
    async with asyncio.timeout(PATIENT_S), scripted(script) as address, AmqpEndpoint(SETTINGS) as endpoint:
        await push(endpoint, address, records)

    assert got == [each.body for each in records]


# ---------------------------------------------------------------------------------------- confirms


@pytest.mark.parametrize(
    ("methods", "kind", "reason"),
    [
        ([(1, commands.Basic.Ack(2))], EndpointUnavailable, "confirms a message that it never got"),
        ([(1, commands.Basic.Ack(2, True))], EndpointUnavailable, "confirms a message that it never got"),
        ([(1, commands.Basic.Ack(0))], EndpointUnavailable, "confirms a message that it never got"),
        ([(1, commands.Basic.Nack(7))], EndpointUnavailable, "confirms a message that it never got"),
        ([(2, commands.Basic.Ack(1))], EndpointUnavailable, "channel 2, which is not open"),
        ([(0, commands.Basic.Ack(1))], EndpointUnavailable, "channel 0, which is not open"),
        ([(1, commands.Basic.Nack(1))], EndpointUnavailable, "a queue may be full"),
        ([(1, commands.Channel.OpenOk())], EndpointUnavailable, "out of turn"),
        ([(2, commands.Channel.Close(404, "", 0, 0))], EndpointUnavailable, "channel 2, which is not open"),
        ([(1, commands.Channel.Close(404, "", 0, 0))], EndpointMisconfigured, "no such exchange (reply 404)"),
        ([(1, commands.Channel.Close(403, "", 0, 0))], EndpointMisconfigured, "may not write to this exchange"),
        ([(1, commands.Channel.Close(405, "", 0, 0))], EndpointUnavailable, "(reply 405)"),
        ([(0, commands.Connection.Close(320, "", 0, 0))], EndpointUnavailable, "(reply 320)"),
        ([(0, commands.Connection.Close(541, "", 0, 0))], EndpointUnavailable, "(reply 541)"),
        ([(0, commands.Connection.Close(530, "", 0, 0))], EndpointMisconfigured, "(reply 530)"),
        ([(1, b"\x03\x00\x01\x00\x00\x00\x01x\xce")], EndpointUnavailable, "a body of no message"),
        ([(1, b"\xff")], EndpointUnavailable, "begins with the byte 255"),
        ([(1, commands.Basic.Return(312, "", "x", "t"))] * 2, EndpointUnavailable, "returned within another"),
        (
            [(1, commands.Channel.Close(406, "message size 102 is larger than configured max size 90", 60, 40))],
            EntryRefused,
            "102 bytes, the broker takes 90",
        ),
    ],
)
async def test_answers_to_a_message(methods: list[tuple[int, object]], kind: type[EndpointError], reason: str) -> None:
    """What is no confirm of the message fails the push, and is named."""
    assert reason in await failure(answers(*methods), kind)


async def test_no_confirm() -> None:
    """A message that is not confirmed in time is transient."""
    settings = replace(SETTINGS, delivery_timeout_s=0.3)

    assert "not confirmed within" in await failure(answers(), EndpointUnavailable, settings)


async def test_confirms_in_any_order() -> None:
    """A nack fails its own lane; messages before it that are confirmed later, several at once, have arrived."""

    async def script(peer: Peer) -> None:
        await peer.shake_hands()
        await peer.open_channel()
        for _ in range(4):
            await peer.published()
        peer.send(commands.Basic.Nack(3))
        peer.send(commands.Basic.Ack(2, True))
        peer.send(commands.Basic.Ack(4))

    records = make_records(0, 4, keys=4)
    async with (
        asyncio.timeout(PATIENT_S),
        scripted(script) as address,
        AmqpEndpoint(SETTINGS) as endpoint,
        endpoint.route(SHARD, INCARNATION, target(address)) as route,
    ):
        batches, _ = route.pack(records)
        assert len(batches) == 4
        outcomes = await asyncio.gather(*(route.push(each) for each in batches), return_exceptions=True)

    assert [type(each) for each in outcomes] == [type(None), type(None), EndpointUnavailable, type(None)]


async def test_one_message_of_a_lane() -> None:
    """The next message of a key is sent when the one before it is confirmed, and not before."""
    confirmed = 0

    async def script(peer: Peer) -> None:
        nonlocal confirmed
        await peer.shake_hands()
        await peer.open_channel()
        for number in range(1, 6):
            assert (await peer.published()).tag == number == confirmed + 1
            # Nothing more is on its way: what comes next is the answer to a question that is asked now.
            peer.send(commands.Channel.Flow(True))
            await peer.expect(commands.Channel.FlowOk)
            confirmed += 1
            peer.send(commands.Basic.Ack(number))

    async with asyncio.timeout(PATIENT_S), scripted(script) as address, AmqpEndpoint(SETTINGS) as endpoint:
        await push(endpoint, address, make_records(0, 5, keys=1))

    assert confirmed == 5


# ------------------------------------------------------------------------------- nothing a second time


@dataclass
class LateBroker:
    """Confirms its first message when it is told to, and the second at once; `ids` are those of the messages it got."""

    confirms: asyncio.Event = field(default_factory=asyncio.Event)
    ids: list[str] = field(default_factory=list)

    async def serve(self, peer: Peer) -> None:
        await peer.shake_hands()
        await peer.open_channel()
        self.ids.append((await peer.published()).message_id)
        await self.confirms.wait()
        peer.send(commands.Basic.Ack(1))
        self.ids.append((await peer.published()).message_id)
        peer.send(commands.Basic.Ack(2))


@contextlib.asynccontextmanager
async def given_up(record: Record) -> AsyncIterator[tuple[LateBroker, AmqpEndpoint, str]]:
    """A broker, at this address, that has a message which it did not confirm in time; what comes next has more time."""
    broker, settings = LateBroker(), replace(SETTINGS, delivery_timeout_s=0.3)
    async with asyncio.timeout(PATIENT_S), scripted(broker.serve) as address, AmqpEndpoint(settings) as endpoint:
        async with endpoint.route(SHARD, INCARNATION, target(address)) as route:
            with pytest.raises(EndpointUnavailable, match="not confirmed within"):
                await push_all(route, [record])
        endpoint._settings = SETTINGS
        yield broker, endpoint, address


async def test_pushed_again_while_unconfirmed() -> None:
    """A message that is pushed again while its first copy is unconfirmed waits for that confirm, and is not sent."""
    first, second = make_records(0, 2, keys=1)
    async with given_up(first) as (broker, endpoint, address):
        async with asyncio.TaskGroup() as group:
            pushing = group.create_task(push(endpoint, address, [first]))
            await until(lambda: _waits(endpoint), "it is pushed again")
            broker.confirms.set()
        assert pushing.done()
        await push(endpoint, address, [second])

    assert broker.ids == ["orders/inc:0/0", "orders/inc:0/1"]


def _waits(endpoint: AmqpEndpoint) -> bool:
    """Whether somebody waits for a message that is under way."""
    (outlet,) = endpoint._pool._outlets.values()
    assert outlet.channel is not None
    return any(not each.run.is_over for each in outlet.channel._sent.values())


async def test_confirmed_meanwhile() -> None:
    """A message that is confirmed after its push was given up has arrived when it is pushed again."""
    first, second = make_records(0, 2, keys=1)
    async with given_up(first) as (broker, endpoint, address):
        (outlet,) = endpoint._pool._outlets.values()
        broker.confirms.set()
        await until(lambda: outlet.channel is not None and not outlet.channel.unconfirmed, "it is confirmed")
        await push(endpoint, address, [first, second])

    assert broker.ids == ["orders/inc:0/0", "orders/inc:0/1"]


@pytest.mark.parametrize("arrives", [True, False])
async def test_confirmed_too_late(arrives: bool) -> None:
    """A message that is confirmed after its push was given up is told, once; where its connection ends it is not."""

    async def script(peer: Peer) -> None:
        await peer.shake_hands()
        await peer.open_channel()
        await peer.published()
        await late.wait()
        if arrives:
            peer.send(commands.Basic.Ack(1))
        else:
            peer.hang_up()

    late, [record] = asyncio.Event(), make_records(0, 1)
    async with (
        asyncio.timeout(PATIENT_S),
        scripted(script) as address,
        AmqpEndpoint(replace(SETTINGS, delivery_timeout_s=0.3)) as endpoint,
    ):
        to, positions = target(address), [record.position, b"0/99"]
        async with endpoint.route(SHARD, INCARNATION, to) as route:
            with pytest.raises(EndpointUnavailable, match="not confirmed within") as caught:
                await push_all(route, [record])
        endpoint._settings = SETTINGS
        asking = asyncio.create_task(endpoint.arrived_late(SHARD, INCARNATION, to, positions))
        late.set()
        assert await asking == ({record.position} if arrives else set())
        assert await endpoint.arrived_late(SHARD, INCARNATION, to, positions) == set()

    assert list(caught.value.unclear) == [0]


async def test_flow() -> None:
    """A broker that stops a channel gets nothing on it before it lets it go on."""

    async def script(peer: Peer) -> None:
        await peer.shake_hands()
        await peer.open_channel()
        peer.send(commands.Basic.Ack((await peer.published()).tag))
        peer.send(commands.Channel.Flow(False))
        assert not (await peer.expect(commands.Channel.FlowOk)).active
        stopped.set()
        await pushed.wait()
        peer.send(commands.Channel.Flow(True))
        assert (await peer.expect(commands.Channel.FlowOk)).active
        peer.send(commands.Basic.Ack((await peer.published()).tag))

    stopped, pushed = asyncio.Event(), asyncio.Event()
    first, second = make_records(0, 2, keys=1)
    async with (
        asyncio.timeout(PATIENT_S),
        scripted(script) as address,
        AmqpEndpoint(SETTINGS) as endpoint,
        endpoint.route(SHARD, INCARNATION, target(address)) as route,
        asyncio.TaskGroup() as group,
    ):
        await push_all(route, [first])
        await stopped.wait()
        group.create_task(push_all(route, [second]))
        await until(lambda: len(route._connection._due) == 1, "the message is held back")
        pushed.set()


async def test_blocked_before_anything_was_sent() -> None:
    """Messages that were not written yet when the broker blocked publishers are never written, once given up."""
    tags: list[int] = []

    async def script(peer: Peer) -> None:
        await peer.shake_hands()
        await peer.open_channel()
        await entered.wait()
        peer.send(commands.Connection.Blocked("low on disk\r\n"), 0)
        await given_up.wait()
        peer.send(commands.Connection.Unblocked(), 0)
        tags.append((await peer.published()).tag)
        peer.send(commands.Basic.Ack(1))

    entered, given_up = asyncio.Event(), asyncio.Event()
    settings = replace(SETTINGS, delivery_timeout_s=0.3)
    first, second = make_records(0, 2, keys=1)
    async with (
        asyncio.timeout(PATIENT_S),
        scripted(script) as address,
        AmqpEndpoint(settings) as endpoint,
        endpoint.route(SHARD, INCARNATION, target(address)) as route,
    ):
        entered.set()
        await until(lambda: route._connection.blocked is not None, "the broker blocks")
        with pytest.raises(EndpointUnavailable, match=r"blocks publishers: low on disk$"):
            await push_all(route, [first])
        with pytest.raises(EndpointUnavailable, match="blocks publishers"):
            await push(endpoint, address, [second])
        route._settings = SETTINGS  # what comes next is to arrive
        given_up.set()
        await until(lambda: route._connection.blocked is None, "the broker goes on")
        await push_all(route, [second])

    assert tags == [1]


async def test_two_heartbeats_missed() -> None:
    """A broker that sends no heartbeats any more is given up, and so are its messages."""
    hearer = Hearer()
    settings = replace(SETTINGS, delivery_timeout_s=60, heartbeat_s=0.2)
    async with asyncio.timeout(PATIENT_S), scripted(answers()) as address, AmqpEndpoint(settings, hearer) as endpoint:
        with pytest.raises(EndpointUnavailable, match="two heartbeats were missed"):
            await push(endpoint, address, make_records(0, 1))

    assert len(hearer.disconnected) == 1


async def test_a_channel_that_is_closed_while_it_opens() -> None:
    """A route that is cancelled while its channel opens leaves the connection of the other topics as it is."""

    async def script(peer: Peer) -> None:
        await peer.shake_hands()
        await peer.expect(commands.Channel.Open)
        await peer.expect(commands.Channel.Close)
        peer.send(commands.Channel.OpenOk())
        peer.send(commands.Channel.CloseOk())
        await peer.open_channel()
        peer.send(commands.Basic.Ack((await peer.published()).tag))

    hearer = Hearer()
    settings = replace(SETTINGS, connect_timeout_s=3)
    async with asyncio.timeout(PATIENT_S), scripted(script) as address, AmqpEndpoint(settings, hearer) as endpoint:
        with pytest.raises(EndpointUnavailable, match="no answer in time"):
            await push(endpoint, address, make_records(0, 1))
        (slot,) = endpoint._pool._slots.values()
        await until(lambda: not slot.connections[0]._channels, "the channel is closed")
        await push(endpoint, address, make_records(0, 1))

    assert hearer.connected == 1


# -------------------------------------------------------------------------------------- destinations


@pytest.mark.guarantee("one-topics-trouble-stays-its-own")
async def test_denied_destinations() -> None:
    """A topic that an S3 user made connects to no denied address, and is told no more than the option's name."""
    touched: list[Peer] = []

    async def script(peer: Peer) -> None:
        touched.append(peer)

    rules = Settings().destination_rules
    s3_users = Shard("orders", origin=Origin.RADOSGW)
    async with scripted(script) as address, AmqpEndpoint(SETTINGS, rules=rules) as endpoint:
        for host in (address, address.replace("127.0.0.1", "localhost"), address.replace("127.0.0.1", "[::1]")):
            with pytest.raises(EndpointMisconfigured, match=r"denied by destinations.deny \((127|::1)"):
                async with endpoint.route(s3_users, INCARNATION, target(host)):
                    pass
            assert await endpoint.up(target(host)) == frozenset()

    assert touched == []


async def test_destinations_of_the_operators_topics() -> None:
    """A topic of remora's own may lie where those of S3 users must not, over a connection of its own."""
    rules, own = Settings().destination_rules, Shard("orders", origin=Origin.REMORA)
    s3_users = Shard("orders", origin=Origin.RADOSGW)

    async def script(peer: Peer) -> None:
        await peer.shake_hands()
        await peer.open_channel()

    async with (
        scripted(script) as address,
        AmqpEndpoint(SETTINGS, rules=rules) as endpoint,
        endpoint.route(own, INCARNATION, target(address)),
    ):
        with pytest.raises(EndpointMisconfigured, match=r"denied by destinations.deny"):
            async with endpoint.route(s3_users, INCARNATION, target(address)):
                pass
