"""The client of the ingest API repeats what may be repeated, and says what came of it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from devkit.clusters.certificates import certificate
from remora.client import (
    Ambiguous,
    EventsRefused,
    IngestClient,
    IngestError,
    IngestMisconfigured,
    IngestUnavailable,
    NotPermitted,
    NotSequenced,
    Problem,
    RequestRejected,
    Reservation,
    ReservationGone,
    Taken,
    TopicNotFound,
)

Reply = Callable[[web.Request], web.StreamResponse | Awaitable[web.StreamResponse]]


@dataclass
class Asked:
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Server:
    """A server that answers by a script: one reply a request, the last one again and again."""

    replies: list[Reply]
    address: str = ""
    asked: list[Asked] = field(default_factory=list)
    connections: set[object] = field(default_factory=set)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Note the request and do what the script says."""
        body = await request.read()
        self.connections.add(request.transport)
        self.asked.append(Asked(request.method, request.path, dict(request.headers), body))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        found = reply(request)
        return found if isinstance(found, web.StreamResponse) else await found


@asynccontextmanager
async def serving(path: Path, *replies: Reply, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """A server on a Unix socket, or with TLS on loopback."""
    server = Server(list(replies))
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{tail:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        if tls:
            site: web.BaseSite = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
            await site.start()
            server.address = f"https://localhost:{runner.addresses[0][1]}"
        else:
            site = web.UnixSite(runner, str(path / "s"))
            await site.start()
            server.address = f"unix:{path / 's'}"
        yield server
    finally:
        await runner.cleanup()


def says(status: int, value: object = None, **headers: str) -> Reply:
    """A reply with JSON and headers; underscores of their names are hyphens."""
    given = {name.replace("_", "-"): text for name, text in headers.items()}
    body = b"" if value is None else msgspec.json.encode(value)
    return lambda _: web.Response(status=status, body=body, headers={"Content-Type": "application/json", **given})


def breaks(request: web.Request) -> web.StreamResponse:
    """The connection ends without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def hangs(_: web.Request) -> web.StreamResponse:
    """No answer for a long time."""
    await asyncio.sleep(3600)
    raise AssertionError("unreachable")


STORED = says(200, {"stored": 2, "repeated": False, "dropped_fields": 3})
FULL = says(503, {"code": "SlowDown", "detail": "queue t.3 is full"}, Retry_After="0")


async def test_records_are_sent_one_a_line(folder: Path) -> None:
    """Values and finished JSON alike; the answer says what was stored, and the token goes along."""
    async with serving(folder, STORED) as server, IngestClient(server.address, token="rmr_x") as client:
        taken = await client.publish("photos", [{"a": 1}, b' {"b":2}\n'])

    assert taken == Taken(2, repeated=False, dropped_fields=3)
    (asked,) = server.asked
    assert (asked.method, asked.path) == ("POST", "/v1/topics/photos/events")
    assert asked.body == b'{"a":1}\n{"b":2}\n'
    assert asked.headers["Content-Type"] == "application/x-ndjson"
    assert asked.headers["Authorization"] == "Bearer rmr_x"


@pytest.mark.parametrize("topic", ["", ".", ".."])
async def test_a_name_that_a_path_takes_for_its_own_word_is_no_topic(folder: Path, topic: str) -> None:
    """Nothing is asked with it: the path would be that of another resource, as `..` has events stored wherever
    notifications send them."""
    async with serving(folder, STORED) as server, IngestClient(server.address) as client:
        for call in (client.publish(topic, [b"{}"]), client.check_topic(topic), client.reserve(topic, [("b", "k", 1)])):
            with pytest.raises(TopicNotFound):
                await call

    assert not server.asked


async def test_a_topic_that_is_no_utf_8_is_asked_for_as_it_is(folder: Path) -> None:
    """Its bytes are escaped in the path, and the server says that there is none."""
    async with serving(folder, STORED) as server, IngestClient(server.address) as client:
        await client.publish("t\udcff", [b"{}"])

    assert [each.path for each in server.asked] == ["/v1/topics/t%FF/events"]


async def test_a_record_of_two_lines_is_not_sent(folder: Path) -> None:
    """It would be read as two, so that nothing is sent at all."""
    async with serving(folder, STORED) as server, IngestClient(server.address) as client:
        with pytest.raises(ValueError, match="on one line"):
            await client.publish("t", [b'{"a":\n1}'])

    assert server.asked == []


@pytest.mark.parametrize("failure", [FULL, breaks, says(507), says(502), says(504), says(429), says(408)])
async def test_a_repetition_has_the_same_key_and_body(folder: Path, failure: Reply) -> None:
    """Whatever went wrong, the server can recognise the next attempt; another call has another key."""
    async with serving(folder, failure, failure, STORED) as server, IngestClient(server.address) as client:
        await client.publish("t", [b"{}"])
        await client.publish("t", [b"{}"])
        await client.publish("t", [b"{}"], idempotency_key="mine")

    keys = [asked.headers["Idempotency-Key"] for asked in server.asked]
    assert len(keys) == 5
    assert keys[0] == keys[1] == keys[2]
    assert len({*keys}) == 3
    assert keys[4] == "mine"
    assert {asked.body for asked in server.asked} == {b"{}\n"}


async def test_a_trace_context_goes_with_every_attempt(folder: Path) -> None:
    """And with the commit of a reservation; a call without one has no such header."""
    given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with serving(folder, FULL, STORED) as server, IngestClient(server.address) as client:
        await client.publish("t", [b"{}"], traceparent=given)
        await client.commit(Reservation("t.1", 1, 120), [b"{}"], traceparent=given)
        await client.publish("t", [b"{}"])

    assert [asked.headers.get("traceparent") for asked in server.asked] == [given, given, given, None]


async def test_the_client_waits_as_long_as_it_is_asked_to(folder: Path) -> None:
    """Between two attempts lies at least the time of Retry-After."""
    times: list[float] = []

    def full(request: web.Request) -> web.StreamResponse:
        times.append(asyncio.get_running_loop().time())
        return web.Response(status=503, headers={"Retry-After": "1"}) if len(times) == 1 else _stored(request)

    def _stored(request: web.Request) -> web.StreamResponse:
        found = STORED(request)
        assert isinstance(found, web.StreamResponse)
        return found

    async with serving(folder, full) as server, IngestClient(server.address) as client:
        await client.publish("t", [b"{}"])

    assert times[1] - times[0] >= 1


def limited(seconds: int) -> Reply:
    """The limit of a token is used up for so long."""
    return lambda _: web.Response(status=429, headers={"Retry-After": str(seconds)})


async def test_what_a_limit_asks_for_does_not_count_against_the_deadline(folder: Path) -> None:
    """A sender that is too quick for its limit waits as told, and its events are stored; a limit that lets nothing
    pass for an hour ends like any failure."""
    async with serving(folder, limited(3), STORED) as server, IngestClient(server.address, deadline_s=2.5) as client:
        await client.publish("t", [b"{}"])
        assert len(server.asked) == 2
    async with serving(folder, limited(3600)) as server, IngestClient(server.address, deadline_s=0.5) as client:
        with pytest.raises(IngestUnavailable, match="status 429"):
            await client.publish("t", [b"{}"])


async def test_a_limit_that_stays_is_given_up(folder: Path) -> None:
    """Waits for a rate limit end before they come to more than is allowed for them, and the error says what was
    waited for; nothing is stored, and that is known."""
    async with serving(folder, limited(1)) as server, IngestClient(server.address, limited_s=1.5) as client:
        with pytest.raises(
            IngestUnavailable, match="1 s of waiting for a rate limit; the limit asks for 1 s"
        ) as caught:
            await client.publish("t", [b"{}"])

    assert len(server.asked) == 2
    assert not caught.value.outcome_unknown


@pytest.mark.parametrize(
    ("failure", "unknown", "text"),
    [
        (FULL, False, "queue t.3 is full"),
        (breaks, True, "the connection broke"),
        (hangs, True, "no answer in time"),
        (says(503, {"code": "StoreUnavailable", "detail": "the OSDs are away"}), True, "the OSDs are away"),
        (says(504), True, "status 504"),
    ],
)
async def test_the_deadline_ends_all_attempts(folder: Path, failure: Reply, unknown: bool, text: str) -> None:
    """The error has the last reason, and tells whether an attempt may have been carried out."""
    hanging = failure is hangs  # a process that stands still for a second has begun to ask all the same
    async with (
        serving(folder, failure) as server,
        IngestClient(server.address, deadline_s=2 if hanging else 0.3, attempt_s=1.5 if hanging else 35) as client,
    ):
        with pytest.raises(IngestUnavailable, match=text) as caught:
            await client.publish("t", [b"{}"])

    assert caught.value.outcome_unknown is unknown
    assert caught.value.retriable
    assert len(server.asked) >= 1


async def test_one_doubtful_attempt_leaves_the_outcome_unknown(folder: Path) -> None:
    """A connection that broke first is not forgotten when the later attempts were refused."""
    async with serving(folder, breaks, FULL) as server, IngestClient(server.address, deadline_s=1) as client:
        with pytest.raises(IngestUnavailable) as caught:
            await client.publish("t", [b"{}"])

    assert caught.value.outcome_unknown


async def test_a_server_that_comes_back_is_found(folder: Path) -> None:
    """Attempts go on while nobody listens, and succeed when somebody does."""
    async with IngestClient(f"unix:{folder / 's'}") as client:
        sending = asyncio.create_task(client.publish("t", [b"{}"]))
        await asyncio.wait([sending], timeout=0.2)
        assert not sending.done()
        async with serving(folder, STORED):
            assert (await sending).events == 2


async def test_a_server_that_is_away_has_stored_nothing(folder: Path) -> None:
    """Where no attempt reached anybody the outcome is known."""
    async with IngestClient(f"unix:{folder / 's'}", deadline_s=0.3) as client:
        with pytest.raises(IngestUnavailable, match="cannot connect") as caught:
            await client.publish("t", [b"{}"])

    assert not caught.value.outcome_unknown


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (404, "NoSuchTopic", TopicNotFound),
        (404, "NotSequenced", NotSequenced),
        (409, "TopicClosed", TopicNotFound),
        (401, "Unauthorized", NotPermitted),
        (403, "", NotPermitted),
        (422, "MalformedEvent", EventsRefused),
        (422, "IdempotencyKeyReused", Ambiguous),
        (413, "TooManyEvents", EventsRefused),
        (413, "", EventsRefused),
        (400, "", EventsRefused),
        (410, "ReservationExpired", ReservationGone),
        (404, "NoSuchReservation", ReservationGone),
        (409, "ReservationDecided", Ambiguous),
        (409, "ReservationMismatch", EventsRefused),
        (413, "ReservationExceeded", EventsRefused),
        (404, "NotFound", RequestRejected),
        (500, "StoreDamaged", RequestRejected),
        (302, "", RequestRejected),
    ],
)
async def test_a_refusal_is_raised_at_once(folder: Path, status: int, code: str, expected: type[IngestError]) -> None:
    """As the class that says what may help, with the whole problem document, after one attempt."""
    document = {
        "code": code,
        "title": "T",
        "detail": "record 3: so",
        "record": 3,
        "line": 4,
        "field": "s3",
        "type": "u",
    }
    reply = says(status, document, Location="/elsewhere")
    async with serving(folder, reply) as server, IngestClient(server.address) as client:
        with pytest.raises(IngestError, match="record 3: so") as caught:
            await client.publish("t", [b"{}"])

    assert type(caught.value) is expected
    assert caught.value.problem == Problem(status, code, "T", "record 3: so", 3, 4, "s3")
    assert not caught.value.retriable
    assert len(server.asked) == 1


@pytest.mark.parametrize("body", [b"<html>no</html>", b"", b"[1]", b'{"detail":5}', b"\xff\xfe"])
async def test_an_answer_that_is_no_problem_document_is_shown(folder: Path, body: bytes) -> None:
    """What a proxy in between says is part of the error."""

    def refuses(_: web.Request) -> web.StreamResponse:
        return web.Response(status=403, body=body)

    async with serving(folder, refuses) as server, IngestClient(server.address) as client:
        with pytest.raises(NotPermitted, match="status 403") as caught:
            await client.publish("t", [b"{}"])

    assert caught.value.problem is not None
    assert body.decode("utf-8", "replace") in str(caught.value)


@pytest.mark.parametrize("body", [b"", b"ok", b"{}", b'{"stored":"2"}'])
async def test_success_that_does_not_say_what_was_stored_is_an_error(folder: Path, body: bytes) -> None:
    """Something else listens there; its good will is not taken for stored events."""
    async with serving(folder, lambda _: web.Response(body=body)) as server, IngestClient(server.address) as client:
        with pytest.raises(RequestRejected, match="none of the ingest API's"):
            await client.publish("t", [b"{}"])


async def test_two_steps(folder: Path) -> None:
    """Room is reserved by bucket, key and bytes, and committed with the records under the reservation's id."""
    reserved = says(201, {"reservation": "t.1a", "events": 2, "expires_in_seconds": 120})
    async with serving(folder, reserved, STORED) as server, IngestClient(server.address) as client:
        reservation = await client.reserve("t", [("b", "k", 500), ("b", "é", 600)])
        taken = await client.commit(reservation, [b"{}", b"{}"])

    assert reservation == Reservation("t.1a", 2, 120.0)
    assert taken.events == 2
    first, second = server.asked
    assert (first.method, first.path) == ("POST", "/v1/topics/t/reservations")
    assert msgspec.json.decode(first.body) == {
        "events": [{"bucket": "b", "object": "k", "bytes": 500}, {"bucket": "b", "object": "é", "bytes": 600}]
    }
    assert (second.method, second.path, second.body) == ("PUT", "/v1/reservations/t.1a", b"{}\n{}\n")


async def test_a_block_that_fails_aborts_its_reservation(folder: Path) -> None:
    """Its own error comes through, also when the abort fails; a block that ends aborts nothing."""
    reserved = says(201, {"reservation": "t.1a", "events": 1, "expires_in_seconds": 120})
    script = (reserved, says(204), reserved, says(409), reserved)
    async with serving(folder, *script) as server, IngestClient(server.address) as client:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await _fail_in_a_block(client)
        async with client.reserved("t", [("b", "k", 500)]):
            pass

    assert [asked.method for asked in server.asked] == ["POST", "DELETE", "POST", "DELETE", "POST"]


async def _fail_in_a_block(client: IngestClient) -> None:
    async with client.reserved("t", [("b", "k", 500)]):
        raise ZeroDivisionError


async def test_connections_are_bounded_and_used_again(folder: Path) -> None:
    """However many calls are made at once, no more connections are open than asked for."""
    async with serving(folder, STORED) as server, IngestClient(server.address, connections=3) as client:
        await asyncio.gather(*(client.publish("t", [b"{}"]) for _ in range(60)))

    assert len(server.asked) == 60
    assert len(server.connections) <= 3


async def test_a_large_body_is_sent_whole(folder: Path) -> None:
    """Also beyond a megabyte, and again after a failure."""
    lines = b'{"k":"%b"}\n' % (b"x" * 3_000_000)
    async with serving(folder, breaks, STORED) as server, IngestClient(server.address) as client:
        await client.publish_ndjson("t", lines)

    assert [asked.body for asked in server.asked] == [lines, lines]


@pytest.mark.parametrize(
    "address",
    [
        "",
        "unix:",
        "unix:run/s",
        "localhost:80",
        "ftp://h:1",
        "http:h",
        "http://",
        "http://h/x",
        "http://u@h",
        "http://h:99999",
        "http://h:x",
        "http://h:0",
        "http://[::1",
        "http://a b",
        "http://:80",
        "http://\udcff",
    ],
)
def test_other_addresses_are_refused(address: str) -> None:
    """Only the three documented forms are taken; the message names them."""
    with pytest.raises(IngestMisconfigured, match="unix:/path"):
        IngestClient(address)


async def test_tls_needs_a_trusted_certificate(folder: Path) -> None:
    """With the server's authority events go through; without it nothing is sent, and nothing is tried again."""
    made = certificate(folder / "tls", "localhost")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(made.certificate, made.key)
    async with serving(folder, STORED, tls=tls) as server:
        async with IngestClient(server.address, ca_file=made.certificate) as client:
            assert (await client.publish("t", [b"{}"])).events == 2
        async with IngestClient(server.address) as client:
            with pytest.raises(IngestMisconfigured, match=r"its certificate is not trusted: [^(]+$"):
                await client.publish("t", [b"{}"])

    assert len(server.asked) == 1


async def test_a_server_without_tls_is_named() -> None:
    """An https:// address where plain HTTP is spoken is told at once, and without the words of a library."""

    async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(hello, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        async with IngestClient(f"https://127.0.0.1:{port}") as client:
            with pytest.raises(IngestMisconfigured, match=r"it does not speak TLS; is it http://\?$"):
                await client.publish("t", [b"{}"])


async def test_a_refused_connection_is_told_plainly() -> None:
    """Nobody listens: the system's own words, without the tuple that asyncio adds."""
    async with IngestClient("http://127.0.0.1:1", deadline_s=0) as client:
        with pytest.raises(IngestUnavailable, match="cannot connect: Connection refused; tried"):
            await client.publish("t", [b"{}"])


async def test_a_file_without_certificates_is_refused(folder: Path) -> None:
    """Missing and unreadable authorities are named when the client is entered."""
    (folder / "empty.pem").write_text("nothing")
    for name in ("missing.pem", "empty.pem"):
        with pytest.raises(IngestMisconfigured, match=name):
            async with IngestClient("https://localhost:1", ca_file=folder / name):
                pass


async def test_a_client_belongs_into_a_block() -> None:
    """Outside there is nothing that would close its connections."""
    with pytest.raises(RuntimeError, match="async with"):
        await IngestClient("unix:/x").publish("t", [b"{}"])


async def test_a_server_that_does_not_answer_is_told_while_it_is_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again and again during one attempt, with how long the request has been tried."""
    monkeypatch.setattr("remora.client.ingest._SILENT_S", 0.01)
    said: list[str] = []
    twice = asyncio.Event()

    def tell(why: str, elapsed_s: float) -> None:
        assert elapsed_s > 0
        said.append(why)
        if len(said) == 2:
            twice.set()

    async with serving(folder, hangs) as server, IngestClient(server.address) as client:
        client.on_wait = tell
        asking = asyncio.create_task(client.check_topic("t"))
        await twice.wait()
        asking.cancel()
        await asyncio.wait([asking])

    assert set(said) == {f"{server.address}: no answer yet"}
