"""The topics that events are sent to, looked up once a second at most."""

from __future__ import annotations

import asyncio

from remora.model.topic import NAME, Topic
from remora.ports.administration import OwnTopics
from remora.servers.ingest.problems import NO_TOPIC, Problem

FRESH_S = 1.0
MOST = 10_000


class TopicLookup:
    """OwnTopics as they were at most a second ago.

    Older ones do no harm: the store refuses to store into a topic that is gone, another one, or closed by now.
    """

    def __init__(self, store: OwnTopics) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._known: dict[str, tuple[Topic, float]] = {}

    async def get(self, name: str) -> Topic:
        """The topic of this name. Raises Problem when there is none, and StoreError."""
        known = self._known.get(name)
        if known is not None and self._loop.time() < known[1]:
            return known[0]
        topic = await self._store.find(name) if NAME.fullmatch(name) else None
        if topic is None:
            self._known.pop(name, None)
            raise Problem(NO_TOPIC, f"there is no topic {name!r}; `remora topic create` makes one")
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[name] = (topic, self._loop.time() + FRESH_S)
        return topic

    def forget(self, name: str) -> None:
        """What was known of this topic has turned out to be wrong."""
        self._known.pop(name, None)
