"""Openings of every kind, cancelled at each wait in turn: no connection is left of them, and no task."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devkit.clusters.certificates import Certificate, certificate
from devkit.clusters.kafka import Kafka, create_topic
from devkit.clusters.kerberos import join_realm
from devkit.clusters.nats import Nats, running_nats
from devkit.clusters.nginx import nginx
from devkit.clusters.rabbitmq import RabbitMQ
from remora.client.sequencer import SequencerClient, SequencerUnavailable
from remora.config import (
    AmqpSettings,
    DeliverySettings,
    DestinationsSettings,
    HttpSettings,
    KafkaSettings,
    NatsSettings,
    Settings,
)
from remora.endpoints.amqp import AmqpEndpoint
from remora.endpoints.http import HttpEndpoint
from remora.endpoints.kafka import KafkaEndpoint
from remora.endpoints.nats import NatsEndpoint
from remora.endpoints.tls import TlsFiles
from remora.model.errors import EndpointError
from remora.model.log import LogName
from remora.model.shard import Origin, Shard
from remora.model.topic import Target
from support.cancelling import Moment, Steps, leaves_nothing
from support.kafka_sender import INCARNATION, make_records, push_all

SHARD = Shard(f"shard-{os.getpid()}", Origin.REMORA)
"""Its transactions are this process's: others may share the broker."""


PATIENCE_S = 50.0

ANYWHERE = Settings(
    kafka=KafkaSettings(
        delivery_timeout_s=PATIENCE_S, connect_timeout_s=PATIENCE_S, transaction_timeout_s=90, ca_directories="/",
        client_files="/",
    ),
    http=HttpSettings(connect_timeout_s=PATIENCE_S),
    amqp=AmqpSettings(connect_timeout_s=PATIENCE_S),
    nats=NatsSettings(connect_timeout_s=PATIENCE_S),
    destinations=DestinationsSettings(deny=()),
    delivery=DeliverySettings(drain_timeout_s=2 * PATIENCE_S),
)  # fmt: skip

QUICK_S = 0.5

QUICK = replace(
    ANYWHERE,
    kafka=replace(ANYWHERE.kafka, connect_timeout_s=QUICK_S, delivery_timeout_s=QUICK_S),
    http=HttpSettings(connect_timeout_s=QUICK_S, request_timeout_s=QUICK_S),
    amqp=AmqpSettings(connect_timeout_s=QUICK_S),
    nats=NatsSettings(connect_timeout_s=QUICK_S),
)

MOMENTS = pytest.mark.parametrize("moment", ["waits", "woken"])

Work = Callable[[Any], Coroutine[Any, Any, None]]


@asynccontextmanager
async def endpoint_for(target: Target, settings: Settings = ANYWHERE) -> AsyncIterator[Any]:
    """An endpoint of its own, with nothing open."""
    made: AbstractAsyncContextManager[Any]
    match target.scheme:
        case "kafka":
            made = KafkaEndpoint(settings.kafka)
        case "amqp" | "amqps":
            made = AmqpEndpoint(settings.amqp, files=TlsFiles(settings.kafka.ca_places, settings.kafka.client_places))
        case "nats" | "nats+tls":
            made = NatsEndpoint(settings.nats, files=TlsFiles(settings.kafka.ca_places, settings.kafka.client_places))
        case _:
            made = HttpEndpoint(settings)
    async with made as endpoint:
        yield endpoint


def delivering(target: Target) -> Work:
    """Opens a route, and sends a record where that needs more to be opened."""

    async def deliver(endpoint: Any) -> None:
        async with endpoint.route(SHARD, INCARNATION, target) as route:
            if not hasattr(route, "commit"):
                await push_all(route, make_records(0, 1))

    return deliver


async def left_nothing(
    opened: Callable[[], AbstractAsyncContextManager[Any]],
    work: Work,
    moment: Moment,
    *,
    fails: Any = (),
    besides: str = "",
) -> None:
    """Cancel the work at each of its waits, each time with all opened anew; where it is not, it ends as it should."""

    async def attempt(steps: Steps) -> None:
        async with opened() as thing:
            task = steps.work = asyncio.create_task(work(thing), name="work")
            await asyncio.wait([task])
        outcome = asyncio.CancelledError() if task.cancelled() else task.exception()
        assert steps.hit or not outcome or isinstance(outcome, fails), outcome

    assert await leaves_nothing(attempt, moment, besides) > 1


@pytest.mark.kafka
@MOMENTS
@pytest.mark.parametrize(
    ("listener", "args", "mode"),
    [
        ("bootstrap", "", "at-least-once"),
        ("bootstrap", "", "exactly-once"),
        ("sasl_plaintext_bootstrap", "mechanism=SCRAM-SHA-512&user-name={user}&password={password}", "at-least-once"),
        ("sasl_ssl_bootstrap", "use-ssl=true&verify-ssl=false&user-name={user}&password={password}", "exactly-once"),
        ("gssapi_bootstrap", "mechanism=GSSAPI&sasl-kerberos-keytab={remora_keytab}", "at-least-once"),
    ],
    ids=["plain", "exactly-once", "login", "tls", "kerberos"],
)
async def test_kafka(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, listener: str, args: str, mode: str, moment: Moment
) -> None:
    """A route to Kafka."""
    kdc = ""
    if "GSSAPI" in args:
        join_realm(kafka, monkeypatch)
        kdc = f"127.0.0.1:{kafka.env['ports']['kdc']}"
    args = f"{args.format(**kafka.env)}&remora-delivery={mode}"
    topic = await create_topic(kafka.address, partitions=1)
    target = Target(f"kafka://{kafka.env[listener]}", args, topic)

    await left_nothing(lambda: endpoint_for(target), delivering(target), moment, besides=kdc)


