"""The tables of a file, and how a file of an older version becomes one of this.

Each file holds some of the topics, each of these whole: its queues with their entries and locks, its reservations, its
remembered requests and its dead letters. So whatever concerns one topic is one transaction with one sync.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

APPLICATION_ID = 0x72_65_6D_71
"""`remq`, in the header of each file: tells it from another program's database."""

POSITION_BITS = 40
"""A settled entry's rowid is its queue's id followed by its position, so that a queue is one range of the table."""

LAST_QUEUE_ID = (1 << 63 - POSITION_BITS) - 1
END_OF_QUEUE = (1 << POSITION_BITS) - 1
"""The most that fits into a rowid: the number of queues that a file can ever have, and of entries of each."""

PLACES = 1024
"""How far the numbers of a topic's queues lie apart from one generation of its layout to the next."""

NO_HANDOVER, HELD_BACK, AWAITED = range(3)
"""What a change of the topic's layout asks of a queue: nothing; to show no entry to its owner while entries wait in its
parents; to let go of those that wait for it when its last entry is removed."""

ENTRY_OVERHEAD = 10
"""What an entry costs of its queue's room beside its own bytes; the same as in a radosgw's queue."""

_FIRST = """
-- One row for each fact about this file: store (its id), files (in each of its directories), number, catalogue (grows
-- with each change of topics), notifications; placement (the last change of the store's directories that this file
-- knows, absent before the first) and, in the first file, directories; and `hold:` with a topic's name for each topic
-- that is held.
CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;

-- `uid` is another one each time that a topic is made. Ids are never used again, neither a topic's nor a queue's.
CREATE TABLE topics (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    uid TEXT NOT NULL,
    shards INTEGER NOT NULL,
    closed INTEGER NOT NULL,
    attributes BLOB NOT NULL
);

-- Entries have the positions from head up to tail, without gaps; positions only grow. `used_bytes` counts the overhead
-- of each entry, `reserved_bytes` does not count that of the `reserved_entries`. There is room for n more entries while
-- used_bytes + reserved_bytes + reserved_entries * overhead + their bytes + n * overhead <= capacity_bytes.
-- All kinds of open reservations are counted here.
CREATE TABLE queues (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic INTEGER NOT NULL,
    number INTEGER NOT NULL,
    name TEXT NOT NULL UNIQUE,
    incarnation TEXT NOT NULL,
    head INTEGER NOT NULL DEFAULT 0,
    tail INTEGER NOT NULL DEFAULT 0,
    used_bytes INTEGER NOT NULL DEFAULT 0,
    reservations INTEGER NOT NULL DEFAULT 0,
    reserved_entries INTEGER NOT NULL DEFAULT 0,
    reserved_bytes INTEGER NOT NULL DEFAULT 0,
    capacity_bytes INTEGER NOT NULL,
    UNIQUE (topic, number)
);

CREATE TABLE entries (id INTEGER PRIMARY KEY, data BLOB NOT NULL);

-- Apart from the queues, because locks change for the clock's sake alone. A lock counts while `until_ns` lies in the
-- future of the same `boot`.
CREATE TABLE locks (
    queue INTEGER PRIMARY KEY,
    entity TEXT NOT NULL,
    cookie TEXT NOT NULL,
    boot TEXT NOT NULL,
    until_ns INTEGER NOT NULL
);

-- Room in one queue.
CREATE TABLE queue_reservations (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    nbytes INTEGER NOT NULL,
    boot TEXT NOT NULL,
    created_ns INTEGER NOT NULL
);
CREATE INDEX queue_reservations_of ON queue_reservations (queue);

-- Room in several queues of a topic. `state` is open, committed, aborted or expired; `digest` is of what was committed,
-- `rooms` is empty when the reservation is not open any more. `boot` and `since_ns` tell since when this state lasts.
-- Numbers tell the order in which reservations were made, so that old ones can be found and forgotten.
CREATE TABLE reservations (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    topic INTEGER NOT NULL,
    state TEXT NOT NULL,
    rooms BLOB NOT NULL,
    events INTEGER NOT NULL,
    digest BLOB NOT NULL DEFAULT x'',
    boot TEXT NOT NULL,
    since_ns INTEGER NOT NULL
);
CREATE INDEX reservations_open ON reservations (topic) WHERE state = 'open';
CREATE INDEX reservations_ended ON reservations (number) WHERE state <> 'open';

-- Requests that would be recognised if they were repeated, numbered in the order in which they were made.
CREATE TABLE once (
    number INTEGER PRIMARY KEY,
    topic INTEGER NOT NULL,
    key TEXT NOT NULL,
    digest BLOB NOT NULL,
    events INTEGER NOT NULL,
    boot TEXT NOT NULL,
    since_ns INTEGER NOT NULL,
    UNIQUE (topic, key)
);

-- Dead letters name their queue by name, because they outlive it.
CREATE TABLE letters (
    queue TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    gen INTEGER NOT NULL,
    position INTEGER NOT NULL,
    letter BLOB NOT NULL,
    UNIQUE (queue, incarnation, gen, position)
);

-- Queues that were removed, with entries that still have to be deleted: those from head up to tail.
CREATE TABLE leftovers (queue INTEGER PRIMARY KEY, head INTEGER NOT NULL, tail INTEGER NOT NULL);
"""

