"""Looks up where an endpoint lies and whether topics may connect to it; opens connections that leave nothing behind, by
the first of a host's addresses that lets us in, and says in words why none does.

A cancelled opening may have a connection already: it is made in the very turn of the event loop in which the
cancellation comes. Over TLS the event loop closes that one politely, and waits up to half a minute for the other side
to say goodbye, too. Nobody owns it then, so nobody else could cut it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar, cast

from remora.endpoints.threads import run_blocking
from remora.endpoints.tls import Tls, Trust, build_context, refused_client
from remora.model.errors import (
    EndpointDenied,
    EndpointError,
    EndpointMisconfigured,
    EndpointUnavailable,
    without_frames,
)
from remora.policy.delivery.destinations import DestinationRules
from remora.policy.ownership.quarantine import CONNECT

P = TypeVar("P", bound=asyncio.BaseProtocol)


def tls_name(host: str) -> str:
    """A host's name as TLS and certificates have it: without the dot behind a full name (RFC 6066, 3)."""
    return host.removesuffix(".")


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
    if options.get("ssl") is not None:
        options["server_hostname"] = tls_name(options.get("server_hostname") or address[0])
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


T = TypeVar("T")

NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")


class HostAndPort(Protocol):
    """A host and a port; its text names both in messages."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


async def open_first(
    place: HostAndPort,
    trust: Trust | None,
    rules: DestinationRules,
    timeout_s: float,
    open_at: Callable[[str, ssl.SSLContext | None], Awaitable[T]],
    *,
    by_operator: bool,
) -> T:
    """What `open_at` makes of the first of the host's addresses that lets us in; each gets its share of the time.

    It gets the context of TLS to whom `trust` says. `by_operator` tells that no S3 user made the topic. Raises
    EndpointMisconfigured or EndpointUnavailable, within the time to connect.
    """
    try:
        async with asyncio.timeout(timeout_s):
            context = None
            if trust is not None:
                context = await run_blocking(("authorities", trust), lambda: build_context(trust), str(place))
            addresses = await look_up(place.host, place.port, rules, timeout_s, by_operator=by_operator)
            cause: EndpointError | None = None
            for address in addresses:
                try:
                    async with asyncio.timeout(timeout_s / len(addresses)):
                        return await open_at(address, context)
                except TimeoutError:
                    cause = EndpointUnavailable(f"{place}: no answer in time", CONNECT)
                except EndpointUnavailable as exc:
                    cause = without_frames(exc)
            raise cause or EndpointUnavailable(f"{place}: it has no address", CONNECT)
    except TimeoutError as exc:
        raise EndpointUnavailable(f"{place}: no answer in time", CONNECT) from exc


def explain_refusal(exc: OSError, name: str, tls: Tls | None, scheme: str) -> EndpointError:
    """What is wrong with a broker that we cannot connect to; `scheme` is that of the endpoint."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return EndpointMisconfigured(f"{name}: its certificate is not trusted: {exc.verify_message}")
    if refused := refused_client(exc, shown=bool(tls and tls.certificate_location)):
        return EndpointMisconfigured(f"{name}: {refused}")
    if isinstance(exc, ssl.SSLError):
        if exc.reason in NO_TLS:
            return EndpointMisconfigured(f"{name}: the endpoint is {scheme}, but this port speaks no TLS")
        return EndpointUnavailable(f"{name}: TLS failed ({(exc.reason or type(exc).__name__).lower()})", CONNECT)
    text = os.strerror(exc.errno) if exc.errno else "the connection was closed before TLS was agreed on"
    return EndpointUnavailable(f"{name}: {text}", CONNECT)
