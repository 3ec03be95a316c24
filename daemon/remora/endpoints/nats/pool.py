"""Connections and topics: how one is opened (addresses, TLS, log-in), and those in use, which equal targets share.

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

from remora.config.delivery import NatsSettings
from remora.endpoints.arrived import Arrived
from remora.endpoints.dial import dial, explain_refusal, open_first
from remora.endpoints.nats.connection import NatsConnection
from remora.endpoints.nats.lines import last_payload, last_subject, stream_subject
from remora.endpoints.nats.nkeys import UserKey
from remora.endpoints.nats.publisher import StreamPublisher
from remora.endpoints.nats.streams import Stream, read_last, read_stream
from remora.endpoints.nats.target import OVER_TLS, NatsServer, SubjectTemplate, covers
from remora.endpoints.observer import NatsObserver
from remora.endpoints.shared import ConnectionSlot, OutletPool, Shared
from remora.endpoints.tasks import Tasks
from remora.endpoints.tls import Trust
from remora.model.errors import EndpointMisconfigured, EndpointUnavailable
from remora.policy.delivery.destinations import DestinationRules
from remora.policy.ownership.quarantine import CONNECT


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """What makes a connection: equal ones may share it, others never do.

    `by_operator` says that no S3 user made the topic, which may lie where theirs must not.
    """

    server: NatsServer
    trust: Trust | None = None
    key: UserKey | None = None
    by_operator: bool = False


async def open_connection(
    identity: ServerIdentity, settings: NatsSettings, rules: DestinationRules, on_end: Callable[[NatsConnection], None]
) -> NatsConnection:
    """A connection that is logged in. Raises EndpointError, within the time to connect."""
    return await open_first(
        identity.server,
        identity.trust,
        rules,
        settings.connect_timeout_s,
        lambda address, context: _open(address, identity, context, settings, on_end),
        by_operator=identity.by_operator,
    )


async def _open(
    address: str,
    identity: ServerIdentity,
    context: ssl.SSLContext | None,
    settings: NatsSettings,
    on_end: Callable[[NatsConnection], None],
) -> NatsConnection:
    server = identity.server
    shown = bool(server.tls and server.tls.certificate_location)
    connection = NatsConnection(str(server), settings.heartbeat_s, on_end, shows_certificate=shown)
    try:
        await dial(lambda: connection, address, server.port)
        await connection.shake_hands(server, identity.key, context)
    except (OSError, ssl.SSLError) as exc:
        connection.abort(EndpointUnavailable(f"{server}: the log-in did not end", CONNECT))
        raise explain_refusal(exc, str(server), server.tls, OVER_TLS) from exc
    except BaseException:
        connection.abort(EndpointUnavailable(f"{server}: the log-in did not end", CONNECT))
        raise
    return connection


@asynccontextmanager
async def briefly(
    identity: ServerIdentity, settings: NatsSettings, rules: DestinationRules
) -> AsyncIterator[NatsConnection]:
    """A connection that is only there to see whether the server lets us in."""
    connection = await open_connection(identity, settings, rules, lambda _: None)
    try:
        yield connection
    finally:
        await connection.close()


KNOWN_S = 60.0
"""A route asks the server for the stream's window and limits again after this time: an operator may change them."""


ServerSlot: TypeAlias = ConnectionSlot[NatsConnection]


class StreamPlace(NamedTuple):
    """Where a topic's messages go."""

    stream: str
    template: SubjectTemplate


@dataclass(slots=True)
class StreamWay:
    """What a topic's messages go over, and what its server says of the stream, since when.

    `looks` says that the last message of a subject can be read, and that no two objects share one.
    """

    connection: NatsConnection
    publisher: StreamPublisher
    stream: Stream
    looks: bool
    asked_at: float

    @property
    def most_bytes(self) -> int:
        """The most that a message may have, headers included."""
        most = self.connection.most_bytes
        return most if self.stream.most_bytes is None else min(most, self.stream.most_bytes)


