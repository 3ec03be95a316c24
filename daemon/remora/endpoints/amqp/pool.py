"""Connections and channels in use: shared by equal targets, opened again after they ended, closed when idle."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple, TypeAlias

from remora.config.delivery import AmqpSettings
from remora.endpoints.amqp.channels import Channel
from remora.endpoints.amqp.connection import AmqpConnection
from remora.endpoints.amqp.handshake import Identity, open_connection
from remora.endpoints.arrived import Arrived
from remora.endpoints.observer import AmqpObserver
from remora.endpoints.outlets import ConnectionSlot, OutletPool
from remora.endpoints.shared import Shared
from remora.endpoints.tasks import Tasks
from remora.model.errors import EndpointUnavailable
from remora.policy.destinations import DestinationRules

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
