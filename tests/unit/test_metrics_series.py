"""Series by topic: the age histogram, the limit on topics, and sums of what shares a label."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import Metric

from remora.metrics.counts import TimesHistogram, TopicCounter
from remora.metrics.series import (
    AgeHistogram,
    BacklogFigures,
    Backlogs,
    Books,
    Ledgers,
    TopicLabels,
)
from remora.model.ledger import Balance, Tally
from remora.model.shard import Shard
from remora.policy.status.objectives import AGE_BOUNDS_S

NOW_NS = 1_795_227_938_000_000_000
MS = 1_000_000

# Ages in whole milliseconds, on bounds and between them, some from a clock that runs ahead.
ages_ms = st.one_of(st.integers(-5_000, 100_000_000), st.sampled_from([round(bound * 1000) for bound in AGE_BOUNDS_S]))


def samples(family: Iterable[Metric]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for metric in family
        for sample in metric.samples
    }


@given(batches=st.lists(st.lists(ages_ms, max_size=40), max_size=6))
def test_the_age_histogram_equals_the_librarys(batches: list[list[int]]) -> None:
    """Batches give the same buckets, count and sum as prometheus-client's histogram gives one by one."""
    registry = CollectorRegistry()
    theirs = Histogram("age_seconds", "text", ("topic",), registry=registry, buckets=AGE_BOUNDS_S)
    ours = AgeHistogram(TopicLabels(10), "age_seconds", "text")

    for batch in batches:
        ours.observe("t", [NOW_NS - age * MS for age in batch], NOW_NS)
        for age in batch:
            theirs.labels("t").observe(max(0, age) / 1000)

    expected = {key: value for key, value in samples(registry.collect()).items() if not key[0].endswith("_created")}
    assert samples(ours.collect()) == pytest.approx(expected)


def test_a_batch_is_counted_without_changing_it() -> None:
    """The caller's list stays as it was, also when its events are out of order or from the future."""
    created = [NOW_NS - 5 * MS, NOW_NS + 7 * MS, NOW_NS - 9_000 * MS]
    ours = AgeHistogram(TopicLabels(10), "age_seconds", "text")

    ours.observe("t", created, NOW_NS)

    assert created == [NOW_NS - 5 * MS, NOW_NS + 7 * MS, NOW_NS - 9_000 * MS]


def test_topics_beyond_the_limit_share_a_label() -> None:
    """The first topics keep their names; all further ones are `other`, until a place is freed."""
    labels = TopicLabels(2)

    assert [labels.label(topic) for topic in ("a", "b", "c", "a", "d")] == ["a", "b", "other", "a", "other"]
    labels.forget("a")
    assert labels.label("d") == "d"


def test_a_topic_named_other_never_owns_the_shared_label() -> None:
    """A topic that is called like the shared label is counted there, and forgetting it takes nothing away."""
    labels = TopicLabels(2)

    assert labels.label("other") == "other"
    assert not labels.is_named("other")


def test_a_forgotten_topic_is_not_exported() -> None:
    """A counter drops every series of a topic and keeps the others."""
    registry = CollectorRegistry()
    counter = TopicCounter(registry, TopicLabels(5), "things", "text", {"kind": ["x", "y"]})
    counter.add("a", 1, "x")
    counter.add("a", 2, "y")
    counter.add("b", 3, "x")

    counter.forget("a")

    left = {labels for name, labels in samples(registry.collect()) if name == "things_total"}
    assert left == {(("kind", "x"), ("topic", "b"))}


def test_what_is_exported_is_what_prometheus_client_would_export() -> None:
    """Of counters by topic and of times, on bounds and between them, each byte is the same."""
    ours, theirs = CollectorRegistry(auto_describe=True), CollectorRegistry(auto_describe=True)
    bounds_s = (0.001, 0.0025, 1, 30)
    counter = TopicCounter(ours, TopicLabels(5), "things", "text", {"kind": ["x", "y"]})
    times = TimesHistogram(ours, "things_seconds", "text", ("kind", "status"), bounds_s)
    their_counter = Counter("things", "text", ("topic", "kind"), registry=theirs)
    their_times = Histogram("things_seconds", "text", ("kind", "status"), registry=theirs, buckets=bounds_s)

    for kind, amount in (("y", 2), ("x", 0), ("y", 0.5)):
        counter.add("a", amount, kind)
        their_counter.labels("a", kind).inc(amount)
    for seconds in (0.0, 0.001, 0.002, 1, 1.5, 30, 31):
        times.observe(seconds, "look", "2xx")
        their_times.labels("look", "2xx").observe(seconds)

    assert generate_latest(ours) == generate_latest(theirs)


def test_backlogs_that_share_a_label_are_added_up() -> None:
    """Entries and bytes are summed, the oldest age is the oldest, and one estimate makes the sum an estimate."""
    backlogs = Backlogs(TopicLabels(1), "backlog")
    backlogs.set("a", BacklogFigures(1, True, 10, 5.0))
    backlogs.set("b", BacklogFigures(2, True, 20, 7.0))
    backlogs.set("c", BacklogFigures(3, False, 30, None))

    found = samples(backlogs.collect())

    assert found["backlog_entries", (("estimated", "false"), ("topic", "a"))] == 1
    assert found["backlog_entries", (("estimated", "true"), ("topic", "other"))] == 5
    assert found["backlog_bytes", (("topic", "other"),)] == 50
    assert found["backlog_oldest_age_seconds", (("topic", "other"),)] == 7.0


def test_an_age_that_cannot_be_told_is_not_exported_as_zero() -> None:
    """An empty topic shows age 0; one whose oldest entry cannot be read shows no age at all."""
    backlogs = Backlogs(TopicLabels(5), "backlog")
    backlogs.set("empty", BacklogFigures(0, True, 0, None))
    backlogs.set("unreadable", BacklogFigures(1, True, 10, None))

    ages = {labels: v for (name, labels), v in samples(backlogs.collect()).items() if "oldest" in name}

    assert ages == {(("topic", "empty"),): 0.0}


def test_ledgers_that_share_a_label_are_added_up() -> None:
    """All figures are summed; what is missing in one topic and what is too much in another do not make up."""
    ledgers = Ledgers(TopicLabels(1), "ledger")
    shard = Shard("q")
    ledgers.set("a", Books.of(Balance(shard, 7, 2, Tally(delivered=5))))
    ledgers.set("b", Books.of(Balance(shard, 10, 3, Tally(delivered=5, expired=1))))
    ledgers.set("c", Books.of(Balance(shard, 10, 3, Tally(delivered=7, dead_lettered=1))))

    found = samples(ledgers.collect())

    assert found["ledger_unaccounted_entries", (("topic", "a"),)] == 0
    assert found["ledger_unaccounted_entries", (("topic", "other"),)] == 2
    assert found["ledger_committed_entries", (("topic", "other"),)] == 20
    assert found["ledger_pending_entries", (("topic", "other"),)] == 6
    assert found["ledger_removed_entries", (("cause", "delivered"), ("topic", "other"))] == 12
    assert found["ledger_removed_entries", (("cause", "dead_lettered"), ("topic", "other"))] == 1
