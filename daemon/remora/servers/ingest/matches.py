"""Which notifications the events of a request match, by what was compiled or plainly."""

from __future__ import annotations

from collections.abc import Sequence

from remora.codec import speedups
from remora.codec.event_copies import Sends, happening_of
from remora.model.ingest import RoutedEvent
from remora.model.notification import Notification
from remora.policy.matcher import Matcher


class RequestMatcher(Matcher):
    """A matcher that takes the events of a request at once, encoded for no topic. `sends` has what each notification
    does, by its place."""

    def __init__(self, notifications: Sequence[Notification]) -> None:
        super().__init__(notifications)
        self.sends: Sends = [(each.id.encode(), each.topics) for each in notifications]
        self._finder = speedups.MatchFinder(self.candidates) if speedups.MatchFinder else None

    def places(
        self, events: Sequence[RoutedEvent], sent: dict[bytes, set[int]], filtered: dict[bytes, bytes]
    ) -> Sequence[Sequence[int]]:
        """The places of the notifications that each event matches.

        Of each bucket `sent` gets the places, and `filtered` the entry of the last event that matches none.
        """
        if self._finder:
            return self._finder.places(events, sent, filtered)
        found = []
        for _, _, entry in events:
            event = happening_of(entry)
            if places := self.matching(event):
                sent.setdefault(event.bucket, set()).update(places)
            else:
                filtered[event.bucket] = entry
            found.append(places)
        return found
