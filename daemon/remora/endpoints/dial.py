"""Looks up where an endpoint lies and whether topics may connect to it; opens connections that leave nothing behind.

A cancelled opening may have a connection already: it is made in the very turn of the event loop in which the
cancellation comes. Over TLS the event loop closes that one politely, and waits up to half a minute for the other side
to say goodbye, too. Nobody owns it then, so nobody else could cut it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from typing import Any, TypeVar, cast

from remora.endpoints.threads import run_blocking
from remora.model.errors import EndpointDenied, EndpointUnavailable
from remora.policy.destinations import DestinationRules
from remora.policy.quarantine import CONNECT

P = TypeVar("P", bound=asyncio.BaseProtocol)


class _Opening(asyncio.Protocol):
    """Remembers the transport of a connection, and leaves it to the protocol that it is for."""

    def __init__(self, meant: asyncio.BaseProtocol) -> None:
        self.meant = meant
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are of no such class
        self.transport.set_protocol(self.meant)
        self.meant.connection_made(transport)


async def dial(
    make: Callable[[], P], *address: Any, loop: asyncio.AbstractEventLoop | None = None, **options: Any
) -> tuple[asyncio.Transport, P]:
    """As `create_connection` of the event loop; where it fails or is cancelled, the connection is cut at once."""
    protocol = make()
    opening = _Opening(protocol)
    try:
        loop = loop or asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: opening, *address, **options)
    except BaseException:
        if opening.transport is not None:
            opening.transport.abort()
        raise
    return transport, protocol


class DiallingLoop:
    """The event loop for a library that opens connections by itself: they are opened as `dial` does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def create_connection(
        self, make: Callable[[], P], *address: Any, **options: Any
    ) -> tuple[asyncio.Transport, P]:
        """As that of the event loop."""
        return await dial(make, *address, loop=self._loop, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


async def look_up(host: str, port: int, rules: DestinationRules, timeout_s: float, *, by_operator: bool) -> list[str]:
    """Returns the addresses of a host after the rules have allowed each; connect to one of these, not to the name.

    `by_operator` tells that no S3 user made the topic. Raises EndpointDenied where an address is denied, and
    EndpointUnavailable where there is none.
    """
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        found = await run_blocking(
            ("addresses", host, port),
            lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM),
            f"{name}: its address",
            timeout_s,
        )
    except (OSError, UnicodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "no name"
        raise EndpointUnavailable(f"{name}: its name cannot be looked up ({why})", CONNECT) from exc
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    for each in addresses:
        if why := refusal(host, each, port, rules, by_operator=by_operator):
            raise EndpointDenied(why)
    return addresses


def refusal(host: str, address: str, port: int, rules: DestinationRules, *, by_operator: bool) -> str:
    """Why the rules do not allow this address of a host; empty when they do. See DestinationRules.refusal."""
    is_own = rules.needs_own(port) and _is_own(address, port)
    plain = ipaddress.ip_address(address.partition("%")[0])
    return rules.refusal(host, plain, port, is_own=is_own, by_operator=by_operator)


def _is_own(address: str, port: int) -> bool:
    """Whether an address is one of this host's: then a datagram's socket to it has it as its own. Nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, port))
            return bool(probe.getsockname()[0] == address.partition("%")[0])
    except OSError:
        return False
