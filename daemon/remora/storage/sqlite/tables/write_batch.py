"""The write batch of a transaction: read at its start, decided on in memory, written at its end.

The driver lets go of the interpreter for each row that it steps over, and gets it back from a busy event loop only
after up to milliseconds. So a transaction's cost is how often it steps, more than how much it writes: the state of
all queues of a topic comes as one row, entries go in by hundreds, and all queues are updated by one statement.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import msgspec

from remora.codec.sequence import NUMBER_BYTES
from remora.model.errors import OnceConflict, QueueFull, TopicMoved, TopicUnknown
from remora.model.ingest import IdempotencyKey, PublishResult
from remora.model.shard import Shard
from remora.model.topic import Topic, number_of, own_topic_name
from remora.model.words import several
from remora.policy.ingest.group_commit import settles_at_once
from remora.storage.sqlite.tables import recent
from remora.storage.sqlite.tables.clock import boot_id, now_ns
from remora.storage.sqlite.tables.schema import END_OF_QUEUE, ENTRY_OVERHEAD, PLACES, insert
from remora.storage.sqlite.tables.soundness import row_damaged, typed, unpacked

REMEMBERED_NS = 11 * 60 * 1_000_000_000
"""How long the outcome of a request is kept. The ten minutes that are promised count from the answer, these from the
time before the sync."""

AGE = "(CASE boot WHEN :boot THEN :now - since_ns ELSE :now END)"
"""How old a row is, in ns. What an earlier start of the host has left is at least as old as this one."""

_FEW_SHARDS = 64

_TOPIC = "SELECT id, uid, shards, closed, sequence, generation FROM topics WHERE name = ?"
_TOPIC_OF_ID = "SELECT id, uid, shards, closed, sequence, generation FROM topics WHERE id = ?"
_SET_SEQUENCE = "UPDATE topics SET sequence = ? WHERE id = ?"
_QUEUES = """
SELECT json_group_array(json_array(number, id, tail, used_bytes, reservations, reserved_entries, reserved_bytes,
                                   capacity_bytes, head, settled))
FROM queues WHERE topic = ? AND number IN (SELECT value FROM json_each(?))
"""
_decode_queues = msgspec.json.Decoder(list[tuple[int, int, int, int, int, int, int, int, int, int]]).decode
_UPDATE = """
UPDATE queues SET tail = new.tail, used_bytes = new.used_bytes, reservations = new.reservations,
    reserved_entries = new.reserved_entries, reserved_bytes = new.reserved_bytes,
    settled = new.settled
FROM (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS tail,
             json_extract(value, '$[2]') AS used_bytes, json_extract(value, '$[3]') AS reservations,
             json_extract(value, '$[4]') AS reserved_entries, json_extract(value, '$[5]') AS reserved_bytes,
             json_extract(value, '$[6]') AS settled
      FROM json_each(?)) AS new
WHERE queues.id = new.id
"""
_MOVE_FRONTS = """
UPDATE queues SET head = json_extract(new.value, '$[0]'), used_bytes = used_bytes - json_extract(new.value, '$[1]'),
    delivered = delivered + json_extract(new.value, '$[2]'),
    dead_lettered = dead_lettered + json_extract(new.value, '$[3]'),
    expired = expired + json_extract(new.value, '$[4]'), dropped = dropped + json_extract(new.value, '$[5]'),
    removed_elsewhere = removed_elsewhere + json_extract(new.value, '$[6]')
FROM json_each(?) AS new WHERE queues.id = CAST(new.key AS INTEGER)
"""

_FORGET_ATTEMPTS = """
DELETE FROM attempts WHERE queue IN (
    SELECT queue FROM json_each(?) AS new JOIN attempts ON queue = CAST(new.key AS INTEGER) WHERE last < new.value
)
"""
_RECALL = "SELECT digest, events FROM once WHERE topic = ? AND key = ?"
FORGET = {
    table: f"""
