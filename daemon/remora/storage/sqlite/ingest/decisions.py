"""Requests whose events lie in several files: what is decided, what each file has still to take, and that it has.

A request is decided by one synced transaction of its home file, which stores that file's events and, in the table
`decisions`, those of the others. Each other file takes its own in a transaction that also sets a mark (`taken`), so
that it takes them once however many processes try. When all have, the decision is closed.

A process that was stopped for an hour must not take a part whose mark is deleted by then. So a part may be taken for a
short time only from when its decision was read or made, and marks stay much longer. A mark is deleted when the closing
of its decision is synced: else a power cut could bring the decision back and not the mark.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from remora.codec.speedups import shards as shards_of
from remora.model.errors import OnceConflict, RowDamaged, StoreDamaged, StoreUnavailable, TopicUnknown
from remora.model.fan_out import FannedOut, TopicCopies
from remora.model.ingest import IdempotencyKey, RoutedEvent
from remora.model.shard import Origin, Shard
from remora.model.topic import MOST_SHARDS, Target, Topic
from remora.storage.sqlite.ingest.one_topic import append, find_reservation, loaded, release_rooms, sums
from remora.storage.sqlite.tables.clock import now_ns
from remora.storage.sqlite.tables.write_batch import TopicRow, WriteBatch

MAY_BE_TAKEN_NS = 60 * 1_000_000_000
"""How long after its decision was read a part may be taken; far below the time that marks stay."""

_FIND = "SELECT id, digest, answer, parts, checksum FROM decisions WHERE key = ?"
_DECIDE = """
INSERT INTO decisions (id, key, digest, answer, parts, checksum, boot, since_ns)
VALUES (:id, :key, :digest, :answer, :parts, :checksum, :boot, :now)
"""
_CLOSE = """
UPDATE decisions SET parts = x'', checksum = 0, boot = :boot, since_ns = :now WHERE id = :id AND key IS NOT NULL
"""
_DROP = "DELETE FROM decisions WHERE id = :id AND key IS NULL"
_MARK = "INSERT INTO taken (id, home, boot, since_ns) VALUES (:id, :home, :boot, :now)"
_LAYOUT = "SELECT shards, generation FROM topics WHERE name = ? AND uid = ?"
_IS_MARKED = "SELECT 1 FROM taken WHERE id = ?"


class TopicPart(msgspec.Struct, frozen=True, array_like=True):
    """The events of a request for one topic, which has this name and id: the shard, key and payload of each.

    The shards are those of the layout of this generation.
    """

    name: str
    uid: str
    generation: int
    events: Sequence[tuple[int, bytes, bytes]]

    @property
    def topic(self) -> Topic:
        """The topic, as far as its row is asked for it."""
        return Topic(
            self.name, "", self.name, Target("", "", self.name),
            origin=Origin.REMORA, id=self.uid, shards=MOST_SHARDS, generation=self.generation,
        )  # fmt: skip

    @property
    def routed(self) -> list[RoutedEvent]:
        """Its events."""
        return [RoutedEvent(*each) for each in self.events]

    def placed(self, shards: int, generation: int) -> TopicPart:
        """The same events in a layout of so many shards."""
        numbers = shards_of([key for _, key, _ in self.events], shards)
        events = [(number, key, payload) for number, (_, key, payload) in zip(numbers, self.events, strict=True)]
        return TopicPart(self.name, self.uid, generation, events)


class FilePart(msgspec.Struct, frozen=True, array_like=True):
    """The events of a request for the topics of one file, by its number."""

    file: int
    topics: list[TopicPart]

    @property
    def shards(self) -> list[Shard]:
        """The queues that they go to."""
        return [each.topic.shard(number) for each in self.topics for number in {shard for shard, *_ in each.events}]

    @property
    def nbytes(self) -> int:
        """Of all events."""
        return sum(len(payload) for each in self.topics for *_, payload in each.events)


_decode_parts = msgspec.msgpack.Decoder(list[FilePart]).decode
_decode_answer = msgspec.msgpack.Decoder(FannedOut).decode


@dataclass(frozen=True, slots=True)
class Decision:
    """A decided request: its id, its answer, what other files have still to take, and until when they may."""

    id: str
    answer: FannedOut
    parts: Sequence[FilePart]
    until_ns: int


def part_of(file: int, copies: Sequence[TopicCopies]) -> FilePart:
    """What a file is to take."""
    return FilePart(
        file,
        [TopicPart(each.topic.name, each.topic.id, each.topic.generation, each.events) for each in copies],
    )


def packed(parts: Sequence[FilePart]) -> bytes:
    """Parts as a decision has them; empty where there are none."""
    return msgspec.msgpack.encode(parts) if parts else b""


def recalled(connection: sqlite3.Connection, once: IdempotencyKey) -> Decision | None:
    """The decision of a request with this key, whose answer says that it is repeated. Raises OnceConflict."""
    row = connection.execute(_FIND, (once.key,)).fetchone()
    if row is None:
        return None
    if row[1] != once.digest:
        raise OnceConflict("the idempotency key was used for another request before")
    return decision_of(*row)


def decision_of(name: str, _: bytes, answer: bytes, parts: Any, checksum: int) -> Decision:
    """The decision of a row; its answer says that the request is repeated. Raises RowDamaged."""
    if parts and (not isinstance(parts, bytes) or zlib.crc32(parts) != checksum):
        raise RowDamaged(f"what request {name} has decided has changed in the store")
    found = answer_of(name, answer)
    repeated = FannedOut(found.accepted, found.unmatched, found.topics, repeated=True)
    try:
        decided: Sequence[FilePart] = _decode_parts(parts) if parts else ()
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as exc:
        raise RowDamaged(f"what request {name} has decided cannot be read: {exc}") from exc
    return Decision(name, repeated, decided, now_ns() + MAY_BE_TAKEN_NS)


def answer_of(name: str, raw: bytes) -> FannedOut:
    """What the sender of a request is told. Raises RowDamaged."""
    try:
        return _decode_answer(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as exc:
        raise RowDamaged(f"the answer to request {name} has changed in the store") from exc


def decide(batch: WriteBatch, name: str, once: IdempotencyKey | None, answer: FannedOut, parts: bytes) -> None:
    """Note a decision within its transaction, and forget old ones that are closed."""
    values = {
        "id": name,
        "key": once.key if once else None,
        "digest": once.digest if once else b"",
        "answer": msgspec.msgpack.encode(answer),
        "parts": parts,
        "checksum": zlib.crc32(parts),
    }
    batch.connection.execute(_DECIDE, batch.clock | values)
    batch.forget("decisions")


def close(batch: WriteBatch, name: str) -> None:
    """Note that every file has its part; nobody would recognise a request without a key.

    One with a key is remembered from now on: nobody had an answer before, however long a file was away.
    """
    values = batch.clock | {"id": name}
    batch.connection.execute(_CLOSE, values)
    batch.connection.execute(_DROP, values)


@dataclass(frozen=True, slots=True)
class Take:
    """Stores a file's part, unless it has it. What a topic would get that is gone by now went with it."""

    id: str
    home: int
    part: FilePart
    until_ns: int

    def __call__(self, batch: WriteBatch) -> None:
        """Raises as `take_all` does."""
        if batch.connection.execute(_IS_MARKED, (self.id,)).fetchone():
            return
        if now_ns() > self.until_ns:
            raise StoreUnavailable("the request was decided too long ago for this process to finish it")
        take_all(batch, self.id, self.part.topics)
        batch.connection.execute(_MARK, batch.clock | {"id": self.id, "home": self.home})


