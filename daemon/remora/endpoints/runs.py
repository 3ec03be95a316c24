"""Messages of a lane on their way over one connection: those of a key one after the other, others side by side.

A `Run` knows what of it may be sent, a `Carrier` has the runs of one channel or stream under way and is told what
becomes of each message.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from remora.endpoints.arrived import Arrived
from remora.model.errors import EndpointError, EndpointUnavailable

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


R = TypeVar("R", bound=Run)


class Carried(Protocol[R]):
    """A message without a confirm yet, number `at` of a run."""

    run: R
    at: int

    @property
    def message_id(self) -> bytes: ...


M = TypeVar("M", bound=Carried)  # type: ignore[type-arg]  # of the same kind of run


class Carrier(ABC, Generic[R, M]):
    """The runs of one channel or stream. `what` names it in errors; `error` is set once nothing is confirmed any more.

    A subclass writes messages, keeps each in `_by_id` from then on, and says what the other side answers.
    """

    def __init__(self, what: str, arrived: Arrived) -> None:
        self.what = what
        self.error: EndpointError | None = None
        self._arrived = arrived
        self._by_id: dict[bytes, M] = {}
        self._runs: set[R] = set()  # whose next message is not written yet

    @abstractmethod
    def write_soon(self, run: R) -> None:
        """Have the next message of a run encoded as soon as it can be written."""

    def was_taken_over(self, one: M) -> None:
        """A message without an answer belongs to another push now. A broker that answers each one need not get it
        again, as those of AMQP do."""

    async def carry(self, run: R, within_s: float, too_late: Callable[[], EndpointUnavailable]) -> None:
        """Return when all messages of a run have arrived. Raises EndpointError; `too_late` makes that for its time."""
        self.submit(run)
        try:
            done, _ = await asyncio.wait([run.done], timeout=within_s)
        finally:
            self.forget(run)
        if not done:
            error = too_late().at(run.at)
            error.unclear = run.unclear
            raise error
        run.done.result()

    def submit(self, run: R) -> None:
        """Send what may be sent of a run, but what has arrived or is under way already; then wait for that."""
        while run.may_send:
            message_id = run.ids[run.next]
            if self._arrived.take(message_id):
                run.arrived(run.begin())
                continue
            if self.error is not None:
                self._fail(run, self.error)
                return
            found = self._by_id.get(message_id)
            if found is not None:
                found.run, found.at = run, run.begin()
                self.was_taken_over(found)
                continue
            if not run.is_due:
                run.is_due = True
                self._runs.add(run)
                self.write_soon(run)
            return

    def may_encode(self, run: R) -> bool:
        """Whether the next message of a run, which was due, is to be written now."""
        self._runs.discard(run)
        run.is_due = False
        if self.error is not None or not run.may_send:
            return False
        if run.ids[run.next] in self._by_id:
            self.submit(run)
            return False
        return True

    def has_arrived(self, one: M) -> None:
        """A message has arrived that was forgotten as one under way."""
        if one.run.is_over:
            self._arrived.add(one.message_id)
            return
        one.run.arrived(one.at)
        self._settle(one.run)

    def was_refused(self, one: M, error: EndpointError) -> None:
        """A message was refused that was forgotten as one under way."""
        if one.run.is_over:
            self._arrived.news()
            return
        one.run.refuse(one.at, error)
        self._settle(one.run)

    def _settle(self, run: R) -> None:
        """Send more of a run, or have it fail once all messages before the refused one have arrived."""
        if run.refused is not None:
            self._fail(run, run.refused, tries=1)
        else:
            self.submit(run)

    def _fail(self, run: R, error: EndpointError, tries: int | None = None) -> None:
        if not run.is_over:
            self._remember(run)
            run.fail(error, tries)

    def _remember(self, run: R) -> None:
        for message_id in run.all_arrived():
            self._arrived.add(message_id)

    def forget(self, run: R) -> None:
        """Give a run up. A message of it that was written keeps its place until it is confirmed."""
        if not run.done.done():
            self._remember(run)
            run.done.cancel()
        elif not run.done.cancelled():
            run.done.exception()  # the waiting push may have been cancelled in the same turn of the loop

    def end(self, error: EndpointError) -> None:
        """Nothing is confirmed any more."""
        if self.error is not None:
            return
        self.error = error
        runs = [*(each.run for each in self._by_id.values()), *self._runs]
        self._by_id.clear()
        self._runs.clear()
        for run in runs:
            self._fail(run, error)
        self._arrived.news()
