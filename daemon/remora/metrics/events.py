"""What every group of events is made of: metrics of the daemon's registry, and lines in its log.

Levels: ERROR when an operator must act or data was lost, WARNING when something is odd but recovers, INFO for
lifecycle, DEBUG per batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from remora.metrics.counts import TopicCounter
from remora.metrics.logs import Repeats
from remora.metrics.series import TopicLabels

# A `_created` series beside every counter would double the exposition and tells nothing that a restart does not.
disable_created_metrics()  # type: ignore[no-untyped-call]  # prometheus-client leaves it unannotated


class Instruments:
    """What all groups share: the registry in which they make their metrics, and the spacing of repeated lines."""

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


class Crashes:
    """Counts defects, in `registry`, and logs each with its traceback, one that repeats itself as often as others."""

    def __init__(self, registry: CollectorRegistry, repeats: Repeats) -> None:
        self._count = Counter("remora_crashes", "Unexpected errors; the part concerned starts anew.", registry=registry)
        self._repeats = repeats

    def crashed(self, what: str) -> None:
        """The exception being handled is a defect; `what` (a queue, a loop) starts anew."""
        self._count.inc()
        if self._repeats.unsaid(("crashed", what)) is not None:
            extra = {"event": "crashed", "fields": {"what": what}}
            log.error("failed unexpectedly", exc_info=True, extra=extra)  # noqa: LOG014  # in its callers' handlers


MOST_REMARKS = 10_000
MOST_REMARKS_EACH = 16

log = logging.getLogger("remora")


class EventGroup:
    """Methods that are named for what happened; each changes the metrics and writes the log line of its event."""

    def __init__(self, instruments: Instruments) -> None:
        self.registry = instruments.registry
        self.repeats = instruments.repeats
        self.clock = instruments.clock
        """Measures the time between two events."""
        self._remarks: dict[str, set[str]] = {}

    def _is_news(self, subject: str, text: str) -> bool:
        """Whether this was not yet said of the subject."""
        if len(self._remarks) >= MOST_REMARKS:
            self._remarks.clear()  # queues come and go; to repeat a remark is better than to keep all for ever
        said = self._remarks.setdefault(subject, set())
        if text in said:
            return False
        if len(said) >= MOST_REMARKS_EACH:
            said.clear()
        said.add(text)
        return True

    def _say_seldom(self, level: int, event: str, key: object, text: str, **fields: object) -> None:
        """Write the line at once, and then at most once in `log.repeat_interval` for the same key, with the number left
        unsaid."""
        unsaid = self.repeats.unsaid(key)
        if unsaid is not None:
            say(level, event, text, **fields, **({"repeated": unsaid} if unsaid else {}))


def say(level: int, event: str, text: str, **fields: object) -> None:
    """Write one log line with the event's name and fields."""
    # As an argument, so that a per cent sign in the text is only a per cent sign.
    log.log(level, "%s", text, extra={"event": event, "fields": fields})
