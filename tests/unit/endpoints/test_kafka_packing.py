"""Records into batches: order, sizes, headers."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from aiokafka.partitioner import murmur2
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from remora.endpoints.kafka.batches import BATCH_BYTES, CODECS, RecordBatch
from remora.endpoints.kafka.packer import KafkaBatch, Packer, RecordOrigin
from remora.model.record import Record


def record(key: bytes, body: bytes, at: int) -> Record:
    return Record(key, body, b"event%d" % at, 0, b"0/%d" % at, b"0/%d" % (at + 1), at)


def packer(partitions: int = 3, *, codec: str = "none", most: int = 10_000, limit: int = 20_000) -> Packer:
    return Packer(RecordOrigin.of("queue", "inc"), partitions, codec=CODECS[codec], batch_bytes=most, limit_bytes=limit)


def built(batch: KafkaBatch, codec: str = "none") -> bytes:
    """A record batch with this batch alone, as it is sent."""
    return bytes(RecordBatch(CODECS[codec], [batch]).encoded())


def contents(batch: bytes) -> list[Any]:
    """The Kafka records that a broker would read."""
    read = MemoryRecords(batch)
    records: list[Any] = []
    while (batch := read.next_batch()) is not None:
        records.extend(batch)
    return records


RECORDS = st.lists(st.tuples(st.binary(min_size=1, max_size=6), st.integers(0, 3000)), max_size=60).map(
    lambda pairs: [record(key, b"x" * size, at) for at, (key, size) in enumerate(pairs)]
)


@given(RECORDS, st.integers(1, 7), st.integers(100, 4000), st.integers(100, 4000))
def test_nothing_is_lost_or_moved(records: list[Record], partitions: int, most: int, limit: int) -> None:
    """Every record is in one batch or refused, those of a lane in order and in the lane of their key."""
    batches, refused = packer(partitions, most=most, limit=limit).pack(records)

    lanes: defaultdict[int, list[Record]] = defaultdict(list)
    for batch in batches:
        lanes[batch.lane].extend(batch.records)
    left_out = {each.ordinal for each, _ in refused}
    for lane, members in lanes.items():
        assert members == [
            each
            for each in records
            if (murmur2(each.key) & 0x7FFFFFFF) % partitions == lane and each.ordinal not in left_out
        ]
    assert sum(len(each) for each in lanes.values()) + len(refused) == len(records)


@given(RECORDS, st.sampled_from(sorted(CODECS)), st.integers(100, 4000), st.integers(100, 4000))
def test_sizes_are_bounded(records: list[Record], codec: str, most: int, limit: int) -> None:
    """No batch is above the broker's limit, none of several records above the batch size, no small record refused."""
    batches, refused = packer(codec=codec, most=most, limit=limit).pack(records)

    for batch in batches:
        assert len(batch) == len(batch.records)
        assert len(batch) == 1 or BATCH_BYTES + batch.nbytes <= min(most, limit)
        assert len(built(batch)) <= BATCH_BYTES + batch.nbytes
        assert [each.value for each in contents(built(batch, codec))] == [each.body for each in batch.records]
        assert len(built(batch, codec)) <= limit
    for each, reason in refused:
        assert len(each.body) + 200 > limit
        assert "max.message.bytes" in reason


def test_what_a_consumer_reads() -> None:
    """Key, value and headers are the record's, the timestamp is the time of sending."""
    before = int(time.time() * 1000)

    ((batch,), refused) = packer(1).pack([Record(b"b/o", b"{}", b"ev", 17, b"0/24576", b"1/3", 0)])

    (read,) = contents(built(batch))
    assert refused == []
    assert (read.key, read.value) == (b"b/o", b"{}")
    assert list(read.headers) == [
        ("remora-shard", b"queue"),
        ("remora-pos", b"inc:0/24576"),
        ("remora-next", b"inc:1/3"),
        ("remora-event-id", b"ev"),
    ]
    assert before <= read.timestamp <= int(time.time() * 1000)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compression_counts_for_the_limit(codec: str) -> None:
    """A record above the limit that compresses below it is sent alone; one that does not is refused."""
    noise = Random(0).randbytes(5000)
    records = [record(b"k", b"small", 0), record(b"k", b"x" * 5000, 1), record(b"k", noise, 2), record(b"k", b"s", 3)]

    batches, refused = packer(1, codec=codec, most=1000, limit=1000).pack(records)

    assert [[each.ordinal for each in batch.records] for batch in batches] == [[0], [1], [3]]
    assert [each.ordinal for each, _ in refused] == [2]
    assert len(built(batches[1], codec)) <= 1000


def test_no_records() -> None:
    """Packing nothing gives nothing."""
    assert packer().pack([]) == ([], [])


def headers_of(batches: list[KafkaBatch]) -> dict[bytes, str]:
    """What each record says of where the shards before its own ended."""
    read = [each for batch in batches for each in contents(built(batch))]
    return {each.key: dict(each.headers).get("remora-after", b"").decode() for each in read}


def test_the_first_record_of_a_shard_says_where_those_before_it_ended() -> None:
    """The first record that is packed has the header behind its others, also when it is packed anew, and no other one;
    its batch has room for it."""
    records = [record(b"k%d" % at, b"x", at) for at in range(9)]
    packed = packer(3)
    packed.after = b"t=i:0/7,t.1=i:0/9"

    first, again, later = [packed.pack(some)[0] for some in (records[:5], records[:5], records[5:])]

    for batches in (first, again):
        told = headers_of(batches)
        assert told.pop(b"k0") == "t=i:0/7,t.1=i:0/9"
        assert not any(told.values())
    assert not any(headers_of(later).values())
    (batch,) = [each for each in first if each.after]
    assert [name for name, _ in contents(built(batch))[0].headers][-1] == "remora-after"
    assert len(batch.encode(0)) <= batch.nbytes
    assert len(batch.encode(0)) > len(replace(batch, after=b"").encode(0))


def test_a_record_is_not_refused_for_what_it_says_of_others() -> None:
    """Where it is too large with the header it goes without."""
    large = record(b"k", b"x" * 900, 0)
    packed = packer(3, most=1100, limit=1100)
    packed.after = b"t=i:0/7," * 40

    batches, refused = packed.pack([large])

    assert not refused
    assert headers_of(batches) == {b"k": ""}
