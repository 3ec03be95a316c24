"""The one thread that writes to a file: whatever waits for it becomes one transaction with one sync."""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from remora.model.errors import RowDamaged, StoreAway, StoreDamaged, StoreError, StoreFull, StoreUnavailable
from remora.policy.ingest.disk_room import SCARCE_PAGES
from remora.policy.status.stages import EventStage
from remora.ports.stages import NO_METER, StageMeter
from remora.storage.sqlite.files.allocation import log_of
from remora.storage.sqlite.files.connections import FileConnection, begin_log_anew, connect, pages_left
from remora.storage.sqlite.files.refusals import ends_transaction, is_busy, is_of_the_disk, kept_busy, translated
from remora.storage.sqlite.files.room import Room

T = TypeVar("T")

Job = Callable[[sqlite3.Connection], T]
"""What is to be done within a transaction that others share. A job may be run again after it was rolled back, so it
keeps nothing from one run to the next; an exception of it undoes what it did, and nothing else."""

Done = Callable[[T | BaseException], None]
"""Gets in the event loop what a job returns when its transaction is committed, or why it was not done."""

ANSWER_WITHIN_S = 10.0
"""How long a caller waits for its transaction."""

_BUSY_FOR_S = 5.0
_BUSY_PAUSE_S = 0.0002
"""Another process that writes is done in a moment. SQLite's own waiting sleeps up to 100 ms between two tries, and
starves."""

PATIENCE_S = 0.005
"""How long an order that may wait is kept for one that may not, whose transaction it shares: its own costs more."""

_MOST_JOBS = 1024
_LONGEST_S = 0.025
"""A transaction takes no further jobs after this time, so that the first ones need not wait for the last."""

_LARGE_LOG_BYTES = 64 << 20
_IN_VAIN_S = 0.05
"""How long nothing is looked for in a full file after a look that found nothing to remove, or that no event asked for:
else each transaction would cost one."""

_TIDY_AGAIN_S = 1.0
"""How long a log that could not be shortened, for want of room or for a damaged row, is left as it is."""

_KEPT_BY_READERS_S = 1.0
"""How long a log is left as it is after a wait for readers in vain. Without a pause every order that finds no room, and
every transaction behind a large log, would wait for a reader that stays."""


@dataclass(slots=True)
class WriterStats:
    """What a file's writer did since it was opened. `durable` transactions were synced."""

    transactions: int = 0
    durable: int = 0
    jobs: int = 0
    last_error: str = ""


@dataclass(slots=True, eq=False)
class _QueuedJob:
    """A job, and the future that waits for it; None for those that are posted, which tell `done`."""

    job: Job[Any]
    durable: bool
    upkeep: bool
    future: asyncio.Future[Any] | None
    done: Done[Any] | None = None
    since: float = field(default_factory=time.monotonic)
    result: Any = None
    error: BaseException | None = None

    def let_go(self) -> None:
        """Keep nothing of a job that nobody waits for. The job goes first: it is not done where its future has gone."""
        self.job, self.future = (lambda _: None), None


@dataclass(frozen=True, slots=True)
class Around:
    """What belongs to the file's transactions: `begun` raises in one that must not be; `tidy` runs in one of its own
    after each in which `is_due`; `make_room` removes what was delivered, and tells whether there was any."""

    begun: Callable[[sqlite3.Connection], None] = lambda _: None
    is_due: Callable[[sqlite3.Connection], bool] = lambda _: False
    tidy: Callable[[sqlite3.Connection], None] = lambda _: None
    make_room: Callable[[sqlite3.Connection], bool] = lambda _: False


_NOTHING_AROUND = Around()


