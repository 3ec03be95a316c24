"""Which notifications the events of a request match: read every two seconds, and matched compiled or plainly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from remora.codec import speedups
from remora.codec.event_copies import Sends, happening_of
from remora.codec.s3_events import Keyed
from remora.model.notification import Definitions, Notification
from remora.policy.ingest.matcher import Matcher
from remora.ports.administration import Notifications
from remora.servers.http.begun import in_task

FRESH_S = 2.0


Places = Callable[[Sequence[Keyed], dict[bytes, set[int]], dict[bytes, bytes]], Sequence[Sequence[int]]]
"""Gives the places of the notifications that each event matches.

Of each bucket the first mapping gets the places, and the second one the entry of the last event that matches none.
"""


class RequestMatcher(Matcher):
    """A matcher that takes the events of a request at once, encoded for no topic. `sends` has what each notification
    does, by its place."""

    def __init__(self, notifications: Sequence[Notification]) -> None:
        super().__init__(notifications)
        self.sends: Sends = [(each.id.encode(), each.topics) for each in notifications]
        self.places: Places = self._plainly
        if speedups.MatchFinder:  # which is called directly: each request asks once or more
            self.places = speedups.MatchFinder(self.candidates, len(self.notifications)).places

    def _plainly(
        self, events: Sequence[Keyed], sent: dict[bytes, set[int]], filtered: dict[bytes, bytes]
    ) -> Sequence[Sequence[int]]:
        found = []
        for _, entry in events:
            event = happening_of(entry)
            if places := self.matching(event):
                sent.setdefault(event.bucket, set()).update(places)
            else:
                filtered[event.bucket] = entry
            found.append(places)
        return found


class DefinitionLookup:
    """A matcher of the notifications as they were at most two seconds ago, made anew when they have changed."""

    def __init__(self, store: Notifications) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._definitions = Definitions(version=-1)
        self._matcher = RequestMatcher(())
        self._until = 0.0
        self._looks = self._newest = 0
        """How many looks have begun, and the number of the one whose answer is known."""

    def known(self) -> RequestMatcher | None:
        """What is known, where that is recent enough."""
        return self._matcher if self._loop.time() < self._until else None

    async def get(self) -> RequestMatcher:
        """What is known, or looked up now. Raises StoreError."""
        if (known := self.known()) is not None:
            return known
        await in_task()
        number = self._looks = self._looks + 1
        found = await self._store.definitions()
        if number < self._newest:  # another look began later and is over, or what was known then is wrong
            return await self.get()
        if found != self._definitions:
            self._definitions, self._matcher = found, RequestMatcher(found.notifications)
        self._newest, self._until = number, self._loop.time() + FRESH_S
        return self._matcher

    def forget(self) -> None:
        """What is known has turned out to be wrong."""
        self._until, self._newest = 0.0, self._looks + 1
