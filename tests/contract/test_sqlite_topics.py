"""Topics of the embedded store: found for nothing while they stay, and removed without anybody's waiting for it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.entries.entries import delivered
from devkit.waits import PATIENT_S, until
from remora.config import SqliteSettings
from remora.model.errors import NotificationRefused, QueueFull, StoreDamaged, StoreFull, StoreUnavailable, TopicRefused
from remora.model.ingest import Removed, RoutedEvent
from remora.model.notification import Notification
from remora.model.peaks import HourPeak
from remora.model.shard import LockToken, Shard, ShardStats
from remora.model.topic import Target, Topic
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.files.file import File, write_nothing
from remora.storage.sqlite.queues import catalog
from remora.storage.sqlite.tables import schema
from remora.storage.sqlite.topics import notifications as sqlite_notifications
from remora.storage.sqlite.topics import own_topics as topics
from support.stores import QUIET_S, own_topic, settle_all, spread


@pytest.fixture
def settings(tmp_path: Path) -> SqliteSettings:
    """A directory of two files."""
    return SqliteSettings(directory=str(tmp_path / "store"), files=2)


@pytest.fixture
async def store(settings: SqliteSettings) -> AsyncIterator[SqliteStore]:
    """An open store."""
    async with SqliteStore(settings) as opened:
        yield opened


def entries_in(store: SqliteStore, topic: str) -> int:
    """All entries in a topic's file that have settled, whatever queue they are of."""
    with closing(sqlite3.connect(store._files.file_of(topic).path)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM settled").fetchone()
        return int(count)


# ------------------------------------------------------------------------------------------- catalogue


async def test_catalogue_that_stays(store: SqliteStore, settings: SqliteSettings) -> None:
    """While no topic changes the answers are the very same objects, whatever else happens."""
    topic = await store.own_topics.create(own_topic("t"))
    shards, known = await store.catalog.shards(), await store.catalog.topics()

    await store.ingest.publish(topic, spread(topic, 9))
    assert isinstance(await store.locks.acquire(topic.shard(0), "w", QUIET_S), LockToken)
    async with SqliteStore(settings):
        pass

    assert await store.catalog.shards() is shards
    assert await store.catalog.topics() is known
    assert known == {topic.first_shard: topic}


async def test_catalogue_of_many_topics(
    store: SqliteStore, settings: SqliteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topics of each file are read in a turn of the event loop of their own; who asks meanwhile, too, is answered
    what all files have."""
    for name in "abcdefgh":
        await store.own_topics.create(own_topic(name))
    read, seen = catalog._read_catalog, list[str]()

    def reads(connection: sqlite3.Connection, known: catalog._FileCatalog | None) -> catalog._FileCatalog:
        found = read(connection, known)
        if found is not known:
            seen.append("file")
            asyncio.get_running_loop().call_soon(seen.append, "turn")
        return found

    async with SqliteStore(settings) as other:
        monkeypatch.setattr(catalog, "_read_catalog", reads)
        shards = await other.catalog.shards()
        assert seen == ["file", "turn"] * settings.files
        await store.own_topics.create(own_topic("i"))
        both = await asyncio.gather(*(other.catalog.shards() for _ in range(3)))

    assert {each.queue for each in shards} >= set("abcdefgh")
    assert all({each.queue for each in found} >= set("abcdefghi") for found in both)


async def test_catalogue_that_changes(store: SqliteStore, settings: SqliteSettings) -> None:
    """What anybody makes, changes or removes shows at the next look, and what stayed stays."""
    await store.own_topics.create(own_topic("b", 2))
    await store.catalog.topics()

    async with SqliteStore(settings) as other:
        made = await other.own_topics.create(own_topic("a", 2))
        assert [shard.queue for shard in await store.catalog.shards()] == ["a", "a.1", "b", "b.1"]
        changed = replace(made, target=Target("kafka://other:9092", "x=y", "elsewhere"), closed=True)
        await other.own_topics.change(changed)
        assert (await store.catalog.topics())[made.first_shard] == changed
        await other.own_topics.remove(changed, discard=False)

    assert [shard.queue for shard in await store.catalog.shards()] == ["b", "b.1"]


@pytest.mark.parametrize("change", ["attributes = x'ff'", "former = '['"], ids=["attributes", "former layouts"])
async def test_topic_that_cannot_be_read(store: SqliteStore, change: str) -> None:
    """A topic whose row makes no sense is left out, and named where it is asked for; its queues have their entries
    still, and show themselves where the row tells which they are."""
    topic, sound = await store.own_topics.create(own_topic("t")), await store.own_topics.create(own_topic("u"))
    await store.ingest.publish(topic, spread(topic, 9))
    with closing(sqlite3.connect(store._files.file_of("t").path)) as connection, connection:
        connection.execute(f"UPDATE topics SET {change} WHERE name = 't'")
        connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'catalogue'")

    assert await store.catalog.topics() == {sound.first_shard: sound}
    assert set(await store.catalog.shards()) >= {*sound.all_shards(), *(topic.all_shards() if "attr" in change else ())}
    assert await store.catalog.peek(topic.shard(1)) is not None
    with pytest.raises(StoreDamaged, match=r"queues-00.\.db is damaged: table topics, row t: "):
        await store.own_topics.find("t")


async def test_attributes_of_a_later_version(store: SqliteStore) -> None:
    """Attributes that a later version added are skipped."""
    topic = await store.own_topics.create(own_topic("t"))
    with closing(sqlite3.connect(store._files.file_of("t").path)) as connection, connection:
        connection.execute("UPDATE topics SET attributes = replace(CAST(attributes AS TEXT), '{', '{\"new\":[1],')")

    assert await store.own_topics.find("t") == topic


# ---------------------------------------------------------------------------------------------- removal


async def test_room_of_discarded_entries_comes_back(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries of a removed topic are deleted bit by bit, all of them and nobody else's."""
    monkeypatch.setattr(topics, "_SWEPT_AT_ONCE", 10)
    topic, same_file = (
        await store.own_topics.create(own_topic("t")),
        await store.own_topics.create(neighbour(store, "t")),
    )
    await store.ingest.publish(topic, spread(topic, 100))
    await store.ingest.publish(same_file, spread(same_file, 7))
    await store._files.file_of("t").write(settle_all)

    assert await store.own_topics.remove(topic, discard=True) == Removed(3, 100)
    assert await store.own_topics.find("t") is None

    await until(lambda: holds(store, "t", 7))
    file = store.writers[store._files.file_of("t").path.name]
    assert file.transactions - file.durable >= 100 // 10


@pytest.mark.guarantee("in-the-embedded-store")
async def test_removal_that_was_cut_short(settings: SqliteSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a removal left to be deleted when its process ended is deleted after the next start."""
    async with SqliteStore(settings) as store:
        topic = await store.own_topics.create(own_topic("t"))
        await store.ingest.publish(topic, spread(topic, 100))
        await store._files.file_of("t").write(settle_all)
        with monkeypatch.context() as patched:
            patched.setattr(topics, "_sweep", lambda file: None)  # as if the process had died here
            await store.own_topics.remove(topic, discard=True)
        assert entries_in(store, "t") == 100

    async with SqliteStore(settings) as store:
        await until(lambda: holds(store, "t", 0))


@pytest.mark.guarantee("in-the-embedded-store")
async def test_a_removal_meets_a_full_disk(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing can be written one job at most waits to delete what a removal left, and it goes on afterwards."""
    monkeypatch.setattr(topics, "_SWEPT_AT_ONCE", 10)
    monkeypatch.setattr(topics, "_AGAIN_S", 0.0)
    topic = await store.own_topics.create(own_topic("t"))
    await store.ingest.publish(topic, spread(topic, 100))
    file, sweep = store._files.file_of("t"), topics._sweep
    await file.write(settle_all)

    with monkeypatch.context() as patched:

        def refuse(connection: sqlite3.Connection) -> None:
            raise StoreFull("the disk is full")

        def sweep_on_full_disk(file: File) -> None:
            patched.setattr(file._writer._room, "cover", refuse)
            sweep(file)

        patched.setattr(topics, "_sweep", sweep_on_full_disk)
        await store.own_topics.remove(topic, discard=True)
        for _ in range(3):
            with pytest.raises(StoreFull):
                await file.write(write_nothing, upkeep=True)
            assert file.waiting <= 1
        assert entries_in(store, "t") == 100

    await until(lambda: holds(store, "t", 0))


async def holds(store: SqliteStore, topic: str, count: int) -> bool:
    return await asyncio.to_thread(entries_in, store, topic) == count


def neighbour(store: SqliteStore, name: str) -> Topic:
    """A topic of another name that lies in the same file."""
    file = store._files.file_of(name)
    return next(own_topic(f"n{i}") for i in range(100) if store._files.file_of(f"n{i}") is file)


@pytest.mark.guarantee("in-the-embedded-store")
async def test_ids_are_never_used_again(store: SqliteStore) -> None:
    """A topic that is made again has new queues under the old names: nothing old can be taken for theirs."""
    first = await store.own_topics.create(own_topic("t"))
    old = await store.locks.acquire(first.shard(0), "w", QUIET_S)
    await store.own_topics.remove(first, discard=False)
    second = await store.own_topics.create(own_topic("t"))
    new = await store.locks.acquire(second.shard(0), "w", QUIET_S)

    assert first.id != second.id
    assert isinstance(old, LockToken)
    assert isinstance(new, LockToken)
    assert old.incarnation != new.incarnation
    with closing(sqlite3.connect(store._files.file_of("t").path)) as connection:
        assert connection.execute("SELECT min(id) FROM queues").fetchone() == (4,)


async def test_file_that_had_too_many_queues(store: SqliteStore) -> None:
    """A topic whose queues would not fit into the numbers that a file has is refused, and nothing of it is made."""
    with closing(sqlite3.connect(store._files.file_of("t").path)) as connection, connection:
        connection.execute("INSERT INTO sqlite_sequence VALUES ('queues', ?)", (schema.LAST_QUEUE_ID - 3,))

    with pytest.raises(TopicRefused, match="another name"):
        await store.own_topics.create(own_topic("t", 4))
    topic = await store.own_topics.create(own_topic("t", 3))
    await store.ingest.publish(topic, spread(topic, 9))

    assert [entry async for _, entry in store.inspection.dump(topic.shard(2))] == [b"000002", b"000005", b"000008"]


async def test_queue_that_had_too_many_entries(store: SqliteStore) -> None:
    """A queue's last position is its last: what would lie behind is refused, and nothing runs into the next queue."""
    topic = await store.own_topics.create(own_topic("t", 2))
    with closing(sqlite3.connect(store._files.file_of("t").path)) as connection, connection:
        connection.execute("UPDATE queues SET head = :end, tail = :end", {"end": schema.END_OF_QUEUE - 2})

    with pytest.raises(QueueFull):
        await store.two_phase.reserve(topic.shard(0), 3, 30)
    reservation = await store.two_phase.reserve(topic.shard(0), 2, 30)
    with pytest.raises(QueueFull):
        await store.two_phase.reserve(topic.shard(0), 1, 1)
    await store.two_phase.commit(topic.shard(0), reservation, [b"a", b"b"])

    assert [entry async for _, entry in store.inspection.dump(topic.shard(0))] == [b"a", b"b"]
    assert [entry async for _, entry in store.inspection.dump(topic.shard(1))] == []


async def test_room_is_as_configured_when_the_topic_was_made(settings: SqliteSettings) -> None:
    """A queue keeps the room that was configured when it was made."""
    async with SqliteStore(settings) as store:
        await store.own_topics.create(own_topic("t"))
    async with SqliteStore(replace(settings, queue_bytes=1 << 20)) as store:
        await store.own_topics.create(own_topic("u"))

        found = [(await store.inspection.stats(shard)).capacity_bytes for shard in await store.catalog.shards()]

    assert found == [settings.queue_bytes] * 3 + [1 << 20] * 3


async def test_capacity_of_a_topic_in_place_of_the_configured_one(store: SqliteStore) -> None:
    """A topic's own capacity holds from its making or its change on, also for the queues of a later layout; lowered
    below what waits it refuses new events only, and without it the configured one holds again."""
    topic = await store.own_topics.create(replace(own_topic("t", 1), capacity_bytes=64 << 10))
    full = [RoutedEvent(0, b"bkt:k", bytes(60 << 10))]
    await store.ingest.publish(topic, full)
    with pytest.raises(QueueFull):
        await store.ingest.publish(topic, full)

    await store.own_topics.change(raised := replace(topic, capacity_bytes=1 << 20))
    await store.ingest.publish(topic, full)
    await store.own_topics.change(replace(topic, capacity_bytes=64 << 10))

    with pytest.raises(QueueFull):
        await store.ingest.publish(topic, spread(topic, 1))
    (stats,) = await store.inspection.backlog([topic.shard(0)])
    assert (stats.entries, stats.capacity_bytes, stats.room.room_bytes) == (2, 64 << 10, 0)
    token = await store.locks.acquire(topic.shard(0), "w", QUIET_S)
    assert isinstance(token, LockToken)
    page = await store.queue.read(token, b"", 10)
    await store.queue.remove(token, page.positions[-1], 2, delivered(page))
    await store.ingest.publish(topic, full)
    await store.own_topics.change(raised)
    moved = await store.own_topics.reshard(raised, 2)
    assert moved.capacity_bytes == 1 << 20
    assert [each.capacity_bytes for each in await capacities(store, moved)] == [1 << 20] * 2
    await store.own_topics.change(replace(moved, capacity_bytes=None))
    assert [each.capacity_bytes for each in await capacities(store, moved)] == [store._files.settings.queue_bytes] * 2


async def capacities(store: SqliteStore, topic: Topic) -> list[ShardStats]:
    """The figures of the queues that take events."""
    return [await store.inspection.stats(shard) for shard in topic.open_shards()]


async def test_nothing_stays_of_the_peaks_of_a_topic_that_is_removed(store: SqliteStore) -> None:
    """Ids of topics are never used again, so that rows of one that is gone would stay for ever: they go with it."""
    topic = await store.own_topics.create(own_topic("t"))
    await store.peaks.keep({topic: HourPeak(494_000, 3, 5, 5)})
    await store.own_topics.remove(topic, discard=False)

    with closing(sqlite3.connect(store._files.file_of("t").path)) as connection:
        assert connection.execute("SELECT * FROM peaks").fetchall() == []


async def test_closed_store(settings: SqliteSettings) -> None:
    """A store that is closed, or was never opened, says so to every call."""
    store = SqliteStore(settings)
    shard = Shard("t")
    calls = (
        store.catalog.shards,
        store.catalog.topics,
        lambda: store.catalog.peek(shard),
        lambda: store.locks.acquire(shard, "w", 1),
        lambda: store.locks.renew_all([LockToken(shard, "w", "i")], 1),
        lambda: store.inspection.stats(shard),
        lambda: store.two_phase.reserve(shard, 1, 1),
        lambda: store.own_topics.find("t"),
        lambda: store.own_topics.create(own_topic("t")),
        store.arrivals.wait,
    )

    for call in calls:
        with pytest.raises(StoreUnavailable):
            await call()
    async with store:
        await store.own_topics.create(own_topic("t"))
        assert store.connected
    for call in calls:
        with pytest.raises(StoreUnavailable):
            await call()
    assert not store.connected


async def test_a_removal_that_nobody_waits_for(
    store: SqliteStore, settings: SqliteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removal whose caller is gone keeps notifications from being changed until its transaction has ended."""
    monkeypatch.setattr(sqlite_notifications, "_WITHIN_S", 0)  # who would have to wait gives up
    topic = await store.own_topics.create(own_topic("b", 1))
    assert store._files.file_of("b") is not store._files.first
    begun, goes_on = threading.Event(), threading.Event()

    def forget(connection: sqlite3.Connection, name: str) -> None:
        begun.set()
        assert goes_on.wait(PATIENT_S)

    monkeypatch.setattr(topics, "forget_hold", forget)
    async with SqliteStore(settings) as other:
        removing = asyncio.create_task(store.own_topics.remove(topic, discard=False))
        assert await asyncio.to_thread(begun.wait, PATIENT_S)
        removing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await removing

        try:
            with pytest.raises(StoreUnavailable, match="others changed notifications or removed topics"):
                await other.notifications.change(None, Notification("n", ("b",)))
        finally:
            goes_on.set()
        monkeypatch.setattr(sqlite_notifications, "_WITHIN_S", PATIENT_S)
        with pytest.raises(NotificationRefused, match="there is no topic 'b'"):
            await other.notifications.change(None, Notification("n", ("b",)))
