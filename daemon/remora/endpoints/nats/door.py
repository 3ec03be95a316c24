"""Opens a connection to a NATS server: addresses, TLS, log-in."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from remora.config.delivery import NatsSettings
from remora.endpoints.dial import dial
from remora.endpoints.nats.connection import NatsConnection
from remora.endpoints.nats.nkeys import UserKey
from remora.endpoints.nats.target import OVER_TLS, NatsServer
from remora.endpoints.tls import Trust
from remora.endpoints.way import explain_refusal, open_first
from remora.model.errors import EndpointUnavailable
from remora.policy.destinations import DestinationRules
from remora.policy.quarantine import CONNECT


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
