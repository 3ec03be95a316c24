"""What is compared of a single record: each change of one byte, key or header is seen, and told from the others."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructField, StructType

from devkit.clusters.kafka import Kafka
from remora.codec import murmur2 as plain
from remora_pipeline.replay import layout
from remora_pipeline.replay.results import TopicVerdict
from remora_pipeline.replay.shape import COPY, MPU_COMPLETE, PUT
from remora_pipeline.replay.verify.job import verify_run
from remora_pipeline.replay.verify.placement import murmur2, own_partition
from remora_pipeline.replay.verify.sent import with_digests
from remora_pipeline.replay.verify.values import PASSED, head
from remora_pipeline.replay.verify.values import values as read_values
from support.asked import filled, question, wrong
from support.replayed import (
    KEYS,
    RUN_ID,
    T0_US,
    Event,
    Journalled,
    Rec,
    events,
    good,
    notification,
    prepare,
    replayed,
)

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

TRACE = events(80)
HOT = [each.seq for each in TRACE if each.key == KEYS[0] and each.op == PUT]
"""Writes of one key, which lie in one partition; each case changes another one."""

NO_JSON = ("malformed", "the value is not one S3 notification: not JSON")
NO_KEY = ("malformed", "the Kafka key is not the bucket and key of the value")
ANOTHER_TEXT = ("altered", "another text of the value")


def _value(change: Callable[[bytes], bytes]) -> Callable[[Rec], Rec]:
    def changed(rec: Rec) -> Rec:
        value = change(rec.value)
        assert value != rec.value
        return replace(rec, value=value)

    return changed


def _key(key: bytes | None) -> Callable[[Rec], Rec]:
    return lambda rec: replace(rec, key=key)


def _without_positions(rec: Rec) -> Rec:
    for name in ("remora-shard", "remora-pos", "remora-next"):
        rec = rec.with_header(name, None)
    return replace(rec, key=b"harbour/another")


def _more(**members: Any) -> Callable[[Rec], Rec]:
    return lambda rec: rec.with_value(lambda record: record.update(members))


def _turned(rec: Rec) -> Rec:
    return rec.with_header("remora-next", rec.header("remora-pos"))


@dataclass(frozen=True)
class Case:
    """A change of a record, and as what it is shown; None where nothing is wrong with it."""

    change: Callable[[Rec], Rec]
    shown: tuple[str, str] | None


CASES = {
    "a byte behind the document": Case(_value(lambda value: value + b"x"), NO_JSON),
    "a bracket behind the document": Case(_value(lambda value: value + b"}"), NO_JSON),
    "two documents": Case(_value(lambda value: value + value), NO_JSON),
    "two documents and a comma": Case(_value(lambda value: value + b"," + value), NO_JSON),
    "quotes that are none of JSON's": Case(_value(lambda value: value.replace(b'"2.2"', b"'2.2'")), NO_JSON),
    "an empty key": Case(_key(b""), NO_KEY),
    "no key": Case(_key(None), NO_KEY),
    "another object's key": Case(_key(b"harbour/another"), NO_KEY),
    "another object's key, and no positions": Case(_without_positions, ("altered", "another Kafka key")),
    "a second remora-pos": Case(
        lambda rec: replace(rec, headers=(*rec.headers, ("remora-pos", b"abc:7:1/1"))),
        ("malformed", "one of remora's headers is there twice"),
    ),
    "a next position that is its own": Case(_turned, ("malformed", "remora-next does not lie behind remora-pos")),
    "a byte of a member": Case(
        _value(lambda value: value.replace(b'"principalId":"remora-replay"', b'"principalId":"remora-replax"', 1)),
        ANOTHER_TEXT,
    ),
    "a byte of a member's name": Case(_value(lambda value: value.replace(b'"eTag"', b'"eTah"')), ANOTHER_TEXT),
    "a byte of the sequencer": Case(
        _value(lambda value: value.replace(b'"sequencer":"7', b'"sequencer":"8')), ANOTHER_TEXT
    ),
    "a byte of the time": Case(_value(lambda value: value.replace(b'Z","eventName', b'0Z","eventName')), ANOTHER_TEXT),
    "another time": Case(_value(lambda value: value.replace(b'"eventTime":"20', b'"eventTime":"21')),
                         ("altered", "another event time")),
    "a byte that is no text": Case(
        _value(lambda value: value.replace(b'"remora-replay"', b'"remora-repla\xff"', 1)),
        ("malformed", "the value is not one S3 notification: not UTF-8"),
    ),
    "two events": Case(
        _value(lambda value: value[:-2] + b"," + value[12:]),
        ("malformed", "the value is not one S3 notification: it has 2 events"),
    ),
    "a stamp in nanoseconds": Case(
        lambda rec: replace(rec, at_us=rec.at_us * 1_000_000),
        ("malformed", "Kafka's time stamp lies outside of the years 1 to 9999"),
    ),
    "a line break behind a position": Case(
        lambda rec: rec.with_header("remora-next", rec.header("remora-next") + b"\n"),
        ("malformed", "remora-shard, remora-pos and remora-next cannot be read"),
    ),
    "a header that is no text": Case(
        lambda rec: rec.with_header("remora-event-id", b"\xff"), ("malformed", "one of remora's headers is not UTF-8")
    ),
    "no remora-event-id": Case(
        lambda rec: rec.with_header("remora-event-id", None), ("without_event_id", "no remora-event-id")
    ),
    "no positions": Case(
        lambda rec: replace(_without_positions(rec), key=rec.key),
        ("without_position", "no remora-shard, remora-pos and remora-next"),
    ),
    "a member more": Case(_more(more=1), ANOTHER_TEXT),
    "the topic's own opaqueData": Case(_value(lambda value: value.replace(b"the \\\"topic's", b"a }]}\\\\")), None),
}  # fmt: skip
PLACES = dict(zip(CASES, HOT[3:], strict=False))
"""The event whose record each case changes."""

TORN, COPY_NEXT = HOT[-1], b"abc:7:99/1"


@dataclass(frozen=True)
class Judged:
    """The verdict, and for each event that is shown with a place how that is."""

    verdict: TopicVerdict
    shown: dict[int, tuple[str, str]]


@pytest.fixture(scope="module")
def judged(spark: SparkSession, kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """All cases in one topic, with a copy that names another next entry, and a key in a partition of another."""
    assert len(PLACES) == len(CASES)
    folder = tmp_path_factory.mktemp("records")
    run = replayed(folder / "run", prepare(folder / "prepared", TRACE), TRACE, Journalled())
    names = {seq: name for name, seq in PLACES.items()}
    recs = [CASES[names[rec.seq]].change(rec) if rec.seq in names else rec for rec in good(TRACE)]
    recs = [replace(rec, partition=(rec.partition + 1) % 3) if TRACE[rec.seq].key == KEYS[3] else rec for rec in recs]
    recs.append(next(rec for rec in recs if rec.seq == TORN).with_header("remora-next", COPY_NEXT))
    verdict = verify_run(spark, run, question(kafka, filled(kafka, recs))).verdict
    counts, seqs = Counter[int](), dict[tuple[int | None, int | None], int]()
    for rec in recs:
        seqs[rec.partition, counts[rec.partition]] = rec.seq
        counts[rec.partition] += 1
    shown = {
        seqs[each.partition, each.offset]: (name, each.detail or "")
        for name in ("without_event_id", "without_position", "malformed", "altered")
        for each in verdict.examples.get(name, ())
    }
    return Judged(verdict, shown)


@pytest.mark.guarantee("what-a-verdict-says")
@pytest.mark.parametrize("name", CASES)
def test_each_change_of_a_record_is_shown_as_what_it_is(judged: Judged, name: str) -> None:
    """A record of which one thing is another than was sent does not count for its event, and the verdict says why."""
    kind, detail = CASES[name].shown or ("", "")
    found = judged.shown.get(PLACES[name], ("", ""))
    assert (found[0], found[1][: len(detail)]) == (kind, detail)


def test_nothing_else_is_shown(judged: Judged) -> None:
    """The counts are those of the changes, and no others: what does not count is lost, too."""
    of = Counter(case.shown[0] for case in CASES.values() if case.shown)
    lost = of["malformed"] + of["altered"]

    assert set(judged.shown) <= set(PLACES.values())
    assert wrong(judged.verdict) == {
        "lost": lost, **of, "without_position": 2, "duplicates": 1, "keys_misplaced": 1, "chain_gaps": 5,
        "unchained": 3,
    }  # fmt: skip


@pytest.mark.guarantee("what-a-verdict-says")
def test_copies_that_name_different_next_entries_are_a_gap(judged: Judged) -> None:
    """A copy whose remora-next names no record is shown as a break of the chain, beside records that nothing names."""
    gaps = judged.verdict.examples["chain_gaps"]

    assert Counter(each.detail for each in gaps) == {
        "nothing leads to it": 4, "copies of this entry name different next ones": 1,
    }  # fmt: skip


@pytest.mark.guarantee("what-a-verdict-says")
def test_a_whole_key_in_another_partition_is_shown(judged: Judged) -> None:
    """A key all of whose records lie in one partition that is not its own is shown with its own one."""
    (found,) = judged.verdict.examples["keys_misplaced"]
    own = plain.partition(f"harbour/{KEYS[3]}".encode(), 3)

    assert (found.key, found.partition) == (KEYS[3], (own + 1) % 3)
    assert found.detail == f"its own partition is {own}"
    assert any("partitions that the topic has now" in each for each in judged.verdict.caveats)


def test_partitions_are_those_of_kafkas_clients(spark: SparkSession) -> None:
    """Spark's expressions give each key the hash and the partition that Kafka's clients give it."""
    chance = random.Random(1)
    keys = [chance.randbytes(length) for length in [*range(70), 1024]] + [b"\xff" * 9]
    rows = spark.createDataFrame([(bytearray(key),) for key in keys], "key binary")

    found = rows.select("key", murmur2(F.col("key")).alias("hash"), own_partition(F.col("key"), 7).alias("own"))

    expected = [(key, plain.murmur2(key), plain.partition(key, 7)) for key in keys]
    assert [(bytes(row.key), row.hash, row.own) for row in found.collect()] == expected


def column(value: bytes, **told: Any) -> dict[str, Any]:
    """A record's row as a task reads it."""
    more = [StructField(name, BinaryType()) for name in ("kafka_key", "value")]
    schema = to_arrow_schema(StructType([*PASSED, *more]))
    (made,) = read_values([pa.RecordBatch.from_pylist([told | {"value": value}], schema=schema)])
    (row,) = made.to_pylist()
    assert isinstance(row, dict)
    return row


