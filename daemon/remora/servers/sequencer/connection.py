"""One client of the sequencer over a plain socket: how much is read of it at a time, and when and why it is closed."""

from __future__ import annotations

import fcntl
import select
import socket
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from remora.model.log import LogName

PARTIAL_FRAME_S = 30.0
"""A frame that is not complete after this time closes its connection."""

LINGER_S = 2.0
"""How long a client may take to close a connection that was ended for what it sent."""

GRACE_S = 0.5
"""How long a server that stops waits for clients that seem to have all their replies to close their connections."""

LEAVE_S = 10.0
"""How long a server that stops sends the replies that are under way, while clients take them."""


OVER_TCP = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
)
"""Options of a connection over TCP. An idle one stays, but for that of a client whose host is gone: it would be one of
those that there may be for ever, and ends after two minutes."""


class Closed(StrEnum):
    """Why a connection was closed."""

    BY_CLIENT = "client"
    MALFORMED = "malformed"
    PARTIAL = "partial"
    HANDSHAKE = "handshake"
    TOO_MANY = "too_many"
    REFUSED = "refused"
    ERROR = "error"
    SHUTDOWN = "shutdown"


READ = 64 << 10
"""Bytes that are read of one connection in a round at most, behind a first read."""


class FirstRead(NamedTuple):
    """How many bytes a round's first read of a connection asks for, and with fewer than how many the next one asks for
    less. Small reads cost the least; one that is filled costs a second one, and the joining of both."""

    most: int
    least: int


FIRST_READS = (FirstRead(448, 0), FirstRead(8 << 10, 224), FirstRead(READ, 4 << 10))
"""From that for a dozen requests, which is what most connections send at once, to those for large windows."""


@dataclass(slots=True, eq=False)
class SequencerConnection:
    """One client. `rest` are bytes that are not answered yet, `out` replies that are not sent yet.

    `step` says which of FIRST_READS is `most` and `least`. `waits` is the log whose bound its next request waits for.
    `is_plain` where there is none of all this: the next bytes are read and answered without a look at the rest.
    `has_more` where `rest` has whole frames, which are answered when `out` is sent.
    `lingers` where everything is sent and its client has still to close it.
    """

    socket: socket.socket
    recv: Callable[[int], bytes]
    send: Callable[[bytes], int]
    step: int = 0
    most: int = FIRST_READS[0].most
    least: int = FIRST_READS[0].least
    is_plain: bool = True
    rest: bytes = b""
    out: bytes = b""
    since: float = 0.0
    ended: bool = False
    closing: Closed | None = None
    has_more: bool = False
    lingers: bool = False
    waits: LogName | None = None
    interest: int = select.EPOLLIN

    def read_by(self, step: int) -> None:
        """Begin the next rounds with a read of this kind."""
        self.step, (self.most, self.least) = step, FIRST_READS[step]

    def owed(self) -> int:
        """Bytes of replies that the other side has not got yet; on a Unix socket, about those that its client has not
        read, which unix(7) counts with their overhead."""
        return len(self.out) + self._count(termios.TIOCOUTQ)

    def unread(self) -> int:
        """Bytes that its client has sent and that were not read."""
        return self._count(termios.FIONREAD)

    def _count(self, of: int) -> int:
        (count,) = struct.unpack("i", fcntl.ioctl(self.socket.fileno(), of, bytes(4)))
        return int(count)
