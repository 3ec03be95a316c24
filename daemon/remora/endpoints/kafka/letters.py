"""Dead letters as records of a Kafka topic, for consumers that want to know what they will not get, and why."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from remora.codec.event_entry import decode
from remora.codec.murmur2 import partitions
from remora.codec.record import key
from remora.endpoints.kafka.packing import EVENT_ID, NEXT, POSITION, SHARD, Batch, new_builder
from remora.model.errors import CodecError
from remora.model.record import DeadLetter

# Shard and positions are written as in the events' own records: whoever looks for gaps in a topic finds the letter
# of an entry that is missing by the same names and values.
INCARNATION, CAUSE, REASON, ATTEMPTS = "remora-incarnation", "remora-cause", "remora-reason", "remora-attempts"
FIRST_SEEN, PARKED_AT, OMITTED = "remora-first-seen", "remora-parked-at", "remora-omitted-bytes"

MOST_REASON_BYTES = 1000
HEADER_BYTES = 4096
"""More than headers and framing of a letter ever take."""


@dataclass(frozen=True, slots=True)
class LetterRecord:
    """A dead letter as it stands in a topic.

    `key` is the one that the event's own record would have, so that both kinds of record can be joined; None for an
    entry that cannot be decoded. `value` is the entry as the queue held it.
    """

    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]


def letter_record(letter: DeadLetter) -> LetterRecord:
    """Everything that is known of a letter. Times are in seconds since the epoch, with milliseconds."""
    prefix = letter.incarnation.encode() + b":"
    headers = [
        (SHARD, letter.queue.encode()),
        (POSITION, prefix + letter.position.encode()),
        (NEXT, prefix + letter.next_position.encode()),
        (INCARNATION, letter.incarnation.encode()),
        (CAUSE, letter.cause.encode()),
        (REASON, letter.reason.encode()[:MOST_REASON_BYTES]),
        (ATTEMPTS, b"%d" % letter.attempts),
        (FIRST_SEEN, b"%.3f" % letter.first_seen),
        (PARKED_AT, b"%.3f" % letter.parked_at),
    ]
    try:
        event = decode(letter.raw).event
    except CodecError:
        return LetterRecord(None, letter.raw, headers)
    return LetterRecord(key(event), letter.raw, [*headers, (EVENT_ID, event.event_id)])


@dataclass(frozen=True, slots=True)
class LetterParcel:
    """Letters that travel in one batch to one partition."""

    lane: int
    letters: Sequence[DeadLetter]
    batch: Batch
    nbytes: int


class LetterPacker:
    """Sorts letters by partition and builds batches that the broker accepts; parameters as those of `Packer`."""

    def __init__(
        self, partitions: int, *, codec: int, batch_bytes: int, limit_bytes: int, transactional: bool = False
    ) -> None:
        self._partitions = partitions
        self._codec = codec
        self._batch_bytes = min(batch_bytes, limit_bytes)
        self._limit_bytes = limit_bytes
        self._transactional = transactional

    def pack(self, letters: Sequence[DeadLetter]) -> list[LetterParcel]:
        """Every letter, those of a key in order and in one partition; one without a key goes by its queue's name.

        No letter is refused: one that is too large goes without the entry's bytes, and a header tells how many were
        left out. They are kept in the store.
        """
        now_ms = int(time.time() * 1000)
        records = [letter_record(letter) for letter in letters]
        names = [each.queue.encode() if r.key is None else r.key for r, each in zip(records, letters, strict=True)]
        lanes: dict[int, list[tuple[DeadLetter, LetterRecord]]] = {}
        for letter, record, lane in zip(letters, records, partitions(names, self._partitions), strict=True):
            lanes.setdefault(lane, []).append((letter, self._fitting(record, now_ms)))
        return [parcel for lane, found in lanes.items() for parcel in self._fill(lane, found, now_ms)]

    def _fill(self, lane: int, found: Sequence[tuple[DeadLetter, LetterRecord]], now_ms: int) -> list[LetterParcel]:
        parcels: list[LetterParcel] = []
        members: list[DeadLetter] = []
        builder = new_builder(self._codec, self._batch_bytes, transactional=self._transactional)
        for letter, record in found:
            if builder.append(len(members), now_ms, record.key, record.value, record.headers) is None:
                parcels.append(_parcel(lane, members, builder))
                members = []
                builder = new_builder(self._codec, self._batch_bytes, transactional=self._transactional)
                builder.append(0, now_ms, record.key, record.value, record.headers)
            members.append(letter)
        return [*parcels, _parcel(lane, members, builder)]

    def _fitting(self, record: LetterRecord, now_ms: int) -> LetterRecord:
        if len(record.value) + len(record.key or b"") + HEADER_BYTES <= self._limit_bytes:  # nearly always so
            return record
        alone = new_builder(self._codec, self._batch_bytes, transactional=self._transactional)
        alone.append(0, now_ms, record.key, record.value, record.headers)
        if len(alone.build()) <= self._limit_bytes:
            return record
        return LetterRecord(record.key, b"", [*record.headers, (OMITTED, b"%d" % len(record.value))])


def _parcel(lane: int, letters: list[DeadLetter], builder: object) -> LetterParcel:
    batch = Batch(builder)
    batch.seal(len(letters))
    return LetterParcel(lane, letters, batch, batch.size())
