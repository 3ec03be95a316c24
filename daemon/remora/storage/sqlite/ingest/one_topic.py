"""Storing events in topics of remora's own.

Everything that a request asks for is one transaction of its topic's file: all events of all shards with what makes the
request recognisable, or nothing.
"""

from __future__ import annotations

import logging
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from remora.codec.sequence import with_number
from remora.codec.trace_context import context_of
from remora.model.errors import (
    OnceConflict,
    ReservationExceeded,
    ReservationExpired,
    ReservationMismatch,
    ReservationUnknown,
    StoreDamaged,
    TopicClosed,
)
from remora.model.ingest import RESERVATION_AGE_S, IdempotencyKey, PublishResult, ReservedRoom, RoutedEvent
from remora.model.topic import Topic
from remora.model.words import several
from remora.ports.stages import NO_METER, StageMeter
from remora.ports.tracing import NO_TRACER, Tracer
from remora.storage.sqlite.files.open_files import Files
from remora.storage.sqlite.ingest.group_commit import GroupCommit, Wants
from remora.storage.sqlite.tables.soundness import unpacked
from remora.storage.sqlite.tables.write_batch import AGE, QueueUpdate, RoomNeed, TopicRow, WriteBatch

_log = logging.getLogger(__name__)

_RESERVATION = f"""
SELECT number, id, state, rooms, events, digest, generation, {AGE} FROM reservations WHERE id = :id AND topic = :topic
"""  # noqa: S608 - a constant
_RESERVE = """
INSERT INTO reservations (id, topic, state, rooms, events, generation, boot, since_ns)
VALUES (:id, :topic, 'open', :rooms, :events, :generation, :boot, :now)
"""
_END = """
UPDATE reservations SET state = :state, digest = :digest, rooms = x'', boot = :boot, since_ns = :now
WHERE number = :number
"""
_STALE = f"""
SELECT number, id, rooms, generation FROM reservations
WHERE topic = :topic AND state = 'open' AND {AGE} > :older_than
"""  # noqa: S608 - a constant
_EXPIRE = """
UPDATE reservations SET state = 'expired', rooms = x'', boot = :boot, since_ns = :now
WHERE number IN (SELECT value FROM json_each(:numbers))
"""

_OPEN = "SELECT id, rooms, generation FROM reservations WHERE topic = :topic AND state = 'open'"
_OF_SINGLE_QUEUES = """
UPDATE queues SET (reservations, reserved_entries, reserved_bytes) = (
    SELECT count(*), ifnull(sum(entries), 0), ifnull(sum(nbytes), 0) FROM queue_reservations WHERE queue = queues.id
) WHERE topic = :topic
"""

Load = dict[int, tuple[list[bytes], RoomNeed]]
"""What goes into each shard, in order, and its room."""

_decode_rooms = msgspec.msgpack.Decoder(list[ReservedRoom]).decode


class SqliteIngest:
    """Publishes, reserves, commits and aborts; see `ports.Ingest`. Requests for several topics are in `fan_out.py`."""

    def __init__(self, files: Files, tracer: Tracer = NO_TRACER, meter: StageMeter = NO_METER) -> None:
        self._files = files
        self._commits = GroupCommit(tracer, meter)

    async def publish(
        self, topic: Topic, events: Sequence[RoutedEvent], once: IdempotencyKey | None = None
    ) -> PublishResult:
        """Store events; returns when they are durable."""
        request, wants = _publishing(topic, events, once)
        return await self._commits.submit(self._files.file_of(topic.name), request, wants)

    def publish_soon(
        self,
        topic: Topic,
        events: Sequence[RoutedEvent],
        once: IdempotencyKey | None,
        done: Callable[[PublishResult | Exception], None],
    ) -> None:
        """The same, without a coroutine for each request; see `ports.PublishSoon`."""
        request, wants = _publishing(topic, events, once)
        self._commits.submit_soon(self._files.file_of(topic.name), request, wants, done)

    async def reserve(self, topic: Topic, rooms: Sequence[ReservedRoom]) -> str:
        """Reserve room in all shards or in none, and answer the reservation's id."""
        reservation = f"{topic.name}.{secrets.token_hex(16)}"
        request = ReserveRoom(topic, reservation, _needs(topic, rooms), msgspec.msgpack.encode(rooms), len(rooms))
        return await self._commits.submit(self._files.file_of(topic.name), request, Wants(len(request.rooms)))

    async def commit(
        self, topic: Topic, reservation: str, events: Sequence[RoutedEvent], digest: bytes
    ) -> PublishResult:
        """Store exactly the events that room was reserved for, and end the reservation."""
        return await self._commits.submit(
            self._files.file_of(topic.name),
            _Commit(topic, reservation, events, digest),
            Wants(
                sum(len(each.payload) for each in events),
                [topic.shard(number) for number in {each.shard for each in events}],
                context_of(events[0].payload) if events else b"",
            ),
        )

    async def abort(self, topic: Topic, reservation: str) -> None:
        """Give the room back."""
        await self._commits.submit(self._files.file_of(topic.name), _Abort(topic, reservation))


