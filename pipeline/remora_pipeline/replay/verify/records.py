"""Records of a topic, taken apart."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from remora_pipeline.replay.event_sequencer import sequencer_order
from remora_pipeline.replay.notification import FIRST_US, LAST_US
from remora_pipeline.replay.verify.values import READ, values

_PLACES = ("remora-shard", "remora-pos", "remora-next")
_SEQUENCE = "remora-seq"
_AFTER = "remora-after"
_HEADERS = (*_PLACES, "remora-event-id", _SEQUENCE, _AFTER)

NO_NOTIFICATION = "the value is not one S3 notification: "
NO_TIME = "Kafka's time stamp lies outside of the years 1 to 9999"
NO_TEXT = "one of remora's headers is not UTF-8"
TWO_HEADERS = "one of remora's headers is there twice"
NO_POSITION = "remora-shard, remora-pos and remora-next cannot be read"
NOT_BEHIND = "remora-next does not lie behind remora-pos"
NO_NUMBER = "remora-seq cannot be read"
TWO_IDS = "remora-event-id is not the value's eventId"
OTHER_KEY = "the Kafka key is not the bucket and key of the value"

COLUMNS = (
    "partition", "offset", "log_us", "log_type", "problem", "bucket", "key", "event_name", "size", "event_id",
    "event_us", "order", "run_id", "seq", "kseq", "shard", "incarnation", "turn", "place", "next_turn", "next_place",
    "is_keyed", "digest", "sequence", "number", "has_id", "after",
    "notification",
)  # fmt: skip
"""Of a record: where it lies; what is wrong with it, or null; what it tells of; which event of which run it says it is,
or nulls; where its entry and the next one began in their queue, or nulls; whether its Kafka key is that of its bucket
and key; a hash of its value up to `opaqueData`, which is the topic's and no event's; and the topic's id with the
event's number in it, or nulls; whether it has the header of its event's id; where other shards ended, or null; and the
notification of its bucket that it was sent by (`configurationId`), empty where it names none."""


def records(raw: DataFrame) -> DataFrame:
    """The records that Spark's connector read, with includeHeaders, as COLUMNS."""
    taken = raw.select(
        "partition",
        "offset",
        F.unix_micros("timestamp").alias("log_us"),
        F.col("timestampType").alias("log_type"),
        *[_header(name).alias(name.removeprefix("remora-")) for name in _PLACES],
        _header("remora-event-id").alias("header_id"),
        _header(_SEQUENCE).alias("numbered"),
        _header(_AFTER).alias("after"),
        F.coalesce(F.exists("headers", lambda each: each["key"].isin(*_PLACES)), F.lit(False)).alias("has_position"),
        _has_one_twice().alias("has_one_twice"),
        _is_text().alias("is_text"),
        F.col("key").alias("kafka_key"),
        "value",
    ).mapInArrow(values, READ)
    fields = taken.select(
        "partition",
        "offset",
        "log_us",
        "log_type",
        "cause",
        "bucket",
        "key",
        "event_name",
        "size",
        "event_id",
        "event_us",
        sequencer_order(F.col("source"), F.col("sequencer")).alias("order"),
        "mark",
        "header_id",
        F.col("header_id").isNotNull().alias("has_id"),
        "numbered",
        *_number("numbered"),
        "shard",
        *_position("pos", "incarnation", "turn", "place"),
        *_position("next", "next_incarnation", "next_turn", "next_place"),
        "has_position",
        "has_one_twice",
        "is_text",
        "is_keyed",
        "digest",
        "after",
        "notification",
    )
    seq, kseq = F.substring_index("mark", "/", -2), F.substring_index("mark", "/", -1)
    return fields.select(
        "*",
        _problem().alias("problem"),
        F.expr("left(mark, length(mark) - length(substring_index(mark, '/', -2)) - 1)").alias("run_id"),
        F.substring_index(seq, "/", 1).try_cast("bigint").alias("seq"),
        kseq.try_cast("bigint").alias("kseq"),
    ).select(*COLUMNS)


