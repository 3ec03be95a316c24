"""A client of the sequencer, for programs that append to a shared log.

    async with SequencerClient(["unix:/run/remora-sequencer/sequencer.sock"]) as client:
        token = await client.next(LogName(b"pool", b"log"))

All that is asked for in one turn of the event loop travels in one write: as single requests, which any server knows, or
as a range where the server has shown that it grants them. The frames are made and read here, apart from the daemon's
codec, so that each is a test of the other.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self, cast

from remora.model.errors import RemoraError
from remora.model.log import LogName, Token

MOST_UNDER_WAY = 4096
FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 1.0
MOST_REPLY_BYTES = 1 << 20


class SequencerUnavailable(RemoraError):
    """No server answered, or none serves the log, until the time was over. Nothing that was asked for is owed."""

    retriable = True


class OutcomeUnknown(SequencerUnavailable):
    """The connection broke while a position was under way: it may have been handed out, and is a hole then."""


# -------------------------------------------------------------------------------------------------- frames


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _request(log: LogName, epoch: int, *, hands_out: bool, wanted: int = 0, current: bool = False) -> bytes:
    body = b"\x08" + _varint(epoch) + b"\x12" + _varint(len(log.pool)) + log.pool
    body += b"\x1a" + _varint(len(log.name)) + log.name + (b"\x20\x01" if hands_out else b"\x20\x00")
    if wanted:
        body += b"\x38" + _varint(wanted)
    if current:
        body += b"\x40\x01"
    return len(body).to_bytes(4, "big") + body


@dataclass(frozen=True, slots=True)
class _Reply:
    position: int = 0
    status: int = 0
    granted: int = 0
    epoch: int | None = None


def _reply(body: bytes) -> _Reply:
    """A reply's fields, all of which are varints; raises ValueError for what is none."""
    values: dict[int, int] = {}
    place = 0
    while place < len(body):
        tag, place = _read(body, place)
        if tag & 7:
            raise ValueError("a field of a reply is no number")
        values[tag >> 3], place = _read(body, place)
    return _Reply(values.get(1, 0), values.get(2, 0), values.get(4, 0), values.get(5))