def expire(connection: sqlite3.Connection, topic_id: int, older_than_ns: int) -> None:
    """Within a transaction, end the reservations in a topic that are older than this, and give their room back."""
    batch = WriteBatch(connection)
    stale = connection.execute(_STALE, batch.clock | {"topic": topic_id, "older_than": older_than_ns}).fetchall()
    if not stale:
        return
    topic, are_damaged = batch.topic_of_id(topic_id), False
    for _, name, packed, generation in stale:
        try:
            release_rooms(batch, topic, generation, sums(rooms_of(connection, name, packed)))
        except StoreDamaged as exc:
            are_damaged = True
            _log.error("reservation %s is given up, and its topic's room is counted anew: %s", name, exc)
    numbers = msgspec.json.encode([number for number, *_ in stale]).decode()
    connection.execute(_EXPIRE, batch.clock | {"numbers": numbers})
    batch.flush()
    if are_damaged:
        _count_anew(connection, topic)


# ------------------------------------------------------------------------------------------- requests


def _publishing(topic: Topic, events: Sequence[RoutedEvent], once: IdempotencyKey | None) -> tuple[_Publish, Wants]:
    """The request that stores these events, and what it wants."""
    load = loaded(topic, events)
    wants = Wants(
        sum([need.nbytes for _, need in load.values()]),
        [topic.shard(number) for number in load],
        context_of(events[0].payload) if events else b"",
    )
    return _Publish(topic, load, events, once), wants


@dataclass(slots=True)
class _Publish:
    topic: Topic
    load: Load
    events: Sequence[RoutedEvent]
    once: IdempotencyKey | None

    def __call__(self, batch: WriteBatch) -> PublishResult:
        row = batch.topic(self.topic)
        if self.once and (before := batch.recall(row, self.once)):
            return before
        check_open(row, self.topic)
        queues = batch.with_room(self.topic, {number: need for number, (_, need) in self.load.items()})
        append(batch, row, queues, self.load, self.events)
        if self.once:
            batch.remember(row, self.once, len(self.events))
        return PublishResult(len(self.events))


@dataclass(frozen=True, slots=True)
class ReserveRoom:
    topic: Topic
    id: str
    needs: dict[int, RoomNeed]
    rooms: bytes
    events: int

    def __call__(self, batch: WriteBatch) -> str:
        row = batch.topic(self.topic)
        check_open(row, self.topic)
        queues = batch.with_room(self.topic, self.needs)
        for number, need in self.needs.items():
            queues[number].reserve(row.room(need))
        values = {"id": self.id, "topic": row.id, "rooms": self.rooms, "events": self.events}
        values["generation"] = row.generation
        batch.connection.execute(_RESERVE, batch.clock | values)
        # More is forgotten than is made, so that what is old never piles up.
        batch.forget("reservations")
        return self.id


@dataclass(frozen=True, slots=True)
class _Commit:
    topic: Topic
    id: str
    events: Sequence[RoutedEvent]
    digest: bytes

    def __call__(self, batch: WriteBatch) -> PublishResult:
        row = batch.topic(self.topic)
        found = ReservationRow.find(batch, row, self.id)
        if found.state == "committed":
            if found.digest != self.digest:
                raise OnceConflict(f"other events were committed to reservation {self.id} before")
            return PublishResult(found.events, repeated=True)
        if found.state != "open" or found.age_ns > RESERVATION_AGE_S * 1e9:
            raise ReservationExpired(f"reservation {self.id} was aborted, or not committed in time")
        rooms = found.reserved(batch)
        _check_events(rooms, self.events, has_moved=found.generation != self.topic.generation)
        batch.open_topic(self.topic)
        load = loaded(self.topic, self.events)
        queues = batch.queues(row, load)
        release_rooms(batch, row, found.generation, sums(rooms))
        # What was reserved is room of the topic and of no place: where the layout changed meanwhile nobody asks for
        # room again, so that a commit never fails for want of it.
        append(batch, row, queues, load, self.events)
        found.end(batch, "committed", self.digest)
        return PublishResult(len(self.events))


@dataclass(frozen=True, slots=True)
class _Abort:
    topic: Topic
    id: str

    def __call__(self, batch: WriteBatch) -> None:
        row = batch.topic(self.topic)
        found = ReservationRow.find(batch, row, self.id)
        if found.state == "committed":
            raise OnceConflict(f"reservation {self.id} was committed before")
        if found.state == "open":
            release_rooms(batch, row, found.generation, sums(found.reserved(batch)))
            found.end(batch, "aborted")


@dataclass(frozen=True, slots=True)
class ReservationRow:
    """What is known of a reservation."""

    number: int
    id: str
    state: str
    rooms: bytes
    events: int
    digest: bytes
    generation: int
    age_ns: int

    @classmethod
    def find(cls, batch: WriteBatch, topic: TopicRow, reservation: str) -> ReservationRow:
        if (found := find_reservation(batch, topic, reservation)) is None:
            raise ReservationUnknown(f"there is no reservation {reservation!r}")
        return found

    def reserved(self, batch: WriteBatch) -> Sequence[ReservedRoom]:
        """The room that it keeps. Raises StoreDamaged: expiry gives it up then."""
        return rooms_of(batch.connection, self.id, self.rooms)

    def end(self, batch: WriteBatch, state: str, digest: bytes = b"") -> None:
        batch.connection.execute(_END, batch.clock | {"number": self.number, "state": state, "digest": digest})