def test_each_byte_of_a_value_counts() -> None:
    """A byte that is no text where the event has U+FFFD is not the event's, by its digest as well as by the parser."""
    event = Event(1, PUT, "a\ufffdb", 1, 0)
    value = notification(event, f"{RUN_ID}/1", T0_US)
    other = value.replace("\ufffd".encode(), b"\xff")
    found, kafka_key = column(value, shard="photos"), f"harbour/{event.key}".encode()

    assert found["cause"] is None
    assert head(other) != head(value)
    assert "not UTF-8" in column(other, shard="photos")["cause"]
    assert column(value, shard="photos", kafka_key=kafka_key)["is_keyed"]
    assert not column(value, shard="photos", kafka_key=kafka_key.replace("\ufffd".encode(), b"\xff"))["is_keyed"]


@pytest.mark.parametrize("opaque", ["", 'a","opaqueData":"b', "\\\\", '"}]}' * 99_999, "\n\x7f"])
def test_opaque_data_is_no_part_of_the_head(opaque: str) -> None:
    """Whatever the topic's opaqueData is, of any length, a value's head ends before it."""
    text = b'{"Records":[{"eventId":"1"'

    assert head(text + b',"opaqueData":' + json.dumps(opaque).encode() + b"}]}") == text
    assert head(text + b"}]}") == text + b"}]}"


