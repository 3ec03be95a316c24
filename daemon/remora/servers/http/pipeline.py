"""The requests of one connection that are under way, and their answers in the order of the requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from remora.servers.http.head import Head
from remora.servers.http.response import Response

MOST = 32
"""Requests that a client may send ahead and that are begun before the first of them is answered."""


class PendingRequest:
    """One request, from its head to its answer. It does not hold the request, whose body ends with its answer."""

    __slots__ = ("_changed", "_head", "early", "response")

    def __init__(self, head: Head | None, changed: Callable[[PendingRequest], None]) -> None:
        """`head` is None where what came cannot be read; `changed` is called when there is something to send."""
        self._head = head
        self._changed = changed
        self.response: Response | None = None
        self.early = b""
        """What is to be sent before the answer, and was not yet."""

    @property
    def keeps_alive(self) -> bool:
        """Whether another request may come behind it."""
        return self._head is not None and self._head.keeps_alive

    def say(self, early: bytes) -> None:
        """Send this, when it is this request's turn."""
        self.early += early
        self._changed(self)

    def end(self, response: Response) -> None:
        """This is the answer."""
        self.response = response
        self._changed(self)

    def encoded(self, response: Response) -> bytes:
        """The answer as it is sent."""
        head = self._head
        return response.encode(
            is_head=head is not None and head.method == "HEAD", says_alive=head is not None and head.version == "1.0"
        )


class Pipeline:
    """The requests of a connection that are under way, the oldest first (HTTP pipelining, RFC 9112, 9.3.2)."""

    def __init__(self) -> None:
        self._all: deque[PendingRequest] = deque()

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, pending: PendingRequest) -> bool:
        return pending in self._all

    def is_last(self, pending: PendingRequest) -> bool:
        """Whether no request was begun behind it."""
        return self._all[-1] is pending

    def add(self, pending: PendingRequest) -> None:
        """The next request."""
        self._all.append(pending)

    def drop(self, pending: PendingRequest) -> None:
        """Forget a request: it will never be whole."""
        self._all.remove(pending)

    def clear(self) -> None:
        """Forget all of them: nothing is sent any more."""
        self._all.clear()

    def take(self) -> tuple[bytes, bool]:
        """What can be sent now, and whether the connection ends with it."""
        parts: list[bytes] = []
        requests = self._all
        while requests and (response := requests[0].response) is not None:
            parts.append(requests.popleft().encoded(response))
            if response.closes:
                requests.clear()
                return b"".join(parts), True
        if requests and requests[0].early:
            parts.append(requests[0].early)
            requests[0].early = b""
        return b"".join(parts), False
