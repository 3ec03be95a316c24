"""Events of spilling: entries that are moved from rings to objects beside them, and bounds that are reached."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from remora.metrics.events import EventGroup, Instruments, say
from remora.metrics.series import TopicLabels
from remora.model.shard import Shard


@dataclass(frozen=True, slots=True)
class SpilledFigures:
    """What is spilled of a topic's queues, and how much of their bound is used."""

    entries: int = 0
    nbytes: int = 0
    near_bound: float = 0.0

    def __add__(self, other: SpilledFigures) -> SpilledFigures:
        near = max(self.near_bound, other.near_bound)
        return SpilledFigures(self.entries + other.entries, self.nbytes + other.nbytes, near)


class SpilledTopics(Collector):
    """What is spilled, by topic; those under `other` are added up."""

    def __init__(self, labels: TopicLabels) -> None:
        self._labels = labels
        self._topics: dict[str, SpilledFigures] = {}

    def set(self, topic: str, figures: SpilledFigures) -> None:
        """Replace what is known of the topic."""
        self._topics[topic] = figures

    def of(self, topic: str) -> SpilledFigures:
        """What is known of the topic."""
        return self._topics.get(topic, SpilledFigures())

    def forget(self, topic: str) -> None:
        """Export the topic no longer."""
        self._topics.pop(topic, None)

    def by_label(self) -> Mapping[str, SpilledFigures]:
        """What is spilled behind each label."""
        merged: dict[str, SpilledFigures] = {}
        for topic, each in list(self._topics.items()):
            label = self._labels.label(topic)
            merged[label] = merged.get(label, SpilledFigures()) + each
        return merged

    def collect(self) -> Iterator[Metric]:
        """Three gauges."""
        entries = GaugeMetricFamily(
            "remora_spilled_entries", "Entries of the topic that stand in runs beside its queues.", labels=["topic"]
        )
        nbytes = GaugeMetricFamily(
            "remora_spilled_bytes", "Bytes of the topic's rings that spilled entries have left free.", labels=["topic"]
        )
        near = GaugeMetricFamily(
            "remora_spill_bound_ratio",
            "Used part of spill.topic_bytes or spill.total_bytes, whichever is more; at 1 nothing more is moved.",
            labels=["topic"],
        )
        for label, each in self.by_label().items():
            entries.add_metric([label], each.entries)
            nbytes.add_metric([label], each.nbytes)
            near.add_metric([label], each.near_bound)
        yield from (entries, nbytes, near)


class SpillEvents(EventGroup):
    """See the module."""

    def __init__(self, instruments: Instruments) -> None:
        super().__init__(instruments)
        self._moved = instruments.topic_counter("remora_spill_moved", "Entries moved from the topic's rings to runs.")
        self._seams = instruments.counter(
            "remora_spill_seams",
            "Times that a queue was taken over after others had delivered newer entries than its spilled ones.",
        )
        self._spilled = SpilledTopics(instruments.labels)
        instruments.registry.register(self._spilled)

    def spill_began(self, topic: str, queue: str) -> None:
        """Entries of a queue are moved out of its ring from now on."""
        self._say_seldom(
            logging.WARNING, "spill_began", ("spill", queue),
            "entries are moved beside their queue, since it fills while they cannot be delivered",
            topic=topic, queue=queue,
        )  # fmt: skip

    def spill_moved(self, topic: str, entries: int) -> None:
        """A page of entries was moved."""
        self._moved.add(topic, entries)

    def spill_refused(self, topic: str, queue: str, why: str) -> None:
        """Entries of a queue that fills are not moved; the next look follows."""
        self._say_seldom(
            logging.ERROR, "spill_refused", ("unspilled", queue), "entries stay in a queue that fills",
            topic=topic, queue=queue, reason=why,
        )  # fmt: skip

    def spill_seam(self, shard: Shard, entries: int) -> None:
        """Somebody else delivered what stood behind spilled entries, before this worker took the queue."""
        self._seams.inc()
        say(
            logging.WARNING, "spill_seam",
            "somebody else, such as a radosgw, delivered behind spilled entries: order is broken there",
            queue=shard.queue, entries=entries,
        )  # fmt: skip

    def spill_ended(self, topic: str, queue: str) -> None:
        """The last of the spilled entries of a queue was delivered."""
        say(logging.INFO, "spill_ended", "the last spilled entry was delivered", topic=topic, queue=queue)

    def spilled(self, topic: str, entries: int, nbytes: int) -> None:
        """What is spilled of all queues of a topic that this process holds."""
        known = self._spilled.of(topic)
        if entries or known.entries:
            self._spilled.set(topic, SpilledFigures(entries, nbytes, known.near_bound if entries else 0.0))

    def spill_near_bound(self, topic: str, used: float) -> None:
        """How much of its bound a topic uses."""
        known = self._spilled.of(topic)
        self._spilled.set(topic, SpilledFigures(known.entries, known.nbytes, used))
