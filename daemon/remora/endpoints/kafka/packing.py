"""Records of one shard into batches: a partition for each lane, and at most as much as the broker accepts in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from remora.codec.kafka_records import AFTER_BYTES, RECORD_BYTES, encode_event
from remora.codec.speedups import encode_events, in_batches
from remora.endpoints.kafka.batches import BATCH_BYTES, size_above
from remora.model.record import Record


@dataclass(frozen=True, slots=True)
class Origin:
    """What the headers of all records of a shard have in common."""

    shard: bytes
    prefix: bytes

    @classmethod
    def of(cls, queue: str, incarnation: str) -> Self:
        """That of a queue."""
        return cls(queue.encode(), incarnation.encode() + b":")

    @property
    def nbytes(self) -> int:
        """The most that a record takes up besides its own key, value, positions and event id."""
        return RECORD_BYTES + len(self.shard) + 2 * len(self.prefix)


@dataclass(slots=True, eq=False)
class KafkaBatch:
    """Records for one partition. `nbytes` is the most that they take up in a batch, before compression."""

    lane: int
    origin: Origin
    records: Sequence[Record]
    nbytes: int
    after: bytes = b""
    """What the first record says of where the shards before this one ended, where it does."""

    def __len__(self) -> int:
        return len(self.records)

    def encode(self, first: int) -> bytes:
        """The records as they stand in a batch, the first of them at this place."""
        shard, prefix, records = self.origin.shard, self.origin.prefix, self.records
        if not self.after:
            return encode_events(shard, prefix, records, first)
        begin = encode_event(shard, prefix, records[0], first, self.after)
        return begin + encode_events(shard, prefix, records[1:], first + 1)


class Packer:
    """Sorts records by partition into batches that the broker accepts.

    With what a batch has around them, the records of a batch have `batch_bytes` at most before compression, save for
    a record that travels alone. `limit_bytes` is the broker's limit for a whole batch after compression.
    """

    def __init__(
        self, queue: str, incarnation: str, partitions: int, *, codec: int, batch_bytes: int, limit_bytes: int
    ) -> None:
        self._origin = Origin.of(queue, incarnation)
        self._partitions = partitions
        self._codec = codec
        self.after = b""
        """Where the shards ended that this one took over from, for its first record."""
        self._first = b""
        self.limit(batch_bytes, limit_bytes)

    def limit(self, batch_bytes: int, limit_bytes: int) -> None:
        """Go by these limits from now on."""
        self._limit_bytes = limit_bytes
        self.batch_bytes = min(batch_bytes, limit_bytes)

    def pack(self, records: Sequence[Record]) -> tuple[list[KafkaBatch], list[tuple[Record, str]]]:
        """Batches in the order in which each was begun, and the records that are too large, with why."""
        batches: list[KafkaBatch] = []
        refused: list[tuple[Record, str]] = []
        room = self.batch_bytes - BATCH_BYTES
        for lane, members, nbytes in in_batches(records, self._partitions, self._origin.nbytes, room):
            batch = KafkaBatch(lane, self._origin, members, nbytes)
            if too_large := size_above(self._limit_bytes, self._codec, batch):
                refused.append((members[0], self._too_large(too_large)))
            else:
                batches.append(batch)
        if self.after and batches:
            self._tell(batches)
        return batches, refused

    def _tell(self, batches: list[KafkaBatch]) -> None:
        """Have the first record that is packed say where the parents ended; also when it is packed anew."""
        first = batches[0].records[0].position
        self._first = self._first or first
        if first != self._first:
            self.after = b""
            return
        told = replace(batches[0], after=self.after, nbytes=batches[0].nbytes + AFTER_BYTES + len(self.after))
        if not size_above(self._limit_bytes, self._codec, told):
            batches[0] = told

    def _too_large(self, nbytes: int) -> str:
        return f"{nbytes} bytes as sent, more than the Kafka topic's max.message.bytes {self._limit_bytes}"
