"""How often entries of held queues were tried in vain: one row for each queue where that matters."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from remora.codec.attempts import decode_attempts, encode_attempts
from remora.model.record import Attempt
from remora.model.shard import LockToken
from remora.storage.sqlite.files.part import SqlitePart
from remora.storage.sqlite.tables.queue_rows import held_row, parsed
from remora.storage.sqlite.tables.write_batch import forget_attempts

_NOTE = "INSERT OR REPLACE INTO attempts (queue, last, noted) VALUES (?, ?, ?)"
_NOTED = "SELECT noted FROM attempts WHERE queue = ?"


class SqliteAttempts(SqlitePart):
    """Keeps attempts. Not synced: after a power cut entries are tried once more, at worst."""

    async def note(self, token: LockToken, attempts: Mapping[bytes, Attempt]) -> None:
        """Keep these in place of all that were kept before."""
        last = max(map(parsed, attempts), default=-1)
        value = encode_attempts(attempts)

        def note(connection: sqlite3.Connection) -> None:
            queue = held_row(connection, token, self._me)
            if attempts:
                connection.execute(_NOTE, (queue.id, last, value))
            else:
                forget_attempts(connection, {queue.id: queue.tail})

        await self._file(token.shard).write(note, durable=False, upkeep=True)

    async def noted(self, token: LockToken) -> Mapping[bytes, Attempt]:
        """What was kept last."""

        def noted(connection: sqlite3.Connection) -> bytes | None:
            queue = held_row(connection, token, self._me)
            row = connection.execute(_NOTED, (queue.id,)).fetchone()
            return row[0] if row else None

        value = await self._file(token.shard).read(noted)
        return decode_attempts(value) if value is not None else {}

    @property
    def _me(self) -> str:
        return self._files.owner.entity
