"""The ingest server's bounds: time, connections and memory, against clients that are slow, silent or many."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import zstandard

from devkit.waits import PATIENT_S, until
from remora.servers.http import connection
from remora.servers.http.response import MOST_PIPELINED
from remora.servers.ingest import server
from support.ingest import PromptStore, ScriptedStore, Site, ingest_site, ndjson, own_topic, record, records

EVENTS = "/v1/topics/t/events"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server does every second, or gives some seconds to, is done sooner here."""
    monkeypatch.setattr(server, "LOOK_S", 0.05)
    monkeypatch.setattr(server, "GRACE_S", 0.3)
    monkeypatch.setattr(connection, "LINGER_S", 0.3)


@pytest.fixture(params=[ScriptedStore, PromptStore])
def store(request: pytest.FixtureRequest) -> ScriptedStore:
    """A store with one topic; of either kind, whose requests go either way."""
    found = request.param(own_topic("t"))
    assert isinstance(found, ScriptedStore)
    return found


@asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[tuple[StreamReader, StreamWriter]]:
    """A connection to the server whose socket is in the folder."""
    reader, writer = await asyncio.open_unix_connection(folder / "ingest.sock", limit=1 << 24)
    try:
        yield reader, writer
    finally:
        writer.close()


def head(path: str = EVENTS, *lines: str, method: str = "POST") -> bytes:
    """A request's head, complete."""
    first = (f"{method} {path} HTTP/1.1", "Host: remora", "Content-Type: application/json")
    return "\r\n".join([*first, *lines, "", ""]).encode()


def with_length(body: bytes, *lines: str) -> bytes:
    """A whole request."""
    return head(EVENTS, f"Content-Length: {len(body)}", *lines) + body


BODY = json.dumps(records("a")).encode()


async def answer(reader: StreamReader) -> tuple[int, Any]:
    """Status and document of the next answer."""
    async with asyncio.timeout(PATIENT_S):
        text = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = dict(line.lower().split(": ", 1) for line in text.split("\r\n")[1:] if line)
        body = await reader.readexactly(int(lines.get("content-length", "0")))
        return int(text.split()[1]), json.loads(body) if body else None


async def ended(reader: StreamReader) -> bytes:
    """What comes until the connection's end, which must come."""
    async with asyncio.timeout(PATIENT_S):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


def cut(site: Site, reason: str) -> float:
    """How many connections were cut for this reason."""
    return site.metric("remora_ingest_cut_connections_total", reason=reason)


# ------------------------------------------------------------------------------------------------ time


