"""Stores events in topics of remora's own, all or none over the shards, also over a crash.

Room is reserved in each queue first, so that nothing can be refused later; then one operation on one object decides
(`requests.py`); then the parts are committed, by whoever comes by (`completing.py`). A single part that is not to be
recognised when it is repeated needs none of that: a commit is one operation already.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

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
from remora.model.ingest import RESERVATION_AGE_S, IdempotencyKey, PublishResult, ReservedRoom, RoutedEvent
from remora.model.topic import Topic
from remora.storage.rados.completing import Completer, held_entry, open_entry
from remora.storage.rados.own_queues import OwnQueues, all_of, each_of
from remora.storage.rados.own_topics import OwnTopics
from remora.storage.rados.refusals import ExistsError, MismatchError, MissingError
from remora.storage.rados.requests import Known, Part, Request, Requests, State, new_request, now_ms

_TRIES = 5

# What one commit holds at most. An OSD writes its entries one by one within one transaction: 1,000 take it a quarter
# of a second, 2,000 four seconds, and 4,000 more than half a minute, during which it serves nothing else.
_MOST_ENTRIES, _MOST_BYTES = 500, 4 << 20

_RESERVATION = re.compile(r"[A-Za-z0-9_-]{1,200}\.[0-9a-f]{32}")


class _Demand(NamedTuple):
    """Room for payloads of these sizes, next to each other in a shard."""

    shard: int
    sizes: list[int]


class Ingest:
    """Publishes, reserves, commits and aborts."""

    def __init__(self, requests: Requests, queues: OwnQueues, topics: OwnTopics, completer: Completer) -> None:
        self._requests = requests
        self._queues = queues
        self._topics = topics
        self._completer = completer

    # --- one step --------------------------------------------------------------------------------------

    async def publish(
        self, topic: Topic, events: Sequence[RoutedEvent], once: IdempotencyKey | None = None
    ) -> PublishResult:
        """Store events; returns when they are durable."""
        payloads = _payloads(topic, events)
        if once is None:
            await self._publish(topic, payloads)
            return PublishResult(len(events))
        name = f"{topic.name}.once-{hashlib.sha256(f'{topic.id} {once.key}'.encode()).hexdigest()[:40]}"
        known = await self._requests.load(name)
        if known is None:
            request = await self._reserve(topic, _demands(payloads))
            try:
                await self._decide(name, request.decided(_filled(request, payloads), once.digest))
            except ExistsError:
                known = await self._requests.load(name)
            else:
                return PublishResult(len(events))
        if known is None:
            raise StoreUnavailable(f"topic {topic.name}: another request of this key was just being forgotten")
        return await self._repeat(topic, name, known, once.digest)

    async def _publish(self, topic: Topic, payloads: Mapping[int, list[bytes]]) -> None:
        """Store events that are not recognised when they come again."""
        request = await self._reserve(topic, _demands(payloads), repeated=False)
        parts = _filled(request, payloads)
        if len(parts) > 1:
            await self._decide(f"{topic.name}.any-{secrets.token_hex(16)}", request.decided(parts, b""))
            return
        for part in parts:
            try:
                await self._queues.commit(request.shard(part), topic.id, part.reservation, part.payloads)
            except StoreUnavailable:
                raise
            except StoreError as exc:
                await self._completer.give_back(request)
                if isinstance(exc, (MismatchError, ShardGone)):
                    raise await self._topics.refusal(topic) from exc
                raise

    async def _decide(self, name: str, request: Request) -> None:
        """Have a new request carried out, from when on it is decided. ExistsError when there is one of this name."""
        entry = open_entry(name, request)
        try:
            await self._requests.note(entry)
            await self._requests.make(name, request, State.DECIDED)
        except StoreUnavailable:
            raise  # it may have been made, and be carried out by somebody
        except StoreError:
            await self._completer.give_back(request)
            with contextlib.suppress(StoreError):
                await self._requests.move([entry], None)
            raise
        await self._completer.carry_out(name, request)

    async def _repeat(self, topic: Topic, name: str, known: Known, digest: bytes) -> PublishResult:
        """The answer to a request that was decided before, when it has been carried out."""
        await self._topics.check(topic)
        if known.request.digest != digest:
            raise OnceConflict(f"topic {topic.name}: something else was stored under this key before")
        if known.state is State.DECIDED:
            await self._completer.carry_out(name, known.request)
        return PublishResult(known.request.events, repeated=True)

    # --- two steps -------------------------------------------------------------------------------------

    async def reserve(self, topic: Topic, rooms: Sequence[ReservedRoom]) -> str:
        """Reserve room in all shards or in none, and answer the reservation's id."""
        name = f"{topic.name}.{secrets.token_hex(16)}"
        request = await self._reserve(topic, _split(_sizes(topic, rooms)), rooms)
        try:
            await self._requests.note(held_entry(name, request))
            await self._requests.make(name, request, State.RESERVED)
        except StoreError:
            await self._completer.give_back(request)
            raise
        return name

    async def commit(
        self, topic: Topic, reservation: str, events: Sequence[RoutedEvent], digest: bytes
    ) -> PublishResult:
        """Store exactly the events that room was reserved for, and end the reservation."""
        for _ in range(_TRIES):
            known = await self._reservation(topic, reservation)
            if known.state in (State.DECIDED, State.DONE):
                return await self._repeat(topic, reservation, known, digest)
            if known.state is State.ENDED:
                raise ReservationExpired(f"reservation {reservation} has expired, or it was aborted")
            _check_events(reservation, known.request, events)
            with contextlib.suppress(MismatchError, MissingError):  # somebody else came first: look again
                await self._check_open(topic, reservation, known.request)
                request = known.request.decided(_filled(known.request, _payloads(topic, events)), digest)
                await self._requests.note(open_entry(reservation, request))
                await self._requests.change(reservation, request, State.RESERVED, State.DECIDED)
                await self._completer.carry_out(reservation, request)
                return PublishResult(len(events))
        raise StoreUnavailable(f"reservation {reservation} keeps changing")

    async def abort(self, topic: Topic, reservation: str) -> None:
        """Give the room back. Aborting again is no error."""
        for _ in range(_TRIES):
            known = await self._reservation(topic, reservation)
            if known.state in (State.DECIDED, State.DONE):
                raise OnceConflict(f"reservation {reservation} has been committed")
            if known.state is State.ENDED:
                return
            with contextlib.suppress(MismatchError, MissingError):
                await self._completer.end(reservation, known.request)
                return
        raise StoreUnavailable(f"reservation {reservation} keeps changing")

    async def _reservation(self, topic: Topic, reservation: str) -> Known:
        """The reservation of this topic as it is now."""
        known = await self._requests.load(reservation) if _RESERVATION.fullmatch(reservation) else None
        if known is None or known.request.topic_id != topic.id:
            await self._topics.check(topic)
            raise ReservationUnknown(f"topic {topic.name} has no reservation of this id")
        return known

    async def _check_open(self, topic: Topic, reservation: str, request: Request) -> None:
        """Raise ReservationExpired when it is too old, or any queue has given its room back."""
        try:
            is_late = now_ms() - request.made_ms > RESERVATION_AGE_S * 1000
            if not is_late and await self._is_reserved(request):
                return
        except (MismatchError, ShardGone) as exc:
            raise await self._topics.refusal(topic) from exc
        await self._completer.end(reservation, request)
        raise ReservationExpired(f"reservation {reservation} has expired")

    async def _is_reserved(self, request: Request) -> bool:
        """Whether every queue still has the reservations that were made in it."""
        queues = request.queues()
        found = await all_of(list(queues), lambda shard: self._queues.reservations(shard, request.topic_id))
        wanted = [{part.reservation for _, part in parts} for parts in queues.values()]
        return all(each <= there for each, there in zip(wanted, found, strict=True))

    # --- both ------------------------------------------------------------------------------------------

    async def _reserve(
        self, topic: Topic, demands: Sequence[_Demand], rooms: Sequence[ReservedRoom] = (), *, repeated: bool = True
    ) -> Request:
        """A request that has room for all of this.

        What was reserved is given back when any shard refuses. It expires when the caller is cancelled meanwhile.
        """
        if not demands:
            await self._topics.check(topic)
        answers = await each_of(
            demands, lambda demand: self._queues.reserve(topic.shard(demand.shard), topic.id, demand.sizes)
        )
        parts = [
            Part(demand.shard, answer, len(demand.sizes))
            for demand, answer in zip(demands, answers, strict=True)
            if isinstance(answer, int)
        ]
        request = new_request(topic, parts, rooms, repeated=repeated)
        if errors := [answer for answer in answers if isinstance(answer, StoreError)]:
            await self._completer.give_back(request)
            # What is certain says more than what is not known.
            errors.sort(key=lambda error: isinstance(error, StoreUnavailable))
            if isinstance(errors[0], (MismatchError, ShardGone)):
                raise await self._topics.refusal(topic) from errors[0]
            raise errors[0]
        return request


