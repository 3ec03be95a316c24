"""What becomes of requests with idempotency keys while others hold the disk to the last byte, told step by step.

Run as a program, as `crowded_disk` is.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from devkit.entries.entries import delivered
from devkit.waits import until
from remora.config import SqliteSettings
from remora.model.errors import StoreFull
from remora.model.ingest import IdempotencyKey, PublishResult, RoutedEvent
from remora.model.shard import LockToken
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.tables import clock, write_batch
from support.crowded_disk import Crowd
from support.stores import QUIET_S, own_topic, unhurried

AT_ONCE = 200
REFUSED = 6
"""So many refusals, one after the other and with nothing that waits, are no lack of a moment."""


async def main(directory: Path, crowd: Path) -> None:
    """Tell the story."""
    unhurried()
    others = Crowd(crowd)
    async with SqliteStore(SqliteSettings(directory=str(directory), files=1)) as store:
        topic = await store.own_topics.create(own_topic("t", 1))
        token = await store.locks.acquire(topic.first_shard, "w", QUIET_S)
        assert isinstance(token, LockToken)
        for first in range(0, 10 * AT_ONCE, AT_ONCE):
            await asyncio.gather(*(put(store, topic, number) for number in range(first, first + AT_ONCE)))
        await deliver(store, token)
        await others.comes()
        number = await fill(store, topic, token)

        assert await put(store, topic, number - 1) == PublishResult(1, repeated=True), "it is recognised"
        move(write_batch.REMEMBERED_NS // 2)
        assert await is_refused(store, topic, number), "the rows are needed yet"
        move(write_batch.REMEMBERED_NS)
        await until(lambda: is_stored(store, topic, number))  # room is looked for now and then
        for later in range(number + 1, number + AT_ONCE):
            assert await put(store, topic, later) == PublishResult(1)
        assert others.left < 1 << 13, "the disk is as full as before"
        await others.goes()
    sys.stdout.write("as told\n")


def move(by_ns: int) -> None:
    """Have it be so much later."""
    vars(write_batch)["now_ns"] = lambda: clock.now_ns() + by_ns


async def put(store: SqliteStore, topic: Topic, number: int) -> PublishResult:
    """Store an event by a request that has a key of its own."""
    once = IdempotencyKey(f"{number:0200}", b"digest")
    return await store.ingest.publish(topic, [RoutedEvent(0, b"bkt:k", b"x" * 100)], once)


async def is_refused(store: SqliteStore, topic: Topic, number: int) -> bool:
    """Whether a request finds no room."""
    try:
        await put(store, topic, number)
    except StoreFull:
        return True
    return False


async def is_stored(store: SqliteStore, topic: Topic, number: int) -> bool:
    """Whether a request finds room."""
    return not await is_refused(store, topic, number)


async def deliver(store: SqliteStore, token: LockToken) -> None:
    """Remove all that waits."""
    while (page := await store.queue.read(token, b"", 1024)).entries:
        await store.queue.remove(token, page.positions[-1], len(page.entries), delivered(page))


async def fill(store: SqliteStore, topic: Topic, token: LockToken) -> int:
    """Store one event after the other, and deliver it, until the rows of keys have taken the last room; the first
    number that found none."""
    number, refused = 10 * AT_ONCE, 0
    while refused < REFUSED:
        if await is_refused(store, topic, number):
            refused += 1
        else:
            number, refused = number + 1, 0
        await deliver(store, token)
    return number


if __name__ == "__main__":
    asyncio.run(main(*map(Path, sys.argv[1:3])))
