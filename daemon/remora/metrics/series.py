"""Prometheus series by topic: cheap for whole batches, and limited in number.

prometheus-client's own objects are used where little calls them. Its histogram wants one call per observation and its
gauges cannot be summed into an `other`, so those two are collectors of our own; what each event counts is in `counts`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from remora.model.ledger import Balance, Tally
from remora.model.shard import QueueRoom
from remora.policy.status.objectives import AGE_BOUNDS_S

OTHER = "other"
"""The topic label of all topics beyond the limit."""


class TopicLabels:
    """Which topics have series of their own: the first ones seen, up to a limit; the rest share `other`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._named: set[str] = set()

    def label(self, topic: str) -> str:
        """The topic's label value."""
        if topic in self._named:
            return topic
        if len(self._named) >= self._limit or topic == OTHER:
            return OTHER
        self._named.add(topic)
        return topic

    def is_named(self, topic: str) -> bool:
        """Whether the topic has series of its own."""
        return topic in self._named

    def forget(self, topic: str) -> None:
        """Free the topic's place."""
        self._named.discard(topic)


def bound_names(bounds_s: Sequence[float]) -> list[str]:
    """The buckets' labels, that of all beyond the last bound among them."""
    return [
        str(floatToGoString(bound))  # type: ignore[no-untyped-call]  # prometheus-client leaves it unannotated
        for bound in (*bounds_s, float("inf"))
    ]


class AgeHistogram(Collector):
    """How old events were when they arrived, by topic. A batch costs two passes in C, whatever its size.

    Ages below zero, which skewed clocks make, count as zero.
    """

    def __init__(self, labels: TopicLabels, name: str, text: str, bounds_s: Sequence[float] = AGE_BOUNDS_S) -> None:
        self._labels = labels
        self._name = name
        self._text = text
        self._bounds_ns = [round(bound * 1e9) for bound in bounds_s]
        self._bound_names = bound_names(bounds_s)
        self._series: dict[str, _Ages] = {}

    def observe(self, topic: str, created_ns: Sequence[int], now_ns: int) -> None:
        """Take in a batch of events that all arrived at `now_ns`."""
        if not created_ns:
            return
        ages = self._ages_of(topic)
        newest = max(created_ns)
        if newest > now_ns:
            created_ns = [min(each, now_ns) for each in created_ns]
            newest = now_ns
        first = bisect_left(self._bounds_ns, now_ns - newest)
        last = bisect_left(self._bounds_ns, now_ns - min(created_ns))
        if first == last:
            ages.counts[first] += len(created_ns)
        else:
            self._spread(ages.counts, sorted(created_ns), now_ns, first, last)
        ages.sum_ns += now_ns * len(created_ns) - sum(created_ns)

    def begin(self, topic: str) -> None:
        """Export the topic, with no event so far."""
        self._ages_of(topic)

    def _ages_of(self, topic: str) -> _Ages:
        label = self._labels.label(topic)
        ages = self._series.get(label)
        if ages is None:
            ages = self._series[label] = _Ages([0] * len(self._bound_names))
        return ages

    def _spread(self, counts: list[int], ordered: list[int], now_ns: int, first: int, last: int) -> None:
        """Cut the ordered events at each bound between the newest one's bucket and the oldest one's."""
        end = len(ordered)
        for bucket in range(first, last):
            begin = bisect_left(ordered, now_ns - self._bounds_ns[bucket], 0, end)
            counts[bucket] += end - begin
            end = begin
        counts[last] += end

    def exemplify(self, topic: str, trace_id: str, age_s: float, now_s: float) -> None:
        """Show an event that was observed, by the id of its trace, in its bucket."""
        bucket = bisect_left(self._bounds_ns, age_s * 1e9)
        self._ages_of(topic).exemplars[bucket] = Exemplar({"trace_id": trace_id}, age_s, now_s)

    def within(self, topic: str, bound_s: float) -> tuple[int, int] | None:
        """How many events of the topic were at most so old, a bound of a bucket, and how many there were in all.

        None where the topic has no series of its own.
        """
        ages = self._series.get(topic)
        if ages is None or not self._labels.is_named(topic):
            return None
        return sum(ages.counts[: bisect_left(self._bounds_ns, round(bound_s * 1e9)) + 1]), sum(ages.counts)

    def forget(self, topic: str) -> None:
        """Export the topic no longer."""
        self._series.pop(topic, None)

    def collect(self) -> Iterable[Metric]:
        """The family, with cumulative buckets, each with its latest exemplar."""
        family = HistogramMetricFamily(self._name, self._text, labels=["topic"])
        for label, ages in list(self._series.items()):
            total = 0
            buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
            for bucket, (name, count) in enumerate(zip(self._bound_names, list(ages.counts), strict=True)):
                total += count
                shown = ages.exemplars.get(bucket)
                buckets.append((name, float(total), shown) if shown else (name, float(total)))
            family.add_metric([label], buckets, ages.sum_ns / 1e9)
        yield family


