"""One of several processes that work on one directory of the embedded store.

Run as a program it stores events in a topic and delivers whatever it gets hold of there, its own events and others',
and prints a line for each entry that it has removed: shard, position and payload. It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys

from devkit.entries.entries import delivered
from remora.config import SqliteSettings
from remora.model.ingest import ReservedRoom, RoutedEvent
from remora.model.shard import LockToken, Shard
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from support.stores import QUIET_S, unhurried

PER_REQUEST = 6


def request(topic: Topic, me: str, number: int) -> list[RoutedEvent]:
    """The events of one request; each has the process, the request and its own number in it."""
    return [
        RoutedEvent((number + i) % topic.shards, b"bkt:k", f"{me}/{number:06}/{i}".encode()) for i in range(PER_REQUEST)
    ]


async def store_events(store: SqliteStore, topic: Topic, me: str, requests: int) -> None:
    """Publish one request after the other, every third one in two phases."""
    for number in range(requests):
        events = request(topic, me, number)
        if number % 3:
            await store.ingest.publish(topic, events)
        else:
            rooms = [ReservedRoom(event.shard, event.key, 100) for event in events]
            reservation = await store.ingest.reserve(topic, rooms)
            await store.ingest.commit(topic, reservation, events, b"digest")


async def deliver(store: SqliteStore, topic: Topic, me: str) -> None:
    """Take the shards in turn, and remove what is there."""
    while True:
        for shard in topic.all_shards():
            token = await store.locks.acquire(shard, me, QUIET_S)
            if isinstance(token, LockToken):
                await _some(store, shard, token)
                await store.locks.release(token)
        await asyncio.sleep(0.001)


async def _some(store: SqliteStore, shard: Shard, token: LockToken) -> None:
    page = await store.queue.read(token, b"", 20)
    if page.entries:
        await store.queue.remove(token, page.positions[-1], len(page.entries), delivered(page))
    for position, entry in zip(page.positions, page.entries, strict=False):
        sys.stdout.write(f"{shard.queue} {position.decode()} {entry.decode()}\n")
    sys.stdout.flush()


async def main(directory: str, name: str, me: str, requests: int) -> None:
    """Store and deliver until the input ends."""
    unhurried()
    async with SqliteStore(SqliteSettings(directory=directory)) as store:
        topic = await store.own_topics.find(name)
        assert topic is not None
        async with asyncio.TaskGroup() as tasks:
            delivering = tasks.create_task(deliver(store, topic, me))
            tasks.create_task(store_events(store, topic, me, requests))
            await asyncio.to_thread(sys.stdin.read)
            delivering.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
