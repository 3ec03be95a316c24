"""The writer of a file: what waits together is one transaction, and each job answers for itself alone."""

from __future__ import annotations

import asyncio
import errno
import gc
import itertools
import os
import resource
import sqlite3
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from remora.model.errors import StoreDamaged, StoreError, StoreFull, StoreUnavailable
from remora.policy.ingest import disk_room
from remora.storage.sqlite.files import connections, refusals
from remora.storage.sqlite.files import writer as module
from remora.storage.sqlite.files.allocation import KeptOpen
from remora.storage.sqlite.files.connections import PAGE_BYTES
from remora.storage.sqlite.files.room import Room
from remora.storage.sqlite.files.writer import Around, Writer


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that stalls, others in the way, and a thread that stands still in a transaction: the affair of the tests
    that set these times themselves."""
    for limit in ("ANSWER_WITHIN_S", "_BUSY_FOR_S", "_LONGEST_S"):
        monkeypatch.setattr(module, limit, 120.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with a single table."""
    path = tmp_path / "x.db"
    make(path)
    return path


def make(path: Path) -> None:
    """Make a database of a table, and of that which a file's ballast lies in."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t (x UNIQUE, y BLOB)")
        connection.execute("CREATE TABLE log_entries (log, position, filled, data, PRIMARY KEY (log, position))")


@contextmanager
def a_writer(path: Path, damages: list[StoreDamaged]) -> Iterator[Writer]:
    """A writer, and the descriptor that its room needs."""
    kept = KeptOpen()
    with suppress(FileNotFoundError):
        kept.use(path)
    yield Writer(path, damages.append, Room(path, kept, 1))
    kept.let_go()


@pytest.fixture
def damages() -> list[StoreDamaged]:
    """What the writer told of damage."""
    return []


@pytest.fixture
async def writer(path: Path, damages: list[StoreDamaged]) -> AsyncIterator[Writer]:
    """A writer that is ended after the test."""
    with a_writer(path, damages) as made:
        yield made
        if thread := made.end():
            await asyncio.to_thread(thread.join, 120)
            assert not thread.is_alive()


def insert(value: object, nbytes: int = 0) -> Callable[[sqlite3.Connection], object]:
    """A job that inserts a row and answers its value."""

    def job(connection: sqlite3.Connection) -> object:
        connection.execute("INSERT INTO t VALUES (?, zeroblob(?))", (value, nbytes))
        return value

    return job


def rows(path: Path) -> list[object]:
    """What is in the table, as another connection sees it."""
    with closing(sqlite3.connect(path)) as connection:
        return [value for (value,) in connection.execute("SELECT x FROM t ORDER BY rowid")]


class Gate:
    """A job that lasts until it is let go: what is written meanwhile waits together."""

    def __init__(self) -> None:
        self.entered, self.free = threading.Event(), threading.Event()

    def __call__(self, connection: sqlite3.Connection) -> None:
        self.entered.set()
        assert self.free.wait(120)


async def together(writer: Writer, *jobs: tuple[Callable[[sqlite3.Connection], object], bool]) -> list[object]:
    """The answers of jobs, each with whether it is to be durable, that wait for the writer at the same time."""
    gate = Gate()
    first = asyncio.ensure_future(writer.write(gate, durable=False))
    await asyncio.to_thread(gate.entered.wait, 120)
    waiting = [asyncio.ensure_future(writer.write(job, durable=durable)) for job, durable in jobs]
    await asyncio.sleep(0)
    before = writer.stats.transactions
    gate.free.set()
    await first
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert writer.stats.transactions == before + 2, "they did not share a transaction"
    return list(answers)


async def test_answer_means_committed(writer: Writer, path: Path) -> None:
    """When a job has answered, everybody sees what it wrote."""
    for number in range(3):
        assert await writer.write(insert(number), durable=number == 1) == number
        assert rows(path) == list(range(number + 1))

    assert (writer.stats.transactions, writer.stats.durable, writer.stats.jobs) == (3, 1, 3)


async def test_one_sync_for_all_that_wait(writer: Writer, path: Path) -> None:
    """Jobs that wait together are one transaction, in the order of their arrival, and one of them makes it durable."""
    answers = await together(writer, *((insert(number), number == 30) for number in range(50)))

    assert answers == list(range(50))
    assert rows(path) == list(range(50))
    assert (writer.stats.transactions, writer.stats.durable, writer.stats.jobs) == (2, 1, 51)


@pytest.mark.parametrize(("durable", "mode"), [(True, 2), (False, 1)])
async def test_durable_is_synced(writer: Writer, durable: bool, mode: int) -> None:
    """A durable job runs with full sync, and one that need not be without, also right after one of the other kind."""

    def synchronous(connection: sqlite3.Connection) -> int:
        (found,) = connection.execute("PRAGMA synchronous").fetchone()
        return int(found)

    await writer.write(insert(1), durable=not durable)

    assert await writer.write(synchronous, durable=durable) == mode


async def test_failing_job_is_undone_alone(writer: Writer, path: Path) -> None:
    """A job that raises is undone, whatever it had done before, and gets its exception; the others are committed."""

    def fails(connection: sqlite3.Connection) -> None:
        insert("half")(connection)
        raise StoreError("why")

    def defect(connection: sqlite3.Connection) -> None:
        insert("other half")(connection)
        insert(0)(connection)  # there is one already

    answers = await together(writer, (insert(0), True), (fails, True), (defect, True), (insert(1), True))

    assert answers[::3] == [0, 1]
    assert isinstance(answers[1], StoreError)
    assert isinstance(answers[2], sqlite3.IntegrityError)
    assert rows(path) == [0, 1]


async def test_single_failing_job_is_undone(writer: Writer, path: Path) -> None:
    """A job that is alone in its transaction and raises is undone, and the next one finds everything sound."""

    def fails(connection: sqlite3.Connection) -> None:
        insert("half")(connection)
        raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        await writer.write(fails, durable=True)

    assert await writer.write(insert(1), durable=True) == 1
    assert rows(path) == [1]


def temporary_files() -> list[str]:
    """The files of SQLite's that this process has open and that are deleted already."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(each.readlink()))
    return [name for name in found if "etilqs" in name]


