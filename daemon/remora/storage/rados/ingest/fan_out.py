"""Stores events in several topics, all copies or none, also over a crash.

Room is reserved in the queues of all topics first; then one operation on one object commits the envelope with all
payloads (`intent_log.py`); then each part is committed to its queue, by this process or by one that recovers it. The
envelope of a request with a key is named by the key alone, since by the time that it is repeated its events may match
other notifications.

The two phases do the same for whoever announces events first: a reservation is an envelope that is prepared
(`FanOutEnvelope`): one object with an intent for each topic, the rooms of each, and what was announced. The commit
leaves in it the parts that get events, with their payloads. So it is committed by one operation, and completed,
recovered, repeated and deleted as any other envelope, in any process. The process that commits gives back the room
that no event takes; should it stop, that room expires as all room does.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from remora.bounded import each_of
from remora.model.errors import (
    OnceConflict,
    ReservationExpired,
    ReservationMismatch,
    ReservationUnknown,
    StoreError,
    StoreUnavailable,
)
from remora.model.fan_out import FannedOut, TopicCopies, TopicRooms
from remora.model.ingest import IdempotencyKey, RoutedEvent
from remora.policy.ingest.reservations import rooms_taken
from remora.storage.rados.cluster.refusals import ExistsError, MismatchError, MissingError
from remora.storage.rados.ingest.finisher import RequestLog
from remora.storage.rados.ingest.intent_log import FanOutEnvelope, Intent, IntentState, LoggedIntent, now_ms
from remora.storage.rados.ingest.one_topic import (
    CHANGE_TRIES,
    RadosIngest,
    clearest_of,
    demands_of,
    filled,
    payloads_of,
    room_demands,
)
from remora.storage.rados.own_topics import RadosOwnTopics
from remora.storage.rados.queues.own_queues import OwnQueues


class RadosFanOut(RadosIngest):
    """Ingest, and events for several topics at once; see `ports.FanningOut`. `fan_outs` is the log of such requests."""

    def __init__(
        self, log: RequestLog[Intent], queues: OwnQueues, topics: RadosOwnTopics, fan_outs: RequestLog[FanOutEnvelope]
    ) -> None:
        super().__init__(log, queues, topics)
        self.fan_outs = fan_outs

    def fan_out_soon(
        self, copies: Sequence[TopicCopies], answer: FannedOut, done: Callable[[FannedOut | Exception], None]
    ) -> bool:
        """False: each request takes several operations."""
        return False

    async def fan_out(
        self, copies: Sequence[TopicCopies], answer: FannedOut, once: IdempotencyKey | None = None
    ) -> FannedOut:
        """Store the copies; returns when all are durable."""
        if once is None and len(copies) < 2:
            for each in copies:
                await self.publish(each.topic, each.events)
            return answer
        topic, events = (copies[0].topic.name, copies[0].events) if copies else ("", ())
        if once is None:
            return await self._observed(topic, events, self._stored(copies, answer, None))
        async with self._first_tries.of(_name(once)):
            return await self._observed(topic, events, self._stored(copies, answer, once))

    async def _stored(self, copies: Sequence[TopicCopies], answer: FannedOut, once: IdempotencyKey | None) -> FannedOut:
        """Store the copies by an envelope, unless there is one of this key."""
        name = _name(once) if once else f"~any-{secrets.token_hex(16)}"
        if once is not None and (before := await self.fanned_out(once)) is not None:
            return before
        try:
            intents = await self._reserve_copies(copies, repeated=once is not None)
        except StoreError:  # another process's try may have the room, and may have stored the events by now
            if once is not None and (before := await self.fanned_out(once)) is not None:
                return before
            raise
        envelope = FanOutEnvelope(
            FanOutEnvelope.VERSION, now := now_ms(), intents, once is not None, now, once.digest if once else b"",
            answer.accepted, answer.unmatched, dict(answer.topics),
        )  # fmt: skip
        try:
            await self._commit(self.fan_outs, name, envelope)
        except ExistsError as exc:
            if once is not None and (before := await self.fanned_out(once)) is not None:
                return before
            raise StoreUnavailable("an earlier request of this key was just being deleted") from exc
        return answer

    async def fanned_out(self, once: IdempotencyKey) -> FannedOut | None:
        """The answer that a request with this key had before, when every topic has its copies."""
        known = await self.fan_outs.intents.load(name := _name(once))
        if known is None:
            return None
        if known.intent.digest != once.digest:
            raise OnceConflict("something else was stored under this key before")
        return await self._completed(name, known)

    async def _completed(self, name: str, known: LoggedIntent[FanOutEnvelope]) -> FannedOut:
        """The answer of a request that was committed before, once it is completed."""
        if known.state is IntentState.COMMITTED:
            await self.fan_outs.finisher.complete(name, known.intent)
        found = known.intent
        return FannedOut(found.accepted, found.unmatched, found.topics, repeated=True)

    async def _reserve_copies(self, copies: Sequence[TopicCopies], *, repeated: bool) -> list[Intent]:
        """Intents with their payloads and with room reserved in all topics; what was reserved is given back where one
        refuses."""
        payloads = [payloads_of(each.topic, each.events) for each in copies]

        async def reserve(number: int) -> Intent:
            return await self._reserve(copies[number].topic, demands_of(payloads[number]), repeated=repeated)

        intents = await self._all_or_none(await each_of(range(len(copies)), reserve, StoreError))
        return [intent.committed(filled(intent, of), b"") for intent, of in zip(intents, payloads, strict=True)]

    async def _all_or_none(self, found: Sequence[Intent | StoreError]) -> list[Intent]:
        """What was reserved in each topic; where one refuses, give it back and raise why."""
        intents = [each for each in found if not isinstance(each, StoreError)]
        if (error := clearest_of(found)) is not None:
            await each_of(intents, self._finisher.release, StoreError)
            raise error
        return intents


def _name(once: IdempotencyKey) -> str:
    return f"~once-{hashlib.sha256(once.key.encode()).hexdigest()[:40]}"


_RESERVATION = re.compile(r"~[0-9a-f]{32}")


class _Divided(NamedTuple):
    """The parts of an intent that get events, with these, and those that get none."""

    used: Intent
    spare: Intent


class RadosAnnouncing(RadosFanOut):
    """Ingest, events for several topics, and their two phases; see `ports.Announcing`."""

    async def announce(self, rooms: Sequence[TopicRooms], announcement: bytes) -> str:
        """Reserve room in all topics or in none, and keep the announcement."""
        name = f"~{secrets.token_hex(16)}"

        async def reserve(each: TopicRooms) -> Intent:
            return await self._reserve(each.topic, room_demands(each.topic, each.rooms), each.rooms)

        intents = await self._all_or_none(await each_of(rooms, reserve, StoreError))
        envelope = FanOutEnvelope(FanOutEnvelope.VERSION, now_ms(), intents, repeated=True, announcement=announcement)
        await self._prepare(self.fan_outs, name, envelope)
        return name

    async def announced(self, reservation: str, digest: bytes) -> bytes | FannedOut:
        """The announcement that was kept, or the answer of its commit when every topic has its copies."""
        known = await self._announced(reservation)
        if known.is_committed:
            return await self._answered(reservation, known, digest)
        return known.intent.announcement

    async def commit_announced(
        self, reservation: str, copies: Sequence[TopicCopies], answer: FannedOut, digest: bytes
    ) -> FannedOut:
        """Store the copies in the room that was reserved for them; returns when all are durable."""
        for _ in range(CHANGE_TRIES):
            known = await self._announced(reservation)
            if known.is_committed:
                return await self._answered(reservation, known, digest)
            divided = _divided(reservation, known.intent, copies)
            used = {each.used.topic_name: each.used for each in divided if each.used.parts}
            envelope = msgspec.structs.replace(
                known.intent, intents=list(used.values()), decided_ms=now_ms(), digest=digest, accepted=answer.accepted,
                unmatched=answer.unmatched, topics=dict(answer.topics), announcement=b"",
            )  # fmt: skip
            needed = [(each.topic, used[each.topic.name]) for each in copies if each.topic.name in used]
            with contextlib.suppress(MismatchError, MissingError):  # another caller changed it first: look again
                await self._check_open(self.fan_outs, reservation, known.intent, needed)
                spare = msgspec.structs.replace(envelope, intents=[each.spare for each in divided])
                await self._commit_prepared(self.fan_outs, reservation, envelope, spare)
                return answer
        raise StoreUnavailable(f"reservation {reservation} keeps changing")

    async def abort_announced(self, reservation: str) -> None:
        """Give all room back."""
        await self._abort(self.fan_outs, reservation, lambda: self._found(reservation))

    async def _announced(self, reservation: str) -> LoggedIntent[FanOutEnvelope]:
        """The reservation, which is not aborted."""
        known = await self._found(reservation)
        if known.state is IntentState.ABORTED:
            raise ReservationExpired(f"reservation {reservation} was aborted, or not committed in time")
        return known

    async def _found(self, reservation: str) -> LoggedIntent[FanOutEnvelope]:
        known = await self.fan_outs.intents.load(reservation) if _RESERVATION.fullmatch(reservation) else None
        if known is None:
            raise ReservationUnknown(f"there is no reservation {reservation!r}")
        return known

    async def _answered(self, reservation: str, known: LoggedIntent[FanOutEnvelope], digest: bytes) -> FannedOut:
        """The answer that a commit had before, once it is completed."""
        if known.intent.digest != digest:
            raise OnceConflict(f"other events were committed to reservation {reservation} before")
        return await self._completed(reservation, known)


def _divided(reservation: str, envelope: FanOutEnvelope, copies: Sequence[TopicCopies]) -> list[_Divided]:
    """Each topic's intent, divided by the events that it gets. Raises where some have no room."""
    by_id = {each.topic.id: each.events for each in copies}
    found = [_of_topic(intent, by_id.pop(intent.topic_id, ())) for intent in envelope.intents]
    if by_id:
        raise ReservationMismatch(f"reservation {reservation} has no room in some of the topics")
    return found


def _of_topic(intent: Intent, events: Sequence[RoutedEvent]) -> _Divided:
    """The payloads go into the parts whose rooms the events take. A part with any is committed, the rest of its room
    with it; others are given back."""
    slots: defaultdict[int, list[int]] = defaultdict(list)
    for place, part in enumerate(intent.parts):  # those of a shard have its rooms in order
        slots[part.shard] += [place] * part.entries
    of_shard = {shard: iter(each) for shard, each in slots.items()}
    places = [next(of_shard[room.shard]) for room in intent.rooms]
    payloads: defaultdict[int, list[bytes]] = defaultdict(list)
    for room, event in zip(rooms_taken(intent.rooms, events), events, strict=True):
        payloads[places[room]].append(event.payload)
    used = [
        msgspec.structs.replace(part, payloads=payloads[place])
        for place, part in enumerate(intent.parts)
        if place in payloads
    ]
    spare = [part for place, part in enumerate(intent.parts) if place not in payloads]
    return _Divided(
        msgspec.structs.replace(intent.committed(used, b""), rooms=[]),
        msgspec.structs.replace(intent, parts=spare, rooms=[]),
    )
