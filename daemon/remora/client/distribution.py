"""Events that are sent without a topic: what is known before there is one, and where notifications sent them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ComingEvent:
    """An event for which room is reserved: its bucket and object key, and the most bytes of its entry.

    The rest is what filters ask for. A filter on what is left out counts as matching, so the more it says the less room
    is taken; `metadata` and `tags` that are given are all that the object has.
    """

    bucket: str
    key: str
    nbytes: int
    event_name: str | None = None
    size: int | None = None
    metadata: Mapping[str, str] | None = None
    tags: Mapping[str, str] | None = None

    @property
    def as_json(self) -> dict[str, object]:
        """What is said of it to the server."""
        said: dict[str, object] = {"bucket": self.bucket, "object": self.key, "bytes": self.nbytes}
        filtered = {"eventName": self.event_name, "size": self.size, "metadata": self.metadata, "tags": self.tags}
        return said | {name: value for name, value in filtered.items() if value is not None}


@dataclass(frozen=True, slots=True)
class RoomWhereNotified:
    """Room in each topic that notifications may send some events to, until it expires; `topics` counts copies."""

    id: str
    events: int
    expires_in_s: float
    topics: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WhereNotified:
    """Events that matched a notification, events that matched none, and the copies that are stored, by topic."""

    accepted: int
    unmatched: int
    topics: Mapping[str, int]