async def test_what_may_be_undone_makes_no_temporary_file(writer: Writer, path: Path) -> None:
    """A job that changed many pages is undone from memory, without a file in the folder for temporary ones."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany("INSERT INTO t VALUES (?, zeroblob(3000))", [(number,) for number in range(100)])
    seen: list[str] = ["not run"]

    def changes_and_fails(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE t SET y = randomblob(3000)")
        seen[:] = temporary_files()
        raise StoreError("why")

    answers = await together(writer, (insert("a"), False), (changes_and_fails, False))

    assert answers[0] == "a"
    assert isinstance(answers[1], StoreError)
    assert seen == []
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM t WHERE y = zeroblob(3000)").fetchone() == (100,)


async def test_nobody_waits_for_ever(writer: Writer, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is given up after a time; what had not begun by then is not done later."""
    monkeypatch.setattr(module, "ANSWER_WITHIN_S", 0.2)
    gate = Gate()
    first = asyncio.ensure_future(writer.write(gate, durable=False))
    second = asyncio.ensure_future(writer.write(insert("late"), durable=False))

    for call in (first, second):
        with pytest.raises(StoreUnavailable, match="no answer"):
            await call
    gate.free.set()
    monkeypatch.setattr(module, "ANSWER_WITHIN_S", 120.0)

    assert await writer.write(insert("next"), durable=False) == "next"
    assert rows(path) == ["next"]


async def test_what_is_given_up_holds_nothing(writer: Writer, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the thread stands still, what a call that was given up or cancelled would have written takes no memory."""

    class Payload:
        """What a job would write."""

    def job_of(payload: Payload) -> Callable[[sqlite3.Connection], object]:
        return lambda _: payload

    gate = Gate()
    first = asyncio.ensure_future(writer.write(gate, durable=False))
    monkeypatch.setattr(module, "ANSWER_WITHIN_S", 0.2)
    payloads = [Payload(), Payload()]
    held = [weakref.ref(each) for each in payloads]
    given_up, cancelled = (asyncio.ensure_future(writer.write(job_of(payloads.pop()), durable=False)) for _ in held)
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(given_up, cancelled, return_exceptions=True)
    del given_up, cancelled
    await asyncio.sleep(0)  # the loop holds what it has just told of
    gc.collect()

    assert [each() for each in held] == [None, None]
    gate.free.set()
    await asyncio.gather(first, return_exceptions=True)


async def test_cancelled_caller(writer: Writer, path: Path) -> None:
    """Who stops waiting before the job has begun has not done anything."""
    gate = Gate()
    first = asyncio.ensure_future(writer.write(gate, durable=False))
    second = asyncio.ensure_future(writer.write(insert("never"), durable=False))
    await asyncio.sleep(0)
    second.cancel()
    gate.free.set()
    await first
    await asyncio.gather(second, return_exceptions=True)
    await writer.write(insert("next"), durable=False)

    assert rows(path) == ["next"]


async def test_others_in_the_way(writer: Writer, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that writes is waited for; one that goes on for too long is told of, and nothing was done."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.ensure_future(writer.write(insert(1), durable=True))
        await asyncio.sleep(0)
        other.execute("INSERT INTO t VALUES (0, NULL)")
        other.execute("COMMIT")
        assert await waiting == 1

        monkeypatch.setattr(module, "_BUSY_FOR_S", 0.1)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="others"):
            await writer.write(insert(2), durable=True)
        other.execute("ROLLBACK")

    assert await writer.write(insert(3), durable=True) == 3
    assert rows(path) == [0, 1, 3]


async def test_others_who_have_the_file_to_themselves(writer: Writer, path: Path) -> None:
    """A file that nobody else may even look at when the first job comes is waited for."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN IMMEDIATE")
        asyncio.get_running_loop().call_later(0.2, other.close)

        assert await writer.write(insert(1), durable=True) == 1


