"""A process that holds locks of the embedded store.

Run as a program it takes the locks of a topic's shards and prints a line. For each line that it is given then, it
commits an entry to each shard and prints another. It ends with its standard input, in the middle of everything.
"""

from __future__ import annotations

import asyncio
import os
import sys

from remora.config import SqliteSettings
from remora.model.shard import LockToken
from remora.storage.sqlite import SqliteStore
from support.stores import unhurried


async def main(directory: str, name: str, lease_s: float) -> None:
    """Take the locks and do as told."""
    unhurried()
    async with SqliteStore(SqliteSettings(directory=directory)) as store:
        topic = await store.own_topics.find(name)
        assert topic is not None
        for shard in topic.all_shards():
            assert isinstance(await store.locks.acquire(shard, "holder", lease_s), LockToken)
        tell("held")
        while await asyncio.to_thread(sys.stdin.readline):
            for shard in topic.all_shards():
                await store.two_phase.commit(shard, await store.two_phase.reserve(shard, 1, 100), [b"theirs"])
            tell("committed")
        os._exit(0)


def tell(what: str) -> None:
    """Print a line that is read at once."""
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
