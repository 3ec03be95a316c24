"""The embedded store shared by processes: whose locks count, and how one learns what another has committed."""

from __future__ import annotations

import asyncio
import errno
import signal
import sqlite3
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from devkit.processes.programs import ENVIRONMENT
from devkit.waits import PATIENT_S, until
from remora.config import SqliteSettings
from remora.model.errors import OwnershipLost, StoreUnavailable
from remora.model.ingest import RoutedEvent
from remora.model.ledger import Tally
from remora.model.member import Member
from remora.model.shard import LockHolder, LockToken, Shard
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.files import doorbell
from remora.storage.sqlite.queues import arrivals
from support.stores import QUIET_S, own_topic, renew

FOR_EVER_S = 3600.0


@pytest.fixture
def settings(tmp_path: Path) -> SqliteSettings:
    """A directory of two files."""
    return SqliteSettings(directory=str(tmp_path / "store"), files=2)


@pytest.fixture
async def store(settings: SqliteSettings) -> AsyncIterator[SqliteStore]:
    """An open store."""
    async with SqliteStore(settings) as opened:
        yield opened


@asynccontextmanager
async def holder(settings: SqliteSettings, topic: Topic, lease_s: float = FOR_EVER_S) -> AsyncIterator[Process]:
    """Another process that has the locks of all of a topic's shards."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-m", "support.sqlite_holder", settings.directory, topic.name, str(lease_s)),
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        await answer(process, b"held\n")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def answer(process: Process, expected: bytes) -> None:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENT_S):
        assert await process.stdout.readline() == expected


async def commit_there(process: Process) -> None:
    """Have the other process commit an entry to each shard."""
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    await process.stdin.drain()
    await answer(process, b"committed\n")


# ------------------------------------------------------------------------------------------------ locks


async def test_lock_of_a_living_process(store: SqliteStore, settings: SqliteSettings) -> None:
    """A lock that another process holds is refused here, and the refusal names that process."""
    topic = await store.own_topics.create(own_topic("t"))

    async with holder(settings, topic) as process:
        found = await store.locks.acquire(topic.shard(1), "me", QUIET_S)

    assert isinstance(found, LockHolder)
    assert (found.cookie, found.lease_left_s > FOR_EVER_S / 2) == ("holder", True)
    assert f"pid-{process.pid}." in found.entity


@pytest.mark.guarantee("in-the-embedded-store")
async def test_lock_of_a_dead_process(store: SqliteStore, settings: SqliteSettings) -> None:
    """The locks of a process that was killed are free at once, however long their leases had yet to run."""
    topic = await store.own_topics.create(own_topic("t"))

    async with holder(settings, topic) as process:
        process.kill()
        await process.wait()
        stats = await store.inspection.stats(topic.shard(0))
        taken = [await store.locks.acquire(shard, "me", QUIET_S) for shard in topic.all_shards()]

    assert all(isinstance(each, LockToken) for each in taken)
    assert stats.holder is not None
    assert (stats.holder.cookie, stats.holder.lease_left_s) == ("holder", 0)


@pytest.mark.guarantee("in-the-embedded-store")
async def test_lock_of_a_frozen_process(store: SqliteStore, settings: SqliteSettings) -> None:
    """A process that is frozen is not taken for dead: its lock is kept until its lease has run out, and then lost."""
    topic, brief = await store.own_topics.create(own_topic("t")), await store.own_topics.create(own_topic("brief", 1))

    async with holder(settings, topic) as process, holder(settings, brief, 1.0) as other:
        for each in (process, other):
            each.send_signal(signal.SIGSTOP)

        async def freed() -> bool:
            return isinstance(await store.locks.acquire(brief.shard(0), "me", QUIET_S), LockToken)

        await until(freed)
        assert isinstance(await store.locks.acquire(topic.shard(1), "me", QUIET_S), LockHolder)


async def test_lock_of_a_closed_store(store: SqliteStore, settings: SqliteSettings) -> None:
    """A process that closes the store leaves no lock behind that others would have to wait for."""
    topic = await store.own_topics.create(own_topic("t"))
    async with SqliteStore(settings) as other:
        assert isinstance(await other.locks.acquire(topic.shard(0), "w", QUIET_S), LockToken)
        assert isinstance(await store.locks.acquire(topic.shard(0), "w", QUIET_S), LockHolder)

    assert isinstance(await store.locks.acquire(topic.shard(0), "w", QUIET_S), LockToken)


async def test_worker_of_a_closed_store(store: SqliteStore, settings: SqliteSettings) -> None:
    """A worker whose store is closed, as by the death of its process, counts no more, however long it had yet."""
    async with SqliteStore(settings) as other:
        await other.members.announce(Member("remora/h/b/w", "h"), FOR_EVER_S)
        assert [each.cookie for each in await store.members.live()] == ["remora/h/b/w"]

    assert await store.members.live() == []


async def test_worker_of_an_earlier_start_of_the_host(store: SqliteStore) -> None:
    """A worker that announced itself before the host was last started does not count, and its row goes."""
    await store.members.announce(Member("remora/h/b/w", "h"), FOR_EVER_S)
    with closing(sqlite3.connect(store._files.all[0].path)) as connection, connection:
        connection.execute("UPDATE members SET boot = 'an earlier one', until_ns = 1 << 62")

    assert await store.members.live() == []
    await store.members.announce(Member("remora/h/b/other", "h"), FOR_EVER_S)
    with closing(sqlite3.connect(store._files.all[0].path)) as connection:
        assert connection.execute("SELECT cookie FROM members").fetchall() == [("remora/h/b/other",)]


@pytest.mark.guarantee("in-the-embedded-store")
async def test_lock_of_an_earlier_start_of_the_host(store: SqliteStore) -> None:
    """A lock that was taken before the host was last started counts for nothing, whatever its lease says."""
    topic = await store.own_topics.create(own_topic("t"))
    token = await store.locks.acquire(topic.shard(0), "w", QUIET_S)
    assert isinstance(token, LockToken)

    with closing(sqlite3.connect(store._files.file_of("t").path)) as connection, connection:
        connection.execute("UPDATE locks SET boot = 'an earlier one', until_ns = 1 << 62")

    with pytest.raises(OwnershipLost):
        await store.queue.read(token, b"", 1)
    with pytest.raises(OwnershipLost):
        await renew(store, token, QUIET_S)
    assert isinstance(await store.locks.acquire(topic.shard(0), "another", QUIET_S), LockToken)


async def test_traces_of_the_dead_are_swept(store: SqliteStore, settings: SqliteSettings) -> None:
    """What a killed process left to tell that it lived is gone with the next start, and that of the living stays."""
    topic = await store.own_topics.create(own_topic("t"))
    owners = Path(settings.directory) / "owners"
    async with holder(settings, topic) as process:
        process.kill()
        await process.wait()
        assert len(list(owners.iterdir())) == 2

        async with SqliteStore(settings):
            assert len(list(owners.iterdir())) == 2

    assert len(list(owners.iterdir())) == 1


# --------------------------------------------------------------------------------------------- arrivals


async def arrived(store: SqliteStore, wanted: set[Shard]) -> set[Shard]:
    """The queues that announce themselves until all that are wanted have."""
    found: set[Shard] = set()
    async with asyncio.timeout(PATIENT_S):
        while not wanted <= found:
            answered = await store.arrivals.wait()
            assert len(set(answered)) == len(answered)
            found |= set(answered)
    return found


async def test_arrivals_of_this_process(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process commits announces itself without anybody's looking for it, that queue and no other."""
    monkeypatch.setattr(arrivals, "_LOOK_EVERY_S", FOR_EVER_S)
    topic, other = await store.own_topics.create(own_topic("t")), await store.own_topics.create(own_topic("u"))
    assert store.arrivals.notifies

    await store.ingest.publish(topic, [RoutedEvent(1, b"b:k", b"x"), RoutedEvent(2, b"b:k", b"y")])
    await store.two_phase.commit(other.shard(0), await store.two_phase.reserve(other.shard(0), 1, 9), [b"z"])

    expected = {topic.shard(1), topic.shard(2), other.shard(0)}
    assert await arrived(store, expected) == expected


