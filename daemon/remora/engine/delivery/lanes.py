"""Sends a shard's entries lane by lane, at least once.

* Entries are packed in queue order.
* A lane has one batch under way. The next starts when that one has arrived, and after a failure none.
* As many lanes have one as the route allows. They take turns.

So a record is first pushed only after every earlier record of its key has arrived or was dead-lettered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from remora.codec.speedups import totals
from remora.engine.admission.givers import PageAhead
from remora.engine.delivery.lane_queues import InFlightBatch, LaneQueues
from remora.engine.delivery.letters import dead_letter, without_late
from remora.engine.delivery.pages_ahead import PagesAhead
from remora.engine.delivery.session import Session
from remora.engine.delivery.triage import Rejected, own_part, pack_surely
from remora.model.errors import EndpointError, EntryRefused, StoreError
from remora.model.ledger import Cause
from remora.model.record import Page, Record
from remora.policy.delivery.acks import PageAcks
from remora.policy.delivery.retry import PROBE_ENTRIES
from remora.ports.endpoint import Route

GATHER_S = 0.05
"""How long a queue is left to itself at most while batches of it wait for their turn: what comes in meanwhile travels
together. Read at once, a busy queue would be cut into batches of an entry or two, each with a round trip of its own."""


class LaneSender:
    """See the module."""

    def __init__(self, session: Session, route: Route) -> None:
        self._session, self._scope = session, session.scope
        self._redelivery = session.scope.state.redelivery
        self._reads, self._progress = session.scope.state.reads, session.scope.state.progress
        self._reader = session.reader
        self._route = route
        self._lanes = lanes = LaneQueues()
        self._ahead = PagesAhead(self._scope, self._reader, session.trimmer, lanes, is_over=lambda: session.is_over)
        self._storing = 0
        self._last_storing: asyncio.Task[None] | None = None
        self._settled, self._proved = asyncio.Event(), asyncio.Event()
        self._probing = 0  # records of this session: what was done before it proves nothing

    @property
    def is_busy(self) -> bool:
        """Whether more entries will be done soon."""
        return self._lanes.are_busy

    async def prepare(self) -> bytes:
        """Where to read from: the queue's front."""
        return b""

    def begin(self) -> None:
        """Nothing: a lane's task begins with its first batch."""

    def wake(self) -> None:
        """Nothing: no part of this sender waits for the end of its session."""

    async def settle(self) -> None:
        """Wait for everything under way."""
        self._look_settled()
        await self._settled.wait()

    def cut_short(self) -> None:
        """Start nothing more: what is packed and not under way is read again by the next session."""
        self._lanes.clear()

    # ------------------------------------------------------------------------------- reading ahead

    async def read_on(self, start: bytes) -> None:
        """Read page after page while there is room for them; the next one comes in while one is packed."""
        now = asyncio.get_running_loop().time
        room, busy_at = 0, now()
        self._ahead.begin_at(start)
        while not self._route.stale:
            if not self._reader.is_ahead:
                room = await self._reader.take_turn()
                self._reader.fetch(self._ahead.next_read(), self._reader.entries_in(room))
            page = await self._fetched()
            if page is None or self._session.is_over:
                return
            if not self._ahead.follows(page):
                self._reader.discard(page, room)
                continue
            self._reader.take_in(page, room)
            if page.entries:
                busy_at = now()
                room = self._read_ahead(page)
                await asyncio.sleep(0)  # the request leaves before packing takes the processor
                batches, is_last = await self._load(page), not page.truncated
                del page  # many shards wait below, or for room: what they have delivered must not stay in memory
                if not self._reads.pages_delivered and self._probing >= PROBE_ENTRIES:
                    await self._proved.wait()  # after a failure: nothing more until the probe has arrived
                elif is_last:
                    await self._gather(batches, busy_at)
            else:
                self._reader.held.end_pages()
                if self._session.trimmer.is_empty:
                    self._progress.end_work()
                if self._reader.may_passivate(busy_at):
                    self._session.passivates = True
                    break
                await self._reader.wait_for_news(busy_at)
        self._session.cut_short()

    async def _fetched(self) -> Page | None:
        """The page that was asked for, when all letters of the one before are stored."""
        page = await self._reader.fetched()
        while (storing := self._last_storing) is not None:
            await asyncio.wait([storing])  # which goes on when this is cancelled
            self._last_storing = self._last_storing if self._last_storing is not storing else None
        return page

    async def _gather(self, batches: int, busy_at: float) -> None:
        """Leave a queue to itself that had little, when batches are many: what comes in meanwhile travels together."""
        now, is_told = asyncio.get_running_loop().time(), self._scope.context.store.arrivals.notifies
        if pause_s := self._scope.context.pace.pause_s(batches, now, is_told=is_told):
            await asyncio.sleep(pause_s)
        await self._lanes.started(within_s=GATHER_S)
        if is_told:  # of what comes behind the page: to look at once is in vain
            await self._reader.wait_for_look(busy_at)

    def _read_ahead(self, page: Page) -> int:
        """Start the next read when there is more to read and room at once; returns the bytes held for it."""
        room = 0
        if page.truncated and self._reads.pages_delivered and (room := self._reader.take_turn_now()):
            self._reader.fetch(page.positions[-1], self._reader.entries_in(room))
        return room

    # ------------------------------------------------------------------------- packing and pushing

    async def _load(self, page: Page) -> int:
        """Pack a page, or the part of it that goes where this session goes; see `_load_part`."""
        part = own_part(page, self._scope.topic)
        if part is not page:
            self._reader.pass_over(page, part)
        batches = await self._load_part(part) if part.entries else 0
        if part is not page:
            self._session.end()
        return batches

    async def _load_part(self, page: Page) -> int:
        """Pack entries and hand their batches to their lanes, none once the session is over; returns how many it made.

        A page that came after others were turned back would overtake them.
        """
        added, triaged = self._session.take_in(page)
        self._probing += len(triaged.records)
        credit = self._reader.held.settle(page, triaged.records)
        for ordinal in triaged.skipped:
            self._finish(page, added, [ordinal], self._redelivery.done.pop(page.positions[ordinal]), is_news=False)
        batches = await self._deal(page, added, triaged.records, triaged.rejected)
        self._reader.packed()
        is_clean = not triaged.skipped and self._last_storing is None
        self._ahead.add(PageAhead(added, page.nbytes, credit, batches), is_clean=is_clean)
        return batches

    async def _deal(
        self, page: Page, of: PageAcks, records: Sequence[Record], rejected: Sequence[Rejected] = ()
    ) -> int:
        """Hand records to their lanes, and dead-letter those given up or too large; returns the number of batches.

        What stands behind an entry that is given up waits until all letters of the page are stored, and so does the
        next page: it may be of the same keys, and who reads the queue next may not give that entry up.
        """
        try:
            batches, refused = await pack_surely(self._route, records)
        except EndpointError as exc:
            self._session.fail(exc)
            return 0
        if self._session.is_over:
            return 0
        if rejected or refused:
            rejected = [*rejected, *(Rejected(r.ordinal, "too_large", why) for r, why in refused)]
            given_up = {each.ordinal for each in rejected}
            ahead = [each for each in records if each.ordinal < min(given_up)]
            behind = [each for each in records if each.ordinal > min(given_up) and each.ordinal not in given_up]
            self._storing += 1
            storing = self._dead_letter(page, of, rejected, behind)
            self._last_storing = self._session.tasks.create_task(storing, name=f"dead-letter {self._scope.lease.shard}")
            batches = self._route.pack(ahead)[0] if ahead else []
        since = self._scope.clock()
        for batch in batches:
            self._lanes.add(InFlightBatch(page, of, batch, since))
        self._begin_lanes()
        return len(batches)

    def _begin_lanes(self) -> None:
        """Begin lanes that wait, as many as may have a batch under way."""
        while (lane := self._lanes.next_lane(self._route.width)) is not None:
            self._session.tasks.create_task(self._run_lanes(lane), name=f"lanes of {self._scope.lease.shard}")

    async def _run_lanes(self, lane: int | None) -> None:
        """Push a batch of a lane, and go on with the lane whose turn it is then."""
        while lane is not None:
            if (load := self._lanes.begin(lane)) is not None:
                await self._push(load)
            self._lanes.end(lane)
            lane = self._lanes.next_lane(self._route.width)
            self._begin_lanes()
        self._look_settled()

    async def _push(self, load: InFlightBatch) -> None:
        """Push a batch; the only place that does. After a failure none is begun."""
        began, begun = asyncio.get_running_loop().time(), self._scope.clock()
        try:
            self._scope.lease.require_trust()
            with self._reader.held.handed(load.batch.records):
                await self._route.push(load.batch)
        except EntryRefused as exc:
            await self._refuse(load, exc)
        except EndpointError as exc:
            self._count(load, exc)
            self._session.fail(exc)
        except StoreError as exc:
            self._session.fail(exc)
        else:
            self._scope.pushed(load.since, begun)
            if self._route.acks_show_load:
                self._scope.context.pace.acknowledged(asyncio.get_running_loop().time() - began)
            self._arrived(load, load.batch.records)

    def _count(self, load: InFlightBatch, exc: EndpointError) -> None:
        """Take what arrived of a batch that failed for done, and count the attempts at what did not."""
        if arrived := load.batch.records[: exc.arrived]:
            self._arrived(load, arrived)
        self._session.count_attempts(load.batch.records, exc)

    def _arrived(self, load: InFlightBatch, records: Sequence[Record]) -> None:
        nbytes, created_ns, ordinals = totals(records)
        self._scope.delivered(len(ordinals), nbytes, created_ns, time.time_ns())
        self._finish(load.page, load.acks, ordinals, Cause.DELIVERED)

    def _finish(self, page: Page, of: PageAcks, ordinals: Sequence[int], cause: Cause, *, is_news: bool = True) -> None:
        """Entries are done, with the last one their page; `is_news` unless before this session: that proves nothing."""
        self._session.trimmer.mark_done(of, ordinals, cause)
        self._reader.held.done(len(ordinals))
        self._redelivery.forget(map(page.positions.__getitem__, ordinals))
        self._progress.progress_at = asyncio.get_running_loop().time()
        if not of.open:
            self._ahead.begun(of)
            self._reader.held.hold(-page.nbytes)
            if is_news:
                self._reads.pages_delivered += 1
                self._proved.set()
                self._session.on_progress()

    # ------------------------------------------------------------------------------------- parking

    async def _refuse(self, load: InFlightBatch, exc: EntryRefused) -> None:
        """Dead-letter a record that was refused for good, or find it first; those behind it go ahead of its lane."""
        records, at = load.batch.records, exc.arrived
        if len(records) > 1 and exc.tries is None:
            self._redelivery.read_singly = len(load.page.entries)
            self._session.fail(exc)
            return
        self._count(load, exc)
        self._storing += 1
        await self._dead_letter(load.page, load.acks, [Rejected(records[at].ordinal, "refused", str(exc))])
        if behind := records[at + 1 :]:  # also in a session that is asked to end: it sends what it has read
            batches, refused = self._route.pack(behind)
            if refused:  # by a limit that has become known: the next session gives them up where they stand
                self._session.cut_short()
            else:
                self._lanes.put_first(load, batches)

    async def _dead_letter(
        self, page: Page, of: PageAcks, rejected: Sequence[Rejected], behind: Sequence[Record] = ()
    ) -> None:
        """Store dead letters, and give them to the endpoint; then their entries are done, and the ones behind go on."""
        try:
            rejected, late = await without_late(self._scope, page, rejected)
            if late:
                self._finish(page, of, late, Cause.DELIVERED)
            letters = await dead_letter(self._scope, page, rejected)
            self._scope.lease.require_trust()
            self._reader.held.force(letters)
            await self._route.publish_letters(letters)
            for each in rejected:
                self._finish(page, of, [each.ordinal], Cause.of_letter(each.cause))
            await self._deal(page, of, behind)
        except (StoreError, EndpointError) as exc:
            self._session.fail(exc)
        finally:
            self._storing -= 1
        self._look_settled()

    def _look_settled(self) -> None:
        if not (self._lanes.are_busy or self._storing):
            self._session.trimmer.nudge()
            if self._session.is_over:
                self._settled.set()
