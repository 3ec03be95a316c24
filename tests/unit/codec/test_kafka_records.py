"""Records in Kafka's own format, as aiokafka's builder would write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import example, given
from hypothesis import strategies as st

from remora.codec import kafka_records, speedups
from remora.codec.kafka_records import (
    FRAME_BYTES,
    HEADER_BYTES,
    RECORD_BYTES,
    SEQUENCE_BYTES,
    TRACE_BYTES,
    encode_record,
    varint,
)
from remora.codec.murmur2 import partition
from remora.model.record import Record

Way = Callable[[bytes, bytes, Sequence[Record], int], bytes]
Headers = list[tuple[str, bytes]]

each_way = pytest.mark.parametrize(
    "way",
    dict.fromkeys([kafka_records.encode_events, speedups.encode_events]),
    ids=lambda way: way.__module__.rpartition(".")[2],
)

BATCH_BYTES = 61
TEXTS = st.binary(max_size=70) | st.sampled_from([bytes(63), bytes(64), bytes(8191), bytes(8192)])
EVENTS = st.lists(
    st.builds(
        Record,
        TEXTS,
        TEXTS,
        TEXTS,
        st.integers(0, 1 << 62),
        TEXTS,
        TEXTS,
        st.integers(0, 9),
        st.just(b"") | TEXTS,
        st.just(b"") | TEXTS,
        event_ns=st.integers(0, 1 << 62),
    ),
    max_size=8,
)


def by_aiokafka(records: list[tuple[bytes | None, bytes, Headers]], first: int) -> bytes:
    """The records of a batch as aiokafka builds it."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=0,
        batch_size=1 << 30,
    )
    for place, (key, value, headers) in enumerate(records, first):
        builder.append(place, 0, key, value, headers)
    return bytes(builder.build())[BATCH_BYTES:]


def own_bytes(event: Record) -> int:
    """What an event adds to its record at most: its texts, and the headers of its number and its trace context."""
    numbered = SEQUENCE_BYTES + len(event.sequence) if event.sequence else 0
    traced = TRACE_BYTES + len(event.traceparent) if event.traceparent else 0
    return numbered + traced + sum(map(len, (*event[:3], event.position, event.next_position)))


@each_way
@given(TEXTS, TEXTS, EVENTS, st.sampled_from([0, 1, 62, 63, 64, 4094, 4095, 8191, 8192, 1 << 20]))
@example(b"", b"", [], 0)
def test_events_are_written_as_aiokafka_writes_them(
    way: Way, shard: bytes, prefix: bytes, events: list[Record], first: int
) -> None:
    """Any events, at any place in a batch, have the very bytes that aiokafka's builder gives them."""
    wanted: list[tuple[bytes | None, bytes, Headers]] = [
        (
            each.key,
            each.body,
            [
                ("remora-shard", shard),
                ("remora-pos", prefix + each.position),
                ("remora-next", prefix + each.next_position),
                ("remora-event-id", each.event_id),
                *([("remora-seq", each.sequence)] if each.sequence else []),
                *([("traceparent", each.traceparent)] if each.traceparent else []),
            ],
        )
        for each in events
    ]

    made = way(shard, prefix, events, first)

    assert made == by_aiokafka(wanted, first)
    assert len(made) <= sum(RECORD_BYTES + len(shard) + 2 * len(prefix) + own_bytes(each) for each in events)


@pytest.mark.parametrize(
    "way",
    dict.fromkeys([kafka_records.in_batches, speedups.in_batches]),
    ids=lambda way: way.__module__.rpartition(".")[2],
)
@given(EVENTS, st.integers(1, 5), st.integers(0, 300), st.integers(0, 700))
def test_records_are_divided_among_partitions(
    way: Callable[[Sequence[Record], int, int, int], Sequence[tuple[int, Sequence[Record], int]]],
    events: list[Record],
    partitions: int,
    around: int,
    room: int,
) -> None:
    """Each batch has what follows in its partition while there is room, and says how much that is; in order."""
    wanted: list[tuple[int, list[Record], int]] = []
    for each in events:
        lane = partition(each.key, partitions)
        nbytes = around + own_bytes(each)
        open_ = max((at for at, (its, _, _) in enumerate(wanted) if its == lane), default=-1)
        if open_ >= 0 and wanted[open_][2] + nbytes <= room:
            wanted[open_] = lane, [*wanted[open_][1], each], wanted[open_][2] + nbytes
        else:
            wanted.append((lane, [each], nbytes))

    made = way(events, partitions, around, room)

    assert [(lane, list(members), nbytes) for lane, members, nbytes in made] == wanted


@given(st.none() | TEXTS, TEXTS, st.lists(st.tuples(st.text(max_size=80), TEXTS), max_size=6), st.integers(0, 1 << 20))
def test_any_record_is_written_as_aiokafka_writes_it(
    key: bytes | None, value: bytes, headers: Headers, place: int
) -> None:
    """Any key, value and headers have the very bytes that aiokafka's builder gives them, and not more than foretold."""
    made = encode_record(place, key, value, headers)

    assert made == by_aiokafka([(key, value, headers)], place)
    assert len(made) <= FRAME_BYTES + len(key or b"") + len(value) + sum(
        HEADER_BYTES + len(name.encode()) + len(text) for name, text in headers
    )


@pytest.mark.parametrize(
    ("number", "encoded"), [(0, b"\0"), (63, b"\x7e"), (64, b"\x80\x01"), (8191, b"\xfe\x7f"), (8192, b"\x80\x80\x01")]
)
def test_numbers(number: int, encoded: bytes) -> None:
    """Numbers are doubled, because they are signed, and seven bits go into a byte, the low ones first."""
    assert varint(number) == encoded


@each_way
@pytest.mark.parametrize(
    "event",
    [Record(None, b"", b"", 0, b"", b"", 0), Record(b"", b"", "id", 0, b"", b"", 0), (b"", b""), b"1234567"],  # type: ignore[arg-type]
)
def test_what_is_no_event_is_refused(way: Way, event: Record) -> None:
    """What is no record of bytes makes an error, and no bytes that are something else."""
    with pytest.raises((TypeError, ValueError)):
        way(b"q", b"i:", [event], 0)
