"""What one session holds: credit for what it may send, entries that it asked for or read, and bytes in memory.

Credit is taken before a page is read. What is granted is settled when the page's records are known, and what the
session has not handed to its endpoint comes back when it ends, whatever ended it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from remora.codec.speedups import extent
from remora.engine.admission.gate import Gate, Grant, Pending
from remora.engine.admission.givers import Allowance
from remora.engine.delivery.scope import DeliveryScope
from remora.model.record import DeadLetter, Page, Record
from remora.model.traffic import Priority
from remora.policy.admission.limits import mean_records
from remora.policy.admission.line import Demand

LONG_WAIT_S = 1.0
"""After this time a session that must not wait leaves the waiting to its dispatcher, which keeps its place."""


class SessionReservation:
    """See the module. Whatever ends the session, `close` gives everything back."""

    def __init__(
        self, scope: DeliveryScope, allowance: Allowance, on_long_wait: Callable[[], None] = lambda: None
    ) -> None:
        """`on_long_wait` is called when a session waits for credit that must not wait for long."""
        self._scope = scope
        self._gate: Gate = scope.context.gate
        self._shaped, self._progress, self._reads = scope.state.shaped, scope.state.progress, scope.state.reads
        self._on_long_wait = on_long_wait
        self._rooms, self._bounds = allowance.room.chain, allowance.entries
        self._asked = 0
        self._held = 0
        self._reading: deque[Grant] = deque()
        self._sending: deque[Grant] = deque()
        self.waits_for_entries = False
        """Whether a page waits for acknowledgements."""

    # ------------------------------------------------------------------------------ bytes in memory

    @property
    def reach(self) -> int:
        """How many bytes may be held as things stand."""
        return self._rooms[0].reach

    async def room(self, nbytes: int, priority: Priority) -> None:
        """Wait until so many bytes more may be held."""
        await self._gate.admit(Demand(priority, self._rooms, nbytes))
        self._progress.held_bytes += nbytes

    def room_now(self, nbytes: int) -> bool:
        """As `room`, without waiting or passing anybody by; whether they are held."""
        is_held = self._gate.admit_now(Demand(Priority.IDLE, self._rooms, nbytes))
        self._progress.held_bytes += nbytes if is_held else 0
        return is_held

    def hold(self, more: int) -> None:
        """Hold so many bytes more, or fewer: an estimate became a fact, or what was held has left memory."""
        self._progress.held_bytes += more
        self._gate.free([freed for room in self._rooms for freed in room.adjust(more)])

    def make_room(self) -> None:
        """There is more that can be turned back: those who wait for room may have it."""
        for room in self._rooms:
            self._gate.make_room(room)

    # -------------------------------------------------------------------------------------- entries

    @property
    def may_list(self) -> bool:
        """Whether entries are asked for, where there is a bound."""
        return self._asked > 0 or not self._is_bounded

    @property
    def _is_bounded(self) -> bool:
        return any(each.is_bounded for each in self._bounds)

    async def entries(self, limit: int) -> int:
        """Wait until something may be read; returns how many entries, at most `limit`."""
        if entries := self.entries_now(limit):
            return entries
        topic, shard = self._scope.topic, self._scope.lease.shard
        request = self._entries(limit, self._gate.priority_of(topic, shard, at_tail=self._shaped.at_tail))
        self.waits_for_entries = True
        try:
            await self._gate.admit(request)
        finally:
            self.waits_for_entries = False
        self._asked += request.want
        return request.want

    def entries_now(self, limit: int) -> int:
        """As `entries`, without waiting or passing anybody by; 0 where it would wait."""
        request = self._entries(limit, Priority.IDLE)
        if not self._gate.admit_now(request):
            return 0
        self._asked += request.want
        return request.want

    def _entries(self, limit: int, priority: Priority) -> Demand:
        return Demand(priority, self._bounds, limit, mean=self._reads.mean_records)

    def within(self, limit: int) -> int:
        """How many entries the next page may have, at most `limit`."""
        return min(limit, self._asked) if self._is_bounded else limit

    def listed(self, entries: int) -> None:
        """A page has come with `entries` of those that were asked for."""
        asked = min(self._asked, entries)
        self._asked -= asked
        self._held += entries
        self._count(asked, entries)

    def done(self, entries: int) -> None:
        """`entries` that were read are done, or are not sent now."""
        self._held -= entries
        self._count(0, -entries)

    def release(self, asked: int | None = None) -> None:
        """`asked` that were asked for are not read; without a number all of them."""
        asked = self._asked if asked is None else asked
        self._asked -= asked
        self._count(asked, 0)

    def sent(self, records: int, entries: int) -> None:
        """A page of `entries` entries made `records` records, which says how many the next ones make."""
        self._reads.mean_records = mean_records(self._reads.mean_records, records, entries)

    def _count(self, asked: int, entries: int) -> None:
        self._gate.free([freed for each in self._bounds for freed in each.listed(asked, entries)])

    # --------------------------------------------------------------------------------------- credit

    async def credit(self, nbytes: int, least: int, *, may_wait: bool) -> int:
        """Wait until something may be read; returns the bytes: `nbytes`, or fewer, and those of an entry at least.

        A session that may not wait for long learns of it when it would have to.
        """
        if not self._gate.is_on:
            return nbytes
        pending = self._shaped.pending
        if pending is None:
            topic, shard, at_tail = self._scope.topic, self._scope.lease.shard, self._shaped.at_tail
            request = self._request(nbytes, least)
            pending = self._shaped.pending = self._gate.ask(topic, shard, request, at_tail=at_tail)
        if pending.grant is None:
            await self._wait(pending, may_wait=may_wait)
        assert pending.grant is not None
        if self._shaped.pending is pending:
            self._shaped.pending = None
        return self._granted(pending.grant, nbytes)

    def credit_now(self, nbytes: int, least: int) -> int:
        """As `credit`, without waiting; 0 where it would wait."""
        if not self._gate.is_on:
            return nbytes
        grant = self._gate.ask_now(self._request(nbytes, least))
        return self._granted(grant, nbytes) if grant is not None else 0

    def _request(self, nbytes: int, least: int) -> Demand:
        """A look into a queue that was empty the last time charges nothing: what it brings is taken by force."""
        is_look = self._progress.empty_since is not None
        want, smallest = (0, 0) if is_look else (nbytes, min(nbytes, least))
        shard = self._scope.lease.shard
        return self._gate.request(self._scope.topic, shard, want, smallest, at_tail=self._shaped.at_tail)

    async def _wait(self, pending: Pending, *, may_wait: bool) -> None:
        if not may_wait:
            try:
                async with asyncio.timeout(LONG_WAIT_S):
                    await pending.wait()
            except TimeoutError:
                self._on_long_wait()
        await pending.wait()
        self._progress.progress_at = asyncio.get_running_loop().time()  # to wait for credit is no stall

    def _granted(self, grant: Grant, nbytes: int) -> int:
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
        nbytes = self._learn(page, records)
        if self._reading:
            grant = self._reading.popleft()
            grant.settle(nbytes)
            self._sending.append(grant)
        return nbytes

    def part(self, page: Page, records: Sequence[Record]) -> int:
        """Take the bytes of a page from what was granted for several; more than that is taken by force.

        Returns the bytes as `settle` does.
        """
        left = nbytes = self._learn(page, records)
        if not self._reading:
            return nbytes
        while len(self._reading) > 1 and self._reading[0].nbytes <= left:
            left -= self._reading[0].nbytes
            self._sending.append(self._reading.popleft())
        first = self._reading[0]
        if first.nbytes < left:
            first.settle(left)
        self._sending.append(first.part(left))
        return nbytes

    def _learn(self, page: Page, records: Sequence[Record]) -> int:
        """Note what the shard's class is next; returns the bytes that are sent of a page, 0 without a grant, where its
        last record tells next to nothing less and costs less to look at."""
        if self._reading:
            nbytes, _, newest_ns = extent(records)
        else:
            nbytes, newest_ns = 0, records[-1].created_ns if page.truncated and len(records) else 0
        newest_age_s = (time.time_ns() - newest_ns) / 1e9 if newest_ns else 0.0
        self._shaped.at_tail = not self._gate.has_backlog(self._scope.lease.shard, page, newest_age_s)
        self._shaped.is_known = True
        return nbytes

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

    def _hand(self, records: Sequence[Record]) -> Iterator[tuple[Demand, int]]:
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
            topic, shard = self._scope.topic, self._scope.lease.shard
            self._gate.force(self._gate.request(topic, shard, nbytes, nbytes, at_tail=self._shaped.at_tail))

    # ------------------------------------------------------------------------------------------ exits

    def discard(self, nbytes: int) -> None:
        """A page that has come is thrown away, and what was taken for it is given back."""
        self.release()
        self.end_pages()
        self.hold(-nbytes)

    def return_newest(self, entries: int, nbytes: int, credit: int) -> None:
        """What was read last, these entries with their bytes and credit, is not sent now: all of it comes back."""
        self.done(entries)
        while credit > 0 and self._sending:
            last = self._sending[-1]
            part = min(credit, last.nbytes - last.handed)
            if part <= 0:
                break
            if part == last.nbytes:
                self._sending.pop().close()
            else:
                last.settle(last.nbytes - part)
            credit -= part
        self.hold(-nbytes)

    def close_room(self) -> None:
        """The session holds nothing in memory any more."""
        self.hold(-self._progress.held_bytes)
        self.release()
        self.done(self._held)

    def close(self, *, keeps_place: bool) -> None:
        """The session is over. A request for credit that waits is given up, or kept for the next session."""
        self.close_room()
        if not keeps_place:
            self._shaped.cancel()
        self.end_pages()
        while self._sending:
            self._sending.popleft().close()
