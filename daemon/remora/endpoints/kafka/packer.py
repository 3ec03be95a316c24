"""Records of one shard into batches: a partition for each lane, and at most as much as the broker accepts in each; and
dead letters into batches of theirs, for consumers that want to know what they will not get, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

from remora.codec.event_entry import decode
from remora.codec.kafka_records import (
    AFTER,
    AFTER_BYTES,
    FRAME_BYTES,
    HEADER_BYTES,
    RECORD_BYTES,
    encode_event,
    encode_record,
    encode_with,
)
from remora.codec.rendering_plain import key
from remora.codec.speedups import encode_events, in_batches, partitions
from remora.endpoints.headers import attributes, letter_headers, omitted
from remora.endpoints.kafka.batches import BATCH_BYTES, built_size, size_above
from remora.endpoints.kafka.identity import ConnectionIdentity
from remora.endpoints.kafka.lookup import TopicFacts
from remora.model.errors import CodecError, EndpointError, EndpointMisconfigured, EndpointUnavailable
from remora.model.record import DeadLetter, Record


@dataclass(frozen=True, slots=True)
class RecordOrigin:
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
    origin: RecordOrigin
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
        begin = encode_event(shard, prefix, records[0], first, [(AFTER, self.after)])
        return begin + encode_events(shard, prefix, records[1:], first + 1)


@dataclass(slots=True, eq=False)
class CloudEventBatch(KafkaBatch):
    """Records with the attributes of CloudEvents in their headers, which are made once."""

    further: Sequence[Sequence[tuple[str, bytes]]] = ()

    def encode(self, first: int) -> bytes:
        """As every batch, record by record: the compiled loop knows the usual headers only."""
        further = self.further
        if self.after:
            further = [[(AFTER, self.after), *further[0]], *further[1:]]
        return encode_with(self.origin.shard, self.origin.prefix, self.records, first, further)


class Packer:
    """Sorts records by partition into batches that the broker accepts.

    With what a batch has around them, the records of a batch have `batch_bytes` at most before compression, save for
    a record that travels alone. `limit_bytes` is the broker's limit for a whole batch after compression.
    """

    def __init__(
        self,
        origin: RecordOrigin,
        partitions: int,
        *,
        codec: int,
        batch_bytes: int,
        limit_bytes: int,
        cloudevents: bool = False,
    ) -> None:
        self._origin = origin
        self._cloudevents = cloudevents
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
        for batch in self._made(records, room):
            if too_large := size_above(self._limit_bytes, self._codec, batch):
                most = f"the Kafka topic's max.message.bytes {self._limit_bytes}"
                refused.append((batch.records[0], f"{too_large} bytes as sent, more than {most}"))
            else:
                batches.append(batch)
        if self.after and batches:
            self._tell(batches)
        return batches, refused

    def _made(self, records: Sequence[Record], room: int) -> Iterator[KafkaBatch]:
        """As many records together as there is room for."""
        origin, partitions = self._origin, self._partitions
        if not self._cloudevents:
            for lane, members, nbytes in in_batches(records, partitions, origin.nbytes, room):
                yield KafkaBatch(lane, origin, members, nbytes)
            return
        further = [_headers(origin, record) for record in records]
        # Sorted as records whose ids are longer by what the headers take; the number tells which one each was.
        padded = []
        for at, (each, more) in enumerate(zip(records, further, strict=True)):
            longer = bytes(len(each.event_id) + sum(HEADER_BYTES + len(name) + len(text) for name, text in more))
            places = (each.position, each.next_position, at, each.sequence, each.traceparent)
            padded.append(Record(each.key, each.body, longer, each.created_ns, *places))
        for lane, members, nbytes in in_batches(padded, partitions, origin.nbytes, room):
            whose = [each.ordinal for each in members]
            events = [records[i] for i in whose]
            yield CloudEventBatch(lane, origin, events, nbytes, further=[further[i] for i in whose])

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


def _headers(origin: RecordOrigin, record: Record) -> list[tuple[str, bytes]]:
    """The headers of CloudEvents' binding to Kafka, whose body is the record's value as ever."""
    event_id = origin.shard + b"/" + origin.prefix + record.position
    return [
        ("content-type", b"application/json"),
        *((f"ce_{name}", text) for name, text in attributes(record, event_id)),
    ]


class SmallerBatches:
    """How large batches may be where the broker's refusals tell of a limit that it does not state."""

    def __init__(self) -> None:
        self._ceilings: dict[tuple[ConnectionIdentity, str], int] = {}
        self._limits: dict[tuple[ConnectionIdentity, str], int] = {}
        self._told: set[tuple[ConnectionIdentity, str]] = set()

    def ceiling(self, connection: ConnectionIdentity, topic: str, facts: TopicFacts, batch_bytes: int) -> int:
        """The largest batch to build."""
        key = (connection, topic)
        ceiling = self._ceilings.get(key, batch_bytes)
        if facts.limit_known and facts.limit_bytes <= ceiling:
            self._ceilings.pop(key, None)  # the topic's configuration now explains the refusals
        return min(ceiling, batch_bytes)

    def refused(self, connection: ConnectionIdentity, topic: str, nbytes: int) -> None:
        """A batch of this size, before compression, was too large though it seemed to fit."""
        self._ceilings[connection, topic] = max(1, nbytes // 2)

    def limit(self, connection: ConnectionIdentity, topic: str, facts: TopicFacts) -> int:
        """The most bytes of a batch as sent: as the topic states it, or as a letter that was refused alone shows."""
        key = (connection, topic)
        limit = self._limits.get(key, facts.limit_bytes)
        if facts.limit_known and facts.limit_bytes <= limit:
            self._limits.pop(key, None)
        return min(limit, facts.limit_bytes)

    def refused_letters(
        self, connection: ConnectionIdentity, topic: str, codec: int, batch: LetterBatch, what: str
    ) -> EndpointError:
        """Letters were too large though they seemed to fit: from now on fewer go together, or one without its entry."""
        if len(batch) > 1:
            self.refused(connection, topic, batch.nbytes)
        elif batch.records[0].value:
            self._limits[connection, topic] = built_size(codec, batch) - 1
        else:
            return EndpointMisconfigured(f"{what}: its max.message.bytes is too small for a letter")
        return EndpointUnavailable(f"{what}: a batch is larger than the broker accepts", "too_large")

    def is_news(self, connection: ConnectionIdentity, topic: str) -> bool:
        """Whether that the limit is unknown was not said yet."""
        is_news = (connection, topic) not in self._told
        self._told.add((connection, topic))
        return is_news


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
