"""Finding a broker that answers, and when none does, why: aiokafka itself says "unable to bootstrap" only."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiokafka.errors as kafka
from aiokafka.protocol.admin import SaslHandShakeRequest
from aiokafka.protocol.metadata import MetadataRequest

from remora.config.delivery import KafkaSettings
from remora.endpoints.dial import dial
from remora.endpoints.kafka.bearer import OwnLogin, prepare
from remora.endpoints.kafka.client import KafkaClient, admit, connected, why_denied
from remora.endpoints.kafka.errors import CONFIGURATION, translate
from remora.endpoints.kafka.target import Broker, KafkaCluster
from remora.endpoints.threads import run_blocking
from remora.endpoints.tls import Trust, build_context, refused_client
from remora.model.errors import (
    EndpointDenied,
    EndpointError,
    EndpointMisconfigured,
    EndpointUnavailable,
    without_frames,
)
from remora.policy.delivery.destinations import DestinationRules

T = TypeVar("T")

LOOK_TIMEOUT_S = 2.0
"""For one more look at a broker that has just refused us; it answered a moment ago."""


@dataclass(frozen=True, slots=True)
class ConnectionIdentity:
    """The identity of a connection: equal ones may share a sender, others never do. `rules` are those of all."""

    cluster: KafkaCluster
    trust: Trust | None = None
    login: OwnLogin | None = None
    rules: DestinationRules = field(default=DestinationRules(), compare=False)


async def build_client(connection: ConnectionIdentity, settings: KafkaSettings) -> tuple[KafkaClient, Broker]:
    """A client that is not connected yet, and the broker of the list that lets it in. Raises EndpointError."""
    options = await connection_options(connection)
    broker = await find_broker(connection, options, settings.client_id, settings.connect_timeout_s)
    return KafkaClient(broker, options, settings, connection.rules, connection.login), broker


async def connection_options(connection: ConnectionIdentity) -> dict[str, Any]:
    """What every aiokafka connection to this cluster is made with. Raises EndpointError."""
    cluster, trust = connection.cluster, connection.trust
    protocol = ("SASL_" if cluster.login else "") + ("SSL" if trust else "PLAINTEXT")
    options: dict[str, Any] = {"security_protocol": protocol}
    if trust:
        options["ssl_context"] = await run_blocking(("authorities", trust), lambda: build_context(trust), str(cluster))
    if cluster.login:
        options["sasl_mechanism"] = cluster.login.mechanism
        options["sasl_plain_username"] = cluster.login.user
        options["sasl_plain_password"] = cluster.login.password
    return options


async def find_broker(
    connection: ConnectionIdentity, options: dict[str, Any], client_id: str, timeout_s: float
) -> Broker:
    """The first broker of the list that lets us in; all are tried at once. The brokers that it names may lie there.

    Raises EndpointMisconfigured when at least one says that we never will be, else EndpointUnavailable.
    """
    cluster = connection.cluster
    causes: list[EndpointError] = []

    async def attempt(broker: Broker) -> Broker | None:
        try:
            await _greet(broker, connection, options, client_id, timeout_s)
        except Exception as exc:  # whatever answers on that port, and however: it may cost only its topics
            cause = await _explain(exc, broker, cluster, options, client_id)
            if cause is not exc:
                cause.__cause__ = exc
            causes.append(cause)
            return None
        return broker

    found = await _first(cluster.brokers, attempt)
    if found is not None:
        return found
    decisive = [cause for cause in causes if isinstance(cause, EndpointMisconfigured)] or causes
    raise type(decisive[0])("; ".join(dict.fromkeys(map(str, decisive)))) from decisive[0].__cause__


async def find_live(
    connection: ConnectionIdentity, options: dict[str, Any], client_id: str, timeout_s: float
) -> frozenset[str]:
    """The cluster's brokers that are alive, by number, as the first of the list says that lets us in; else none."""

    async def attempt(broker: Broker) -> frozenset[str] | None:
        try:
            answer = await _greet(broker, connection, options, client_id, timeout_s)
        except Exception as exc:  # whatever answers on that port, and however: it is not up
            without_frames(exc)
            return None
        return frozenset(str(node) for node, *_ in answer.brokers) or None

    return await _first(connection.cluster.brokers, attempt) or frozenset()


async def _first(brokers: Iterable[Broker], attempt: Callable[[Broker], Coroutine[Any, Any, T | None]]) -> T | None:
    """What the first attempt gives that gives anything; all are made at once, and the others then end."""
    async with asyncio.TaskGroup() as group:
        pending = {group.create_task(attempt(broker), name=f"try {broker}") for broker in brokers}
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for found in [task.result() for task in done]:
                if found is not None:
                    for other in pending:
                        other.cancel()
                    return found
    return None


