"""One page of metrics for many workers: sums that never go back, and gauges by their meaning."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from remora.metrics import Telemetry
from remora.model.traffic import Meter
from remora.process.pipe import Family, Sample, families
from remora.supervisor.page import GAUGES, RETAINED_S, SUPERVISOR, MetricsPage
from support.telemetry import exercise


def counter(name: str, values: Mapping[str, float]) -> Family:
    """A counter by topic."""
    return Family(name, "counter", "text", [Sample(f"{name}_total", {"topic": t}, v) for t, v in values.items()])


def gauge(name: str, value: float) -> Family:
    """A gauge without labels."""
    return Family(name, "gauge", "text", [Sample(name, {}, value)])


def value(page: MetricsPage, name: str, now: float = 0.0, **labels: str) -> float | None:
    """A sample's value on the page."""
    for metric in page.metrics(now):
        for sample in metric.samples:
            if sample.name == name and sample.labels == labels:
                return float(sample.value)
    return None


def test_counters_are_added_up_with_those_of_the_dead() -> None:
    """What a worker counted stays when it ends, and its successor's count comes on top."""
    page = MetricsPage()
    page.take("a", [counter("c", {"t": 5})], 0.0)
    page.take("b", [counter("c", {"t": 7})], 0.0)
    page.ended("a")
    assert value(page, "c_total", topic="t") == 12

    page.take("c", [counter("c", {"t": 1})], 1.0)
    assert value(page, "c_total", topic="t") == 13


def test_a_topic_that_moves_takes_its_count_along() -> None:
    """A worker that gives a topic to another one exports it no longer; the sum on the page stays."""
    page = MetricsPage()
    page.take("a", [counter("c", {"t": 5})], 0.0)
    page.take("a", [counter("c", {})], 1.0)
    page.take("b", [counter("c", {"t": 2})], 1.0)
    assert value(page, "c_total", topic="t") == 7

    page.take("a", [counter("c", {"t": 1})], 2.0)
    assert value(page, "c_total", topic="t") == 8


def test_a_histogram_begins_anew_as_a_whole() -> None:
    """Where a topic left a worker and came back between two looks, all of its histogram is added to what was counted
    before, also those buckets that have more than they had: its buckets go on to be sums."""
    page = MetricsPage()
    for fast, slow in ((5, 0), (3, 4)):
        samples = [
            Sample("h_bucket", {"topic": "t", "le": "1.0"}, fast),
            Sample("h_bucket", {"topic": "t", "le": "+Inf"}, fast + slow),
            Sample("h_count", {"topic": "t"}, fast + slow),
            Sample("h_sum", {"topic": "t"}, fast + 9 * slow),
        ]
        other = [Sample(each.name, each.labels | {"topic": "u"}, 1) for each in samples]
        page.take("a", [Family("h", "histogram", "text", [*samples, *other])], 0.0)

    assert value(page, "h_bucket", topic="t", le="1.0") == 8
    assert value(page, "h_bucket", topic="t", le="+Inf") == value(page, "h_count", topic="t") == 12
    assert value(page, "h_sum", topic="t") == 44
    assert value(page, "h_count", topic="u") == 1


def test_what_nobody_exports_any_more_is_forgotten() -> None:
    """A removed topic's series end, some time after the last worker knew it."""
    page = MetricsPage()
    page.take("a", [counter("c", {"gone": 5, "here": 1})], 0.0)
    page.take("a", [counter("c", {"here": 1})], 1.0)
    assert value(page, "c_total", RETAINED_S, topic="gone") == 5

    page.take("a", [counter("c", {"here": 1})], RETAINED_S + 2)
    assert value(page, "c_total", RETAINED_S + 2, topic="gone") is None
    assert value(page, "c_total", RETAINED_S + 2, topic="here") == 1


def test_a_silent_worker_keeps_its_counters_on_a_page_that_is_rarely_asked_for() -> None:
    """A worker that does not answer now has on the page what it said last, however long ago that was."""
    page = MetricsPage()
    page.take("silent", [counter("c", {"t": 5})], 0.0)

    assert value(page, "c_total", RETAINED_S + 1, topic="t") == 5
    page.take("silent", [counter("c", {"t": 6})], RETAINED_S + 2)
    assert value(page, "c_total", RETAINED_S + 2, topic="t") == 6


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("remora_owned_shards", 5),
        ("remora_eligible_shards", 3),
        ("remora_backlog_oldest_age_seconds", 3),
        ("remora_store_connected", 2),
        ("remora_spill_bound_ratio", 3),
        ("remora_ready", 100),
        ("process_resident_memory_bytes", 105),
    ],
)
def test_gauges_follow_their_meaning(name: str, seen: float) -> None:
    """Added up, or the most or the least of the workers, or the supervisor's own, or of all processes."""
    page = MetricsPage()
    page.take(SUPERVISOR, [gauge(name, 100)], 0.0)
    page.take("a", [gauge(name, 3)], 0.0)
    page.take("b", [gauge(name, 2)], 0.0)

    assert value(page, name) == seen


