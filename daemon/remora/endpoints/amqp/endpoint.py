"""The AMQP endpoint: routes from shards to an exchange of a broker, over shared connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Self

from remora.codec.topic import DEAD_LETTER_TOPIC, parse_args
from remora.config.delivery import AmqpSettings
from remora.endpoints.amqp.channels import Channel, MessageRun
from remora.endpoints.amqp.connection import AmqpConnection
from remora.endpoints.amqp.frames import Envelope
from remora.endpoints.amqp.messages import AmqpBatch, MessageOrigin, MessagePacker, letter_content
from remora.endpoints.amqp.pool import ChannelOutlet, ExchangePlace, Identity, briefly, make_pool
from remora.endpoints.amqp.target import AmqpServer, AmqpTarget, parse_target
from remora.endpoints.observer import AmqpObserver, LogObserver
from remora.endpoints.shared import TopicMakers
from remora.endpoints.tasks import Tasks
from remora.endpoints.threads import run_blocking
from remora.endpoints.tls import TlsFiles, TrustCache
from remora.model.errors import EndpointError, EndpointUnavailable, EntryRefused
from remora.model.record import DeadLetter, Record
from remora.model.shard import Origin as Owner
from remora.model.shard import Shard
from remora.model.topic import Target
from remora.policy.delivery.destinations import DestinationRules
from remora.ports.endpoint import ALL_LANES, Batch

log = logging.getLogger(__name__)

LANES = 64
"""Lanes of a shard, each with messages of up to WINDOW keys under way. RabbitMQ confirms messages once they are on its
disk, many at once: with fewer under way it waits for us. More lanes make smaller batches, which cost processor time."""


UNROUTABLE = "no queue is bound with this routing key, and amqp-ack-level is routable"


class AmqpEndpoint:
    """Delivers to `amqp://[user:password@]host[:port][/vhost]` and `amqps://...`, AMQP 0-9-1.

    Used as `async with`; leaving it closes every connection within seconds.
    """

    schemes = frozenset({"amqp", "amqps"})

    def __init__(
        self,
        settings: AmqpSettings,
        observer: AmqpObserver | None = None,
        files: TlsFiles | None = None,
        rules: DestinationRules | None = None,
    ) -> None:
        """`files` are the directories below which files may lie that topics name, `rules` where brokers may."""
        self._settings = settings
        self._rules = rules or DestinationRules()
        self._makers: TopicMakers[AmqpServer] = TopicMakers()
        self._observer = observer or LogObserver()
        self._trusts = TrustCache(files or TlsFiles())
        self._tasks = Tasks(self._observer)
        self._pool = make_pool(settings, self._rules, self._observer, self._tasks)
        self._sweeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._sweeper = self._tasks.begin(
            self._pool.sweep(self._settings.idle_timeout_s), name="close idle AMQP channels"
        )
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._sweeper is not None
        self._sweeper.cancel()
        self._pool.close()
        await self._tasks.__aexit__(None, None, None)

    def check(self, target: Target) -> list[str]:
        return list(parse_target(target).remarks)

    def publishes_letters(self, target: Target) -> bool:
        return bool(parse_args(target.args).get(DEAD_LETTER_TOPIC))  # asked of targets that cannot work, too

    async def up(self, target: Target) -> frozenset[str]:
        try:
            server = parse_target(target).server
            identity = await self._identity(server, by_operator=self._makers.is_operators(server))
            slot = self._pool.slot(identity)
            if slot is not None and slot.connections:
                return frozenset(str(each) for each in slot.connections if each.blocked is None)
            async with briefly(identity, self._settings, self._rules) as connection:
                return frozenset({str(connection)})
        except EndpointError:
            return frozenset()

    def destination(self, target: Target) -> Hashable:
        try:
            server = parse_target(target).server
        except EndpointError:
            return target.uri, target.args
        return server.host, server.port  # whatever the exchange: a broker that is away is away for all of them

    @asynccontextmanager
    async def route(
        self, shard: Shard, incarnation: str, target: Target, *, quick_retries: bool = True
    ) -> AsyncIterator[AmqpRoute]:
        meant = parse_target(target)
        by_operator = shard.origin is Owner.REMORA
        self._makers.note(meant.server, by_operator=by_operator)
        identity = await self._identity(meant.server, by_operator=by_operator)
        outlet = self._pool.outlet(identity, ExchangePlace(meant.exchange, meant.routing_key))
        with outlet.in_use():
            connection, _ = await outlet.ready()
            # A broker that blocks publishers stops reading from all that write: it takes what was written afterwards.
            if connection.blocked is not None:
                raise EndpointUnavailable(f"{connection}: the broker blocks publishers: {connection.blocked}")
            yield AmqpRoute(outlet, connection, shard, incarnation, meant, self._settings)

    async def arrived_late(
        self, shard: Shard, incarnation: str, target: Target, positions: Sequence[bytes]
    ) -> frozenset[bytes]:
        try:
            meant = parse_target(target)
            identity = await self._identity(meant.server, by_operator=shard.origin is Owner.REMORA)
        except EndpointError:
            return frozenset()
        outlet = self._pool.known_outlet(identity, ExchangePlace(meant.exchange, meant.routing_key))
        origin = MessageOrigin(shard.queue.encode(), incarnation.encode() + b":")
        ids = {origin.message_id(each): each for each in positions}
        arrived = await outlet.arrived_late(list(ids), self._settings.delivery_timeout_s) if outlet is not None else []
        return frozenset(ids[each] for each in arrived)

    async def _identity(self, server: AmqpServer, *, by_operator: bool) -> Identity:
        """Whom to trust as this host's files say now."""
        tls, trusts = server.tls, self._trusts
        if tls is None:
            return Identity(server, None, by_operator)
        trust = await run_blocking(("trust", tls), lambda: trusts.read(tls), tls.what, self._settings.connect_timeout_s)
        return Identity(server, trust, by_operator)


