"""Kafka's record batches, encoded at the moment of sending.

Records of many queues go to the same partitions. Each set in a batch of its own, one after the other, they would cost a
round trip each, and this process and the broker more for a batch than for the records in it. So all record sets that
come for a partition while an earlier batch is under way share the next one, as in Kafka's own producer. No record set
waits for others to come.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Protocol

from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from aiokafka.record.util import calc_crc32c

CODECS: dict[str, int] = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""What the lowest bits of a batch's attributes say of its records."""

_COMPRESS: Sequence[Callable[[bytes], bytes]] = (bytes, gzip_encode, snappy_encode, lz4_encode, zstd_encode)
_TRANSACTIONAL = 0x10

_HEAD, _BODY = Struct(">qiibI"), Struct(">hiqqqhii")
BATCH_BYTES = _HEAD.size + _BODY.size
"""What a batch has in front of its records (Kafka's documentation, "Record Batch")."""

_LENGTH_COUNTS_FROM = 12
_FORMAT = 2

Outcome = asyncio.Future[Exception | None]
"""What a caller waits for: why its records did not arrive, or None when they have."""


OnSettled = Callable[[Exception | None], None]
"""What is called with an outcome by which nobody waits any more."""


class RecordSet(Protocol):
    """Records that travel together. `nbytes` is the most that they take up, before compression."""

    @property
    def nbytes(self) -> int: ...

    def __len__(self) -> int:
        """The number of records."""
        ...

    def encode(self, first: int) -> bytes:
        """The records as they stand in a batch, the first of them at this place."""
        ...


class RecordBatch:
    """One record batch.

    It is encoded when it has its numbers and is sent for the first time. The bytes are then kept, so that every
    repetition sends the same ones. aiokafka's BatchBuilder was weighed: it takes records one by one, at three times the
    cost.

    The records' timestamp is the time of sending: stamped with the event's own time, entries that waited out an outage
    would fall under the topic's retention at once, or be refused by its timestamp rule. The event's time stands in its
    body.
    """

    __slots__ = ("_codec", "_count", "_encoded", "_producer", "_sets", "_transactional", "nbytes")

    def __init__(self, codec: int, sets: Sequence[RecordSet] = (), *, transactional: bool = False) -> None:
        self._codec = codec
        self._transactional = transactional
        self._sets = list(sets)
        self._count = sum(map(len, sets))
        self._producer = (-1, -1, -1)
        self._encoded: bytes | None = None
        self.nbytes = BATCH_BYTES + sum(each.nbytes for each in sets)

    def __len__(self) -> int:
        """The number of records."""
        return self._count

    def number(self, producer_id: int, epoch: int, first: int) -> None:
        """Set the producer, and the sequence number of the first record."""
        self._producer = (producer_id, epoch, first)

    def encoded(self) -> bytes:
        """The batch as it is sent, the same bytes each time."""
        if self._encoded is None:
            now_ms = int(time.time() * 1000)
            self._encoded = build(self._codec, self._sets, now_ms, self._producer, transactional=self._transactional)
            self._sets.clear()
        return self._encoded


class SharedBatch(RecordBatch):
    """A batch that takes in more record sets until it is sent; each has a caller that waits for it."""

    __slots__ = ("_is_open", "_left", "_most_bytes", "_settled", "_waiting", "given_up", "is_doubted")

    def __init__(self, codec: int, most_bytes: int, records: RecordSet) -> None:
        """It begins with one record set of any size; with more it has `most_bytes` before compression, at most."""
        super().__init__(codec, [records])
        self._most_bytes = most_bytes
        self._is_open = True
        self._waiting: list[Outcome] = [asyncio.get_running_loop().create_future()]
        self._left: list[OnSettled] = []
        self._settled: tuple[Exception | None] | None = None
        self.is_doubted = False  # set when a request with it was not answered: it may have arrived
        self.given_up = False  # set when a caller left it after it was numbered: must not be sent once more

    @property
    def first(self) -> Outcome:
        """What the caller that began it waits for."""
        return self._waiting[0]

    @property
    def is_shared(self) -> bool:
        """Whether it carries several record sets."""
        return len(self._waiting) > 1

    @property
    def is_empty(self) -> bool:
        """Whether all have left it."""
        return not self._waiting

    def add(self, records: RecordSet, most_bytes: int) -> Outcome | None:
        """Take in one more; what to wait for, or None when it is on its way or would have more than either allows."""
        if not self._is_open or self.nbytes + records.nbytes > min(most_bytes, self._most_bytes):
            return None
        self._sets.append(records)
        self._count += len(records)
        self.nbytes += records.nbytes
        arrived: Outcome = asyncio.get_running_loop().create_future()
        self._waiting.append(arrived)
        return arrived

    def remove(self, arrived: Outcome) -> bool:
        """Take out what its caller waits for no longer; returns whether that was still possible."""
        if not self._is_open:
            return False
        at = self._waiting.index(arrived)
        del self._waiting[at]
        records = self._sets.pop(at)
        self._count -= len(records)
        self.nbytes -= records.nbytes
        self._is_open = not self.is_empty
        return True

    def settle(self, failure: Exception | None) -> None:
        """Tell all who wait what became of it."""
        self._is_open, self._settled = False, (failure,)
        for each in self._waiting:
            if not each.done():
                each.set_result(failure)
        for on_settled in self._left:
            on_settled(failure)
        self._left.clear()

    def left(self, on_settled: OnSettled) -> None:
        """A caller waits no longer for a batch that is on its way, and is to be told nevertheless what became of it."""
        if self._settled is not None:
            on_settled(*self._settled)
        else:
            self._left.append(on_settled)

    def number(self, producer_id: int, epoch: int, first: int) -> None:
        """As for every batch; from here on none joins it or leaves it."""
        super().number(producer_id, epoch, first)
        self._is_open = False


def build(
    codec: int,
    sets: Sequence[RecordSet],
    now_ms: int,
    producer: tuple[int, int, int] = (-1, -1, -1),
    *,
    transactional: bool = False,
) -> bytes:
    """A batch as it is sent; `producer` is its id, its epoch and the first record's sequence number.

    It goes uncompressed where compression saves nothing.
    """
    parts, count = [], 0
    for each in sets:
        parts.append(each.encode(count))
        count += len(each)
    attributes = _TRANSACTIONAL if transactional else 0
    records = parts[0] if len(parts) == 1 else b"".join(parts)
    if codec:
        compressed = _COMPRESS[codec](records)
        if len(compressed) < len(records):
            records, attributes = compressed, attributes | codec
    body = _BODY.pack(attributes, count - 1, now_ms, now_ms, *producer, count) + records
    length = _HEAD.size + len(body) - _LENGTH_COUNTS_FROM
    return _HEAD.pack(0, length, -1, _FORMAT, calc_crc32c(body)) + body


def built_size(codec: int, records: RecordSet) -> int:
    """Bytes of a batch with this record set alone, as sent."""
    return len(build(codec, [records], 0))


def size_above(limit_bytes: int, codec: int, records: RecordSet) -> int:
    """Bytes of a batch with this record set alone where it is larger than a broker's limit, else 0."""
    if BATCH_BYTES + records.nbytes <= limit_bytes:  # nearly always so
        return 0
    nbytes = built_size(codec, records)
    return nbytes if nbytes > limit_bytes else 0
