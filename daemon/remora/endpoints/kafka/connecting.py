"""Finding a broker that answers, and when none does, why: aiokafka itself says "unable to bootstrap" only."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiokafka.errors as kafka
from aiokafka.client import ConnectionGroup
from aiokafka.conn import AIOKafkaConnection
from aiokafka.protocol.admin import SaslHandShakeRequest
from aiokafka.protocol.metadata import MetadataRequest

from remora.endpoints.kafka.aside import ask_aside, resolve
from remora.endpoints.kafka.errors import CONFIGURATION, translate
from remora.endpoints.kafka.target import Broker, Cluster
from remora.endpoints.kafka.tls import Trust, build_context
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable, without_frames

LOOK_TIMEOUT_S = 2.0
"""For one more look at a broker that has just refused us; it answered a moment ago."""

GOODBYE_S = 1.0
"""How long the end of a TLS connection waits for the other side to end it too."""


async def connection_options(cluster: Cluster, trust: Trust | None) -> dict[str, Any]:
    """What every aiokafka connection to this cluster is made with. Raises EndpointError."""
    protocol = ("SASL_" if cluster.login else "") + ("SSL" if trust else "PLAINTEXT")
    options: dict[str, Any] = {"security_protocol": protocol}
    if trust:
        options["ssl_context"] = await ask_aside(("authorities", trust), lambda: build_context(trust), str(cluster))
    if cluster.login:
        options["sasl_mechanism"] = cluster.login.mechanism
        options["sasl_plain_username"] = cluster.login.user
        options["sasl_plain_password"] = cluster.login.password
    return options


async def find_broker(cluster: Cluster, options: dict[str, Any], client_id: str, timeout_s: float) -> Broker:
    """The first broker of the list that lets us in; all are tried at once.

    Raises EndpointMisconfigured when at least one says that we never will be, else EndpointUnavailable.
    """
    causes: list[EndpointError] = []
    async with asyncio.TaskGroup() as group:
        pending = {
            group.create_task(_try_broker(broker, cluster, options, client_id, timeout_s), name=f"try {broker}")
            for broker in cluster.brokers
        }
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                outcome = task.result()
                if isinstance(outcome, Broker):
                    for other in pending:
                        other.cancel()
                    return outcome
                causes.append(outcome)
    decisive = [cause for cause in causes if isinstance(cause, EndpointMisconfigured)] or causes
    raise type(decisive[0])("; ".join(map(str, decisive))) from decisive[0].__cause__


async def find_live(cluster: Cluster, options: dict[str, Any], client_id: str, timeout_s: float) -> frozenset[str]:
    """The cluster's brokers that are alive, by number, as the first of the list says that lets us in; else none."""
    async with asyncio.TaskGroup() as group:
        pending = {
            group.create_task(_ask_for_live(broker, options, client_id, timeout_s), name=f"look at {broker}")
            for broker in cluster.brokers
        }
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            found: frozenset[str] = frozenset().union(*(task.result() for task in done))
            if found:
                for other in pending:
                    other.cancel()
                return found
    return frozenset()


async def _ask_for_live(broker: Broker, options: dict[str, Any], client_id: str, timeout_s: float) -> frozenset[str]:
    try:
        async with asyncio.timeout(timeout_s):
            await resolve(broker.host, timeout_s)
            answer = await _greet(broker, options, client_id, timeout_s)
    except Exception as exc:  # whatever answers on that port, and however: it is not up
        without_frames(exc)
        return frozenset()
    return frozenset(str(node) for node, *_ in answer.brokers)


async def _try_broker(
    broker: Broker, cluster: Cluster, options: dict[str, Any], client_id: str, timeout_s: float
) -> Broker | EndpointError:
    try:
        async with asyncio.timeout(timeout_s):
            await resolve(broker.host, timeout_s)
            await _greet(broker, options, client_id, timeout_s)
    except Exception as exc:  # whatever answers on that port, and however: it may cost only its topics
        cause = await _explain(exc, broker, cluster, options, client_id)
        if cause is not exc:
            cause.__cause__ = exc
        return cause
    return broker


async def _greet(broker: Broker, options: dict[str, Any], client_id: str, timeout_s: float) -> Any:
    """Connect, log in and ask something that is answered only to those who are let in: the answer."""
    async with _connected(broker, client_id, request_timeout_ms=int(timeout_s * 1000), **options) as connection:
        return await connection.send(MetadataRequest([]))


@asynccontextmanager
async def _connected(broker: Broker, client_id: str, **options: Any) -> AsyncIterator[Any]:
    """A connection of our own to one broker, which nothing is left of afterwards.

    aiokafka forgets one that fails to log in, while TLS still says goodbye: to a broker that is slow with its answer,
    the socket would outlive its event loop.
    """
    connection = AIOKafkaConnection(broker.host, broker.port, client_id=client_id, **options)
    patience_s = 0.0
    try:
        await connection.connect()
        yield connection
        patience_s = GOODBYE_S
    finally:
        closed = connection.close()
        if closed is not None:
            await asyncio.wait([closed], timeout=patience_s)
            cut(connection)