DELETE FROM {table} WHERE number IN (SELECT number FROM {table} WHERE {ended} ORDER BY number LIMIT :most)
AND {AGE} > :keep
"""  # noqa: S608 - constants
    for table, ended in {
        "once": "true",
        "reservations": "state <> 'open'",
        "decisions": "length(parts) = 0",
        "announcements": "true",
    }.items()
}
"""Requests that would not be recognised any longer, the oldest ones, by table."""

_FORGOTTEN_AT_ONCE = 4096
"""On a full disk. Else each request forgets some older ones, which it cannot where it finds no room itself."""


class RoomNeed(NamedTuple):
    """What some entries take of a queue's room."""

    entries: int
    nbytes: int

    @property
    def cost(self) -> int:
        """Bytes, with the overhead of each entry."""
        return self.nbytes + self.entries * ENTRY_OVERHEAD


class TopicRow(NamedTuple):
    """A topic as it is at the start of this transaction; `sequence` is None for one that numbers no events.

    `shards` are those of the layout that takes events, which is of this `generation`.
    """

    id: int
    uid: str
    shards: int
    closed: int
    sequence: int | None
    generation: int

    def room(self, need: RoomNeed) -> RoomNeed:
        """What so much takes of the topic's queues: with the number of each entry, where they have one."""
        if self.sequence is None:
            return need
        return RoomNeed(need.entries, need.nbytes + NUMBER_BYTES * need.entries)


@dataclass(slots=True)
class QueueUpdate:
    """A queue as the transaction leaves it, with the payloads that `flush` appends and their bytes."""

    id: int
    tail: int
    used_bytes: int
    reservations: int
    reserved_entries: int
    reserved_bytes: int
    capacity_bytes: int
    head: int
    settled: int
    payloads: list[bytes] = field(default_factory=list)
    nbytes: int = 0
    is_changed: bool = False

    def has_room(self, need: RoomNeed) -> bool:
        """Whether so much more fits, beside everything that is reserved."""
        taken = self.used_bytes + RoomNeed(self.reserved_entries, self.reserved_bytes).cost
        end = self.tail + len(self.payloads) + self.reserved_entries + need.entries
        return taken + need.cost <= self.capacity_bytes and end <= END_OF_QUEUE

    def append(self, payloads: Sequence[bytes], need: RoomNeed) -> None:
        """Add entries behind the last one."""
        self.payloads += payloads
        self.nbytes += need.nbytes
        self.used_bytes += need.cost
        self.is_changed = True

    def reserve(self, need: RoomNeed, sign: int = 1) -> None:
        """Keep room for one more reservation."""
        self.reservations += sign
        self.reserved_entries += sign * need.entries
        self.reserved_bytes += sign * need.nbytes
        self.is_changed = True

    def release(self, need: RoomNeed) -> None:
        """End a reservation."""
        self.reserve(need, -1)


