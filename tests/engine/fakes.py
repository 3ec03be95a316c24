"""A store and an endpoint with a script: they do what they are told, also at the wrong moment.

They hold the promises of `ports` literally, so that the engine is tested against the worst that these allow:
late answers, unknown outcomes, partial arrival. The real adapters have the contract suite.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from remora.codec.topic import DEAD_LETTER_TOPIC, parse_args
from remora.model.errors import (
    EndpointError,
    EndpointFenced,
    OwnershipLost,
    QueueFull,
    RemoraError,
    ShardGone,
    StoreError,
    StoreUnavailable,
)
from remora.model.ledger import Balance, FormerQueue, Tally
from remora.model.member import Member
from remora.model.peaks import HourPeak
from remora.model.record import Attempt, DeadLetter, LetterTotals, Page, Record, Redrive
from remora.model.shard import LockHolder, LockToken, Mend, QueueRoom, Shard, ShardStats
from remora.model.spill import SpillLook, SpillUsage
from remora.model.topic import Target, Topic, TopicHold
from remora.ports.delivery import MOST_ATTEMPTS
from remora.ports.endpoint import ALL_LANES, Batch, ExactRoute, Route
from remora.ports.spill import Spilling
from remora.storage.bell import CatalogueNews

FIRST = 24576


@dataclass
class FakeQueue:
    """Entries with their positions, all that ever were; `front` counts those removed."""

    incarnation: str
    entries: list[bytes] = field(default_factory=list)
    positions: list[int] = field(default_factory=lambda: [FIRST])
    front: int = 0
    ledger: Tally = field(default_factory=Tally)
    holder: LockHolder | None = None
    lease_ends: float = 0.0
    on_append: Callable[[], None] = lambda: None
    attempts: dict[bytes, Attempt] = field(default_factory=dict)
    parker: str = ""

    def append(self, *entries: bytes) -> None:
        for entry in entries:
            self.entries.append(entry)
            self.positions.append(self.positions[-1] + 10 + len(entry))
        if entries:
            self.on_append()

    def marker(self, i: int) -> bytes:
        return b"0/%d" % self.positions[i]

    @property
    def waiting(self) -> int:
        return len(self.entries) - self.front


class NoSpill:
    """A store that moves nothing out of its rings."""

    may_spill = False

    async def look(self, token: LockToken) -> SpillLook:
        raise AssertionError("nothing is asked of it")

    async def guard(self, token: LockToken) -> bool:
        raise AssertionError("nothing is asked of it")

    async def unguard(self, token: LockToken) -> None:
        raise AssertionError("nothing is asked of it")

    async def move(self, token: LockToken) -> int:
        raise AssertionError("nothing is asked of it")

    async def usage(self) -> SpillUsage:
        raise AssertionError("nothing is asked of it")


class FakeStore:
    """Queues in memory with leases on the loop's clock. `script` may raise or wait before and after each call.

    One that `tells` names each queue that got entries, as the embedded store does. Others name only those for
    which `ring` is called, as the store on RADOS does, and have to be polled.
    """

    description = "a scripted store"
    kind = "fake"

    def __init__(self, *, tells: bool = False) -> None:
        self.notifies = tells
        self.poll_cost_s = 0.00005 if tells else 0.0003
        self.queues: dict[str, FakeQueue] = {}
        self.metadata: dict[str, Topic] = {}
        self.left_to_radosgw: frozenset[Shard] = frozenset()
        self.announced: dict[str, tuple[Member, float]] = {}
        self.full_percent = 1
        self.parked: dict[tuple[str, str, str], DeadLetter] = {}
        self.calls: dict[str, int] = defaultdict(int)
        self.removals: list[tuple[str, int]] = []
        self.before: Callable[[str], RemoraError | float | None] = lambda _: None
        self.after: Callable[[str], RemoraError | float | None] = lambda _: None
        self.on_hold: dict[Shard, TopicHold] = {}
        self.catalog = self.releases = self.holds = self.locks = self.members = self.queue = self.attempts = self
        self.arrivals = self.letters = self.inspection = self.ledger = self.mends = self
        self.spill: Spilling = NoSpill()
        self.peaks = self
        self.hours: dict[Topic, list[HourPeak]] = defaultdict(list)
        self.held_back: dict[str, str] = {}
        self.ends: dict[str, bytes] = {}
        self.forgets: list[Topic] = []
        self.rooms: dict[str, QueueRoom] = {}
        self._catalogue_news: defaultdict[object, CatalogueNews] = defaultdict(CatalogueNews)
        self._made = 0
        self._told: dict[str, None] = {}
        self._news: dict[object, dict[str, None]] = {}
        self._came = asyncio.Event()

    def make(self, queue: str, *entries: bytes) -> FakeQueue:
        self._made += 1
        self.queues[queue] = FakeQueue(f"i{self._made}", on_append=lambda: self._tell(queue))
        self.queues[queue].append(*entries)
        return self.queues[queue]

    def _tell(self, queue: str) -> None:
        if self.notifies:
            self.ring(queue)

    def ring(self, queue: str) -> None:
        """Name a queue, though it may have no entries."""
        self._told[queue] = None
        for news in self._news.values():
            news[queue] = None
        self._came.set()
        self._came = asyncio.Event()

    async def __aenter__(self) -> FakeStore:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    async def _play(self, script: Callable[[str], RemoraError | float | None], call: str) -> None:
        action = script(call)
        if isinstance(action, RemoraError):
            raise action
        await asyncio.sleep(action or 0)

    @asynccontextmanager
    async def _call(self, name: str) -> AsyncIterator[None]:
        self.calls[name] += 1
        await self._play(self.before, name)
        yield
        await self._play(self.after, name)

    def _held(self, token: LockToken) -> FakeQueue:
        queue = self.queues.get(token.shard.queue)
        if queue is None or queue.incarnation != token.incarnation:
            raise ShardGone(f"{token.shard} is gone")
        if queue.holder is None or queue.holder.cookie != token.cookie or queue.lease_ends <= _now():
            raise OwnershipLost(f"{token.shard} is not held by {token.cookie}")
        return queue

    def _found(self, shard: Shard) -> FakeQueue:
        if shard.queue not in self.queues:
            raise ShardGone(f"{shard} is gone")
        return self.queues[shard.queue]

    # ------------------------------------------------------------------------------------ catalog

    async def shards(self) -> Sequence[Shard]:
        async with self._call("shards"):
            return [Shard(name) for name in sorted(self.queues)]

    async def topics(self) -> Mapping[Shard, Topic]:
        async with self._call("topics"):
            return {Shard(queue): topic for queue, topic in self.metadata.items()}

    async def changed(self) -> None:
        await self._catalogue_news[asyncio.current_task()].wait()

    def tell_changed(self) -> None:
        """Tell each worker that reads the catalogue of a change."""
        for each in self._catalogue_news.values():
            each.tell()

    async def released(self) -> frozenset[Shard]:
        async with self._call("released"):
            return self.left_to_radosgw

    async def set_released(self, shards: Sequence[Shard], *, released: bool) -> None:
        async with self._call("set_released"):
            others = self.left_to_radosgw - set(shards)
            self.left_to_radosgw = others | set(shards) if released else others

    async def held(self) -> Mapping[Shard, TopicHold]:
        async with self._call("held"):
            return dict(self.on_hold)

    async def set_hold(self, topic: Topic, hold: TopicHold | None) -> None:
        async with self._call("set_hold"):
            if hold is None:
                self.on_hold.pop(topic.first_shard, None)
            else:
                self.on_hold[topic.first_shard] = replace(hold, topic_id=topic.id)

    async def peek(self, shard: Shard) -> bytes | None:
        async with self._call("peek"):
            queue = self._found(shard)
            return queue.entries[queue.front] if queue.waiting else None

    # -------------------------------------------------------------------------------------- locks

    async def acquire(self, shard: Shard, cookie: str, lease_s: float) -> LockToken | LockHolder:
        async with self._call("acquire"):
            queue = self._found(shard)
            if queue.holder and queue.lease_ends > _now() and queue.holder.cookie != cookie:
                return replace(queue.holder, lease_left_s=queue.lease_ends - _now())
            queue.holder = LockHolder("client.1", cookie, lease_s)
            queue.lease_ends = _now() + lease_s
            return LockToken(shard, cookie, queue.incarnation)

    async def _renew(self, token: LockToken, lease_s: float) -> None:
        async with self._call("renew"):
            self._held(token).lease_ends = _now() + lease_s

    async def renew_all(self, tokens: Sequence[LockToken], lease_s: float) -> Sequence[StoreError | None]:
        self.calls["renew_all"] += 1
        return await asyncio.gather(*(_answer(self._renew, token, lease_s) for token in tokens))

    async def release(self, token: LockToken) -> None:
        async with self._call("release"):
            queue = self.queues.get(token.shard.queue)
            if queue and queue.holder and queue.holder.cookie == token.cookie:
                queue.holder = None

    async def evict(self, shard: Shard, holder: LockHolder) -> None:
        async with self._call("evict"):
            queue = self._found(shard)
            if queue.holder and queue.holder.cookie == holder.cookie:
                queue.holder = None

    async def evict_all(self, is_dead: Callable[[str], bool]) -> Sequence[Shard]:
        async with self._call("evict_all"):
            freed = [name for name, queue in self.queues.items() if queue.holder and is_dead(queue.holder.cookie)]
            for name in freed:
                self.queues[name].holder = None
            return [Shard(name) for name in freed]

    def steal(self, queue: str, cookie: str, lease_s: float = 90.0) -> None:
        """Somebody else breaks the lock and takes it."""
        self.queues[queue].holder = LockHolder("client.2", cookie, lease_s)
        self.queues[queue].lease_ends = _now() + lease_s

    # ------------------------------------------------------------------------------------ members

    async def announce(self, member: Member, ttl_s: float) -> None:
        async with self._call("announce"):
            self.announced[member.cookie] = (member, _now() + ttl_s)

    async def withdraw(self, cookie: str) -> None:
        async with self._call("withdraw"):
            self.announced.pop(cookie, None)

    async def live(self) -> Sequence[Member]:
        async with self._call("members"):
            return [member for _, (member, until) in sorted(self.announced.items()) if until > _now()]

    # -------------------------------------------------------------------------------------- queue

    async def read(self, token: LockToken, start: bytes, limit: int) -> Page:
        async with self._call("read"):
            queue = self._held(token)
            first = queue.positions.index(int(start.partition(b"/")[2])) if start else queue.front
            assert first >= queue.front, "a listing started behind the front"
            if why := self.held_back.get(token.shard.queue):
                return Page([queue.marker(first)], [], truncated=False, held_back=why)
            last = min(first + limit, len(queue.entries))
            return Page(
                [queue.marker(i) for i in range(first, last + 1)],
                queue.entries[first:last],
                truncated=last < len(queue.entries),
                after=b"" if first else self.ends.get(token.shard.queue, b""),
            )

    async def forget_former(self, topic: Topic) -> bool:
        async with self._call("forget"):
            self.forgets.append(topic)
            return True

    async def former_queues(self, topic: Topic) -> Sequence[FormerQueue]:
        return ()

    async def remove(self, token: LockToken, upto: bytes, count: int, tally: Tally) -> None:
        async with self._call("remove"):
            queue = self._held(token)
            last = queue.positions.index(int(upto.partition(b"/")[2]))
            assert tally.total == count, "a removal with a wrong tally"
            if last > queue.front:
                if last - count < queue.front:
                    raise StoreUnavailable(f"{token.shard}: the front has moved")
                assert last - count == queue.front, "a removal with a wrong count"
                queue.front = last
                queue.ledger += tally
                self.removals.append((token.shard.queue, count))

    async def _expire(self, token: LockToken, older_than_s: float) -> None:
        async with self._call("expire"):
            self._held(token)

    async def expire_all(self, tokens: Sequence[LockToken], older_than_s: float) -> Sequence[StoreError | None]:
        self.calls["expire_all"] += 1
        return await asyncio.gather(*(_answer(self._expire, token, older_than_s) for token in tokens))

    # ----------------------------------------------------------------------------------- attempts

    async def note(self, token: LockToken, attempts: Mapping[bytes, Attempt]) -> None:
        async with self._call("note_attempts"):
            assert len(attempts) <= MOST_ATTEMPTS
            self._held(token).attempts = dict(attempts)

    async def noted(self, token: LockToken) -> Mapping[bytes, Attempt]:
        async with self._call("attempts"):
            return dict(self._held(token).attempts)

    # ----------------------------------------------------------------------------------- arrivals

    async def wait(self) -> Sequence[Shard]:
        """Names are told once to each worker, and only in an answer that came: a call that fails loses none."""
        listener = asyncio.current_task()
        news = self._news.setdefault(listener, dict(self._told))
        async with self._call("arrivals"):
            while not news:
                await self._came.wait()
        told = [Shard(queue) for queue in news]
        news.clear()
        return told

    # -------------------------------------------------------------------------------------- peaks

    async def keep(self, peaks: Mapping[Topic, HourPeak]) -> None:
        async with self._call("keep_peaks"):
            for topic, peak in peaks.items():
                self.hours[topic].append(peak)

    async def kept(self, topic: Topic, since: int) -> Sequence[HourPeak]:
        return [each for each in self.hours[topic] if each.hour >= since]

    # ------------------------------------------------------------------------------- dead letters

    async def store(self, token: LockToken, *letters: DeadLetter) -> None:
        """The worker that asked last for letters of entries that stand parks; the lock is not looked at."""
        async with self._call("store_letters"):
            queue = self.queues.get(token.shard.queue)
            if queue is not None and queue.incarnation == token.incarnation and queue.parker != token.cookie:
                raise OwnershipLost(f"{queue.parker} has asked for letters of {token.shard}")
            for letter in letters:
                place = (letter.queue, letter.incarnation, letter.position)
                assert self.parked.setdefault(place, letter).cause == letter.cause, "another cause of the same letter"

    async def standing(self, token: LockToken) -> Sequence[DeadLetter]:
        async with self._call("standing_letters"):
            queue = self._held(token)
            queue.parker = token.cookie
            return await self.still_standing([each for each in self.parked.values() if each.queue == token.shard.queue])

    async def still_standing(self, letters: Sequence[DeadLetter]) -> Sequence[DeadLetter]:
        return [each for each in letters if self._stands(each)]

    def _stands(self, letter: DeadLetter) -> bool:
        queue = self.queues.get(letter.queue)
        if queue is None or queue.incarnation != letter.incarnation:
            return False
        return queue.positions.index(int(letter.position.partition("/")[2])) >= queue.front

    async def stored(self, queue: str | None = None) -> AsyncIterator[DeadLetter]:
        for letter in list(self.parked.values()):
            if queue in (None, letter.queue):
                yield letter

    async def counts(self) -> Mapping[str, int]:
        return Counter(each.queue for each in self.parked.values())

    async def drop(self, letters: Sequence[DeadLetter]) -> int:
        raise StoreUnavailable("a scripted store keeps its letters")

    async def redrive(self, shard: Shard, topic: Topic | None, again: Sequence[Redrive]) -> int:
        raise StoreUnavailable("a scripted store keeps its letters")

    async def totals(self) -> Mapping[str, LetterTotals]:
        return {}

    # --------------------------------------------------------------------------------- inspection

    async def stats(self, shard: Shard, *, exact: bool = False) -> ShardStats:
        async with self._call("stats"):
            queue = self._found(shard)
            held = queue.holder is not None
            holder = replace(queue.holder, lease_left_s=queue.lease_ends - _now()) if held and queue.holder else None
            used = sum(len(e) + 10 for e in queue.entries[queue.front :])
            return ShardStats(shard, queue.waiting, exact, used, 128_000_000, 0, 0, None, holder)

    async def backlog(self, shards: Sequence[Shard]) -> Sequence[ShardStats]:
        async with self._call("backlog"):
            return [
                ShardStats(each, self.queues[each.queue].waiting, True, self.full_percent, 100, 0, 0, 1.0, None)
                for each in shards
                if each.queue in self.queues and self.queues[each.queue].waiting
            ]

    async def balance(self, shard: Shard) -> Balance:
        queue = self._found(shard)
        return Balance(shard, len(queue.entries), queue.waiting, queue.ledger)

    async def balances(self, tokens: Sequence[LockToken]) -> Sequence[Balance]:
        async with self._call("balances"):
            queues = [(token.shard, self.queues.get(token.shard.queue)) for token in tokens]
            return [
                Balance(each, len(q.entries), q.waiting, q.ledger, self.rooms.get(each.queue))
                for each, q in queues
                if q is not None
            ]

    async def mend(self, token: LockToken) -> Mend:
        async with self._call("mend"):
            self._held(token)
            queue = token.shard.queue
            before = self.rooms[queue]
            self.rooms[queue] = after = replace(before, reserved_bytes=before.owed_bytes)
            return Mend(before, after)

    async def dump(self, shard: Shard) -> AsyncIterator[tuple[str, bytes]]:
        queue = self._found(shard)
        for i in range(queue.front, len(queue.entries)):
            yield queue.marker(i).decode(), queue.entries[i]

    # ------------------------------------------------------------------------------------ two-phase

    async def reserve(self, shard: Shard, entries: int, nbytes: int) -> int:
        raise QueueFull("a scripted store takes no reservations")

    async def commit(self, shard: Shard, reservation: int, payloads: Sequence[bytes]) -> None:
        raise StoreUnavailable("a scripted store takes no commits")

    async def abort(self, shard: Shard, reservation: int) -> None:
        return None


@dataclass(frozen=True)
class FakeBatch:
    lane: int
    records: Sequence[Record]


class FakeRoute:
    """Lanes by key; each push asks the endpoint's script what becomes of it."""

    def __init__(self, endpoint: FakeEndpoint, shard: Shard, target: Target) -> None:
        self.endpoint = endpoint
        self.acks_show_load = endpoint.acks_show_load
        self.shard = shard
        self.target = target
        self.stale = False
        self._busy: set[int] = set()
        self._too_large = endpoint.too_large

    @property
    def width(self) -> int:
        return self.endpoint.width()

    def pack(self, records: Sequence[Record]) -> tuple[list[Batch], list[tuple[Record, str]]]:
        return _packed(self.endpoint, self._too_large, records)

    def succeeds(self, after: bytes) -> None:
        self.endpoint.successions.append((self.shard.queue, after))

    async def look_again(self) -> None:
        self._too_large = await self.endpoint.look()

    async def publish_letters(self, letters: Sequence[DeadLetter]) -> None:
        await asyncio.sleep(0.001)
        if (error := self.endpoint.letter_failure()) is not None:
            raise error
        self.endpoint.buried += letters

    async def push(self, batch: Batch) -> None:
        assert batch.lane not in self._busy, "two batches of one lane are under way"
        self._busy.add(batch.lane)
        self.endpoint.busiest = max(self.endpoint.busiest, len(self._busy))
        try:
            await self.endpoint.take(self, batch)
        finally:
            self._busy.discard(batch.lane)


