"""Dead letters into records: what a consumer finds in them, order, sizes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from random import Random

from aiokafka.partitioner import murmur2
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from devkit.entries.entries import raw_entry
from remora.endpoints.kafka.batches import BATCH_BYTES, CODECS, RecordBatch
from remora.endpoints.kafka.letters import LetterBatch, LetterPacker, letter_record
from remora.model.record import DeadLetter


def letter(at: int, raw: bytes, *, queue: str = "q.1", reason: str = "why") -> DeadLetter:
    return DeadLetter(queue, "inc", f"0/{at}", f"0/{at + 1}", "expired", reason, 3, 1000.25, 2000.5, raw)


def packer(partitions: int = 3, *, codec: str = "none", batch: int = 10_000, limit: int = 20_000) -> LetterPacker:
    return LetterPacker(partitions, codec=CODECS[codec], batch_bytes=batch, limit_bytes=limit)


def contents(batch: LetterBatch) -> list[tuple[bytes | None, bytes, dict[str, bytes]]]:
    """Key, value and headers of each Kafka record that a broker would read."""
    read = MemoryRecords(bytes(RecordBatch(CODECS["none"], [batch]).encoded()))
    found = []
    while (batch := read.next_batch()) is not None:
        found += [(each.key, each.value, dict(each.headers)) for each in batch]
    return found


def test_what_a_consumer_reads() -> None:
    """A letter has the event's own key and names for its place, the entry's bytes, and all that is known of it."""
    raw = raw_entry("k", 1, bucket="b")

    ((key, value, headers),) = contents(packer().pack([letter(7, raw)])[0])

    assert (key, value) == (b"b/k", raw)
    assert headers == {
        "remora-shard": b"q.1",
        "remora-pos": b"inc:0/7",
        "remora-next": b"inc:0/8",
        "remora-incarnation": b"inc",
        "remora-cause": b"expired",
        "remora-reason": b"why",
        "remora-attempts": b"3",
        "remora-first-seen": b"1000.250",
        "remora-parked-at": b"2000.500",
        "remora-event-id": b"id-1",
    }


def test_the_number_of_an_event() -> None:
    """The letter of an event that has a number has it in a header more, as the event's own record would."""
    plain, numbered = (
        contents(packer().pack([each])[0])[0][2]
        for each in (letter(7, raw_entry("k", 1)), replace(letter(7, raw_entry("k", 1)), sequence="t1:42"))
    )

    assert numbered == plain | {"remora-seq": b"t1:42"}


def test_undecodable() -> None:
    """An entry that nobody can decode has no key, and its shard's letters stay in one partition."""
    batches = packer(7).pack([letter(at, b"junk %d" % at) for at in range(5)])

    (batch,) = batches
    assert batch.lane == (murmur2(b"q.1") & 0x7FFFFFFF) % 7
    assert [(key, value) for key, value, _ in contents(batch)] == [(None, b"junk %d" % at) for at in range(5)]


def test_corrupt() -> None:
    """A corrupt entry has neither key nor event id, though its bytes may still look like an event's."""
    raw = raw_entry("k", 1)

    ((key, value, headers),) = contents(packer().pack([replace(letter(7, raw), cause="corrupt")])[0])

    assert (key, value, headers["remora-cause"]) == (None, raw, b"corrupt")
    assert "remora-event-id" not in headers


def test_too_large() -> None:
    """A letter above the topic's limit goes without the entry's bytes, and says so; one that compresses fits."""
    noise = Random(0).randbytes(9000)

    batches = packer(1, codec="zstd", limit=8000).pack([letter(0, noise), letter(1, b"x" * 9000)])

    (large, small) = [found for batch in batches for found in contents(batch)]
    assert (large[1], large[2]["remora-omitted-bytes"]) == (b"", b"9000")
    assert small[1] == b"x" * 9000
    assert "remora-omitted-bytes" not in small[2]


def test_long_reason() -> None:
    """A reason of any length costs a bounded header."""
    assert dict(letter_record(letter(0, b"junk", reason="ä" * 5000)).headers)["remora-reason"] == ("ä" * 500).encode()


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=3), st.integers(0, 4000)), max_size=40),
    st.integers(1, 5),
    st.integers(6000, 12_000),
)
def test_nothing_is_lost_or_moved(sizes: list[tuple[bytes, int]], partitions: int, limit: int) -> None:
    """Every letter is in one batch of its key's lane, in order, and no batch is above the limit."""
    letters = [letter(at, raw_entry(key, bucket="b", padding=size)) for at, (key, size) in enumerate(sizes)]

    lanes: defaultdict[int, list[DeadLetter]] = defaultdict(list)
    for batch in packer(partitions, limit=limit).pack(letters):
        assert len(contents(batch)) == len(batch.letters)
        assert len(RecordBatch(CODECS["none"], [batch]).encoded()) <= min(limit, BATCH_BYTES + batch.nbytes)
        lanes[batch.lane].extend(batch.letters)

    for lane, members in lanes.items():
        keys = [(murmur2(b"b/" + key) & 0x7FFFFFFF) % partitions for key, _ in sizes]
        assert members == [each for each, theirs in zip(letters, keys, strict=True) if theirs == lane]
    assert sum(map(len, lanes.values())) == len(letters)
