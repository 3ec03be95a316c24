"""Messages of a lane on their way over one connection: those of a key one after the other, others side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from remora.model.errors import EndpointError

WINDOW = 16
"""Messages of a run without a confirm at once, of as many keys."""


class Run:
    """Messages of one lane, sent in their order: those of one key one after the other, of others side by side.

    A message is sent once all earlier ones of its key are confirmed, while at most WINDOW of the run have no confirm.
    `done` ends when all have arrived, or with an EndpointError. `at` of them have arrived, from the front.
    """

    __slots__ = (
        "_ahead", "_busy", "_keys", "_nacked", "_refusal", "at", "done", "ids", "is_due", "next",
    )  # fmt: skip

    def __init__(self, ids: Sequence[bytes], keys: Sequence[bytes] = ()) -> None:
        """`ids` name the messages; without `keys` all are of one key."""
        self.ids = ids
        self.at = self.next = 0
        self.is_due = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keys = keys
        self._busy: set[bytes] = set()
        self._ahead: set[int] = set()  # which have arrived although one before them has no confirm
        self._refusal: tuple[int, EndpointError] | None = None
        self._nacked: set[int] = set()

    @property
    def is_over(self) -> bool:
        """Whether its push was given up."""
        return self.done.done()

    @property
    def may_send(self) -> bool:
        """Whether the next message may be under way beside those that are."""
        at, busy = self.next, self._busy
        return (
            at < len(self.ids)
            and len(busy) < WINDOW
            and self._key(at) not in busy
            and self._refusal is None
            and not self.done.done()
        )

    def _key(self, at: int) -> bytes:
        return self._keys[at] if self._keys else b""

    def begin(self) -> int:
        """The next message is under way; returns which it is."""
        at = self.next
        self._busy.add(self._key(at))
        self.next = at + 1
        return at

    def arrived(self, at: int) -> None:
        """A message that was under way has arrived; with the last one it is done."""
        self._busy.discard(self._key(at))
        self._ahead.add(at)
        while self.at in self._ahead:
            self._ahead.remove(self.at)
            self.at += 1
        if self.at == len(self.ids) and not self.done.done():
            self.done.set_result(None)

    def refuse(self, at: int, error: EndpointError) -> None:
        """The broker refused a message that was under way: no other is sent. Of several the first counts."""
        self._busy.discard(self._key(at))
        self._nacked.add(at)
        if self._refusal is None or at < self._refusal[0]:
            self._refusal = at, error

    @property
    def refused(self) -> EndpointError | None:
        """Why the broker refused the message behind those that have arrived, if it did."""
        return self._refusal[1] if self._refusal is not None and self._refusal[0] == self.at else None

    def fail(self, error: EndpointError, tries: int | None = None) -> None:
        """End it; each run gets an exception of its own, since each of them is raised, that tells how far it came.

        `tries` is 1 where the broker refused the message behind those that have arrived.
        """
        if not self.done.done():
            own = error.again().at(self.at, tries)
            own.unclear = self.unclear
            self.done.set_exception(own)

    @property
    def unclear(self) -> list[int]:
        """Those that were sent and not refused, behind the front of those that have arrived."""
        return [each for each in range(self.at, self.next) if each not in self._nacked]

    def all_arrived(self) -> list[bytes]:
        """The ids of all that have arrived."""
        return [*self.ids[: self.at], *map(self.ids.__getitem__, self._ahead)]