class AmqpRoute:
    """From one shard to an exchange with one routing key, and with that for its dead letters, if any."""

    stale = False
    acks_show_load = False
    width = ALL_LANES

    def __init__(
        self,
        outlet: ChannelOutlet,
        connection: AmqpConnection,
        shard: Shard,
        incarnation: str,
        meant: AmqpTarget,
        settings: AmqpSettings,
    ) -> None:
        exchange = meant.exchange.encode()
        self._outlet = outlet
        self._connection = connection
        self._meant = meant
        self._settings = settings
        self._what = f"exchange {meant.exchange} at {connection}"
        self._origin = MessageOrigin(shard.queue.encode(), incarnation.encode() + b":", meant.cloudevents)
        self._packer = MessagePacker(self._origin, LANES)
        self._events = Envelope(exchange, meant.routing_key.encode())
        self._letters = Envelope(exchange, meant.letters.encode())

    def pack(self, records: Sequence[Record]) -> tuple[list[Batch], list[tuple[Record, str]]]:
        batches, refused = self._packer.pack(records, self._connection.frame_bytes, self._connection.message_bytes)
        return list(batches), refused

    def succeeds(self, after: bytes) -> None:
        self._packer.note.succeeds(after)

    async def look_again(self) -> None:
        """The broker tells its limit with each connection only, and one that raised it closes those that it had."""

    async def push(self, batch: Batch) -> None:
        assert isinstance(batch, AmqpBatch)
        origin, note, records = self._origin, self._packer.note, batch.records
        ids = [origin.message_id(each.position) for each in records]
        run = MessageRun(
            ids,
            lambda at: origin.content(records[at], note.told_by(records[at])),
            self._events,
            [each.key for each in records],
            unroutable=UNROUTABLE if self._meant.routable else "",
        )
        await self._send(run)

    async def publish_letters(self, letters: Sequence[DeadLetter]) -> None:
        if not self._meant.letters or not letters:
            return
        try:
            await self._send_letters(letters)
        except EntryRefused:  # the broker has announced its limit, by which they are made now
            try:
                await self._send_letters(letters)
            except EntryRefused as exc:
                raise EndpointUnavailable(f"a dead letter: {exc}") from exc

    async def _send_letters(self, letters: Sequence[DeadLetter]) -> None:
        most_bytes = self._connection.message_bytes
        contents = [letter_content(each, most_bytes) for each in letters]
        ids = [each.message_id for each in contents]
        unroutable = f"no queue is bound with {self._meant.letters}, the routing key of dead letters"
        await self._send(MessageRun(ids, contents.__getitem__, self._letters, unroutable=unroutable))

    async def _send(self, run: MessageRun) -> None:
        """Return when all messages of a run are confirmed."""
        timeout_s = self._settings.delivery_timeout_s
        connection, channel = await self._outlet.ready()
        self._connection = connection
        await channel.carry(run, timeout_s, lambda: _too_late(connection, channel, timeout_s))


def _too_late(connection: AmqpConnection, channel: Channel, timeout_s: float) -> EndpointUnavailable:
    if connection.blocked is not None:
        return EndpointUnavailable(f"{connection}: the broker blocks publishers: {connection.blocked}")
    return EndpointUnavailable(f"{channel.what}: not confirmed within {timeout_s:g} s", "timeout")
