"""The topics that events are sent to, looked up about once a second."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from remora.model.topic import NAME, Topic
from remora.ports.administration import OwnTopics
from remora.servers.http.begun import in_task
from remora.servers.ingest.problems import NO_TOPIC, RefusedRequest

FRESH_S = 1.0
MOST = 10_000


@dataclass(slots=True)
class _Known:
    """A topic, until when it counts as known, and whether somebody looks it up anew."""

    topic: Topic
    until: float
    is_asked: bool = False


class TopicLookup:
    """OwnTopics as they were at most a second ago, and a second more while they are looked up anew.

    Older ones do no harm: the store refuses to store into a topic that is gone, another one, or closed by now.
    """

    def __init__(self, store: OwnTopics) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._known: dict[str, _Known] = {}

    def known(self, name: str) -> Topic | None:
        """The topic of this name, where it is known. Who gets None is to `get` it, and others need not wait for that:
        else all requests of a busy second would."""
        known = self._known.get(name)
        if known is None:
            return None
        late_s = self._loop.time() - known.until
        if late_s >= 0 and (not known.is_asked or late_s >= FRESH_S):
            known.is_asked = True
            return None
        return known.topic

    async def get(self, name: str) -> Topic:
        """The topic of this name, known or looked up. Raises Problem when there is none, and StoreError."""
        known = self.known(name)
        if known is not None:
            return known
        await in_task()
        topic = await self._store.find(name) if NAME.fullmatch(name) else None
        if topic is None:
            self._known.pop(name, None)
            raise RefusedRequest(NO_TOPIC, f"there is no topic {name!r}; `remora topic create` makes one")
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[name] = _Known(topic, self._loop.time() + FRESH_S)
        return topic

    def forget(self, name: str) -> None:
        """What was known of this topic has turned out to be wrong."""
        self._known.pop(name, None)
