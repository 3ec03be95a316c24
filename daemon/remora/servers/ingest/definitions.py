"""The notifications that events without a topic are matched against, read every two seconds while such events come."""

from __future__ import annotations

import asyncio

from remora.model.notification import Definitions
from remora.ports.administration import Notifications
from remora.servers.http.begun import in_task
from remora.servers.ingest.matches import RequestMatcher

FRESH_S = 2.0


class DefinitionLookup:
    """A matcher of the notifications as they were at most two seconds ago, made anew when they have changed."""

    def __init__(self, store: Notifications) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._definitions = Definitions(version=-1)
        self._matcher = RequestMatcher(())
        self._until = 0.0

    def known(self) -> RequestMatcher | None:
        """What is known, where that is recent enough."""
        return self._matcher if self._loop.time() < self._until else None

    async def get(self) -> RequestMatcher:
        """What is known, or looked up now. Raises StoreError."""
        if (known := self.known()) is not None:
            return known
        await in_task()
        found = await self._store.definitions()
        if found != self._definitions:
            self._definitions, self._matcher = found, RequestMatcher(found.notifications)
        self._until = self._loop.time() + FRESH_S
        return self._matcher

    def forget(self) -> None:
        """What is known has turned out to be wrong."""
        self._until = 0.0