def resolve_first(client: Any) -> None:
    """Have an aiokafka client look up each broker's name aside before it connects to it; cf. `aside`."""
    connect = client._get_conn  # noqa: SLF001 # the one place that knows names which the cluster itself gave

    async def look_up_and_connect(node_id: Any, **options: Any) -> Any:
        broker = client.cluster.broker_metadata(node_id)
        connected = client._conns.get((node_id, options.get("group", ConnectionGroup.DEFAULT)))  # noqa: SLF001
        if broker is not None and not (connected and connected.connected()):
            try:
                await resolve(broker.host)
            except (OSError, EndpointUnavailable):
                client.force_metadata_update()  # as aiokafka does for any broker that it cannot connect to
                return None
        return await connect(node_id, **options)

    client._get_conn = look_up_and_connect  # noqa: SLF001


def let_go(client: Any) -> None:
    """Undo `resolve_first`, when a client is closed: it would keep itself."""
    vars(client).pop("_get_conn", None)


def cut(connection: Any) -> None:
    """End an aiokafka connection without goodbye, also one that it has closed and that waits for the other side."""
    # close() forgets the transport, and its protocol does only when it has ended.
    transport = connection._protocol and connection._protocol._transport  # noqa: SLF001
    if transport is not None:
        transport.abort()


# ------------------------------------------------------------------------------------------- why not


async def _explain(
    exc: Exception, broker: Broker, cluster: Cluster, options: dict[str, Any], client_id: str
) -> EndpointError:
    """What is wrong with this broker, in words; takes one more look where the exception alone is no answer."""
    if isinstance(exc, EndpointUnavailable):
        return exc
    for each in _chain(exc):
        if type(each) in CONFIGURATION:
            return translate(each, str(broker))
        if isinstance(each, ssl.SSLCertVerificationError):
            return EndpointMisconfigured(f"{broker}: its certificate is not trusted: {each.verify_message}")
    if isinstance(exc, TimeoutError):
        return EndpointUnavailable(f"{broker}: no answer in time")
    if isinstance(exc, ValueError) and cluster.login:
        return EndpointMisconfigured(f"{broker}: its part of the {cluster.login.mechanism} log-in is wrong")
    if isinstance(exc, OSError) and not isinstance(exc, ssl.SSLError | ConnectionResetError | ConnectionAbortedError):
        # asyncio's own text repeats the address; a resolver's numbers mean something else.
        text = exc.strerror if isinstance(exc, socket.gaierror) or not exc.errno else os.strerror(exc.errno)
        return EndpointUnavailable(f"{broker}: {text or type(exc).__name__}")
    finding = await _look_again(broker, cluster, options, client_id)
    if finding:
        return EndpointMisconfigured(f"{broker}: {finding}")
    if isinstance(exc, ssl.SSLError):
        return EndpointMisconfigured(f"{broker}: TLS fails: {exc.reason or type(exc).__name__}")
    return translate(exc, str(broker))


def _chain(exc: BaseException | None) -> Iterator[Exception]:
    while isinstance(exc, Exception):
        yield exc
        exc = exc.__cause__


async def _look_again(broker: Broker, cluster: Cluster, options: dict[str, Any], client_id: str) -> str:
    """What a port that hung up on us wants instead; empty when that remains unknown."""
    try:
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            if cluster.tls and await _answers_without_tls(broker, client_id):
                return "use-ssl is set, but this port speaks no TLS"
            if not cluster.tls and await _answers_tls(broker):
                return "this port speaks TLS, but use-ssl is not set"
            return "" if cluster.login else await _wanted_login(broker, options, client_id)
    except (OSError, kafka.KafkaError) as exc:
        without_frames(exc)
        return ""


async def _answers_without_tls(broker: Broker, client_id: str) -> bool:
    try:
        async with _connected(broker, client_id):
            return True
    except (ConnectionError, kafka.KafkaError) as exc:
        without_frames(exc)
        return False


async def _answers_tls(broker: Broker) -> bool:
    anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anyone.check_hostname = False
    anyone.verify_mode = ssl.CERT_NONE
    try:
        _, writer = await asyncio.open_connection(broker.host, broker.port, ssl=anyone)
    except OSError as exc:
        without_frames(exc)
        return False
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()
    return True


async def _wanted_login(broker: Broker, options: dict[str, Any], client_id: str) -> str:
    async with _connected(broker, client_id, **options) as connection:
        answer = await connection.send(SaslHandShakeRequest("PLAIN"))
    if not answer.enabled_mechanisms:
        return ""
    return f"it asks for user-name and password (mechanism {', '.join(answer.enabled_mechanisms)})"
