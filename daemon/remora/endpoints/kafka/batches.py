"""Record batches as aiokafka takes them, built at the moment of sending.

Parcels of many queues go to the same partitions. Each in a batch of its own, one after the other, they would cost a
round trip each, and this process and the broker more for a batch than for the records in it. So whatever wants to go
to a partition while an earlier batch is under way shares the next one, as in Kafka's own producer. Nobody waits for
company.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

CODECS: dict[str, int] = {
    "none": DefaultRecordBatch.CODEC_NONE,
    "gzip": DefaultRecordBatch.CODEC_GZIP,
    "snappy": DefaultRecordBatch.CODEC_SNAPPY,
    "lz4": DefaultRecordBatch.CODEC_LZ4,
    "zstd": DefaultRecordBatch.CODEC_ZSTD,
}

BATCH_BYTES = 61
"""What a batch has in front of its records (Kafka's documentation, "Record Batch")."""

_UNBOUNDED = 1 << 30

Append = Callable[[int, int, bytes | None, bytes | None, list[tuple[str, bytes]]], object]
"""Offset in the batch, timestamp in milliseconds, key, value, headers."""


class Freight(Protocol):
    """Records that travel together. `nbytes` is the most that they take up, before compression."""

    @property
    def nbytes(self) -> int: ...

    def __len__(self) -> int:
        """How many records it has."""
        ...

    def write(self, append: Append, first: int, now_ms: int) -> None:
        """Append the records; the first one gets this offset, and each the timestamp."""
        ...


class Batch:
    """One record batch.

    It stands in for aiokafka's BatchBuilder, whose `append` costs half as much again as that of the compiled builder
    inside it. aiokafka sets producer id and sequence just before it has the batch built and sent; the bytes are then
    kept, so that every repetition sends the same ones.

    The records' timestamp is the time of sending: stamped with the event's own time, entries that waited out an outage
    would fall under the topic's retention at once, or be refused by its timestamp rule. The event's time stands in its
    body.
    """

    __slots__ = ("_buffer", "_codec", "_count", "_freights", "_producer", "_transactional", "nbytes")

    def __init__(self, codec: int, freights: Sequence[Freight] = (), *, transactional: bool = False) -> None:
        self._codec = codec
        self._transactional = transactional
        self._freights = list(freights)
        self._count = sum(map(len, freights))
        self._producer = (-1, -1, -1)
        self._buffer: bytearray | None = None
        self.nbytes = BATCH_BYTES + sum(each.nbytes for each in freights)

    def record_count(self) -> int:
        return self._count

    def closed(self) -> bool:
        return True  # nothing to wait for: aiokafka may send it at once

    def close(self) -> None:
        """Nothing to do: aiokafka itself appends nothing."""

    def size(self) -> int:
        """Bytes as sent; before it is built, the most that it has before compression."""
        return len(self._buffer) if self._buffer is not None else self.nbytes

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self._producer = (producer_id, producer_epoch, base_sequence)

    def _build(self) -> bytearray:
        if self._buffer is None:
            builder = _new_builder(self._codec, transactional=self._transactional)
            now_ms, first = int(time.time() * 1000), 0
            for each in self._freights:
                each.write(builder.append, first, now_ms)
                first += len(each)
            builder.set_producer_state(*self._producer)
            self._buffer = builder.build()
            self._freights.clear()
        return self._buffer


class SharedBatch(Batch):
    """A batch that takes in more until it is sent; each has somebody who waits for it."""

    __slots__ = ("_is_open", "_most_bytes", "_waiting", "given_up")

    def __init__(self, codec: int, most_bytes: int, freight: Freight) -> None:
        """It begins with one freight of any size; with more it has `most_bytes` before compression, at most."""
        super().__init__(codec, [freight])
        self._most_bytes = most_bytes
        self._is_open = True
        self._waiting: list[asyncio.Future[Exception | None]] = [asyncio.get_running_loop().create_future()]
        self.given_up = False  # set by one who waited for it when it had been sent: must not be sent once more

    @property
    def first(self) -> asyncio.Future[Exception | None]:
        """What whoever began it waits for: the failure, or None when it has arrived."""
        return self._waiting[0]

    @property
    def is_shared(self) -> bool:
        """Whether it carries freight of several."""
        return len(self._waiting) > 1

    @property
    def is_empty(self) -> bool:
        """Whether all have left it."""
        return not self._waiting

    def join(self, freight: Freight, most_bytes: int) -> asyncio.Future[Exception | None] | None:
        """Take in one more; what to wait for, or None when it is on its way or would have more than either allows."""
        if not self._is_open or self.nbytes + freight.nbytes > min(most_bytes, self._most_bytes):
            return None
        self._freights.append(freight)
        self._count += len(freight)
        self.nbytes += freight.nbytes
        arrived: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(arrived)
        return arrived

    def leave(self, arrived: asyncio.Future[Exception | None]) -> bool:
        """Take out what somebody waits for no longer; returns whether that was still possible."""
        if not self._is_open:
            return False
        at = self._waiting.index(arrived)
        del self._waiting[at]
        freight = self._freights.pop(at)
        self._count -= len(freight)
        self.nbytes -= freight.nbytes
        self._is_open = not self.is_empty
        return True

    def settle(self, failure: Exception | None) -> None:
        """Tell all who wait what became of it."""
        self._is_open = False
        for each in self._waiting:
            if not each.done():
                each.set_result(failure)

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        super()._set_producer_state(producer_id, producer_epoch, base_sequence)
        self._is_open = False


def _new_builder(codec: int, *, transactional: bool = False) -> Any:
    """An empty record batch."""
    return DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=int(transactional),
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=0,
        batch_size=_UNBOUNDED,
    )


def built_size(codec: int, freight: Freight) -> int:
    """Bytes of a batch with this freight alone, as sent."""
    builder = _new_builder(codec)
    freight.write(builder.append, 0, 0)
    return len(builder.build())
