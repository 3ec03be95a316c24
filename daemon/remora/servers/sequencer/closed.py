"""When and why the sequencer closes a connection."""

from __future__ import annotations

from enum import StrEnum

PARTIAL_FRAME_S = 30.0
"""A frame that is not complete after this time closes its connection."""

LINGER_S = 2.0
"""How long a client may take to close a connection that was ended for what it sent."""

GRACE_S = 0.5
"""How long a server that stops waits for clients that seem to have all their replies to close their connections."""

LEAVE_S = 10.0
"""How long a server that stops sends the replies that are under way, while clients take them."""


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