class StreamOutlet:
    """Where one topic's messages go over a slot: a publisher at a time, and what outlives it."""

    def __init__(
        self,
        slot: ServerSlot,
        place: StreamPlace,
        observer: NatsObserver,
        tasks: Tasks,
        settings: NatsSettings,
    ) -> None:
        self.what = f"stream {place.stream} at {slot}"
        self._slot = slot
        self._name, self._template = place
        self._observer = observer
        self._settings = settings
        self._arrived = Arrived()
        self._way = Shared(
            self.what, tasks, self._open, _close_publisher,
            is_usable=lambda way: way.publisher.error is None and way.connection.is_usable,
            used_at=lambda way, at: None if way.publisher.error is None and way.publisher.unanswered else at,
        )  # fmt: skip

    async def ready(self) -> StreamWay:
        """The topic's way, opened where there is none. Raises EndpointError."""
        return await self._way.ready()

    async def fresh(self, known_s: float = KNOWN_S) -> StreamWay:
        """The same, with what the server says of the stream now, or said not longer ago than this."""
        way = await self.ready()
        now = asyncio.get_running_loop().time()
        if now - way.asked_at > known_s:
            way.stream, way.asked_at = await self._asked(way.connection), now
        return way

    async def arrived_late(self, ids: Sequence[bytes], within_s: float) -> list[bytes]:
        """Which of these messages were acknowledged after their push was given up; waits so long for that."""
        return await self._arrived.take_all(ids, within_s, self._may_confirm)

    def _may_confirm(self, message_id: bytes) -> bool:
        return self._way.current is not None and self._way.current.publisher.may_confirm(message_id)

    async def _open(self) -> StreamWay:
        connection = await self._slot.ready()
        stream = await self._asked(connection)
        looks = self._template.is_one_a_key and await self._can_look(connection)
        publisher = StreamPublisher(
            self._name, self.what, connection, self._arrived, partial(self._observer.nats_known, str(self._slot)),
            patience_s=self._settings.delivery_timeout_s,
        )  # fmt: skip
        return StreamWay(connection, publisher, stream, looks, asyncio.get_running_loop().time())

    async def _asked(self, connection: NatsConnection) -> Stream:
        stream = read_stream(await self._answer(connection, stream_subject(self._name.encode())), self.what)
        if not covers(stream.subjects, self._template.pattern):
            pattern = self._template.pattern.decode()
            raise EndpointMisconfigured(f"{self.what}: the stream does not take the subjects {pattern}")
        return stream

    async def _can_look(self, connection: NatsConnection) -> bool:
        """Whether the user may read messages of the stream: asks for one that is not there."""
        payload = last_payload(self._template.subject(b"/"))
        try:
            read_last(await self._answer(connection, last_subject(self._name.encode()), payload), self.what)
        except EndpointMisconfigured:
            return False
        return True

    async def _answer(self, connection: NatsConnection, subject: bytes, payload: bytes = b"") -> bytes:
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                return await connection.ask(subject, self.what, payload)
        except TimeoutError as exc:
            raise EndpointUnavailable(f"{self.what}: no answer in time", "timeout") from exc

    def in_use(self) -> AbstractContextManager[None]:
        """A route keeps it open."""
        return self._way.in_use()

    def close_idle(self, before: float) -> bool:
        """Close the way when nothing used it since then; whether there is none.

        One with messages that are not answered stays: a copy less, should they come again.
        """
        return self._way.close_idle(before)

    def close(self) -> None:
        """Open no way any more; the connection's end is that of what goes over it."""
        self._way.current = None
        self._way.close()


async def _close_publisher(way: StreamWay, _: float) -> None:
    way.publisher.end(EndpointUnavailable(f"{way.publisher.what}: it was closed", "aborted"))


ServerPool: TypeAlias = OutletPool[ServerIdentity, ServerSlot, StreamPlace, StreamOutlet]


def make_pool(settings: NatsSettings, rules: DestinationRules, observer: NatsObserver, tasks: Tasks) -> ServerPool:
    """All connections and ways to streams of an endpoint."""

    def slot(identity: ServerIdentity) -> ServerSlot:
        return ServerSlot(
            str(identity.server),
            tasks,
            lambda on_end: open_connection(identity, settings, rules, on_end),
            lambda each: each.is_usable,
            connected=observer.nats_connected,
            disconnected=observer.nats_disconnected,
        )

    return ServerPool(slot, lambda over, place: StreamOutlet(over, place, observer, tasks, settings))
