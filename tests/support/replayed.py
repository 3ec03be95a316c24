"""A good replay to break: a prepared trace, a run's journals, and the records that remora would have made of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from aiokafka import AIOKafkaProducer

from devkit.clusters.kafka import create_topic
from remora.codec.event_entry import decode
from remora.codec.murmur2 import partitions
from remora.codec.rendering_plain import body
from remora.model.entry import Time
from remora.model.topic import Target, Topic
from remora_pipeline.replay import layout
from remora_pipeline.replay.layout import PreparedDirectory, ReplayRun, RunDirectory, Trace
from remora_pipeline.replay.run.journal import FinalOutcome, SendIntent, open_journal
from remora_pipeline.replay.run.schedule import DueEvent as Due
from remora_pipeline.replay.run.targets.ingest import Records
from remora_pipeline.replay.shape import ACKED, DELETE, PUT
from support.placed import place

RUN_ID = "r1"
T0_US = 1_790_000_000_000_000
STEP_US = 1_000
"""The trace's events are so far apart, and at speed 1."""

SERVED_US, LOGGED_US = 2_000, 5_000
"""After it was due an event is acked, and stands in the log."""

STARTED_US = T0_US - 3_000_000

PARTITIONS, SHARDS = 3, 2
INCARNATION = "abc:7"
"""An incarnation may hold colons."""

_RECORDS = Records(RUN_ID, STARTED_US)
_TOPIC = Topic("photos", "", "photos", Target("kafka://h:9092", "", "photos"), opaque_data=b'the "topic\'s"')

KEYS = ("plain", "a b/ü.txt", "100%+1", "line\nbreak", '\x7f"quo\\ted')


@dataclass(frozen=True)
class Event:
    """An event of the trace."""

    seq: int
    op: str
    key: str
    size: int | None
    kseq: int

    bucket = "harbour"


@dataclass(frozen=True)
class Rec:
    """A record to be sent."""

    partition: int
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    at_us: int
    seq: int

    def with_header(self, name: str, value: bytes | None) -> Rec:
        """Another value of a header, or none."""
        kept = [
            (each, value if each == name else old) for each, old in self.headers if each != name or value is not None
        ]
        return replace(self, headers=tuple((each, new) for each, new in kept if new is not None))

    def with_value(self, change: Any) -> Rec:
        """The record's notification, changed in place."""
        document = json.loads(self.value)
        change(document["Records"][0])
        return replace(self, value=compact(document))

    def header(self, name: str) -> bytes:
        """The value of a header."""
        return dict(self.headers)[name]


