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
from math import inf
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
    """Returns a reply's fields. Raises ValueError for a field that is not a varint."""
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
NO_ANSWER = "no server answers"

_new = tuple.__new__
"""Makes a Token in half the time of its constructor."""


# ------------------------------------------------------------------------------------------------- waiting


_Outcome = asyncio.Future[Token | tuple[_Reply, int]]
"""A position for a caller that wants one, else the reply and the epoch that was sent."""


@dataclass(slots=True)
class _Asked:
    """Callers that want one position each, or one that wants several, the tail (0), or the epoch served ("current").

    Those who ask in the same turn of the event loop share one. The first turn behind `ends` tells them that the time is
    over.
    """

    log: LogName
    wanted: int
    asks: Literal["next", "tail", "current"]
    outcomes: list[_Outcome]
    ends: float = inf


@dataclass(slots=True)
class _Sent:
    """One request under way, and whose it is: several callers' where it is a range that was made for them.

    `tries_range`: the reply shows whether the server grants ranges.
    """

    asked: _Asked
    outcomes: list[_Outcome]
    epoch: int
    tries_range: bool = False


class _ClientSession(asyncio.Protocol):
    """Replies in the order of the requests."""

    def __init__(self, on_reply: Callable[[_Sent, _Reply], None], on_lost: Callable[[_ClientSession], None]) -> None:
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
        self._waiting: deque[_Asked] = deque()
        self._asking: _Asked | None = None  # what others may join until it is sent
        self._make_outcome: Callable[[], _Outcome]
        self._timer: asyncio.TimerHandle | None = None
        self._connection: _ClientSession | None = None
        self._opening: asyncio.Task[None] | None = None
        self._is_flush_due = False
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_closed, self._asking = True, None
        if self._timer is not None:
            self._timer.cancel()
        if self._connection is not None:
            self._connection.close()
        while self._waiting:
            _fail(self._waiting.popleft().outcomes, lambda: SequencerUnavailable("the client is closed"))
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        await asyncio.sleep(0)  # the transport closes its socket in the next turn

    async def next(self, log: LogName) -> Token:
        """A position that no other caller gets. Raises SequencerUnavailable, among them OutcomeUnknown."""
        asking = self._asking
        if asking is None or asking.log != log:
            asking = self._begin(log)
        if asking is None:
            reply, epoch = await self._ask(log, "next", 1)
            return Token(epoch, reply.position)
        outcome = self._make_outcome()
        asking.outcomes.append(outcome)
        failed: _Reply | OutcomeUnknown
        try:
            found = await outcome
            if isinstance(found, Token):
                return found
            failed = found[0]
        except OutcomeUnknown as exc:
            if not self._repeats:
                raise
            failed = exc
        reply, epoch = await self._ask(log, "next", 1, failed, asking.ends)
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

    def ended(self, log: LogName, epoch: int) -> None:
        """Stop asking for positions of an epoch that storage refuses.

        The next one is the one that `projection` names, where it is given; a server that does not know it looks for it.
        """
        if self._epochs.get(log) == epoch:
            del self._epochs[log]

    # ------------------------------------------------------------------------------------------- asking

    def _begin(self, log: LogName) -> _Asked | None:
        """What callers that want a position of this log in this turn share; none where its epoch is to be learnt."""
        if self._is_closed or log not in self._epochs:
            return None
        loop = asyncio.get_running_loop()
        self._make_outcome = loop.create_future
        self._asking = asking = _Asked(log, 1, "next", [], loop.time() + self._timeout_s)
        self._waiting.append(asking)
        if self._timer is None:
            self._timer = loop.call_at(asking.ends, self._end_late)
        self._flush_soon()
        return asking

    def _end_late(self) -> None:
        """Tell callers whose time is over, and look again when the next one's is. One timer serves all of them."""
        loop, next_end = asyncio.get_running_loop(), inf
        under_way = self._connection.sent if self._connection is not None else ()
        due = [(each.ends, each.outcomes) for each in self._waiting]
        due += [(each.asked.ends, each.outcomes) for each in under_way]
        for ends, outcomes in due:
            if ends > loop.time():
                next_end = min(next_end, ends)
                continue
            _fail(outcomes, lambda: self._late(NO_ANSWER))
        self._timer = loop.call_at(next_end, self._end_late) if next_end < inf else None

    def _late(self, why: str) -> SequencerUnavailable:
        return SequencerUnavailable(f"no position within {self._timeout_s:g} s: {why}")

    async def _ask(
        self,
        log: LogName,
        asks: Literal["next", "tail"],
        wanted: int,
        failed: _Reply | OutcomeUnknown | None = None,
        ends: float | None = None,
    ) -> tuple[_Reply, int]:
        """Ask until there is an answer, or the time is over. `failed` is what came of asking until now."""
        pause_s, last = FIRST_PAUSE_S, NO_ANSWER
        try:
            async with asyncio.timeout_at(
                asyncio.get_running_loop().time() + self._timeout_s if ends is None else ends
            ):
                while True:
                    if isinstance(failed, _Reply):
                        self._epochs.pop(log, None)
                        last = "the log is not served now" if failed.status == INIT_LOG else "its epoch is over"
                    if failed is not None:
                        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311  # spreads clients
                    if isinstance(failed, _Reply):
                        pause_s = FIRST_PAUSE_S if failed.status == STALE_EPOCH else min(2 * pause_s, LONGEST_PAUSE_S)
                    try:
                        if log not in self._epochs:
                            await self._learn(log)
                        reply, epoch = await self._once(log, asks, wanted)
                    except OutcomeUnknown as exc:
                        if not self._repeats:
                            raise
                        failed = exc
                        continue
                    if reply.status == OK:
                        return reply, epoch
                    failed = reply
        except TimeoutError:
            raise self._late(last) from None

    async def _learn(self, log: LogName) -> None:
        """Learn which epoch a log is served in, from where it is kept or from the server."""
        if self._projection is not None:
            epoch = await self._projection(log)
            if epoch is not None:
                self._epochs[log] = epoch
                return
        reply, _ = await self._once(log, "current", 0)
        if reply.status == OK:
            self._epochs[log] = reply.epoch or 0

    async def _once(self, log: LogName, asks: Literal["next", "tail", "current"], wanted: int) -> tuple[_Reply, int]:
        if self._is_closed:
            raise SequencerUnavailable("the client is closed")
        outcome: _Outcome = asyncio.get_running_loop().create_future()
        self._waiting.append(_Asked(log, wanted, asks, [outcome]))
        self._flush_soon()
        found = await outcome
        return (_Reply(found.position), found.epoch) if isinstance(found, Token) else found

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Send what is waited for, as far as there is room under way."""
        self._is_flush_due, self._asking = False, None
        if self._connection is None or self._connection.transport is None:
            if self._waiting and self._opening is None and not self._is_closed:
                self._opening = asyncio.ensure_future(self._open())
            return
        sent, frames = self._connection.sent, []
        while self._waiting and len(sent) < MOST_UNDER_WAY:
            frames.append(self._send(self._waiting.popleft(), sent))
        data = b"".join(frames)
        if data:
            self._connection.transport.write(data)

    def _send(self, asked: _Asked, sent: deque[_Sent]) -> bytes:
        """The requests for callers who have not given up, as far as there is room: a range where that is known to work,
        else one for each."""
        outcomes = [each for each in asked.outcomes if not each.done()]
        if not outcomes:
            return b""
        log, epoch = asked.log, self._epochs.get(asked.log, 0)
        if asked.asks != "next":
            sent.append(_Sent(asked, outcomes, epoch))
            return _request(log, epoch, hands_out=False, current=asked.asks == "current")
        room = MOST_UNDER_WAY if self._grants_ranges else MOST_UNDER_WAY - len(sent)
        if len(outcomes) > room:
            self._waiting.appendleft(_Asked(log, 1, "next", outcomes[room:], asked.ends))
            outcomes = outcomes[:room]
        if self._grants_ranges and len(outcomes) > 1:
            sent.append(_Sent(asked, outcomes, epoch))
            return _request(log, epoch, hands_out=True, wanted=len(outcomes))
        tries = asked.wanted > 1 or self._grants_ranges is None
        sent.extend([_Sent(asked, [each], epoch, tries) for each in outcomes])
        return _request(log, epoch, hands_out=True, wanted=asked.wanted if tries else 0) * len(outcomes)

    # ------------------------------------------------------------------------------------------ replies

    def _on_reply(self, sent: _Sent, reply: _Reply) -> None:
        """Gives each caller its position. A cancelled one leaves a hole: no other caller gets its position."""
        if sent.tries_range and reply.status == OK:
            self._grants_ranges = bool(reply.granted)
        asked, outcomes, epoch = sent.asked, sent.outcomes, sent.epoch
        if reply.status != OK or asked.wanted != 1:
            for outcome in outcomes:
                if not outcome.done():
                    outcome.set_result((reply, epoch))
        else:
            granted = reply.granted or 1
            for position, outcome in zip(range(reply.position, reply.position + granted), outcomes, strict=False):
                if not outcome.done():
                    outcome.set_result(_new(Token, (epoch, position)))
            if granted < len(outcomes):
                self._waiting.appendleft(_Asked(asked.log, 1, "next", outcomes[granted:], asked.ends))
        if self._waiting:
            self._flush_soon()

    def _on_lost(self, connection: _ClientSession) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        for sent in connection.sent:
            if sent.asked.asks == "next":
                _fail(sent.outcomes, lambda: OutcomeUnknown("the connection to the sequencer broke"))
            elif self._is_closed:
                _fail(sent.outcomes, lambda: SequencerUnavailable("the client is closed"))
            else:
                self._waiting.append(sent.asked)
        if self._waiting and not self._is_closed:
            self._flush_soon()

    # ------------------------------------------------------------------------------------------- opening

    async def _open(self) -> None:
        """Connect to the first address that can be reached, the one that failed last being tried last."""
        loop, pause_s, tls = asyncio.get_running_loop(), FIRST_PAUSE_S, self._tls
        try:
            while self._waiting and not self._is_closed:
                address = self._addresses[self._next_address % len(self._addresses)]
                self._next_address += 1
                connection = _ClientSession(self._on_reply, self._on_lost)
                try:
                    if address.startswith("unix:"):
                        await loop.create_unix_connection(lambda made=connection: made, address[5:])  # type: ignore[misc]  # mypy knows no lambda with a default
                    else:
                        host, _, port = address.rpartition(":")
                        await loop.create_connection(lambda made=connection: made, host.strip("[]"), int(port), ssl=tls)
                except asyncio.CancelledError:
                    connection.close()  # it may be open already: made in the turn in which the cancellation came
                    raise
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


def _fail(outcomes: Sequence[_Outcome], why: Callable[[], Exception]) -> None:
    for outcome in outcomes:
        if not outcome.done():
            outcome.set_exception(why())
