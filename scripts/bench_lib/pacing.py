"""Requests at a given rate over kept connections, timed from the moment at which each is due.

A generator that waits for an answer before it sends the next request measures how a full daemon queues, and leaves out
the requests that a slow answer held up. Here each request has its time: one that finds no free connection waits, and
its wait counts. wrk2 was weighed, and sends batches no better than wrk does; Debian does not have it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import cast

import httptools

from bench_lib.clusters import BenchError

TICK_S = 0.001
"""Requests that are due within it go out together."""

ANSWERS_WITHIN_S = 60.0
"""The answers that are missing this long after the last request was due do not come."""


class _Connection(asyncio.Protocol):
    """One connection: a request at a time. Calls `freed` with itself when the answer is whole."""

    def __init__(self, freed: Callable[[_Connection], None], answered: Callable[[float], None]) -> None:
        self._freed = freed
        self._answered = answered
        self._due = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self.refused = 0
        self.is_broken = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of no such class
        self._freed(self)

    def send(self, due: float, request: bytes) -> None:
        """Send a request that was due then."""
        self._due = due
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """The parser's call at the end of an answer."""
        if self._parser.get_status_code() >= 300:
            self.refused += 1
        else:
            self._answered(time.monotonic() - self._due)
        self._freed(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_broken = True

    def close(self) -> None:
        self._transport.abort()


async def paced(
    address: str, connections: int, request: Callable[[], bytes], requests_per_s: float, seconds: float
) -> list[float]:
    """Send requests to HOST:PORT at this rate for so long; the seconds from when each was due to its answer.

    Raises BenchError when one is refused or not answered, or a connection ends.
    """
    host, _, port = address.rpartition(":")
    free: deque[_Connection] = deque()
    latencies: list[float] = []
    opened = []
    for _ in range(connections):
        _, protocol = await asyncio.get_running_loop().create_connection(
            lambda: _Connection(free.append, latencies.append), host, int(port)
        )
        opened.append(protocol)
    began, sent, most = time.monotonic(), 0, round(requests_per_s * seconds)
    prepared: deque[bytes] = deque()
    while len(latencies) < most:
        now = time.monotonic() - began
        while free and sent < most and sent <= now * requests_per_s:
            free.popleft().send(began + sent / requests_per_s, prepared.popleft() if prepared else request())
            sent += 1
        if len(prepared) < connections:
            prepared.append(request())  # so that making it is no part of the time
        if any(each.refused or each.is_broken for each in opened):
            raise BenchError(f"{sum(each.refused for each in opened)} requests were refused, or a connection ended")
        if now > seconds + ANSWERS_WITHIN_S:
            raise BenchError(f"{most - len(latencies)} of {most} requests have no answer")
        await asyncio.sleep(TICK_S)
    for each in opened:
        each.close()
    return latencies
