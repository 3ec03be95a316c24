"""What the spans of a shard link to, and the clocks that they go by."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from remora.codec.trace_context import parse
from remora.engine.delivery.spans import MOST_LINKS, MOST_LISTINGS, ShardSpans
from remora.model.record import Page, Record
from remora.ports.tracing import Attributes, StagesOf, Work

GIVEN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@dataclass
class Noted:
    """A span that says what it was begun with."""

    work: Work
    links: Sequence[bytes]
    context: bytes
    ends: list[tuple[str, Attributes]] = field(default_factory=list)

    def end(self, failure: str = "", attributes: Attributes | None = None) -> None:
        self.ends.append((failure, attributes or {}))


@dataclass
class NotingTracer:
    """Samples everything, with a context that tells the kind of work and its number."""

    is_on = True
    spans: list[Noted] = field(default_factory=list)

    def begin(
        self, work: Work, name: str, attributes: Attributes, *, parent: bytes = b"", links: Sequence[bytes] = ()
    ) -> Noted:
        self.spans.append(Noted(work, links, b"%b %d" % (work.encode(), len(self.spans))))
        return self.spans[-1]

    def arrived(self, name: str, records: Sequence[Record], now_ns: int, batch: bytes, stages_of: StagesOf) -> None:
        raise AssertionError("nothing was pushed")


def page(first: int, count: int) -> Page:
    return Page([b"0/%d" % at for at in range(first, first + count + 1)], [b"entry"] * count, True)


def records(first: int, count: int, traceparent: str = "") -> list[Record]:
    return [
        Record(b"k", b"{}", b"id", 1, b"0/%d" % at, b"0/%d" % (at + 1), at, b"", traceparent.encode())
        for at in range(first, first + count)
    ]


def listed(spans: ShardSpans, *pages: Page) -> list[bytes]:
    """The contexts of listings that brought these pages."""
    contexts = []
    for each in pages:
        span = spans.listing(10)
        spans.listed(span, each)
        contexts.append(span.context)
    return contexts


def linked(span: object) -> list[bytes]:
    assert isinstance(span, Noted)
    return list(span.links)


def test_a_batch_links_to_the_listing_that_it_begins_in_and_to_its_requests() -> None:
    """Whether it begins at a listing's first entry or within it; requests each once, and none that nobody sent."""
    spans = ShardSpans(NotingTracer(), "orders.1", "orders")
    first, second = listed(spans, page(0, 5), page(5, 5))

    assert linked(spans.batch(some := records(0, 2), [])) == [first]
    assert linked(spans.batch(records(4, 3), [])) == [first]
    assert linked(spans.batch(some := records(7, 2, GIVEN), some)) == [second, parse(GIVEN)]
    assert linked(spans.batch(records(10, 1), [])) == [], "of a listing that was not sampled"
    assert linked(spans.batch([], [])) == [], "a transaction of letters only"


def test_a_removal_links_to_the_listings_that_it_removes_from() -> None:
    """One that goes only in part is linked again when the rest goes; what is gone is forgotten."""
    spans = ShardSpans(NotingTracer(), "orders.1", "orders")
    first, second, third = listed(spans, page(0, 5), page(5, 5), page(10, 5))

    assert linked(spans.removal(b"0/7", 7)) == [first, second]
    assert linked(spans.removal(b"0/10", 3)) == [second]
    assert linked(spans.removal(b"0/15", 5)) == [third]
    assert linked(spans.removal(b"0/15", 0)) == []


def test_what_is_read_again_takes_the_place_of_the_earlier_listing() -> None:
    """After a failure the session reads from the front anew, and batches link to the new listings."""
    spans = ShardSpans(NotingTracer(), "orders.1", "orders")
    listed(spans, page(0, 5), page(5, 5))
    (again,) = listed(spans, page(0, 10))

    assert linked(spans.batch(records(6, 1), [])) == [again]
    assert linked(spans.removal(b"0/10", 10)) == [again]


def test_what_a_shard_remembers_is_bounded() -> None:
    """Of any number of listings the latest are kept, and of any number of requests the first are linked to."""
    spans = ShardSpans(NotingTracer(), "orders.1", "orders")
    contexts = listed(spans, *(page(at, 1) for at in range(3 * MOST_LISTINGS)))
    many = [each for n in range(2 * MOST_LINKS) for each in records(n, 1, f"{GIVEN[:-5]}{n:02x}-01")]

    assert linked(spans.removal(b"0/1000", 1)) == contexts[-MOST_LISTINGS:]
    assert len(linked(spans.batch(many, many))) == MOST_LINKS


def test_a_look_into_an_empty_queue_is_no_span() -> None:
    """Nothing is exported of it, since its span is never ended."""
    tracer = NotingTracer()
    spans = ShardSpans(tracer, "orders.1", "orders")
    listed(spans, page(0, 0))

    assert [each.ends for each in tracer.spans] == [[]]


@pytest.mark.parametrize(
    ("readings", "at"),
    [
        ([1.0, 1.0], 1.0),
        ([1.0, 2.0, 3.0, 3.0], 3.0),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 7.00004], 7.0),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], 7.0),
    ],
)
def test_two_clocks_say_one_moment(readings: list[float], at: float) -> None:
    """Where a pause came between the readings of the two clocks they are read again, four times at most."""
    clock = iter(readings)
    spans = ShardSpans(NotingTracer(), "t", "t", lambda: next(clock))

    before, (found, found_ns), after = time.time_ns(), spans.now(), time.time_ns()

    assert found == at
    assert before <= found_ns <= after
    assert list(clock) == []