_MEMBERS = """
-- Workers that deliver from this directory, as they announce themselves; only those in the first file count. One counts
-- while `until_ns` lies in the future of the same `boot` and its `entity` lives.
CREATE TABLE members (
    cookie TEXT PRIMARY KEY,
    entity TEXT NOT NULL,
    boot TEXT NOT NULL,
    until_ns INTEGER NOT NULL,
    member BLOB NOT NULL
) WITHOUT ROWID;
"""

_LEDGER = """
-- What became of a queue's entries from position `begun` on: one column for each cause that an entry leaves it for.
ALTER TABLE queues ADD COLUMN begun INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN delivered INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN dead_lettered INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN expired INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN dropped INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN removed_elsewhere INTEGER NOT NULL DEFAULT 0;
UPDATE queues SET begun = head;
"""

_ATTEMPTS = """
-- How often entries were tried in vain, one value for a queue; `last` is the last position in it.
CREATE TABLE attempts (queue INTEGER PRIMARY KEY, last INTEGER NOT NULL, noted BLOB NOT NULL);
"""

_LETTER_TOTALS = """
-- How many dead letters of a queue commands have re-driven and dropped.
CREATE TABLE letter_totals (queue TEXT PRIMARY KEY, redriven INTEGER NOT NULL, dropped INTEGER NOT NULL) WITHOUT ROWID;
"""

_CHECKSUMS = """
-- Of `data` and where it lies; NULL for entries that were there before. Older versions that still have the file open
-- go on storing without.
ALTER TABLE entries ADD COLUMN checksum INTEGER;
"""

_LETTER_CHECKSUMS = """
-- Of `letter` and its place; NULL for letters that were there before. Older versions that still have the file open
-- go on storing without.
ALTER TABLE letters ADD COLUMN checksum INTEGER;
"""

_LOGS = """
-- Shared logs. `bound` is the last position that a counter may hand out, `trimmed` the last one of a log that was
-- deleted. A lock counts for one boot of the host, until its time, while its process lives.
CREATE TABLE logs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    pool BLOB NOT NULL,
    name BLOB NOT NULL,
    uid TEXT NOT NULL,
    kind TEXT NOT NULL,
    width INTEGER NOT NULL,
    epoch INTEGER NOT NULL DEFAULT 0,
    owner TEXT NOT NULL DEFAULT '',
    address TEXT NOT NULL DEFAULT '',
    bound INTEGER NOT NULL DEFAULT 0,
    trimmed INTEGER NOT NULL DEFAULT 0,
    lock_entity TEXT NOT NULL DEFAULT '',
    lock_owner TEXT NOT NULL DEFAULT '',
    lock_boot TEXT NOT NULL DEFAULT '',
    lock_until_ns INTEGER NOT NULL DEFAULT 0,
    UNIQUE (pool, name)
);

CREATE TABLE log_entries (
    log INTEGER NOT NULL,
    position INTEGER NOT NULL,
    filled INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (log, position)
) WITHOUT ROWID;
"""

_SEQUENCES = """
-- The last number given to an event of the topic; NULL for a topic that numbers none. Each entry of a topic that does
-- has its number in the last eight bytes of `data`.
ALTER TABLE topics ADD COLUMN sequence INTEGER;
"""

_RECENT = """
-- Renamed, so that every statement of an older process that would store, read or remove an entry fails. The entries in
-- it stay where they are: to that extent each queue's have settled.
ALTER TABLE entries RENAME TO settled;

-- What transactions have committed and what has not settled yet, in their order; see `recent.py`. Of a queue the
-- positions from `settled` on lie here, those before it in the table `settled`.
CREATE TABLE recent (id INTEGER PRIMARY KEY, parts BLOB NOT NULL, data BLOB NOT NULL);
ALTER TABLE queues ADD COLUMN settled INTEGER NOT NULL DEFAULT 0;
UPDATE queues SET settled = tail;
"""

_NOTIFICATIONS = """
-- Which events go to which topics; only those in the first file count. `notifications` in `meta` grows with changes.
CREATE TABLE notifications (id TEXT PRIMARY KEY, definition BLOB NOT NULL) WITHOUT ROWID;
INSERT OR IGNORE INTO meta VALUES ('notifications', 0);

-- Requests that are decided: their events for this file are stored, and those for others lie in `parts`, which is empty
-- once each of these has its own. A request with a key stays, so that it is recognised when it is repeated.
CREATE TABLE decisions (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    key TEXT UNIQUE,
    digest BLOB NOT NULL,
    answer BLOB NOT NULL,
    parts BLOB NOT NULL,
    checksum INTEGER NOT NULL,
    boot TEXT NOT NULL,
    since_ns INTEGER NOT NULL
);
CREATE INDEX decisions_open ON decisions (number) WHERE length(parts) > 0;

-- Decided requests whose part for this file is stored; `home` is the number of the file that has the decision. A mark
-- is deleted when that is known to be finished.
CREATE TABLE taken (id TEXT PRIMARY KEY, home INTEGER NOT NULL, boot TEXT NOT NULL, since_ns INTEGER NOT NULL)
    WITHOUT ROWID;
"""

