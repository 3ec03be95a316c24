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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from remora.codec.fastest import joined, totals
from remora.engine.allowance import Allowance
from remora.engine.catching_up import catch_up
from remora.engine.lease import Lease
from remora.engine.letters import park_all
from remora.engine.packing import pack_surely
from remora.engine.reading import Reader, at_most
from remora.engine.shelf import Shelf, Tools
from remora.engine.sorting import Condemned, same_target, sort_entries
from remora.engine.trimmer import Trimmer
from remora.model.errors import (
    EndpointError,
    EndpointFenced,
    EndpointUnavailable,
    EntryRefused,
    OwnershipLost,
    RemoraError,
    ShardGone,
    StoreError,
)
from remora.model.ledger import Cause
from remora.model.record import DeadLetter, Page, Record
from remora.model.topic import Source, Topic
from remora.policy.acks import Round
from remora.policy.idle import rest_after
from remora.policy.lifetime import Limits
from remora.policy.retry import read_limit
from remora.ports.endpoint import ExactRoute, Parcel

SEARCH_PARTS = 8
"""A transaction in which a record was refused is repeated in so many parts, and so on until the record stands alone."""


@dataclass(slots=True)
class Part:
    """A listing of a transaction, divided as `sorting` has it."""

    page: Page
    round: Round
    records: Sequence[Record]
    condemned: list[Condemned]
    skipped: list[int]


@dataclass(slots=True)
class Transaction:
    """What is committed together. `is_due` when it need not wait for more; `parcels` once nothing joins it any more."""

    began_at: float
    parts: list[Part] = field(default_factory=list)
    entries: int = 0
    nbytes: int = 0
    is_due: bool = False
    parcels: list[Parcel] | None = None

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


