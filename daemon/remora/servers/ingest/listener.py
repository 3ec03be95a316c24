"""The sockets that events come in by, which the supervisor opens and all workers accept from; with TLS where wanted."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from remora.config import IngestSettings
from remora.model.errors import ConfigError
from remora.process.sockets import BACKLOG, shown_address
from remora.servers.ingest.connections import HANDSHAKE_S


@asynccontextmanager
async def accepting(
    sockets: Sequence[socket.socket], tls: ssl.SSLContext | None, accept: Callable[[], asyncio.Protocol]
) -> AsyncIterator[tuple[list[asyncio.Server], str]]:
    """Accept connections from these sockets while the block runs; gives the listeners, and the address for clients."""
    loop = asyncio.get_running_loop()
    handshake_s = HANDSHAKE_S if tls else None
    with contextlib.ExitStack() as stack:
        listeners = []
        for each in sockets:
            create = loop.create_unix_server if each.family == socket.AF_UNIX else loop.create_server
            listener = await create(accept, sock=each, ssl=tls, backlog=BACKLOG, ssl_handshake_timeout=handshake_s)
            stack.callback(listener.close)
            listeners.append(listener)
        address = shown_address(sockets)
        yield listeners, address if address.startswith("unix:") else f"{'https' if tls else 'http'}://{address}"


def tls_context(settings: IngestSettings) -> ssl.SSLContext | None:
    """How connections are encrypted; None where they are not. Raises ConfigError for files that do not fit."""
    if not settings.tls_certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    load_certificate(context, settings)
    return context


def load_certificate(context: ssl.SSLContext, settings: IngestSettings) -> None:
    """Read certificate and key, for connections from now on. Raises ConfigError, and then the old ones stay."""
    try:
        # First into a context that is thrown away: a certificate without its key must not get into the one in use.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_certificate, settings.tls_key)
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except ssl.SSLError as exc:
        why = exc.reason or "not a certificate and its key in PEM"
        raise ConfigError("ingest.tls_certificate", f"{settings.tls_certificate} and ingest.tls_key: {why}") from exc
    except OSError as exc:
        raise ConfigError("ingest.tls_certificate", f"cannot read certificate or key: {exc.strerror}") from exc