class WriteBatch:
    """What the requests of one transaction change: topics and queues as read at its start, written by `flush`.

    The queues that entries arrive in are read together. As soon as a request needs another one, all are read of a topic
    that has few.
    """

    def __init__(self, connection: sqlite3.Connection, arrived: Collection[Shard] = ()) -> None:
        self.connection = connection
        self._arrived = arrived
        self.clock = _clock()
        self._topics: dict[str, TopicRow | None] = {}
        self._expected: dict[int, Sequence[int]] = {}
        self._few: dict[int, range] = {}
        self._queues: dict[tuple[int, int], dict[int, QueueUpdate]] = {}
        self._once: dict[tuple[int, str], tuple[bytes, int]] = {}
        self._sequences: dict[int, int] = {}
        self.fronts: dict[int, tuple[int, ...]] = {}
        """Of each queue whose front moves: where it moves to, the bytes that have left the queue, and the numbers of
        entries by what became of them."""

    def topic(self, topic: Topic) -> TopicRow:
        """The topic's row. Raises TopicUnknown when there is none, or when it is another topic's by now."""
        if topic.name not in self._topics:
            row = self.connection.execute(_TOPIC, (topic.name,)).fetchone()
            self._topics[topic.name] = typed(self.connection, TopicRow, row, "topics", topic.name) if row else None
            if row and row[2] > len(self._arrived):
                queues = [each.queue for each in self._arrived if own_topic_name(each.queue) == topic.name]
                self._expected[row[0]] = [number_of(queue) for queue in queues]
            if row and row[2] <= _FEW_SHARDS:  # requests that reserve or give back may need any of them
                self._few[row[0]] = range(row[2])
        found = self._topics[topic.name]
        if found is None or found.uid != topic.id:
            raise TopicUnknown(f"there is no topic {topic.name}" + (" of this id any more" if found else ""))
        return found

    def topic_of_id(self, topic_id: int) -> TopicRow:
        """The row of a topic that is there, by its id."""
        row = self.connection.execute(_TOPIC_OF_ID, (topic_id,)).fetchone()
        return typed(self.connection, TopicRow, row, "topics", str(topic_id))

    def open_topic(self, topic: Topic) -> TopicRow:
        """As `topic`. Raises TopicMoved where the topic's layout is another one than the caller knows."""
        found = self.topic(topic)
        if found.generation != topic.generation:
            shards = several(found.shards, "shard")
            raise TopicMoved(f"topic {topic.name} has {shards} by now, of generation {found.generation}")
        return found

    def queues(self, topic: TopicRow, numbers: Iterable[int], generation: int | None = None) -> dict[int, QueueUpdate]:
        """The queues that take events, at least those of these numbers. Raises StoreDamaged where one is not there.

        With a `generation` those of that layout, as far as they are there; nothing may be appended to a former one.
        """
        layout = topic.generation if generation is None else generation
        known = self._queues.setdefault((topic.id, layout), {})
        missing = {number for number in numbers if number not in known}
        if missing:
            more: Sequence[int] = ()
            if generation is None:
                more = self._expected.pop(topic.id, ()) or self._few.get(topic.id, ())
            first = layout * PLACES
            wanted = [*missing, *(number for number in more if number not in known)]
            (found,) = self.connection.execute(
                _QUEUES, (topic.id, _json([first + number for number in wanted] if first else wanted))
            ).fetchone()
            rows = unpacked(self.connection, _decode_queues, found, "queues", f"of topic {topic.id}")
            known.update((row[0] - first, QueueUpdate(*row[1:])) for row in rows)
            if generation is None and (lost := missing - known.keys()):
                place = f"of topic {topic.id}"
                raise row_damaged(self.connection, "queues", place, f"no queue has number {first + min(lost)}")
        return known

    def with_room(self, topic: Topic, needs: dict[int, RoomNeed]) -> dict[int, QueueUpdate]:
        """The queues of a topic. Raises QueueFull when one of those that are needed has not enough room.

        `needs` are without the numbers of events.
        """
        row = self.open_topic(topic)
        queues = self.queues(row, needs)
        for number, asked in needs.items():
            if not queues[number].has_room(need := row.room(asked)):
                raise QueueFull(f"{topic.shard(number)} has no room for {need.cost} more bytes")
        return queues

    def take_numbers(self, topic: TopicRow, count: int) -> range:
        """The next numbers of a topic that has a sequence. They are taken where the batch is written, else never."""
        assert topic.sequence is not None
        last = self._sequences.get(topic.id, topic.sequence)
        self._sequences[topic.id] = last + count
        return range(last + 1, last + count + 1)

    # ---------------------------------------------------------------------------------------------- once

    def recall(self, topic: TopicRow, once: IdempotencyKey) -> PublishResult | None:
        """The answer that this request had before, if it had. Raises OnceConflict."""
        key = (topic.id, once.key)
        found = self._once.get(key) or self.connection.execute(_RECALL, key).fetchone()
        if found is None:
            return None
        digest, events = found
        if digest != once.digest:
            raise OnceConflict("the idempotency key was used for another request before")
        return PublishResult(events, repeated=True)

    def remember(self, topic: TopicRow, once: IdempotencyKey, events: int) -> None:
        """Have a request recognised from now on."""
        self._once[topic.id, once.key] = (once.digest, events)

    # --------------------------------------------------------------------------------------------- flush

    def flush(self) -> None:
        """Write what was decided."""
        known = chain.from_iterable(each.values() for each in self._queues.values())
        touched = sorted((each for each in known if each.is_changed), key=lambda each: each.id)
        if added := [queue for queue in touched if queue.payloads]:
            self._append(added)
        for queue in touched:
            queue.is_changed = False
        if touched:
            self.connection.execute(_UPDATE, (_json([_figures(queue) for queue in touched]),))
        for topic_id, last in self._sequences.items():
            self.connection.execute(_SET_SEQUENCE, (last, topic_id))
        if self._once:
            self._keep()
        if self.fronts:
            self.connection.execute(_MOVE_FRONTS, (_json(self.fronts),))
            forget_attempts(self.connection, {queue: end for queue, (end, *_) in self.fronts.items()})
            self.fronts = {}

    def _append(self, queues: Sequence[QueueUpdate]) -> None:
        """Put new entries where they belong: into the log, or where they settle."""
        waiting_bytes, kept_bytes = sum([each.used_bytes for each in queues]), recent.LONGEST - recent.AT_ONCE
        logged: list[recent.Added] = []
        settled: list[recent.Added] = []
        kept_back = 0
        for queue in queues:
            part = (queue.id, queue.tail, queue.payloads)
            may_settle = settles_at_once(queue.nbytes, waiting_bytes, kept_bytes)
            is_settled = may_settle and max(queue.head, queue.settled) == queue.tail
            (settled if is_settled else logged).append(part)
            kept_back += queue.nbytes if may_settle and not is_settled else 0
            queue.tail += len(queue.payloads)
            if is_settled:
                queue.settled = queue.tail
            queue.payloads, queue.nbytes = [], 0
        if logged:
            recent.append(self.connection, logged, kept_back)
        if settled:
            recent.append_settled(self.connection, settled)

    def forget(self, table: str, most: int = 2) -> None:
        """Remove some of the oldest requests of a table of `FORGET` that would not be recognised any longer."""
        self.connection.execute(FORGET[table], self.clock | {"most": most})

    def _keep(self) -> None:
        """Write what is to be remembered, and forget twice as much of what is old: so it never piles up."""
        boot, now = self.clock["boot"], self.clock["now"]
        rows = [(*key, *value, boot, now) for key, value in self._once.items()]
        insert(self.connection, "once (topic, key, digest, events, boot, since_ns)", 6, list(chain.from_iterable(rows)))
        self.forget("once", 2 * len(rows))
        self._once = {}


def _clock() -> dict[str, str | int]:
    """What `AGE` and the statements that forget go by."""
    return {"boot": boot_id(), "now": now_ns(), "keep": REMEMBERED_NS}


def _figures(queue: QueueUpdate) -> tuple[int, ...]:
    return (
        queue.id,
        queue.tail,
        queue.used_bytes,
        queue.reservations,
        queue.reserved_entries,
        queue.reserved_bytes,
        queue.settled,
    )


def make_room(connection: sqlite3.Connection) -> bool:
    """Within a transaction, give up what nobody asks for any more, delivered entries and requests that would not be
    recognised any longer; whether there was any."""
    values = _clock() | {"most": _FORGOTTEN_AT_ONCE}
    forgotten = sum([connection.execute(statement, values).rowcount for statement in FORGET.values()])
    return recent.make_room(connection) or forgotten > 0


def forget_attempts(connection: sqlite3.Connection, ends: Mapping[int, int]) -> None:
    """Within a transaction that removes the entries before these positions, by queue, forget the attempts of a queue if
    those were all."""
    connection.execute(_FORGET_ATTEMPTS, (_json(ends),))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
