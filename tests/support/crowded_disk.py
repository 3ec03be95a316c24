"""What becomes of delivery from the embedded store while others hold the disk to the last byte, told step by step.

Run as a program on a directory of a small file system, with a file beside it that takes all room, and takes it again
whenever some is given back.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from devkit.entries.entries import delivered
from devkit.waits import until
from remora.config import SqliteSettings
from remora.model.errors import StoreFull
from remora.model.ingest import RoutedEvent
from remora.model.ledger import Tally
from remora.model.notification import Notification
from remora.model.record import DeadLetter
from remora.model.shard import LockToken
from remora.model.topic import Target, Topic, TopicHold
from remora.storage.sqlite import SqliteStore
from support.stores import QUIET_S, own_topic, renew, unhurried

BACKLOG, PAYLOAD, PER_REQUEST = 4_000, 1_000, 20
AT_ONCE = 4
"""Many small removals fill the log many times over."""

LETTERS = 20


class Crowd:
    """Takes each byte of the disk that is free, until it goes away."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._goes = threading.Event()
        self._thread = threading.Thread(target=self._take, daemon=True)

    def _take(self) -> None:
        descriptor = os.open(self._file, os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            while not self._goes.is_set():
                with suppress(OSError):
                    while os.write(descriptor, bytes(1 << 12)):
                        pass
                self._goes.wait(0.001)
        finally:
            os.close(descriptor)

    @property
    def left(self) -> int:
        """The bytes that are free."""
        disk = os.statvfs(self._file.parent)
        return disk.f_bavail * disk.f_frsize

    async def comes(self) -> None:
        """Returns when nothing is left."""
        self._thread.start()
        await until(lambda: _is(self.left < 1 << 13))

    async def goes(self) -> None:
        """Give everything back."""
        self._goes.set()
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._file.unlink)


async def _is(answer: bool) -> bool:
    return answer


async def main(directory: Path, crowd: Path) -> None:
    """Tell the story."""
    unhurried()
    settings = SqliteSettings(directory=str(directory), files=1, queue_bytes=1 << 40)
    others = Crowd(crowd)
    async with SqliteStore(settings) as store:
        topic = await store.own_topics.create(own_topic("t", 2))
        sent = [await publish(store, topic, number) for number in range(0, BACKLOG, PER_REQUEST)]
        await others.comes()
        first = await deliver(store, topic, "w", [], sum(sent) // 2)
    async with SqliteStore(settings) as store:  # opened while there is no room
        await deliver(store, topic, "v", first, sum(sent))
        await fill(store, topic)
        await until(lambda: _is("full" in store.failing))
        assert store.connected, "delivery goes on"
        await mend(store, topic)
        await others.goes()
        await until(lambda: _is(not store.failing))
        await publish(store, topic, 0)
    sys.stdout.write("as told\n")


async def publish(store: SqliteStore, topic: Topic, number: int) -> int:
    """Store some events of these numbers; how many."""
    numbers = range(number, number + PER_REQUEST)
    events = [RoutedEvent(i % topic.shards, b"bkt:k", (b"%d " % i).ljust(PAYLOAD, b".")) for i in numbers]
    return (await store.ingest.publish(topic, events)).events


async def fill(store: SqliteStore, topic: Topic) -> None:
    """Publish until there is no room."""
    try:
        while True:
            await publish(store, topic, 0)
    except StoreFull:
        return


async def mend(store: SqliteStore, topic: Topic) -> None:
    """What an operator changes so that a topic takes the disk no longer; nothing of it may fail."""
    moved = replace(topic, target=Target("kafka://127.0.0.1:9092", "remora-dead-letter-topic=letters", topic.name))
    await store.own_topics.change(moved)
    await store.holds.set_hold(topic, TopicHold(1.0, reason="x" * 1_000))
    await store.holds.set_hold(topic, None)
    await store.notifications.change(None, Notification("n", (topic.name,)))
    assert await store.own_topics.find(topic.name) == moved


async def deliver(store: SqliteStore, topic: Topic, cookie: str, done: Sequence[bytes], upto: int) -> list[bytes]:
    """Take locks, and renew them between removals, as delivering does, until so many are done; those that are.

    Nothing of it may fail. Some entries become dead letters.
    """
    removed = list(done)
    tokens = [await store.locks.acquire(shard, cookie, QUIET_S) for shard in topic.all_shards()]
    while len(removed) < upto:
        for token in tokens:
            assert isinstance(token, LockToken), token
            await renew(store, token, QUIET_S)
            page = await store.queue.read(token, b"", AT_ONCE)
            if not page.entries:
                continue
            tally = delivered(page)
            if len(removed) < LETTERS * AT_ONCE:
                await store.letters.store(token, letter(token, page.positions[0], page.entries[0]))
                tally = Tally(delivered=len(page.entries) - 1, dead_lettered=1)
            await store.queue.remove(token, page.positions[-1], len(page.entries), tally)
            removed += page.entries
    assert len(removed) == len(set(removed)) == upto
    for token in tokens:
        assert isinstance(token, LockToken)
        await store.locks.release(token)
    return removed


def letter(token: LockToken, position: bytes, entry: bytes) -> DeadLetter:
    """A letter of an entry, larger than what is removed with it."""
    place = token.shard.queue, token.incarnation, position.decode(), "0/0"
    return DeadLetter(*place, "refused", "it is too large", 1, 1.0, 2.0, raw=entry * 10)


if __name__ == "__main__":
    asyncio.run(main(*map(Path, sys.argv[1:3])))
