"""Requests as bytes: what is a request and where it ends must never depend on how its bytes arrive."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable, Coroutine, Iterable
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from remora.servers.http import connection as served
from remora.servers.http.begun import Callback, in_task
from remora.servers.http.connection import ServedConnection
from remora.servers.http.head import HeadReader, NotARequest
from remora.servers.http.request import BodyBroken, ChunkDecoder, Peer, Request
from remora.servers.http.response import Response

Seen = tuple[str, bytes, bytes]
"""Method, target and body of a request that was taken."""


class Wire:
    """A transport that keeps what is written, and is read whether it wants to or not."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.is_closed = False
        self.is_held = False
        self._socket, self._other = socket.socketpair()

    def release(self) -> None:
        self._socket.close()
        self._other.close()

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.sent += data

    def close(self) -> None:
        self.is_closed = True

    abort = write_eof = close

    def is_closing(self) -> bool:
        return self.is_closed

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None:
        self.is_held = True

    def resume_reading(self) -> None:
        self.is_held = False

    def get_extra_info(self, name: str) -> socket.socket | None:
        return self._socket if name == "socket" else None


class Clerk:
    """A server of one connection that takes everything, and remembers what it was."""

    stopping = False
    is_paused = False

    def __init__(self, *, at_once: bool) -> None:
        self.seen: list[Seen] = []
        self._at_once = at_once
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(self, request: Request, connection: Peer, answered: Callable[[Response], None]) -> None:
        answered(await self._answer(request))

    async def _answer(self, request: Request) -> Response:
        if self._at_once and request.body is not None:
            self._take(request, request.body)
            answered = Callback[Response]()
            asyncio.get_running_loop().call_soon(answered, Response(200, b"%d" % len(self.seen)))
            return await answered
        await in_task()
        body = b""
        try:
            while piece := await request.content.read():
                body += piece
        except BodyBroken:
            return Response(400)
        self._take(request, body)
        return Response(200, b"%d" % len(self.seen))

    def refuse(self, request: Request | None, exc: Exception, peer: str) -> Response:
        assert isinstance(exc, NotARequest), exc
        response = Response(400)
        response.close()
        return response

    def _take(self, request: Request, body: bytes) -> None:
        self.seen.append((request.head.method, request.head.target, body))

    def made(self, connection: ServedConnection) -> None:
        """Nothing."""

    def lost(self, connection: ServedConnection) -> None:
        """Nothing."""

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def rest(self) -> None:
        """Return when nothing more happens by itself."""
        for _ in range(50):
            await asyncio.sleep(0)


async def spoken(
    pieces: Iterable[bytes], *, at_once: bool = True, ends: bool = False
) -> tuple[list[Seen], list[int], bool]:
    """What a connection takes these bytes for: the requests, the statuses of its answers, and whether it has ended.

    With `ends` the client sends nothing more behind them, and says so at once.
    """
    clerk, wire = Clerk(at_once=at_once), Wire()
    connection = ServedConnection(clerk, clerk)
    connection.connection_made(cast(asyncio.Transport, wire))
    for piece in pieces:
        if wire.is_closed:
            break
        connection.data_received(piece)
        if not ends:
            await clerk.rest()
    if ends:
        assert connection.eof_received()
        await clerk.rest()
    while wire.is_held:  # what was held up would be read later
        await clerk.rest()
    statuses = [int(part[:3]) for part in bytes(wire.sent).split(b"HTTP/1.1 ")[1:]]
    connection.connection_lost(None)
    await clerk.rest()
    wire.release()
    return clerk.seen, statuses, wire.is_closed


def cut(data: bytes, at: Iterable[int]) -> list[bytes]:
    """The same bytes in pieces."""
    places = sorted({0, len(data), *(place % (len(data) + 1) for place in at)})
    return [data[begin:end] for begin, end in pairwise(places)]


