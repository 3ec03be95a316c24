"""What is known of a record besides its event: of one that was sent to the ingest API, all that it says.

The generator writes each member of a record, from the trace, the run and its timeline, and remora keeps them; only
`opaqueData` is the topic's own. This module writes the same text, so that a single byte that is another one shows.
"""

from __future__ import annotations

from functools import reduce

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from remora_pipeline.replay.layout import ReplayRun
from remora_pipeline.replay.shape import EVENT_NAMES, MARK
from remora_pipeline.replay.verify.values import digest

_USER = '{"principalId":"remora-replay"}'
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\t": "\\t", "\n": "\\n"} | {
    chr(code): f"\\u{code:04x}" for code in (*range(0x20), 0x7F) if chr(code) not in "\t\n"
}
"""As radosgw has them; the backslash comes first, since all others bring one."""


def with_digests(expected: DataFrame, run: ReplayRun) -> DataFrame:
    """The events with `digest`, the one that their record has (records.COLUMNS); null where its text is not known.

    A gateway writes records of its own, and an event that never had its turn has no time.
    """
    known = digest(text(run)) if run.target == "ingest" else F.lit(None).cast("bigint")
    return expected.select("*", F.when(F.col("said_us").isNotNull(), known).alias("digest"))


def text(run: ReplayRun) -> Column:
    """The value of a record up to `opaqueData`, of an event with its `said_us`."""
    time = F.date_format(F.timestamp_micros("said_us"), "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")
    op = F.create_map(*[F.lit(name) for pair in EVENT_NAMES.items() for name in pair])[F.col("op")]
    bucket, run_id = _escaped(F.col("bucket")), msgspec.json.encode(run.run_id)[1:-1].decode()
    seq, kseq = F.col("seq").cast("string"), F.col("kseq").cast("string")
    parts: list[str | Column] = [
        '{"Records":[{"eventVersion":"2.2","eventSource":"ceph:s3","awsRegion":"","eventTime":"', time,
        '","eventName":"', op, f'","userIdentity":{_USER},"requestParameters":{{"sourceIPAddress":""}},',
        '"responseElements":{"x-amz-request-id":"","x-amz-id-2":""},"s3":{"s3SchemaVersion":"1.0",',
        '"configurationId":"replay","bucket":{"name":"', bucket, f'","ownerIdentity":{_USER},"arn":"arn:aws:s3:::',
        bucket, '","id":""},"object":{"key":"', _escaped(F.col("key")), '","size":',
        F.coalesce("size", F.lit(0)).cast("string"), ',"eTag":"","versionId":"","sequencer":"', _sequencer(run),
        f'","metadata":[{{"key":"{MARK}","val":"{run_id}/', seq, "/", kseq, f'"}}],"tags":[]}}}},"eventId":"{run_id}/',
        seq, '"',
    ]  # fmt: skip
    return F.concat(*[F.lit(part) if isinstance(part, str) else part for part in parts])


def _sequencer(run: ReplayRun) -> Column:
    """Nanoseconds since 1970, as radosgw writes them: seconds and nanoseconds in hex, little-endian."""
    ns = F.lit(run.started_us * 1000) + F.col("seq")
    second = F.lit(1_000_000_000)
    return F.concat(_turned(F.call_function("div", ns, second)), _turned(ns % second))


def _turned(number: Column) -> Column:
    digits = F.lpad(F.hex(number.cast("bigint")), 8, "0")
    return F.concat(*[F.substring(digits, place, 2) for place in (7, 5, 3, 1)])


def _escaped(plain: Column) -> Column:
    """The inside of a JSON string, as radosgw writes it."""
    replaced = reduce(lambda found, pair: F.replace(found, F.lit(pair[0]), F.lit(pair[1])), _ESCAPES.items(), plain)
    return F.when(plain.rlike(r'["\\\x00-\x1f\x7f]'), replaced).otherwise(plain)
