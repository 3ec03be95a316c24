"""Stores events and delivers them as a daemon does, and says what it is told; run with record_writes.c.

`make` makes the store, and what is run without it works on it until it ends like a killed process.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from devkit.entries.entries import delivered
from remora.config import SqliteSettings
from remora.model.errors import StoreAway
from remora.model.ingest import RoutedEvent
from remora.model.shard import LockToken
from remora.model.topic import Topic
from remora.storage.sqlite import SqliteStore
from support.stores import QUIET_S, own_topic, unhurried

NAME, SHARDS, ROUNDS, SIZE = "t", 3, 40, 3000


def settings_of(directory: Path) -> SqliteSettings:
    """A store of one file with a short log, which is copied into the file again and again."""
    return SqliteSettings(directory=str(directory), files=1, directory_bytes=16 << 20)


async def make(directory: Path) -> None:
    """Make the store with its topic, and an event that takes what is made once."""
    async with SqliteStore(settings_of(directory)) as store:
        topic = await store.own_topics.create(own_topic(NAME, SHARDS))
        await store.ingest.publish(topic, [RoutedEvent(0, b"bkt:k", b"first")])


async def work(directory: Path) -> None:
    """Store and deliver, a round after the other; every other round several requests at once."""
    acks = os.open(directory / "acks", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def tell(*what: Any) -> None:
        os.write(acks, json.dumps(what).encode() + b"\n")

    async with SqliteStore(settings_of(directory)) as store:
        topic = await store.own_topics.find(NAME)
        assert topic is not None
        tokens = [await store.locks.acquire(shard, "w", QUIET_S) for shard in topic.all_shards()]
        for number in range(ROUNDS):
            requests = [_events(topic, number, part) for part in range(1 + number % 2 * 3)]
            await asyncio.gather(*(_publish(store, topic, each, tell) for each in requests))
            if number % 3 == 2:
                for token in tokens:
                    assert isinstance(token, LockToken)
                    await _deliver(store, token, tell)
        os._exit(0)


def _events(topic: Topic, number: int, part: int) -> list[RoutedEvent]:
    marks = [b"%d-%d-%d " % (number, part, shard) for shard in range(topic.shards)]
    return [RoutedEvent(shard, b"bkt:k", each + bytes(SIZE)) for shard, each in enumerate(marks)]


async def _publish(store: SqliteStore, topic: Topic, events: list[RoutedEvent], tell: Any) -> None:
    with suppress(StoreAway):  # of a disk that fails: nobody is told anything
        await store.ingest.publish(topic, events)
        tell("stored", [mark(each.payload) for each in events])


async def _deliver(store: SqliteStore, token: LockToken, tell: Any) -> None:
    """Deliver half of what waits in a queue."""
    page = await store.queue.read(token, b"", 6)
    if page.entries:
        places = [each.decode() for each in page.positions[: len(page.entries)]]
        tell("sent", token.shard.queue, list(zip(places, map(mark, page.entries), strict=True)))
        with suppress(StoreAway):
            await store.queue.remove(token, page.positions[-1], len(page.entries), delivered(page))


def mark(payload: bytes) -> str:
    """What tells an event from the others."""
    return payload.partition(b" ")[0].decode()


if __name__ == "__main__":
    unhurried()
    asyncio.run((make if sys.argv[1] == "make" else work)(Path(sys.argv[2])))
