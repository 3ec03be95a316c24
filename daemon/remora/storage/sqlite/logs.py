"""Shared logs: a row for each with its projection, its lock and its bound, and a row for each position written.

A log lies in the file that its pool and name fall into, so a registration is one synced transaction: whatever was
written before it counts, and whatever comes later with an older epoch is refused.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from remora.model.errors import OwnershipLost, StoreError
from remora.model.log import (
    MOST_POSITION,
    MOST_WIDTH,
    Cell,
    Figures,
    LogKind,
    LogLock,
    LogLocked,
    LogName,
    LogRefused,
    LogUnknown,
    PositionTaken,
    PositionTrimmed,
    Projection,
    Registered,
    StaleEpoch,
    check_entry,
    name_problem,
)
from remora.storage.sqlite.files.file import File
from remora.storage.sqlite.files.open_files import Files
from remora.storage.sqlite.tables.clock import boot_id, now_ns
from remora.storage.sqlite.tables.soundness import number_fact, typed

_COLUMNS = (
    "id, uid, kind, width, epoch, owner, address, bound, trimmed, lock_entity, lock_owner, lock_boot, lock_until_ns"
)
_FIND = f"SELECT {_COLUMNS} FROM logs WHERE pool = ? AND name = ?"  # noqa: S608
_ALL = f"SELECT pool, name, {_COLUMNS} FROM logs ORDER BY pool, name"  # noqa: S608
_MAKE = "INSERT INTO logs (pool, name, uid, kind, width) VALUES (?, ?, ?, ?, ?)"
_LOCK = "UPDATE logs SET lock_entity = ?, lock_owner = ?, lock_boot = ?, lock_until_ns = ? WHERE id = ?"
_BEGIN = "UPDATE logs SET epoch = ?, owner = ?, address = ?, bound = ? WHERE id = ?"
_BOUND = "UPDATE logs SET bound = ? WHERE id = ?"
_LAST = "SELECT max(position) FROM log_entries WHERE log = ?"
_PUT = "INSERT INTO log_entries (log, position, filled, data) VALUES (?, ?, ?, ?)"
_GET = "SELECT filled, data FROM log_entries WHERE log = ? AND position = ?"
_COUNT = "SELECT count(*) FROM log_entries WHERE log = ?"
_REMOVED_EPOCH = "removed_log_epoch"
"""The fact of a file with the largest epoch of all logs that were removed from it: the first epoch of every later log
lies above, so that whoever knows a position of a log that was removed writes nothing to one of its name."""
_KEEP_REMOVED = f"""
INSERT INTO meta (key, value) VALUES ('{_REMOVED_EPOCH}', ?) ON CONFLICT (key) DO UPDATE SET value = max(value, ?)
"""  # noqa: S608 - a constant
_MOST_KEPT = MOST_POSITION // 2
"""An epoch above it, as damage may make one, is not kept: later logs would have none that they could begin."""


class _Row(NamedTuple):
    id: int
    uid: str
    kind: LogKind
    width: int
    epoch: int
    owner: str
    address: str
    bound: int
    trimmed: int
    lock_entity: str
    lock_owner: str
    lock_boot: str
    lock_until_ns: int

    @property
    def projection(self) -> Projection:
        return Projection(self.uid, self.kind, self.width, self.epoch, self.owner, self.address)


class _LogEntry(NamedTuple):
    filled: int
    data: bytes


class SqliteLogs:
    """See `ports.log`. Pools are labels here; positions end at 2^63 - 1."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def _file(self, log: LogName) -> File:
        return self._files.in_first(f"{log.pool.decode('latin-1')}/{log.name.decode('latin-1')}")

    # ------------------------------------------------------------------------------------ logs

    async def create(self, log: LogName, kind: LogKind, width: int) -> Projection:
        """Make a log, with epoch 0."""
        if problem := name_problem(log):
            raise LogRefused(problem)
        if not 1 <= width <= MOST_WIDTH:
            raise LogRefused(f"the width of a log is 1 to {MOST_WIDTH}, not {width}")

        def create(connection: sqlite3.Connection) -> Projection:
            try:
                connection.execute(_MAKE, (log.pool, log.name, secrets.token_hex(8), str(kind), width))
            except sqlite3.IntegrityError:
                raise LogRefused(f"there is a log {log} already") from None
            return _found(connection, log).projection

        return await self._file(log).write(create)

    async def remove(self, log: LogName) -> None:
        """Delete a log with all it holds."""

        def remove(connection: sqlite3.Connection) -> None:
            row = _found(connection, log)
            if self._is_locked(row):
                raise LogLocked(f"a sequencer serves {log} at {row.address}: stop it first")
            connection.execute("DELETE FROM log_entries WHERE log = ?", (row.id,))
            connection.execute("DELETE FROM logs WHERE id = ?", (row.id,))
            if row.epoch <= _MOST_KEPT:
                connection.execute(_KEEP_REMOVED, (row.epoch, row.epoch))

        await self._file(log).write(remove, upkeep=True)

    async def all(self) -> Sequence[tuple[LogName, Projection]]:
        """Every log, by name."""
        found: list[tuple[LogName, Projection]] = []
        for file in self._files.of_first:
            found += await file.read(_projections)
        return sorted(found, key=lambda each: each[0])

    async def projection(self, log: LogName) -> Projection:
        """A log as it is now."""
        return (await self._file(log).read(lambda connection: _found(connection, log))).projection

    # ----------------------------------------------------------------------------------- locks

    async def acquire(self, log: LogName, owner: str, lease_s: float) -> LogLock:
        """Take a log's lock, or extend one's own."""

        def take(connection: sqlite3.Connection) -> LogLock:
            row = _found(connection, log)
            if self._is_locked(row) and (row.lock_entity, row.lock_owner) != (self._me, owner):
                raise LogLocked(f"another sequencer serves {log} at {row.address}")
            connection.execute(_LOCK, (self._me, owner, boot_id(), _until_ns(lease_s), row.id))
            return LogLock(log, owner, row.uid)

        return await self._file(log).write(take, durable=False, upkeep=True)

    async def renew_all(self, locks: Sequence[LogLock], lease_s: float) -> Sequence[StoreError | None]:
        """Extend locks, those of a file in one transaction."""
        by_file: defaultdict[File, list[LogLock]] = defaultdict(list)
        for lock in locks:
            by_file[self._file(lock.log)].append(lock)
        answers: dict[LogLock, StoreError | None] = {}
        for file, of_file in by_file.items():

            def renew(
                connection: sqlite3.Connection, of_file: list[LogLock] = of_file
            ) -> dict[LogLock, StoreError | None]:
                return {lock: self._renew(connection, lock, lease_s) for lock in of_file}

            try:
                answers |= await file.write(renew, durable=False, upkeep=True)
            except StoreError as exc:
                answers |= dict.fromkeys(of_file, exc)
        return [answers[lock] for lock in locks]

    def _renew(self, connection: sqlite3.Connection, lock: LogLock, lease_s: float) -> StoreError | None:
        try:
            row = self._held(connection, lock)
        except StoreError as exc:
            return exc
        connection.execute(_LOCK, (self._me, lock.owner, boot_id(), _until_ns(lease_s), row.id))
        return None

    def place(self, log: LogName) -> File:
        """The file of a log."""
        return self._file(log)

    async def release(self, lock: LogLock) -> None:
        """Give a lock back."""

        def release(connection: sqlite3.Connection) -> None:
            try:
                row = self._held(connection, lock)
            except StoreError:
                return
            connection.execute(_LOCK, ("", "", "", 0, row.id))

        await self._file(lock.log).write(release, durable=False, upkeep=True)

    # ---------------------------------------------------------------------------------- epochs

    async def register(self, lock: LogLock, address: str, reach: int) -> Registered:
        """Begin a new epoch: that is seal and maximum in one, as every write compares the epoch in its transaction."""

        def register(connection: sqlite3.Connection) -> Registered:
            row = self._held(connection, lock)
            if row.kind == LogKind.COUNTER:
                position = row.bound
                bound = min(MOST_POSITION, position + reach)
            else:
                position, bound = _last(connection, row), MOST_POSITION
            epoch = _next_epoch(connection, row)
            connection.execute(_BEGIN, (epoch, lock.owner, address, bound, row.id))
            return Registered(epoch, position, bound)

        return await self._file(lock.log).write(register, upkeep=True)

    async def raise_bound(self, lock: LogLock, epoch: int, bound: int) -> None:
        """Let a counter hand out more."""
        await self._set_bound(lock, epoch, lambda row: max(row.bound, min(bound, MOST_POSITION)))

    async def settle(self, lock: LogLock, epoch: int, position: int) -> None:
        """Leave no hole behind the last position that was handed out."""
        await self._set_bound(lock, epoch, lambda _: position)

    async def _set_bound(self, lock: LogLock, epoch: int, bound: Callable[[_Row], int]) -> None:
        def change(connection: sqlite3.Connection) -> None:
            row = self._held(connection, lock)
            if (row.epoch, row.owner) != (epoch, lock.owner):
                raise StaleEpoch(f"{lock.log} has epoch {row.epoch} by now, not {epoch}")
            if row.kind == LogKind.COUNTER:
                connection.execute(_BOUND, (bound(row), row.id))

        await self._file(lock.log).write(change, upkeep=True)

    async def seal(self, log: LogName) -> int:
        """Begin a new epoch that no server has."""

        def seal(connection: sqlite3.Connection) -> int:
            row = _found(connection, log)
            epoch = _next_epoch(connection, row)
            connection.execute(_BEGIN, (epoch, "", "", row.bound, row.id))
            connection.execute(_LOCK, ("", "", "", 0, row.id))
            return epoch

        return await self._file(log).write(seal, upkeep=True)

    # --------------------------------------------------------------------------------- entries

    async def append(self, log: LogName, epoch: int, position: int, data: bytes) -> None:
        """Write a position once."""
        check_entry(data)
        await self._file(log).write(lambda connection: _put(connection, log, epoch, position, data))

    async def fill(self, log: LogName, epoch: int, position: int) -> None:
        """Write a position off."""
        await self._file(log).write(lambda connection: _put(connection, log, epoch, position, None))

    async def read(self, log: LogName, position: int) -> tuple[Cell, bytes]:
        """What stands at a position, and its data."""

        def read(connection: sqlite3.Connection) -> tuple[Cell, bytes]:
            row = _log_row(connection, log)
            if position <= row.trimmed:
                return Cell.TRIMMED, b""
            if position > MOST_POSITION:  # which the database has no number for
                return Cell.UNWRITTEN, b""
            found = connection.execute(_GET, (row.id, position)).fetchone()
            if found is None:
                return Cell.UNWRITTEN, b""
            entry = typed(connection, _LogEntry, found, "log_entries", f"{log} at {position}")
            return (Cell.FILLED, b"") if entry.filled else (Cell.DATA, entry.data)

        return await self._file(log).read(read)

    async def trim(self, log: LogName, upto: int) -> None:
        """Delete all positions up to this one."""

        def trim(connection: sqlite3.Connection) -> None:
            row = _log_row(connection, log)
            if not row.epoch:
                raise LogRefused(f"{log} was never served: there is nothing to trim")
            if upto > row.trimmed:
                last = min(upto, MOST_POSITION)
                connection.execute("UPDATE logs SET trimmed = ? WHERE id = ?", (last, row.id))
                connection.execute("DELETE FROM log_entries WHERE log = ? AND position <= ?", (row.id, last))

        await self._file(log).write(trim, upkeep=True)

    async def figures(self, log: LogName) -> Figures:
        """What a log holds."""

        def look(connection: sqlite3.Connection) -> Figures:
            row = _found(connection, log)
            (keys,) = connection.execute(_COUNT, (row.id,)).fetchone()
            return Figures(_last(connection, row) if row.kind == LogKind.LOG else row.bound, row.trimmed, keys)

        return await self._file(log).read(look)

    # ----------------------------------------------------------------------------------- shared

    @property
    def _me(self) -> str:
        return self._files.owner.entity

    def _is_locked(self, row: _Row) -> bool:
        is_valid = row.lock_boot == boot_id() and row.lock_until_ns > now_ns()
        return bool(row.lock_entity) and is_valid and not self._files.owner.is_dead(row.lock_entity)

    def _held(self, connection: sqlite3.Connection, lock: LogLock) -> _Row:
        row = _found(connection, lock.log)
        held = (row.uid, row.lock_entity, row.lock_owner) == (lock.id, self._me, lock.owner)
        if not (held and self._is_locked(row)):
            raise OwnershipLost(f"the lock of log {lock.log} is not held by {lock.owner}")
        return row


