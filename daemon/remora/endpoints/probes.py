"""The way to an endpoint, tried step by step: names, connections, TLS; each kind of endpoint has its own steps behind.

What delivers opens a way as a whole, and says where it ends. An operator who makes a topic wants to see each step and
its time, and gets these steps from what the endpoints themselves use.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from remora.endpoints.dial import dial, look_up
from remora.endpoints.threads import run_blocking
from remora.endpoints.tls import Tls, TlsFiles, build_context, read_trust, refused_client
from remora.model.errors import (
    EndpointDenied,
    EndpointError,
    EndpointMisconfigured,
    EndpointUnavailable,
    without_frames,
)
from remora.policy.delivery.destinations import DestinationRules
from remora.ports.endpoint import ProbeStep

NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")


class NotLookedAt(Exception):
    """Why a step cannot be looked at."""


@dataclass(frozen=True, slots=True)
class ProbePart:
    """A step by name; `look` returns what it found, in words, or raises EndpointError or NotLookedAt."""

    name: str
    look: Callable[[], Awaitable[str]]


async def carry_out(parts: Iterable[ProbePart]) -> AsyncIterator[ProbeStep]:
    """Take the steps in their order, up to the first that fails."""
    now = asyncio.get_running_loop().time
    for part in parts:
        began = now()
        try:
            said = await part.look()
        except NotLookedAt as exc:
            yield ProbeStep(part.name, None, str(exc))
        except EndpointError as exc:
            yield ProbeStep(part.name, False, str(without_frames(exc)), now() - began)
            return
        else:
            yield ProbeStep(part.name, True, said, now() - began)


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host and a port of an endpoint."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(slots=True)
class Network:
    """The first steps of every way. A step is taken for each place, and succeeds where it does for one of them."""

    places: Sequence[HostPort]
    tls: Tls | None
    files: TlsFiles
    rules: DestinationRules
    timeout_s: float
    by_operator: bool
    protocols: tuple[str, ...] = ()
    _addresses: dict[HostPort, list[str]] = field(default_factory=dict)

    def parts(self) -> list[ProbePart]:
        """Names, connections and, where the endpoint has it, TLS."""
        parts = [ProbePart("resolve", self._resolve), ProbePart("connect", self._connect)]
        return [*parts, ProbePart("tls", self._shake_hands)] if self.tls is not None else parts

    def address_of(self, place: HostPort) -> str:
        """An address that the operator's rules allow, once names were resolved: connect there, and not to the name."""
        return self._addresses[place][0]

    async def _resolve(self) -> str:
        async def of(place: HostPort) -> str:
            found = await look_up(place.host, place.port, self.rules, self.timeout_s, by_operator=self.by_operator)
            if not found:
                raise EndpointUnavailable(f"{place}: its name has no address", "connect")
            self._addresses[place] = found
            return f"{place} is {', '.join(found)}"

        return await self._each(self.places, of)

    async def _connect(self) -> str:
        async def of(place: HostPort) -> str:
            await self._dial(place, None)
            return f"{place} takes connections"

        return await self._each(self._addresses, of)

    async def _shake_hands(self) -> str:
        tls, files = self.tls, self.files
        assert tls is not None

        def read() -> ssl.SSLContext:
            return build_context(read_trust(tls, files), self.protocols)

        context = await run_blocking(("probe", tls), read, tls.what, self.timeout_s)

        async def of(place: HostPort) -> str:
            try:
                version = await self._dial(place, context)
            except ssl.SSLError as exc:
                raise EndpointMisconfigured(f"{place}: {_why(exc, tls)}") from exc
            return f"{place} speaks {version}" + ("" if tls.verify else ", and its certificate is not checked")

        return await self._each(self._addresses, of)

    async def _dial(self, place: HostPort, context: ssl.SSLContext | None) -> str:
        """Connect to the first address that answers, and cut the connection; returns the version of TLS."""
        failure: EndpointError | None = None
        for address in self._addresses[place]:
            try:
                async with asyncio.timeout(self.timeout_s):
                    name = place.host if context is not None else None
                    transport, _ = await dial(asyncio.Protocol, address, place.port, ssl=context, server_hostname=name)
            except ssl.SSLError:
                raise
            except TimeoutError:
                failure = EndpointUnavailable(f"{place}: no answer in time", "connect")
            except OSError as exc:
                why = os.strerror(exc.errno) if exc.errno else "the connection was closed before TLS was agreed on"
                failure = EndpointUnavailable(f"{place}: {why}", "connect")
            else:
                agreed = transport.get_extra_info("ssl_object")
                transport.abort()
                return str(agreed.version()) if agreed is not None else ""
        assert failure is not None
        raise failure

    async def _each(self, places: Iterable[HostPort], of: Callable[[HostPort], Awaitable[str]]) -> str:
        """What was found at each place; raises the first failure where all fail, or where one is denied."""
        found: list[str] = []
        failures: list[EndpointError] = []
        for each in places:
            try:
                found.append(await of(each))
            except EndpointDenied:
                raise
            except EndpointError as exc:
                failures.append(without_frames(exc))
        if not found:
            raise failures[0]
        return "; ".join([*found, *(f"not all: {each}" for each in failures)])


def _why(exc: ssl.SSLError, tls: Tls) -> str:
    """What is wrong with TLS, in words."""
    if why := refused_client(exc, shown=bool(tls.certificate_location)):
        return why
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {exc.verify_message}"
    if exc.reason in NO_TLS:
        return "the port speaks no TLS"
    return f"TLS failed ({(exc.reason or type(exc).__name__).lower()})"


def refuse_files(tls: Tls | None, files: TlsFiles) -> None:
    """Raise EndpointMisconfigured where a topic names files that are not below the allowed directories, or cannot work.

    Looks at this host's files: a daemon that runs elsewhere may see others.
    """
    if tls is not None and tls.what:
        read_trust(tls, files)
