"""A client of the sequencer, for programs that append to a shared log.

    async with SequencerClient(["unix:/run/remora-sequencer/sequencer.sock"]) as client:
        token = await client.next(LogName(b"pool", b"log"))

All that is asked for in one turn of the event loop travels in one write: as single requests, which any server knows, or
as a range where the server has shown that it grants them. The frames are made and read in `sequencer_session`, apart
from the daemon's codec, so that each is a test of the other.
"""

from __future__ import annotations

import asyncio
import random
import re
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from types import TracebackType
from typing import Literal, Self

from remora.client.sequencer_session import (
    INIT_LOG,
    MOST_RANGE,
    MOST_REQUEST_BYTES,
    OK,
    STALE_EPOCH,
    Outcome,
    PositionsAsked,
    RequestSent,
    SequencerReply,
    SequencerSession,
    request_frame,
)
from remora.model.errors import RemoraError
from remora.model.log import LogName, LogRefused, Token

MOST_UNDER_WAY = 4096
FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 1.0
NOT_SERVED_S = 1.0
"""How long a server is asked at most that does not serve the log, where there is another address."""

ADDRESS = re.compile("unix:.+|.+:(?P<port>[0-9]{1,5})")


class SequencerUnavailable(RemoraError):
    """No server answered, or none serves the log, until the time was over. Nothing that was asked for is owed."""

    retriable = True


class OutcomeUnknown(SequencerUnavailable):
    """The connection broke while a position was under way: it may have been handed out, and is a hole then."""


NO_ANSWER = "no server answers"

_new = tuple.__new__
"""Makes a Token in half the time of its constructor."""


class _NotServed:
    """For how long a server has said that it does not serve a log."""

    def __init__(self) -> None:
        self._server: SequencerSession | None = None
        self._since = inf

    def by(self, server: SequencerSession | None) -> float:
        """This one says so, now, or none does: how long ago it said so first, if it was asked ever since."""
        now = asyncio.get_running_loop().time()
        if server is not self._server:
            self._server, self._since = server, now
        return now - self._since


