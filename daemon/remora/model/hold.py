"""An operator's hold of a topic: its events are taken in, and none is delivered."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TopicHold:
    """Since when a topic is held, until when, and why; times in Unix seconds.

    Without `until` it lasts until the topic is resumed. `topic_id` is that of a topic of remora's own, so that one
    which is made anew under the same name is not held; a topic of radosgw's has none.
    """

    since: float
    until: float | None = None
    reason: str = ""
    topic_id: str = ""

    def lasts(self, now: float) -> bool:
        """Whether its end has yet to come."""
        return self.until is None or now < self.until
