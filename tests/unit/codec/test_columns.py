"""What is asked of many records at once, and the sequence of records that is kept as rows."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remora.codec import columns, speedups
from remora.codec.columns import Extent, Totals
from remora.model.record import Record

TEXTS = st.binary(max_size=40) | st.sampled_from([bytes(300_000), b"a" * 262_144])
TIMES = st.integers(-(1 << 62), 1 << 62)
EVENTS = st.lists(
    st.builds(Record, TEXTS, TEXTS, TEXTS, TIMES, TEXTS, TEXTS, st.integers(0, 1 << 31), TEXTS, event_ns=TIMES),
    max_size=6,
)
Join = Callable[[Iterable[Sequence[Record]]], Sequence[Record]]


def module(way: Callable[..., object]) -> str:
    return way.__module__.rpartition(".")[2]


@pytest.mark.parametrize("way", dict.fromkeys([columns.totals, speedups.totals]), ids=module)
@given(EVENTS)
@example([])
def test_totals_are_of_all_records(way: Callable[[Sequence[Record]], Totals], events: list[Record]) -> None:
    """Bodies are added up, times and ordinals are in the records' order, whichever renderer made the records."""
    wanted = (
        sum(len(each.body) for each in events),
        [each.created_ns for each in events],
        [each.ordinal for each in events],
    )

    assert way(events) == wanted
    assert way(speedups.joined([events])) == wanted


@pytest.mark.parametrize("way", dict.fromkeys([columns.extent, speedups.extent]), ids=module)
@given(EVENTS)
@example([])
def test_the_extent_is_that_of_all_records(way: Callable[[Sequence[Record]], Extent], events: list[Record]) -> None:
    """It has the bytes of all bodies and the first and the last time, whichever renderer made the records."""
    times = sorted(each.created_ns for each in events) or [0]
    wanted = (sum(len(each.body) for each in events), times[0], times[-1])

    assert way(events) == wanted
    assert way(speedups.joined([events])) == wanted


@pytest.mark.parametrize("way", dict.fromkeys([columns.joined, speedups.joined]), ids=module)
@given(st.lists(EVENTS, max_size=3), st.booleans())
def test_joined_records_are_those_of_all_parts(way: Join, parts: list[list[Record]], again: bool) -> None:
    """One part stands behind the other, each record equal to the one that was given, also where parts were joined."""
    given_: list[Sequence[Record]] = [way([part]) for part in parts] if again else list(parts)

    made = way(given_)

    assert isinstance(made, Sequence)
    assert list(made) == [each for part in parts for each in part]
    assert [type(each) for each in made] == [Record] * len(made)


@pytest.mark.parametrize("way", dict.fromkeys([columns.joined, speedups.joined]), ids=module)
@given(EVENTS, st.integers(-8, 8), st.slices(8))
def test_joined_records_are_a_sequence(way: Join, events: list[Record], place: int, part: slice) -> None:
    """Places, also from the end, places where nothing is, slices and lengths are those of a list."""
    made = way([events])

    assert (len(made), bool(made), list(made[part])) == (len(events), bool(events), events[part])
    if -len(events) <= place < len(events):
        assert made[place] == events[place]
    else:
        with pytest.raises(IndexError):
            made[place]


@pytest.mark.parametrize("way", dict.fromkeys([columns.joined, speedups.joined]), ids=module)
def test_records_outlive_what_they_were_joined_from(way: Join) -> None:
    """A part may be let go while the whole, or a batch of it, is still needed."""
    events = [Record(b"k%d" % i, b"body %d" % i * 100, b"id", i, b"%d" % i, b"%d" % (i + 1), i) for i in range(2_000)]
    made = way(way([events[i : i + 100]]) for i in range(0, 2_000, 100))
    [(_, batch, _)] = speedups.in_batches(made, 1, 0, 1 << 30)
    others = [way([events]) for _ in range(3)]  # would take memory that was given back too early

    del made

    assert list(batch) == events
    assert [len(each) for each in others] == [2_000] * 3


@pytest.mark.parametrize("way", dict.fromkeys([columns.joined, speedups.joined]), ids=module)
def test_few_records_take_little_memory(way: Join) -> None:
    """A thousand queues with an event each need some kilobytes for each, and not what a backlog needs."""
    event = Record(b"k", bytes(1_000), b"id", 0, b"0/1", b"0/2", 0)
    tracemalloc.start()
    try:
        kept = [way([[event]]) for _ in range(1_000)]
        nbytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(kept) == 1_000
    assert nbytes < 1_000 * 3_000


@pytest.mark.parametrize(
    "no_record",
    [
        Record("key", b"", b"", 0, b"", b"", 0),  # type: ignore[arg-type]
        Record(b"", b"", b"", 1 << 63, b"", b"", 0),
        (b"", b"", b"", 0, b"", b""),
        b"1234567",
    ],
)
@pytest.mark.skipif(speedups.IMPLEMENTATION != "compiled", reason="only what was compiled copies records")
def test_what_is_no_record_is_not_joined(no_record: Record) -> None:
    """What rows cannot hold makes an error instead of other values."""
    with pytest.raises((TypeError, OverflowError)):
        speedups.joined([[no_record]])
