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
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from remora.codec.fastest import joined, totals
from remora.engine.delivery.catching_up import catch_up
from remora.engine.delivery.packing import pack_surely
from remora.engine.delivery.reading import at_most
from remora.engine.delivery.session import Session
from remora.engine.delivery.triage import Rejected
from remora.model.errors import (
    EndpointError,
    EndpointFenced,
    EndpointUnavailable,
    EntryRefused,
    OwnershipLost,
    StoreError,
)
from remora.model.ledger import Cause
from remora.model.record import DeadLetter, Page, Record
from remora.policy.acks import PageAcks
from remora.policy.idle import passivate_after
from remora.policy.retry import read_limit
from remora.ports.endpoint import Batch, ExactRoute

SEARCH_PARTS = 8
"""A transaction in which a record was refused is repeated in so many parts, and so on until the record stands alone."""


@dataclass(slots=True)
class Part:
    """A page of a transaction, triaged."""

    page: Page
    acks: PageAcks
    records: Sequence[Record]
    rejected: list[Rejected]
    skipped: list[int]


@dataclass(slots=True)
class Transaction:
    """What is committed together. `is_due` when it need not wait for more; `batches` once nothing joins it any more."""

    began_at: float
    parts: list[Part] = field(default_factory=list)
    entries: int = 0
    nbytes: int = 0
    is_due: bool = False
    batches: list[Batch] | None = None

    @property
    def begins_at(self) -> bytes:
        """The position of its first entry."""
        return self.parts[0].page.positions[0]

    @property
    def upto(self) -> bytes:
        """The position behind its last entry."""
        return self.parts[-1].page.positions[-1]

    def records(self) -> Sequence[Record]:
        """Those that are sent, in the queue's order."""
        return joined([part.records for part in self.parts])