def _projections(connection: sqlite3.Connection) -> list[tuple[LogName, Projection]]:
    found = []
    for pool, name, *cells in connection.execute(_ALL).fetchall():
        log = LogName(pool, name)
        found.append((log, typed(connection, _Row, cells, "logs", str(log)).projection))
    return found


def _found(connection: sqlite3.Connection, log: LogName) -> _Row:
    row = connection.execute(_FIND, log).fetchone()
    if row is None:
        raise LogUnknown(f"there is no log {log}; `remora log create` makes one")
    return typed(connection, _Row, row, "logs", str(log))


def _log_row(connection: sqlite3.Connection, log: LogName) -> _Row:
    row = _found(connection, log)
    if row.kind != LogKind.LOG:
        raise LogRefused(f"{log} is a counter: it holds no entries")
    return row


def _next_epoch(connection: sqlite3.Connection, row: _Row) -> int:
    return 1 + (row.epoch or number_fact(connection, _REMOVED_EPOCH, default=0))


def _last(connection: sqlite3.Connection, row: _Row) -> int:
    (last,) = connection.execute(_LAST, (row.id,)).fetchone()
    return max(last or 0, row.trimmed)


def _put(connection: sqlite3.Connection, log: LogName, epoch: int, position: int, data: bytes | None) -> None:
    """Write data, or fill where there is none; all that decides is compared in this transaction."""
    row = _log_row(connection, log)
    if not row.epoch:
        raise StaleEpoch(f"stale epoch: {log} was never served, so no position of it was handed out")
    if epoch != row.epoch:
        raise StaleEpoch(f"stale epoch: {log} has epoch {row.epoch} by now, not {epoch}")
    if not 0 < position <= MOST_POSITION:
        raise LogRefused(f"positions of a log are 1 to {MOST_POSITION}, not {position}")
    if position <= row.trimmed:
        raise PositionTrimmed(f"trimmed: {log} is trimmed up to {row.trimmed}")
    found = connection.execute(_GET, (row.id, position)).fetchone()
    if found is not None:
        if data is None and found[0]:
            return
        raise PositionTaken(f"taken: position {position} of {log} is {'filled' if found[0] else 'written'} already")
    connection.execute(_PUT, (row.id, position, data is None, data or b""))


def _until_ns(lease_s: float) -> int:
    return now_ns() + int(lease_s * 1e9)
