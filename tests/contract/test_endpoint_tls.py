"""https and amqps at servers whose TLS is wrong: what stops a topic, what passes, and what the reason says."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from devkit.clusters.certificates import Certificate, certificate
from devkit.receivers.streams import serving_streams
from devkit.waits import PATIENT_S
from remora.config import AmqpSettings, HttpSettings, KafkaSettings, Settings
from remora.endpoints.amqp import AmqpEndpoint
from remora.endpoints.http import HttpEndpoint
from remora.endpoints.tls import TlsFiles
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable
from remora.model.shard import Origin, Shard
from remora.model.topic import Target
from remora.ports.endpoint import Endpoint
from support.full_names import known_by_its_full_name
from support.kafka_sender import INCARNATION, make_records, push_all

SHARD = Shard("shard", Origin.REMORA)
CONNECT_S = 2.0
ALERT = b"\x15\x03\x03\x00\x02\x02\x28"
NOISE = b"\x16\x03\x03\x00\x10" + b"\xff" * 16
"""Records of TLS: that the handshake failed, and one of a handshake that means nothing."""

Endpoints = dict[str, Endpoint]


@pytest.fixture
async def endpoints(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Endpoints]:
    """Endpoints of both kinds, by their scheme, which read authorities of the test's folder.

    They give up soon where a server waits, and have a minute for every other answer.
    """
    connect_s = CONNECT_S if request.node.callspec.params.get("how") == "waits" else 60.0
    settings = Settings(
        kafka=KafkaSettings(ca_directories=str(tmp_path)),
        http=HttpSettings(connect_timeout_s=connect_s),
        amqp=AmqpSettings(connect_timeout_s=connect_s),
    )
    files = TlsFiles(settings.kafka.ca_places, ())
    async with HttpEndpoint(settings) as http, AmqpEndpoint(settings.amqp, files=files) as amqp:
        yield {"https": http, "amqps": amqp}


async def failure(
    endpoint: Endpoint, scheme: str, port: int, trusted: Certificate, host: str = "localhost"
) -> EndpointError:
    """Why nothing is delivered there."""
    target = Target(f"{scheme}://{host}:{port}", f"amqp-exchange=x&ca-location={trusted.certificate}", "t")
    with pytest.raises(EndpointError) as caught:
        async with asyncio.timeout(PATIENT_S), endpoint.route(SHARD, INCARNATION, target) as route:
            await push_all(route, make_records(0, 1))
    return caught.value


@pytest.mark.parametrize("scheme", ["https", "amqps"])
@pytest.mark.parametrize(
    ("name", "age_days", "is_known", "why"),
    [
        ("other.example", 1, True, "ostname mismatch"),
        ("localhost", 10, True, "expired"),
        ("localhost", -10, True, "not yet valid"),
        ("localhost", 1, False, "self-signed"),
    ],
)
async def test_certificates_that_are_wrong(
    endpoints: Endpoints, tmp_path: Path, scheme: str, name: str, age_days: int, is_known: bool, why: str
) -> None:
    """One of another host, one that has expired or is not valid yet, and one of no known authority stop the topic."""
    shown = certificate(tmp_path / "shown", name, age_days=age_days)
    trusted = shown if is_known else certificate(tmp_path / "trusted", name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown.certificate, shown.key)

    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving_streams(serve, context=context) as port:
        error = await failure(endpoints[scheme], scheme, port, trusted)

    assert isinstance(error, EndpointMisconfigured)
    assert re.search(rf"localhost:{port}: its certificate is not trusted.*{why}", str(error))


@pytest.mark.parametrize("scheme", ["https", "amqps"])
async def test_a_full_name(endpoints: Endpoints, tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate of a host is that of its full name, too, which ends in a dot."""
    known_by_its_full_name(monkeypatch)
    own = certificate(tmp_path / "own", "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.certificate, own.key)
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(4))
        writer.close()

    async with serving_streams(serve, context=context) as port:
        error = await failure(endpoints[scheme], scheme, port, own, "localhost.")

    assert heard[0] in (b"POST", b"AMQP")
    assert isinstance(error, EndpointUnavailable)


@pytest.mark.parametrize("scheme", ["https", "amqps"])
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("waits", "no connection within 2 s|no answer in time"),
        ("ends", "the connection was closed before TLS was agreed on"),
        ("resets", "Connection reset by peer"),
        ("alert", "TLS failed .*handshake_failure"),
        ("noise", "TLS failed"),
    ],
)
async def test_handshakes_that_do_not_end(
    endpoints: Endpoints, tmp_path: Path, scheme: str, how: str, why: str
) -> None:
    """A server that waits, ends, resets or breaks off within the handshake passes: the topic is tried again."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(1 if how == "resets" else 1 << 16)
            if how == "resets":
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if how == "waits":
                await reader.read()
            writer.write({"alert": ALERT, "noise": NOISE}.get(how, b""))
        finally:
            writer.close()

    async with serving_streams(serve) as port:
        error = await failure(endpoints[scheme], scheme, port, certificate(tmp_path / "trusted", "localhost"))

    assert isinstance(error, EndpointUnavailable)
    assert re.search(rf"localhost:{port}: ({why})", str(error))
