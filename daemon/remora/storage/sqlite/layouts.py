"""The layouts of a topic: a change of the number of shards, what waits for it, and the end of a former layout.

All queues of a topic lie in one file, so a change is one transaction: it makes the new queues, and from its commit on
nothing lands in an old one. A change is carried out as a whole or not at all, whatever kills the process.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Sequence

import msgspec

from remora.model.errors import TopicRefused
from remora.model.layout import FormerQueue, Layout, LayoutState
from remora.model.ledger import Tally
from remora.model.shard import Origin
from remora.model.topic import shard_of
from remora.policy.layouts import parents, still_held, waits_for
from remora.storage.sqlite.attributes import LayoutColumns, encoded_layouts
from remora.storage.sqlite.part import QueueRow, marker
from remora.storage.sqlite.schema import AWAITED, HELD_BACK, LAST_QUEUE_ID, NO_HANDOVER, PLACES

MOST_NAMED = 64
"""A shard that begins says of so many parents where they ended; of more than these, only whose generation they are."""

_COLUMNS = "SELECT name, shards, generation, former FROM topics WHERE id = ?"
_WAITING = "SELECT total(tail - head) FROM queues WHERE topic = ? AND number >= ? AND number < ?"
_IDS = "SELECT id FROM queues WHERE topic = ? AND number >= ? AND number < ? ORDER BY number"
_LAST_QUEUE = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'queues'"
_ADD_QUEUE = """
INSERT INTO queues (topic, number, name, incarnation, capacity_bytes, handover, parents) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_SET_HANDOVER = "UPDATE queues SET handover = ? WHERE topic = ? AND handover <> ?"
_OPEN = "UPDATE topics SET shards = ?, generation = ?, former = ? WHERE id = ?"
_KEEP_LEDGERS = """
INSERT INTO former_queues
SELECT id, topic, number, name, incarnation, begun, tail, delivered, dead_lettered, expired, dropped, removed_elsewhere
FROM queues WHERE topic = ? AND number < ?
"""
_REMOVE = (
    "DELETE FROM locks WHERE queue IN (SELECT id FROM queues WHERE topic = ? AND number < ?)",
    "DELETE FROM attempts WHERE queue IN (SELECT id FROM queues WHERE topic = ? AND number < ?)",
    "DELETE FROM queue_reservations WHERE queue IN (SELECT id FROM queues WHERE topic = ? AND number < ?)",
    "DELETE FROM queues WHERE topic = ? AND number < ?",
)
_FORGET = "UPDATE topics SET former = '[]' WHERE id = ?"
_CATALOGUE_CHANGED = "UPDATE meta SET value = value + 1 WHERE key = 'catalogue'"
_FORMER = """
SELECT name, number, incarnation, tail, tail - begun, delivered, dead_lettered, expired, dropped, removed_elsewhere
FROM former_queues WHERE topic = ? ORDER BY number
"""
_HELD_BACK_BY = """
SELECT name, number / :places, tail - head FROM queues
WHERE id IN (SELECT value FROM json_each((SELECT parents FROM queues WHERE id = :queue))) AND tail > head
ORDER BY number
"""
_GENERATION = "SELECT number / :places, json_array_length(parents) FROM queues WHERE id = :queue"
_ENDS = """
WITH parent AS (SELECT value AS id FROM json_each((SELECT parents FROM queues WHERE id = :queue)))
SELECT name, incarnation, tail, number FROM queues WHERE id IN (SELECT id FROM parent)
UNION ALL
SELECT name, incarnation, tail, number FROM former_queues WHERE id IN (SELECT id FROM parent) ORDER BY 4
"""
_FREED = f"""
SELECT child.name FROM queues AS child WHERE child.topic = :topic AND child.handover = {HELD_BACK}
AND EXISTS (SELECT 1 FROM json_each(child.parents) WHERE value = :queue)
AND NOT EXISTS (
    SELECT 1 FROM json_each(child.parents) AS its JOIN queues AS q ON q.id = its.value WHERE q.tail > q.head
)
"""  # noqa: S608 - a constant of the schema
IS_HELD_BACK = f"""
q.handover = {HELD_BACK}
AND EXISTS (SELECT 1 FROM json_each(q.parents) AS its JOIN queues AS p ON p.id = its.value WHERE p.tail > p.head)
"""  # noqa: S608 - a constant of the schema
"""Whether a queue `q` is held back yet."""


