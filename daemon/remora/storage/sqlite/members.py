"""The workers that deliver from this directory: a row each, in the first file."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from remora.model.member import Member
from remora.storage.sqlite.files.file import File
from remora.storage.sqlite.files.part import SqlitePart
from remora.storage.sqlite.tables.clock import boot_id, now_ns

_ANNOUNCE = "INSERT OR REPLACE INTO members (cookie, entity, boot, until_ns, member) VALUES (?, ?, ?, ?, ?)"
_FORGET = "DELETE FROM members WHERE boot <> ? OR until_ns <= ?"
_WITHDRAW = "DELETE FROM members WHERE cookie = ?"
_LIVE = "SELECT entity, member FROM members WHERE boot = ? AND until_ns > ? ORDER BY cookie"

# A newer version may add fields, which are skipped, but never change these.
_decoder = msgspec.msgpack.Decoder(Member)


class SqliteMembers(SqlitePart):
    """Announces workers and finds them. No row is worth a sync: it means nothing after a start of the host."""

    async def announce(self, member: Member, ttl_s: float) -> None:
        """Announce this worker for `ttl_s`; rows that no longer count are deleted."""
        value = msgspec.msgpack.encode(member)

        def announce(connection: sqlite3.Connection) -> None:
            now = now_ns()
            connection.execute(_FORGET, (boot_id(), now))
            row = (member.cookie, self._files.owner.entity, boot_id(), now + int(ttl_s * 1e9), value)
            connection.execute(_ANNOUNCE, row)

        await self._first.write(announce, durable=False, upkeep=True)

    async def withdraw(self, cookie: str) -> None:
        """Withdraw this worker's row."""
        await self._first.write(lambda connection: connection.execute(_WITHDRAW, (cookie,)), durable=False, upkeep=True)

    async def live(self) -> Sequence[Member]:
        """Every live worker: those whose process has ended count no more, whatever time they had left."""
        rows = await self._first.read(lambda connection: connection.execute(_LIVE, (boot_id(), now_ns())).fetchall())
        found: list[Member] = []
        for entity, value in rows:
            with suppress(msgspec.MsgspecError):
                if not self._files.owner.is_dead(entity):
                    found.append(_decoder.decode(value))
        return found

    @property
    def _first(self) -> File:
        return self._files.first
