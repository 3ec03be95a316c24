"""The two phases of events that are sent without a topic.

A reservation has no event yet. So it keeps room in every topic that an announced event may go to, and the notifications
as they are then. A commit stores the copies that the events turn out to need, and gives the other room back.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence

from remora.codec.event_copies import Announcement, decode_announcement, encode_announcement
from remora.codec.s3_events import EventPart, Keyed
from remora.codec.speedups import shards
from remora.model.errors import OnceConflict, ReservationExceeded, ReservationMismatch, TopicUnknown
from remora.model.fan_out import FannedOut, TopicCopies, TopicRooms
from remora.model.ingest import ReservedRoom
from remora.model.topic import Topic
from remora.policy.ingest.matcher import Matcher
from remora.policy.shaping.rates import Cost
from remora.ports.producer import Announcing
from remora.servers.http.begun import in_task
from remora.servers.ingest.body import Body, now
from remora.servers.ingest.desk import Desk, while_moving
from remora.servers.ingest.distribution import (
    MOST_COPIES,
    Charges,
    Matching,
    by_definitions,
    copies_for,
    tell_kept_back,
    tell_stored,
    tell_taken,
    told_repeated,
)
from remora.servers.ingest.limits import Receipt
from remora.servers.ingest.matches import RequestMatcher
from remora.servers.ingest.problems import (
    DECIDED,
    FORBIDDEN,
    NO_TOPIC,
    TOO_LARGE,
    UNMATCHED,
    RefusedRequest,
)
from remora.servers.ingest.request_reader import ToCome
from remora.servers.tokens import SenderGrant

AT_ONCE_S = 0.002
"""After so long the requests of others have their turn, before further events are matched."""

LEAST_ENTRY_BYTES = 128
"""No entry is smaller: so much each copy counts at least, or there could be any number of them."""

_MOST_BUCKETS = 64
"""Buckets whose notifications are remembered while events are matched."""


class AnnouncedEvents:
    """Reserves, commits and aborts for one request."""

    def __init__(self, desk: Desk, sender: SenderGrant) -> None:
        self._store: Announcing = desk.store.ingest
        self._desk = desk
        self._sender = sender

    async def reserve(self, events: Sequence[ToCome], receipt: Receipt) -> tuple[str, dict[str, int]]:
        """Reserve room for events to come; the reservation, and how many copies there is room for by topic."""
        for each in events:
            bucket = each.expected.bucket.decode(errors="surrogateescape")
            if not self._sender.allows_bucket(bucket):
                self._desk.telemetry.buckets.refused(bucket, self._sender.name, time.time())
                raise RefusedRequest(FORBIDDEN, f"this token may not send events of bucket {bucket}")
        return await by_definitions(self._desk, lambda matcher: self._reserve(events, matcher, receipt))

    async def _reserve(
        self, events: Sequence[ToCome], matcher: Matcher, receipt: Receipt
    ) -> tuple[str, dict[str, int]]:
        wanted, counting = await _rooms(events, matcher, self._desk.settings.unmatched == "refuse", self._most_bytes)
        known = self._desk.topics
        topics = [known.known(name) or await known.look_up(name) for name in sorted(wanted)]
        await in_task()
        rooms = [_rooms_in(each, wanted[each.name], events) for each in topics]
        places = {place: kept for kept, place in enumerate(counting)}
        announcement = Announcement(
            tuple(matcher.notifications[place] for place in counting),
            [(each.key, each.nbytes) for each in events],
            {name: [(number, places[place]) for number, place in of] for name, of in wanted.items()},
            {each.name: each.id for each in topics},
        )
        with Charges(self._desk) as charges:
            for each in rooms:
                charges.add(each.topic.name, [room.nbytes for room in each.rooms])
            reservation = await self._store.announce(rooms, encode_announcement(announcement))
            charges.reserve(reservation, receipt)
        return reservation, {each.topic.name: len(each.rooms) for each in rooms}

    async def commit(self, reservation: str, body: Body, digest: bytes) -> FannedOut:
        """Store the copies that the events need."""
        try:
            found = await self._store.announced(reservation, digest)
        except OnceConflict as exc:
            raise RefusedRequest(DECIDED, str(exc)) from exc
        if isinstance(found, FannedOut):
            return told_repeated(self._desk.telemetry, found)
        kept = decode_announcement(found)

        async def once() -> FannedOut:
            try:
                return await self._commit(reservation, kept, body, digest)
            except ReservationExceeded:
                if not body.context:
                    raise
            # The room was reserved for the events alone: the trace context does without.
            return await self._commit(reservation, kept, body._replace(context=b""), digest)

        try:
            return await while_moving(once)
        except TopicUnknown:  # it was removed behind the look at it: nothing was done, and the next look finds it gone
            return await while_moving(once)

    async def _commit(self, reservation: str, kept: Announcement, body: Body, digest: bytes) -> FannedOut:
        found = _MatchingAnnounced(kept, self._sender, self._most_bytes)
        try:
            await found.take_all(body, reservation.encode(), self._desk.settings.max_events)
        finally:
            tell_kept_back(self._desk.telemetry, found)
        if found.number < len(kept.events):
            raise ReservationMismatch(f"room was reserved for {len(kept.events)} events, not for {found.number}")
        created, copies = now(), list[TopicCopies]()
        for name, matches in found.by_topic.items():
            if (topic := await self._still(name, kept)) is None:
                continue  # what it would get went with it
            of_topic = copies_for(topic, matches, created, body.context)
            for number, event in zip(found.numbers[name], of_topic.events, strict=True):
                if len(event.payload) > kept.events[number][1]:
                    raise ReservationExceeded(
                        f"event {number} has {len(event.payload)} bytes in {name}, "
                        f"but {kept.events[number][1]} were reserved"
                    )
            copies.append(of_topic)
        answer = FannedOut(found.accepted, found.unmatched, {each.topic.name: len(each.events) for each in copies})
        try:
            stored = await self._store.commit_announced(reservation, copies, answer, digest)
        except OnceConflict as exc:
            raise RefusedRequest(DECIDED, str(exc)) from exc
        used = {
            each.topic.name: Cost(sum([len(event.payload) for event in each.events]), len(each.events))
            for each in copies
        }
        self._desk.limits.ended(reservation, Cost(len(body.raw), found.number), used)
        if stored.repeated:
            return told_repeated(self._desk.telemetry, stored)
        copied = ((name, cost.events, cost.bytes) for name, cost in used.items())
        tell_taken(self._desk.telemetry, copied, found.dropped)
        tell_stored(self._desk.telemetry, found)
        return stored

    async def abort(self, reservation: str) -> None:
        """Give all room back."""
        try:
            await self._store.abort_announced(reservation)
        except OnceConflict as exc:
            raise RefusedRequest(DECIDED, str(exc)) from exc
        self._desk.limits.ended(reservation, Cost())

    async def _still(self, name: str, kept: Announcement) -> Topic | None:
        """The topic that room was reserved in, as it is now; None where it is gone."""
        self._desk.topics.forget(name)
        try:
            topic = await self._desk.topics.get(name)
        except RefusedRequest as exc:
            if exc.kind is not NO_TOPIC:
                raise
            return None
        return topic if topic.id == kept.ids[name] else None

    @property
    def _most_bytes(self) -> int:
        return MOST_COPIES * self._desk.settings.max_request_bytes


class _MatchingAnnounced(Matching):
    """Matches the events of a commit by the notifications of its reservation. `numbers` has those of the events that
    each topic gets, in the order of `by_topic`; `number` is that of the next event."""

    def __init__(self, kept: Announcement, sender: SenderGrant, most_bytes: int) -> None:
        super().__init__(RequestMatcher(kept.notifications), sender, most_bytes)
        self.numbers: defaultdict[str, list[int]] = defaultdict(list)
        self._kept = kept
        self._rooms = {name: {tuple(each) for each in of} for name, of in kept.rooms.items()}
        self.number = 0

    def take(self, part: EventPart) -> None:
        """Match some events. Raises ReservationMismatch for others than were announced."""
        for number, (key, _) in enumerate(part.events, self.number):
            if number >= len(self._kept.events):
                raise ReservationMismatch(f"room was reserved for {number} events, and there are more")
            if (wanted := self._kept.events[number][0]) != key:
                reserved, given = (each.decode(errors="replace") for each in (wanted, key))
                raise ReservationMismatch(
                    f"event {number} is of {given!r}, but room was reserved for one of {reserved!r}"
                )
        super().take(part)
        self.number += len(part.events)

    def _send(self, events: Sequence[Keyed], places: Sequence[Sequence[int]]) -> None:
        for number, some in enumerate(places, self.number):
            for place in some:
                notification = self._kept.notifications[place]
                for topic in notification.topics:
                    if (number, place) not in self._rooms.get(topic, ()):
                        raise ReservationMismatch(
                            f"event {number} matches notification {notification.id}, and was announced as one that "
                            f"does not: topic {topic} has no room for it"
                        )
                    self.numbers[topic].append(number)
        super()._send(events, places)


async def _rooms(
    events: Sequence[ToCome], matcher: Matcher, is_refused: bool, most_bytes: int
) -> tuple[dict[str, list[tuple[int, int]]], Sequence[int]]:
    """By topic the number of each event that may go there, with the place of the notification that may send it; and the
    places of all notifications that take a bucket of theirs. Others get their turn meanwhile.

    Raises RefusedRequest where these copies are too large together.
    """
    found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    counting: set[int] = set()
    takers: dict[bytes, Sequence[int]] = {}
    loop = asyncio.get_running_loop()
    until = loop.time() + AT_ONCE_S
    for number, each in enumerate(events):
        if loop.time() > until:
            await in_task()
            await asyncio.sleep(0)
            until = loop.time() + AT_ONCE_S
        bucket = each.expected.bucket
        if (of_bucket := takers.get(bucket)) is None:
            if len(takers) == _MOST_BUCKETS:
                takers.clear()
            of_bucket = takers[bucket] = matcher.takers(bucket.decode(errors="surrogateescape"))
            counting.update(of_bucket)
        places = matcher.possible(each.expected, of_bucket)
        if is_refused and not places:
            shown = bucket.decode(errors="replace")
            raise RefusedRequest(
                UNMATCHED, f"no event of bucket {shown} like this matches a notification", record=number
            )
        for place in places:
            for topic in matcher.notifications[place].topics:
                found[topic].append((number, place))
                most_bytes -= max(each.nbytes, LEAST_ENTRY_BYTES)
        if most_bytes < 0:
            raise RefusedRequest(
                TOO_LARGE, "the copies that notifications may make of these events are too large together"
            )
    return found, sorted(counting)


def _rooms_in(topic: Topic, wanted: Sequence[tuple[int, int]], events: Sequence[ToCome]) -> TopicRooms:
    keys = [events[number].key for number, _ in wanted]
    numbers = shards(keys, topic.shards)
    return TopicRooms(
        topic,
        [
            ReservedRoom(shard, key, events[number].nbytes)
            for shard, key, (number, _) in zip(numbers, keys, wanted, strict=True)
        ],
    )
