"""One shard's entries on their way through one route, from the first read to the last removal.

A session ends when it is told to, when its topic or route changed, at the first failure, or when nothing came for
long. It never retries: the dispatcher starts another one. What keeps the order, in short:

* entries are read and packed in queue order;
* a lane has one parcel under way, and the next one starts only when that one has arrived;
* after a failure no parcel starts any more, and the next session begins only when all have come back;
* the next session reads from the queue's front again and skips what had arrived (`Shelf.done`).

So a record is first pushed only after every earlier record of its key has arrived or was parked.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from remora.codec.fastest import totals
from remora.engine.allowance import Allowance
from remora.engine.lease import Lease
from remora.engine.letters import park_all
from remora.engine.packing import pack_surely
from remora.engine.reading import Reader, at_most
from remora.engine.shelf import Shelf, Tools
from remora.engine.sorting import Condemned, same_target, sort_entries
from remora.engine.trimmer import Trimmer
from remora.model.errors import (
    EndpointError,
    EntryRefused,
    OwnershipLost,
    RemoraError,
    ShardGone,
    StoreError,
)
from remora.model.ledger import Cause
from remora.model.record import Page, Record
from remora.model.topic import Source, Topic
from remora.policy.acks import Round
from remora.policy.lifetime import Limits
from remora.ports.endpoint import Parcel, Route

GATHER_S = 0.05
"""How long a queue is left to itself at most while parcels of it wait for their turn: what comes in meanwhile travels
together. Read at once, a busy queue would be cut into parcels of an entry or two, each with a round trip of its own."""


@dataclass(frozen=True, slots=True)
class Load:
    """A parcel, and the listing it came from."""

    page: Page
    round: Round
    parcel: Parcel


class Session:
    """See the module. `run` is called once."""

    def __init__(
        self,
        tools: Tools,
        lease: Lease,
        route: Route,
        topic: Topic,
        shelf: Shelf,
        held: Allowance,
        on_round: Callable[[], None],
    ) -> None:
        """`on_round` is called whenever a whole listing has arrived.

        `rests` is true after a session that ended because nothing came for long.
        """
        self._tools = tools
        self._lease = lease
        self._route = route
        self._topic = topic
        self._shelf = shelf
        self._on_round = on_round
        self._lanes: dict[int, deque[Load]] = {}
        self._all_started = asyncio.Event()
        self._parking = 0
        self._burial: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        self._settled = asyncio.Event()
        self._proved = asyncio.Event()
        self.rests = False
        self._failure: RemoraError | None = None
        self._ahead: asyncio.Task[Page | None] | None = None
        self._tasks = asyncio.TaskGroup()
        self._trimmer = Trimmer(
            tools,
            lease,
            topic.label,
            on_failure=self._fail,
            on_removed=shelf.removed,
            more_to_come=lambda: bool(self._lanes),
        )
        self._reader = Reader(
            tools, lease, shelf, held, on_failure=self._fail, all_removed=lambda: self._trimmer.is_empty
        )

    @property
    def _limits(self) -> Limits:
        """How long and how often an entry is tried, as the settings say now where the topic leaves it open."""
        return self._tools.settings.limits.of(self._topic)

    def end(self) -> None:
        """Read nothing more; what is packed is still delivered and removed."""
        self._over.set()

    async def run(self) -> None:
        """Deliver until ended; then raise what ended it, if that was a failure."""
        name = self._lease.shard.queue
        try:
            async with self._tasks:
                reader = self._tasks.create_task(self._read_on(), name=f"read {name}")
                watcher = self._tasks.create_task(self._watch(), name=f"watch {name}")
                trimmer = self._tasks.create_task(self._trimmer.run(), name=f"trim {name}")
                await self._over.wait()
                reader.cancel()
                watcher.cancel()
                if self._ahead is not None:
                    self._ahead.cancel()
                await self._settle()
                trimmer.cancel()
        finally:
            self._shelf.done.update(self._trimmer.abandon())
            self._reader.hold_nothing()
        if self._failure is not None:
            raise self._failure

    # ------------------------------------------------------------------------------- reading ahead

    async def _read_on(self) -> None:
        """Read listing after listing while there is room for them; the next comes in while one is packed."""
        now = asyncio.get_running_loop().time
        start, room, busy_at = b"", 0, now()
        while not self._route.stale:
            if self._ahead is None:
                room = await self._reader.take_room()
                self._ahead = self._fetch(start, room)
            page = await self._ahead
            self._ahead = None
            while (burial := self._burial) is not None:
                await asyncio.wait([burial])  # which goes on when this is cancelled
                self._burial = self._burial if self._burial is not burial else None
            if page is None or self._over.is_set():
                return
            self._reader.hold(page.nbytes - room)
            if page.entries:
                start, busy_at = page.positions[-1], now()
                room = self._read_ahead(page)
                await asyncio.sleep(0)  # the request leaves before packing takes the processor
                parcels, is_last = await self._load(page), not page.truncated
                del page  # many shards wait below, or for room: what they have delivered must not stay in memory
                if not self._shelf.rounds_arrived:
                    await self._proved.wait()  # after a failure: nothing more until the probe has arrived
                elif is_last:
                    await self._gather(parcels)
            else:
                if self._trimmer.is_empty:
                    self._shelf.end_work()
                if self._reader.may_rest(busy_at):
                    self.rests = True
                    break
                await self._reader.wait_for_news(busy_at)
        self._turn_back()

    async def _gather(self, parcels: int) -> None:
        """Leave a queue to itself that had little, when parcels are many: what comes in meanwhile travels together."""
        pause_s = self._tools.pace.pause_s(parcels, asyncio.get_running_loop().time())
        if pause_s:
            await asyncio.sleep(pause_s)
        if any(self._lanes.values()):
            await at_most(self._all_started, GATHER_S)

    def _read_ahead(self, page: Page) -> int:
        """Start the next read when there is more to read and room at once; returns the bytes held for it."""
        room = 0
        if page.truncated and self._shelf.rounds_arrived and (room := self._reader.take_room_now()):
            self._ahead = self._fetch(page.positions[-1], room)
        return room

    def _fetch(self, start: bytes, room: int) -> asyncio.Task[Page | None]:
        reading = self._reader.read(start, self._reader.entries_in(room))
        return self._tasks.create_task(reading, name=f"list {self._lease.shard}")

    async def _watch(self) -> None:
        """End the session when its topic's attributes have changed."""
        seen = None if self._topic.source is Source.ENTRY else self._topic
        await self._tools.catalogue.wait_for_change(self._lease.shard, seen)
        self._turn_back()

    # ------------------------------------------------------------------------- packing and pushing

    async def _load(self, page: Page) -> int:
        """Pack a listing, or the part of it that goes where this session goes; see `_load_part`."""
        if self._over.is_set():
            return 0
        part = self._own_part(page) if self._topic.source is Source.ENTRY else page
        parcels = await self._load_part(part) if part.entries else 0
        if part is not page:
            self.end()
        return parcels

    async def _load_part(self, page: Page) -> int:
        """Pack entries and hand their parcels to their lanes; once the session is over nothing joins them.

        Returns how many parcels it made.

        A listing that came after others were turned back would overtake them.
        """
        shelf = self._shelf
        self._reader.learn(page, self._topic.label)

        limits, renderer = self._limits, self._tools.renderer
        sorted_ = sort_entries(page, self._topic, limits, shelf.done, shelf.attempts, shelf.letters, renderer)
        added = self._trimmer.add(page)
        if sorted_.skipped:
            for ordinal in sorted_.skipped:
                self._finish(page, added, [ordinal], shelf.done.pop(page.positions[ordinal]))
        return await self._deal(page, added, sorted_.records, sorted_.condemned)

    async def _deal(self, page: Page, of: Round, records: Sequence[Record], condemned: Sequence[Condemned] = ()) -> int:
        """Hand records to their lanes, and park what is given up, or too large; answers how many parcels there are.

        What stands behind an entry that is given up waits until all letters of the listing are stored, and so does the
        next listing: it may be of the same keys, and who reads the queue next may not give that entry up.
        """
        try:
            parcels, refused = await pack_surely(self._route, records)
        except EndpointError as exc:
            self._fail(exc)
            return 0
        if self._over.is_set():
            return 0
        if condemned or refused:
            condemned = [*condemned, *(Condemned(r.ordinal, "too_large", why) for r, why in refused)]
            given_up = {each.ordinal for each in condemned}
            ahead = [each for each in records if each.ordinal < min(given_up)]
            behind = [each for each in records if each.ordinal > min(given_up) and each.ordinal not in given_up]
            self._parking += 1
            burying = self._park(page, of, condemned, behind)
            self._burial = self._tasks.create_task(burying, name=f"park {self._lease.shard}")
            parcels = self._route.pack(ahead)[0] if ahead else []
        for parcel in parcels:
            self._enqueue(Load(page, of, parcel))
        return len(parcels)

    def _own_part(self, page: Page) -> Page:
        part = same_target(page, self._topic.target)
        if part is not page:
            self._reader.hold(part.nbytes - page.nbytes)
        return part

    def _enqueue(self, load: Load) -> None:
        lane = load.parcel.lane
        self._all_started.clear()
        if lane in self._lanes:
            self._lanes[lane].append(load)
        else:
            self._lanes[lane] = deque([load])
            self._tasks.create_task(self._run_lane(lane), name=f"lane {lane} of {self._lease.shard}")

    async def _run_lane(self, lane: int) -> None:
        """Push a lane's parcels one after the other; the only place that pushes."""
        queue, now = self._lanes[lane], asyncio.get_running_loop().time
        while queue and self._failure is None:
            load = queue.popleft()
            self._look_started()
            records = load.parcel.records
            began = now()
            try:
                self._lease.require_trust()
                await self._route.push(load.parcel)
            except EntryRefused as exc:
                await self._refuse(load, exc)
            except EndpointError as exc:
                self._count_attempt(records)
                self._fail(exc)
            except StoreError as exc:
                self._fail(exc)
            else:
                self._tools.pace.acknowledged(now() - began)
                self._arrived(load)
        del self._lanes[lane]
        self._look_settled()

    def _look_started(self) -> None:
        """Tell when no parcel waits for its turn any more."""
        if not any(self._lanes.values()):
            self._all_started.set()

    def _arrived(self, load: Load) -> None:
        nbytes, created_ns, ordinals = totals(load.parcel.records)
        self._tools.telemetry.delivered(self._topic.label, len(ordinals), nbytes, created_ns, time.time_ns())
        self._finish(load.page, load.round, ordinals, Cause.DELIVERED)

    def _finish(self, page: Page, of: Round, ordinals: Sequence[int], cause: Cause) -> None:
        """Entries are done. With its last one a listing leaves memory, and its bytes are given back."""
        self._trimmer.finish(of, ordinals, cause)
        self._shelf.forget(map(page.positions.__getitem__, ordinals))
        self._shelf.progress_at = asyncio.get_running_loop().time()
        if not of.open:
            self._reader.hold(-page.nbytes)
            self._shelf.rounds_arrived += 1
            self._proved.set()
            self._on_round()

    # ------------------------------------------------------------------------------------- parking

    async def _refuse(self, load: Load, exc: EntryRefused) -> None:
        """Park a record that the endpoint refused for good; first find it, when it travelled with others."""
        records = load.parcel.records
        if len(records) == 1:
            self._parking += 1
            await self._park(load.page, load.round, [Condemned(records[0].ordinal, "refused", str(exc))])
        else:
            self._shelf.read_singly = len(load.page.entries)
            self._fail(exc)

    async def _park(self, page: Page, of: Round, condemned: Sequence[Condemned], behind: Sequence[Record] = ()) -> None:
        """Store dead letters, and give them to the endpoint, too; only then do their entries count as done.

        The records behind them are handed to the lanes then.
        """
        try:
            letters = await park_all(self._tools, self._lease, self._topic.label, self._shelf, page, condemned)
            self._lease.require_trust()
            await self._route.bury(letters)
            for each in condemned:
                self._finish(page, of, [each.ordinal], Cause.of_letter(each.cause))
            if not self._over.is_set():
                await self._deal(page, of, behind)
        except (StoreError, EndpointError) as exc:
            self._fail(exc)
        finally:
            self._parking -= 1
        self._look_settled()

    # ------------------------------------------------------------------------------ ending, counting

    async def _settle(self) -> None:
        """Wait for everything under way, then remove what is left to remove."""
        self._look_settled()
        await self._settled.wait()
        await self._trimmer.trim()

    def _look_settled(self) -> None:
        if self._lanes or self._parking:
            return
        self._trimmer.nudge()
        if self._over.is_set():
            self._settled.set()

    def _fail(self, exc: RemoraError) -> None:
        """Remember the first failure, or one that ends the hold; start nothing more."""
        if self._failure is None or isinstance(exc, OwnershipLost | ShardGone):
            self._failure = exc
        if isinstance(exc, OwnershipLost | ShardGone):
            self._trimmer.stop()
        self._turn_back()

    def _turn_back(self) -> None:
        """Start nothing more: what is packed and not under way is read again by the next session."""
        for queue in self._lanes.values():
            queue.clear()
        self._look_started()
        self._over.set()

    def _count_attempt(self, records: Sequence[Record]) -> None:
        if self._limits.counts_attempts:
            self._shelf.count_attempt([record.position for record in records])
