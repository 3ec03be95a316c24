"""Connections and channels in use: shared by equal targets, opened again after they ended, closed when idle."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager

from remora.config import AmqpSettings
from remora.endpoints.amqp.channels import Channel
from remora.endpoints.amqp.connection import Connection
from remora.endpoints.amqp.opening import Identity, open_connection
from remora.endpoints.arrived import Arrived
from remora.endpoints.observer import AmqpObserver
from remora.endpoints.shared import Shared, sweep
from remora.endpoints.tasks import Tasks
from remora.model.errors import EndpointUnavailable
from remora.policy.destinations import DestinationRules


class Slot:
    """The connections of one identity: one, or more where the broker allows too few channels on one."""

    def __init__(
        self,
        identity: Identity,
        settings: AmqpSettings,
        rules: DestinationRules,
        observer: AmqpObserver,
        tasks: Tasks,
    ) -> None:
        self.identity = identity
        self._rules = rules
        self.connections: list[Connection] = []
        self.connect_timeout_s = settings.connect_timeout_s
        self._settings = settings
        self._observer = observer
        self._tasks = tasks
        self._newest = Shared(str(self), tasks, self._open, _leave, is_usable=lambda each: each.has_room)

    def __str__(self) -> str:
        return str(self.identity.server)

    @property
    def is_closed(self) -> bool:
        """Whether no connection is opened any more."""
        return self._newest.is_closed

    async def ready(self) -> Connection:
        """A connection with room for a channel; all that need one wait for the same opening. Raises EndpointError."""
        with_room = next((each for each in self.connections if each.has_room), None)
        if with_room is not None:
            self._newest.current = with_room
        return await self._newest.ready()

    async def _open(self) -> Connection:
        opened = await open_connection(self.identity, self._settings, self._rules, self._connection_ended)
        self.connections.append(opened)
        self._observer.amqp_connected(str(self))
        return opened

    def _connection_ended(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
            if connection is self._newest.current:
                self._newest.current = None
            self._tasks.begin(connection.ended(), name=f"end {self}")
            self._observer.amqp_disconnected(str(self), str(connection.error))

    def close_idle(self, before: float) -> bool:
        """Close all connections when none was asked for since then; whether they are closed."""
        if not self._newest.close_idle(before):
            return False
        self.close()
        return True

    def close(self) -> None:
        """Close what is open, in the background."""
        self._newest.close()
        for each in list(self.connections):
            self._tasks.begin(each.close(), name=f"close {self}")


class Outlet:
    """Where one topic's messages go over a slot: a channel at a time, and what outlives it."""

    def __init__(self, slot: Slot, exchange: str, what: str, observer: AmqpObserver, tasks: Tasks) -> None:
        self.slot = slot
        self._exchange = exchange
        self._what = what
        self._observer = observer
        self._arrived = Arrived()
        self._way = Shared(
            what, tasks, self._open, _close_channel,
            is_usable=lambda way: way[1].error is None,
            used_at=lambda way, at: None if way[1].error is None and way[1].unconfirmed else at,
        )  # fmt: skip

    async def ready(self) -> tuple[Connection, Channel]:
        """The topic's channel, opened where there is none. Raises EndpointError."""
        return await self._way.ready()

    async def arrived_late(self, ids: Sequence[bytes], within_s: float) -> list[bytes]:
        """Which of these messages were confirmed after their push was given up; waits so long for confirms to come."""
        return await self._arrived.take_all(ids, within_s, self._may_confirm)

    def _may_confirm(self, message_id: bytes) -> bool:
        return self._way.current is not None and self._way.current[1].may_confirm(message_id)

    async def _open(self) -> tuple[Connection, Channel]:
        try:
            connection = await self.slot.ready()
            async with asyncio.timeout(self.slot.connect_timeout_s):
                channel = await connection.open_channel(self._exchange, self._what, self._arrived, self._unroutable)
        except TimeoutError as exc:
            raise EndpointUnavailable(f"{self._what}: no answer in time", "timeout") from exc
        return connection, channel

    def _unroutable(self) -> None:
        self._observer.amqp_unroutable(str(self.slot), self._exchange)

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


async def _leave(_: Connection, __: float) -> None:
    """The slot closes its connections together."""


async def _close_channel(way: tuple[Connection, Channel], _: float) -> None:
    connection, channel = way
    if channel.error is None:
        connection.close_channel(channel)


class Pool:
    """All slots and outlets of an endpoint."""

    def __init__(self, settings: AmqpSettings, rules: DestinationRules, observer: AmqpObserver, tasks: Tasks) -> None:
        self._settings = settings
        self._rules = rules
        self._observer = observer
        self._tasks = tasks
        self._slots: dict[Identity, Slot] = {}
        self._outlets: dict[tuple[Identity, str, str], Outlet] = {}

    def outlet(self, identity: Identity, exchange: str, routing_key: str) -> Outlet:
        """The outlet of a topic; equal targets have the same one."""
        slot = self._slots.get(identity)
        if slot is None:
            slot = self._slots[identity] = Slot(identity, self._settings, self._rules, self._observer, self._tasks)
        key = identity, exchange, routing_key
        outlet = self._outlets.get(key)
        if outlet is None:
            what = f"exchange {exchange} at {slot}"
            outlet = self._outlets[key] = Outlet(slot, exchange, what, self._observer, self._tasks)
        return outlet

    def known_outlet(self, identity: Identity, exchange: str, routing_key: str) -> Outlet | None:
        """The outlet of a topic that was used not long ago."""
        return self._outlets.get((identity, exchange, routing_key))

    def live(self, identity: Identity) -> list[Connection]:
        """The connections that are open now."""
        slot = self._slots.get(identity)
        return list(slot.connections) if slot else []

    async def sweep(self) -> None:
        """Close what is idle until cancelled."""
        await sweep(self._settings.idle_timeout_s, self.close_idle)

    def close_idle(self, before: float) -> None:
        """Close channels that nothing used since then, and connections without channels."""
        for key, outlet in list(self._outlets.items()):
            if outlet.close_idle(before):
                del self._outlets[key]
        used = {key[0] for key in self._outlets}
        for identity, slot in list(self._slots.items()):
            if identity not in used and slot.close_idle(before):
                del self._slots[identity]

    def close(self) -> None:
        """Begin to close everything; the task group waits for it."""
        for outlet in self._outlets.values():
            outlet.close()
        for slot in self._slots.values():
            slot.close()
        self._slots.clear()
        self._outlets.clear()