def _packed(
    endpoint: FakeEndpoint, too_large: Callable[[Record], bool], records: Sequence[Record]
) -> tuple[list[Batch], list[tuple[Record, str]]]:
    lanes: dict[int, list[Record]] = defaultdict(list)
    refused = []
    for record in records:
        if too_large(record):
            refused.append((record, "larger than the endpoint takes"))
        else:
            lanes[sum(record.key) % endpoint.lanes].append(record)
    most = endpoint.batch_records
    batches: list[Batch] = [
        FakeBatch(lane, part[i : i + most]) for lane, part in lanes.items() for i in range(0, len(part), most)
    ]
    return batches, refused


class FakeExactRoute:
    """Commits all or nothing, and nothing once another route was entered for the same queue and incarnation."""

    def __init__(self, endpoint: FakeEndpoint, shard: Shard, incarnation: str, target: Target) -> None:
        self.endpoint = endpoint
        self.target = target
        self.stale = False
        self.shard = (shard.queue, incarnation)
        endpoint.epochs[self.shard] += 1
        self.epoch = endpoint.epochs[self.shard]
        self.reached = endpoint.positions.get(self.shard)
        self._spent = False
        self._too_large = endpoint.too_large

    def pack(self, records: Sequence[Record]) -> tuple[list[Batch], list[tuple[Record, str]]]:
        return _packed(self.endpoint, self._too_large, records)

    def succeeds(self, after: bytes) -> None:
        self.endpoint.successions.append((self.shard[0], after))

    async def look_again(self) -> None:
        assert not self._spent, "a look while a commit is under way, or on a route that is spent"
        self._too_large = await self.endpoint.look()

    async def commit(self, batches: Sequence[Batch], upto: bytes, letters: Sequence[DeadLetter] = ()) -> None:
        assert not self._spent, "a route went on after a commit of unknown outcome, or two commits are under way"
        self._spent = True
        self.endpoint.journal("commit")
        verdict = self.endpoint.verdict(self, batches)
        await asyncio.sleep(verdict.wait_s)
        if self.endpoint.epochs[self.shard] != self.epoch:
            raise EndpointFenced(f"{self.shard} has another owner")
        if verdict.happens:
            self.endpoint.positions[self.shard] = upto
            self.endpoint.transactions.append(sum(len(each.records) for each in batches))
            self.endpoint.arrived += [(self.target.topic, record) for each in batches for record in each.records]
            self.endpoint.buried += letters
            self.endpoint.journal("committed")
        await asyncio.sleep(verdict.answer_s)
        if verdict.error is not None:
            raise verdict.error
        self._spent = False


