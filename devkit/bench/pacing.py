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

from devkit.bench.clusters import BenchError

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
        self.failure = ""
        """What went wrong on it."""

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
        if (status := self._parser.get_status_code()) >= 300:
            self.failure = f"a request was refused with {status}"
        else:
            self._answered(time.monotonic() - self._due)
            self._freed(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.failure = self.failure or "a connection ended"

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
    opened: list[_Connection] = []
    try:
        for _ in range(connections):
            _, protocol = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(free.append, latencies.append), host, int(port)
            )
            opened.append(protocol)
        began, sent, most = time.monotonic(), 0, round(requests_per_s * seconds)
        while len(latencies) < most:
            now = time.monotonic() - began
            while free and sent < most and sent <= now * requests_per_s:
                free.popleft().send(began + sent / requests_per_s, request())
                sent += 1
            if failure := next((each.failure for each in opened if each.failure), ""):
                raise BenchError(failure)
            if now > seconds + ANSWERS_WITHIN_S:
                raise BenchError(f"{most - len(latencies)} of {most} requests have no answer")
            await asyncio.sleep(TICK_S)
    finally:
        for each in opened:
            each.close()
    return latencies
