"""How large a file of the embedded store gets while one queue of many is stuck and the others are delivered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from remora.config import SqliteSettings
from remora.model.ingest import RoutedEvent
from remora.model.ledger import Tally
from remora.model.shard import LockToken, Origin
from remora.model.topic import Target, Topic
from remora.storage.sqlite import SqliteStore

SHARDS = 64
STUCK = 0
FILLED_EVERY = 10
"""The stuck queue gets events in one round of so many, so that it holds something of all that the file ever had."""

_LEASE_S = 3600.0


@dataclass(frozen=True)
class StuckShard:
    """What went through the others, what the stuck queue holds in the end, and how large the file was at most."""

    events: int
    held_bytes: int
    file_bytes: int


async def stuck_shard(directory: Path, rounds: int, each: int, nbytes: int) -> StuckShard:
    """Store so many events of `nbytes` in each queue, round after round, and deliver all but those of one queue."""
    settings = SqliteSettings(directory=str(directory), files=1, queue_bytes=1 << 40)
    async with SqliteStore(settings) as store:
        target = Target("kafka://127.0.0.1:9092", "", "t")
        topic = await store.own_topics.create(Topic("t", "", "t", target, shards=SHARDS, origin=Origin.REMORA))
        tokens = [await _locked(store, topic, number) for number in range(SHARDS) if number != STUCK]
        sent = file_bytes = 0
        for number in range(rounds):
            wanted = [i for i in range(SHARDS) if i != STUCK or number % FILLED_EVERY == 0]
            events = [RoutedEvent(shard, b"bkt:k", bytes(nbytes)) for _ in range(each) for shard in wanted]
            await store.ingest.publish(topic, events)
            sent += sum(await asyncio.gather(*(_deliver(store, token) for token in tokens)))
            file_bytes = max(file_bytes, (directory / "queues-000.db").stat().st_size)
        held = await store.inspection.stats(topic.shard(STUCK))
    return StuckShard(sent, held.used_bytes, file_bytes)


async def _locked(store: SqliteStore, topic: Topic, number: int) -> LockToken:
    token = await store.locks.acquire(topic.shard(number), "bench", _LEASE_S)
    assert isinstance(token, LockToken)
    return token


async def _deliver(store: SqliteStore, token: LockToken) -> int:
    """Read and remove what waits in a queue; how many entries that were."""
    count = 0
    while (page := await store.queue.read(token, b"", 1024)).entries:
        entries = len(page.entries)
        await store.queue.remove(token, page.positions[-1], entries, Tally(delivered=entries))
        count += entries
    return count
