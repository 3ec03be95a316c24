"""The two phases of events for several topics: room in each that they may go to, and then those copies that do.

A reservation is an envelope that is prepared (`envelope.py`): one object with an intent for each topic, the rooms of
each, and what was announced. The commit leaves in it the parts that get events, with their payloads. So it is committed
by one operation, and completed, recovered, repeated and deleted as any other envelope, in any process. The process that
commits gives back the room that no event takes; should it stop, that room expires as all room does.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from remora.model.errors import (
    OnceConflict,
    ReservationExpired,
    ReservationMismatch,
    ReservationUnknown,
    StoreUnavailable,
)
from remora.model.ingest import FannedOut, RoutedEvent, TopicCopies, TopicRooms
from remora.policy.reserved_rooms import rooms_taken
from remora.storage.rados.envelope import FanOutEnvelope
from remora.storage.rados.fan_out import RadosFanOut
from remora.storage.rados.ingest import CHANGE_TRIES, room_demands
from remora.storage.rados.intent_log import Intent, IntentState, LoggedIntent, now_ms
from remora.storage.rados.own_queues import each_of
from remora.storage.rados.refusals import MismatchError, MissingError

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

        intents = await self._all_or_none(await each_of(rooms, reserve))
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
