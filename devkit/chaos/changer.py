"""Gives topics other numbers of shards while events are stored and delivered, and daemons killed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from remora.model.errors import StoreUnavailable, TopicRefused
from remora.ports.store import ShardStore

NUMBERS = (1, 2, 4, 7, 11, 13, 64)
LONGEST_PAUSE_S = 1.0


class Changer:
    """Changes one topic after the other, by a store that it opens; `done` counts what came of it."""

    def __init__(
        self, store: Callable[[], AbstractAsyncContextManager[ShardStore]], topics: Sequence[str], seed: str
    ) -> None:
        self._store, self._topics = store, topics
        self._chance = random.Random(f"{seed}/changer")
        self.done: Counter[str] = Counter()

    async def run(self, ended: asyncio.Event) -> None:
        """Change topics until told to end."""
        async with self._store() as store:
            while not ended.is_set():
                await asyncio.sleep(self._chance.uniform(0, LONGEST_PAUSE_S))
                topic = await store.own_topics.find(self._chance.choice(self._topics))
                assert topic is not None
                try:
                    await store.own_topics.reshard(topic, self._chance.choice(NUMBERS))
                    self.done["changed"] += 1
                except TopicRefused:
                    self.done["refused"] += 1
                except StoreUnavailable:
                    self.done["unavailable"] += 1
