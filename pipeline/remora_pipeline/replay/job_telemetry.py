"""What the jobs behind Kafka export: to a file for the node exporter's textfile collector, or to a Pushgateway."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, pushadd_to_gateway, write_to_textfile

from remora_pipeline.replay.errors import ReplayError

_ANSWERS_S = 10.0


@dataclass(frozen=True)
class LandingState:
    """What of a topic has landed: for each partition the offset behind the last landed one and the one behind Kafka's
    last, the time of the newest event (0 for none), and how many events and bad values lie in the tables."""

    topic: str
    landed: dict[int, int]
    ends: dict[int, int]
    newest_us: int
    events: int
    bad: int

    @property
    def lag(self) -> int:
        """Offsets that have not landed; of transactions some are no records."""
        return sum(max(0, end - self.landed.get(number, 0)) for number, end in self.ends.items())


@dataclass
class JobTelemetry:
    """One job's metrics. What ends in `_total` elsewhere is a gauge here: it is read from the tables each time."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        """Make the metrics."""

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=self.registry)

        self._offset = gauge(
            "remora_landing_offset", "Offset behind the last one that has landed.", "topic", "partition"
        )
        self._lag = gauge("remora_landing_lag_records", "Offsets in Kafka that have not landed.", "topic")
        self._event_time = gauge(
            "remora_landing_event_time_seconds", "Time of the newest event that has landed.", "topic"
        )
        self._events = gauge("remora_landing_events", "Events in the landed table.", "topic")
        self._bad = gauge("remora_landing_bad_values", "Values set aside because they are no notifications.", "topic")
        self._seen = gauge(
            "remora_landing_timestamp_seconds", "When a landing last came to its end, or ended a batch.", "topic"
        )
        self._duration = gauge("remora_job_duration_seconds", "How long a job has run, or ran.", "command")

    def landing(self, state: LandingState, began: float) -> None:
        """What has landed by now, of a job that began then by the monotonic clock."""
        for number, offset in state.landed.items():
            self._offset.labels(state.topic, str(number)).set(offset)
        self._lag.labels(state.topic).set(state.lag)
        if state.newest_us:
            self._event_time.labels(state.topic).set(state.newest_us / 1e6)
        self._events.labels(state.topic).set(state.events)
        self._bad.labels(state.topic).set(state.bad)
        self._seen.labels(state.topic).set(time.time())
        self._duration.labels("land").set(time.monotonic() - began)

    def export(self, target: str, topic: str) -> None:
        """Write the file, whole or not at all, or push to a gateway. Raises ReplayError."""
        try:
            if target.startswith(("http://", "https://")):
                pushadd_to_gateway(target, "remora-land", self.registry, {"topic": topic}, timeout=_ANSWERS_S)
            else:
                Path(target).parent.mkdir(parents=True, exist_ok=True)
                write_to_textfile(target, self.registry)
        except OSError as exc:
            raise ReplayError(f"{target}: metrics cannot go there: {exc}") from exc