class TransactionSender:
    """See the module; made right after its route was entered."""

    def __init__(self, session: Session, route: ExactRoute) -> None:
        self._session = session
        self._scope = session.scope
        self._redelivery = session.scope.state.redelivery
        self._reads = session.scope.state.reads
        self._progress = session.scope.state.progress
        self._reader = session.reader
        self._route = route
        self._open: Transaction | None = None
        self._reached = b""
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._room = 0
        self._backlog = False
        self._committer: asyncio.Task[None] | None = None

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
        self._redelivery.in_doubt = False
        if count:
            self._scope.context.telemetry.removed(self._scope.topic.label, count)
            self._progress.progress_at = asyncio.get_running_loop().time()
        self._reached = start
        return start

    def begin(self) -> None:
        """Begin to commit what is read."""
        name = f"commit {self._scope.lease.shard.queue}"
        self._committer = self._session.tasks.create_task(self._commit_on(), name=name)

    def wake(self) -> None:
        """Look whether the session is over."""
        self._changed.set()

    async def settle(self) -> None:
        """Wait until everything that was read is committed, or was turned back."""
        assert self._committer is not None
        await asyncio.wait([self._committer])

    def turn_back(self) -> None:
        """What was read and is not being committed is read again by the next session."""
        self._open = None

    # ------------------------------------------------------------------------------- reading ahead

    async def read_on(self, start: bytes) -> None:
        """Read page after page into the open transaction."""
        now = asyncio.get_running_loop().time
        busy_at = now()
        while not self._session.is_over:
            page = await self._next_listing(start)
            if page is None or self._session.is_over:
                return
            if page.entries:
                start, busy_at = page.positions[-1], now()
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

    async def _next_listing(self, start: bytes) -> Page | None:
        if not self._reader.is_ahead:
            await self._take_room()
            self._reader.fetch(start, min(self._listing_entries(), self._reader.entries_in(self._room)))
        return await self._reader.fetched()

    async def _take_in(self, page: Page) -> None:
        """Add a page to the open transaction, while the next one comes in; wait when that is full."""
        self._backlog = page.truncated
        whole = self._scope.own_part(page)
        self._room -= whole.nbytes
        if self._room < 0:
            self._reader.hold(-self._room)
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
        """How many entries to read behind so many that are about to join the open transaction: 0 where that is full
        then, or where there is no room for more."""
        left = self._most_entries() - joining - (self._open.entries if self._open else 0)
        entries = min(self._scope.context.settings.list_entries, left)
        return max(0, entries) if self._room >= entries * self._reads.mean_bytes else 0

    async def _take_room(self) -> None:
        """Hold the bytes of the next page, and where there is a backlog those of a whole transaction.

        A transaction with no room to grow goes as it is, so that nobody waits for room that somebody holds who waits.
        """
        if self._room >= self._listing_bytes():
            return
        wanted = self._left_entries() if self._backlog else self._listing_entries()
        room = self._reader.take_room_now(wanted)
        if not room:
            if self._open is not None:
                self._open.is_due = True
                self._changed.set()
            room = await self._reader.take_room(wanted)
        self._room += room

    def _give_room_back(self) -> None:
        self._reader.hold(-self._room)
        self._room = 0

    def _most_entries(self) -> int:
        """How many entries a transaction takes at most: so many that the shard may hold two of them."""
        settings = self._scope.context.settings
        most = min(read_limit(self._reads.pages_delivered, settings.transaction_records), self._reader.half)
        return min(most, self._redelivery.search_entries) if self._redelivery.read_singly else most

    def _left_entries(self) -> int:
        """How many may join the open one."""
        return max(1, self._most_entries() - (self._open.entries if self._open else 0))

    def _listing_entries(self) -> int:
        return min(self._scope.context.settings.list_entries, self._left_entries())

    def _listing_bytes(self) -> int:
        return int(self._listing_entries() * self._reads.mean_bytes)

    def _is_full(self, transaction: Transaction) -> bool:
        return (
            transaction.entries >= self._most_entries()
            or transaction.nbytes >= self._scope.context.settings.shard_bytes / 2
        )

    def _may_passivate(self, busy_at: float) -> bool:
        """Whether the queue was empty for so long that the route is not worth keeping."""
        idle_s = asyncio.get_running_loop().time() - busy_at
        return (
            idle_s >= passivate_after(self._scope.lease.active())
            and self._session.trimmer.is_empty
            and not self._progress.news.is_set()
        )

    async def _wait_for_news(self, busy_at: float) -> None:
        """Wait until an empty queue is worth another look, or the route is to be left."""
        news = self._progress.news
        while not (news.is_set() or self._route.stale or self._may_passivate(busy_at)):
            await at_most(news, self._reader.idle_s(busy_at))
            if not self._scope.context.store.arrivals.notifies:
                return

    # --------------------------------------------------------------------------- filling and packing

    def _add(self, page: Page) -> Transaction:
        """Divide a page, and let all of it join the open transaction."""
        added, triaged = self._session.take_in(page)
        part = Part(page, added, triaged.records, triaged.rejected, triaged.skipped)
        if self._redelivery.refused:
            _reject(part, "refused", self._redelivery.refused)

        transaction = self._open
        if transaction is None:
            transaction = self._open = Transaction(asyncio.get_running_loop().time())
        transaction.parts.append(part)
        transaction.entries += len(page.entries)
        transaction.nbytes += page.nbytes
        transaction.is_due |= not page.truncated or self._is_full(transaction)
        self._changed.set()
        return transaction

    def _pack_ahead(self, transaction: Transaction) -> None:
        """Pack a transaction that nothing joins any more, while another one is committed; not where that takes a look
        at the endpoint."""
        records = transaction.records()
        batches, refused = self._route.pack(records) if records else ([], [])
        if not refused:
            transaction.batches = batches

    async def _packed(self, transaction: Transaction) -> list[Batch]:
        """The batches of a transaction; what does not fit is rejected."""
        if transaction.batches is not None:
            return transaction.batches
        batches, refused = await pack_surely(self._route, transaction.records())
        if refused:
            reasons = {record.position: why for record, why in refused}
            for part in transaction.parts:
                _reject(part, "too_large", reasons)
        return batches

    # ------------------------------------------------------------------------------------ committing

    async def _commit_on(self) -> None:
        """Commit one transaction after the other; the only place where anything is sent."""
        while (transaction := await self._next_due()) is not None:
            try:
                await self._commit(transaction)
            except EntryRefused as exc:
                self._search(transaction, exc)
            except EndpointFenced as exc:
                self._session.fail(exc)
            except EndpointError as exc:
                self._session.count_attempts(transaction.records())
                self._session.fail(exc)
            except StoreError as exc:
                self._session.fail(exc)
            else:
                self._committed(transaction)
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
                return transaction
            await at_most(self._changed, left_s)

    async def _commit(self, transaction: Transaction) -> None:
        """Dead-letter what cannot be sent, then commit, both only while the lock is to be trusted."""
        if transaction.begins_at != self._reached:
            raise RuntimeError(f"a transaction from {transaction.begins_at!r} on would pass over {self._reached!r}")
        batches = await self._packed(transaction)
        self._scope.lease.require_trust()
        letters: list[DeadLetter] = []
        for part in transaction.parts:
            letters += await self._scope.dead_letter(part.page, part.rejected)
        self._scope.lease.require_trust()
        self._redelivery.in_doubt = True
        await self._route.commit(batches, transaction.upto, letters)
        self._reached, self._redelivery.in_doubt = transaction.upto, False

    def _committed(self, transaction: Transaction) -> None:
        """Everything of it is done with; it may leave the queue."""
        now_ns = time.time_ns()
        for part in transaction.parts:
            positions, (nbytes, created_ns, ordinals) = part.page.positions, totals(part.records)
            if ordinals:
                self._scope.context.telemetry.delivered(
                    self._scope.topic.label, len(ordinals), nbytes, created_ns, now_ns
                )
            self._session.trimmer.finish(part.acks, ordinals, Cause.DELIVERED)
            for each in part.rejected:
                self._session.trimmer.finish(part.acks, [each.ordinal], Cause.of_letter(each.cause))
            for ordinal in part.skipped:
                self._session.trimmer.finish(part.acks, [ordinal], self._redelivery.done.pop(positions[ordinal]))
            self._redelivery.forget(positions)
        self._reader.hold(-transaction.nbytes)
        self._progress.progress_at = asyncio.get_running_loop().time()
        self._reads.pages_delivered += len(transaction.parts)
        self._session.on_progress()

    def _search(self, transaction: Transaction, exc: EntryRefused) -> None:
        """A record of an aborted transaction was refused for good: find it; the next session dead-letters it."""
        records = transaction.records()
        if len(records) == 1:
            self._redelivery.refused[records[0].position] = str(exc)
        else:
            self._redelivery.read_singly = transaction.entries
            self._redelivery.search_entries = max(1, transaction.entries // SEARCH_PARTS)
        self._session.fail(
            exc if records else EndpointUnavailable(f"dead letters of {self._scope.lease.shard} were refused: {exc}")
        )


def _reject(part: Part, cause: str, reasons: Mapping[bytes, str]) -> None:
    """Dead-letter those records of a part, instead of sending them, that there is a reason for, by position."""
    found = [record for record in part.records if record.position in reasons]
    if found:
        part.rejected += [Rejected(record.ordinal, cause, reasons[record.position]) for record in found]
        part.records = [record for record in part.records if record.position not in reasons]
