"""Connections and channels in use: shared by equal targets, opened again after they ended, closed when idle."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from remora.config import AmqpSettings
from remora.endpoints.amqp.channels import Channel
from remora.endpoints.amqp.connection import Connection
from remora.endpoints.amqp.opening import Identity, open_connection
from remora.endpoints.arrived import Arrived
from remora.endpoints.tasks import CrashObserver, Tasks
from remora.model.errors import EndpointError, EndpointUnavailable
from remora.policy.destinations import DestinationRules

T = TypeVar("T")


class AmqpObserver(CrashObserver, Protocol):
    """Hears what becomes of connections and messages; `broker` is `host:port` without secrets."""

    def amqp_connected(self, broker: str) -> None: ...

    def amqp_disconnected(self, broker: str, reason: str) -> None: ...

    def amqp_unroutable(self, broker: str, exchange: str) -> None:
        """A message was confirmed that reached no queue."""
        ...


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
        self.last_used = asyncio.get_running_loop().time()
        self._settings = settings
        self._observer = observer
        self._tasks = tasks
        self._opening: asyncio.Task[Connection | Exception] | None = None
        self.is_closed = False

    def __str__(self) -> str:
        return str(self.identity.server)

    async def ready(self) -> Connection:
        """A connection with room for a channel; all that need one wait for the same opening. Raises EndpointError."""
        self.last_used = asyncio.get_running_loop().time()
        for each in self.connections:
            if each.has_room:
                return each
        if self.is_closed:
            raise EndpointUnavailable(f"{self}: the endpoint is closed", "aborted")
        if self._opening is None:
            self._opening = self._tasks.ask(self._open(), name=f"open {self}")
        return await outcome_of(self._opening, str(self))

    async def _open(self) -> Connection:
        try:
            opened = await open_connection(self.identity, self._settings, self._rules, self._connection_ended)
            self.connections.append(opened)
        finally:
            self._opening = None
        self._observer.amqp_connected(str(self))
        return opened

    def _connection_ended(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
            self._tasks.begin(connection.ended(), name=f"end {self}")
            self._observer.amqp_disconnected(str(self), str(connection.error))

    def close(self) -> None:
        """Close what is open, in the background."""
        self.is_closed = True
        if self._opening is not None:
            self._opening.cancel()
        for each in list(self.connections):
            self._tasks.begin(each.close(), name=f"close {self}")


class Outlet:
    """Where one topic's messages go over a slot: a channel at a time, and what outlives it."""

    def __init__(self, slot: Slot, exchange: str, what: str, observer: AmqpObserver, tasks: Tasks) -> None:
        self.slot = slot
        self.users = 0
        self.last_used = 0.0
        self._exchange = exchange
        self._what = what
        self._observer = observer
        self._tasks = tasks
        self._arrived = Arrived()
        self._channel: Channel | None = None
        self._connection: Connection | None = None
        self._opening: asyncio.Task[tuple[Connection, Channel] | Exception] | None = None

    async def ready(self) -> tuple[Connection, Channel]:
        """The topic's channel, opened where there is none. Raises EndpointError."""
        if self._channel is not None and self._connection is not None and self._channel.error is None:
            return self._connection, self._channel
        if self.slot.is_closed:
            raise EndpointUnavailable(f"{self._what}: the endpoint is closed", "aborted")
        if self._opening is None:
            self._opening = self._tasks.ask(self._open(), name=f"open {self._what}")
        return await outcome_of(self._opening, self._what)

    async def arrived_late(self, ids: Sequence[bytes], within_s: float) -> list[bytes]:
        """Which of these messages were confirmed after their push was given up; waits so long for confirms to come."""
        return await self._arrived.take_all(ids, within_s, self._may_confirm)

    def _may_confirm(self, message_id: bytes) -> bool:
        return self._channel is not None and self._channel.may_confirm(message_id)

    async def _open(self) -> tuple[Connection, Channel]:
        try:
            connection = await self.slot.ready()
            async with asyncio.timeout(self.slot.connect_timeout_s):
                channel = await connection.open_channel(self._exchange, self._what, self._arrived, self._unroutable)
            self._connection, self._channel = connection, channel
        except TimeoutError as exc:
            raise EndpointUnavailable(f"{self._what}: no answer in time", "timeout") from exc
        finally:
            self._opening = None
        return connection, channel

    def _unroutable(self) -> None:
        self._observer.amqp_unroutable(str(self.slot), self._exchange)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """A route keeps the channel open."""
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1
            self.last_used = asyncio.get_running_loop().time()

    def close_idle(self, before: float) -> bool:
        """Close the channel when nothing used it since then; whether there is none."""
        if self.users or self._opening is not None or self.last_used > before:
            return False
        channel, connection = self._channel, self._connection
        if channel is not None and connection is not None and channel.error is None:
            if channel.unconfirmed:
                return False  # a copy less, should its messages come again
            connection.close_channel(channel)
        return True


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
        idle_s = self._settings.idle_timeout_s
        while True:
            await asyncio.sleep(min(idle_s / 4, 10.0))
            self.close_idle(asyncio.get_running_loop().time() - idle_s)

    def close_idle(self, before: float) -> None:
        """Close channels that nothing used since then, and connections without channels."""
        for key, outlet in list(self._outlets.items()):
            if outlet.close_idle(before):
                del self._outlets[key]
        used = {key[0] for key in self._outlets}
        for identity, slot in list(self._slots.items()):
            if identity not in used and slot.last_used <= before:
                del self._slots[identity]
                slot.close()

    def close(self) -> None:
        """Begin to close everything; the task group waits for it."""
        for slot in self._slots.values():
            slot.close()
        self._slots.clear()
        self._outlets.clear()


async def outcome_of(opening: asyncio.Task[T | Exception], what: str) -> T:
    """What an opening gave to all who wait for it; none of them cancels it, nor is cancelled with it."""
    await asyncio.wait([opening])
    if opening.cancelled():
        raise EndpointUnavailable(f"{what}: the endpoint is closed", "aborted")
    outcome = opening.result()
    del opening
    try:
        if isinstance(outcome, EndpointError):
            raise outcome.again() from outcome.__cause__
        if isinstance(outcome, Exception):
            raise RuntimeError(f"{what} could not be opened") from outcome
        return outcome
    finally:
        del outcome  # no frame may keep the exception that it raises: see `without_frames`
