"""The exclusive lock of each queue: a row beside it, so that whatever is done under it checks it in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from remora.model.errors import ShardGone, StoreError
from remora.model.shard import LockHolder, LockToken, Origin, Shard
from remora.storage.sqlite.files.file import File
from remora.storage.sqlite.files.part import LockColumns, SqlitePart, holder_of
from remora.storage.sqlite.tables.clock import boot_id, now_ns
from remora.storage.sqlite.tables.queue_rows import lock_lost
from remora.storage.sqlite.tables.soundness import typed

_LOOK = """
SELECT q.id, q.incarnation, l.entity, l.cookie, l.boot, l.until_ns
FROM queues AS q LEFT JOIN locks AS l ON l.queue = q.id WHERE q.name = ?
"""
_TAKE = "INSERT OR REPLACE INTO locks (queue, entity, cookie, boot, until_ns) VALUES (?, ?, ?, ?, ?)"
_EXTEND = "UPDATE locks SET until_ns = ? WHERE queue = ?"
_RELEASE = """
DELETE FROM locks WHERE entity = ? AND cookie = ?
AND queue = (SELECT id FROM queues WHERE name = ? AND incarnation = ?)
"""
_EVICT = "DELETE FROM locks WHERE entity = ? AND cookie = ? AND queue = (SELECT id FROM queues WHERE name = ?)"
_COOKIES = "SELECT DISTINCT cookie FROM locks"
_QUEUES_OF = "SELECT q.name FROM locks AS l JOIN queues AS q ON q.id = l.queue WHERE l.cookie = ?"
_EVICT_ALL = "DELETE FROM locks WHERE cookie = ?"

# Many locks in two statements, because the driver lets go of the interpreter for each row that it steps over, and gets
# it back from a busy event loop only after up to milliseconds. A hold is [queue, incarnation, cookie].
_NOT_HELD = """
SELECT hold.key, q.id IS NULL FROM json_each(:holds) AS hold
LEFT JOIN queues AS q ON q.name = hold.value ->> 0 AND q.incarnation = hold.value ->> 1
LEFT JOIN locks AS l ON l.queue = q.id AND l.entity = :entity AND l.cookie = hold.value ->> 2
AND l.boot = :boot AND l.until_ns > :now
WHERE l.queue IS NULL
"""
_EXTEND_ALL = """
UPDATE locks SET until_ns = :until WHERE queue IN (
    SELECT l.queue FROM json_each(:holds) AS hold
    JOIN queues AS q ON q.name = hold.value ->> 0 AND q.incarnation = hold.value ->> 1
    JOIN locks AS l ON l.queue = q.id AND l.entity = :entity AND l.cookie = hold.value ->> 2
    AND l.boot = :boot AND l.until_ns > :now
)
"""


class SqliteLocks(SqlitePart):
    """Takes, extends and gives back locks. No lock is worth a sync: it does not outlive a start of the host."""

    async def acquire(self, shard: Shard, cookie: str, lease_s: float) -> LockToken | LockHolder:
        """Take the lock, or extend one that this very store already has; else say who holds it."""
        file = self._file(shard)

        def take(connection: sqlite3.Connection) -> LockToken | LockHolder:
            queue, incarnation, rival = self._look(connection, shard, cookie)
            if rival is not None:
                return rival
            me = self._files.owner.entity
            connection.execute(_TAKE, (queue, me, cookie, boot_id(), _until_ns(lease_s)))
            return LockToken(shard, cookie, incarnation)

        # A worker that waits for a lock asks again and again: that costs no transaction.
        _, _, rival = await file.read(lambda connection: self._look(connection, shard, cookie))
        return await file.write(take, durable=False, upkeep=True) if rival is None else rival

    async def renew_all(self, tokens: Sequence[LockToken], lease_s: float) -> Sequence[StoreError | None]:
        """Extend several locks, those of each file in one transaction."""
        return await self._in_each_file(tokens, lambda file, of_file: self._renew_in(file, of_file, lease_s))

    async def release(self, token: LockToken) -> None:
        """Give the lock back; no error when it is not held any more."""
        key = (self._files.owner.entity, token.cookie, token.shard.queue, token.incarnation)
        await self._file(token.shard).write(
            lambda connection: connection.execute(_RELEASE, key), durable=False, upkeep=True
        )

    async def evict(self, shard: Shard, holder: LockHolder) -> None:
        """Break exactly this holder's lock; no error when it has gone meanwhile."""
        key = (holder.entity, holder.cookie, shard.queue)
        await self._file(shard).write(lambda connection: connection.execute(_EVICT, key), durable=False, upkeep=True)

    async def evict_all(self, is_dead: Callable[[str], bool]) -> Sequence[Shard]:
        """Break every lock whose holder's cookie is dead; those in a damaged file are passed over."""
        freed: list[Shard] = []
        for file in self._files.all:
            with suppress(StoreError):
                freed += await _evict_in(file, is_dead)
        return freed

    def _look(self, connection: sqlite3.Connection, shard: Shard, cookie: str) -> tuple[int, str, LockHolder | None]:
        """The queue's id and incarnation, and who keeps this cookie from its lock. Raises ShardGone."""
        row = connection.execute(_LOOK, (shard.queue,)).fetchone()
        if row is None:
            raise ShardGone(f"there is no queue {shard}")
        queue, incarnation, *lock = row
        if lock[0] is None or lock[:2] == [self._files.owner.entity, cookie]:
            return queue, incarnation, None
        holder = holder_of(self._files, *typed(connection, LockColumns, lock, "locks", shard.queue))
        return queue, incarnation, holder if holder.lease_left_s else None

    async def _renew_in(self, file: File, tokens: Sequence[LockToken], lease_s: float) -> dict[LockToken, StoreError]:
        """Renew locks of one file; which of them turned out to be lost."""
        wanted = [(token.shard.queue, token.incarnation, token.cookie) for token in tokens]
        values = {"holds": msgspec.json.encode(wanted).decode(), "entity": self._files.owner.entity, "boot": boot_id()}

        def extend(connection: sqlite3.Connection) -> dict[LockToken, StoreError]:
            at = values | {"now": now_ns(), "until": _until_ns(lease_s)}
            lost = connection.execute(_NOT_HELD, at).fetchall()
            connection.execute(_EXTEND_ALL, at)
            me = self._files.owner.entity
            return {tokens[place]: _lost(connection, tokens[place], me, is_gone) for place, is_gone in lost}

        return await file.write(extend, durable=False, upkeep=True)


async def _evict_in(file: File, is_dead: Callable[[str], bool]) -> list[Shard]:
    cookies = await file.read(lambda connection: [cookie for (cookie,) in connection.execute(_COOKIES)])
    dead = [cookie for cookie in cookies if is_dead(cookie)]

    def evict(connection: sqlite3.Connection) -> list[Shard]:
        names = [name for cookie in dead for (name,) in connection.execute(_QUEUES_OF, (cookie,)).fetchall()]
        connection.executemany(_EVICT_ALL, [(cookie,) for cookie in dead])
        return [Shard(name, Origin.REMORA) for name in names]

    return await file.write(evict, durable=False, upkeep=True) if dead else []


def _lost(connection: sqlite3.Connection, token: LockToken, entity: str, is_gone: bool) -> StoreError:
    if is_gone:
        return ShardGone(f"the queue {token.shard} that was locked is gone")
    return lock_lost(connection, token, entity)


def _until_ns(lease_s: float) -> int:
    return now_ns() + int(lease_s * 1e9)
