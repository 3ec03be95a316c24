"""Batches that several share: who travels in them, how large they get, what each hears of the outcome."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from remora.codec.kafka_records import encode_record
from remora.endpoints.kafka.batches import BATCH_BYTES, CODECS, RecordBatch, SharedBatch, build, built_size


@dataclass(frozen=True)
class Numbers:
    """A record set whose records' values are numbers of its own, each of a few bytes."""

    first: int
    count: int
    nbytes: int

    def __len__(self) -> int:
        return self.count

    def encode(self, first: int) -> bytes:
        return b"".join(encode_record(first + at, None, b"%d" % (self.first + at), []) for at in range(self.count))


def values(batch: RecordBatch) -> list[int]:
    """What a broker would read, when it checked that offsets rise by one."""
    read = MemoryRecords(bytes(batch.encoded())).next_batch()
    assert read is not None
    records = list(read)
    assert [each.offset for each in records] == list(range(len(records)))
    return [int(each.value or b"") for each in records]


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 400), st.integers(100, 1200), st.booleans()), max_size=20),
    st.integers(100, 1000),
)
async def test_what_travels(joining: list[tuple[int, int, int, bool]], most: int) -> None:
    """Exactly what joined and did not leave is sent, in the order of joining, and no more bytes than all allow."""
    batch = SharedBatch(CODECS["none"], most, Numbers(0, 2, 90))
    aboard = [(Numbers(0, 2, 90), batch.first, most)]
    for at, (count, nbytes, allowed, leaves) in enumerate(joining, 1):
        members, before = Numbers(100 * at, count, nbytes), batch.nbytes
        arrived = batch.add(members, allowed)
        assert (arrived is not None) == (before + nbytes <= min(most, allowed))
        if arrived is not None and leaves:
            assert batch.remove(arrived)
        elif arrived is not None:
            aboard.append((members, arrived, allowed))

    assert batch.nbytes == BATCH_BYTES + sum(members.nbytes for members, _, _ in aboard)
    assert batch.is_shared == (len(aboard) > 1)
    assert len(batch) == sum(len(members) for members, _, _ in aboard)
    assert values(batch) == [members.first + at for members, _, _ in aboard for at in range(members.count)]


async def test_on_its_way() -> None:
    """Once a batch is numbered, no record set joins it or leaves it."""
    batch = SharedBatch(CODECS["none"], 1000, Numbers(0, 1, 10))
    other = batch.add(Numbers(1, 1, 10), 1000)
    assert other is not None

    batch.number(7, 1, 0)

    assert batch.add(Numbers(2, 1, 10), 1000) is None
    assert not batch.remove(other)
    assert values(batch) == [0, 1]


async def test_the_last_one_leaves() -> None:
    """Nobody joins a batch that all have left."""
    batch = SharedBatch(CODECS["none"], 1000, Numbers(0, 1, 10))

    assert batch.remove(batch.first)

    assert batch.is_empty
    assert batch.add(Numbers(1, 1, 10), 1000) is None


async def test_everybody_hears_of_the_outcome() -> None:
    """All who still wait are told of a failure; one who no longer does is left alone."""
    batch, failure = SharedBatch(CODECS["none"], 1000, Numbers(0, 1, 10)), OSError("why")
    others = [batch.add(Numbers(at, 1, 10), 1000) for at in (1, 2)]
    assert others[0] is not None
    assert others[1] is not None
    others[0].cancel()

    batch.settle(failure)

    assert (await batch.first, await others[1]) == (failure, failure)
    assert others[0].cancelled()
    assert batch.add(Numbers(3, 1, 10), 1000) is None


async def test_alone() -> None:
    """A batch that is to be alone takes nobody, and is as large as what it carries."""
    batch = SharedBatch(CODECS["none"], 0, Numbers(0, 3, 5000))

    assert batch.add(Numbers(1, 1, 10), 1 << 20) is None
    assert (batch.is_shared, values(batch)) == (False, [0, 1, 2])


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("codec", CODECS)
def test_the_bytes_of_a_batch(codec: str, transactional: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch has the very bytes that aiokafka's builder makes of its records in the same second."""
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.0)  # gzip writes it into its header
    theirs = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=CODECS[codec],
        is_transactional=int(transactional),
        producer_id=7,
        producer_epoch=3,
        base_sequence=900,
        batch_size=1 << 30,
    )
    for at in range(500):
        theirs.append(at, 1_700_000_000_123, None, b"%d" % (1000 + at), [])

    made = build(
        CODECS[codec],
        [Numbers(1000, 1, 9), Numbers(1001, 499, 9)],
        1_700_000_000_123,
        (7, 3, 900),
        transactional=transactional,
    )

    assert made == bytes(theirs.build())


@pytest.mark.parametrize("codec", CODECS)
def test_what_compression_makes_larger(codec: str) -> None:
    """A batch that compression would make larger goes as it is."""
    assert build(CODECS[codec], [Numbers(7, 1, 9)], 0) == build(CODECS["none"], [Numbers(7, 1, 9)], 0)


def test_built_once() -> None:
    """A batch that is repeated is sent with the same bytes, and has the size that was foretold."""
    batch = RecordBatch(CODECS["snappy"], [Numbers(0, 300, 9000)])
    batch.number(7, 1, 0)

    assert batch.encoded() is batch.encoded()
    assert len(batch.encoded()) == built_size(CODECS["snappy"], Numbers(0, 300, 9000))