def _payloads(topic: Topic, events: Iterable[RoutedEvent]) -> dict[int, list[bytes]]:
    """The payloads of each shard, in order. ValueError when the topic does not have one of the shards."""
    found: dict[int, list[bytes]] = defaultdict(list)
    for event in events:
        found[event.shard].append(event.payload)
    _check_shards(topic, found)
    return found


def _sizes(topic: Topic, rooms: Iterable[ReservedRoom]) -> dict[int, list[int]]:
    """The bytes of each room in each shard. ValueError when the topic does not have one of the shards."""
    found: dict[int, list[int]] = defaultdict(list)
    for room in rooms:
        found[room.shard].append(room.nbytes)
    _check_shards(topic, found)
    return found


def _check_shards(topic: Topic, shards: Iterable[int]) -> None:
    for shard in shards:
        if not 0 <= shard < topic.shards:
            raise ValueError(f"topic {topic.name} has {topic.shards} shards, so none of number {shard}")


def _demands(payloads: Mapping[int, list[bytes]]) -> list[_Demand]:
    """What these payloads need."""
    return _split({shard: list(map(len, each)) for shard, each in payloads.items()})


def _split(sizes: Mapping[int, list[int]]) -> list[_Demand]:
    """The sizes of each shard in order, in parts that an OSD takes in its stride."""
    found: list[_Demand] = []
    for shard, each in sizes.items():
        nbytes = _MOST_BYTES + 1  # nothing is next to what another shard has
        for size in each:
            if nbytes + size > _MOST_BYTES or len(found[-1].sizes) == _MOST_ENTRIES:
                found.append(_Demand(shard, []))
                nbytes = 0
            found[-1].sizes.append(size)
            nbytes += size
    return found


def _filled(request: Request, payloads: Mapping[int, list[bytes]]) -> list[Part]:
    """The request's parts with what is to be stored in them."""
    left = {shard: iter(each) for shard, each in payloads.items()}
    return [
        msgspec.structs.replace(part, payloads=list(itertools.islice(left[part.shard], part.entries)))
        for part in request.parts
    ]


def _check_events(reservation: str, request: Request, events: Sequence[RoutedEvent]) -> None:
    """Raise unless these are the events, in this order, that room was reserved for."""
    if [(event.shard, event.key) for event in events] != [(room.shard, room.key) for room in request.rooms]:
        raise ReservationMismatch(f"reservation {reservation} is for other events, or in another order")
    for number, (event, room) in enumerate(zip(events, request.rooms, strict=True)):
        if len(event.payload) > room.nbytes:
            raise ReservationExceeded(
                f"reservation {reservation}: event {number} has {len(event.payload)} bytes, not at most {room.nbytes}"
            )