async def _greet(
    broker: Broker, way: ConnectionIdentity, options: dict[str, Any], client_id: str, timeout_s: float
) -> Any:
    """Connect, log in and ask for the brokers, which only those are answered who are let in: the answer.

    Raises EndpointDenied where one of these must not be connected to.
    """
    rules, options = way.rules, {**options, "request_timeout_ms": int(timeout_s * 1000)}
    async with asyncio.timeout(timeout_s):
        await admit(broker, rules, timeout_s)
        await prepare(way.login, broker, timeout_s)
        async with connected(broker, client_id, way.login, timeout_s, **options) as connection:
            if why := why_denied(connection, broker, rules):
                raise EndpointDenied(f"{broker}: {why}")
            answer = await connection.send(MetadataRequest([]))
        for _, host, port, *_ in answer.brokers:
            with suppress(OSError, EndpointUnavailable):  # it may be away, as long as the others are not
                await admit(Broker(host, port), rules, timeout_s)
        return answer


# ------------------------------------------------------------------------------------------- why not


async def _explain(
    exc: Exception, broker: Broker, cluster: KafkaCluster, options: dict[str, Any], client_id: str
) -> EndpointError:
    """What is wrong with this broker, in words; takes one more look where the exception alone is no answer."""
    if isinstance(exc, EndpointError):
        return exc
    for each in _chain(exc):
        if refusal := _refusal(each, broker, cluster):
            return refusal
    if isinstance(exc, TimeoutError):
        return EndpointUnavailable(f"{broker}: no answer in time", "connect")
    if isinstance(exc, ValueError) and cluster.login:
        return EndpointMisconfigured(f"{broker}: its part of the {cluster.login.mechanism} log-in is wrong")
    if isinstance(exc, OSError) and not isinstance(exc, ssl.SSLError | ConnectionResetError | ConnectionAbortedError):
        # asyncio's own text repeats the address; a resolver's numbers mean something else.
        text = exc.strerror if isinstance(exc, socket.gaierror) or not exc.errno else os.strerror(exc.errno)
        return EndpointUnavailable(f"{broker}: {text or type(exc).__name__}", "connect")
    finding = await _look_again(broker, cluster, options, client_id)
    if finding:
        return EndpointMisconfigured(f"{broker}: {finding}")
    if isinstance(exc, ssl.SSLError):
        return EndpointMisconfigured(f"{broker}: TLS fails: {exc.reason or type(exc).__name__}")
    return translate(exc, str(broker))


def _refusal(exc: Exception, broker: Broker, cluster: KafkaCluster) -> EndpointError | None:
    """What an exception says by itself of why a broker will never let us in."""
    if type(exc) in CONFIGURATION:
        return translate(exc, str(broker))
    if isinstance(exc, ssl.SSLCertVerificationError):
        return EndpointMisconfigured(f"{broker}: its certificate is not trusted: {exc.verify_message}")
    if refused := refused_client(exc, shown=bool(cluster.tls and cluster.tls.certificate_location)):
        return EndpointMisconfigured(f"{broker}: {refused}")
    return None


def _chain(exc: BaseException | None) -> Iterator[Exception]:
    while isinstance(exc, Exception):
        yield exc
        exc = exc.__cause__


async def _look_again(broker: Broker, cluster: KafkaCluster, options: dict[str, Any], client_id: str) -> str:
    """What a port that hung up on us wants instead; empty when that remains unknown."""
    try:
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            if cluster.tls and await _answers_without_tls(broker, client_id):
                return "use-ssl is set, but this port speaks no TLS"
            if not cluster.tls and await _answers_tls(broker):
                return "this port speaks TLS, but use-ssl is not set"
            return (
                ""
                if cluster.login or cluster.kerberos or cluster.bearer
                else await _wanted_login(broker, options, client_id)
            )
    except (OSError, kafka.KafkaError) as exc:
        without_frames(exc)
        return ""


async def _answers_without_tls(broker: Broker, client_id: str) -> bool:
    try:
        async with connected(broker, client_id):
            return True
    except (ConnectionError, kafka.KafkaError) as exc:
        without_frames(exc)
        return False


async def _answers_tls(broker: Broker) -> bool:
    anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anyone.check_hostname = False
    anyone.verify_mode = ssl.CERT_NONE
    try:
        transport, _ = await dial(asyncio.Protocol, broker.host, broker.port, ssl=anyone)
    except OSError as exc:
        without_frames(exc)
        return False
    transport.abort()
    return True


async def _wanted_login(broker: Broker, options: dict[str, Any], client_id: str) -> str:
    async with connected(broker, client_id, **options) as connection:
        answer = await connection.send(SaslHandShakeRequest("PLAIN"))
    if not answer.enabled_mechanisms:
        return ""
    return f"it asks for user-name and password (mechanism {', '.join(answer.enabled_mechanisms)})"