def change(connection: sqlite3.Connection, topic: int, shards: int, capacity: int) -> None:
    """Give a topic another number of shards; nothing happens where it has that many. Raises TopicRefused."""
    forget(connection, topic)
    now = _columns(connection, topic)
    if now.shards == shards:
        return
    if now.former_layouts:
        held = sum(_waiting(connection, topic, each.generation) for each in now.former_layouts)
        raise TopicRefused(
            f"{now.name} is changed already: {still_held(now.former_layouts, held)}; wait until they are delivered"
        )
    (last,) = connection.execute(_LAST_QUEUE).fetchone()
    if last + shards > LAST_QUEUE_ID:
        raise TopicRefused(f"the file for {now.name} has had as many queues as it ever can: use another name")
    generation = now.generation + 1
    connection.execute(_SET_HANDOVER, (AWAITED, topic, AWAITED))
    connection.executemany(_ADD_QUEUE, _new_queues(connection, topic, now, shards, capacity))
    former = encoded_layouts([Layout(now.generation, now.shards, LayoutState.SHUT)])
    connection.execute(_OPEN, (shards, generation, former, topic))
    connection.execute(_CATALOGUE_CHANGED)
    forget(connection, topic)


def _new_queues(
    connection: sqlite3.Connection, topic: int, now: LayoutColumns, shards: int, capacity: int
) -> list[tuple[int, int, str, str, int, int, str]]:
    """The rows of the next layout's queues."""
    ids = [number for (number,) in connection.execute(_IDS, (topic, *_places(now.generation)))]
    generation = now.generation + 1
    return [
        (
            topic,
            generation * PLACES + number,
            shard_of(now.name, number, Origin.REMORA, generation).queue,
            secrets.token_hex(8),
            capacity,
            HELD_BACK,
            _json([ids[parent] for parent in parents(now.shards, shards, number)]),
        )
        for number in range(shards)
    ]


def forget(connection: sqlite3.Connection, topic: int) -> bool:
    """Remove a topic's former layouts where nothing is left in them, and keep their final ledgers; whether any went."""
    now = _columns(connection, topic)
    if not now.former_layouts or any(_waiting(connection, topic, each.generation) for each in now.former_layouts):
        return False
    first_open = now.generation * PLACES
    connection.execute(_KEEP_LEDGERS, (topic, first_open))
    for statement in _REMOVE:
        connection.execute(statement, (topic, first_open))
    connection.execute(_SET_HANDOVER, (NO_HANDOVER, topic, NO_HANDOVER))
    connection.execute(_FORGET, (topic,))
    connection.execute(_CATALOGUE_CHANGED)
    return True


def former_queues(connection: sqlite3.Connection, topic: int) -> list[FormerQueue]:
    """The queues that went with their layouts, oldest first."""
    return [
        FormerQueue(name, number // PLACES, incarnation, marker(tail).decode(), committed, Tally(*removed))
        for name, number, incarnation, tail, committed, *removed in connection.execute(_FORMER, (topic,))
    ]


def held_back_by(connection: sqlite3.Connection, queue: QueueRow) -> str:
    """What keeps a queue from being delivered: entries that wait in its parents. Empty where there are none."""
    if queue.handover != HELD_BACK:
        return ""
    found = connection.execute(_HELD_BACK_BY, {"queue": queue.id, "places": PLACES}).fetchall()
    if not found:
        return ""
    name, generation, entries = found[0]
    return waits_for(name, generation, entries, len(found) - 1)


def ends_of_parents(connection: sqlite3.Connection, queue: QueueRow) -> bytes:
    """Where the parents of a queue ended, as the header `remora-after` has it; empty for a queue without parents."""
    generation, count = connection.execute(_GENERATION, {"queue": queue.id, "places": PLACES}).fetchone()
    if not count:
        return b""
    if count > MOST_NAMED:
        return b"generation=%d" % (generation - 1)
    ends = connection.execute(_ENDS, {"queue": queue.id}).fetchall()
    return ",".join(f"{name}={incarnation}:{marker(tail).decode()}" for name, incarnation, tail, _ in ends).encode()


def freed_by(connection: sqlite3.Connection, queue: QueueRow) -> Sequence[str]:
    """The queues that were held back by this one, which is empty by now, and that no other one holds back."""
    if queue.handover != AWAITED:
        return ()
    return [name for (name,) in connection.execute(_FREED, {"topic": queue.topic, "queue": queue.id})]


def _columns(connection: sqlite3.Connection, topic: int) -> LayoutColumns:
    return LayoutColumns(*connection.execute(_COLUMNS, (topic,)).fetchone())


def _waiting(connection: sqlite3.Connection, topic: int, generation: int) -> int:
    return int(connection.execute(_WAITING, (topic, *_places(generation))).fetchone()[0])


def _places(generation: int) -> tuple[int, int]:
    return generation * PLACES, (generation + 1) * PLACES


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
