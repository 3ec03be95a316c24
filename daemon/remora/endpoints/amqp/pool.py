"""Connections and channels: how one is opened (addresses, TLS, log-in), and those in use, which equal targets share.

They are opened again after they ended, and closed when idle.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

from remora.config.delivery import AmqpSettings
from remora.endpoints.amqp.channels import Channel
from remora.endpoints.amqp.connection import AmqpConnection
from remora.endpoints.amqp.target import AmqpServer
from remora.endpoints.arrived import Arrived
from remora.endpoints.dial import dial, explain_refusal, open_first
from remora.endpoints.observer import AmqpObserver
from remora.endpoints.shared import ConnectionSlot, OutletPool, Shared
from remora.endpoints.tasks import Tasks
from remora.endpoints.tls import Trust
from remora.model.errors import EndpointUnavailable
from remora.policy.delivery.destinations import DestinationRules
from remora.policy.ownership.quarantine import CONNECT


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes a connection: equal ones may share it, others never do.

    `by_operator` tells that no S3 user made the topic, which may lie where theirs must not.
    """

    server: AmqpServer
    trust: Trust | None = None
    by_operator: bool = False


async def open_connection(
    identity: Identity, settings: AmqpSettings, rules: DestinationRules, on_end: Callable[[AmqpConnection], None]
) -> AmqpConnection:
    """A connection that is logged in. Every address of the host is tried, the first that lets us in is used.

    Raises EndpointMisconfigured or EndpointUnavailable, within the time to connect.
    """
    server = identity.server
    return await open_first(
        server,
        identity.trust,
        rules,
        settings.connect_timeout_s,
        lambda address, context: _open(address, server, context, settings, on_end),
        by_operator=identity.by_operator,
    )


async def _open(
    address: str,
    server: AmqpServer,
    context: ssl.SSLContext | None,
    settings: AmqpSettings,
    on_end: Callable[[AmqpConnection], None],
) -> AmqpConnection:
    shown = bool(server.tls and server.tls.certificate_location)
    connection = AmqpConnection(str(server), settings.heartbeat_s, on_end, shows_certificate=shown)
    name = server.host if context else None
    try:
        await dial(lambda: connection, address, server.port, ssl=context, server_hostname=name)
    except (OSError, ssl.SSLError) as exc:
        raise explain_refusal(exc, str(server), server.tls, "amqps") from exc
    try:
        await connection.shake_hands(server)
    except BaseException:
        connection.abort(EndpointUnavailable(f"{server}: the log-in did not end", CONNECT))
        raise
    return connection


@asynccontextmanager
async def briefly(identity: Identity, settings: AmqpSettings, rules: DestinationRules) -> AsyncIterator[AmqpConnection]:
    """A connection that is only there to see whether the broker lets us in."""
    connection = await open_connection(identity, settings, rules, lambda _: None)
    try:
        yield connection
    finally:
        await connection.close()


Slot: TypeAlias = ConnectionSlot[AmqpConnection]


class ExchangePlace(NamedTuple):
    """Where a topic's messages go: those of each routing key have a channel of their own."""

    exchange: str
    routing_key: str


class ChannelOutlet:
    """Where one topic's messages go over a slot: a channel at a time, and what outlives it."""

    def __init__(self, slot: Slot, exchange: str, observer: AmqpObserver, tasks: Tasks, opens_within_s: float) -> None:
        self._slot = slot
        self._exchange = exchange
        self._what = what = f"exchange {exchange} at {slot}"
        self._observer = observer
        self._opens_within_s = opens_within_s
        self._arrived = Arrived()
        self._way = Shared(
            what, tasks, self._open, _close_channel,
            is_usable=lambda way: way[1].error is None,
            used_at=lambda way, at: None if way[1].error is None and way[1].unconfirmed else at,
        )  # fmt: skip

    async def ready(self) -> tuple[AmqpConnection, Channel]:
        """The topic's channel, opened where there is none. Raises EndpointError."""
        return await self._way.ready()

    async def arrived_late(self, ids: Sequence[bytes], within_s: float) -> list[bytes]:
        """Which of these messages were confirmed after their push was given up; waits so long for confirms to come."""
        return await self._arrived.take_all(
            ids, within_s, lambda each: self.channel is not None and self.channel.may_confirm(each)
        )

    @property
    def channel(self) -> Channel | None:
        """The topic's channel, where one was opened; it may have ended."""
        return self._way.current[1] if self._way.current is not None else None

    async def _open(self) -> tuple[AmqpConnection, Channel]:
        try:
            connection = await self._slot.ready()
            unroutable = partial(self._observer.amqp_unroutable, str(self._slot), self._exchange)
            async with asyncio.timeout(self._opens_within_s):
                channel = await connection.open_channel(self._exchange, self._what, self._arrived, unroutable)
        except TimeoutError as exc:
            raise EndpointUnavailable(f"{self._what}: no answer in time", "timeout") from exc
        return connection, channel

    def in_use(self) -> AbstractContextManager[None]:
        """A route keeps the channel open."""
        return self._way.in_use()

    def close_idle(self, before: float) -> bool:
        """Close the channel when nothing used it since then; whether there is none.

        One with messages that are not confirmed stays: a copy less, should they come again.
        """
        return self._way.close_idle(before)

    def close(self) -> None:
        """Open no channel any more; the connection's end is that of its channels."""
        self._way.current = None
        self._way.close()


async def _close_channel(way: tuple[AmqpConnection, Channel], _: float) -> None:
    connection, channel = way
    if channel.error is None:
        connection.close_channel(channel)


Pool: TypeAlias = OutletPool[Identity, Slot, ExchangePlace, ChannelOutlet]


def make_pool(settings: AmqpSettings, rules: DestinationRules, observer: AmqpObserver, tasks: Tasks) -> Pool:
    """All connections and channels of an endpoint."""

    def slot(identity: Identity) -> Slot:
        return Slot(
            str(identity.server),
            tasks,
            lambda on_end: open_connection(identity, settings, rules, on_end),
            lambda each: each.has_room,
            connected=observer.amqp_connected,
            disconnected=observer.amqp_disconnected,
        )

    return Pool(
        slot, lambda over, place: ChannelOutlet(over, place.exchange, observer, tasks, settings.connect_timeout_s)
    )