def take_all(batch: WriteBatch, name: str, parts: Sequence[TopicPart]) -> None:
    """Store the parts of a request that is decided, in the room that it has reserved.

    Before anything is changed it raises TopicMoved where a topic has another layout than its part, and StoreDamaged
    where the queues of one cannot be read.
    """
    there = [(each, row) for each in parts if (row := _row(batch, each)) is not None]
    loads = [loaded(each.topic, each.routed) for each, _ in there]
    places = [batch.queues(row, load) for (_, row), load in zip(there, loads, strict=True)]
    for (part, row), load, queues in zip(there, loads, places, strict=True):
        found = find_reservation(batch, row, reservation_of(name, part.name))
        if found is not None and found.state == "open":
            with suppress(StoreDamaged):  # expiry gives it up; what is decided is stored all the same
                release_rooms(batch, row, found.generation, sums(found.reserved(batch)))
                found.end(batch, "committed")
        append(batch, row, queues, load, part.routed)


def _row(batch: WriteBatch, part: TopicPart) -> TopicRow | None:
    """The topic's row; None where the topic is gone. Raises TopicMoved."""
    try:
        return batch.open_topic(part.topic)
    except TopicUnknown:
        return None


def placed_now(connection: sqlite3.Connection, part: FilePart) -> FilePart:
    """A part as its topics are divided now."""
    topics = []
    for each in part.topics:
        found = connection.execute(_LAYOUT, (each.name, each.uid)).fetchone()
        topics.append(each if found is None or found[1] == each.generation else each.placed(*found))
    return FilePart(part.file, topics)


def release(batch: WriteBatch, name: str, topics: Sequence[Topic]) -> None:
    """Give the room back that a request reserved which is not decided."""
    for topic in topics:
        try:
            row = batch.topic(topic)
        except TopicUnknown:
            continue
        found = find_reservation(batch, row, reservation_of(name, topic.name))
        if found is not None and found.state == "open":
            with suppress(StoreDamaged):  # as above
                release_rooms(batch, row, found.generation, sums(found.reserved(batch)))
                found.end(batch, "aborted")


def reservation_of(request: str, topic: str) -> str:
    """The name of the room that a request reserves in a topic."""
    return f"{topic}.{request}"