async def test_what_is_too_much_is_refused_alone(writer: Writer, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file may not grow, the jobs that need more room are refused, and those that need none are done."""
    await writer.write(insert(0), durable=True)
    with closing(sqlite3.connect(path)) as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
    used = (pages + 4) * PAGE_BYTES
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used, used))

    jobs = [(insert("large", 50 * PAGE_BYTES), True), (insert(1), False), (insert("larger", 90 * PAGE_BYTES), True)]
    answers = await asyncio.gather(
        *(writer.write(job, durable=durable) for job, durable in jobs), return_exceptions=True
    )

    assert [type(answer) for answer in answers] == [StoreFull, int, StoreFull]
    assert rows(path) == [0, 1]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert await writer.write(jobs[0][0], durable=True) == "large"


async def test_a_log_that_finds_no_room_to_be_shortened_is_left_for_a_while(
    path: Path, damages: list[StoreDamaged], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where what waits in the log finds no page to settle in, that is tried once, and not after each transaction; again
    after a while."""
    monkeypatch.setattr(module, "_TIDY_AGAIN_S", 1e9)
    tried: list[None] = []

    def full(_: sqlite3.Connection) -> None:
        tried.append(None)
        raise StoreFull("full")

    around = Around(is_due=lambda _: True, tidy=full)
    writer = Writer(path, damages.append, Room(path, KeptOpen(), 1), around=around)
    for number in range(5):
        await writer.write(insert(number), durable=False)
    thread = writer.end()
    assert thread is not None
    await asyncio.to_thread(thread.join, 120)
    assert len(tried) == 1

    monkeypatch.setattr(module, "_TIDY_AGAIN_S", 0.0)
    writer = Writer(path, damages.append, Room(path, KeptOpen(), 1), around=around)
    for number in range(5, 8):
        await writer.write(insert(number), durable=False)
    thread = writer.end()
    assert thread is not None
    await asyncio.to_thread(thread.join, 120)
    assert len(tried) == 4


async def test_refused_events_look_for_room_once_in_a_while(
    path: Path, damages: list[StoreDamaged], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many events a full file refuses, what was delivered is looked for once where there is nothing of it."""
    monkeypatch.setattr(module, "_IN_VAIN_S", 1e9)
    looks: list[None] = []

    def nothing(_: sqlite3.Connection) -> bool:
        looks.append(None)
        return False

    def refused(_: sqlite3.Connection) -> None:
        raise StoreFull("full")

    writer = Writer(path, damages.append, Room(path, KeptOpen(), 1), around=Around(make_room=nothing))
    for _ in range(5):
        with pytest.raises(StoreFull):
            await writer.write(refused, durable=False)
    thread = writer.end()
    assert thread is not None
    await asyncio.to_thread(thread.join, 120)

    assert len(looks) == 1


async def test_log_stays_small(writer: Writer, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log begins anew although at each moment somebody reads what was there before the last commit."""
    monkeypatch.setattr(module, "_KEPT_BY_READERS_S", 0.0)  # a thread that stands still has its reader stay
    monkeypatch.setattr(disk_room, "_LOG_BYTES", 1 << 20)
    monkeypatch.setattr(module, "_LARGE_LOG_BYTES", 2 << 20)
    over = threading.Event()
    readers = [sqlite3.connect(path, isolation_level=None, check_same_thread=False) for _ in range(2)]

    def read() -> None:
        for reader in itertools.cycle(readers):
            if reader.in_transaction:
                reader.execute("COMMIT")
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM t").fetchone()
            if over.wait(0.004):
                break

    reading = asyncio.create_task(asyncio.to_thread(read))
    try:
        for number in range(200):
            await writer.write(insert(number, 100_000), durable=False)
        size = path.with_name("x.db-wal").stat().st_size
    finally:
        over.set()
        await reading
        for reader in readers:
            reader.close()

    assert size < 10 << 20, "half of all that was written"


@contextmanager
def restarts_beside_a_reader(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Has a reader that stays; yields what it sees of attempts to begin the log anew."""
    tried = list[str]()

    def noted(connection: sqlite3.Connection) -> bool:
        tried.append("RESTART")
        return connections.begin_log_anew(connection)

    monkeypatch.setattr(module, "begin_log_anew", noted)
    monkeypatch.setattr(connections, "_CHECKPOINT_PATIENCE_MS", 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM t").fetchone()
        yield tried


async def test_a_reader_that_stays_is_waited_for_once(
    writer: Writer, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much of delivery's own finds no room in a file whose log a reader keeps, it waits for that reader
    once, and what finds room is written."""
    monkeypatch.setattr(module, "_KEPT_BY_READERS_S", 1e9)
    await writer.write(insert(0), durable=True)
    with restarts_beside_a_reader(path, monkeypatch) as tried:
        used = os.stat(path).st_size + 4 * PAGE_BYTES
        monkeypatch.setattr(resource, "getrlimit", lambda _: (used, used))
        large = [writer.write(insert(n, 2000 * PAGE_BYTES), durable=False, upkeep=True) for n in range(1, 9)]
        answers = await asyncio.gather(*large, return_exceptions=True)

        assert {type(answer) for answer in answers} == {StoreFull}
        assert len(tried) == 1
        assert await writer.write(insert(9), durable=False, upkeep=True) == 9


async def test_a_large_log_that_a_reader_keeps(writer: Writer, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions behind it wait for the reader once, and not each of them; again after a while."""
    monkeypatch.setattr(module, "_LARGE_LOG_BYTES", 1)
    monkeypatch.setattr(module, "_KEPT_BY_READERS_S", 0.0)
    await writer.write(insert(0), durable=False)
    with restarts_beside_a_reader(path, monkeypatch) as tried:
        for number in range(1, 4):
            await writer.write(insert(number), durable=False)
        assert len(tried) == 3

        monkeypatch.setattr(module, "_KEPT_BY_READERS_S", 1e9)
        for number in range(4, 9):
            await writer.write(insert(number), durable=False)
        assert len(tried) == 4


async def test_file_that_is_none(tmp_path: Path, damages: list[StoreDamaged]) -> None:
    """A file that is no database is damage, told to who asked and to the store; the thread goes on."""
    path = tmp_path / "x.db"
    path.write_bytes(b"not a database at all, by no means" * 100)
    writer = Writer(path, damages.append, Room(path, KeptOpen(), 1))

    for _ in range(2):
        with pytest.raises(StoreDamaged, match=r"x\.db"):
            await writer.write(insert(1), durable=True)

    assert len(damages) == 2
    assert "x.db" in writer.stats.last_error
    thread = writer.end()
    assert thread is not None
    await asyncio.to_thread(thread.join, 120)


async def test_missing_file(tmp_path: Path, damages: list[StoreDamaged]) -> None:
    """A file that is gone is no reason to make an empty one, and none for the thread to end: it may come back."""
    path = tmp_path / "x.db"
    writer = Writer(path, damages.append, Room(path, KeptOpen(), 1))
    with pytest.raises(StoreUnavailable):
        await writer.write(insert(1), durable=True)
    assert not path.exists()

    make(path)
    assert await writer.write(insert(1), durable=True) == 1

    thread = writer.end()
    assert thread is not None
    await asyncio.to_thread(thread.join, 120)


async def test_end_does_what_was_asked_for(path: Path, damages: list[StoreDamaged]) -> None:
    """Whatever was asked for before the end is done; a writer that was never asked has no thread."""
    with a_writer(path, damages) as idle:
        assert idle.end() is None
    with a_writer(path, damages) as writer:
        for number in range(10):
            writer.post(insert(number))

        thread = writer.end()
        assert thread is not None
        await asyncio.to_thread(thread.join, 120)

    assert rows(path) == list(range(10))
    assert not path.with_name("x.db-wal").exists()


async def test_a_host_that_has_no_thread_to_give(writer: Writer, path: Path) -> None:
    """The job is refused, and the next one is carried out as soon as the host gives a thread."""
    threading.stack_size(1 << 46)  # more than there is of addresses
    try:
        with pytest.raises(StoreUnavailable, match=r"x\.db.*thread"):
            await writer.write(insert(1), durable=True)
    finally:
        threading.stack_size(0)

    assert await writer.write(insert(2), durable=True) == 2
    assert (rows(path), writer.waiting) == ([2], 0)


async def test_what_may_wait_shares_the_transaction_of_what_may_not(
    path: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that may wait are done ahead of the next one that may not, in its transaction."""
    monkeypatch.setattr(module, "PATIENCE_S", 120.0)
    kept = [asyncio.create_task(writer.write(insert(value), durable=False, may_wait=True)) for value in (1, 2)]
    await asyncio.sleep(0)
    assert writer.stats.transactions == 0

    await writer.write(insert(3), durable=True)

    assert [await each for each in kept] == [1, 2]
    assert writer.stats.transactions == 1
    assert rows(path) == [1, 2, 3]


async def test_what_may_wait_is_done_alone_after_a_moment(path: Path, writer: Writer) -> None:
    """A job that may wait is done soon, though no other one comes."""
    assert await writer.write(insert(1), durable=False, may_wait=True) == 1

    assert rows(path) == [1]


async def test_what_was_kept_for_company_is_done_at_the_end(
    path: Path, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that is ended does what it has kept before its thread ends."""
    monkeypatch.setattr(module, "PATIENCE_S", 120.0)
    kept = asyncio.create_task(writer.write(insert(1), durable=False, may_wait=True))
    await asyncio.sleep(0)

    thread = writer.end()
    assert thread is not None
    await asyncio.to_thread(thread.join, 120)

    assert rows(path) == [1]
    assert await kept == 1


def of_the_disk() -> sqlite3.OperationalError:
    """What SQLite raises where a sync fails."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    return error


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done to begin the log anew."""
    done = list[str]()

    def noted(connection: sqlite3.Connection) -> bool:
        done.append("RESTART")
        return connections.begin_log_anew(connection)

    monkeypatch.setattr(module, "begin_log_anew", noted)
    return done


@pytest.mark.parametrize("mounted", [None, OSError(errno.EROFS, "read-only"), OSError(errno.ENOSPC, "full")], ids=repr)
async def test_who_writes_next_begins_the_log_anew(
    path: Path, anew: list[str], monkeypatch: pytest.MonkeyPatch, mounted: OSError | None
) -> None:
    """Where a sync fails, whatever the disk says of itself then, nothing is written before the log is begun anew, also
    by a writer that comes in the place of the first one."""
    monkeypatch.setattr(refusals, "_tried", lambda _: mounted)

    def fails(_: sqlite3.Connection) -> None:
        raise of_the_disk()

    with a_writer(path, []) as first:
        await first.write(insert(0), durable=True)
        with pytest.raises(StoreError):
            await first.write(fails, durable=True)
        await ended(first)
    with a_writer(path, []) as second:
        before = len(anew)
        for number in range(1, 3):
            await second.write(insert(number), durable=True)
            assert len(anew) == before + 1
        await ended(second)


async def ended(writer: Writer) -> None:
    """Wait for its end."""
    if thread := writer.end():
        await asyncio.to_thread(thread.join, 120)


async def test_a_copy_of_the_log_that_fails_is_noticed(
    writer: Writer, path: Path, anew: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk fails while a long log is copied into the file, what was committed is answered for, and the log is
    begun anew before anything else is written."""
    monkeypatch.setattr(disk_room, "_LOG_BYTES", 1 << 20)
    execute = connections.FileConnection.execute

    def failing(connection: sqlite3.Connection, sql: str, *values: Any) -> sqlite3.Cursor:
        if "wal_checkpoint(PASSIVE)" in sql:
            raise of_the_disk()
        return execute(connection, sql, *values)

    monkeypatch.setattr(connections.FileConnection, "execute", failing)
    for number in range(3):
        assert await writer.write(insert(number, 400_000), durable=False) == number
    assert anew == ["RESTART"]
    assert "x.db" in writer.stats.last_error