def events(count: int) -> list[Event]:
    """A trace: every fifth event of a key is a DELETE, and half of all events are of one key."""
    found, counts = [], dict.fromkeys(KEYS, 0)
    for seq in range(count):
        key = KEYS[0] if seq % 2 else KEYS[1 + seq // 2 % (len(KEYS) - 1)]
        kseq = counts[key]
        counts[key] += 1
        op = DELETE if kseq % 5 == 4 else PUT
        found.append(Event(seq, op, key, None if op == DELETE else 100 + seq, kseq))
    return found


@dataclass(frozen=True)
class Position:
    """Where an entry is in a ring that wraps."""

    turn: int
    place: int

    def __str__(self) -> str:
        return f"{self.turn}/{self.place}"


def position(nth: int) -> Position:
    """The n-th entry of a queue: a ring of ten entries."""
    return Position(nth // 10, 4096 + nth % 10 * 100)


def numbered(recs: Sequence[Rec], topic_id: str = "t1") -> list[Rec]:
    """The same of a topic that numbers its events in the order of the trace."""
    return [
        replace(rec, headers=(*rec.headers, ("remora-seq", f"{topic_id}:{nth}".encode())))
        for nth, rec in enumerate(recs, 1)
    ]


def good(trace: Sequence[Event], *, marked: bool = True, ids: str = RUN_ID + "/{}", speed: float = 1.0) -> list[Rec]:
    """What remora makes of it, in the order of the trace. With speed 0 all events are of the replay's beginning."""
    nths = dict.fromkeys(range(SHARDS), 0)
    lanes = partitions([f"{each.bucket}/{each.key}".encode() for each in trace], PARTITIONS)
    found = []
    for each, lane in zip(trace, lanes, strict=True):
        shard = KEYS.index(each.key) % SHARDS
        nth, nths[shard] = nths[shard], nths[shard] + 1
        prefix, event_id = f"{INCARNATION}:", ids.format(each.seq)
        at_us = T0_US + each.seq * STEP_US
        headers = (
            ("remora-shard", f"photos.{shard}".encode()),
            ("remora-pos", f"{prefix}{position(nth)}".encode()),
            ("remora-next", f"{prefix}{position(nth + 1)}".encode()),
            ("remora-event-id", event_id.encode()),
        )
        is_marked = marked or each.op != DELETE
        value = notification(each, event_id, at_us if speed else T0_US, is_marked=is_marked)
        found.append(Rec(lane, f"{each.bucket}/{each.key}".encode(), value, headers, at_us + LOGGED_US, each.seq))
    return found


def notification(event: Event, event_id: str, at_us: int, *, is_marked: bool = True) -> bytes:
    """The value of a record: what remora delivers of the one that the generator sends to the ingest API; with another
    event id, or without the mark, what a gateway might write instead."""
    due = Due(event.seq, at_us, event.op, event.bucket, event.key, event.size or 0, event.kseq, 0)
    line = _RECORDS.line(due)
    created = Time(at_us // 1_000_000, 0)
    (part,) = place(line, _TOPIC, ndjson=True, most=1, created=created, seed=b"")
    (placed,) = part.events
    value = body(decode(placed.payload), _TOPIC.opaque_data)
    if is_marked and event_id == f"{RUN_ID}/{event.seq}":
        return value
    document = json.loads(value)
    (record,) = document["Records"]
    mark = record["s3"]["object"]["metadata"] if is_marked else []
    record["s3"]["object"]["metadata"] = [{"key": "x-amz-meta-other", "val": "r9/1/1"}, *mark]
    record["eventId"] = event_id
    return compact(document)


def compact(document: object) -> bytes:
    """JSON without spaces."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Journalled:
    """How the replay went; all events are acked at once where nothing else is said."""

    outcomes: Mapping[int, str] = field(default_factory=dict)
    unsaid: frozenset[int] = frozenset()
    """An intent and no outcome."""
    never: frozenset[int] = frozenset()
    late_us: int = 100
    held_us: int = 0
    """How much of that is of waits for limits."""
    speed: float = 1.0
    tries: Mapping[int, int] = field(default_factory=dict)


def prepare(folder: Path, trace: Sequence[Event]) -> PreparedDirectory:
    """The trace's directory."""
    prepared = PreparedDirectory(folder)
    prepared.events.mkdir(parents=True)
    columns: dict[str, Any] = {
        "seq": pa.array([each.seq for each in trace], pa.int64()),
        "ts_us": pa.array([77 + each.seq * STEP_US for each in trace], pa.int64()),
        "op": [each.op for each in trace],
        "bucket": [each.bucket for each in trace],
        "key": [each.key for each in trace],
        "size": pa.array([each.size for each in trace], pa.int64()),
        "kseq": pa.array([each.kseq for each in trace], pa.int64()),
    }
    pq.write_table(pa.table(columns), prepared.events / "part-0.parquet")
    operations = {op: sum(each.op == op for each in trace) for op in (PUT, DELETE)}
    layout.write(
        prepared.trace,
        Trace(
            name="small", sha256="0" * 64, sources=("small.csv",), format="csv", options={}, events=len(trace),
            keys=len(KEYS), buckets=1, first_us=77, last_us=77 + len(trace) * STEP_US, bytes=0, operations=operations,
            dropped={}, peak_per_s=1000, hottest=(),
        ),
    )  # fmt: skip
    return prepared


def replayed(
    folder: Path, prepared: PreparedDirectory, trace: Sequence[Event], how: Journalled, target: str = "ingest"
) -> RunDirectory:
    """The directory of a run with the journals of two parts."""
    run = RunDirectory(folder)
    layout.write(
        run.run,
        ReplayRun(
            run_id=RUN_ID, trace=layout.read(prepared.trace, Trace), prepared=str(prepared.path), target=target,
            address="unix:/run/remora/ingest.sock", topic="photos", speed=how.speed, parts=2, overload="wait",
            started_us=STARTED_US, options={}, host="h", cores=2, versions={},
        ),
    )  # fmt: skip
    for part in range(2):
        with open_journal(run, part) as journal:
            journal.start(T0_US, 77, how.speed)
            for each in trace:
                if KEYS.index(each.key) % 2 == part and each.seq not in how.never:
                    for line in _lines(each, how):
                        journal.write(line)
    return run


def _lines(event: Event, how: Journalled) -> Iterable[SendIntent | FinalOutcome]:
    due = T0_US + event.seq * STEP_US
    outcome, sent = how.outcomes.get(event.seq, ACKED), due + how.late_us
    if outcome == "dropped":
        return [FinalOutcome((event.seq,), outcome, 0)]
    tries = how.tries.get(event.seq, 1)
    intents = [SendIntent((event.seq,), sent + n, n + 1) for n in range(tries)]
    if event.seq in how.unsaid:
        return intents
    status, held = 200 if outcome == ACKED else 400, (how.held_us,) if how.held_us else ()
    done = due + SERVED_US
    return [*intents, FinalOutcome((event.seq,), outcome, tries, sent, done, status, held_us=held)]


async def new_topic(address: str) -> str:
    """A topic whose records may be of any time."""
    return await create_topic(
        address, partitions=PARTITIONS, retention_ms=-1, message_timestamp_after_max_ms=(1 << 63) - 1
    )


async def fill(address: str, topic: str, recs: Iterable[Rec]) -> None:
    """Send records, one after the other within each partition."""
    producer = AIOKafkaProducer(bootstrap_servers=address, acks="all", linger_ms=5)
    await producer.start()
    try:
        sent = [
            await producer.send(
                topic,
                rec.value,
                rec.key,
                partition=rec.partition,
                headers=list(rec.headers),
                timestamp_ms=rec.at_us // 1000,
            )
            for rec in recs
        ]
        for each in sent:
            await each
    finally:
        await producer.stop()
