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
from remora.model.ledger import FormerQueue, Tally
from remora.model.shard import Origin
from remora.model.topic import shard_of
from remora.policy.queues.layouts import step, still_held, waits_for
from remora.storage.sqlite.tables.attributes import LayoutColumns
from remora.storage.sqlite.tables.queue_rows import QueueRow, marker
from remora.storage.sqlite.tables.schema import AWAITED, HELD_BACK, LAST_QUEUE_ID, NO_HANDOVER, PLACES

MOST_NAMED = 64
"""A shard that begins says of so many parents where they ended; of more than these, only whose generation they are."""

_COLUMNS = "SELECT name, shards, generation, former FROM topics WHERE id = ?"
_WAITING = "SELECT total(tail - head) FROM queues WHERE topic = ? AND number >= ? AND number < ?"
_LAST_QUEUE = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'queues'"
_ADD_QUEUE = """
INSERT INTO queues (topic, number, name, incarnation, capacity_bytes, handover, step) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_AWAIT = "UPDATE queues SET handover = ?, next_step = ? WHERE topic = ?"
_LET_GO = "UPDATE queues SET handover = ? WHERE topic = ? AND handover <> ?"
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
_PLACE = "SELECT number, step FROM queues WHERE id = ?"
_PARENTS = """
FROM {table} WHERE topic = :topic AND number >= :begin AND number < :end AND (number - :begin) % :step = :rest
"""
_HELD_BACK_BY = f"SELECT name, tail - head {_PARENTS.format(table='queues')} AND tail > head ORDER BY number"
_ENDS = f"""
SELECT name, incarnation, tail, number {_PARENTS.format(table="queues")}
UNION ALL
SELECT name, incarnation, tail, number {_PARENTS.format(table="former_queues")} ORDER BY 4
"""
_BUSY = f"""
SELECT topic, number % {PLACES} % next_step FROM queues WHERE handover = {AWAITED} AND tail > head
"""  # noqa: S608 - constants of the schema
_FREED = f"""
SELECT child.name FROM queues AS own JOIN queues AS child ON child.topic = own.topic
WHERE own.id = ? AND child.handover = {HELD_BACK}
AND child.number % {PLACES} % child.step = own.number % {PLACES} % own.next_step
AND (own.topic, own.number % {PLACES} % own.next_step) NOT IN ({_BUSY})
"""  # noqa: S608 - constants of the schema
IS_HELD_BACK = f"""
q.handover = {HELD_BACK} AND (q.topic, q.number % {PLACES} % q.step) IN ({_BUSY})
"""
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
    generation, alike = now.generation + 1, step(now.shards, shards)
    connection.execute(_AWAIT, (AWAITED, alike, topic))
    names = [shard_of(now.name, number, Origin.REMORA, generation).queue for number in range(shards)]
    connection.executemany(_ADD_QUEUE, [
        (topic, generation * PLACES + number, name, secrets.token_hex(8), capacity, HELD_BACK, alike)
        for number, name in enumerate(names)
    ])  # fmt: skip
    former = msgspec.json.encode([(now.generation, now.shards)]).decode()
    connection.execute(_OPEN, (shards, generation, former, topic))
    connection.execute(_CATALOGUE_CHANGED)
    forget(connection, topic)


def forget(connection: sqlite3.Connection, topic: int) -> bool:
    """Remove a topic's former layouts where nothing is left in them, and keep their final ledgers; whether any went."""
    now = _columns(connection, topic)
    if not now.former_layouts or any(_waiting(connection, topic, each.generation) for each in now.former_layouts):
        return False
    first_open = now.generation * PLACES
    connection.execute(_KEEP_LEDGERS, (topic, first_open))
    for statement in _REMOVE:
        connection.execute(statement, (topic, first_open))
    connection.execute(_LET_GO, (NO_HANDOVER, topic, NO_HANDOVER))
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
    generation, parents = _parents(connection, queue)
    found = connection.execute(_HELD_BACK_BY, parents).fetchall()
    if not found:
        return ""
    name, entries = found[0]
    return waits_for(name, generation, entries, len(found) - 1)


def ends_of_parents(connection: sqlite3.Connection, queue: QueueRow) -> bytes:
    """Where the parents of a queue ended, as the header `remora-after` has it; empty for a queue without parents."""
    generation, parents = _parents(connection, queue)
    if generation < 0:
        return b""
    ends = connection.execute(_ENDS, parents).fetchall()
    if len(ends) > MOST_NAMED:
        return b"generation=%d" % generation
    return ",".join(f"{name}={incarnation}:{marker(tail).decode()}" for name, incarnation, tail, _ in ends).encode()


def _parents(connection: sqlite3.Connection, queue: QueueRow) -> tuple[int, dict[str, int]]:
    """The generation of a queue's parents, -1 where there is none, and what tells which of its queues they are."""
    number, alike = connection.execute(_PLACE, (queue.id,)).fetchone()
    generation = number // PLACES - 1
    begin, end = _places(generation)
    rest = number % PLACES % alike if alike else 0
    return generation, {"topic": queue.topic, "begin": begin, "end": end, "step": alike, "rest": rest}


def freed_by(connection: sqlite3.Connection, queue: QueueRow) -> Sequence[str]:
    """The queues that were held back by this one, which is empty by now, and that no other one holds back."""
    return [name for (name,) in connection.execute(_FREED, (queue.id,))]


def _columns(connection: sqlite3.Connection, topic: int) -> LayoutColumns:
    return LayoutColumns(*connection.execute(_COLUMNS, (topic,)).fetchone())


def _waiting(connection: sqlite3.Connection, topic: int, generation: int) -> int:
    return int(connection.execute(_WAITING, (topic, *_places(generation))).fetchone()[0])


def _places(generation: int) -> tuple[int, int]:
    return generation * PLACES, (generation + 1) * PLACES