def test_the_text_of_a_value_is_known_to_the_byte(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """For keys of all kinds and each operation the expected text is what the generator and the daemon make of it."""
    folder = tmp_path_factory.mktemp("text")
    run = layout.read(
        replayed(folder / "run", prepare(folder / "prepared", []), [], Journalled()).run, layout.ReplayRun
    )
    keys = ["".join(map(chr, range(1, 0x80))), "日本/\u2028/\U0001f600", "a//b", " "]
    ops = (PUT, COPY, MPU_COMPLETE, "DELETE")
    made = [Event(n, op, key, 7 * n, n % 3) for n, (op, key) in enumerate((op, key) for op in ops for key in keys)]
    said = [T0_US + n * 333_333_331 for n in range(len(made))]
    rows = [
        (each.seq, each.bucket, each.key, each.kseq, each.op, each.size, at_us)
        for each, at_us in zip(made, said, strict=True)
    ]
    columns = "seq long, bucket string, key string, kseq long, op string, size long, said_us long"
    values = [notification(each, f"{RUN_ID}/{each.seq}", at_us) for each, at_us in zip(made, said, strict=True)]

    found = with_digests(spark.createDataFrame(rows, columns), run).orderBy("seq").select("digest")

    assert [row.digest for row in found.collect()] == [column(value)["digest"] for value in values]
