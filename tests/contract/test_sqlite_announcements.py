"""Two phases of events for several topics, what is the embedded store's own: looks, time, damage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remora.config import SqliteSettings
from remora.model.errors import ReservationExpired, StoreDamaged
from remora.model.fan_out import FannedOut
from remora.model.ingest import RESERVATION_AGE_S
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.ingest import announcements
from remora.storage.sqlite.ingest.fan_out import rooms_of
from support.sqlite_fan_out_victim import ANSWER, DIGEST, FILES, copies, names
from support.stores import own_topic


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    settings = SqliteSettings(directory=str(tmp_path / "store"), files=FILES, queue_bytes=1_000_000)
    async with SqliteStore(settings) as opened:
        yield opened


@pytest.fixture
async def there(store: SqliteStore) -> list[Topic]:
    """Topics in files of their own."""
    return [await store.own_topics.create(own_topic(name, 2)) for name in names(3)]


async def entries(store: SqliteStore, *topics: Topic) -> list[int]:
    """What waits in each topic."""
    return [sum([(await store.inspection.stats(each)).entries for each in of.all_shards()]) for of in topics]


async def reservations(store: SqliteStore, *topics: Topic) -> list[int]:
    """The open reservations of each topic."""
    return [sum([(await store.inspection.stats(each)).reservations for each in of.all_shards()]) for of in topics]


async def announce(store: SqliteStore, topics: list[Topic]) -> str:
    return await store.ingest.announce([rooms_of(each) for each in copies(topics)], b"announced")


async def test_a_look_sees_the_announcement_or_the_answer(store: SqliteStore, there: list[Topic]) -> None:
    """Looks beside a commit see what was announced, and then what it was answered; never neither."""
    reservation = await announce(store, there)
    seen: list[object] = []
    committing = asyncio.ensure_future(store.ingest.commit_announced(reservation, copies(there), ANSWER, DIGEST))

    while not committing.done():
        seen += await asyncio.gather(*(store.ingest.announced(reservation, DIGEST) for _ in range(8)))
    seen.append(await store.ingest.announced(reservation, DIGEST))

    assert seen[0] == b"announced"
    assert isinstance(seen[-1], FannedOut)


async def test_a_late_commit_is_refused(
    store: SqliteStore, there: list[Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is older than its room is kept is neither shown nor committed, though nobody has expired it yet."""
    reservation = await announce(store, there)
    monkeypatch.setattr(announcements, "RESERVATION_AGE_S", -1.0)

    with pytest.raises(ReservationExpired):
        await store.ingest.announced(reservation, DIGEST)
    with pytest.raises(ReservationExpired):
        await store.ingest.commit_announced(reservation, copies(there), ANSWER, DIGEST)

    assert await entries(store, *there) == [0, 0, 0]
    assert RESERVATION_AGE_S == 120.0


async def test_damage_of_an_announcement_is_told(store: SqliteStore, there: list[Topic]) -> None:
    """An announcement that has changed in the file is not used."""
    reservation = await announce(store, there)
    for _, file in store._files.by_number:
        await file.write(lambda connection: connection.execute("UPDATE announcements SET announcement = x'00'"))

    with pytest.raises(StoreDamaged, match=reservation):
        await store.ingest.announced(reservation, DIGEST)
