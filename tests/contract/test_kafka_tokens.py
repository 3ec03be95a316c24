"""Tokens from a server that listens, with every answer that it may give, and URLs that are never asked."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from devkit.clusters.certificates import Certificate, certificate
from devkit.receivers.token_server import TokenServer, answer, token_server
from devkit.waits import PATIENT_S
from remora import endpoint_kinds
from remora.config import KafkaSettings, Settings
from remora.endpoints.kafka import KafkaEndpoint
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable
from remora.model.shard import Origin, Shard
from remora.model.topic import Target, Topic
from support.cancelling import Moment, Steps, leaves_nothing
from support.kafka_sender import INCARNATION

SHARD = Shard("shard")
SECRET = "never-shown-secret"
NOWHERE = "kafka://127.0.0.1:1"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A certificate of localhost and 127.0.0.1."""
    return certificate(tmp_path_factory.mktemp("tokens") / "tls", "localhost")


@pytest.fixture
def tokens(own: Certificate) -> Iterator[TokenServer]:
    """A server whose tokens no broker is shown."""
    with token_server(own.certificate, own.key) as running:
        yield running


def settings_for(*urls: str, timeout_s: float = PATIENT_S) -> KafkaSettings:
    return KafkaSettings(connect_timeout_s=timeout_s, ca_directories="/", token_endpoints=urls)


def target(url: str, ca: Path | None, uri: str = NOWHERE) -> Target:
    trusted = f"&ca-location={ca}" if ca is not None else ""
    args = (
        f"mechanism=OAUTHBEARER&sasl-oauthbearer-token-endpoint-url={quote(url)}&sasl-oauthbearer-client-id=remora"
        f"&sasl-oauthbearer-client-secret={SECRET}{trusted}"
    )
    return Target(uri, args, "t")


async def failure(meant: Target, settings: KafkaSettings) -> EndpointError:
    """Why a route cannot be opened."""
    async with asyncio.timeout(PATIENT_S), KafkaEndpoint(settings) as endpoint:
        with pytest.raises(EndpointError) as caught:
            async with endpoint.route(SHARD, INCARNATION, meant):
                pass
    return caught.value


# ------------------------------------------------------------------------------------ what is answered


GRANT = {"access_token": "a", "token_type": "Bearer", "expires_in": 60}


def mute(server: TokenServer) -> bytes:
    server.ends.wait(PATIENT_S)
    return b""


