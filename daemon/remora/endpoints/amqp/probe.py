"""The way to an exchange, step by step: the log-in, and whether the exchange is there."""

from __future__ import annotations

import asyncio

from remora.config.settings import Settings
from remora.endpoints.amqp.endpoint import AmqpEndpoint
from remora.endpoints.amqp.pool import Identity, briefly
from remora.endpoints.amqp.target import parse_target
from remora.endpoints.probes import HostPort, Network, NotLookedAt, ProbePart
from remora.endpoints.tls import Tls, TlsFiles, read_trust
from remora.model.shard import Origin, Shard
from remora.model.topic import Target


def tls_of(target: Target) -> Tls | None:
    """The files that the target names. Raises EndpointMisconfigured."""
    return parse_target(target).server.tls


def parts_of(target: Target, settings: Settings, files: TlsFiles, *, by_operator: bool) -> list[ProbePart]:
    """The steps of the way. Raises EndpointMisconfigured for a target that means nothing."""
    meant, amqp, rules = parse_target(target), settings.amqp_within_drain, settings.destination_rules
    server = meant.server
    place = HostPort(server.host, server.port)
    network = Network([place], server.tls, files, rules, amqp.connect_timeout_s, by_operator)

    async def log_in() -> str:
        trust = await asyncio.to_thread(read_trust, server.tls, files) if server.tls is not None else None
        async with briefly(Identity(server, trust, by_operator), amqp, rules) as connection:
            return f"{connection} lets {server.user} in to the virtual host {server.vhost}"

    async def find() -> str:
        shard = Shard("test", Origin.REMORA if by_operator else Origin.RADOSGW)
        async with AmqpEndpoint(amqp, None, files, rules) as endpoint, endpoint.route(shard, "test", target):
            return f"exchange {meant.exchange} is there"

    async def write() -> str:
        raise NotLookedAt("AMQP tells only of a message: --send-test sends one")

    return [*network.parts(), ProbePart("login", log_in), ProbePart("exchange", find), ProbePart("write", write)]
