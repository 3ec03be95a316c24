"""Opens a connection to an AMQP broker: addresses, TLS, log-in; and says in words why that fails."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from remora.config import AmqpSettings
from remora.endpoints.amqp.connection import Connection
from remora.endpoints.amqp.target import Server
from remora.endpoints.blocking import run_blocking
from remora.endpoints.dial import dial
from remora.endpoints.tls import Trust, build_context
from remora.endpoints.way import explain_refusal, open_first
from remora.model.errors import EndpointUnavailable
from remora.policy.destinations import DestinationRules
from remora.policy.quarantine import CONNECT


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes a connection: equal ones may share it, others never do.

    `by_operator` tells that no S3 user made the topic, which may lie where theirs must not.
    """

    server: Server
    trust: Trust | None = None
    by_operator: bool = False


async def open_connection(
    identity: Identity, settings: AmqpSettings, rules: DestinationRules, on_end: Callable[[Connection], None]
) -> Connection:
    """A connection that is logged in. Every address of the host is tried, the first that lets us in is used.

    Raises EndpointMisconfigured or EndpointUnavailable, within the time to connect.
    """
    server, trust = identity.server, identity.trust
    try:
        async with asyncio.timeout(settings.connect_timeout_s):
            context = None
            if trust is not None:
                context = await run_blocking(("authorities", trust), lambda: build_context(trust), str(server))
            return await open_first(
                server,
                rules,
                settings.connect_timeout_s,
                lambda address: _open(address, server, context, settings, on_end),
                by_operator=identity.by_operator,
            )
    except TimeoutError as exc:
        raise EndpointUnavailable(f"{server}: no answer in time", CONNECT) from exc


async def _open(
    address: str,
    server: Server,
    context: ssl.SSLContext | None,
    settings: AmqpSettings,
    on_end: Callable[[Connection], None],
) -> Connection:
    shown = bool(server.tls and server.tls.certificate_location)
    connection = Connection(str(server), settings.heartbeat_s, on_end, shows_certificate=shown)
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
async def briefly(identity: Identity, settings: AmqpSettings, rules: DestinationRules) -> AsyncIterator[Connection]:
    """A connection that is only there to see whether the broker lets us in."""
    connection = await open_connection(identity, settings, rules, lambda _: None)
    try:
        yield connection
    finally:
        await connection.close()
