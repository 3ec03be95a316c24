"""The metrics of a sequencer. Nothing is counted for each request: figures are read when they are asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import MappingProxyType

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from remora.metrics.events import Crashes
from remora.metrics.logs import Repeats
from remora.metrics.series import OTHER, TopicLabels

NONE: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SequencerFigures:
    """What a sequencer has done and holds at this moment.

    `positions` are those that each log has handed out in the epoch that is served, and `epochs` those epochs; `results`
    are requests since the start by what became of them, `closed` connections by why, `states` logs by their state.
    `waiting` are logs that exist, that clients ask for, and that are not served. `round_requests` counts sampled rounds
    by their requests: index n has those of more than half of 2 ** n and at most 2 ** n, and index 0 also those of none;
    the last one all larger ones. `sampled_requests` are all requests in these rounds.
    """

    positions: Mapping[str, int] = field(default_factory=lambda: NONE)
    epochs: Mapping[str, int] = field(default_factory=lambda: NONE)
    results: Mapping[str, int] = field(default_factory=lambda: NONE)
    states: Mapping[str, int] = field(default_factory=lambda: NONE)
    closed: Mapping[str, int] = field(default_factory=lambda: NONE)
    waiting: int = 0
    connections: int = 0
    rounds: int = 0
    round_requests: Sequence[int] = ()
    sampled_requests: int = 0


class SequencerTelemetry(Collector):
    """All of them, in a registry of their own. `figures` is asked at each scrape."""

    def __init__(self, metric_logs: int = 500, repeat_interval_s: float = 0.0) -> None:
        """The first `metric_logs` logs have series of their own, further ones share the label `other`.

        A defect that repeats itself is logged once in `repeat_interval_s`.
        """
        self.registry = CollectorRegistry()
        self.crashed = Crashes(self.registry, Repeats(repeat_interval_s)).crashed
        self.figures: Callable[[], SequencerFigures] = SequencerFigures
        self._labels = TopicLabels(metric_logs)
        self._past: defaultdict[str, int] = defaultdict(int)
        self._registrations = Counter(
            "remora_sequencer_registrations",
            "Registrations of logs at the sequencer.",
            ("outcome",),
            registry=self.registry,
        )
        self._registration_s = Histogram(
            "remora_sequencer_registration_seconds",
            "Time that a successful registration of a log took.",
            registry=self.registry,
        )
        self._fenced = Counter(
            "remora_sequencer_fenced",
            "Epochs that ended while the sequencer served them.",
            ("reason",),
            registry=self.registry,
        )
        self._skipped = Counter(
            "remora_sequencer_skipped_positions",
            "Positions that no server hands out: this one lost the epoch before it stored its last position.",
            registry=self.registry,
        )
        self.registry.register(self)

    def registered(self, seconds: float) -> None:
        """A log is served."""
        self._registrations.labels("served").inc()
        self._registration_s.observe(seconds)

    def not_registered(self, outcome: str) -> None:
        """A registration failed: `unknown` where there is no such log or it may not be, else `failed`."""
        self._registrations.labels(outcome).inc()

    def fenced(self, reason: str) -> None:
        """An epoch is over that was served: `trust`, `lock` or `epoch`."""
        self._fenced.labels(reason).inc()

    def skipped(self, positions: int) -> None:
        """An epoch is over, and the next server begins behind these positions."""
        self._skipped.inc(positions)

    def ended(self, log: str, positions: int) -> None:
        """A log is not served any more; `positions` were handed out in its epoch."""
        self._past[self._labels.label(log)] += positions

    def collect(self) -> Iterator[Metric]:
        """What is read when it is asked for."""
        now = self.figures()
        positions = self._past.copy()
        epochs: dict[str, int] = {}
        for log, count in now.positions.items():
            label = self._labels.label(log)
            positions[label] += count
            if label != OTHER:
                epochs[label] = now.epochs[log]
        yield _counters("remora_sequencer_positions", "Positions that the sequencer handed out.", "log", positions)
        yield _counters("remora_sequencer_requests", "Requests to the sequencer, by outcome.", "result", now.results)
        yield _counters(
            "remora_sequencer_closed_connections", "Connections that the sequencer closed.", "reason", now.closed
        )
        yield _gauges(
            "remora_sequencer_logs", "Logs that clients of the sequencer asked for, by state.", "state", now.states
        )
        yield _gauges("remora_sequencer_epoch", "Epoch of the log that the sequencer serves.", "log", epochs)
        yield GaugeMetricFamily(
            "remora_sequencer_waiting_logs",
            "Logs that clients of the sequencer ask for and that it does not serve yet.",
            now.waiting,
        )
        yield GaugeMetricFamily("remora_sequencer_connections", "Open connections of the sequencer.", now.connections)
        yield CounterMetricFamily(
            "remora_sequencer_rounds", "Rounds of the sequencer; one reads all requests that have come.", now.rounds
        )
        yield _histogram(
            "remora_sequencer_round_requests",
            "Requests that a round of the sequencer answered, in sampled rounds.",
            now.round_requests,
            now.sampled_requests,
        )


def _counters(name: str, text: str, label: str, values: Mapping[str, int]) -> CounterMetricFamily:
    made = CounterMetricFamily(name, text, labels=(label,))
    for key, value in values.items():
        made.add_metric((key,), value)
    return made


def _histogram(name: str, text: str, counts: Sequence[int], total: int) -> HistogramMetricFamily:
    """Buckets whose bounds are the powers of two; the last one has no bound."""
    bounds = [*(str(float(1 << n)) for n in range(len(counts) - 1)), "+Inf"]
    made = HistogramMetricFamily(name, text)
    made.add_metric((), list(zip(bounds, accumulate(counts or (0,)), strict=True)), total)
    return made


def _gauges(name: str, text: str, label: str, values: Mapping[str, int]) -> GaugeMetricFamily:
    made = GaugeMetricFamily(name, text, labels=(label,))
    for key, value in values.items():
        made.add_metric((key,), value)
    return made
