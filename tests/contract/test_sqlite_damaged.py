"""What the embedded store says of itself when damage has left none of its topics, or some."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remora.config import SqliteSettings
from remora.model.errors import StoreDamaged
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from support.stores import own_topic, spread

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
