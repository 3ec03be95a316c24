"""What all groups of events share: the registry in which they make their metrics, and the spacing of repeated lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from remora.metrics.logs import Repeats
from remora.metrics.series import TopicCounter, TopicLabels

# A `_created` series beside every counter would double the exposition and tells nothing that a restart does not.
disable_created_metrics()  # type: ignore[no-untyped-call]  # prometheus-client leaves it unannotated


class Instruments:
    """See the module."""

    def __init__(self, metric_topics: int, repeat_interval_s: float, clock: Callable[[], float]) -> None:
        """`metric_topics` bounds the topics with series of their own; `clock` only spaces repeated log lines."""
        self.clock = clock
        self.repeats = Repeats(repeat_interval_s, clock)
        self.registry = CollectorRegistry(auto_describe=True)
        self.labels = TopicLabels(metric_topics)
        self.topic_counters: list[TopicCounter] = []
        """All that were made, so that each forgets a topic that is gone."""

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """A counter; prometheus-client adds `_total` to its name."""
        return Counter(name, text, labels, registry=self.registry)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """A gauge."""
        return Gauge(name, text, labels, registry=self.registry)

    def histogram(self, name: str, text: str, *labels: str, buckets: tuple[float, ...]) -> Histogram:
        """A histogram with these upper bounds, in the unit that its name ends with."""
        return Histogram(name, text, labels, registry=self.registry, buckets=buckets)

    def topic_counter(self, name: str, text: str, **further: Sequence[str]) -> TopicCounter:
        """A counter by topic and `further` labels, each with all its values."""
        made = TopicCounter(self.registry, self.labels, name, text, further)
        self.topic_counters.append(made)
        return made
