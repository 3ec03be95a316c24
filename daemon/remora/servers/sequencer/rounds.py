"""The sequencer's connections: plain sockets in an epoll instance of their own, served in rounds.

asyncio's transports cost several times what a request costs here. So the event loop watches one descriptor, that of the
epoll instance, and each time it is readable a round is served in two phases: first every connection that is ready is
read and answered, then everything is sent. So clients wake up once in a burst.

With the compiled core a round of ordinary connections is one call into C (`Core.turn`), and Python is left with what is
out of the ordinary: new connections, parts of frames, bounds, full sockets, errors.

Nothing is buffered beyond what one read brings: a connection whose replies are not taken is not read.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from remora.codec.sequencer import Core, SequencerReplies, has_more
from remora.model.log import LogName
from remora.servers.sequencer.connection import (
    FIRST_READS,
    GRACE_S,
    LEAVE_S,
    LINGER_S,
    OVER_TCP,
    PARTIAL_FRAME_S,
    READ,
    Closed,
    SequencerConnection,
)
from remora.servers.sequencer.secure import SecureConnections

SWEEP_S = 1.0
ACCEPTS = 64

_log = logging.getLogger(__name__)

Left = tuple[int, int, bytes | None, SequencerReplies | None]
"""What a turn of the compiled core leaves to Python: a descriptor, its events, the bytes that were read, and their
answer."""

SAMPLE_EVERY = 16
"""Every 16th round its requests are counted, which takes as long as some requests where many logs are served."""

ROUND_SIZES = 15
"""Rounds are counted by the power of two at or above their requests: 1, 2, 4 .. 8,192, and more."""


@dataclass(slots=True)
class RoundFigures:
    """What the rounds count for metrics (metrics.sequencer.SequencerFigures)."""

    accepted: int = 0
    rounds: int = 0
    round_requests: list[int] = field(default_factory=lambda: [0] * ROUND_SIZES)
    sampled_requests: int = 0
    closed: dict[Closed, int] = field(default_factory=lambda: dict.fromkeys(Closed, 0))


class Rounds:
    """Serves connections until it is left. `async with Rounds(...)` within a running event loop."""

    def __init__(  # noqa: PLR0913 - who may connect, and who is called in a round
        self,
        core: Core,
        listeners: Sequence[socket.socket],
        *,
        most_connections: int = 1024,
        accepts: int = ACCEPTS,
        may_connect: Callable[[socket.socket], bool] = lambda _: True,
        secure: SecureConnections | None = None,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        """`before` is called once at the start of a round, before anything is handed out, and `after` at its end.

        `accepts` is how many connections a round accepts at most; `may_connect` is asked of each of them. Where there
        is a `secure`, it takes those that may not be plain.
        """
        self._core = core
        self._listeners = {each.fileno(): each for each in listeners}
        self._most = most_connections
        self._accepts_at_once = accepts
        self._may_connect = may_connect
        self._secure = secure
        self._before = before
        self._after = after
        self._turn: Callable[[int], Sequence[Left]] | None = getattr(core, "turn", None)
        self._mark: Callable[[int, bool], None] = getattr(core, "mark", lambda *_: None)
        self._connections: dict[int, SequencerConnection] = {}
        self._waiting: dict[LogName, set[SequencerConnection]] = {}
        self._accepts = False
        self._is_empty = asyncio.Event()
        self.figures = RoundFigures()

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._connections) + (len(self._secure) if self._secure is not None else 0)

    @property
    def awaited(self) -> Iterable[LogName]:
        """The logs whose bound is in the way of a connection."""
        return [*self._waiting, *(self._secure.awaited if self._secure is not None else ())]

    async def __aenter__(self) -> Rounds:
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        for each in self._listeners.values():
            each.setblocking(False)
        self._listen_on(True)
        self._loop.add_reader(self._epoll.fileno(), self._count_round)
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._sweeper.cancel()
        self._listen_on(False)
        if self._secure is not None:
            await self._secure.close()
        await self._send_what_is_owed()
        self._loop.remove_reader(self._epoll.fileno())
        for each in list(self._connections.values()):
            self._close(each, Closed.SHUTDOWN)
        self._epoll.close()

    async def _send_what_is_owed(self) -> None:
        """End all connections; close those with replies under way when their clients have taken them, or take no more
        of them: a reply that is lost is a hole in its log. Bytes that are unread would have a client find a reset.

        Those that are idle are closed after a moment. A client that sends to a closed connection fails, and may do so
        before it has read the replies that it has; by then it can have seen the end.
        """
        connections = list(self._connections.values())
        idle = [each for each in connections if each.closing is None and not each.owed() and not each.unread()]
        for each in connections:
            each.closing = each.closing or Closed.SHUTDOWN
        self._send_all(connections)
        await self._all_closed(GRACE_S)
        for each in idle:
            if each.socket.fileno() >= 0:  # its client has not closed it
                self._close(each, Closed.SHUTDOWN)
        ends, before = self._loop.time() + LEAVE_S, -1
        while self._connections and self._loop.time() < ends:
            owed = sum(each.owed() for each in self._connections.values())
            if owed == before:
                return
            before = owed
            await self._all_closed(LINGER_S)

    async def _all_closed(self, within_s: float) -> None:
        """Return when there is no connection any more, or after a time."""
        if self._connections:
            self._is_empty.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_empty.wait(), within_s)

    def _listen_on(self, accepts: bool) -> None:
        """Begin to accept connections, or leave them to wait."""
        if accepts is self._accepts:
            return
        self._accepts = accepts
        for number in self._listeners:
            if accepts:
                self._epoll.register(number, select.EPOLLIN)
            else:
                self._epoll.unregister(number)

    def resume(self, log: LogName) -> None:
        """The bound of a log was raised, or it is not served any more: answer those who wait for it."""
        if self._secure is not None:
            self._secure.resume(log)
        waiting = self._waiting.pop(log, None)
        if not waiting:
            return
        self._before()
        for each in waiting:
            each.waits = None
            self._answer(each, b"")
        self._send_all(list(waiting))
        self._after()

    # -------------------------------------------------------------------------------------- a round

    def _count_round(self) -> None:
        """One round; of some the requests are counted, from figures that the core keeps anyway."""
        figures = self.figures
        figures.rounds += 1
        if figures.rounds % SAMPLE_EVERY:
            self._round()
            return
        before = self._answered()
        self._round()
        requests = max(0, self._answered() - before)  # less where a log was forgotten meanwhile
        figures.round_requests[min(max(0, requests - 1).bit_length(), ROUND_SIZES - 1)] += 1
        figures.sampled_requests += requests

    def _answered(self) -> int:
        core = self._core
        return sum(each.requests for each in core.counters.values()) + sum(core.results.values())

    def _round(self) -> None:
        if self._turn is None:
            self._read_and_answer()
        else:
            self._answer_left(self._turn)

    def _answer_left(self, turn: Callable[[int], Sequence[Left]]) -> None:
        """A round whose plain connections the compiled core reads, answers and sends to in one call."""
        self._before()
        touched = []
        for number, events, data, answer in turn(self._epoll.fileno()):
            connection = self._connections.get(number)
            if connection is None:
                self._accept(self._listeners[number])
                continue
            if not events:
                connection.closing = Closed.ERROR
            elif answer is not None:
                self._take(connection, data or b"", answer)
            elif data is not None:
                self._read_on(connection, data)
            elif not connection.interest and events & (select.EPOLLHUP | select.EPOLLERR):
                self._close(connection, Closed.BY_CLIENT)  # no peer is left to read what it waits for
                continue
            elif not connection.out:
                self._go_on(connection)
            touched.append(connection)
        self._send_all(touched)
        self._after()

    def _read_and_answer(self) -> None:  # noqa: C901, PLR0912 - the way of most requests has no calls in Python
        ready = self._epoll.poll(0)
        self._before()
        connections, core, answer, smallest = self._connections, self._core, self._core.answer, FIRST_READS[0].most
        plain: list[tuple[SequencerConnection, bytes]] = []
        touched = []
        for number, events in ready:
            connection = connections.get(number)
            if connection is None:
                self._accept(self._listeners[number])
            elif connection.is_plain:  # most are, and each call in Python would cost as much as an answer
                most = connection.most
                try:
                    data = connection.recv(most)
                except BlockingIOError:
                    continue
                except OSError:
                    connection.closing = Closed.ERROR
                    touched.append(connection)
                    continue
                if 0 < len(data) < most:
                    if most != smallest and len(data) < connection.least:
                        connection.read_by(connection.step - 1)
                    core.client = number
                    found = answer(data)
                    if found[1] == len(data) and found[3] is None:  # all of it is answered
                        plain.append((connection, found[0]))
                        continue
                    self._take(connection, data, found)
                else:
                    self._read_on(connection, data)
                touched.append(connection)
            elif not connection.interest and events & (select.EPOLLHUP | select.EPOLLERR):
                self._close(connection, Closed.BY_CLIENT)  # no peer is left to read what it waits for
            else:
                if not connection.out:
                    self._go_on(connection)
                touched.append(connection)
        for connection, replies in plain:
            try:
                sent = connection.send(replies)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._close(connection, Closed.ERROR)
                continue
            if sent < len(replies):
                connection.out = replies[sent:]
                self._listen(connection)
        self._send_all(touched)
        self._after()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(self._accepts_at_once):
            try:
                made, _ = listener.accept()
            except OSError as exc:  # there is none, or it has gone: the next round looks again
                if exc.errno in (errno.EMFILE, errno.ENFILE):
                    _log.warning("new connections wait: %s", exc.strerror, extra={"event": "connections_wait"})
                    self._listen_on(False)
                return
            try:
                why = self._refusal(made)
            except OSError:  # its client has reset it
                why = Closed.ERROR
            if why is not None:
                self.figures.closed[why] += 1
                made.close()

    def _refusal(self, made: socket.socket) -> Closed | None:
        """Begin to serve a connection, or say why not. Raises OSError where its client has gone."""
        made.setblocking(False)
        if made.family != socket.AF_UNIX:
            for option in OVER_TCP:
                made.setsockopt(*option)
        if self.connections >= self._most:
            return Closed.TOO_MANY
        if not self._may_connect(made):
            return Closed.REFUSED
        is_plain = self._secure is None or self._secure.may_be_plain(made)
        self.figures.accepted += 1
        if self._secure is not None and not is_plain:
            self._secure.take(made, self._count)
            return None
        self._connections[made.fileno()] = SequencerConnection(made, made.recv, made.send)
        self._mark(made.fileno(), True)
        self._epoll.register(made.fileno(), select.EPOLLIN)
        return None

    def _count(self, why: Closed) -> None:
        self.figures.closed[why] += 1

    def _go_on(self, connection: SequencerConnection) -> None:
        """Answer what is left of the last read, or else read."""
        if connection.has_more:
            self._answer(connection, b"")
        else:
            self._read(connection)

    def _read(self, connection: SequencerConnection) -> None:
        try:
            data = connection.recv(connection.most)
        except BlockingIOError:
            return
        except OSError:
            connection.closing = Closed.ERROR
            return
        self._read_on(connection, data)

    def _read_on(self, connection: SequencerConnection, data: bytes) -> None:
        """Read what is left behind a first read, and answer all of it."""
        connection.ended = not data
        if len(data) == connection.most < READ:
            connection.read_by(connection.step + 1)
            try:
                data += connection.recv(READ)
            except BlockingIOError:
                pass
            except OSError:
                connection.closing = Closed.ERROR
        if connection.closing is None:
            self._answer(connection, data)

    def _answer(self, connection: SequencerConnection, data: bytes) -> None:
        data = connection.rest + data
        self._core.client = connection.socket.fileno()
        self._take(connection, data, self._core.answer(data))

    def _take(self, connection: SequencerConnection, data: bytes, answer: SequencerReplies) -> None:
        """Keep the replies to a connection's bytes, and those that are not answered."""
        if answer.consumed or not connection.rest:
            connection.since = self._loop.time()
        connection.out += answer.replies
        connection.rest = data[answer.consumed :]
        connection.has_more = False
        if answer.closes:
            connection.closing = Closed.MALFORMED
        elif answer.waits is not None:
            connection.waits = answer.waits
            self._waiting.setdefault(answer.waits, set()).add(connection)
        elif connection.rest and has_more(connection.rest):
            connection.has_more = True
        elif connection.ended:
            connection.closing = Closed.BY_CLIENT

    def _send_all(self, connections: Sequence[SequencerConnection]) -> None:
        for each in connections:
            if each.out:
                try:
                    sent = each.socket.send(each.out)
                except BlockingIOError:
                    sent = 0
                except OSError:
                    self._close(each, Closed.ERROR)
                    continue
                each.out = each.out[sent:] if sent < len(each.out) else b""
            if each.closing is Closed.ERROR or (each.closing and each.ended and not each.out):
                self._close(each, each.closing)
                continue
            if each.closing and not each.out and not each.lingers:
                self._end(each)
            self._listen(each)

    def _end(self, connection: SequencerConnection) -> None:
        """Send nothing more, and wait until the client has closed, too.

        TCP would drop replies that are under way when a socket is closed in which there are unread bytes.
        """
        connection.lingers, connection.since = True, self._loop.time()
        with suppress(OSError):
            connection.socket.shutdown(socket.SHUT_WR)

    def _listen(self, connection: SequencerConnection) -> None:
        """Have epoll tell what this connection waits for, and nothing else."""
        if connection.out or (connection.has_more and connection.closing is None):
            interest = select.EPOLLOUT
        elif connection.waits is not None or connection.ended:
            interest = 0
        else:
            interest = select.EPOLLIN
        connection.is_plain = interest == select.EPOLLIN and not connection.rest and connection.closing is None
        self._mark(connection.socket.fileno(), connection.is_plain)
        if interest != connection.interest:
            connection.interest = interest
            self._epoll.modify(connection.socket.fileno(), interest)

    def _close(self, connection: SequencerConnection, why: Closed) -> None:
        number = connection.socket.fileno()
        self._connections.pop(number, None)
        if not self._connections:
            self._is_empty.set()
        self._mark(number, False)
        if connection.waits is not None and connection in (waiting := self._waiting.get(connection.waits, set())):
            waiting.discard(connection)
            if not waiting:
                del self._waiting[connection.waits]
        self._epoll.unregister(number)
        connection.socket.close()
        self.figures.closed[why] += 1

    def _sweep(self) -> None:
        """Close connections whose frame does not get whole, and accept new ones again."""
        now = self._loop.time()
        self._listen_on(True)
        if self._secure is not None:
            self._secure.sweep(now)
        for each in list(self._connections.values()):
            if each.closing and each.lingers and now - each.since > LINGER_S:
                self._close(each, each.closing)
            elif each.rest and each.waits is None and not each.out and now - each.since > PARTIAL_FRAME_S:
                self._close(each, Closed.PARTIAL)
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)