def find_reservation(batch: WriteBatch, topic: TopicRow, reservation: str) -> ReservationRow | None:
    """What is known of a reservation in a topic; None where there is none."""
    values = batch.clock | {"id": reservation, "topic": topic.id}
    row = batch.connection.execute(_RESERVATION, values).fetchone()
    return ReservationRow(*row) if row else None


# ------------------------------------------------------------------------------------------- figures


def rooms_of(connection: sqlite3.Connection, reservation: str, packed: bytes) -> Sequence[ReservedRoom]:
    """The room that a reservation keeps. Raises StoreDamaged."""
    return unpacked(connection, _decode_rooms, packed, "reservations", reservation)


def _count_anew(connection: sqlite3.Connection, topic: TopicRow) -> None:
    """Have a topic's queues count the room of the open reservations that can be read, of both kinds."""
    connection.execute(_OF_SINGLE_QUEUES, {"topic": topic.id})
    batch = WriteBatch(connection)
    for name, packed, generation in connection.execute(_OPEN, {"topic": topic.id}).fetchall():
        with suppress(StoreDamaged):  # it expires, too
            needs = sums(rooms_of(connection, name, packed))
            queues = batch.queues(topic, needs, generation)
            for number in needs.keys() & queues.keys():
                queues[number].reserve(topic.room(needs[number]))
    batch.flush()


def check_open(row: TopicRow, topic: Topic) -> None:
    """Raise TopicClosed where a topic takes no new events."""
    if row.closed:
        raise TopicClosed(f"topic {topic.name} is closed: it takes no new events")


def _check_events(rooms: Sequence[ReservedRoom], events: Sequence[RoutedEvent], *, has_moved: bool) -> None:
    """Refuse a commit of other events than room was reserved for; where the topic has moved since, in other shards."""
    if len(rooms) != len(events):
        raise ReservationMismatch(f"room was reserved for {several(len(rooms), 'event')}, not for {len(events)}")
    for i, (room, event) in enumerate(zip(rooms, events, strict=True)):
        if room.key != event.key or (room.shard != event.shard and not has_moved):
            reserved, given = (each.decode(errors="replace") for each in (room.key, event.key))
            raise ReservationMismatch(f"event {i} is of {given!r}, but room was reserved for one of {reserved!r}")
        if room.nbytes < len(event.payload):
            raise ReservationExceeded(f"event {i} has {len(event.payload)} bytes, but {room.nbytes} were reserved")


def loaded(topic: Topic, events: Iterable[RoutedEvent]) -> Load:
    """What goes into each shard, in order. ValueError for shards that the topic does not have."""
    payloads: dict[int, list[bytes]] = {}
    for shard, _, payload in events:
        if shard in payloads:
            payloads[shard].append(payload)
        else:
            payloads[shard] = [payload]
    _check_shards(topic, payloads)
    return {number: (each, RoomNeed(len(each), sum(map(len, each)))) for number, each in payloads.items()}


def _needs(topic: Topic, rooms: Sequence[ReservedRoom]) -> dict[int, RoomNeed]:
    """How much room each shard is asked for. ValueError for shards that the topic does not have."""
    needs = sums(rooms)
    _check_shards(topic, needs)
    if any(room.nbytes < 0 for room in rooms):
        raise ValueError("no event has less than no bytes")
    return needs


def _check_shards(topic: Topic, numbers: Iterable[int]) -> None:
    for number in numbers:
        if not 0 <= number < topic.shards:
            raise ValueError(f"topic {topic.name} has no shard {number}")


def sums(rooms: Iterable[ReservedRoom]) -> dict[int, RoomNeed]:
    sums: dict[int, RoomNeed] = {}
    for shard, _, nbytes in rooms:
        entries, total = sums.get(shard, (0, 0))
        sums[shard] = RoomNeed(entries + 1, total + nbytes)
    return sums


def release_rooms(batch: WriteBatch, topic: TopicRow, generation: int, needs: dict[int, RoomNeed]) -> None:
    """End a reservation in the queues of the layout that it was made in, as far as these are there."""
    queues = batch.queues(topic, needs, generation)
    for number, need in needs.items():
        if number in queues:
            queues[number].release(topic.room(need))


def append(
    batch: WriteBatch, topic: TopicRow, queues: dict[int, QueueUpdate], load: Load, events: Sequence[RoutedEvent]
) -> None:
    """Add events, whose load this is, behind the last entries; numbered in their order if the topic has a sequence."""
    if topic.sequence is not None:
        numbered: dict[int, list[bytes]] = {number: [] for number in load}
        for number, event in zip(batch.take_numbers(topic, len(events)), events, strict=True):
            numbered[event.shard].append(with_number(event.payload, number))
        load = {number: (payloads, topic.room(load[number][1])) for number, payloads in numbered.items()}
    for number, (payloads, need) in load.items():
        queues[number].append(payloads, need)