class ExactSession:
    """See the module. `run` is called once, right after its route was entered."""

    def __init__(
        self,
        tools: Tools,
        lease: Lease,
        route: ExactRoute,
        topic: Topic,
        shelf: Shelf,
        held: Allowance,
        on_round: Callable[[], None],
    ) -> None:
        """`on_round` is called after each commit. `rests` is true after a session that ended for want of entries."""
        self._tools = tools
        self._lease = lease
        self._route = route
        self._topic = topic
        self._shelf = shelf
        self._on_round = on_round
        self._open: Transaction | None = None
        self._reached = b""
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._over = asyncio.Event()
        self._ahead: asyncio.Task[Page | None] | None = None
        self._room = 0
        self._backlog = False
        self.rests = False
        self._failure: RemoraError | None = None
        self._tasks = asyncio.TaskGroup()
        self._trimmer = Trimmer(
            tools,
            lease,
            topic.label,
            on_failure=self._fail,
            on_removed=shelf.removed,
            more_to_come=lambda: False,
        )
        self._reader = Reader(
            tools, lease, shelf, held, on_failure=self._fail, all_removed=lambda: self._trimmer.is_empty
        )

    def end(self) -> None:
        """Read nothing more; what was read is still committed and removed."""
        self._over.set()
        self._changed.set()

    async def run(self) -> None:
        """Deliver until ended; then raise what ended it, if that was a failure."""
        name = self._lease.shard.queue
        try:
            self._reached = start = await self._catch_up()
            async with self._tasks:
                reader = self._tasks.create_task(self._read_on(start), name=f"read {name}")
                watcher = self._tasks.create_task(self._watch(), name=f"watch {name}")
                trimmer = self._tasks.create_task(self._trimmer.run(), name=f"trim {name}")
                committer = self._tasks.create_task(self._commit_on(), name=f"commit {name}")
                await self._over.wait()
                reader.cancel()
                watcher.cancel()
                if self._ahead is not None:
                    self._ahead.cancel()
                await asyncio.wait([committer])
                await self._trimmer.trim()
                trimmer.cancel()
        finally:
            self._shelf.done.update(self._trimmer.abandon())  # for a next session that has no position to go by
            self._reader.hold_nothing()
        if self._failure is not None:
            raise self._failure

    async def _catch_up(self) -> bytes:
        """Where to read from; only after this anything may be sent."""
        try:
            start, count = await catch_up(self._tools, self._lease, self._shelf, self._reader, self._route)
        except OwnershipLost as exc:
            self._tools.telemetry.removal_refused(self._lease.shard.queue, str(exc))
            raise
        self._shelf.in_doubt = False
        if count:
            self._tools.telemetry.removed(self._topic.label, count)
            self._shelf.progress_at = asyncio.get_running_loop().time()
        return start

    # ------------------------------------------------------------------------------- reading ahead

    async def _read_on(self, start: bytes) -> None:
        """Read listing after listing into the open transaction."""
        now = asyncio.get_running_loop().time
        busy_at = now()
        while not self._over.is_set():
            page = await self._next_listing(start)
            if page is None or self._over.is_set():
                return
            if page.entries:
                start, busy_at = page.positions[-1], now()
                await self._take_in(page)
                del page  # many shards wait for room: what they have delivered must not stay in memory
            else:
                self._give_room_back()
                if self._trimmer.is_empty:
                    self._shelf.end_work()
                self.rests = self._may_rest(busy_at)
                if not self.rests:
                    await self._wait_for_news(busy_at)
            if self.rests or self._route.stale:
                self.end()

    async def _next_listing(self, start: bytes) -> Page | None:
        if self._ahead is None:
            await self._take_room()
            limit = min(self._listing_entries(), self._reader.entries_in(self._room))
            self._ahead = self._fetch(start, limit)
        page = await self._ahead
        self._ahead = None
        return page

    def _fetch(self, start: bytes, limit: int) -> asyncio.Task[Page | None]:
        return self._tasks.create_task(self._reader.read(start, limit), name=f"list {self._lease.shard}")

    async def _take_in(self, page: Page) -> None:
        """Add a listing to the open transaction, while the next one comes in; wait when that is full."""
        self._backlog = page.truncated
        whole = page if self._topic.source is Source.METADATA else same_target(page, self._topic.target)
        self._room -= whole.nbytes
        if self._room < 0:
            self._reader.hold(-self._room)
            self._room = 0
        if whole is page and page.truncated and (limit := self._look_ahead_entries(len(page.entries))):
            self._ahead = self._fetch(page.positions[-1], limit)
            await asyncio.sleep(0)  # the request leaves before rendering takes the processor
            if self._over.is_set():
                return  # what was read before this may have been turned back: nothing may pass it
        transaction = self._add(whole) if whole.entries else None
        if whole is not page:
            self.end()  # the next entries go elsewhere
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
        entries = min(self._tools.settings.list_entries, left)
        return max(0, entries) if self._room >= entries * self._shelf.mean_bytes else 0

    async def _take_room(self) -> None:
        """Hold the bytes of the next listing, and where there is a backlog those of a whole transaction.

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
        settings, shelf = self._tools.settings, self._shelf
        most = min(read_limit(shelf.rounds_arrived, settings.transaction_records), self._reader.half)
        return min(most, shelf.search_entries) if shelf.read_singly else most

    def _left_entries(self) -> int:
        """How many may join the open one."""
        return max(1, self._most_entries() - (self._open.entries if self._open else 0))

    def _listing_entries(self) -> int:
        return min(self._tools.settings.list_entries, self._left_entries())

    def _listing_bytes(self) -> int:
        return int(self._listing_entries() * self._shelf.mean_bytes)

    def _is_full(self, transaction: Transaction) -> bool:
        return transaction.entries >= self._most_entries() or transaction.nbytes >= self._tools.settings.shard_bytes / 2

    def _may_rest(self, busy_at: float) -> bool:
        """Whether the queue was empty for so long that the route is not worth keeping."""
        idle_s = asyncio.get_running_loop().time() - busy_at
        return idle_s >= rest_after(self._lease.awake()) and self._trimmer.is_empty and not self._shelf.news.is_set()

    async def _wait_for_news(self, busy_at: float) -> None:
        """Wait until an empty queue is worth another look, or the route is to be left."""
        news = self._shelf.news
        while not (news.is_set() or self._route.stale or self._may_rest(busy_at)):
            await at_most(news, self._reader.idle_s(busy_at))
            if not self._tools.store.arrivals.notifies:
                return

    async def _watch(self) -> None:
        """End the session when its topic's attributes have changed: what was read is read again for the new ones."""
        seen = None if self._topic.source is Source.ENTRY else self._topic
        await self._tools.catalogue.wait_for_change(self._lease.shard, seen)
        self._turn_back()

    # --------------------------------------------------------------------------- filling and packing

    def _add(self, page: Page) -> Transaction:
        """Divide a listing, and let all of it join the open transaction."""
        shelf, nbytes, entries = self._shelf, page.nbytes, len(page.entries)
        self._reader.learn(page, self._topic.label)

        limits, renderer = self._limits, self._tools.renderer
        sorted_ = sort_entries(page, self._topic, limits, shelf.done, shelf.attempts, shelf.letters, renderer)
        part = Part(page, self._trimmer.add(page), sorted_.records, sorted_.condemned, sorted_.skipped)
        if shelf.refused:
            _condemn(part, "refused", shelf.refused)

        transaction = self._open
        if transaction is None:
            transaction = self._open = Transaction(asyncio.get_running_loop().time())
        transaction.parts.append(part)
        transaction.entries += entries
        transaction.nbytes += nbytes
        transaction.is_due |= not page.truncated or self._is_full(transaction)
        self._changed.set()
        return transaction

    def _pack_ahead(self, transaction: Transaction) -> None:
        """Pack a transaction that nothing joins any more, while another one is committed; not where that takes a look
        at the endpoint."""
        records = transaction.records()
        parcels, refused = self._route.pack(records) if records else ([], [])
        if not refused:
            transaction.parcels = parcels

    async def _packed(self, transaction: Transaction) -> list[Parcel]:
        """The parcels of a transaction; what does not fit is condemned."""
        if transaction.parcels is not None:
            return transaction.parcels
        parcels, refused = await pack_surely(self._route, transaction.records())
        if refused:
            reasons = {record.position: why for record, why in refused}
            for part in transaction.parts:
                _condemn(part, "too_large", reasons)
        return parcels

    # ------------------------------------------------------------------------------------ committing

    async def _commit_on(self) -> None:
        """Commit one transaction after the other; the only place where anything is sent."""
        while (transaction := await self._next_due()) is not None:
            try:
                await self._commit(transaction)
            except EntryRefused as exc:
                self._search(transaction, exc)
            except EndpointFenced as exc:
                self._fail(exc)
            except EndpointError as exc:
                if self._limits.counts_attempts:
                    self._shelf.count_attempt([record.position for record in transaction.records()])
                self._fail(exc)
            except StoreError as exc:
                self._fail(exc)
            else:
                self._committed(transaction)
            del transaction  # not to be kept while the next one is awaited

    async def _next_due(self) -> Transaction | None:
        """Wait for a transaction that is due, and take it; None when no more will come."""
        now = asyncio.get_running_loop().time
        while True:
            transaction = self._open
            if transaction is None and self._over.is_set():
                return None
            self._changed.clear()
            if transaction is None:
                await self._changed.wait()
                continue
            rest_s = transaction.began_at + self._tools.settings.transaction_time_s - now()
            if transaction.is_due or self._over.is_set() or rest_s <= 0:
                self._open = None
                self._taken.set()
                return transaction
            await at_most(self._changed, rest_s)

    async def _commit(self, transaction: Transaction) -> None:
        """Park what cannot be sent, then commit, both only while the lock is to be trusted."""
        if transaction.begins_at != self._reached:
            raise RuntimeError(f"a transaction from {transaction.begins_at!r} on would pass over {self._reached!r}")
        parcels = await self._packed(transaction)
        self._lease.require_trust()
        letters: list[DeadLetter] = []
        for part in transaction.parts:
            lease, label = self._lease, self._topic.label
            letters += await park_all(self._tools, lease, label, self._shelf, part.page, part.condemned)
        self._lease.require_trust()
        self._shelf.in_doubt = True
        await self._route.commit(parcels, transaction.upto, letters)
        self._reached, self._shelf.in_doubt = transaction.upto, False

    def _committed(self, transaction: Transaction) -> None:
        """Everything of it is done with; it may leave the queue."""
        shelf, now_ns = self._shelf, time.time_ns()
        for part in transaction.parts:
            positions, (nbytes, created_ns, ordinals) = part.page.positions, totals(part.records)
            if ordinals:
                self._tools.telemetry.delivered(self._topic.label, len(ordinals), nbytes, created_ns, now_ns)
            self._trimmer.finish(part.round, ordinals, Cause.DELIVERED)
            for each in part.condemned:
                self._trimmer.finish(part.round, [each.ordinal], Cause.of_letter(each.cause))
            for ordinal in part.skipped:
                self._trimmer.finish(part.round, [ordinal], shelf.done.pop(positions[ordinal]))
            shelf.forget(positions)
        self._reader.hold(-transaction.nbytes)
        shelf.progress_at = asyncio.get_running_loop().time()
        shelf.rounds_arrived += len(transaction.parts)
        self._on_round()

    def _search(self, transaction: Transaction, exc: EntryRefused) -> None:
        """A record of an aborted transaction was refused for good: find it; the next session parks it."""
        records = transaction.records()
        if len(records) == 1:
            self._shelf.refused[records[0].position] = str(exc)
        else:
            self._shelf.read_singly = transaction.entries
            self._shelf.search_entries = max(1, transaction.entries // SEARCH_PARTS)
        self._fail(exc if records else EndpointUnavailable(f"dead letters of {self._lease.shard} were refused: {exc}"))

    # ------------------------------------------------------------------------------ ending, counting

    @property
    def _limits(self) -> Limits:
        return self._tools.settings.limits.of(self._topic)

    def _fail(self, exc: RemoraError) -> None:
        """Remember the first failure, or one that ends the hold; commit nothing more."""
        if self._failure is None or isinstance(exc, OwnershipLost | ShardGone):
            self._failure = exc
        if isinstance(exc, OwnershipLost | ShardGone):
            self._trimmer.stop()
        self._turn_back()

    def _turn_back(self) -> None:
        """What was read and is not being committed is read again by the next session."""
        self._open = None
        self.end()


def _condemn(part: Part, cause: str, reasons: Mapping[bytes, str]) -> None:
    """Park those records of a part, instead of sending them, that there is a reason for, by position."""
    found = [record for record in part.records if record.position in reasons]
    if found:
        part.condemned += [Condemned(record.ordinal, cause, reasons[record.position]) for record in found]
        part.records = [record for record in part.records if record.position not in reasons]
