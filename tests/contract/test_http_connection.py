"""When a connection to an HTTP receiver may take another request: against servers that answer at the wrong moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from devkit.receivers.streams import serving_streams
from remora.endpoints.http.answers import Answer
from remora.endpoints.http.connection import ExchangeFailed, HttpConnection, Lost

ACK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
REQUEST = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx"
ENDS_S = 120.0
"""No test is about this: it ends what hangs."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Requests:
    """An exchange with these requests."""

    def __init__(self, *requests: bytes) -> None:
        self.left = list(requests)
        self.acks = 0

    def next_request(self) -> bytes | None:
        return self.left.pop(0) if self.left else None

    def acked(self, seconds: float) -> None:
        self.acks += 1

    def given_up(self) -> Callable[[bool], None]:
        return lambda _: None


class Client:
    """A connection, and whether it has said that it is of no more use."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.connection = HttpConnection(ENDS_S, lambda _: self.closed.set())

    async def run(self, *requests: bytes) -> tuple[Answer | None, Requests]:
        exchange = Requests(*requests)
        async with asyncio.timeout(ENDS_S):
            return await self.connection.run(exchange), exchange


@asynccontextmanager
async def connected(serve: Serve) -> AsyncIterator[Client]:
    """A connection to this server; both sides are closed in the end."""
    client = Client()

    async def serve_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.transport.abort()

    async with serving_streams(serve_and_close) as port:
        await asyncio.get_running_loop().create_connection(lambda: client.connection, "127.0.0.1", port)
        try:
            yield client
        finally:
            client.connection.close()


async def test_a_request_that_is_answered_before_it_is_read() -> None:
    """The connection is not used again: its receiver may take the rest of the request for the next one."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(ACK)
        await asyncio.Event().wait()

    size = 64 << 20  # more than the sockets and the server's buffer hold
    large = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size + bytes(size)
    async with connected(serve) as client:
        answer, exchange = await client.run(large, REQUEST)

        assert (answer, exchange.acks, exchange.left) == (None, 1, [REQUEST])
        assert client.closed.is_set()
        with pytest.raises(ExchangeFailed) as caught:
            await client.run(REQUEST)
        assert caught.value.how is Lost.UNTOUCHED


async def test_equal_lengths_are_one() -> None:
    """A receiver that writes the same length twice acknowledges: each event is posted once, over one connection."""
    served = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        while await reader.readexactly(len(REQUEST)):
            served += 1
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok")

    async with connected(serve) as client:
        answer, exchange = await client.run(REQUEST, REQUEST, REQUEST)

        assert (answer, exchange.acks, served) == (None, 3, 3)
        assert client.connection.is_open


async def test_a_connection_that_is_closed() -> None:
    """An exchange fails on it at once, without a wait for an answer that cannot come, and its requests go elsewhere."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with connected(serve) as client:
        async with asyncio.timeout(ENDS_S):
            await client.closed.wait()

        with pytest.raises(ExchangeFailed) as caught:
            client.connection.run(Requests(REQUEST)).send(None)

    assert caught.value.how is Lost.UNTOUCHED


async def test_bytes_that_no_request_asked_for() -> None:
    """They end the connection, and are not the answer to the next request."""
    goes_on = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(REQUEST))
        writer.write(ACK)
        await goes_on.wait()
        writer.write(ACK)
        await asyncio.Event().wait()

    async with connected(serve) as client:
        answer, exchange = await client.run(REQUEST)
        assert (answer, exchange.acks) == (None, 1)
        assert client.connection.is_open

        goes_on.set()
        async with asyncio.timeout(ENDS_S):
            await client.closed.wait()

        assert not client.connection.is_open


async def test_a_second_answer_in_the_turn_of_the_first() -> None:
    """What comes before the exchange was told of its end is none of its answers: it is counted once."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with connected(serve) as client:
        exchange = Requests(REQUEST)
        running = asyncio.ensure_future(client.connection.run(exchange))
        await asyncio.sleep(0)
        assert client.connection.is_busy

        for _ in range(2):  # as a loop does that reads until a socket is empty
            client.connection.data_received(ACK)

        assert await running is None
        assert exchange.acks == 1
        assert not client.connection.is_open


async def test_a_cancelled_exchange() -> None:
    """Its connection is closed: its answer would be taken for that of the next one."""
    came = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(REQUEST))
        came.set()
        await asyncio.Event().wait()

    async with connected(serve) as client:
        running = asyncio.ensure_future(client.run(REQUEST))
        await came.wait()
        running.cancel()
        await asyncio.wait([running])

        assert running.cancelled()
        assert client.closed.is_set()
