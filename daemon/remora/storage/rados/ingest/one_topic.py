"""Stores events in topics of remora's own, all or none over the shards, also over a crash.

A two-phase commit: room is reserved in each queue first, so that none can refuse later; then one operation on one
object commits the intent (`intent_log.py`); then its parts are committed to the queues, by this process or by one that
recovers it (`finisher.py`). Events of a single part that need not be recognised when repeated take no intent: the
queue's own commit is one operation already.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from remora.bounded import all_of, each_of
from remora.codec.trace_context import context_of
from remora.model.errors import (
    OnceConflict,
    ReservationExceeded,
    ReservationExpired,
    ReservationMismatch,
    ReservationUnknown,
    ShardGone,
    StoreError,
    StoreUnavailable,
)
from remora.model.ingest import IdempotencyKey, PublishResult, ReservedRoom, RoutedEvent
from remora.model.topic import Topic
from remora.policy.status.stages import EventStage
from remora.ports.stages import NO_METER
from remora.ports.tracing import NO_TRACER, Work
from remora.storage.rados.cluster.part import KeyedLocks
from remora.storage.rados.cluster.refusals import ExistsError, MismatchError, MissingError
from remora.storage.rados.ingest.finisher import RequestLog
from remora.storage.rados.ingest.intent_log import Intent, IntentPart, IntentState, L, LoggedIntent, now_ms
from remora.storage.rados.ingest.schedule import completion, expiry
from remora.storage.rados.own_topics import RadosOwnTopics
from remora.storage.rados.queues.own_queues import OwnQueues

T = TypeVar("T")

CHANGE_TRIES = 5
"""How often a request that others change at the same moment is looked at."""

# The most that one commit holds. An OSD writes its entries one by one within one transaction: 1,000 take it a quarter
# of a second, 2,000 four seconds, and 4,000 more than half a minute, during which it serves nothing else.
_MOST_ENTRIES, _MOST_BYTES = 500, 4 << 20

_RESERVATION = re.compile(r"[A-Za-z0-9_-]{1,200}\.[0-9a-f]{32}")


class _Demand(NamedTuple):
    """Room for payloads of these sizes, next to each other in a shard."""

    shard: int
    sizes: list[int]


class RadosIngest:
    """Publishes, reserves, commits and aborts. `requests` is the log of requests of one topic."""

    def __init__(self, log: RequestLog[Intent], queues: OwnQueues, topics: RadosOwnTopics) -> None:
        self.requests = log
        _, self._intents, self._schedule, self._finisher = log
        self._queues = queues
        self._topics = topics
        self.tracer, self.meter = NO_TRACER, NO_METER
        self._first_tries: KeyedLocks[str] = KeyedLocks()
        """By the name of a request with a key: who comes second waits, or might find the room taken by the first."""

    # --- one step --------------------------------------------------------------------------------------

    async def publish(
        self, topic: Topic, events: Sequence[RoutedEvent], once: IdempotencyKey | None = None
    ) -> PublishResult:
        """Store events; returns when they are durable."""
        return await self._observed(topic.name, events, self._published(topic, events, once))

    async def _observed(self, topic: str, events: Sequence[RoutedEvent], storing: Awaitable[T]) -> T:
        """Trace and time the storing of a request, of several topics by its first one."""
        context = context_of(events[0].payload) if events else b""
        span = self.tracer.begin(Work.COMMIT, topic, {}, links=[context] if context else [])
        began = time.monotonic()
        try:
            result = await storing
        except StoreError as exc:
            span.end(str(exc))
            raise
        span.end(attributes={"remora.requests": 1})
        self.meter.stage_took(EventStage.COMMIT, "rados", time.monotonic() - began)
        return result

    async def _published(
        self, topic: Topic, events: Sequence[RoutedEvent], once: IdempotencyKey | None
    ) -> PublishResult:
        payloads = payloads_of(topic, events)
        if once is None:
            await self._publish(topic, payloads)
            return PublishResult(len(events))
        name = f"{topic.name}.once-{hashlib.sha256(f'{topic.id} {once.key}'.encode()).hexdigest()[:40]}"
        async with self._first_tries.of(name):
            if (known := await self._intents.load(name)) is None:
                known = await self._published_first(topic, payloads, name, once.digest)
            if known is None:
                return PublishResult(len(events))
            return await self._repeat(topic, name, known, once.digest)

    async def _published_first(
        self, topic: Topic, payloads: Mapping[int, list[bytes]], name: str, digest: bytes
    ) -> LoggedIntent[Intent] | None:
        """Store the events of a key that no request has had; the request that another process has stored meanwhile."""
        try:
            intent = await self._reserve(topic, demands_of(payloads))
        except StoreError:  # another process's try may have the room
            if (known := await self._intents.load(name)) is None:
                raise
            return known
        try:
            await self._commit(self.requests, name, intent.committed(filled(intent, payloads), digest))
        except ExistsError as exc:
            if (known := await self._intents.load(name)) is None:
                raise StoreUnavailable(
                    f"topic {topic.name}: an earlier request of this key was just being deleted"
                ) from exc
            return known
        return None

    async def _publish(self, topic: Topic, payloads: Mapping[int, list[bytes]]) -> None:
        """Store events without an idempotency key."""
        intent = await self._reserve(topic, demands_of(payloads), repeated=False)
        parts = filled(intent, payloads)
        if len(parts) > 1:
            name = f"{topic.name}.any-{secrets.token_hex(16)}"
            await self._commit(self.requests, name, intent.committed(parts, b""))
            return
        for part in parts:
            try:
                await self._queues.commit(intent.shard(part), topic.id, part.reservation, part.payloads)
            except StoreUnavailable:
                raise
            except StoreError as exc:
                await self._finisher.release(intent)
                if isinstance(exc, (MismatchError, ShardGone)):
                    raise await self._topics.refusal(topic) from exc
                raise

    async def _commit(self, log: RequestLog[L], name: str, request: L) -> None:
        """Log a new request as committed, then complete it. Raises ExistsError when there is one of this name."""
        entry, began = completion(name, request), time.monotonic()
        try:
            await log.schedule.add(entry)
        except StoreError:  # the request was not logged, so nobody completes it, whatever became of its entry
            await log.finisher.release(request)
            raise
        try:
            await log.intents.create(name, request, IntentState.COMMITTED)
            self.meter.stage_took(EventStage.REGISTER, "rados", time.monotonic() - began)
        except StoreUnavailable:
            raise  # it may have been created, and recovery completes it
        except StoreError as exc:
            await log.finisher.release(request)
            if not isinstance(exc, ExistsError):  # decided in the same millisecond, it has this very entry
                with contextlib.suppress(StoreError):
                    await log.schedule.replace([entry], None)
            raise
        await log.finisher.complete(name, request)

    async def _repeat(self, topic: Topic, name: str, known: LoggedIntent[Intent], digest: bytes) -> PublishResult:
        """The answer to a request that was committed before, once it is completed."""
        await self._topics.check(topic)
        if known.intent.digest != digest:
            raise OnceConflict(f"topic {topic.name}: something else was stored under this key before")
        if known.state is IntentState.COMMITTED:
            await self._finisher.complete(name, known.intent)
        return PublishResult(known.intent.events, repeated=True)

    # --- two steps -------------------------------------------------------------------------------------

    async def reserve(self, topic: Topic, rooms: Sequence[ReservedRoom]) -> str:
        """Reserve room in all shards or in none, and return the reservation's id."""
        name = f"{topic.name}.{secrets.token_hex(16)}"
        intent = await self._reserve(topic, room_demands(topic, rooms), rooms)
        await self._prepare(self.requests, name, intent)
        return name

    async def _prepare(self, log: RequestLog[L], name: str, request: L) -> None:
        """Log a new request as prepared."""
        try:
            await log.schedule.add(expiry(name, request))
            await log.intents.create(name, request, IntentState.PREPARED)
        except StoreError:
            await log.finisher.release(request)
            raise

    async def commit(
        self, topic: Topic, reservation: str, events: Sequence[RoutedEvent], digest: bytes
    ) -> PublishResult:
        """Store exactly the events that room was reserved for, and end the reservation."""
        for _ in range(CHANGE_TRIES):
            known = await self._reservation(topic, reservation)
            if known.is_committed:
                return await self._repeat(topic, reservation, known, digest)
            if known.state is IntentState.ABORTED:
                raise ReservationExpired(f"reservation {reservation} has expired, or it was aborted")
            _check_events(topic, reservation, known.intent, events)
            with contextlib.suppress(MismatchError, MissingError):  # another caller changed it first: look again
                await self._check_open(self.requests, reservation, known.intent, [(topic, known.intent)])
                payloads: dict[int, list[bytes]] = defaultdict(list)
                for event, room in zip(events, known.intent.rooms, strict=True):  # another layout may be open by now
                    payloads[room.shard].append(event.payload)
                intent = known.intent.committed(filled(known.intent, payloads), digest)
                await self._commit_prepared(self.requests, reservation, intent)
                return PublishResult(len(events))
        raise StoreUnavailable(f"reservation {reservation} keeps changing")

    async def _commit_prepared(self, log: RequestLog[L], name: str, request: L, spare: L | None = None) -> None:
        """Commit a request that is prepared, give back the room that it does not need, and complete it.

        Raises MismatchError and MissingError where it is not prepared any more.
        """
        await log.schedule.add(completion(name, request))
        await log.intents.change(name, request, IntentState.PREPARED, IntentState.COMMITTED)
        if spare is not None:
            await log.finisher.release(spare)
        await log.finisher.complete(name, request)

    async def abort(self, topic: Topic, reservation: str) -> None:
        """Give the room back. Aborting again is no error."""
        await self._abort(self.requests, reservation, lambda: self._reservation(topic, reservation))

    async def _abort(
        self, log: RequestLog[L], reservation: str, load: Callable[[], Awaitable[LoggedIntent[L]]]
    ) -> None:
        """Abort a reservation that is not committed."""
        for _ in range(CHANGE_TRIES):
            known = await load()
            if known.is_committed:
                raise OnceConflict(f"reservation {reservation} has been committed")
            if known.state is IntentState.ABORTED:
                return
            with contextlib.suppress(MismatchError, MissingError):
                await log.finisher.abort(reservation, known.intent)
                return
        raise StoreUnavailable(f"reservation {reservation} keeps changing")

    async def _reservation(self, topic: Topic, reservation: str) -> LoggedIntent[Intent]:
        """The reservation of this topic as it is now."""
        known = await self._intents.load(reservation) if _RESERVATION.fullmatch(reservation) else None
        if known is None or known.intent.topic_id != topic.id:
            await self._topics.check(topic)
            raise ReservationUnknown(f"topic {topic.name} has no reservation of this id")
        return known

    async def _check_open(
        self, log: RequestLog[L], reservation: str, request: L, needed: Sequence[tuple[Topic, Intent]]
    ) -> None:
        """Raise ReservationExpired when a queue has given room back that is needed; abort the request then.

        Its age is not compared: only `Recovery`, which has seen it for as long, knows it without a wall clock.
        """
        if all(await all_of(needed, lambda each: self._has_room(*each))):
            return
        await log.finisher.abort(reservation, request)
        raise ReservationExpired(f"reservation {reservation} has expired")

    async def _has_room(self, topic: Topic, intent: Intent) -> bool:
        """Whether every queue still has this intent's reservations."""
        queues = intent.queues()
        try:
            found = await all_of(list(queues), lambda shard: self._queues.reservations(shard, intent.topic_id))
        except (MismatchError, ShardGone) as exc:
            if intent.generation == topic.generation:
                raise await self._topics.refusal(topic) from exc
            await self._topics.check(topic)  # a former layout is shut when its reservations have ended
            return False
        wanted = [{part.reservation for _, part in parts} for parts in queues.values()]
        return all(each <= there for each, there in zip(wanted, found, strict=True))

    # --- both ------------------------------------------------------------------------------------------

    async def _reserve(
        self, topic: Topic, demands: Sequence[_Demand], rooms: Sequence[ReservedRoom] = (), *, repeated: bool = True
    ) -> Intent:
        """An intent with room reserved for all demands.

        What was reserved is given back when any shard refuses, and expires when the caller is cancelled.
        """
        if not demands:
            await self._topics.check(topic)
        answers = await each_of(
            demands, lambda demand: self._queues.reserve(topic.shard(demand.shard), topic.id, demand.sizes), StoreError
        )
        parts = [
            IntentPart(demand.shard, answer, len(demand.sizes))
            for demand, answer in zip(demands, answers, strict=True)
            if isinstance(answer, int)
        ]
        intent = Intent(Intent.VERSION, topic.shard(0).queue, topic.id, now_ms(), parts, repeated, list(rooms))
        if (error := clearest_of(answers)) is not None:
            await self._finisher.release(intent)
            if isinstance(error, (MismatchError, ShardGone)):
                raise await self._topics.refusal(topic) from error
            raise error
        return intent


