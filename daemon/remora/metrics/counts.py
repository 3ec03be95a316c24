"""Counters and histograms of what happens so often that their price shows: sums are taken as they come.

prometheus-client's own take a lock and check names and values at each call, which made half of what a single event's
metrics took.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, product
from types import MappingProxyType

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from remora.metrics.series import TopicLabels, bound_names


class TopicCounter(Collector):
    """A counter by topic and by labels with a few values each. Must not be counted in from two threads."""

    def __init__(
        self,
        registry: CollectorRegistry,
        labels: TopicLabels,
        name: str,
        text: str,
        further: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        """`further` has the labels with all their values."""
        self._further = tuple(product(*further.values()))
        self._labels = labels
        self._name, self._text, self._names = name, text, ("topic", *further)
        self._counts: dict[tuple[str, ...], float] = {}
        registry.register(self)

    def add(self, topic: str, amount: float, *values: str) -> None:
        """Count `amount` more."""
        series = (self._labels.label(topic), *values)
        self._counts[series] = self._counts.get(series, 0.0) + amount

    def begin(self, topic: str) -> None:
        """Export all series of the topic with 0 until something is counted, so that a rate sees the first event."""
        for values in self._further:
            self.add(topic, 0, *values)

    def by_label(self) -> Mapping[str, int]:
        """The count behind each label, over all further values."""
        totals: dict[str, int] = {}
        for (label, *_), count in list(self._counts.items()):
            totals[label] = totals.get(label, 0) + int(count)
        return totals

    def forget(self, topic: str) -> None:
        """Export the topic no longer."""
        self._counts = {series: count for series, count in self._counts.items() if series[0] != topic}

    def collect(self) -> Iterable[Metric]:
        """The family."""
        family = CounterMetricFamily(self._name, self._text, labels=self._names)
        for series, count in list(self._counts.items()):
            family.add_metric(series, count)
        yield family


class TimesHistogram(Collector):
    """Times by labels with few values. A time costs a look for its bucket and two sums."""

    def __init__(
        self, registry: CollectorRegistry, name: str, text: str, labels: Sequence[str], bounds_s: Sequence[float]
    ) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._bounds_s = bounds_s
        self._bound_names = bound_names(bounds_s)
        self._series: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}
        registry.register(self)

    def observe(self, seconds: float, *values: str) -> None:
        """Count a time."""
        found = self._series.get(values)
        if found is None:
            found = self._series[values] = ([0] * len(self._bound_names), [0.0])
        counts, total = found
        counts[bisect_left(self._bounds_s, seconds)] += 1
        total[0] += seconds

    def counts(self) -> Mapping[tuple[str, ...], tuple[Sequence[int], float]]:
        """By labels, how many times fell into each bucket, and the sum of all of them."""
        return {values: (tuple(counts), total[0]) for values, (counts, total) in self._series.items()}

    def collect(self) -> Iterable[Metric]:
        """The family, with cumulative buckets."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, (counts, total) in list(self._series.items()):
            sums = zip(self._bound_names, map(float, accumulate(list(counts))), strict=True)
            family.add_metric(values, list(sums), total[0])
        yield family
