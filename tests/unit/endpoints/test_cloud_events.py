"""CloudEvents in the headers of Kafka's records and of AMQP's messages, before they are sent."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from aiokafka.record.memory_records import MemoryRecords
from cloudevents.core.bindings.kafka import KafkaMessage
from cloudevents.core.bindings.kafka import from_binary_event as from_kafka
from hypothesis import given
from hypothesis import strategies as st

from devkit.entries.entries import raw_entry
from remora.codec.rendering_cached import Renderer
from remora.endpoints.amqp import messages
from remora.endpoints.amqp.messages import MessagePacker as AmqpPacker
from remora.endpoints.headers import attributes
from remora.endpoints.kafka.batches import BATCH_BYTES, RecordBatch
from remora.endpoints.kafka.packer import KafkaBatch, Packer, RecordOrigin
from remora.model.record import Page, Record

ORIGIN = RecordOrigin.of("t.1", "inc")


def rendered(*keys: str | bytes) -> list[Record]:
    """Records as they come from a queue."""
    positions = [b"0/%d" % at for at in range(len(keys) + 1)]
    page = Page(positions, [raw_entry(key, at) for at, key in enumerate(keys)], False)
    return list(Renderer().render(page)[0])


def built(batch: KafkaBatch) -> bytes:
    """A record batch with this batch alone, as it is sent."""
    return bytes(RecordBatch(0, [batch]).encoded())


def contents(batch: bytes) -> list[Any]:
    """The Kafka records that a broker would read."""
    found = MemoryRecords(batch).next_batch()
    return list(found) if found is not None else []


def packer(partitions: int = 3, most: int = 10_000, limit: int = 20_000) -> Packer:
    return Packer(ORIGIN, partitions, codec=0, batch_bytes=most, limit_bytes=limit, cloudevents=True)


KEYS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300), min_size=1, max_size=20)


@given(KEYS, st.integers(1, 5), st.integers(600, 4000))
def test_records_are_sorted_and_bounded_as_without_them(keys: list[str], partitions: int, most: int) -> None:
    """Each record is in a batch of its key's lane or refused, in order; no batch is longer than it says; and the SDK
    reads each as the event of its entry, with the usual headers beside it."""
    records = rendered(*keys)
    batches, refused = packer(partitions, most, most).pack(records)
    plain, _ = Packer(ORIGIN, partitions, codec=0, batch_bytes=1 << 20, limit_bytes=1 << 20).pack(records)

    lanes: defaultdict[int, list[Record]] = defaultdict(list)
    for batch in batches:
        lanes[batch.lane] += batch.records
        assert len(built(batch)) <= BATCH_BYTES + batch.nbytes
        for found, record in zip(contents(built(batch)), batch.records, strict=True):
            assert (found.key, found.value) == (record.key, record.body)
            headers = dict(found.headers)
            event = from_kafka(KafkaMessage(headers=headers, key=found.key, value=found.value))
            assert event.get_id() == f"t.1/inc:{record.position.decode()}"
            assert event.get_id().encode() == headers["remora-shard"] + b"/" + headers["remora-pos"]
            assert event.get_extension("partitionkey") == record.key.decode()
            assert event.get_subject() == record.key.decode().partition("/")[2]
    left_out = {each.ordinal for each, _ in refused}
    for each in plain:
        assert lanes.get(each.lane, []) == [one for one in each.records if one.ordinal not in left_out]


def test_a_key_that_is_no_text_is_replaced() -> None:
    """Bytes that CloudEvents does not allow are replaced in its attributes; the record's key has them as they are."""
    (record,) = rendered(b"a\xffb")

    found = dict(attributes(record, b"id"))

    assert found["subject"].decode() == "a�b"
    assert record.key.endswith(b"a\xffb")


@pytest.mark.parametrize("long", [0, 2000])
def test_amqp_refuses_attributes_that_no_frame_takes(long: int) -> None:
    """A message whose attributes make its header longer than the broker's frame is refused with why, and no other."""
    records = rendered("k", "x" * long or "y")
    origin = messages.MessageOrigin(b"t", b"i:", cloudevents=True)

    batches, refused = AmqpPacker(origin, 16).pack(records, 4096, None)

    assert len(refused) == (1 if long else 0)
    assert sum(map(len, batches)) == (1 if long else 2)