def clearest_of(answers: Iterable[object]) -> StoreError | None:
    """The first error, one of a certain refusal before those of an unknown outcome; None where none is there."""
    errors = [answer for answer in answers if isinstance(answer, StoreError)]
    return min(errors, key=lambda error: isinstance(error, StoreUnavailable), default=None)


def payloads_of(topic: Topic, events: Iterable[RoutedEvent]) -> dict[int, list[bytes]]:
    """The payloads of each shard, in order. ValueError when the topic does not have one of the shards."""
    found: dict[int, list[bytes]] = defaultdict(list)
    for event in events:
        found[event.shard].append(event.payload)
    _check_shards(topic, found)
    return found


def room_demands(topic: Topic, rooms: Iterable[ReservedRoom]) -> list[_Demand]:
    """The room that these need. ValueError when the topic does not have one of the shards."""
    found: dict[int, list[int]] = defaultdict(list)
    for room in rooms:
        found[room.shard].append(room.nbytes)
    _check_shards(topic, found)
    return _split(found)


def _check_shards(topic: Topic, shards: Iterable[int]) -> None:
    for shard in shards:
        if not 0 <= shard < topic.shards:
            raise ValueError(f"topic {topic.name} has {topic.shards} shards, so none of number {shard}")


def demands_of(payloads: Mapping[int, list[bytes]]) -> list[_Demand]:
    """The room that these payloads need."""
    return _split({shard: list(map(len, each)) for shard, each in payloads.items()})


