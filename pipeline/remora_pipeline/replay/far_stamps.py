"""Kafka's records within a task, for those whose stamps Spark's connector cannot have.

A stamp is in milliseconds. A producer that takes nanoseconds for them is off by a million: Spark counts microseconds in
64 bits, and its connector raises for such a record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from aiokafka import AIOKafkaConsumer, TopicPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from remora_pipeline.replay.errors import ReplayError
from remora_pipeline.replay.properties import client_options

MOST_US = 2**63 - 1
FIRST_FAR_MS = MOST_US // 1000 + 1
"""The least stamp that is too large for Spark."""

SPANS = "partition int, first long, behind long"

RECORDS = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField(
            "headers",
            ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
        ),
    ]
)
"""What Spark's connector gives."""

_SCHEMA = to_arrow_schema(RECORDS, timezone="UTC")
_MOST_BATCH_BYTES = 1 << 24
_POLL_MS = 1000
_STALLED_POLLS = 60


@dataclass(frozen=True)
class _FarRead:
    bootstrap: str
    topic: str
    isolation: str
    security: dict[str, str]
    may_be_gone: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for span in batch.to_pylist():
                yield from self._span(span["partition"], span["first"], span["behind"])

    def _span(self, partition: int, first: int, behind: int) -> Iterator[pa.RecordBatch]:
        place = TopicPartition(self.topic, partition)
        with asyncio.Runner() as runner:
            consumer = runner.run(self._opened(place, first))
            try:
                stalled = 0
                while (at := runner.run(consumer.position(place))) < behind:
                    found = runner.run(consumer.getmany(place, timeout_ms=_POLL_MS)).get(place, [])
                    yield from _batches([record for record in found if record.offset < behind])
                    stalled = 0 if found or runner.run(consumer.position(place)) > at else stalled + 1
                    if stalled > _STALLED_POLLS:
                        raise ReplayError(f"topic {self.topic}: nothing comes of partition {partition} at offset {at}")
            finally:
                runner.run(consumer.stop())

    async def _opened(self, place: TopicPartition, first: int) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            enable_auto_commit=False,
            isolation_level=self.isolation,
            auto_offset_reset="earliest" if self.may_be_gone else "none",
            **client_options(self.security),
        )
        await consumer.start()
        consumer.assign([place])
        consumer.seek(place, first)
        return consumer


def reading(
    bootstrap: str, topic: str, isolation: str, security: dict[str, str], may_be_gone: bool
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a task does to read the records of SPANS as RECORDS; with `may_be_gone` those that are left of them."""
    return _FarRead(bootstrap, topic, isolation, security, may_be_gone)


def _batches(records: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    rows: list[tuple[Any, ...]] = []
    nbytes = 0
    for record in records:
        headers = [{"key": name, "value": text} for name, text in record.headers]
        place = (record.topic, record.partition, record.offset)
        stamp_us = min(record.timestamp * 1000, MOST_US)
        rows.append((record.key, record.value, *place, stamp_us, record.timestamp_type, headers or None))
        texts = (record.value, record.key, *(text for _, text in record.headers))
        nbytes += sum(len(text or b"") for text in texts)
        if nbytes > _MOST_BATCH_BYTES:
            yield _made(rows)
            rows, nbytes = [], 0
    if rows:
        yield _made(rows)


def _made(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
