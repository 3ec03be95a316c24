"""Opens a connection to an AMQP broker: addresses, TLS, log-in; and says in words why that fails."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from remora.config.delivery import AmqpSettings
from remora.endpoints.amqp.connection import AmqpConnection
from remora.endpoints.amqp.target import AmqpServer
from remora.endpoints.dial import dial
from remora.endpoints.tls import Trust
from remora.endpoints.way import explain_refusal, open_first
from remora.model.errors import EndpointUnavailable
from remora.policy.destinations import DestinationRules
from remora.policy.quarantine import CONNECT


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