def positions_of_headers(raw: DataFrame) -> DataFrame:
    """Where the records' entries and the next ones began, and their numbers: shard, incarnation, turn, place,
    next_turn, next_place, sequence, number."""
    named = {"shard": "remora-shard", "pos": "remora-pos", "next": "remora-next", "numbered": _SEQUENCE}
    taken = raw.select(*[_header(header).alias(name) for name, header in named.items()])
    return taken.select(
        "shard",
        *_position("pos", "incarnation", "turn", "place"),
        *_position("next", "next_incarnation", "next_turn", "next_place"),
        *_number("numbered"),
    ).select("shard", "incarnation", "turn", "place", "next_turn", "next_place", "sequence", "number")


def _header(name: str) -> Column:
    """The text of a header; null where it is not there, there twice, or no text."""
    found = F.filter("headers", lambda each: each["key"] == name)
    text = F.get(found, F.lit(0)).getField("value").cast("string")
    return F.when((F.size(found) == 1) & F.is_valid_utf8(text), text)


def _has_one_twice() -> Column:
    ours = F.filter("headers", lambda each: each["key"].isin(*_HEADERS))
    names = F.transform(ours, lambda each: each["key"])
    return F.coalesce(F.size(names) > F.size(F.array_distinct(names)), F.lit(False))


def _is_text() -> Column:
    ours = F.filter("headers", lambda each: each["key"].isin(*_HEADERS))
    return F.coalesce(F.forall(ours, lambda each: F.is_valid_utf8(each["value"].cast("string"))), F.lit(True))


def _position(name: str, incarnation: str, turn: str, place: str) -> list[Column]:
    """The parts of `<incarnation>:<turn>/<place>`."""
    found = split_position(name)
    return [
        F.expr(f"left({name}, length({name}) - length(substring_index({name}, ':', -1)) - 1)").alias(incarnation),
        found[0].alias(turn),
        found[1].alias(place),
    ]


def _number(name: str) -> list[Column]:
    """`sequence` and `number` of a column with `<topic id>:<number>`; nulls for others."""
    sequence, number = split_number(name)
    return [sequence.alias("sequence"), number.alias("number")]


def split_number(name: str) -> tuple[Column, Column]:
    """Topic id and number of a column with `<topic id>:<number>`; nulls for others."""
    is_number = F.col(name).rlike(r"^[^:]+:[0-9]{1,18}\z")
    topic_id, number = (F.when(is_number, F.substring_index(name, ":", n)) for n in (1, -1))
    return topic_id, number.cast("bigint")


def split_position(name: str) -> tuple[Column, Column]:
    """Turn and place of a column with `<turn>/<place>`, whatever stands before its last colon; nulls for others."""
    tail = F.substring_index(name, ":", -1)
    is_pair = tail.rlike(r"^[0-9]{1,18}/[0-9]{1,18}\z")
    return tuple(F.when(is_pair, F.substring_index(tail, "/", n)).cast("bigint") for n in (1, -1))  # type: ignore[return-value]


def _problem() -> Column:
    places = ("shard", "turn", "place", "next_turn", "next_place")
    is_place = _all(*[F.col(name).isNotNull() for name in places]) & F.col("incarnation").eqNullSafe(
        F.col("next_incarnation")
    )
    turn, next_turn = F.col("turn"), F.col("next_turn")
    is_behind = (next_turn > turn) | ((next_turn == turn) & (F.col("next_place") > F.col("place")))
    is_one_id = F.col("header_id").isNull() | F.col("header_id").eqNullSafe(F.col("event_id"))
    return (
        F.when(F.col("cause").isNotNull(), F.concat(F.lit(NO_NOTIFICATION), F.col("cause")))
        .when(~F.col("log_us").between(FIRST_US, LAST_US - 1), NO_TIME)
        .when(~F.col("is_text"), NO_TEXT)
        .when(F.col("has_one_twice"), TWO_HEADERS)
        .when(F.col("has_position") & ~is_place, NO_POSITION)
        .when(F.col("has_position") & ~is_behind, NOT_BEHIND)
        .when(~is_one_id, TWO_IDS)
        .when(F.col("numbered").isNotNull() & F.col("number").isNull(), NO_NUMBER)
        # Of records of other origin nothing is known of their keys.
        .when(F.col("has_position") & ~F.col("is_keyed"), OTHER_KEY)
    )


def _all(*conditions: Column) -> Column:
    joined = F.lit(True)
    for condition in conditions:
        joined = joined & condition
    return joined