@pytest.mark.parametrize(
    ("script", "kind", "reason"),
    [
        (lambda _: answer(401, b'{"error": "invalid_client"}'), EndpointMisconfigured, "(401, invalid_client)"),
        (lambda _: answer(400, b'{"error": "invalid_scope"}'), EndpointMisconfigured, "(400, invalid_scope)"),
        (lambda _: answer(404, b"<html>"), EndpointMisconfigured, "refuses the client or its scope (404)"),
        (lambda _: answer(429, b""), EndpointUnavailable, "grants no token now (429)"),
        (lambda _: answer(503, b"busy"), EndpointUnavailable, "grants no token now (503)"),
        (lambda s: answer(302, b"", f"Location: {s.url}"), EndpointMisconfigured, "redirects (302), which is not"),
        (lambda s: answer(307, b"", f"Location: {s.url}"), EndpointMisconfigured, "redirects (307), which is not"),
        (lambda _: answer(200, b"<html>hello</html>"), EndpointMisconfigured, "its answer is no JSON object"),
        (lambda _: answer(200, b"{}"), EndpointMisconfigured, "has no access_token"),
        (
            lambda _: answer(200, json.dumps(GRANT | {"expires_in": None}).encode()),
            EndpointMisconfigured,
            "does not say in expires_in how many seconds",
        ),
        (lambda _: answer(200, b" " * (1 << 20)), EndpointUnavailable, "its answer is larger than 64 KiB"),
        (lambda _: b"HTTP/1.1 200 x\r\nx: " + b"y" * (1 << 20), EndpointUnavailable, "larger than 64 KiB"),
        (lambda _: b"SSH-2.0-OpenSSH_9.2\r\n", EndpointUnavailable, "something else than HTTP"),
        (
            lambda _: b"HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\nPRI",
            EndpointUnavailable,
            "something else than HTTP",
        ),
        (lambda _: b"HTTP/1.1 200 x\r\nContent-Length: 9\r\n\r\n{", EndpointUnavailable, "closed before the end"),
        (lambda _: b"", EndpointUnavailable, "closed before the end"),
    ],
)  # fmt: skip
async def test_answers_without_a_token(
    tokens: TokenServer, own: Certificate, script: Any, kind: type, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each answer that grants no token is said in its own words with the URL, once asked; no secret is in them."""
    caplog.set_level(logging.DEBUG)
    tokens.script = script

    exc = await failure(target(tokens.url, own.certificate), settings_for(tokens.url))

    assert type(exc) is kind
    assert str(exc).startswith(f"{tokens.url}: ")
    assert reason in str(exc)
    assert len(tokens.asked) == 1
    assert SECRET not in str(exc) + caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    "written",
    [
        lambda body: b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body),
        lambda body: b"HTTP/1.0 200 OK\r\n\r\n" + body,
        lambda body: b"HTTP/1.1 100 Continue\r\n\r\n" + answer(200, body),
    ],
    ids=["chunked", "ends with the connection", "behind an interim one"],
)
async def test_answers_with_a_token(tokens: TokenServer, own: Certificate, written: Any) -> None:
    """A token is read from an answer in whatever form HTTP gives it; then the broker is tried."""
    tokens.script = lambda _: written(json.dumps(GRANT).encode())

    exc = await failure(target(tokens.url, own.certificate), settings_for(tokens.url))

    assert "127.0.0.1:1: Connection refused" in str(exc)
    path, headers, body = tokens.asked[0]
    assert path == "/realms/remora/token"
    assert headers["Host"] == f"localhost:{tokens.port}"
    assert body == b"grant_type=client_credentials"


async def test_a_server_that_says_nothing(tokens: TokenServer, own: Certificate) -> None:
    """A server that is silent is given up within the time to connect, with that reason."""
    tokens.script = mute

    exc = await failure(target(tokens.url, own.certificate), settings_for(tokens.url, timeout_s=1.0))

    assert "no answer" in str(exc)
    assert isinstance(exc, EndpointUnavailable)


async def test_a_certificate_that_is_not_trusted(tokens: TokenServer) -> None:
    """Without ca-location the system's authorities decide, also where a topic has its brokers' not checked: no secret
    is sent to a server that they do not know."""
    meant = target(tokens.url, None)

    for args in (meant.args, f"{meant.args}&use-ssl=true&verify-ssl=false"):
        exc = await failure(replace(meant, args=args), settings_for(tokens.url))
        assert "its certificate is not trusted" in str(exc)

    assert tokens.asked == []


async def test_failed_requests_are_not_repeated_at_once(tokens: TokenServer, own: Certificate) -> None:
    """However many routes are tried while a server refuses, it is asked again only after a pause."""
    tokens.script = lambda _: answer(401, b"")
    meant = target(tokens.url, own.certificate)

    async with asyncio.timeout(PATIENT_S), KafkaEndpoint(settings_for(tokens.url)) as endpoint:
        endpoint._desks._chance = lambda: 1e9  # the pause is the longest one
        for mode in (endpoint.route, endpoint.exact):
            for _ in range(10):
                with pytest.raises(EndpointMisconfigured, match="401"):
                    async with mode(SHARD, INCARNATION, meant):
                        pass

    assert len(tokens.asked) == 1


async def test_topic_test_says_it(tokens: TokenServer, own: Certificate) -> None:
    """`remora topic test` has a step for the token, which ends the way where none is granted."""
    settings = Settings(kafka=settings_for(tokens.url))
    with socket.create_server(("127.0.0.1", 0)) as broker:
        uri = f"kafka://127.0.0.1:{broker.getsockname()[1]}"
        topic = Topic("t", "", "t", target(tokens.url, own.certificate, uri), origin=Origin.REMORA)
        tokens.script = lambda _: answer(401, b'{"error": "invalid_client"}')

        steps = [each async for each in endpoint_kinds.probe(topic, settings, sends_test=False)]

    assert (steps[-1].name, steps[-1].ok) == ("token", False)
    assert "401, invalid_client" in steps[-1].said


# --------------------------------------------------------------------------------- what is never asked


@contextmanager
def counting_listener() -> Iterator[tuple[int, list[int]]]:
    """A port of 127.0.0.1 and of ::1, and the connections that come to it."""
    taken: list[int] = []
    with socket.socket(socket.AF_INET6) as listener:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::", 0))
        listener.listen()

        def count() -> None:
            with suppress(OSError):  # the test ends
                while True:
                    listener.accept()[0].close()
                    taken.append(1)

        thread = threading.Thread(target=count)
        thread.start()
        try:
            yield listener.getsockname()[1], taken
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


HERE = "127.0.0.1:{port}"
ALLOWED = f"https://{HERE}/realms/remora/*"
NEVER = [
    # another scheme, or none
    f"http://{HERE}/realms/remora/token", f"HTTPS://{HERE}/realms/remora/token", f"//{HERE}/realms/remora/token",
    f"ftp://{HERE}/realms/remora/token", f"https:/{HERE}/realms/remora/token", f"{HERE}/realms/remora/token",
    f"https+unix://{HERE}/realms/remora/token", f"ws://{HERE}/realms/remora/token", "file:///etc/passwd",
    # another name of the same place
    "https://localhost:{port}/realms/remora/token", "https://127.1:{port}/realms/remora/token",
    "https://127.0.0.2:{port}/realms/remora/token", "https://2130706433:{port}/realms/remora/token",
    "https://0x7f000001:{port}/realms/remora/token", "https://0x7f.1:{port}/realms/remora/token",
    "https://0177.0.0.1:{port}/realms/remora/token", "https://127.0.0.01:{port}/realms/remora/token",
    "https://[::1]:{port}/realms/remora/token", "https://[::ffff:127.0.0.1]:{port}/realms/remora/token",
    "https://0.0.0.0:{port}/realms/remora/token", "https://[::]:{port}/realms/remora/token",
    "https://127.0.0.1.:{port}/realms/remora/token", "https://LOCALHOST:{port}/realms/remora/token",
    "https://127%2e0.0.1:{port}/realms/remora/token", "https://127。0。0。1:{port}/realms/remora/token",
    "https://localhost.localdomain:{port}/realms/remora/token", "https://169.254.169.254/latest/meta-data/",
    # the named one as the user of another, or behind one
    f"https://sso.example.org@{HERE}/realms/remora/token", f"https://u:p@{HERE}/realms/remora/token",
    f"https://localhost:{{port}}#@{HERE}/realms/remora/token", f"https://localhost:{{port}}?@{HERE}/realms/remora/token",
    f"https://localhost:{{port}}\\@{HERE}/realms/remora/token", "https://127.0.0.1.localhost:{port}/realms/remora/token",
    # another port
    "https://127.0.0.1:0{port}/realms/remora/token", "https://127.0.0.1/realms/remora/token",
    "https://127.0.0.1:{port}:{port}/realms/remora/token",
    # another path
    f"https://{HERE}", f"https://{HERE}/", f"https://{HERE}/realms/remora", f"https://{HERE}/realms/remorae/token",
    f"https://{HERE}/realms/remora/../admin/token", f"https://{HERE}/realms/remora/%2e%2e/admin/token",
    f"https://{HERE}/realms/remora/./token", f"https://{HERE}//realms/remora/token",
    f"https://{HERE}/realms/remora/..%2fadmin", f"https://{HERE}/realms/remora/\\..\\admin",
    f"https://{HERE}/realms/remora/token?x=1", f"https://{HERE}/realms/remora/token#x",
    f"https://{HERE}/realms/remora/*", f"https://{HERE}/admin/..;/realms/remora/token",
    # what ends or splits a line
    f"https://{HERE}/realms/remora/token%0d%0aX: y", f"https://{HERE}/realms/remora/to%09ken",
    f"https://{HERE}/realms/remora/token%00", f" https://{HERE}/realms/remora/token",
]  # fmt: skip


async def test_urls_that_are_never_asked(own: Certificate) -> None:
    """A URL beside those that the operator names makes no connection: not by a route of either mode, not by a look
    whether brokers are up, and not by a test of the topic."""
    with counting_listener() as (port, taken):
        kafka = settings_for(ALLOWED.format(port=port))
        async with asyncio.timeout(PATIENT_S), KafkaEndpoint(kafka) as endpoint:
            for url in NEVER:
                meant = target(url.format(port=port), own.certificate)
                with pytest.raises(EndpointMisconfigured, match="sasl-oauthbearer-token-endpoint-url"):
                    pytest.fail(f"{url}: {endpoint.check(meant)}")
                for mode in (endpoint.route, endpoint.exact):
                    with pytest.raises(EndpointMisconfigured, match="sasl-oauthbearer-token-endpoint-url"):
                        async with mode(SHARD, INCARNATION, meant):
                            pass
                assert await endpoint.up(meant) == frozenset()
                topic = Topic("t", "", "t", meant, origin=Origin.REMORA)
                steps = [each async for each in endpoint_kinds.probe(topic, Settings(kafka=kafka), sends_test=False)]
                assert steps[-1].ok is False
            assert taken == []

            named = target(f"https://127.0.0.1:{port}/realms/remora/token", own.certificate)
            with pytest.raises(EndpointUnavailable):
                async with endpoint.route(SHARD, INCARNATION, named):
                    pass

    assert len(NEVER) >= 40
    assert taken == [1]


@pytest.mark.parametrize("moment", ["waits", "woken"])
async def test_cancelled_requests(tokens: TokenServer, own: Certificate, moment: Moment) -> None:
    """A request for a token that is cancelled at any of its waits leaves no connection and no task."""
    settings, meant = settings_for(tokens.url), target(tokens.url, own.certificate)

    async def open_it(endpoint: KafkaEndpoint) -> None:
        with suppress(EndpointError):
            async with endpoint.route(SHARD, INCARNATION, meant):
                pass

    async def attempt(steps: Steps) -> None:
        async with KafkaEndpoint(settings) as endpoint:
            task = steps.work = asyncio.create_task(open_it(endpoint), name="work")
            await asyncio.wait([task])

    assert await leaves_nothing(attempt, moment) > 1
