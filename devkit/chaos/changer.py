"""Gives topics other numbers of shards while events are stored and delivered, and daemons killed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

from devkit.bench.embedded import Embedded
from remora.model.errors import StoreUnavailable, TopicRefused

NUMBERS = (1, 2, 4, 7, 11, 13, 64)
LONGEST_PAUSE_S = 1.0


class Changer:
    """Changes one topic after the other, by a store of its own; `done` counts what came of it."""

    def __init__(self, embedded: Embedded, topics: Sequence[str], seed: str) -> None:
        self._embedded, self._topics = embedded, topics
        self._chance = random.Random(f"{seed}/changer")
        self.done: Counter[str] = Counter()

    async def run(self, ended: asyncio.Event) -> None:
        """Change topics until told to end."""
        async with self._embedded.store() as store:
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
