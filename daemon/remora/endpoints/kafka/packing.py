"""Records into Kafka record batches: one batch per parcel, one partition per lane."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from remora.codec.fastest import partitions
from remora.model.record import Record

CODECS: dict[str, int] = {
    "none": DefaultRecordBatch.CODEC_NONE,
    "gzip": DefaultRecordBatch.CODEC_GZIP,
    "snappy": DefaultRecordBatch.CODEC_SNAPPY,
    "lz4": DefaultRecordBatch.CODEC_LZ4,
    "zstd": DefaultRecordBatch.CODEC_ZSTD,
}

# Header names are part of what consumers rely on: whoever reads the topic proves with them that nothing is
# missing, doubled or reordered.
SHARD, POSITION, NEXT, EVENT_ID = "remora-shard", "remora-pos", "remora-next", "remora-event-id"


class Batch:
    """One record batch, as aiokafka's `send_batch` takes it.

    It stands in for aiokafka's BatchBuilder, whose `append` costs half as much again as that of the compiled
    builder inside it. Producer id and sequence are filled in by aiokafka just before it is built and sent; its
    bytes are then kept, so that every repetition sends the same ones.
    """

    __slots__ = ("_buffer", "_count", "builder", "given_up")

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self.given_up = False  # set by who waited for it: must not be sent once more
        self._count = 0
        self._buffer: bytearray | None = None

    def seal(self, count: int) -> None:
        """State how many records were appended to the builder."""
        self._count = count

    def record_count(self) -> int:
        return self._count

    def closed(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing to do: nobody appends to a batch that was handed over."""

    def size(self) -> int:
        """Bytes before compression, or as sent when it was built."""
        return len(self._buffer) if self._buffer is not None else int(self.builder.size())

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self.builder.set_producer_state(producer_id, producer_epoch, base_sequence)

    def _build(self) -> bytearray:
        if self._buffer is None:
            self._buffer = self.builder.build()
            self.builder = None
        return self._buffer


@dataclass(frozen=True, slots=True)
class KafkaParcel:
    """A batch and the records in it."""

    lane: int
    records: Sequence[Record]
    batch: Batch
    nbytes: int


class Packer:
    """Sorts records by partition and builds batches that the broker accepts.

    No batch is larger than `batch_bytes` before compression, save for one that holds a single record.
    `limit_bytes` is the broker's limit for a whole batch after compression.
    """

    def __init__(
        self,
        queue: str,
        incarnation: str,
        partitions: int,
        *,
        codec: int,
        batch_bytes: int,
        limit_bytes: int,
        transactional: bool = False,
    ) -> None:
        self._shard = queue.encode()
        self._prefix = incarnation.encode() + b":"
        self._partitions = partitions
        self._codec = codec
        self._batch_bytes = min(batch_bytes, limit_bytes)
        self._limit_bytes = limit_bytes
        self._transactional = transactional

    def pack(self, records: Sequence[Record]) -> tuple[list[KafkaParcel], list[tuple[Record, str]]]:
        """Batches in the order in which each was begun, and the records that are too large, with why.

        The records' timestamp is the time of sending: stamped with the event's own time, entries that waited
        out an outage would fall under the topic's retention at once, or be refused by its timestamp rule. The
        event's time stands in its body.
        """
        begun: list[tuple[int, list[Record], Any]] = []
        refused: list[tuple[Record, str]] = []
        open_: dict[int, tuple[list[Record], Any]] = {}
        shard, prefix, now_ms = (SHARD, self._shard), self._prefix, int(time.time() * 1000)
        lanes = partitions([record.key for record in records], self._partitions)
        for record, lane in zip(records, lanes, strict=True):
            key, body, event_id, _, position, next_position, _ = record
            headers = [
                shard,
                (POSITION, prefix + position),
                (NEXT, prefix + next_position),
                (EVENT_ID, event_id),
            ]
            current = open_.get(lane)
            if current is not None:
                members, append = current
                if append(len(members), now_ms, key, body, headers) is not None:
                    members.append(record)
                    continue
            builder = self._builder()
            builder.append(0, now_ms, key, body, headers)
            if builder.size() > self._limit_bytes:
                open_.pop(lane, None)
                too_large = self._size_alone(now_ms, key, body, headers)
                if too_large > self._limit_bytes:
                    refused.append((record, self._too_large(too_large)))
                    continue
                begun.append((lane, [record], builder))
            else:
                members = [record]
                begun.append((lane, members, builder))
                open_[lane] = (members, builder.append)
        return [_parcel(*each) for each in begun], refused

    def _builder(self) -> Any:
        return new_builder(self._codec, self._batch_bytes, transactional=self._transactional)

    def _size_alone(self, now_ms: int, key: bytes, body: bytes, headers: list[tuple[str, bytes]]) -> int:
        """The size on the wire of a batch with just this record; a builder can be built only once."""
        builder = self._builder()
        builder.append(0, now_ms, key, body, headers)
        return len(builder.build())

    def _too_large(self, nbytes: int) -> str:
        return f"{nbytes} bytes as sent, more than the Kafka topic's max.message.bytes {self._limit_bytes}"


def new_builder(codec: int, batch_bytes: int, *, transactional: bool) -> Any:
    """An empty record batch that takes records up to so many bytes before compression, and always a first one."""
    return DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=int(transactional),
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=0,
        batch_size=batch_bytes,
    )


def _parcel(lane: int, records: list[Record], builder: Any) -> KafkaParcel:
    batch = Batch(builder)
    batch.seal(len(records))
    return KafkaParcel(lane, records, batch, batch.size())