def _read(body: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70 and place < len(body):
        byte = body[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise ValueError("a number of a reply is cut short")


OK, INIT_LOG, STALE_EPOCH = 0, 1, 2


# ------------------------------------------------------------------------------------------------- waiting


@dataclass(slots=True)
class _Waiter:
    """A caller that waits for `wanted` positions, for the tail (0), or for the epoch that is served ("current")."""

    log: LogName
    wanted: int
    asks: Literal["next", "tail", "current"]
    outcome: asyncio.Future[tuple[_Reply, int]]
    """The reply, and the epoch that was sent."""


@dataclass(slots=True)
class _Sent:
    """One request under way, and who waits for its reply: for a range that was made of several, all of them.

    `tries_range`: the reply shows whether the server grants ranges.
    """

    waiters: list[_Waiter]
    epoch: int
    is_shared: bool = False
    tries_range: bool = False


class _Connection(asyncio.Protocol):
    """Replies in the order of the requests."""

    def __init__(self, on_reply: Callable[[_Sent, _Reply], None], on_lost: Callable[[_Connection], None]) -> None:
        self._on_reply = on_reply
        self._on_lost = on_lost
        self._rest = b""
        self.sent: deque[_Sent] = deque()
        self.transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.WriteTransport", transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        place, end = 0, len(data)
        while place + 4 <= end:
            size = int.from_bytes(data[place : place + 4], "big")
            if size > MOST_REPLY_BYTES:
                self.close()
                return
            if place + 4 + size > end:
                break
            try:
                reply = _reply(data[place + 4 : place + 4 + size])
                sent = self.sent.popleft()
            except (
                ValueError,
                IndexError,
            ):  # no reply, or one without a request: the rest of the stream has no meaning
                self.close()
                return
            self._on_reply(sent, reply)
            place += 4 + size
        self._rest = data[place:]

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._on_lost(self)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class SequencerClient:
    """See the module. One connection at a time; the addresses are tried in turn."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        timeout_s: float = 30.0,
        projection: Callable[[LogName], Awaitable[int | None]] | None = None,
        repeats: bool = True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`addresses` are `host:port` or `unix:/path`. With `tls`, which holds the client's certificate, the former are
        reached over TLS.

        `projection` reads a log's epoch where it is kept; without it the server is asked, of which storage still checks
        every write. With `repeats` a position whose reply was lost is asked for again, which costs a hole.
        """
        if not addresses:
            raise ValueError("a client needs an address")
        self._addresses = list(addresses)
        self._timeout_s = timeout_s
        self._projection = projection
        self._repeats = repeats
        self._tls = tls
        self._next_address = 0
        self._epochs: dict[LogName, int] = {}
        self._grants_ranges: bool | None = None
        self._waiting: deque[_Waiter] = deque()
        self._connection: _Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._is_flush_due = False
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._connection is not None:
            self._connection.close()
        self._fail_waiting(SequencerUnavailable("the client is closed"))
        await asyncio.sleep(0)  # the transport closes its socket in the next turn

    async def next(self, log: LogName) -> Token:
        """A position that no other caller gets. Raises SequencerUnavailable, among them OutcomeUnknown."""
        reply, epoch = await self._ask(log, "next", 1)
        return Token(epoch, reply.position)

    async def next_range(self, log: LogName, wanted: int) -> tuple[Token, int]:
        """The first of as many positions as are granted, and how many that is: `wanted` at most, and one at least.

        Raises as `next`.
        """
        if wanted < 1:
            raise ValueError("a range has one position at least")
        reply, epoch = await self._ask(log, "next", wanted)
        return Token(epoch, reply.position), reply.granted or 1

    async def tail(self, log: LogName) -> Token:
        """The last position that was handed out; 0 where there was none. Raises SequencerUnavailable."""
        reply, epoch = await self._ask(log, "tail", 0)
        return Token(epoch, reply.position)

    # ------------------------------------------------------------------------------------------- asking

    async def _ask(self, log: LogName, asks: Literal["next", "tail"], wanted: int) -> tuple[_Reply, int]:
        """Ask until there is an answer, or the time is over."""
        pause_s, last = FIRST_PAUSE_S, "no server answers"
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    try:
                        if log not in self._epochs:
                            await self._learn(log)
                        reply, epoch = await self._once(log, asks, wanted)
                    except OutcomeUnknown:
                        if not self._repeats:
                            raise
                        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311  # spreads clients
                        continue
                    if reply.status == OK:
                        return reply, epoch
                    self._epochs.pop(log, None)
                    last = "the log is not served now" if reply.status == INIT_LOG else "its epoch is over"
                    await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311  # spreads clients
                    pause_s = FIRST_PAUSE_S if reply.status == STALE_EPOCH else min(2 * pause_s, LONGEST_PAUSE_S)
        except TimeoutError:
            raise SequencerUnavailable(f"no position within {self._timeout_s:g} s: {last}") from None

    async def _learn(self, log: LogName) -> None:
        """Learn which epoch a log is served in, from where it is kept or from the server."""
        if self._projection is not None:
            epoch = await self._projection(log)
            if epoch is not None:
                self._epochs[log] = epoch
                return
        reply, _ = await self._wait(_Waiter(log, 0, "current", asyncio.get_running_loop().create_future()))
        if reply.status == OK:
            self._epochs[log] = reply.epoch or 0

    async def _once(self, log: LogName, asks: Literal["next", "tail"], wanted: int) -> tuple[_Reply, int]:
        return await self._wait(_Waiter(log, wanted, asks, asyncio.get_running_loop().create_future()))

    async def _wait(self, waiter: _Waiter) -> tuple[_Reply, int]:
        if self._is_closed:
            raise SequencerUnavailable("the client is closed")
        self._waiting.append(waiter)
        self._flush_soon()
        return await waiter.outcome

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Send what is waited for, as far as there is room under way."""
        self._is_flush_due = False
        if self._connection is None or self._connection.transport is None:
            if self._waiting and self._opening is None and not self._is_closed:
                self._opening = asyncio.ensure_future(self._open())
            return
        sent, frames = self._connection.sent, []
        while self._waiting and len(sent) < MOST_UNDER_WAY:
            request, frame = self._request(self._waiting.popleft())
            if request is not None:
                sent.append(request)
                frames.append(frame)
        if frames:
            self._connection.transport.write(b"".join(frames))

    def _request(self, first: _Waiter) -> tuple[_Sent | None, bytes]:
        """The request for a waiter, shared by those behind it who want a position of the same log, where that is known
        to work; nothing for who has given up."""
        if first.outcome.done():
            return None, b""
        log, epoch = first.log, self._epochs.get(first.log, 0)
        if first.asks == "current":
            return _Sent([first], epoch), _request(log, epoch, hands_out=False, current=True)
        if first.asks == "tail":
            return _Sent([first], epoch), _request(log, epoch, hands_out=False)
        if first.wanted > 1 or self._grants_ranges is None:
            sent = _Sent([first], epoch, tries_range=True)
            return sent, _request(log, epoch, hands_out=True, wanted=first.wanted)
        waiters = [first]
        while self._grants_ranges and self._waiting and len(waiters) < MOST_UNDER_WAY:
            other = self._waiting[0]
            if (other.log, other.asks, other.wanted) != (log, "next", 1):
                break
            self._waiting.popleft()
            if not other.outcome.done():
                waiters.append(other)
        if len(waiters) == 1:
            return _Sent(waiters, epoch), _request(log, epoch, hands_out=True)
        return _Sent(waiters, epoch, is_shared=True), _request(log, epoch, hands_out=True, wanted=len(waiters))

    # ------------------------------------------------------------------------------------------ replies

    def _on_reply(self, sent: _Sent, reply: _Reply) -> None:
        """Gives each waiter its position. A cancelled one leaves a hole: no other waiter gets its position."""
        if sent.tries_range and reply.status == OK:
            self._grants_ranges = bool(reply.granted)
        if not sent.is_shared or reply.status != OK:
            for waiter in sent.waiters:
                _settle(waiter, reply, sent.epoch)
        else:
            granted = reply.granted or 1
            for number, waiter in enumerate(sent.waiters[:granted]):
                _settle(waiter, _Reply(reply.position + number), sent.epoch)
            if granted < len(sent.waiters):
                self._waiting.extendleft(reversed(sent.waiters[granted:]))
        if self._waiting:
            self._flush_soon()

    def _on_lost(self, connection: _Connection) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        for sent in connection.sent:
            for waiter in sent.waiters:
                if waiter.outcome.done():
                    continue
                if waiter.asks == "next":
                    waiter.outcome.set_exception(OutcomeUnknown("the connection to the sequencer broke"))
                elif self._is_closed:
                    waiter.outcome.set_exception(SequencerUnavailable("the client is closed"))
                else:
                    self._waiting.append(waiter)
        if self._waiting and not self._is_closed:
            self._flush_soon()

    def _fail_waiting(self, exc: Exception) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.outcome.done():
                waiter.outcome.set_exception(exc)

    # ------------------------------------------------------------------------------------------- opening

    async def _open(self) -> None:
        """Connect to the first address that can be reached, the one that failed last being tried last."""
        loop, pause_s, tls = asyncio.get_running_loop(), FIRST_PAUSE_S, self._tls
        try:
            while self._waiting and not self._is_closed:
                address = self._addresses[self._next_address % len(self._addresses)]
                self._next_address += 1
                connection = _Connection(self._on_reply, self._on_lost)
                try:
                    if address.startswith("unix:"):
                        await loop.create_unix_connection(lambda made=connection: made, address[5:])  # type: ignore[misc]  # mypy knows no lambda with a default
                    else:
                        host, _, port = address.rpartition(":")
                        await loop.create_connection(lambda made=connection: made, host.strip("[]"), int(port), ssl=tls)
                except OSError:
                    await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311  # spreads clients
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                    continue
                self._connection = connection
                self._next_address -= 1
                return
        finally:
            self._opening = None
            if self._connection is not None:
                self._flush_soon()


def _settle(waiter: _Waiter, reply: _Reply, epoch: int) -> None:
    if not waiter.outcome.done():
        waiter.outcome.set_result((reply, reply.epoch if reply.epoch is not None else epoch))