class SequencerClient:
    """See the module. One connection at a time; the addresses are tried in turn.

    A program whose logs are served by several servers has a client for each: one client would go to and fro.
    """

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
        every write. A caller waits for `timeout_s`; a server that says nothing for as much of it as each address has is
        left for the next one, and so is one that does not serve the log for as long, or for NOT_SERVED_S, and one that
        ends a connection before it has answered anything. With `repeats` a position whose reply was lost is asked for
        again, which costs a hole.

        Raises ValueError where there is no address, or one of another form.
        """
        if not addresses:
            raise ValueError("a client needs an address")
        for each in addresses:
            if not (found := ADDRESS.fullmatch(each)) or int(found["port"] or 0) > 65535:
                raise ValueError(f'expected "host:port" or "unix:/path", not "{each}"')
        self._addresses = list(addresses)
        self._timeout_s = timeout_s
        self._silent_s = timeout_s / len(addresses)
        self._not_served_s = min(self._silent_s, NOT_SERVED_S) if len(addresses) > 1 else inf
        self._projection = projection
        self._repeats = repeats
        self._tls = tls
        self._next_address = 0
        self._not_reached = ""
        """Why the address that was tried last could not be reached."""
        self._unanswered = 0
        """How many connections have ended one after the other without an answer."""
        self._epochs: dict[LogName, int] = {}
        self._grants_ranges: bool | None = None
        self._waiting: deque[PositionsAsked] = deque()
        self._asking: PositionsAsked | None = None  # what others may join until it is sent
        self._make_outcome: Callable[[], Outcome]
        self._timer: asyncio.TimerHandle | None = None
        self._connection: SequencerSession | None = None
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
        """A position that no other caller gets.

        Raises SequencerUnavailable, among them OutcomeUnknown, and LogRefused for a name that no request has room for.
        """
        asking = self._asking
        if asking is None or asking.log != log:
            asking = self._begin(log)
        if asking is None:
            reply, epoch = await self._ask(log, "next", 1)
            return Token(epoch, reply.position)
        outcome = self._make_outcome()
        asking.outcomes.append(outcome)
        failed: SequencerReply | OutcomeUnknown
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
        reply, epoch = await self._ask(log, "next", min(wanted, MOST_RANGE))
        return Token(epoch, reply.position), min(reply.granted or 1, wanted)

    async def tail(self, log: LogName) -> Token:
        """The last position that was handed out; 0 where there was none. Raises SequencerUnavailable and LogRefused."""
        reply, epoch = await self._ask(log, "tail", 0)
        return Token(epoch, reply.position)

    def ended(self, log: LogName, epoch: int) -> None:
        """Stop asking for positions of an epoch that storage refuses.

        The next one is the one that `projection` names, where it is given; a server that does not know it looks for it.
        """
        if self._epochs.get(log) == epoch:
            del self._epochs[log]

    # ------------------------------------------------------------------------------------------- asking

    def _begin(self, log: LogName) -> PositionsAsked | None:
        """What callers that want a position of this log in this turn share; none where its epoch is to be learnt."""
        if self._is_closed or log not in self._epochs:
            return None
        loop = asyncio.get_running_loop()
        self._make_outcome = loop.create_future
        self._asking = asking = PositionsAsked(log, 1, "next", [], loop.time() + self._timeout_s)
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
        why += self._not_reached if why == NO_ANSWER else ""
        return SequencerUnavailable(f"no position within {self._timeout_s:g} s: {why}")

    async def _ask(
        self,
        log: LogName,
        asks: Literal["next", "tail"],
        wanted: int,
        failed: SequencerReply | OutcomeUnknown | None = None,
        ends: float | None = None,
    ) -> tuple[SequencerReply, int]:
        """Ask until there is an answer, or the time is over. `failed` is what came of asking until now."""
        pause_s, last, refused = FIRST_PAUSE_S, NO_ANSWER, _NotServed()
        try:
            async with asyncio.timeout_at(
                asyncio.get_running_loop().time() + self._timeout_s if ends is None else ends
            ):
                while True:
                    if isinstance(failed, SequencerReply):
                        last = self._heard_refusal(log, failed, refused)
                    if failed is not None:
                        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311  # spreads clients
                    if isinstance(failed, SequencerReply):
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

    def _heard_refusal(self, log: LogName, reply: SequencerReply, refused: _NotServed) -> str:
        """Forget the epoch that was sent, and leave a server that has not served the log for long; why, in words."""
        self._epochs.pop(log, None)
        if reply.status != INIT_LOG:
            refused.by(None)
            return "its epoch is over"
        server = self._connection
        if refused.by(server) >= self._not_served_s and server is not None:
            server.end()
        return "the log is not served now, or there is none of this name"

    async def _learn(self, log: LogName) -> None:
        """Learn which epoch a log is served in, from where it is kept or from the server. Raises LogRefused."""
        longest = request_frame(log, (1 << 64) - 1, hands_out=True, wanted=MOST_RANGE, current=True)
        if (beyond := len(longest) - 4 - MOST_REQUEST_BYTES) > 0:  # whatever a request asks for
            size = len(log.pool) + len(log.name)
            raise LogRefused(f"pool and name of a log have {size - beyond} bytes at most in a request, not {size}")
        if self._projection is not None:
            epoch = await self._projection(log)
            if epoch is not None:
                self._epochs[log] = epoch
                return
        reply, _ = await self._once(log, "current", 0)
        if reply.status == OK:
            self._epochs[log] = reply.epoch or 0

    async def _once(
        self, log: LogName, asks: Literal["next", "tail", "current"], wanted: int
    ) -> tuple[SequencerReply, int]:
        if self._is_closed:
            raise SequencerUnavailable("the client is closed")
        outcome: Outcome = asyncio.get_running_loop().create_future()
        self._waiting.append(PositionsAsked(log, wanted, asks, [outcome]))
        self._flush_soon()
        found = await outcome
        return (SequencerReply(found.position), found.epoch) if isinstance(found, Token) else found

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
        if self._connection.gives_nothing:
            return  # what waits is sent to the next one
        sent, frames = self._connection.sent, []
        while self._waiting and len(sent) < MOST_UNDER_WAY:
            frames.append(self._send(self._waiting.popleft(), sent))
        data = b"".join(frames)
        if data:
            self._connection.write(data)

    def _send(self, asked: PositionsAsked, sent: deque[RequestSent]) -> bytes:
        """The requests for callers who have not given up, as far as there is room: a range where that is known to work,
        else one for each."""
        outcomes = [each for each in asked.outcomes if not each.done()]
        if not outcomes:
            return b""
        log, epoch = asked.log, self._epochs.get(asked.log, 0)
        if asked.asks != "next":
            sent.append(RequestSent(asked, outcomes, epoch))
            return request_frame(log, epoch, hands_out=False, current=asked.asks == "current")
        room = MOST_UNDER_WAY if self._grants_ranges else MOST_UNDER_WAY - len(sent)
        if len(outcomes) > room:
            self._waiting.appendleft(PositionsAsked(log, 1, "next", outcomes[room:], asked.ends))
            outcomes = outcomes[:room]
        if self._grants_ranges and len(outcomes) > 1:
            sent.append(RequestSent(asked, outcomes, epoch, tries_range=True))
            return request_frame(log, epoch, hands_out=True, wanted=len(outcomes))
        tries = asked.wanted > 1 or self._grants_ranges is None
        sent.extend([RequestSent(asked, [each], epoch, tries) for each in outcomes])
        return request_frame(log, epoch, hands_out=True, wanted=asked.wanted if tries else 0) * len(outcomes)

    # ------------------------------------------------------------------------------------------ replies

    def _on_reply(self, sent: RequestSent, reply: SequencerReply) -> None:
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
                self._waiting.appendleft(PositionsAsked(asked.log, 1, "next", outcomes[granted:], asked.ends))
        if self._waiting:
            self._flush_soon()

    def _on_lost(self, connection: SequencerSession) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        if connection.has_answered:
            self._unanswered = 0
        else:  # as one that cannot be reached: it refuses this client, or has as many as it takes
            self._unanswered += 1
            address = self._addresses[self._next_address % len(self._addresses)]
            self._not_reached = f": {address}: it ends connections without an answer"
        self._next_address += connection.gives_nothing or not connection.has_answered
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
        pause_s = min(FIRST_PAUSE_S * 2 ** min(self._unanswered, 30), LONGEST_PAUSE_S)
        try:
            if self._unanswered:
                await asyncio.sleep(pause_s / 2 * random.uniform(0.5, 1.0))  # noqa: S311  # spreads clients
            while not self._is_closed:
                # Those whose time is over are forgotten: they would be all that is kept while no server is there.
                left = [each for each in self._waiting if not all(outcome.done() for outcome in each.outcomes)]
                self._waiting, self._asking = deque(left), None
                if not left:
                    return
                address = self._addresses[self._next_address % len(self._addresses)]
                self._next_address += 1
                connection = SequencerSession(self._on_reply, self._on_lost, self._silent_s)
                try:
                    async with asyncio.timeout(self._silent_s):
                        await self._connect(address, connection)
                except asyncio.CancelledError:
                    connection.close()  # it may be open already: made in the turn in which the cancellation came
                    raise
                except (OSError, UnicodeError) as exc:  # the latter of what cannot be the name of a host
                    connection.close()  # as above, where the time was over
                    self._not_reached = (
                        f": {address}: {getattr(exc, 'strerror', None) or str(exc) or 'it does not answer'}"
                    )
                    await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311  # spreads clients
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                    continue
                self._connection, self._not_reached = connection, ""
                self._next_address -= 1
                if connection.transport is None:  # the server has ended it already
                    self._on_lost(connection)
                return
        finally:
            self._opening = None
            if self._connection is not None:
                self._flush_soon()

    async def _connect(self, address: str, made: SequencerSession) -> None:
        loop = asyncio.get_running_loop()
        if address.startswith("unix:"):
            await loop.create_unix_connection(lambda: made, address[5:])
        else:
            host, _, port = address.rpartition(":")
            host = host.strip("[]")
            name = host.removesuffix(".") if self._tls is not None else None  # no certificate has a full name's dot
            await loop.create_connection(lambda: made, host, int(port), ssl=self._tls, server_hostname=name)


def _fail(outcomes: Sequence[Outcome], why: Callable[[], Exception]) -> None:
    for outcome in outcomes:
        if not outcome.done():
            outcome.set_exception(why())
