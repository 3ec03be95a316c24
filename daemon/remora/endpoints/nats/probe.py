"""The way to a stream, step by step: the log-in, what the server says of the stream, and of its duplicate window."""

from __future__ import annotations

import asyncio

from remora.config.settings import Settings
from remora.endpoints.nats.endpoint import NatsEndpoint, read_identity
from remora.endpoints.nats.pool import briefly
from remora.endpoints.nats.target import parse_target
from remora.endpoints.probes import HostPort, Network, NotLookedAt, ProbePart
from remora.endpoints.tls import Tls, TlsFiles, read_trust
from remora.model.shard import Origin, Shard
from remora.model.topic import Target


def tls_of(target: Target) -> Tls | None:
    """The files that the target names. Raises EndpointMisconfigured."""
    return parse_target(target).server.tls


def parts_of(target: Target, settings: Settings, files: TlsFiles, *, by_operator: bool) -> list[ProbePart]:
    """The steps of the way. Raises EndpointMisconfigured for a target that means nothing."""
    meant, nats, rules = parse_target(target), settings.nats_within_drain, settings.destination_rules
    server = meant.server
    network = Network(
        [HostPort(server.host, server.port)], None, files, rules, nats.connect_timeout_s, by_operator
    )  # TLS comes after the server's first line, so the log-in is the step that has it

    async def log_in() -> str:
        trust = await asyncio.to_thread(read_trust, server.tls, files) if server.tls is not None else None
        identity = await asyncio.to_thread(read_identity, server, trust, files, by_operator=by_operator)
        async with briefly(identity, nats, rules) as connection:
            return f"{connection} lets remora in{' over TLS' if server.tls is not None else ''}"

    async def find() -> str:
        shard = Shard("test", Origin.REMORA if by_operator else Origin.RADOSGW)
        async with NatsEndpoint(nats, None, files, rules) as endpoint, endpoint.route(shard, "test", target) as route:
            return f"{route} takes {meant.template.pattern.decode()}"

    async def write() -> str:
        raise NotLookedAt("NATS tells only of a message: --send-test sends one")

    return [*network.parts(), ProbePart("login", log_in), ProbePart("stream", find), ProbePart("write", write)]


async def standing(
    target: Target, settings: Settings, files: TlsFiles, *, by_operator: bool, pause_s: float
) -> list[str]:
    """What the server says of the stream that an operator has to know; attempts may lie `pause_s` apart.

    Raises EndpointError.
    """
    nats = settings.nats_within_drain
    shard = Shard("test", Origin.REMORA if by_operator else Origin.RADOSGW)
    async with (
        NatsEndpoint(nats, None, files, settings.destination_rules) as endpoint,
        endpoint.route(shard, "test", target) as route,
    ):
        return route.remarks(pause_s + nats.delivery_timeout_s)
