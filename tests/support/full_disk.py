"""What becomes of the embedded store when its disk has no room left, told step by step.

Run as a program on a directory that has little room: on a small file system, or under a limit on a file's size. With a
second argument the room is taken by another file, of that name.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path

from devkit.entries.entries import delivered
from remora.config import SqliteSettings
from remora.model.errors import StoreFull
from remora.model.ingest import IdempotencyKey, PublishResult, ReservedRoom, RoutedEvent
from remora.model.shard import LockToken
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from support.stores import QUIET_S, by_shard, own_topic, renew, unhurried

PER_REQUEST, PAYLOAD = 12, 4_000
ROUNDS = 3


class Story:
    """A topic that is filled until nothing more fits, then emptied, and again."""

    def __init__(self, store: SqliteStore, topic: Topic) -> None:
        self.store = store
        self.topic = topic
        self.waiting: list[list[RoutedEvent]] = []
        self._numbers = count()

    def request(self) -> list[RoutedEvent]:
        """Events that no other request has."""
        number = next(self._numbers)
        return [
            RoutedEvent(i % self.topic.shards, b"bkt:k", (b"%d-%d " % (number, i)).ljust(PAYLOAD, b"."))
            for i in range(PER_REQUEST)
        ]

    async def publish(self, request: list[RoutedEvent]) -> None:
        """Store events that were not stored before."""
        once = IdempotencyKey(request[0].payload[:20].decode(), b"digest")
        assert await self.store.ingest.publish(self.topic, request, once) == PublishResult(PER_REQUEST)
        self.waiting.append(request)

    async def fill(self) -> list[RoutedEvent]:
        """Publish until the disk is full; the request that was refused."""
        while True:
            request = self.request()
            try:
                await self.publish(request)
            except StoreFull:
                assert list(self.store.failing) == ["full"], "events are refused, and nobody is told why"
                return request

    async def check(self) -> None:
        """Exactly what was answered for is there, whole and in order."""
        expected = by_shard(self.topic, *self.waiting)
        for shard, entries in zip(self.topic.all_shards(), expected, strict=True):
            assert [entry async for _, entry in self.store.inspection.dump(shard)] == entries

    async def empty(self) -> None:
        """Take locks, renew them, and remove everything, as delivering does."""
        tokens = [await self.store.locks.acquire(shard, "w", QUIET_S) for shard in self.topic.all_shards()]
        for token in tokens:
            assert isinstance(token, LockToken), token
            await renew(self.store, token, QUIET_S)
            while (page := await self.store.queue.read(token, b"", 100)).entries:
                await self.store.queue.remove(token, page.positions[-1], len(page.entries), delivered(page))
            await self.store.locks.release(token)
        self.waiting = []


async def main(directory: Path, ballast: Path | None = None) -> None:
    """Tell the story, and look at its end again after a restart."""
    unhurried()
    async with SqliteStore(SqliteSettings(directory=str(directory), files=1, queue_bytes=1 << 40)) as store:
        story = Story(store, await store.own_topics.create(own_topic("t")))
        await (crowded_out(story, ballast) if ballast else filled_by_itself(story))
    async with SqliteStore(SqliteSettings(directory=str(directory))) as store:
        story.store = store
        await story.check()
    sys.stdout.write("as told\n")


async def filled_by_itself(story: Story) -> None:
    """Fill and empty the store some times over, without opening it anew."""
    for _ in range(ROUNDS):
        refused = await story.fill()
        await story.check()
        assert len(story.waiting) > 10, "there was hardly any room"
        await large_commit(story)
        await story.empty()
        await story.check()
        await story.publish(refused)


async def crowded_out(story: Story, ballast: Path) -> None:
    """Let another file take all room to the last byte, some times over, and give it back."""
    for _ in range(ROUNDS):
        await story.publish(story.request())
        await asyncio.to_thread(_take_all_room, ballast)
        refused = await story.fill()
        await story.check()
        await asyncio.to_thread(ballast.unlink)
        await story.publish(refused)
    await story.empty()


def _take_all_room(ballast: Path) -> None:
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 12)):
            pass


async def large_commit(story: Story) -> None:
    """A reservation costs no room on the disk that is worth speaking of, but events that it is for do."""
    try:
        reservation = await story.store.ingest.reserve(story.topic, [ReservedRoom(0, b"bkt:k", 10 * PAYLOAD)])
    except StoreFull:
        return
    try:
        await story.store.ingest.commit(story.topic, reservation, [RoutedEvent(0, b"bkt:k", bytes(10 * PAYLOAD))], b"d")
    except StoreFull:
        await story.check()
        await story.store.ingest.abort(story.topic, reservation)
    else:
        story.waiting.append([RoutedEvent(0, b"bkt:k", bytes(10 * PAYLOAD))])


if __name__ == "__main__":
    asyncio.run(main(*map(Path, sys.argv[1:3])))
