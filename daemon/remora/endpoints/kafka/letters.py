"""Dead letters as records of a Kafka topic, for consumers that want to know what they will not get, and why."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from remora.codec.event_entry import decode
from remora.codec.kafka_records import FRAME_BYTES, HEADER_BYTES, encode_record
from remora.codec.rendering_plain import key
from remora.codec.speedups import partitions
from remora.endpoints.headers import letter_headers, omitted
from remora.endpoints.kafka.batches import BATCH_BYTES, size_above
from remora.model.errors import CodecError
from remora.model.record import DeadLetter


@dataclass(frozen=True, slots=True)
class LetterRecord:
    """A dead letter as it stands in a topic.

    `key` is the one that the event's own record would have, so that both kinds of record can be joined; None for an
    entry that is corrupt or cannot be decoded. `value` is the entry as the queue held it.
    """

    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]

    @property
    def nbytes(self) -> int:
        """The most that it takes up in a batch, before compression."""
        headers = sum(HEADER_BYTES + len(name) + len(value) for name, value in self.headers)
        return FRAME_BYTES + len(self.key or b"") + len(self.value) + headers


def letter_record(letter: DeadLetter) -> LetterRecord:
    """Everything that is known of a letter. Times are in seconds since the epoch, with milliseconds."""
    record_key = None
    if letter.is_as_committed:
        with suppress(CodecError):
            record_key = key(decode(letter.raw).event)
    return LetterRecord(record_key, letter.raw, [(name.decode(), value) for name, value in letter_headers(letter)])


@dataclass(slots=True, eq=False)
class LetterBatch:
    """Letters that travel together to one partition; `nbytes` as in a KafkaBatch."""

    lane: int
    letters: list[DeadLetter]
    records: list[LetterRecord]
    nbytes: int

    def __len__(self) -> int:
        return len(self.records)

    def encode(self, first: int) -> bytes:
        """The letters as they stand in a batch, the first of them at this place."""
        return b"".join(
            encode_record(place, each.key, each.value, each.headers) for place, each in enumerate(self.records, first)
        )


class LetterPacker:
    """Sorts letters by partition into batches that the broker accepts; parameters as those of `Packer`."""

    def __init__(self, partitions: int, *, codec: int, batch_bytes: int, limit_bytes: int) -> None:
        self._partitions = partitions
        self._codec = codec
        self._limit_bytes = limit_bytes
        self.batch_bytes = min(batch_bytes, limit_bytes)

    def pack(self, letters: Sequence[DeadLetter]) -> list[LetterBatch]:
        """Every letter, those of a key in order and in one partition; one without a key goes by its queue's name.

        No letter is refused: one that is too large goes without the entry's bytes, and a header tells how many were
        left out. They are kept in the store.
        """
        batches: list[LetterBatch] = []
        open_: dict[int, LetterBatch] = {}
        records = [letter_record(letter) for letter in letters]
        names = [each.queue.encode() if r.key is None else r.key for r, each in zip(records, letters, strict=True)]
        for letter, whole, lane in zip(letters, records, partitions(names, self._partitions), strict=True):
            record = self._fitting(letter, whole, lane)
            batch = open_.get(lane)
            if batch is not None and BATCH_BYTES + batch.nbytes + record.nbytes <= self.batch_bytes:
                batch.letters.append(letter)
                batch.records.append(record)
                batch.nbytes += record.nbytes
            else:
                open_[lane] = LetterBatch(lane, [letter], [record], record.nbytes)
                batches.append(open_[lane])
        return batches

    def _fitting(self, letter: DeadLetter, record: LetterRecord, lane: int) -> LetterRecord:
        alone = LetterBatch(lane, [letter], [record], record.nbytes)
        if not size_above(self._limit_bytes, self._codec, alone):
            return record
        name, value = omitted(record.value)
        return LetterRecord(record.key, b"", [*record.headers, (name.decode(), value)])