@dataclass
class Verdict:
    """What becomes of a transaction: how long it takes, whether it is carried out, and what is answered when."""

    wait_s: float = 0.02
    happens: bool = True
    answer_s: float = 0.0
    error: EndpointError | None = None


@dataclass
class Fate:
    """What becomes of a push: how long it takes, how many records arrive, and what is raised."""

    wait_s: float = 0.001
    arrives: int | None = None
    error: EndpointError | None = None


class FakeEndpoint:
    schemes = frozenset({"kafka"})

    def __init__(self, lanes: int = 3) -> None:
        self.lanes = lanes
        self.batch_records = 1000
        self.acks_show_load = True
        self.width: Callable[[], int] = lambda: ALL_LANES
        self.busiest = 0
        """The most lanes that a route had under way at once."""
        self.arrived: list[tuple[str, Record]] = []
        self.fate: Callable[[FakeRoute, Batch], Fate] = lambda *_: Fate()
        self.too_large: Callable[[Record], bool] = lambda _: False
        self.looking: Callable[[], EndpointError | None] = lambda: None
        self.looks = 0
        self.opening: Callable[[Target], EndpointError | None] = lambda _: None
        self.answering: Callable[[Target], tuple[str, float]] = lambda _: ("1", 0.001)
        """The numbers of the brokers that are up, a character each, and how long it takes to find out."""
        self.looks = 0
        self.opening_s = 0.0
        self.closing_s = 0.0
        self.routes: list[FakeRoute] = []
        self.exact_routes: list[FakeExactRoute] = []
        self.epochs: dict[tuple[str, str], int] = defaultdict(int)
        self.positions: dict[tuple[str, str], bytes] = {}
        self.transactions: list[int] = []
        self.successions: list[tuple[str, bytes]] = []
        self.buried: list[DeadLetter] = []
        self.shared_fate: Callable[[Target], Hashable] = lambda target: (target.uri, target.args)
        self.quick_retries: list[bool] = []
        self.letter_failure: Callable[[], EndpointError | None] = lambda: None
        self.verdict: Callable[[FakeExactRoute, Sequence[Batch]], Verdict] = lambda *_: Verdict()
        self.journal: Callable[[str], None] = lambda _: None
        self.pushes = 0

    def check(self, target: Target) -> list[str]:
        return []

    def publishes_letters(self, target: Target) -> bool:
        return bool(parse_args(target.args).get(DEAD_LETTER_TOPIC))

    async def up(self, target: Target) -> frozenset[str]:
        self.looks += 1
        up, wait_s = self.answering(target)
        await asyncio.sleep(wait_s)
        return frozenset(up)

    def destination(self, target: Target) -> Hashable:
        return self.shared_fate(target)

    @asynccontextmanager
    async def route(
        self, shard: Shard, incarnation: str, target: Target, *, quick_retries: bool = True
    ) -> AsyncIterator[Route]:
        self.quick_retries.append(quick_retries)
        await asyncio.sleep(self.opening_s)
        error = self.opening(target)
        if error is not None:
            raise error
        route = FakeRoute(self, shard, target)
        self.routes.append(route)
        yield route
        await asyncio.sleep(self.closing_s)

    @asynccontextmanager
    async def exact(self, shard: Shard, incarnation: str, target: Target) -> AsyncIterator[ExactRoute]:
        await asyncio.sleep(self.opening_s)
        error = self.opening(target)
        if error is not None:
            raise error
        route = FakeExactRoute(self, shard, incarnation, target)
        self.exact_routes.append(route)
        self.journal("enter")
        yield route
        self.journal("leave")
        await asyncio.sleep(self.closing_s)

    async def look(self) -> Callable[[Record], bool]:
        """What is too large now; a look takes a moment, and may fail."""
        self.looks += 1
        await asyncio.sleep(0.01)
        if (error := self.looking()) is not None:
            raise error
        return self.too_large

    async def take(self, route: FakeRoute, batch: Batch) -> None:
        self.pushes += 1
        fate = self.fate(route, batch)
        await asyncio.sleep(fate.wait_s)
        count = len(batch.records) if fate.arrives is None else fate.arrives
        self.arrived += [(route.target.topic, record) for record in batch.records[:count]]
        if fate.error is not None:
            raise fate.error

    def events(self, topic: str | None = None) -> list[bytes]:
        return [r.event_id for t, r in self.arrived if topic in (None, t)]


async def _answer(
    call: Callable[[LockToken, float], Awaitable[None]], token: LockToken, seconds: float
) -> StoreError | None:
    try:
        await call(token, seconds)
    except StoreError as exc:
        return exc
    return None


def _now() -> float:
    return asyncio.get_running_loop().time()