@dataclass(slots=True)
class _Ages:
    counts: list[int]
    sum_ns: int = 0
    exemplars: dict[int, Exemplar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BacklogFigures:
    """What waits in a topic's queues; `oldest_age_s` is None when nothing does, or when it is not known."""

    entries: int
    exact: bool
    nbytes: int
    oldest_age_s: float | None

    def __add__(self, other: BacklogFigures) -> BacklogFigures:
        ages = [age for age in (self.oldest_age_s, other.oldest_age_s) if age is not None]
        return BacklogFigures(
            self.entries + other.entries,
            self.exact and other.exact,
            self.nbytes + other.nbytes,
            max(ages, default=None),
        )


@dataclass(frozen=True, slots=True)
class RoomLeft:
    """What a queue can still take, what of it is leaked, and for how long the room lasts; of a topic, its worst queue.

    `capacity_bytes` is that of the queue with the least room.
    """

    room_bytes: int
    capacity_bytes: int
    leaked_bytes: int
    seconds_until_full: float

    @property
    def of_queue(self) -> QueueRoom:
        """A queue with this room, in which only what is leaked is reserved."""
        used = max(0, self.capacity_bytes - self.room_bytes - self.leaked_bytes)
        return QueueRoom(self.capacity_bytes, used, self.capacity_bytes - self.room_bytes - used, 0)

    def __add__(self, other: RoomLeft) -> RoomLeft:
        least = min(self, other, key=lambda each: each.room_bytes)
        return RoomLeft(
            least.room_bytes,
            least.capacity_bytes,
            max(self.leaked_bytes, other.leaked_bytes),
            min(self.seconds_until_full, other.seconds_until_full),
        )


class RoomsLeft(Collector):
    """The room of each topic's worst queue, as last looked at; of the topics under `other`, that of the worst."""

    def __init__(self, labels: TopicLabels, prefix: str) -> None:
        self._labels = labels
        self._prefix = prefix
        self._topics: dict[str, RoomLeft] = {}

    def set(self, topic: str, left: RoomLeft) -> None:
        """Replace what is known of the topic."""
        self._topics[topic] = left

    def forget(self, topic: str) -> None:
        """Export the topic no longer."""
        self._topics.pop(topic, None)

    def by_label(self) -> Mapping[str, RoomLeft]:
        """The room behind each label."""
        merged: dict[str, RoomLeft] = {}
        for topic, left in list(self._topics.items()):
            label = self._labels.label(topic)
            merged[label] = merged[label] + left if label in merged else left
        return merged

    def collect(self) -> Iterator[Metric]:
        """Three gauges."""

        def gauge(name: str, text: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"{self._prefix}_{name}", text, labels=["topic"])

        room = gauge("room_bytes", "Bytes that can still be reserved in the topic's queue with the least room.")
        leaked = gauge("leaked_bytes", "Leaked bytes, reserved for nobody, of the topic's queue with the most.")
        until = gauge(
            "seconds_until_full",
            "Seconds until the topic's worst queue is full, by its growth over ten minutes; +Inf if it does not grow.",
        )
        for label, left in self.by_label().items():
            room.add_metric([label], left.room_bytes)
            leaked.add_metric([label], left.leaked_bytes)
            until.add_metric([label], left.seconds_until_full)
        yield from (room, leaked, until)


class Backlogs(Collector):
    """What waits, by topic, as last looked at; the topics under `other` are added up."""

    def __init__(self, labels: TopicLabels, prefix: str) -> None:
        self._labels = labels
        self._prefix = prefix
        self._topics: dict[str, BacklogFigures] = {}

    def set(self, topic: str, backlog: BacklogFigures) -> None:
        """Replace what is known of the topic."""
        self._topics[topic] = backlog

    def forget(self, topic: str) -> None:
        """Export the topic no longer."""
        self._topics.pop(topic, None)

    def by_label(self) -> Mapping[str, BacklogFigures]:
        """The backlog behind each label."""
        merged: dict[str, BacklogFigures] = {}
        for topic, backlog in list(self._topics.items()):
            label = self._labels.label(topic)
            merged[label] = merged[label] + backlog if label in merged else backlog
        return merged

    def collect(self) -> Iterator[Metric]:
        """Three gauges; the entries say whether they were counted or estimated from the bytes."""
        entries = GaugeMetricFamily(
            f"{self._prefix}_entries",
            "Entries that wait in the topic's queues; estimated from the bytes where the store cannot count them.",
            labels=["topic", "estimated"],
        )
        nbytes = GaugeMetricFamily(
            f"{self._prefix}_bytes", "Bytes that the topic's queues use in the store.", labels=["topic"]
        )
        oldest = GaugeMetricFamily(
            f"{self._prefix}_oldest_age_seconds",
            "Age of the oldest entry that waits, as last looked at; 0 when none does.",
            labels=["topic"],
        )
        for label, backlog in self.by_label().items():
            entries.add_metric([label, "false" if backlog.exact else "true"], backlog.entries)
            nbytes.add_metric([label], backlog.nbytes)
            if backlog.oldest_age_s is not None or not backlog.entries:
                oldest.add_metric([label], backlog.oldest_age_s or 0.0)
        yield from (entries, nbytes, oldest)


@dataclass(frozen=True, slots=True)
class Books:
    """The balances of a topic's queues, added up. What is `unaccounted` in one never makes up for another."""

    committed: int
    pending: int
    removed: Tally
    unaccounted: int

    @classmethod
    def of(cls, balance: Balance) -> Books:
        """The books of one queue."""
        return cls(balance.committed, balance.pending, balance.removed, abs(balance.unaccounted))

    def __add__(self, other: Books) -> Books:
        return Books(
            self.committed + other.committed,
            self.pending + other.pending,
            self.removed + other.removed,
            self.unaccounted + other.unaccounted,
        )


class Ledgers(Collector):
    """The balances by topic, as last looked at; the topics under `other` are added up."""

    def __init__(self, labels: TopicLabels, prefix: str) -> None:
        self._labels = labels
        self._prefix = prefix
        self._topics: dict[str, Books] = {}

    def set(self, topic: str, books: Books) -> None:
        """Replace what is known of the topic."""
        self._topics[topic] = books

    def forget(self, topic: str) -> None:
        """Export the topic no longer."""
        self._topics.pop(topic, None)

    def collect(self) -> Iterator[Metric]:
        """Four gauges: they go with the queues, from worker to worker."""

        def gauge(name: str, text: str, *further: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"{self._prefix}_{name}", text, labels=["topic", *further])

        committed = gauge("committed_entries", "Entries ever committed to the topic's queues.")
        pending = gauge("pending_entries", "Entries that wait in the topic's queues, by their ledgers.")
        removed = gauge("removed_entries", "Entries that have left the topic's queues, by why.", "cause")
        unaccounted = gauge(
            "unaccounted_entries",
            "Entries of a topic that neither wait nor left for a known cause, or were counted twice; else 0.",
        )
        for label, books in self.by_label().items():
            committed.add_metric([label], books.committed)
            pending.add_metric([label], books.pending)
            unaccounted.add_metric([label], books.unaccounted)
            for cause, count in books.removed.items():
                removed.add_metric([label, str(cause)], count)
        yield from (committed, pending, removed, unaccounted)

    def by_label(self) -> Mapping[str, Books]:
        """The books behind each label."""
        merged: dict[str, Books] = {}
        for topic, books in list(self._topics.items()):
            label = self._labels.label(topic)
            merged[label] = merged[label] + books if label in merged else books
        return merged


class TopicGauge(Collector):
    """A gauge by topic whose values all come together; those under `other` are added up."""

    def __init__(self, labels: TopicLabels, name: str, text: str) -> None:
        self._labels = labels
        self._name = name
        self._text = text
        self._topics: Mapping[str, int] = {}

    def set(self, topics: Mapping[str, int]) -> None:
        """Replace what is known of all topics."""
        self._topics = topics

    def by_label(self) -> Mapping[str, int]:
        """The number behind each label."""
        merged: dict[str, int] = {}
        for topic, count in self._topics.items():
            label = self._labels.label(topic)
            merged[label] = merged.get(label, 0) + count
        return merged

    def collect(self) -> Iterator[Metric]:
        """One gauge, of the topics that have a value."""
        family = GaugeMetricFamily(self._name, self._text, labels=["topic"])
        for label, count in self.by_label().items():
            family.add_metric([label], count)
        yield family


class FailsSince(Protocol):
    """A topic that fails: the kind of its failure, and when it failed first."""

    @property
    def kind(self) -> str: ...

    @property
    def since(self) -> float: ...


class Failing(Collector):
    """Which topics are failing now, by the kind of the failure, and for how long; those under `other` are counted."""

    def __init__(
        self, labels: TopicLabels, topics: Callable[[], Mapping[str, FailsSince]], clock: Callable[[], float]
    ) -> None:
        self._labels = labels
        self._topics = topics
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """1 for a failing topic, or the number of failing topics behind the label; and the time of the longest."""
        failing = GaugeMetricFamily(
            "remora_topic_failing",
            "1 while a topic's last attempt failed; kind=configuration or damaged: stopped until an operator acts.",
            labels=["topic", "kind"],
        )
        seconds = GaugeMetricFamily(
            "remora_topic_failing_seconds",
            "Time since a failing topic failed first, as status and page show it; absent while it does not fail.",
            labels=["topic"],
        )
        counts: dict[tuple[str, str], int] = {}
        longest: dict[str, float] = {}
        for topic, each in list(self._topics().items()):
            label = self._labels.label(topic)
            counts[label, each.kind] = counts.get((label, each.kind), 0) + 1
            longest[label] = max(longest.get(label, 0.0), self._clock() - each.since)
        for (label, kind), count in counts.items():
            failing.add_metric([label, kind], count)
        for label, age_s in longest.items():
            seconds.add_metric([label], age_s)
        yield from (failing, seconds)
