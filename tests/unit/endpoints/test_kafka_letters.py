"""Dead letters into records: what a consumer finds in them, order, sizes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import cast

import aiokafka.errors as kafka
import pytest
from aiokafka.partitioner import murmur2
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from devkit.entries.entries import raw_entry
from remora.config import KafkaSettings
from remora.endpoints.kafka import KafkaEndpoint
from remora.endpoints.kafka.batches import BATCH_BYTES, CODECS, RecordBatch, built_size
from remora.endpoints.kafka.exact import ExactKafkaRoute, Opened, Places, RouteOpening
from remora.endpoints.kafka.identity import ConnectionIdentity
from remora.endpoints.kafka.lookup import BROKER_DEFAULT_BYTES, TopicFacts
from remora.endpoints.kafka.packer import LetterBatch, LetterPacker, SmallerBatches, letter_record
from remora.endpoints.kafka.sender_pool import SenderSlot
from remora.endpoints.kafka.target import parse_target
from remora.endpoints.kafka.transactions import BatchFailed, Mark, Sending
from remora.endpoints.observer import LogObserver
from remora.endpoints.tasks import Tasks
from remora.model.errors import EndpointError, EndpointUnavailable
from remora.model.record import DeadLetter
from remora.model.shard import Shard
from remora.model.topic import Target


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


class SmallBroker:
    """In the place of a slot, its sender and a producer: it takes batches of so many bytes, and states that nowhere."""

    connection = "c"
    cluster = "b:9092"
    current = None
    outcome_unknown = False

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.taken: dict[str, bytes] = {}

    async def ready(self) -> SmallBroker:
        return self

    async def deliver(self, topic: str, partition: int, batch: LetterBatch, batch_bytes: int) -> None:
        """As a sender does."""
        if built_size(0, batch) > self.most_bytes:
            raise kafka.MessageSizeTooLargeError
        self.taken |= {headers["remora-pos"].decode(): value for _, value, headers in contents(batch)}

    async def transact(self, sendings: Sequence[Sending], mark: Mark, patience_s: float) -> None:
        """As a producer does: all of it or nothing."""
        for each in sendings:
            if len(each.batch.encoded()) > self.most_bytes:
                raise BatchFailed(each, kafka.MessageSizeTooLargeError())


UNSTATED = TopicFacts(1, BROKER_DEFAULT_BYTES, limit_known=False)
MEANT = parse_target(Target("kafka://b:9092", "remora-dead-letter-topic=dead", "t"))
SOME = [letter(at, b"x" * size) for at, size in enumerate((100, 5000, 900, 900, 900))]


async def test_a_limit_that_is_not_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Letters that the broker refuses for their size go in smaller batches, and one that is alone without its entry."""
    broker, endpoint = SmallBroker(2000), KafkaEndpoint(KafkaSettings(compression="none"))

    async def look_up(*_: object) -> TopicFacts:
        return UNSTATED

    monkeypatch.setattr(endpoint, "_look_up", look_up)
    route = await endpoint._open(cast(SenderSlot, broker), Shard("q"), "inc", MEANT)
    for _ in range(20):
        with suppress(EndpointUnavailable):
            await route.publish_letters(SOME)
            break

    assert [len(broker.taken.get(f"inc:0/{at}", b"not there")) for at in range(5)] == [100, 0, 900, 900, 900]


async def test_a_limit_that_is_not_stated_in_transactions() -> None:
    """It is found out there by the transactions that fail, as a limit and not as a fault of the topic's."""
    broker, smaller, settings = SmallBroker(2000), SmallerBatches(), KafkaSettings(compression="none")
    connection = cast(ConnectionIdentity, broker)
    failed: list[Exception] = []
    for _ in range(20):
        packing = RouteOpening(connection, settings, LogObserver(), smaller, cast(Tasks, None))
        letters = LetterPacker(**packing._packing("dead", {"dead": UNSTATED}))
        opened = SimpleNamespace(letters=letters, meant=MEANT, incarnation="inc", producer=broker)
        route = ExactKafkaRoute(cast(Opened, opened), connection, Places(1), settings, LogObserver(), smaller)
        try:
            await route.commit([], b"0/9", SOME)
            break
        except EndpointError as exc:
            failed.append(exc)

    assert 1 < len(failed) < 20
    assert {type(each) for each in failed} == {EndpointUnavailable}
