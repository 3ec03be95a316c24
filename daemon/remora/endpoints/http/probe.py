"""The way to a receiver of HTTP, step by step: what it answers to a question that is no event."""

from __future__ import annotations

import asyncio

from remora.config.settings import Settings
from remora.endpoints.dial import tls_name
from remora.endpoints.http.credentials import read_credential
from remora.endpoints.http.target import HttpTarget, parse_target
from remora.endpoints.probes import HostPort, Network, NotLookedAt, ProbePart
from remora.endpoints.threads import run_blocking
from remora.endpoints.tls import Tls, TlsFiles, build_context, read_trust
from remora.model.errors import EndpointUnavailable
from remora.model.topic import Target


def tls_of(target: Target) -> Tls | None:
    """The files that the target names. Raises EndpointMisconfigured."""
    return parse_target(target).tls


def parts_of(target: Target, settings: Settings, files: TlsFiles, *, by_operator: bool) -> list[ProbePart]:
    """The steps of the way. Raises EndpointMisconfigured for a target that means nothing."""
    meant, http = parse_target(target), settings.http_within_drain
    place = HostPort(meant.server.host, meant.server.port)
    network = Network([place], meant.tls, files, settings.destination_rules, http.connect_timeout_s, by_operator)

    async def log_in() -> str:
        directory, name = settings.credentials.directory, meant.credential
        await run_blocking(
            ("probe", name), lambda: read_credential(directory, name, meant.server.host), name, http.connect_timeout_s
        )
        return f"credential {name} can be read, and is for {meant.server.host}"

    async def answer() -> str:
        status = await _head(meant, network.address_of(place), files, http.connect_timeout_s)
        return f"the receiver answers HEAD with {status}; what it does with an event it says to POST only"

    async def write() -> str:
        raise NotLookedAt("HTTP tells only of an event: --send-test posts one")

    login = [ProbePart("login", log_in)] if meant.credential else []
    return [*network.parts(), *login, ProbePart("path", answer), ProbePart("write", write)]


async def _head(meant: HttpTarget, address: str, files: TlsFiles, timeout_s: float) -> str:
    """The status of an answer to HEAD, without credentials: these are for events."""
    context = build_context(await asyncio.to_thread(read_trust, meant.tls, files)) if meant.tls is not None else None
    server = meant.server
    try:
        async with asyncio.timeout(timeout_s):
            name = tls_name(server.host) if context is not None else None
            reader, writer = await asyncio.open_connection(address, server.port, ssl=context, server_hostname=name)
            try:
                writer.write(f"HEAD {meant.path} HTTP/1.1\r\nHost: {meant.host}\r\nConnection: close\r\n\r\n".encode())
                line = await reader.readline()
            finally:
                writer.transport.abort()
    except TimeoutError as exc:
        raise EndpointUnavailable(f"{server}: no answer in time", "timeout") from exc
    except OSError as exc:
        raise EndpointUnavailable(f"{server}: the connection broke", "connect") from exc
    version, _, status = line.decode("latin-1").strip().partition(" ")
    if not version.startswith("HTTP/"):
        raise EndpointUnavailable(f"{server}: it answers something else than HTTP", "connect")
    return status[:3]
