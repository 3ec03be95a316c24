"""What one session asks of the gate before it reads, and gives back of what it did not send.

Credit is taken before a page is read, so a session that waits for it holds no room, no transaction and no lock that
must be trusted; nothing waits for credit after that. What is granted is settled when the page's records are known, and
what the session has not handed to its endpoint comes back when it ends, whatever ended it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from remora.codec.speedups import extent
from remora.engine.delivery.scope import Scope
from remora.engine.shaping.gate import Grant, Pending, Wish
from remora.model.record import DeadLetter, Page, Record
from remora.policy.waiting import Request

LONG_WAIT_S = 1.0
"""After so long a session that must not wait leaves the waiting to its dispatcher, which keeps its place."""


class SessionCredit:
    """See the module. Without a configured scope each call is one comparison."""

    def __init__(self, scope: Scope, on_long_wait: Callable[[], None]) -> None:
        """`on_long_wait` is called when a session waits that must not wait for long."""
        self._scope = scope
        self._gate = scope.context.gate
        self._shaped = scope.state.shaped
        self._progress = scope.state.progress
        self._on_long_wait = on_long_wait
        self._reading: deque[Grant] = deque()
        self._sending: deque[Grant] = deque()

    async def acquire(self, nbytes: int, least: int, *, may_wait: bool) -> int:
        """Wait until something may be read; returns the bytes: `nbytes`, or fewer, and those of an entry at least.

        A session that may not wait for long learns of it when it would have to.
        """
        if not self._gate.is_on:
            return nbytes
        pending = self._shaped.pending
        if pending is None:
            pending = self._shaped.pending = self._ask(nbytes, least)
        if pending.grant is None:
            await self._wait(pending, may_wait=may_wait)
        return self._granted(pending, nbytes)

    def try_acquire(self, nbytes: int, least: int) -> int:
        """As `acquire`, without waiting; 0 where it would wait."""
        if not self._gate.is_on:
            return nbytes
        pending = self._ask(nbytes, least)
        if pending.grant is None:
            pending.cancel()
            return 0
        return self._granted(pending, nbytes)

    def _ask(self, nbytes: int, least: int) -> Pending:
        """A look into a queue that was empty the last time charges nothing: what it brings is taken by force."""
        is_look = self._progress.empty_since is not None
        want, smallest = (0, 0) if is_look else (nbytes, min(nbytes, least))
        topic, shard = self._scope.topic, self._scope.lease.shard
        return self._gate.ask(Wish(topic, shard, want, smallest, self._shaped.at_tail))

    async def _wait(self, pending: Pending, *, may_wait: bool) -> None:
        if not may_wait:
            try:
                async with asyncio.timeout(LONG_WAIT_S):
                    await pending.wait()
            except TimeoutError:
                self._on_long_wait()
        await pending.wait()
        self._progress.progress_at = asyncio.get_running_loop().time()  # to wait for credit is no stall

    def _granted(self, pending: Pending, nbytes: int) -> int:
        grant = pending.grant
        assert grant is not None
        if self._shaped.pending is pending:
            self._shaped.pending = None
        self._reading.append(grant)
        return grant.nbytes or nbytes

    def cancel_last(self) -> None:
        """What was granted last is not read after all."""
        if self._reading:
            self._reading.pop().close()

    def settle(self, page: Page, records: Sequence[Record]) -> int:
        """Settle the grant of a page whose records are known: what was not needed comes back, and more is taken.

        Returns the bytes that were granted for its records, 0 without a grant.
        """
        if not self._reading:
            return self._classify_alone(page, records)
        grant, nbytes = self._reading.popleft(), self._bytes_of(page, records)
        grant.settle(nbytes)
        self._sending.append(grant)
        return nbytes

    def spend(self, page: Page, records: Sequence[Record]) -> int:
        """Take the bytes of a page from what was granted for several; more than that is taken by force.

        Returns the bytes as `settle` does.
        """
        if not self._reading:
            return self._classify_alone(page, records)
        left = nbytes = self._bytes_of(page, records)
        while len(self._reading) > 1 and self._reading[0].nbytes <= left:
            left -= self._reading[0].nbytes
            self._sending.append(self._reading.popleft())
        first = self._reading[0]
        if first.nbytes < left:
            first.settle(left)
        self._sending.append(first.part(left))
        return nbytes

    def _bytes_of(self, page: Page, records: Sequence[Record]) -> int:
        """The bytes that are sent of a page, which also tells what the shard's class is next."""
        nbytes, _, newest_ns = extent(records)
        self._classify(page, newest_ns)
        return nbytes

    def _classify_alone(self, page: Page, records: Sequence[Record]) -> int:
        """Note the shard's class by its last record, which costs next to nothing; returns 0."""
        self._classify(page, records[-1].created_ns if page.truncated and len(records) else 0)
        return 0

    def _classify(self, page: Page, newest_ns: int) -> None:
        newest_age_s = (time.time_ns() - newest_ns) / 1e9 if newest_ns else 0.0
        self._shaped.at_tail = not self._gate.has_backlog(truncated=page.truncated, newest_age_s=newest_age_s)
        self._shaped.is_known = True

    def take_back(self, nbytes: int) -> None:
        """What was to be sent last, this many bytes, is not sent now: its credit comes back."""
        while nbytes > 0 and self._sending:
            last = self._sending[-1]
            part = min(nbytes, last.nbytes - last.handed)
            if part <= 0:
                return
            if part == last.nbytes:
                self._sending.pop().close()
            else:
                last.settle(last.nbytes - part)
            nbytes -= part

    def end_pages(self) -> None:
        """Nothing is read with what was granted and not spent: it comes back."""
        while self._reading:
            self._reading.popleft().close()

    @contextmanager
    def handed(self, *batches: Sequence[Record]) -> Iterator[None]:
        """The endpoint has these records while the block runs: their credit is used, whatever becomes of them."""
        parts = [part for records in batches for part in self._hand(records)]
        try:
            yield
        finally:
            for request, nbytes in parts:
                self._gate.count_unacked(request, -nbytes)

    def _hand(self, records: Sequence[Record]) -> Iterator[tuple[Request, int]]:
        """Use the credit of these records; the requests that it was granted to, each with its part of the bytes."""
        if not self._sending:
            return
        nbytes = extent(records).body_bytes
        while nbytes and self._sending:
            first = self._sending[0]
            part = min(nbytes, first.nbytes - first.handed)
            first.hand(part)
            yield first.request, part
            nbytes -= part
            if first.handed >= first.nbytes:
                self._sending.popleft()

    def force(self, letters: Sequence[DeadLetter]) -> None:
        """Take the bytes of dead letters that go to the endpoint too, at the shard's priority and without waiting."""
        if letters and self._gate.is_on and self._scope.publishes_letters:
            nbytes = sum(len(each.raw) + len(each.reason.encode()) for each in letters)
            shard = self._scope.lease.shard
            self._gate.force(Wish(self._scope.topic, shard, nbytes, nbytes, self._shaped.at_tail))

    def close(self, *, keeps_place: bool) -> None:
        """The session is over. A request that waits is given up, or kept for the next session."""
        if not keeps_place:
            self._shaped.cancel()
        self.end_pages()
        while self._sending:
            self._sending.popleft().close()