@pytest.mark.kafka
@MOMENTS
@pytest.mark.parametrize(
    ("listener", "args"),
    [("bootstrap", "use-ssl=true&verify-ssl=false"), ("ssl_bootstrap", ""), ("sasl_plaintext_bootstrap", "")],
    ids=["no TLS", "TLS", "log-in"],
)
async def test_kafka_otherwise_than_it_is(kafka: Kafka, listener: str, args: str, moment: Moment) -> None:
    """The looks at a Kafka that does not let us in, for what it wants instead."""
    target = Target(f"kafka://{kafka.env[listener]}", args, "t")

    await left_nothing(lambda: endpoint_for(target), delivering(target), moment, fails=EndpointError)


@pytest.mark.kafka
@MOMENTS
async def test_kafka_that_is_looked_for(kafka: Kafka, moment: Moment) -> None:
    """The look for Kafka's brokers that are up."""
    target = Target(f"kafka://{kafka.address}", "", "t")

    async def look(endpoint: Any) -> None:
        assert await endpoint.up(target)

    await left_nothing(lambda: endpoint_for(target), look, moment)


@MOMENTS
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_amqp(rabbitmq: RabbitMQ, tls: bool, moment: Moment) -> None:
    """A route to an AMQP broker."""
    exchange, _ = await rabbitmq.bound()
    uri, args = f"amqp://{rabbitmq.address}", f"amqp-exchange={exchange}"
    if tls:
        uri = f"amqps://localhost:{rabbitmq.tls_port}"
        shown = f"ssl-certificate-location={rabbitmq.client.certificate}&ssl-key-location={rabbitmq.client.key}"
        args = f"{args}&ca-location={rabbitmq.own.certificate}&{shown}"
    target = Target(uri, args, "t")

    await left_nothing(lambda: endpoint_for(target), delivering(target), moment)


@pytest.fixture(scope="module")
def tls_nats() -> Iterator[Nats]:
    """A NATS server that speaks TLS only, and asks for a certificate."""
    with running_nats(tls=True) as running:
        yield running


@MOMENTS
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_nats(nats_server: Nats, tls_nats: Nats, tls: bool, moment: Moment) -> None:
    """A route to a NATS server, whose TLS begins after its first line."""
    server, args = nats_server, f"&nats-credentials={nats_server.seed_file}"
    if tls:
        server = tls_nats
        shown = f"ssl-certificate-location={server.client.certificate}&ssl-key-location={server.client.key}"
        args = f"&ca-location={server.own.certificate}&{shown}"
    stream = await server.stream()
    target = Target(f"nats{'+tls' if tls else ''}://localhost:{server.port}", f"nats-stream={stream}{args}", stream)

    await left_nothing(lambda: endpoint_for(target), delivering(target), moment)


@MOMENTS
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_http(tmp_path: Path, tls: bool, moment: Moment) -> None:
    """A route to an HTTP receiver, and the look whether it is up."""
    shown = certificate(tmp_path / "shown", "localhost")
    own = f"ssl_certificate {shown.certificate}; ssl_certificate_key {shown.key};" if tls else ""
    async with nginx(tmp_path, own, tls=tls) as server:
        target = Target(f"{server.url}/ok", "verify-ssl=false" if tls else "", "t")

        async def look_and_deliver(endpoint: Any) -> None:
            assert await endpoint.up(target)
            await delivering(target)(endpoint)

        await left_nothing(lambda: endpoint_for(target), look_and_deliver, moment)


# ----------------------------------------------------------------- a server that says nothing behind TLS


@contextmanager
def mute(shown: Certificate) -> Iterator[int]:
    """The port of a server that agrees on TLS and says nothing afterwards, not even goodbye."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown.certificate, shown.key)
    taken: list[socket.socket] = []

    def take(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with contextlib.suppress(OSError):  # a client that goes away within the handshake
                    taken.append(context.wrap_socket(connection, server_side=True))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=take, args=(listener,))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for each in taken:
                each.close()


@MOMENTS
@pytest.mark.parametrize("scheme", ["kafka", "https", "amqps", "nats+tls"])
async def test_a_mute_server(tmp_path: Path, scheme: str, moment: Moment) -> None:
    """A server that never says goodbye holds no connection open that was made when the cancellation came."""
    shown = certificate(tmp_path / "shown", "localhost")
    with mute(shown) as port:
        target = Target(
            f"{scheme}://localhost:{port}",
            f"use-ssl=true&amqp-exchange=x&nats-stream=x&ca-location={shown.certificate}",
            "t",
        )

        await left_nothing(lambda: endpoint_for(target, QUICK), delivering(target), moment, fails=EndpointError)


@MOMENTS
async def test_a_mute_sequencer(tmp_path: Path, moment: Moment) -> None:
    """A client of the sequencer leaves no connection to one that says nothing."""
    shown = certificate(tmp_path / "shown", "localhost")
    trust = ssl.create_default_context(cafile=shown.certificate)
    with mute(shown) as port:

        async def ask(client: SequencerClient) -> None:
            await client.next(LogName(b"pool", b"log"))

        await left_nothing(
            lambda: SequencerClient([f"localhost:{port}"], timeout_s=QUICK_S, tls=trust), ask, moment,
            fails=SequencerUnavailable,
        )  # fmt: skip
