"""A process of an older release, which stands still while a newer one brings its file to the newest version.

Run as a program on a file of version 9, or of the version before the newest, it stops itself: `before` the transaction
that stores an entry, `reading` in a transaction that has read, or `within` it, when all but its COMMIT is done.
Continued, it goes on and prints `committed`, or why it was refused.
"""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
import threading
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from remora.config import SqliteSettings
from remora.model.errors import StoreError
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.files import writer
from remora.storage.sqlite.tables import schema
from support.sqlite_victim import watch
from support.stores import UNHURRIED_S, spread, unhurried

BEFORE_THE_LOG = 9
THEIRS = b"theirs000000"
"""The entry's bytes, as `spread` makes them."""


def stop() -> None:
    """Stand still until continued: this thread at once, which a signal to the process would let go on for a moment."""
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def store_as_before_the_log(path: Path, where: str) -> None:
    """Store an entry in the only queue, as releases of version 9 did."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=UNHURRIED_S)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        count = "SELECT count(*) FROM entries"
        connection.execute(count).fetchone()  # it knows the tables
        if where == "reading":
            connection.execute("BEGIN")
            connection.execute(count).fetchone()
        if where != "within":
            stop()
        if where != "reading":
            connection.execute("BEGIN IMMEDIATE")
        queue, tail = connection.execute("SELECT id, tail FROM queues").fetchone()
        place = schema.rowid(queue, tail)
        connection.execute("INSERT OR FAIL INTO entries (id, data) VALUES (?, ?)", (place, THEIRS))
        used = len(THEIRS) + schema.ENTRY_OVERHEAD
        connection.execute("UPDATE queues SET tail = tail + 1, used_bytes = used_bytes + ?", (used,))
        if where == "within":
            stop()
        connection.execute("COMMIT")


@dataclass
class Stopper:
    """Looks at the statements of the writing connection from when it is armed, and stops this process once."""

    where: str
    is_armed: bool = False
    has_stored: bool = False

    def __call__(self, statement: str) -> None:
        self.has_stored |= self.is_armed and statement.startswith("INSERT INTO recent")
        is_place = (
            statement.startswith("BEGIN") if self.where == "before" else statement == "COMMIT" and self.has_stored
        )
        if self.is_armed and is_place:
            self.is_armed = False
            stop()


async def store_as_the_last_one(path: Path, where: str) -> None:
    """Store an entry in the only topic as a daemon of the release before does."""
    unhurried()
    schema.MIGRATIONS = schema.MIGRATIONS[:-1]
    stopper = Stopper(where)
    watch(writer, stopper)
    async with SqliteStore(SqliteSettings(directory=str(path.parent), files=1)) as store:
        topic = await store.own_topics.find("t")
        assert topic is not None
        stopper.is_armed = True
        await store.ingest.publish(topic, spread(topic, 1, "theirs"))


def main(path: Path, version: int, where: str) -> None:
    """Print how it ended."""
    try:
        if version == BEFORE_THE_LOG:
            store_as_before_the_log(path, where)
        else:
            asyncio.run(store_as_the_last_one(path, where))
    except (sqlite3.Error, StoreError) as exc:
        sys.stdout.write(f"refused: {exc}\n")
    else:
        sys.stdout.write("committed\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
