"""What the embedded store says of itself when damage has left none of its topics, or some."""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from remora.config import SqliteSettings
from remora.model.errors import StoreDamaged
from remora.model.shard import LockToken
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.files import directory
from remora.storage.sqlite.files import file as file_module
from support.stores import held, own_topic, spread

TOLD: list[bool] = []


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """A store of two files; TOLD has what it tells of its state."""
    TOLD.clear()
    settings = SqliteSettings(directory=str(tmp_path / "store"), files=2)
    async with SqliteStore(settings, lambda connected, _: TOLD.append(connected)) as opened:
        yield opened


async def a_topic(store: SqliteStore, number: int, requests: int = 10) -> Topic:
    """A topic in this file; by default with more entries than any connection remembers pages of."""
    name = next(name for i in range(100) if zlib.crc32((name := f"t-{i}").encode()) % 2 == number)
    topic = await store.own_topics.create(own_topic(name))
    for i in range(requests):
        events = [each._replace(payload=each.payload * 100) for each in spread(topic, 60, f"{i}-")]
        await store.ingest.publish(topic, events)
    return topic


def damage(store: SqliteStore, topic: Topic) -> None:
    """Damage the whole file of a topic while it is open, and what is in its log."""
    path = store._files.file_of(topic.name).path
    for each in (path, path.with_name(f"{path.name}-wal")):
        with each.open("r+b") as file:
            file.write(b"\xa5" * each.stat().st_size)


async def read_all(store: SqliteStore, topic: Topic) -> None:
    for shard in topic.all_shards():
        _ = [entry async for entry in store.inspection.dump(shard)]


async def meet_damage(store: SqliteStore, topic: Topic) -> None:
    """Read the topic, and have the store look after its files as it does every second."""
    with pytest.raises(StoreDamaged):
        await read_all(store, topic)
    await store._watch.look()


async def test_no_topic_left(store: SqliteStore) -> None:
    """A store counts as usable while a topic lies in a sound file, and no longer when damage has left none."""
    for topic, is_usable in [(await a_topic(store, 0), True), (await a_topic(store, 1), False)]:
        damage(store, topic)
        await meet_damage(store, topic)

        assert store.connected is TOLD[-1] is is_usable

    assert list(store.failing) == ["damaged"]


async def test_damage_is_looked_for_in_all_files(store: SqliteStore) -> None:
    """Where all files are damaged at once, one request that meets it is enough for the store to say so, though what is
    remembered of the others is sound."""
    topics = [await a_topic(store, 0), await a_topic(store, 1, requests=0)]
    store._files.file_of(topics[1].name).look_at_room(None)
    for topic in topics:
        damage(store, topic)

    await meet_damage(store, topics[0])

    assert len(store.damaged) == 2
    assert not store.connected


async def test_files_without_topics_make_no_store_usable(store: SqliteStore) -> None:
    """Where all topics lay in a damaged file, the store is not usable though the other one is sound."""
    topic = await a_topic(store, 0)
    damage(store, topic)

    await meet_damage(store, topic)

    assert len(store.damaged) == 1
    assert not store.connected


async def test_a_large_damaged_file_holds_up_no_look_at_others(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a damaged file is read, however long that takes, the store notices that another file is gone; and who
    closes it does not wait for the reading."""
    damaged, other = await a_topic(store, 0), await a_topic(store, 1, requests=1)
    begun, ended = threading.Event(), threading.Event()

    def slow(_: Path, *, is_wanted: Callable[[], bool]) -> None:
        begun.set()
        while is_wanted():
            pass
        ended.set()

    monkeypatch.setattr(file_module, "unreadable", slow)
    damage(store, damaged)
    await meet_damage(store, damaged)
    assert await asyncio.to_thread(begun.wait, 120)

    path = store._files.file_of(other.name).path
    path.rename(path.with_suffix(".away"))
    await store._watch.look()

    assert "gone" in store.failing
    assert not ended.is_set()
    path.with_suffix(".away").rename(path)
    await store._files.close()
    assert await asyncio.to_thread(ended.wait, 120)


async def test_a_file_that_turns_out_to_be_sound_is_opened_anew(store: SqliteStore) -> None:
    """A look after the reading has everything opened anew, whatever was written to the file meanwhile."""
    topic = await a_topic(store, 0, requests=1)
    file = store._files.file_of(topic.name)
    file.mark_damaged(StoreDamaged("so it seemed"))
    await file.try_again()
    assert file._reading is not None
    await file._reading
    await file.write(lambda connection: connection.execute("SELECT 1"))

    await store._watch.look()

    assert store._files.file_of(topic.name) is not file
    assert store.connected


async def test_who_leaves_a_locked_directory_is_dead(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of a store are free once it is closed, also where others keep its directory locked meanwhile."""
    topic = await a_topic(store, 0, requests=1)
    async with SqliteStore(store._files.settings) as other:
        await held(other, topic.shard(0))
        monkeypatch.setattr(directory, "_LOCK_WITHIN_S", 0.0)
        with directory.locked(Path(store._files.settings.first)):
            await other._files.close()

    assert isinstance(await store.locks.acquire(topic.shard(0), "another", 60.0), LockToken)