def test_all_that_the_supervisor_says_of_shaping_is_on_the_page() -> None:
    """Each gauge by scope that the supervisor sets has its value there."""
    telemetry, page = Telemetry(), MetricsPage()
    telemetry.shaping_level("uplink", "max", 7)
    telemetry.shaping_scale("uplink", 0.5, 2048)
    telemetry.shaping_meters({"uplink": {"max": Meter(1, 2, 3)}}, 0.001)
    telemetry.shaping_overridden({"uplink": True})

    page.take(SUPERVISOR, families(telemetry.registry), 0.0)

    said = {
        (each.name, tuple(sorted(each.labels.items()))): each.value
        for family in families(telemetry.registry)
        if family.kind == "gauge"
        for each in family.samples
        if "scope" in each.labels
    }
    shown = {
        (each.name, tuple(sorted(each.labels.items()))): each.value
        for metric in page.metrics(0.0)
        for each in metric.samples
    }
    assert ("remora_shaping_scale_ratio", (("scope", "uplink"),)) in said
    assert said.items() <= shown.items()


def test_the_latest_exemplar_of_all_workers_is_on_the_page() -> None:
    """It goes through the pipe as JSON, into the bucket of its age, and another worker's later one takes its place."""
    page = MetricsPage()
    for worker, trace, at in (("a", "early", 1.0), ("b", "late", 3.0), ("c", "between", 2.0)):
        telemetry = Telemetry()
        telemetry.age_exemplar("t", trace, 0.07, at)
        telemetry.delivered("t", 1, 10, [1], 70_000_001)
        page.take(worker, msgspec.json.decode(msgspec.json.encode(families(telemetry.registry)), type=list[Family]), at)

    shown = {
        sample.labels["le"]: (sample.value, sample.exemplar.labels, sample.exemplar.value, sample.exemplar.timestamp)
        for metric in page.metrics(3.0)
        for sample in metric.samples
        if sample.name == "remora_event_age_seconds_bucket" and sample.exemplar
    }
    assert shown == {"0.1": (3.0, {"trace_id": "late"}, 0.07, 3.0)}


def test_gauges_of_the_dead_are_gone() -> None:
    """What an ended worker held, it holds no more."""
    page = MetricsPage()
    page.take("a", [gauge("remora_owned_shards", 3)], 0.0)
    page.take("b", [gauge("remora_owned_shards", 2)], 0.0)
    page.ended("a")

    assert value(page, "remora_owned_shards") == 2


def test_the_gauges_that_are_named_exist() -> None:
    """The table of meanings names only gauges that are exported."""
    telemetry = Telemetry()
    exercise(telemetry)

    exported = {family.name for family in families(telemetry.registry) if family.kind == "gauge"}

    assert exported >= GAUGES.keys()


def test_a_page_of_everything_is_a_good_exposition() -> None:
    """Every metric of three processes can be read back, histograms with their buckets in order, and counts are sums."""
    page = MetricsPage()
    for source in (SUPERVISOR, "a", "b"):
        telemetry = Telemetry()
        exercise(telemetry)
        page.take(source, families(telemetry.registry), 0.0)
    registry = CollectorRegistry()
    registry.register(Given(page))  # type: ignore[arg-type]  # a collector by its method

    read = {each.name: each for each in text_string_to_metric_families(generate_latest(registry).decode())}

    listed = next(s for s in read["remora_listed_entries"].samples if s.name.endswith("_total"))
    assert listed.value == 9
    ages = [each for each in read["remora_event_age_seconds"].samples if each.name.endswith("_bucket")]
    bounds = [float(each.labels["le"]) for each in ages]
    assert bounds == sorted(bounds)
    assert ages[-1].value == 9


class Given:
    """A collector of one page."""

    def __init__(self, page: MetricsPage) -> None:
        self._page = page

    def collect(self) -> object:
        return self._page.metrics(0.0)


Step = tuple[str, str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["count", "forget", "look", "end"]), st.integers(1, 9)),
    max_size=40,
)


@given(STEPS)
def test_no_counter_ever_goes_back(steps: list[Step]) -> None:
    """Whatever workers count, forget and when they end: each page shows at least what the one before did.

    What was counted between the last look and an end is lost; nothing else is, and nothing is counted twice.
    """
    page, counts, seen, shown, total = MetricsPage(), dict[str, int](), dict[str, int](), 0.0, 0
    for worker, what, amount in steps:
        if what == "count":
            counts[worker] = counts.get(worker, 0) + amount
            total += amount
        elif what == "forget":
            # Its series ends, which the page sees at the next look.
            total -= counts.get(worker, 0) - seen.get(worker, 0)
            counts[worker], seen[worker] = 0, 0
            page.take(worker, [counter("c", {})], 0.0)
        elif what == "look":
            seen[worker] = counts.get(worker, 0)
            page.take(worker, [counter("c", {"t": seen[worker]})], 0.0)
        else:
            total -= counts.pop(worker, 0) - seen.pop(worker, 0)
            page.ended(worker)
        now = value(page, "c_total", topic="t") or 0.0
        assert now >= shown
        shown = now
    for worker, count in counts.items():
        page.take(worker, [counter("c", {"t": count})], 0.0)
    assert (value(page, "c_total", topic="t") or 0.0) == total


def test_descriptors_are_those_of_the_process_that_runs_out_first() -> None:
    """Open and allowed descriptors come from one process: the one whose ratio of them is the worst."""
    page = MetricsPage()
    for source, used, most in ((SUPERVISOR, 20, 1_000), ("a", 900, 100_000), ("b", 300, 1_000), ("c", 5, 0)):
        page.take(source, [gauge("process_open_fds", used), gauge("process_max_fds", most)], 0.0)
    assert (value(page, "process_open_fds"), value(page, "process_max_fds")) == (300, 1_000)

    page.ended("b")
    assert (value(page, "process_open_fds"), value(page, "process_max_fds")) == (20, 1_000)