def chunked(body: bytes, sizes: Iterable[int]) -> bytes:
    """A body in chunks of these lengths, and the rest in one."""
    parts, begin = [], 0
    for size in (*sizes, len(body)):
        if piece := body[begin : begin + size]:
            parts.append(b"%x;note=1\r\n%b\r\n" % (len(piece), piece))
        begin += size
    return b"".join(parts) + b"0\r\nX-Trailer: 1\r\n\r\n"


bodies = st.binary(max_size=40) | st.just(b"0\r\n\r\nGET / HTTP/1.1\r\n\r\n")


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, Seen]:
    """A request, and what it is."""
    method = draw(st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD"]))
    target = draw(st.sampled_from([b"/v1/topics/t/events", b"/", b"/v1/health?x=%20y", b"http://h/v1/topics"]))
    body = draw(bodies)
    lines = [b"%b %b HTTP/1.1" % (method.encode(), target), b"Host: remora"]
    lines += draw(st.lists(st.sampled_from([b"X-A: 1", b"x-a:2 ", b"Accept: */*", b"Empty:"]), max_size=3))
    framing = draw(st.sampled_from(["length", "chunks", "none"]))
    if framing == "chunks":
        sent = chunked(body, draw(st.lists(st.integers(1, 9), max_size=4)))
        lines.append(draw(st.sampled_from([b"Transfer-Encoding: chunked", b"transfer-encoding:  CHUNKED"])))
    else:
        body = body if framing == "length" else b""
        sent = body
        lines += [b"Content-Length: %d" % len(body)] if framing == "length" else []
    return b"\r\n".join([*lines, b"", b""]) + sent, (method, target, body)


streams = st.lists(requests(), min_size=1, max_size=5)
places = st.lists(st.integers(0, 2000), max_size=12)


@settings(max_examples=100, deadline=None)
@given(stream=streams, at=places, at_once=st.booleans())
def test_requests_are_the_same_however_they_arrive(
    stream: list[tuple[bytes, Seen]], at: list[int], at_once: bool
) -> None:
    """Pipelined requests in any pieces are taken as they were made, each once and in order, and all are answered."""
    data = b"".join(sent for sent, _ in stream)

    seen, statuses, is_closed = asyncio.run(spoken(cut(data, at), at_once=at_once))

    assert seen == [made for _, made in stream]
    assert statuses == [200] * len(stream)
    assert not is_closed


WRONG = [
    *(b"\r", b"\n", b"\r\n", b"\0", b" ", b":", b"0", b"-1", b"\xff"),
    *(b"Transfer-Encoding: x\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 3\r\n"),
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Requests of which some bytes were changed, left out or put in."""
    data = bytearray(b"".join(sent for sent, _ in draw(streams)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data)))
        wrong = draw(st.sampled_from(WRONG))
        data[place : place + draw(st.integers(0, 3))] = draw(st.just(b"") | st.just(wrong))
    return bytes(data)


@settings(max_examples=200, deadline=None)
@given(data=mutated(), at=places)
@example(data=b"GET / HTTP/1.1\r\nHost: a\r\nA: b\r\n\r", at=[3])
@example(data=b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", at=[49])
def test_broken_requests_break_nothing(data: bytes, at: list[int]) -> None:
    """Whatever comes, in one piece or in many, the same requests are taken; behind a refusal comes nothing more."""
    whole = asyncio.run(spoken([data]))
    seen, statuses, is_closed = asyncio.run(spoken(cut(data, at)))

    assert (seen, statuses, is_closed) == whole
    assert statuses.count(200) == len(seen)
    if 400 in statuses:
        assert statuses.index(400) == len(statuses) - 1
        assert is_closed


POST = b"POST /v1/topics/t/events HTTP/1.1\r\nHost: a\r\n"
BEHIND = b"GET /v1/health HTTP/1.1\r\nHost: a\r\n\r\n"
SMUGGLED = {
    "both framings": POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both, the other way": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "two lengths in one": POST + b"Content-Length: 3, 3\r\n\r\nabc",
    "a length with a sign": POST + b"Content-Length: +3\r\n\r\nabc",
    "a negative length": POST + b"Content-Length: -3\r\n\r\nabc",
    "a length in hex": POST + b"Content-Length: 0x3\r\n\r\nabc",
    "an empty length": POST + b"Content-Length:\r\n\r\nabc",
    "a length beyond all": POST + b"Content-Length: 99999999999999999999\r\n\r\nabc",
    "another coding": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "two codings": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "a coding not last": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a disguised coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": POST.replace(b"/1.1", b"/1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a blank before the colon": POST + b"Content-Length : 3\r\n\r\nabc",
    "a folded line": POST + b"X: a\r\n b\r\n\r\n",
    "a folded length": POST + b"Content-Length:\r\n 3\r\n\r\nabc",
    "a bare LF": POST + b"X: a\nContent-Length: 3\r\n\r\nabc",
    "bare LFs at the end": b"POST / HTTP/1.1\nHost: a\n\n",
    "a bare CR": POST + b"X: a\rContent-Length: 3\r\n\r\nabc",
    "a NUL in a value": POST + b"X: a\0b\r\n\r\n",
    "a NUL in a name": POST + b"X\0: a\r\n\r\n",
    "a bad name": POST + b"X(y): a\r\n\r\n",
    "no name": POST + b": a\r\n\r\n",
    "no colon": POST + b"Content-Length 3\r\n\r\nabc",
    "no host": b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "no host beside one in the target": b"POST http://a/ HTTP/1.1\r\n\r\n",
    "two hosts": POST + b"Host: b\r\n\r\n",
    "the same host twice": POST + b"hOST: a\r\n\r\n",
    "a host with a user": b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n",
    "a host with a path": b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "a host with a blank": b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
    "a host whose port is none": b"GET / HTTP/1.1\r\nHost: a:b\r\n\r\n",
    "two hosts in HTTP/1.0": b"GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n",
    "a blank in the target": b"POST /a b HTTP/1.1\r\nHost: a\r\n\r\n",
    "no chunk length": POST + b"Transfer-Encoding: chunked\r\n\r\n\r\n\r\n",
    "a chunk length with a sign": POST + b"Transfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n",
    "a chunk length of 0x": POST + b"Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
    "a chunk length beyond all": POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff3\r\nabc\r\n0\r\n\r\n",
    "a chunk too long": POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
    "a chunk with a bare LF": POST + b"Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
    "a long extension": POST + b"Transfer-Encoding: chunked\r\n\r\n3;" + b"x" * 2000 + b"\r\nabc\r\n0\r\n\r\n",
    "a trailer that is none": POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nno colon\r\n\r\n",
    "long trailers": POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + (b"X: " + b"y" * 900 + b"\r\n") * 10 + b"\r\n",
    "a long target": b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    "a long value": POST + b"X: " + b"y" * 5000 + b"\r\n\r\n",
    "a long head": POST + (b"X: " + b"y" * 4000 + b"\r\n") * 20 + b"\r\n",
    "many headers": POST + b"X: y\r\n" * 70 + b"\r\n",
}


def in_bits(data: bytes) -> list[bytes]:
    """The bytes one by one; of a request that is long for its many equal bytes, some at a time: 600 bits or so."""
    size = 1 + len(data) // 600
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("cut_up", [lambda data: [data], in_bits], ids=["at once", "byte by byte"])
@pytest.mark.parametrize("data", SMUGGLED.values(), ids=SMUGGLED)
async def test_what_others_could_read_otherwise_is_refused(data: bytes, cut_up: Callable[[bytes], list[bytes]]) -> None:
    """400 and the connection's end: neither the request nor what seems to stand behind it is taken."""
    seen, statuses, is_closed = await spoken(cut_up(data + BEHIND))

    assert (seen, statuses, is_closed) == ([], [400], True)


@settings(max_examples=100, deadline=None)
@given(body=bodies, sizes=st.lists(st.integers(1, 9), max_size=4), at=places, more=bodies)
def test_chunks_in_any_pieces_are_the_body(body: bytes, sizes: list[int], at: list[int], more: bytes) -> None:
    """The decoder takes its own bytes, whatever the pieces, and leaves what stands behind its end."""
    decoder, left, found = ChunkDecoder(), bytearray(), b""

    for piece in cut(chunked(body, sizes) + more, at):
        left += piece
        found += decoder.decode(left)

    assert decoder.is_whole
    assert (found, bytes(left)) == (body, more)


@pytest.mark.parametrize("host", [b"", b"a", b"A.b-c_d:80", b"127.0.0.1:", b"[::1]:9700", b"[fe80::1%25eth0]", b"%41"])
async def test_a_request_with_a_host_is_taken(host: bytes) -> None:
    """Whatever name or address of this host a client used, with a port or none; without one at all in HTTP/1.0."""
    named = BEHIND.replace(b"Host: a", b"Host: " + host)

    assert (await spoken([named]))[1] == [200]
    assert (await spoken([b"GET / HTTP/1.0\r\n\r\n"]))[1] == [200]


async def test_a_request_to_upgrade_is_answered_as_any_other() -> None:
    """curl asks for HTTP/2 in this way, and goes on in HTTP/1.1; so does what comes behind it."""
    upgrade = POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc"

    seen, statuses, is_closed = await spoken([upgrade + BEHIND])

    assert [body for _, _, body in seen] == [b"abc", b""]
    assert (statuses, is_closed) == ([200, 200], False)


async def test_empty_lines_before_a_request_are_passed_over() -> None:
    """Some clients send one behind a body."""
    seen, statuses, _ = await spoken([b"\r\n", b"\r", b"\n" + BEHIND + b"\r\n" + BEHIND])

    assert len(seen) == 2
    assert statuses == [200, 200]


@pytest.mark.parametrize("turn_s", [served.AT_ONCE_S, -1.0], ids=["in-one-turn", "in-a-turn-each"])
async def test_whole_requests_are_answered_behind_the_end_of_what_is_sent(
    turn_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks or with a length, and those that were sent ahead of others; half a request is forgotten."""
    monkeypatch.setattr(served, "AT_ONCE_S", turn_s)
    chunks = POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b"abc", [2])
    for half in (b"", chunks[:-1], BEHIND[:-1], POST + b"Content-Length: 3\r\n\r\nab"):
        for at_once in (True, False):
            data = chunks + BEHIND + chunks + half

            seen, statuses, is_closed = await spoken([data], at_once=at_once, ends=True)

            assert [body for _, _, body in seen] == [b"abc", b"", b"abc"]
            assert (statuses, is_closed) == ([200] * 3, True)


async def test_nothing_is_read_behind_the_last_request() -> None:
    """A client that says `Connection: close` has its answer, and what it sends behind it is no request."""
    last = BEHIND.replace(b"Host: a", b"Host: a\r\nConnection: close")

    seen, statuses, is_closed = await spoken([last + BEHIND])

    assert (len(seen), statuses, is_closed) == (1, [200], True)


def test_a_head_gives_its_headers_by_any_case() -> None:
    """The first of several values, all of them, and what stands around a value is no part of it."""
    data = b"GET / HTTP/1.1\r\nHost: a\r\nX-Key: \t a b \t\r\nx-KEY:c\r\nY:\r\n\r\nrest"
    found = HeadReader().read(data, 0)

    assert found is not None
    head, end = found
    assert data[end:] == b"rest"
    assert head.headers.get(b"x-key") == "a b"
    assert head.headers.every(b"x-key") == ["a b", "c"]
    assert head.headers.get(b"y", "?") == ""
    assert (head.length, head.keeps_alive, head.version, head.path) == (0, True, "1.1", "/")


async def test_a_request_is_let_go_with_its_answer() -> None:
    """Its body is not kept until the garbage collector runs, which is seldom in a worker."""

    def kept() -> int:
        return sum(isinstance(each, Request) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    before = kept()
    try:
        for at_once in (True, False):
            body = POST + b"Content-Length: 3\r\n\r\nabc"
            _, statuses, _ = await spoken([body * 2, body[:-1], b"c"], at_once=at_once)
            assert statuses == [200] * 3
        assert kept() == before
    finally:
        gc.enable()