def _split(sizes: Mapping[int, list[int]]) -> list[_Demand]:
    """The sizes of each shard in order, in parts that an OSD stores quickly."""
    found: list[_Demand] = []
    for shard, each in sizes.items():
        nbytes = _MOST_BYTES + 1  # a part holds events of one shard
        for size in each:
            if nbytes + size > _MOST_BYTES or len(found[-1].sizes) == _MOST_ENTRIES:
                found.append(_Demand(shard, []))
                nbytes = 0
            found[-1].sizes.append(size)
            nbytes += size
    return found


def filled(intent: Intent, payloads: Mapping[int, list[bytes]]) -> list[IntentPart]:
    """The intent's parts with their payloads."""
    left = {shard: iter(each) for shard, each in payloads.items()}
    return [
        msgspec.structs.replace(part, payloads=list(itertools.islice(left[part.shard], part.entries)))
        for part in intent.parts
    ]


def _check_events(topic: Topic, reservation: str, intent: Intent, events: Sequence[RoutedEvent]) -> None:
    """Raise unless these are the events, in this order, that room was reserved for; their shards are the caller's."""
    is_placed_so = intent.generation != topic.generation or [event.shard for event in events] == [
        room.shard for room in intent.rooms
    ]
    if not is_placed_so or [event.key for event in events] != [room.key for room in intent.rooms]:
        raise ReservationMismatch(f"reservation {reservation} is for other events, or in another order")
    for number, (event, room) in enumerate(zip(events, intent.rooms, strict=True)):
        if len(event.payload) > room.nbytes:
            raise ReservationExceeded(
                f"reservation {reservation}: event {number} has {len(event.payload)} bytes, not at most {room.nbytes}"
            )
