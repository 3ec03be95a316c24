"""The way to a broker by one of its host's addresses; and why one cannot be connected to, in words."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from remora.endpoints.dial import look_up
from remora.endpoints.threads import run_blocking
from remora.endpoints.tls import Tls, Trust, build_context, refused_client
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable, without_frames
from remora.policy.destinations import DestinationRules
from remora.policy.quarantine import CONNECT

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
