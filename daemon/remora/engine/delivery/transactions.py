"""One shard's entries on their way in transactions, so that a reader of committed records sees each of them once.

A transaction takes whole listings, in the queue's order: their records, the letters of those that cannot be sent, and
the position behind the last of them. It grows with the backlog, up to a number of entries, of bytes and a time; while
one is being committed the next is read, and goes when its turn comes, with what has been read until then.

Nothing is ever sent again whose transaction may have been committed. `catching_up` gives the order that this needs. A
session that fails, for whatever reason, ends; the dispatcher leaves its route, whose outcome is unknown, and begins
with that order again. Whatever had been read is thrown away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from weakref import proxy

from remora.engine.admission.givers import PageAhead
from remora.engine.delivery.catching_up import catch_up
from remora.engine.delivery.pages_ahead import PagesAhead
from remora.engine.delivery.reader import at_most
from remora.engine.delivery.session import Session
from remora.engine.delivery.transaction import Commits, Transaction, TransactionPart, reject
from remora.engine.delivery.triage import own_part
from remora.model.errors import OwnershipLost
from remora.model.record import Page
from remora.ports.endpoint import ExactRoute


class TransactionSender:
    """See the module; made right after its route was entered."""

    def __init__(self, session: Session, route: ExactRoute, committer: Commits) -> None:
        self._session = session
        self._scope = session.scope
        self._redelivery = session.scope.state.redelivery
        self._progress = session.scope.state.progress
        self._reader = session.reader
        self._route = route
        self._open: Transaction | None = None
        # A proxy, as the pages last no longer than their sender: the two leave nothing for the collector.
        self._ahead = PagesAhead(
            session.scope, session.reader, session.trimmer, proxy(self), is_over=lambda: session.is_over
        )
        self._committer = committer
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._room = 0
        self._backlog = False
        self._committing: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """False: what a commit has done with is worth a removal of its own."""
        return False

    async def prepare(self) -> bytes:
        """Where to read from; only after this anything may be sent."""
        try:
            start, count = await catch_up(self._scope, self._reader, self._route)
        except OwnershipLost as exc:
            self._scope.context.telemetry.removal_refused(self._scope.lease.shard.queue, str(exc))
            raise
        if count:
            self._scope.context.telemetry.removed(self._scope.topic.label, count)
            self._progress.progress_at = asyncio.get_running_loop().time()
        self._committer.begin_at(start)
        return start

    def begin(self) -> None:
        """Begin to commit what is read."""
        name = f"commit {self._scope.lease.shard.queue}"
        self._committing = self._session.tasks.create_task(self._commit_on(), name=name)

    def wake(self) -> None:
        """Look whether the session is over."""
        self._changed.set()

    async def settle(self) -> None:
        """Wait until everything that was read is committed, or was turned back."""
        assert self._committing is not None
        await asyncio.wait([self._committing])

    def cut_short(self) -> None:
        """What was read and is not being committed is read again by the next session."""
        self._open = None

    # ------------------------------------------------------------------------------- reading ahead

    async def read_on(self, start: bytes) -> None:
        """Read page after page into the open transaction."""
        now = asyncio.get_running_loop().time
        busy_at = now()
        self._ahead.begin_at(start)
        while not self._session.is_over:
            if not self._reader.is_ahead:
                await self._take_turn()
                limit = min(self._page_entries(), self._reader.entries_in(self._room))
                self._reader.fetch(self._ahead.next_read(), self._reader.held.within(limit))
            page = await self._reader.fetched()
            if page is None or self._session.is_over:
                return
            if not self._ahead.follows(page):
                self._reader.discard(page, self._room)
                self._room = 0
            elif page.entries:
                busy_at = now()
                await self._take_in(page)
                del page  # many shards wait for room: what they have delivered must not stay in memory
            else:
                self._give_room_back()
                if self._session.trimmer.is_empty:
                    self._progress.end_work()
                self._session.passivates = self._may_passivate(busy_at)
                if not self._session.passivates:
                    await self._wait_for_news(busy_at)
            if self._session.passivates or self._route.stale:
                self._session.end()

    async def _take_in(self, page: Page) -> None:
        """Add a page to the open transaction, while the next one comes in; wait when that is full."""
        self._backlog = page.truncated
        whole = own_part(page, self._scope.topic)
        self._reader.held.listed(len(whole.entries))
        self._room -= whole.nbytes
        if self._room < 0:
            self._reader.held.hold(-self._room)
            self._room = 0
        if whole is page and page.truncated and (limit := self._look_ahead_entries(len(page.entries))):
            self._reader.fetch(page.positions[-1], limit)
            await asyncio.sleep(0)  # the request leaves before rendering takes the processor
            if self._session.is_over:
                return  # what was read before this may have been turned back: nothing may pass it
        transaction = self._add(whole) if whole.entries else None
        if whole is not page:
            self._session.end()  # the next entries go elsewhere
        elif transaction is not None and self._is_full(transaction):
            self._give_room_back()
            self._pack_ahead(transaction)
            while self._open is transaction:
                self._taken.clear()
                await self._taken.wait()

    def _look_ahead_entries(self, joining: int) -> int:
        """How many entries to read behind those that are about to join the open transaction: 0 where that is full
        then, or where there is no room for more."""
        joined = joining + (self._open.entries if self._open else 0)
        entries = self._reader.held.within(self._reader.flow().joining_entries(self._most, joined))
        return entries if self._room >= self._reader.bytes_for(entries) else 0

    async def _take_turn(self) -> None:
        """Hold the bytes of the next page, and where there is a backlog those of a whole transaction.

        A transaction with no room or no credit to grow goes as it is: no open one waits for what others give back.
        """
        if not self._reader.held.may_list:
            self._give_room_back()  # what entries left that were smaller than expected must not pile up
        elif self._room >= self._reader.bytes_for(self._page_entries()):
            return
        wanted = self._left_entries() if self._backlog else self._page_entries()
        room = self._reader.take_turn_now(wanted)
        if not room:
            if self._open is not None:
                self._open.is_due = True
                self._changed.set()
            else:
                self._leave_room()
            room = await self._reader.take_turn(wanted)
        self._room += room

    def _leave_room(self) -> None:
        """Hold no room that no read needs: who has nothing open and waits for room must hold none, or shards would wait
        for each other."""
        if not self._reader.is_ahead:
            self._reader.held.hold(-self._room)
            self._room = 0
            if self._reader.held.waits_for_entries:
                self._reader.held.release()

    def _give_room_back(self) -> None:
        self._reader.held.discard(self._room)
        self._room = 0

    @property
    def _most(self) -> int:
        return self._scope.context.settings.transaction_records

    def _left_entries(self) -> int:
        """How many may join the open one."""
        joined = self._open.entries if self._open else 0
        return max(1, self._reader.flow().transaction_entries(self._most) - joined)

    def _page_entries(self) -> int:
        return min(self._scope.context.settings.list_entries, self._left_entries())

    def _is_full(self, transaction: Transaction) -> bool:
        return (
            transaction.entries >= self._reader.flow().transaction_entries(self._most)
            or transaction.nbytes >= self._scope.context.settings.shard_bytes / 2
        )

    def _may_passivate(self, busy_at: float) -> bool:
        """Whether the queue was empty longer than a route is kept."""
        return self._reader.may_passivate(busy_at, keeps_watch=False)

    async def _wait_for_news(self, busy_at: float) -> None:
        """Wait until an empty queue is worth another look, or the route is to be left."""
        news = self._progress.news
        while not (news.is_set() or self._route.stale or self._may_passivate(busy_at)):
            await self._reader.wait_for_look(busy_at)
            if not self._scope.context.store.arrivals.notifies:
                return

    # ---------------------------------------------------------------------------------- turning back

    def untouched(self, pages: Sequence[PageAhead]) -> int:
        """All of them: a transaction that is packed or committed has none."""
        return len(pages)

    def take_out(self, pages: Sequence[PageAhead]) -> None:
        """Forget these parts of the open transaction, its newest ones, and leave the room for further ones."""
        transaction = self._open
        assert transaction is not None
        for page in pages:
            part = transaction.parts.pop()
            assert part.acks is page.acks, "another part than the newest one"
            transaction.entries -= page.entries
            transaction.nbytes -= page.nbytes
        if not transaction.parts:
            self._open = None
            self._taken.set()
        self._changed.set()
        self._leave_room()

    # --------------------------------------------------------------------------- filling and packing

    def _add(self, page: Page) -> Transaction:
        """Divide a page, and let all of it join the open transaction."""
        added, triaged = self._session.take_in(page)
        credit = self._reader.held.part(page, triaged.records)
        part = TransactionPart(page, added, triaged.records, triaged.rejected, triaged.skipped)
        if self._redelivery.refused:
            reject(part, "refused", self._redelivery.refused)
        self._reader.packed()

        transaction = self._open
        if transaction is None:
            now = asyncio.get_running_loop().time()
            transaction = self._open = Transaction(now, self._scope.clock())
        transaction.parts.append(part)
        transaction.entries += len(page.entries)
        transaction.nbytes += page.nbytes
        transaction.is_due |= not page.truncated or self._is_full(transaction)
        self._ahead.add(PageAhead(added, page.nbytes, credit), is_clean=True)
        self._changed.set()
        return transaction

    def _pack_ahead(self, transaction: Transaction) -> None:
        """Pack a transaction that nothing joins any more, while another one is committed; not where that takes a look
        at the endpoint."""
        records = transaction.records()
        batches, refused = self._route.pack(records) if records else ([], [])
        if not refused:
            transaction.batches = batches
            self._ahead.begun()

    # ------------------------------------------------------------------------------------ committing

    async def _commit_on(self) -> None:
        """Commit one transaction after the other; the only place where anything is sent."""
        while (transaction := await self._next_due()) is not None:
            await self._committer.commit(transaction)
            del transaction  # not to be kept while the next one is awaited

    async def _next_due(self) -> Transaction | None:
        """Wait for a transaction that is due, and take it; None when no more will come."""
        now = asyncio.get_running_loop().time
        while True:
            transaction = self._open
            if transaction is None and self._session.is_over:
                return None
            self._changed.clear()
            if transaction is None:
                await self._changed.wait()
                continue
            left_s = transaction.began_at + self._scope.context.settings.transaction_time_s - now()
            if transaction.is_due or self._session.is_over or left_s <= 0:
                self._open = None
                self._taken.set()
                self._ahead.begun()
                self._leave_room()
                return transaction
            await at_most(self._changed, left_s)