_LAYOUTS = """
-- `shards` are those of the layout that takes events, which is of this `generation`. `former` has generation and number
-- of shards of each layout before it that has queues yet, as JSON. A queue's `number` is its number in its layout, and
-- PLACES for each generation more. It took over from those queues of the generation before it whose numbers in their
-- layout are like its own modulo `step`, which is 0 in generation 0; `next_step` is the same for the generation behind
-- it, where there is one. `handover` is one of NO_HANDOVER, HELD_BACK and AWAITED.
ALTER TABLE topics ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;
ALTER TABLE topics ADD COLUMN former TEXT NOT NULL DEFAULT '[]';
ALTER TABLE queues ADD COLUMN handover INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN step INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN next_step INTEGER NOT NULL DEFAULT 0;

-- The generation of the layout in whose queues a reservation keeps room.
ALTER TABLE reservations ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;

-- Queues that went with their layouts, with their final ledgers; they end at `tail`.
CREATE TABLE former_queues (
    id INTEGER PRIMARY KEY,
    topic INTEGER NOT NULL,
    number INTEGER NOT NULL,
    name TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    begun INTEGER NOT NULL,
    tail INTEGER NOT NULL,
    delivered INTEGER NOT NULL,
    dead_lettered INTEGER NOT NULL,
    expired INTEGER NOT NULL,
    dropped INTEGER NOT NULL,
    removed_elsewhere INTEGER NOT NULL
);
CREATE INDEX former_queues_of ON former_queues (topic);
"""

_ANNOUNCEMENTS = """
-- Reservations that name no topic: the topics that they have room in, each as a reservation of its own, and what was
-- announced, in a form of the ingest API's. `state` is open or aborted; what is committed is a decision instead.
CREATE TABLE announcements (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,
    topics BLOB NOT NULL,
    announcement BLOB NOT NULL,
    checksum INTEGER NOT NULL,
    boot TEXT NOT NULL,
    since_ns INTEGER NOT NULL
);
"""

_PEAKS = """
-- The highest means over a minute that the busiest of a topic's `shards` had in an hour, counted from 1970; events and
-- bytes a second, each for itself.
CREATE TABLE peaks (
    topic INTEGER NOT NULL,
    hour INTEGER NOT NULL,
    shards INTEGER NOT NULL,
    events INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (topic, hour, shards)
) WITHOUT ROWID;
"""


Migration = Callable[[sqlite3.Connection], None]


def _script(text: str) -> Migration:
    return lambda connection: run_script(connection, text)


MIGRATIONS: Sequence[Migration] = (
    _script(_FIRST),
    _script(_MEMBERS),
    _script(_LEDGER),
    _script(_ATTEMPTS),
    _script(_LETTER_TOTALS),
    _script(_CHECKSUMS),
    _script(_LOGS),
    _script(_LETTER_CHECKSUMS),
    _script(_SEQUENCES),
    _script(_RECENT),
    _script(_NOTIFICATIONS),
    _script(_LAYOUTS),
    lambda connection: None,  # a store may have several directories: an earlier remora would not see the others
    _script(_ANNOUNCEMENTS),
    _script(_PEAKS),
)
"""The step from each version to the next, in a transaction of its own; an empty file has version 0."""


def run_script(connection: sqlite3.Connection, script: str) -> None:
    """Run several statements within the open transaction, which `executescript` would commit."""
    statement = ""
    for line in script.splitlines():
        if line.startswith("--"):
            continue
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""


def rowid(queue: int, position: int) -> int:
    """Where an entry lies in the table of those that have settled."""
    return queue << POSITION_BITS | position


_CHUNKS = tuple(1 << n for n in range(9, -1, -1))
_CHUNK_BYTES = 256 << 10
"""How much goes into one statement at most, about: the driver keeps it in memory until the statement's next use."""


def insert(connection: sqlite3.Connection, into: str, columns: int, values: Sequence[Any], nbytes: int = 0) -> None:
    """Insert rows, given one behind the other, many by one statement; `nbytes` is about their size.

    A row that is there already undoes the whole job, so that the statement need not undo itself: with OR FAIL, SQLite
    keeps no copy of each page that it changes for that.
    """
    row = f"({','.join(repeat('?', columns))})"
    most = _CHUNK_BYTES * (len(values) // columns) // nbytes if nbytes else _CHUNKS[0]
    start = 0
    for rows in _CHUNKS:
        size = rows * columns
        while len(values) - start >= size and (rows <= most or rows == 1):
            statement = f"INSERT OR FAIL INTO {into} VALUES {','.join(repeat(row, rows))}"  # noqa: S608 - constants
            connection.execute(statement, values[start : start + size])
            start += size