async def test_arrivals_of_another_process(store: SqliteStore, settings: SqliteSettings) -> None:
    """What another process commits announces itself too, time after time, that queue and no other."""
    topic = await store.own_topics.create(own_topic("t"))
    await store.own_topics.create(own_topic("u"))
    expected = set(topic.all_shards())

    async with holder(settings, topic) as process:
        for _ in range(3):
            await commit_there(process)
            assert await arrived(store, expected) == expected


async def test_another_process_is_heard(
    store: SqliteStore, settings: SqliteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another process commits is told without anybody's looking for it."""
    monkeypatch.setattr(arrivals, "_LOOK_EVERY_S", FOR_EVER_S)
    topic = await store.own_topics.create(own_topic("t"))
    expected = set(topic.all_shards())

    async with holder(settings, topic) as process:
        waiting = asyncio.ensure_future(arrived(store, expected))
        for _ in range(3):
            await commit_there(process)
            assert await waiting == expected
            waiting = asyncio.ensure_future(arrived(store, expected))
        waiting.cancel()


async def test_arrivals_without_a_doorbell(
    store: SqliteStore, settings: SqliteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kernel gives no watch, what another process commits is found by looking."""

    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(arrivals, "Listener", none_left)
    topic = await store.own_topics.create(own_topic("t"))
    expected = set(topic.all_shards())

    async with holder(settings, topic) as process:
        await commit_there(process)
        assert await arrived(store, expected) == expected


async def test_a_lost_ring_is_looked_for(
    store: SqliteStore, settings: SqliteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit for which nobody rang, as its process was killed just then, is found by looking."""
    topic = await store.own_topics.create(own_topic("t"))
    waiting = asyncio.ensure_future(arrived(store, {topic.shard(1)}))
    await asyncio.sleep(0)

    async with SqliteStore(settings) as other:
        monkeypatch.setattr(doorbell, "ring", lambda path: None)
        await other.ingest.publish(topic, [RoutedEvent(1, b"b:k", b"x")])

        assert await waiting == {topic.shard(1)}


async def test_arrivals_since_the_store_was_opened(settings: SqliteSettings) -> None:
    """A commit between the opening and the first wait, by any process or to a new topic, is not missed."""
    async with SqliteStore(settings) as maker:
        topic = await maker.own_topics.create(own_topic("t"))
        await maker.ingest.publish(topic, [RoutedEvent(0, b"b:k", b"before")])
        async with SqliteStore(settings) as store:
            new = await maker.own_topics.create(own_topic("u"))
            await maker.ingest.publish(topic, [RoutedEvent(1, b"b:k", b"x")])
            await maker.ingest.publish(new, [RoutedEvent(2, b"b:k", b"x")])

            expected = {topic.shard(1), new.shard(2)}
            assert await arrived(store, expected) == expected


async def test_nothing_arrives(store: SqliteStore, settings: SqliteSettings) -> None:
    """Removals, locks, reservations and new topics are no arrivals."""
    topic = await store.own_topics.create(own_topic("t"))
    await store.ingest.publish(topic, [RoutedEvent(0, b"b:k", b"x")])
    await arrived(store, {topic.shard(0)})
    await drained_of_echoes(store)

    async with SqliteStore(settings) as other:
        token = await other.locks.acquire(topic.shard(0), "w", QUIET_S)
        assert isinstance(token, LockToken)
        page = await other.queue.read(token, b"", 1)
        await other.queue.remove(token, page.positions[-1], 1, Tally(delivered=1))
        await other.two_phase.reserve(topic.shard(1), 1, 10)
        await other.own_topics.create(own_topic("v"))
        waiting = asyncio.ensure_future(store.arrivals.wait())
        await until(lambda: looked(store))
        assert not waiting.done()
        await other.ingest.publish(topic, [RoutedEvent(2, b"b:k", b"y")])

        assert list(await waiting) == [topic.shard(2)]


async def drained_of_echoes(store: SqliteStore) -> None:
    """Look once more: a queue may be named again although nothing is new."""
    store.arrivals._look()
    store._files.bell.take()


async def looked(store: SqliteStore) -> bool:
    """Whether the wait for arrivals has seen each file as it is now."""
    seen = store.arrivals._seen
    return all(seen[file].version == file.version() for file in store._files.all)


async def test_waiting_ends_with_the_store(settings: SqliteSettings) -> None:
    """A task that waits for arrivals when the store is closed gets an error that says so."""
    async with SqliteStore(settings) as store:
        waiting = asyncio.ensure_future(store.arrivals.wait())
        await asyncio.sleep(0)

    with pytest.raises(StoreUnavailable):
        async with asyncio.timeout(PATIENT_S):
            await waiting