async def test_a_silent_connection_is_cut(
    store: ScriptedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that has been of use before."""
    async with (
        ingest_site(store, tmp_path) as site,
        connected(tmp_path) as (silent, _),
        connected(tmp_path) as (used, writer),
    ):
        writer.write(with_length(BODY))
        assert (await answer(used))[0] == 200

        monkeypatch.setattr(site.server._connections, "_idle_timeout_s", 0.2)
        assert await ended(silent) == b""
        assert await ended(used) == b""
        assert cut(site, "idle") == 2


async def test_slow_headers_are_cut(store: ScriptedStore, tmp_path: Path) -> None:
    """A client that sends a byte now and then holds nothing for longer than a request may take."""
    async with ingest_site(store, tmp_path, request_timeout_s=0.2) as site, connected(tmp_path) as (reader, writer):
        for byte in iter(head()[:-2] + b"X-Long: " + b"x" * 4000):
            writer.write(bytes([byte]))
            try:
                assert await asyncio.wait_for(reader.read(1), 0.02) == b""
                break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("it was never cut")
        assert cut(site, "slow") == 1


async def test_a_slow_body_is_refused_and_cut(store: ScriptedStore, tmp_path: Path) -> None:
    """408, then the connection's end; nothing was stored and the memory is given back."""
    async with ingest_site(store, tmp_path, request_timeout_s=0.2) as site, connected(tmp_path) as (reader, writer):
        writer.write(head(EVENTS, "Content-Length: 1000000") + b"{")

        status, problem = await answer(reader)
        assert (status, problem["code"]) == (408, "RequestTimeout")
        assert await ended(reader) == b""
        await until(lambda: site.server.held_bytes == 0)
        assert store.is_untouched


async def test_a_client_that_does_not_read_is_cut(store: ScriptedStore, tmp_path: Path) -> None:
    """Answers that nobody takes do not pile up."""
    async with ingest_site(store, tmp_path, request_timeout_s=0.3) as site:
        with socket.socket(socket.AF_UNIX) as deaf:
            deaf.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(deaf, str(tmp_path / "ingest.sock"))
            await loop.sock_sendall(deaf, head("/v1/openapi.json", "Content-Length: 0", method="GET") * 60)

            await until(lambda: cut(site, "unread") == 1)


async def test_a_client_that_does_not_read_its_last_answers_is_cut(store: ScriptedStore, tmp_path: Path) -> None:
    """However little of them is left to send, a connection that ends is not waited for without end."""
    async with ingest_site(store, tmp_path, request_timeout_s=0.3) as site:
        look, loop = head("/v1/openapi.json", "Content-Length: 0", method="GET"), asyncio.get_running_loop()
        last = head("/v1/openapi.json", "Content-Length: 0", "Connection: close", method="GET")
        with ExitStack() as clients:
            for before in range(10):  # of some all answers fit into the kernel, of some all but less than 64 KiB
                deaf = clients.enter_context(socket.socket(socket.AF_UNIX))
                deaf.setblocking(False)
                await loop.sock_connect(deaf, str(tmp_path / "ingest.sock"))
                await loop.sock_sendall(deaf, look * before + last)
            await until(lambda: bool(cut(site, "unread")))

            await until(lambda: site.server.connections == 0)


async def test_a_store_that_is_slow_cuts_nobody(
    store: ScriptedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once all of a request is there, only the store's own time-outs count."""
    async with ingest_site(store, tmp_path, request_timeout_s=0.1) as site, connected(tmp_path) as (reader, writer):
        store.gate.clear()
        writer.write(with_length(BODY))
        await store.asked.wait()
        monkeypatch.setattr(site.server._connections, "_idle_timeout_s", 0.1)
        async with connected(tmp_path) as (other, _):
            assert await ended(other) == b""  # so the server has looked after clients when both times were over

        store.gate.set()
        assert (await answer(reader))[0] == 200
        assert cut(site, "slow") == 0


# ------------------------------------------------------------------------------------------ connections


async def test_a_connection_too_many_is_closed(store: ScriptedStore, tmp_path: Path) -> None:
    """It ends at once, and when another one is gone there is room again."""
    async with ingest_site(store, tmp_path, max_connections=2) as site:
        async with connected(tmp_path) as (reader, writer), connected(tmp_path) as (_, last):
            for each in (writer, last):
                each.write(with_length(BODY))
            assert (await answer(reader))[0] == 200
            async with connected(tmp_path) as (refused, _):
                assert await ended(refused) == b""
            assert cut(site, "too many") == 1
        await until(lambda: site.server.connections == 0)
        async with connected(tmp_path) as (reader, writer):
            writer.write(with_length(BODY))
            assert (await answer(reader))[0] == 200


async def test_what_is_no_http_is_refused_quietly(
    store: ScriptedStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A problem document and the connection's end, counted, and no traceback in the log."""
    async with ingest_site(store, tmp_path) as site:
        begin = b"GET / HTTP/1.1\r\nHost: a\r\n"
        long, many = begin + b"X: " + b"x" * 5000, begin + b"X: 1\r\n" * 70
        strange = (b"\x16\x03\x01\x02\x00", b"HELLO\r\n\r\n", begin + b"Content-Length: x\r\n\r\n")
        for nonsense in (*strange, long, many):
            async with connected(tmp_path) as (reader, writer):
                writer.write(nonsense + b"\r\n")
                status, problem = await answer(reader)
                assert (status, problem["code"]) == (400, "BadRequest")
                assert await ended(reader) == b""
        assert site.metric("remora_ingest_refusals_total", code="BadRequest") == 5
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /v1/health HTTP/0.9\r\n\r\n",
        b"GET /v1/health\r\n\r\n",
        b"GET /v1/health HTTP/2.0\r\n\r\n",
        b"GET /v1/health HTTP/1.2\r\n\r\n",
        b"GET /v1/health HTTP/1.0\r\nno colon\r\n\r\n",
        b"GET /v1/health HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
        b"\x16\x03\x01\x02\x00\r\n",
    ],
)
async def test_a_broken_request_is_answered_in_http_1_1(store: ScriptedStore, tmp_path: Path, request_: bytes) -> None:
    """Whatever version it says, or does not say; with a problem document, and the connection ends."""
    async with ingest_site(store, tmp_path), connected(tmp_path) as (reader, writer):
        writer.write(request_)

        text = await ended(reader)

    head_, _, body = text.partition(b"\r\n\r\n")
    assert head_.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in head_.lower()
    assert json.loads(body)["code"] == "BadRequest"


async def test_a_request_of_http_1_0_is_taken(store: ScriptedStore, tmp_path: Path) -> None:
    """Old proxies and simple senders still speak it."""
    async with ingest_site(store, tmp_path), connected(tmp_path) as (reader, writer):
        writer.write(with_length(BODY).replace(b"HTTP/1.1", b"HTTP/1.0"))

        assert (await answer(reader))[0] == 200
        assert await ended(reader) == b""


async def test_pipelined_requests_are_answered_in_order(store: ScriptedStore, tmp_path: Path) -> None:
    """One after the other, and events are stored in the order in which they were sent."""
    async with ingest_site(store, tmp_path), connected(tmp_path) as (reader, writer):
        bodies = [json.dumps(records(*"k" * (n + 1))).encode() for n in range(20)]
        writer.write(b"".join(map(with_length, bodies)))

        answers = [(await answer(reader))[1]["stored"] for _ in bodies]
        assert answers == [n + 1 for n in range(20)]
        assert [len(events) for _, events, _ in store.published] == answers


# ---------------------------------------------------------------------------------------------- memory


async def test_bytes_under_way_are_bounded_over_all_requests(store: ScriptedStore, tmp_path: Path) -> None:
    """What does not fit beside the others is 503 SlowDown when its time is over, and fits when they are done."""
    bounds = {"max_request_bytes": 90_000, "max_held_bytes": 180_000, "request_timeout_s": 0.2}
    async with ingest_site(store, tmp_path, **bounds) as site, connected(tmp_path) as (first, writer):
        store.gate.clear()
        body = BODY + b" " * (90_000 - len(BODY))
        writer.write(with_length(body))
        await store.asked.wait()
        assert site.server.held_bytes == 90_000

        refused = await site.ask("POST", EVENTS, body)
        assert (refused.status, refused.code) == (503, "SlowDown")
        assert refused.headers["Retry-After"] == "1"
        store.gate.set()
        assert (await answer(first))[0] == 200
        assert (await site.ask("POST", EVENTS, body)).status == 200
        assert site.server.held_bytes == 0


async def test_requests_sent_ahead_are_left_in_the_socket(store: ScriptedStore, tmp_path: Path) -> None:
    """While one is answered, a client may send on and on: only some are read, and all are answered later."""
    request = with_length(BODY + b" " * 50_000)
    ahead = memoryview(request * 60)
    async with ingest_site(store, tmp_path) as site:
        store.gate.clear()
        with socket.socket(socket.AF_UNIX) as eager:
            eager.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(eager, str(tmp_path / "ingest.sock"))
            await loop.sock_sendall(eager, request)
            await store.asked.wait()
            sent = 0
            for _ in range(100):
                with contextlib.suppress(BlockingIOError):
                    sent += eager.send(ahead[sent:])
                await site.ask("GET", "/v1/health")
            assert sent < 1 << 20

            store.gate.set()
            await asyncio.wait_for(loop.sock_sendall(eager, ahead[sent:]), PATIENT_S)
            await until(lambda: len(store.published) == 61)


async def test_a_bounded_number_of_requests_sent_ahead_is_begun(tmp_path: Path) -> None:
    """Of two hundred small ones on one connection a few wait for the store at a time, and all are answered later."""
    store = PromptStore(own_topic("t"))
    async with ingest_site(store, tmp_path) as site, connected(tmp_path) as (_, writer):
        assert (await site.ask("POST", EVENTS, BODY)).status == 200  # from now on the topic is known
        store.gate.clear()
        writer.write(with_length(BODY) * 200)
        await until(lambda: site.server.held_bytes >= MOST_PIPELINED * len(BODY))
        for _ in range(20):
            await site.ask("GET", "/v1/health")
        held = site.server.held_bytes
        store.gate.set()
        await until(lambda: len(store.published) == 201)

    assert held == MOST_PIPELINED * len(BODY)


async def test_a_body_too_large_is_refused_before_it_is_sent(store: ScriptedStore, tmp_path: Path) -> None:
    """A client that asks first is told 413 and never 100."""
    async with ingest_site(store, tmp_path, max_request_bytes=100_000), connected(tmp_path) as (reader, writer):
        writer.write(head(EVENTS, "Content-Length: 100001", "Expect: 100-continue"))

        status, problem = await answer(reader)
        assert (status, problem["code"]) == (413, "EntityTooLarge")
        assert await ended(reader) == b""
        assert store.is_untouched


async def test_a_client_that_asks_first_is_told_to_go_on(store: ScriptedStore, tmp_path: Path) -> None:
    """100, then the answer to the body, as libcurl and so radosgw wants it for larger ones."""
    async with ingest_site(store, tmp_path), connected(tmp_path) as (reader, writer):
        writer.write(head(EVENTS, f"Content-Length: {len(BODY)}", "Expect: 100-continue"))
        assert (await answer(reader))[0] == 100

        writer.write(BODY)
        assert (await answer(reader))[0] == 200


async def test_a_client_of_http_1_0_is_never_told_to_go_on(store: ScriptedStore, tmp_path: Path) -> None:
    """Its expectation is ignored (RFC 9110, 10.1.1): what it gets first is the answer to its body."""
    async with ingest_site(store, tmp_path), connected(tmp_path) as (reader, writer):
        asked = head(EVENTS, f"Content-Length: {len(BODY)}", "Expect: 100-continue")
        writer.write(asked.replace(b"HTTP/1.1", b"HTTP/1.0"))
        writer.write(BODY)

        assert (await answer(reader))[0] == 200


async def test_a_body_is_bounded_whose_length_is_not_told(store: ScriptedStore, tmp_path: Path) -> None:
    """In chunks, or compressed a thousandfold: more than the bound is never held."""

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 10_000

    async with ingest_site(store, tmp_path, max_request_bytes=100_000) as site:
        chunked = await site.ask("POST", EVENTS, chunks())
        bomb = await site.ask("POST", EVENTS, gzip.compress(b" " * 50_000_000), {"Content-Encoding": "gzip"})
        worse = await site.ask("POST", EVENTS, zstandard.compress(b" " * 50_000_000), {"Content-Encoding": "zstd"})

        assert (chunked.status, chunked.code) == (413, "EntityTooLarge")
        assert (bomb.status, bomb.code) == (413, "EntityTooLarge")
        assert (worse.status, worse.code) == (413, "EntityTooLarge")
        assert site.server.held_bytes == 0
        assert store.is_untouched


@pytest.mark.parametrize("form", ["lines", "document", "document in a line"])
async def test_a_large_body_leaves_the_loop_to_others(store: ScriptedStore, tmp_path: Path, form: str) -> None:
    """While a request with thousands of events is worked through, others get their turn again and again."""
    given = [record(f"k{n}", opaqueData="x" * 900) for n in range(8000)]
    body = ndjson(*given) if form == "lines" else json.dumps({"Records": given}).encode()
    content_type = "application/json" if form == "document" else "application/x-ndjson"
    async with ingest_site(store, tmp_path) as site:
        large = asyncio.ensure_future(site.ask("POST", EVENTS, body, {"Content-Type": content_type}))
        turns = 0
        while not large.done():
            await site.ask("GET", "/v1/health")
            turns += 1

        assert (await large).json["stored"] == 8000
        assert turns > 10


# ------------------------------------------------------------------------------------------------- ends


async def test_a_client_that_leaves_in_its_body_changes_nothing(
    store: ScriptedStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Half a request is none; its memory is given back, and nobody has to act."""
    async with ingest_site(store, tmp_path) as site:
        async with connected(tmp_path) as (_, writer):
            writer.write(head(EVENTS, "Content-Length: 100000") + BODY)
            await until(lambda: site.server.held_bytes == 100_000)
        await until(lambda: site.server.held_bytes == 0 and site.server.connections == 0)

        assert store.is_untouched
        assert (await site.ask("POST", EVENTS, records("a"))).status == 200
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_a_client_that_leaves_before_its_answer_has_sent_all_the_same(
    store: ScriptedStore, tmp_path: Path
) -> None:
    """What is handed to the store is stored."""
    async with ingest_site(store, tmp_path) as site:
        store.gate.clear()
        async with connected(tmp_path) as (_, writer):
            writer.write(with_length(BODY))
            await store.asked.wait()
        await until(lambda: site.server.connections == 0)
        store.gate.set()
        await until(lambda: len(store.published) == 1)


@pytest.mark.parametrize("listen", ["unix", "tcp"])
async def test_a_client_that_ends_its_half_gets_its_answers(store: ScriptedStore, tmp_path: Path, listen: str) -> None:
    """To all of its requests that are whole, at once or later; then the connection ends."""
    where = {} if listen == "unix" else {"listen": "127.0.0.1:0"}
    async with ingest_site(store, tmp_path, **where) as site:
        for half in (b"", with_length(BODY)[:-1], b"POST /v1/to"):
            reader, writer = await (
                asyncio.open_unix_connection(tmp_path / "ingest.sock")
                if listen == "unix"
                else asyncio.open_connection(*site.server.address.removeprefix("http://").split(":"))
            )
            store.published.clear()
            store.asked.clear()
            store.gate.clear()
            writer.write(with_length(BODY) * 3 + half)
            writer.write_eof()
            await store.asked.wait()
            store.gate.set()

            assert [(await answer(reader))[0] for _ in range(3)] == [200] * 3
            assert await ended(reader) == b""
            assert len(store.published) == 3
            writer.close()
        await until(lambda: site.server.connections == 0)


@pytest.mark.parametrize("sent", [b"", b"POST /v1", with_length(BODY)[:-1]], ids=["nothing", "headers", "body"])
async def test_a_client_that_ends_its_half_too_early_is_cut(store: ScriptedStore, tmp_path: Path, sent: bytes) -> None:
    """Where there is nothing whole to answer, the connection ends at once."""
    async with ingest_site(store, tmp_path) as site, connected(tmp_path) as (reader, writer):
        writer.write(sent)
        writer.write_eof()

        assert await ended(reader) == b""
        await until(lambda: site.server.connections == 0)
        assert store.is_untouched


async def test_the_end_finishes_what_is_under_way(store: ScriptedStore, tmp_path: Path) -> None:
    """No new connection or request is taken, silent ones end, and the request in the store gets its answer."""
    async with (
        ingest_site(store, tmp_path) as site,
        connected(tmp_path) as (busy, writer),
        connected(tmp_path) as (idle, _),
    ):
        store.gate.clear()
        writer.write(with_length(BODY))
        await store.asked.wait()
        await until(lambda: site.server.connections == 2)

        site.server.end()
        assert await ended(idle) == b""
        with pytest.raises(OSError):
            await asyncio.open_unix_connection(tmp_path / "ingest.sock")
        writer.write(with_length(BODY))  # behind the one that is under way
        store.gate.set()
        assert (await answer(busy))[0] == 200
        assert await ended(busy) == b""
    assert len(store.published) == 1


async def test_a_request_that_arrives_at_the_end_is_refused(store: ScriptedStore, tmp_path: Path) -> None:
    """503 with Retry-After, for one whose connection was made before."""
    async with ingest_site(store, tmp_path) as site, connected(tmp_path) as (reader, writer):
        writer.write(head(EVENTS, f"Content-Length: {len(BODY)}")[:20])
        await until(lambda: site.server.receiving == 1)
        site.server.end()
        writer.write(head(EVENTS, f"Content-Length: {len(BODY)}")[20:] + BODY)

        status, problem = await answer(reader)
        assert (status, problem["code"]) == (503, "ServiceUnavailable")
        assert await ended(reader) == b""
        assert store.is_untouched


async def test_the_end_does_not_wait_for_slow_clients(
    store: ScriptedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body that does not come is given up after some seconds, long before its own time-out."""
    monkeypatch.setattr(server, "STORE_S", 3600.0)  # only what the store has is waited for so long
    async with asyncio.timeout(PATIENT_S), AsyncExitStack() as longer, ingest_site(store, tmp_path) as site:
        _, writer = await longer.enter_async_context(connected(tmp_path))
        writer.write(head(EVENTS, "Content-Length: 1000") + b"{")
        await until(lambda: site.server.held_bytes == 1000)
    assert store.is_untouched


async def test_a_client_that_sends_ahead_and_leaves_is_no_trouble(
    store: ScriptedStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What it has begun is finished, what was behind it is forgotten, and nobody has to act."""
    async with ingest_site(store, tmp_path) as site:
        store.gate.clear()
        async with connected(tmp_path) as (_, writer):
            writer.write(with_length(BODY))
            await store.asked.wait()
            writer.write(with_length(BODY) * 3)
            await writer.drain()
            await site.ask("GET", "/v1/health")
            writer.transport.abort()
        store.gate.set()
        await until(lambda: bool(store.published) and site.server.held_bytes == 0)
        assert (await site.ask("POST", EVENTS, records("a"))).status == 200
        assert site.metric("remora_crashes_total") == 0
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