class Writer:
    """Runs jobs in the order of their arrival, in a thread that starts with the first of them.

    `on_damage` is called in the event loop for damage of the file, or of a row that a job needs; `check` in the thread
    before each transaction, and raises where there must be none. `room` is what the file has of the disk.
    """

    def __init__(
        self,
        path: Path,
        on_damage: Callable[[StoreDamaged], None],
        room: Room,
        check: Callable[[], None] = lambda: None,
        around: Around = _NOTHING_AROUND,
        meter: StageMeter = NO_METER,
    ) -> None:
        self.stats = WriterStats()
        self.waiting = 0  # jobs that are not done yet
        self._meter = meter
        self._times: list[tuple[EventStage, float]] = []
        self._path = path
        self._log = log_of(path)
        self._room = room
        self._on_damage = on_damage
        self._check = check
        self._around = around
        self._orders: queue.SimpleQueue[Sequence[_QueuedJob] | None] = queue.SimpleQueue()
        self._kept: list[_QueuedJob] = []
        self._kept_until: asyncio.TimerHandle | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._connection: FileConnection | None = None
        self._is_durable: bool | None = None
        self._is_ending = False
        self._log_is_kept_until = self._is_untidy_until = 0.0
        self._room_is_left_until = self._nothing_to_remove_until = 0.0

    # ------------------------------------------------------------------------------------- in the event loop

    async def write(self, job: Job[T], *, durable: bool, upkeep: bool = False, may_wait: bool = False) -> T:
        """What the job returns, once its transaction is committed; with `durable`, synced.

        Jobs that are not `upkeep` leave the room alone that delivery needs. One that `may_wait` is kept for a moment.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._submit(order := _QueuedJob(job, durable, upkeep, future), may_wait=may_wait)
        alarm = loop.call_later(ANSWER_WITHIN_S, _give_up, future, self._path)
        try:
            return await future
        finally:
            alarm.cancel()
            order.let_go()

    def post(self, job: Job[T], done: Done[T] | None = None) -> None:
        """Have a job of upkeep run without waiting for it, and without a sync of its own."""
        self._submit(_QueuedJob(job, False, True, None, done))

    @property
    def is_at_work(self) -> bool:
        """Whether its thread has not ended, and may have the file open."""
        return self._thread is not None and self._thread.is_alive()

    def end(self) -> threading.Thread | None:
        """Take nothing more; the thread, if there is one, ends when what waits is done."""
        self._hand_over()
        self._orders.put(None)
        return self._thread

    def _submit(self, order: _QueuedJob, *, may_wait: bool = False) -> None:
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            thread = threading.Thread(target=self._run, name=self._path.stem, daemon=True)
            try:
                thread.start()
            except RuntimeError as exc:
                raise StoreUnavailable(f"{self._path}: the host gives no thread to write it with") from exc
            self._thread = thread
        self.waiting += 1
        self._kept.append(order)
        if not may_wait:
            self._hand_over()
        elif self._kept_until is None:
            self._kept_until = self._loop.call_later(PATIENCE_S, self._hand_over)

    def _hand_over(self) -> None:
        """Let the thread have all that was kept, as orders of one transaction."""
        if self._kept_until is not None:
            self._kept_until.cancel()
            self._kept_until = None
        orders, self._kept = self._kept, []
        if orders:
            self._orders.put(orders)

    def _settle(self, orders: Sequence[_QueuedJob], times: Sequence[tuple[EventStage, float]]) -> None:
        self.waiting -= len(orders)
        for stage, seconds in times:
            self._meter.stage_took(stage, "sqlite", seconds)
        for order in orders:
            if isinstance(order.error, StoreDamaged):
                self._on_damage(order.error)
            if order.done is not None:
                order.done(order.result if order.error is None else order.error)
            if order.future is None or order.future.done():
                continue
            if order.error is not None:
                order.future.set_exception(order.error)
            else:
                order.future.set_result(order.result)

    # ----------------------------------------------------------------------------------------- in the thread

    def _run(self) -> None:
        waiting: deque[_QueuedJob] = deque()
        while self._take(waiting):
            while waiting:
                self._serve(waiting)
                self._take_more(waiting)
        self._disconnect()

    def _take(self, waiting: deque[_QueuedJob]) -> bool:
        """Wait for the next orders, and take all that are there; False when nothing more will come."""
        if self._is_ending or (orders := self._orders.get()) is None:
            return False
        waiting.extend(orders)
        self._take_more(waiting)
        return True

    def _take_more(self, waiting: deque[_QueuedJob]) -> None:
        with suppress(queue.Empty):
            while not self._is_ending:
                if (orders := self._orders.get_nowait()) is None:
                    self._is_ending = True
                else:
                    waiting.extend(orders)

    def _serve(self, waiting: deque[_QueuedJob]) -> None:
        """Run what waits, or the first part of it, as one transaction, and tell the results."""
        batch: list[_QueuedJob] = []
        try:
            self._transact(waiting, batch)
        except Exception as exc:  # the thread outlives whatever happens in a transaction
            error = self._recover(exc)
            if not batch:  # it did not even begin, and for the others it would not either
                batch.extend(waiting)
                waiting.clear()
            if isinstance(error, StoreFull):
                for order in batch:
                    self._alone(order)
            else:
                for order in batch:
                    order.error = error
        else:
            for order in batch:
                if isinstance(order.error, StoreFull):  # of events, while delivery has used its last room
                    self._again(order, [self._make_room_for_events])
        times, self._times = self._times, []
        with suppress(RuntimeError):  # the loop may be closed already when a call was given up
            self._loop.call_soon_threadsafe(self._settle, batch, times)
        self._clean_up()

    def _clean_up(self) -> None:
        """Do what keeps the file small, and free pages for what comes next where it cannot grow."""
        while (
            self._connection is not None
            and self._around.is_due(self._connection)
            and time.monotonic() >= self._is_untidy_until
            and self._tidy()
        ):
            pass
        if self._connection is None or (now := time.monotonic()) < self._room_is_left_until:
            return
        self._room_is_left_until = now + _IN_VAIN_S
        with suppress(sqlite3.Error):  # which the next transaction meets
            if pages_left(self._connection) < SCARCE_PAGES:
                self._make_room_for_events()

    def _transact(self, waiting: deque[_QueuedJob], batch: list[_QueuedJob]) -> None:
        """Move orders from `waiting` to `batch` and carry them out: all that the transaction takes."""
        durable = any(order.durable for order in waiting)
        shared = len(waiting) > 1
        asked = time.monotonic()
        connection = self._begin(durable)
        until = time.monotonic() + _LONGEST_S
        while waiting and len(batch) < _MOST_JOBS and (not batch or time.monotonic() < until):
            batch.append(waiting.popleft())
            self._one(connection, batch[-1], shared)
        written = time.monotonic()
        if connection.in_transaction:
            self._commit(connection)
        if durable:  # an event's own: removals and renewals wait for nobody's sync
            since = next((order.since for order in batch if order.durable), asked)
            self._times.append((EventStage.COMMIT_QUEUE, max(0.0, asked - since)))
            self._times.append((EventStage.COMMIT_WRITE, written - asked))
            self._times.append((EventStage.COMMIT_SYNC, time.monotonic() - written))
        self.stats.transactions += 1
        self.stats.durable += durable
        self.stats.jobs += len(batch)
        with suppress(FileNotFoundError):  # nothing was ever written
            if os.stat(self._log).st_size > _LARGE_LOG_BYTES:
                self._begin_log_anew()

    def _tidy(self) -> bool:
        """Shorten the log, which no order waits for; what fails now is done after a later one."""
        began = time.monotonic()
        done = self._aside(self._around.tidy)
        if isinstance(done, RowDamaged):
            self._make_room()  # what was delivered goes all the same, wherever it stands
        self._times.append((EventStage.CHECKPOINT, time.monotonic() - began))
        if isinstance(done, StoreFull | RowDamaged):
            self._is_untidy_until = time.monotonic() + _TIDY_AGAIN_S
        return not isinstance(done, StoreError)

    def _make_room(self) -> None:
        """Have what was delivered give its pages back."""
        if self._aside(self._around.make_room) is not True:
            self._nothing_to_remove_until = time.monotonic() + _IN_VAIN_S

    def _make_room_for_events(self) -> None:
        """The same, unless that was in vain a moment ago."""
        if time.monotonic() >= self._nothing_to_remove_until:
            self._make_room()

    def _aside(self, job: Job[T]) -> T | StoreError:
        """Run a job of the file's own in a transaction of its own; what it returns, or why that was not done."""
        try:
            connection = self._begin(durable=False)
            result = job(connection)
            self._commit(connection)
        except Exception as exc:
            error = self._recover(exc)
            if isinstance(error, StoreDamaged):
                with suppress(RuntimeError):  # the loop may be closed already
                    self._loop.call_soon_threadsafe(self._on_damage, error)
            return error
        return result

    def _one(self, connection: FileConnection, order: _QueuedJob, shared: bool) -> None:
        """Run one job. What it raises is its own affair, unless the whole transaction cannot go on."""
        order.result = order.error = None
        future = order.future  # which goes when the caller does
        if future is not None and future.done():
            return
        if not order.upkeep and not self._room.takes_events(connection):
            order.error = self._room.refusal()
            return
        if shared:
            connection.execute("SAVEPOINT job")
        try:
            order.result = order.job(connection)
        except Exception as exc:  # handed to the caller, whatever it is
            if isinstance(exc, sqlite3.Error) and (ends_transaction(exc) or not connection.in_transaction):
                raise
            if shared:
                connection.execute("ROLLBACK TO job")
                connection.forget()
            else:
                self._roll_back(connection)
            order.error = exc
        if shared:
            connection.execute("RELEASE job")

    def _alone(self, order: _QueuedJob) -> None:
        """Run an order again that found no room.

        It may find some in what was delivered, which is the cheapest to try, and in the log, once that was copied; and
        upkeep in the ballast.
        """
        if order.upkeep:
            self._again(
                order, [self._make_room, self._copy_log, self._begin_log_anew, self._give_ballast_up, self._tidy]
            )
        else:
            self._again(order, [self._make_room_for_events, self._copy_log])

    def _again(self, order: _QueuedJob, ways: Sequence[Callable[[], object]]) -> None:
        """Run an order after each of these ways to make room for it, until it finds some."""
        for make_room in ways:
            make_room()
            try:
                self._transact(deque([order]), [])
            except Exception as exc:
                order.error = self._recover(exc)
            if not isinstance(order.error, StoreFull):
                return

    def _commit(self, connection: FileConnection) -> None:
        """Commit, and copy the log into the file where it has become long."""
        self._room.cover(connection)
        connection.execute("COMMIT")
        frames = connection.shared_index.frames()
        if frames is None or frames >= self._room.checkpoint_frames:
            self._copy_log()

    def _copy_log(self) -> None:
        self._try(lambda connection: connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone())

    def _try(self, copy: Callable[[FileConnection], T]) -> T | None:
        """Copy the log, or note why that failed: what was committed stays so."""
        try:
            return None if self._connection is None else copy(self._connection)
        except sqlite3.Error as exc:
            self._met(exc)
        return None

    def _begin_log_anew(self) -> None:
        if self._connection is not None and time.monotonic() >= self._log_is_kept_until:
            began = time.monotonic()
            if self._try(begin_log_anew) is False:
                self._log_is_kept_until = time.monotonic() + _KEPT_BY_READERS_S
            self._times.append((EventStage.CHECKPOINT, time.monotonic() - began))

    def _give_ballast_up(self) -> None:
        try:
            connection = self._begin(durable=False)
            self._room.give_ballast_up(connection)
            connection.execute("COMMIT")
        except Exception as exc:
            self._recover(exc)

    def _begin(self, durable: bool) -> FileConnection:
        until = time.monotonic() + _BUSY_FOR_S
        while True:
            try:
                return self._begun(durable)
            except sqlite3.OperationalError as exc:
                if not is_busy(exc):
                    raise
                if time.monotonic() > until:
                    raise kept_busy(exc, self._path, _BUSY_FOR_S) from exc
                time.sleep(_BUSY_PAUSE_S)

    def _begun(self, durable: bool) -> FileConnection:
        self._check()
        if self._connection is None:
            self._connection = connect(self._path, reader=False)
            self._room.adapt(self._connection)
        connection = self._connection
        if durable is not self._is_durable:
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._is_durable = durable
        if connection.is_log_doubted:
            if not begin_log_anew(connection):
                raise StoreUnavailable(f"{self._path}: others read what is copied after a fault of the disk")
            connection.is_log_doubted = False
        self._room.limit_growth(connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._around.begun(connection)
        except StoreAway:
            self._roll_back(connection)
            if not connection.shared_index.is_replaced:
                with suppress(sqlite3.Error):  # of a log that nobody finds any more
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            raise
        self._room.keep_log()
        return connection

    def _recover(self, exc: Exception) -> StoreError:
        """Undo the transaction, with a new connection where this one may not be trusted; what the error means."""
        error = self._met(exc)
        try:
            if self._connection is not None:
                self._connection.forget()
                if self._connection.in_transaction:
                    self._roll_back(self._connection)
        except sqlite3.Error:
            self._disconnect()
        if not isinstance(error, StoreFull):
            self._disconnect()
        return error

    def _met(self, exc: Exception) -> StoreError:
        """What an error means. One of the disk casts doubt on the log, whatever the disk says of itself by now."""
        error = self._room.explained(translated(exc, self._path))
        self.stats.last_error = str(error)
        if self._connection is not None and is_of_the_disk(exc):
            self._connection.is_log_doubted = True
        return error

    def _roll_back(self, connection: FileConnection) -> None:
        self._room.undone()
        connection.forget()
        connection.execute("ROLLBACK")

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
        self._connection, self._is_durable = None, None


def _give_up(future: asyncio.Future[Any], path: Path) -> None:
    if not future.done():
        future.set_exception(StoreUnavailable(f"{path}: no answer within {ANSWER_WITHIN_S:g} s"))
