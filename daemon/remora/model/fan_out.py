"""Events that go to several topics at once, as their notifications say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from remora.model.ingest import ReservedRoom, RoutedEvent
from remora.model.topic import Topic


class TopicCopies(NamedTuple):
    """Events that notifications send to one topic, in order."""

    topic: Topic
    events: Sequence[RoutedEvent]


@dataclass(frozen=True, slots=True)
class TopicRooms:
    """The room that events to come need in one topic: one for each copy of each event that may go there."""

    topic: Topic
    rooms: Sequence[ReservedRoom]


@dataclass(frozen=True, slots=True)
class FannedOut:
    """The answer to events that were sent without a topic and are stored: how many match a notification, how many match
    none, and how many copies each topic has of them. `repeated` as in PublishResult."""

    accepted: int
    unmatched: int
    topics: Mapping[str, int]
    repeated: bool = False
