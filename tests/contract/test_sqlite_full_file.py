"""Events on a full disk go into the room of those that were delivered, as long as there is any in the file."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from devkit.entries.entries import delivered
from remora.config import SqliteSettings
from remora.model.errors import StoreFull
from remora.model.ingest import PublishResult, RoutedEvent
from remora.model.shard import Shard
from remora.model.topic import Topic
from remora.policy.ingest.disk_room import Disk
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.files import room, writer
from remora.storage.sqlite.files.connections import PAGE_BYTES
from remora.storage.sqlite.repair.checks import check_directory
from remora.storage.sqlite.tables import recent
from support.stores import change, held, own_topic

FULL = Disk(100 << 30, 0)
DROP_BALLAST = "DELETE FROM log_entries WHERE log < 0"
ROUNDS, AT_ONCE, PAYLOAD = 40, 20, 4_000


def some(shard: int, count: int = AT_ONCE, nbytes: int = PAYLOAD) -> list[RoutedEvent]:
    """Events for a shard."""
    return [RoutedEvent(shard, b"bkt:k", bytes(nbytes)) for _ in range(count)]


async def deliver(store: SqliteStore, shard: Shard) -> None:
    """Remove all that waits in a shard."""
    token = await held(store, shard)
    while (page := await store.queue.read(token, b"", 1024)).entries:
        await store.queue.remove(token, page.positions[-1], len(page.entries), delivered(page))


def free_pages(configured: SqliteSettings) -> int:
    """How many pages of the file are used by nothing."""
    with closing(sqlite3.connect(Path(configured.directory) / "queues-000.db")) as connection:
        return int(connection.execute("PRAGMA freelist_count").fetchone()[0])


def leave(configured: SqliteSettings, pages: int) -> None:
    """Have something else in the file that takes all of its free pages but so many."""
    change(configured, "CREATE TABLE IF NOT EXISTS others (data)")
    while (taken := free_pages(configured) - pages) > 0:
        change(configured, f"INSERT INTO others VALUES (zeroblob({(taken - 1) * (PAGE_BYTES - 4) or 1}))")


def is_sound(configured: SqliteSettings) -> bool:
    """Whether a check of the store finds nothing wrong."""
    return not [each for report in check_directory(Path(configured.directory)) for each in report.problems]


async def passed_through(store: SqliteStore) -> Topic:
    """A topic of two shards. An event waits in the first one; the second one has taken in and delivered some megabytes
    since."""
    topic = await store.own_topics.create(own_topic("t", 2))
    await store.ingest.publish(topic, some(0, 1))
    for _ in range(ROUNDS):
        await store.ingest.publish(topic, some(1))
    await deliver(store, topic.shard(1))
    return topic


async def waiting(store: SqliteStore, shard: Shard) -> int:
    """How many events wait in a shard."""
    return len([entry async for _, entry in store.inspection.dump(shard)])


@pytest.mark.guarantee("in-the-embedded-store")
async def test_one_event_that_waits_keeps_no_room_of_others(
    store: SqliteStore, configured: SqliteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events find the room of those that were delivered since an event that still waits came in."""
    topic = await passed_through(store)
    monkeypatch.setattr(room, "disk_of", lambda _: FULL)
    leave(configured, 0)

    for _ in range(ROUNDS // 2):
        await store.ingest.publish(topic, some(1))

    assert await waiting(store, topic.shard(0)) == 1
    assert await waiting(store, topic.shard(1)) == ROUNDS // 2 * AT_ONCE
    assert is_sound(configured)


@pytest.mark.guarantee("in-the-embedded-store")
async def test_a_shard_that_waits_keeps_no_room_of_events_that_came_with_its_own(
    store: SqliteStore, configured: SqliteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where every transaction also stored an event of a shard that is stuck, the others' room is found all the same."""
    topic = await store.own_topics.create(own_topic("t", 2))
    for _ in range(ROUNDS):
        await store.ingest.publish(topic, [*some(0, 1), *some(1)])
    await deliver(store, topic.shard(1))
    monkeypatch.setattr(room, "disk_of", lambda _: FULL)
    leave(configured, 0)

    for _ in range(ROUNDS // 4):
        await store.ingest.publish(topic, some(1))

    assert await waiting(store, topic.shard(0)) == ROUNDS
    assert is_sound(configured)


@pytest.mark.guarantee("in-the-embedded-store")
async def test_what_was_delivered_makes_room_for_the_ballast(
    store: SqliteStore, configured: SqliteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once delivery has given the ballast up, the next event finds the room of delivered ones at once, and no event is
    refused until somebody looks at the file."""
    topic = await passed_through(store)
    monkeypatch.setattr(room, "disk_of", lambda _: FULL)
    change(configured, DROP_BALLAST)
    leave(configured, 0)

    assert await store.ingest.publish(topic, some(1)) == PublishResult(AT_ONCE)


async def test_room_is_made_before_an_event_asks_for_it(
    store: SqliteStore, configured: SqliteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the file cannot grow and is short of pages, each transaction of delivery is followed by one that frees the
    pages of what was delivered."""
    monkeypatch.setattr(writer, "_IN_VAIN_S", 0.0)
    topic = await passed_through(store)
    monkeypatch.setattr(room, "disk_of", lambda _: FULL)
    leave(configured, 0)
    token = await held(store, topic.shard(0))

    await store.locks.renew_all([token], 60.0)
    await store.locks.release(token)  # the writer's next order: the one before is followed up by then

    assert free_pages(configured) > 100


@pytest.mark.guarantee("in-the-embedded-store")
async def test_requests_that_fit_are_stored_beside_those_that_do_not(
    store: SqliteStore, configured: SqliteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of requests that come together and find room for some of them only, these are stored, the others are refused,
    and the store says that it is full."""
    topic = await store.own_topics.create(own_topic("t", 1))
    await store.ingest.publish(topic, some(0, 1, 1))
    change(configured, "CREATE TABLE large (data)", f"INSERT INTO large VALUES (zeroblob({1 << 20}))")
    change(configured, "DROP TABLE large")
    monkeypatch.setattr(room, "disk_of", lambda _: FULL)

    requests = [store.ingest.publish(topic, some(0, 1, 60_000)) for _ in range(40)]
    answers: Sequence[object] = await asyncio.gather(*requests, return_exceptions=True)

    stored, refused = (sum(isinstance(each, kind) for each in answers) for kind in (PublishResult, StoreFull))
    assert stored + refused == len(answers)
    assert stored >= 4
    assert refused
    assert "full" in store.failing
    assert await waiting(store, topic.shard(0)) == 1 + stored
    assert is_sound(configured)


async def test_a_row_that_cannot_be_read_is_not_removed(store: SqliteStore, configured: SqliteSettings) -> None:
    """Where what a row of the log holds cannot be known, it stays for a salvage while later ones are removed."""
    topic = await store.own_topics.create(own_topic("t", 2))
    await store.ingest.publish(topic, some(0))
    for _ in range(3):
        await store.ingest.publish(topic, some(1))
    await deliver(store, topic.shard(1))
    change(configured, "UPDATE recent SET parts = x'0102030405' WHERE id = (SELECT min(id) FROM recent)")
    (file,) = store._files.all

    assert await file.write(recent.free_pages, upkeep=True)

    with closing(sqlite3.connect(Path(configured.directory) / "queues-000.db")) as connection:
        (left,) = connection.execute("SELECT count(*) FROM recent WHERE parts = x'0102030405'").fetchone()
    assert left == 1


@pytest.mark.guarantee("in-the-embedded-store")
@pytest.mark.parametrize("seed", range(4))
async def test_whatever_gives_room_back_keeps_what_waits(
    store: SqliteStore, configured: SqliteSettings, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """However storing, delivering, settling and the removal of what was delivered alternate, of two processes: each
    shard has its events once and in order, and the file is sound."""
    chance, shards = random.Random(seed), 3
    monkeypatch.setattr(recent, "AT_ONCE", 100_000)
    topic = await store.own_topics.create(own_topic("t", shards))
    tokens = [await held(store, shard) for shard in topic.all_shards()]
    stored, removed = [0] * shards, [0] * shards
    async with SqliteStore(configured) as other:
        for _ in range(150):
            number = chance.randrange(shards)
            (file,) = chance.choice([store, other])._files.all
            match chance.randrange(6):
                case 0 | 1 | 2:
                    count = chance.randrange(1, 12)
                    events = [
                        RoutedEvent(number, b"bkt:k", b"%d " % (stored[number] + each) + bytes(chance.randrange(3000)))
                        for each in range(count)
                    ]
                    stored[number] += (await chance.choice([store, other]).ingest.publish(topic, events)).events
                case 3:
                    page = await store.queue.read(tokens[number], b"", chance.randrange(1, 30))
                    first = [int(entry.split()[0]) for entry in page.entries]
                    assert first == list(range(removed[number], removed[number] + len(first)))
                    if first:
                        await store.queue.remove(tokens[number], page.positions[-1], len(first), delivered(page))
                        removed[number] += len(first)
                case 4:
                    await file.write(chance.choice([recent.free_pages, recent.make_room]), upkeep=True)
                case _:
                    await file.write(lambda connection: recent.settle(connection, 50_000), upkeep=True)

    for number, shard in enumerate(topic.all_shards()):
        left = [int(entry.split()[0]) async for _, entry in store.inspection.dump(shard)]
        assert left == list(range(removed[number], stored[number]))
    assert is_sound(configured)
