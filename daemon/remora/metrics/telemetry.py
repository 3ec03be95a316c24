"""Every event that remora reports, with its metric and its log line; `events` says what a group of them is made of.

What may happen again and again is said once, and then at most once in `log.repeat_interval` with its count. Nothing
here is called per entry, save for `dead_lettered`.

All methods belong to the event loop's thread, save for `spans_exported`. Texts must hold no secrets: pass
`Target.redacted`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec
from prometheus_client import ProcessCollector

from remora.metrics.delivery import DeliveryEvents
from remora.metrics.destinations import DestinationEvents
from remora.metrics.events import Instruments
from remora.metrics.figures import LastFailure, RoomFigures, SloFigures, TopicCounts, TopicFigures, topic_figures
from remora.metrics.ingest import IngestEvents
from remora.metrics.ownership import OwnershipEvents
from remora.metrics.process import CommandEvents, ProcessEvents
from remora.metrics.shaping import ShapingEvents
from remora.metrics.spill import SpillEvents
from remora.metrics.stages import StageEvents
from remora.metrics.store import StoreEvents
from remora.policy.status.objectives import Objective


class Telemetry(
    DeliveryEvents, IngestEvents, OwnershipEvents, DestinationEvents, StoreEvents, ShapingEvents, CommandEvents,
    ProcessEvents, StageEvents, SpillEvents,
):  # fmt: skip
    """The daemon's metrics in a registry of their own, and its log."""

    def __init__(
        self,
        *,
        metric_topics: int = 500,
        repeat_interval_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`metric_topics` bounds the topics with series of their own; `clock` times stages and repeated lines."""
        instruments = Instruments(metric_topics, repeat_interval_s, clock)
        super().__init__(instruments)
        self.objectives: Mapping[str, Objective] = {}
        """The service levels of topics, as their attributes have them now."""
        self._labels, self._topic_counters = instruments.labels, instruments.topic_counters
        ProcessCollector(registry=self.registry)

    def topics(self) -> list[TopicFigures]:
        """What is counted of each topic now, those behind `other` together; for the status."""
        rows = topic_figures(
            TopicCounts(
                self._delivered_entries.by_label(),
                self._parked.by_label(),
                self._letters.by_label(),
                self._ingested_events.by_label(),
            ),
            self._backlogs.by_label(),
            self._ledgers.by_label(),
            {
                topic: LastFailure(kind=kind, reason=reason, age_seconds=round(self.clock() - at, 3))
                for topic, (at, kind, reason) in self._last_failures.items()
                if self._labels.is_named(topic)
            },
        )
        rooms = {topic: RoomFigures.of(left) for topic, left in self._rooms_left.by_label().items()}
        spilled = {topic: each.entries for topic, each in self._spilled.by_label().items()}
        return [
            msgspec.structs.replace(
                each,
                room=rooms.get(each.topic),
                slo=self._slo_of(each.topic),
                spilled_entries=spilled.get(each.topic, 0),
            )
            for each in rows
        ]

    def _slo_of(self, topic: str) -> SloFigures | None:
        """How the topic keeps its service level; a dead letter counts as late."""
        objective = self.objectives.get(topic)
        counted = self._ages.within(topic, objective.bound_s) if objective else None
        if objective is None or counted is None:
            return None
        good, arrived = counted
        return SloFigures.of(objective, good, arrived + self._parked.by_label().get(topic, 0))

    def topic_found(self, topic: str) -> None:
        """This worker has queues of the topic: its series begin."""
        for counter in self._topic_counters:
            counter.begin(topic)
        self._ages.begin(topic)

    def forget_topic(self, topic: str) -> None:
        """The topic is gone, or delivered by others: its series end. Call after everything else about it."""
        if self._labels.is_named(topic):
            for counter in self._topic_counters:
                counter.forget(topic)
            self._ages.forget(topic)
        self._backlogs.forget(topic)
        self._ledgers.forget(topic)
        self._rooms_left.forget(topic)
        self._spilled.forget(topic)
        self._outages.forget(topic)
        self._last_failures.pop(topic, None)
        self._remarks.pop(f"topic {topic}", None)
        self._labels.forget(topic)
