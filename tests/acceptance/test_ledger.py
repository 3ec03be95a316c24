"""The ledger of a real daemon: entries of every fate, a SIGKILL in between, and books that somebody damages."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from devkit.clusters.kafka import Kafka, create_topic
from devkit.entries.entries import raw_entry
from devkit.processes.daemon import Daemon, Sections, running_daemon
from devkit.readers.consumer import read_until
from remora.config import SqliteSettings
from remora.model.exits import Exit
from remora.model.shard import Origin, Shard
from remora.model.topic import Target, Topic
from remora.storage.sqlite import SqliteStore
from support.stores import settle_all

pytestmark = pytest.mark.kafka

SHARDS = 3
BATCHES, PER_BATCH = 60, 50
GARBAGE = b"\x07\x01\x10\x00\x00\x00this is no entry"


def batch(topic: str, number: int) -> list[bytes]:
    """Entries of which each tenth has expired, and each batch's last is none."""
    now = time.time()
    entries = [
        raw_entry(f"k{i % 7}", number * PER_BATCH + i, topic=topic, created=now - 7200 if i % 10 == 3 else now)
        for i in range(PER_BATCH - 1)
    ]
    return [*entries, GARBAGE + bytes([number])]


async def commit(store: SqliteStore, shard: Shard, entries: list[bytes]) -> None:
    reservation = await store.two_phase.reserve(shard, len(entries), sum(map(len, entries)))
    await store.two_phase.commit(shard, reservation, entries)


async def fill(store: SqliteStore, topic: Topic, killed: asyncio.Event, kill: Callable[[], None]) -> None:
    """Commit all batches; the daemon may be killed from when a third of them is there."""
    for number in range(BATCHES):
        await commit(store, topic.shard(number % SHARDS), batch(topic.name, number))
        if number == BATCHES // 3:
            kill()
        if number == BATCHES * 2 // 3:
            await killed.wait()


async def emptied(daemon: Daemon, store: SqliteStore, topic: Topic) -> None:
    async def is_empty() -> bool:
        return not any([(await store.inspection.stats(shard)).entries for shard in topic.all_shards()])

    await daemon.until(is_empty, "all entries to leave", 90.0)


@pytest.mark.guarantee("nothing-leaves-silently")
async def test_every_entry_is_accounted_for(kafka: Kafka, tmp_path: Path) -> None:
    """Delivered, expired and undecodable entries are booked as such over a SIGKILL; damage fails the command."""
    name = await create_topic(kafka.address)
    directory = tmp_path / "queues"
    sections: Sections = {
        "store": {"kind": "sqlite"},
        "sqlite": {"directory": str(directory), "files": 2},
        "ingest": {"listen": ""},
        "ownership": {"discovery_interval": "500ms"},
    }
    target = Target(f"kafka://{kafka.address}", "", name)
    wanted = Topic(name, "", name, target, time_to_live_s=3600, shards=SHARDS, origin=Origin.REMORA)
    async with SqliteStore(SqliteSettings(directory=str(directory), files=2)) as store:
        topic = await store.own_topics.create(wanted)
        async with running_daemon(tmp_path, sections) as daemon:
            may_kill, killed = asyncio.Event(), asyncio.Event()
            filling = asyncio.ensure_future(fill(store, topic, killed, may_kill.set))
            await may_kill.wait()
            await read_until(kafka.address, name, 100)
            await daemon.kill_all()
            killed.set()
            await daemon.start()
            await filling
            await emptied(daemon, store, topic)

            shown = await daemon.command("ledger", name, "--json")
            assert shown.code == Exit.OK, shown.err
            [books] = shown.json
            assert books["unaccounted"] == 0
            assert {each["queue"]: each["committed"] for each in books["shards"]} == {
                shard.queue: BATCHES // SHARDS * PER_BATCH for shard in topic.all_shards()
            }
            expected = {"delivered": 44, "expired": 5, "dead_lettered": 1, "dropped": 0, "removed_elsewhere": 0}
            for cause, each in expected.items():
                assert sum(shard[cause] for shard in books["shards"]) == BATCHES * each, cause
            assert await daemon.stop() == Exit.OK

        await commit(store, topic.shard(1), batch(name, BATCHES))
        changed = 0
        for path in directory.glob("queues-*.db"):
            with closing(sqlite3.connect(path)) as connection:
                settle_all(connection)
                where = "(SELECT id << 40 | head + 2 FROM queues WHERE tail > head)"
                changed += connection.execute(f"DELETE FROM settled WHERE id IN {where}").rowcount
                connection.commit()
        assert changed == 1
        shown = await daemon.command("ledger")
        assert shown.code == Exit.FAILURE
        heading, *lines = shown.out.decode().splitlines()
        assert heading.split()[:3] == ["TOPIC", "QUEUE", "COMMITTED"]
        assert [line.split()[-1] for line in lines] == ["0", "1", "0"]
