"""Which shards count as those of one topic: by their names, and by the notifications of their records."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from remora_pipeline.replay.verify.placement import shards
from remora_pipeline.replay.verify.topics import told_apart

pytestmark = pytest.mark.spark

ALIKE = {
    "two": ["logs", "logs.1"],
    "further": ["logs.1", "logs.1023"],
    "later": ["logs@1", "logs@1.3"],
}
APART = {
    "generations": ["logs", "logs@1"],
    "a number behind a number": ["logs.1", "logs.1.7"],
    "a month": ["logs", "logs.2026-11"],
    "a day": ["logs", "logs.20261129"],
    "a tenant": ["tenant:logs", "tenant:logs.1"],
    "no tenant": [":logs", ":logs.1"],
}


def test_names_that_a_topic_gives_its_shards(spark: SparkSession) -> None:
    """Shards are of one topic where one of its own calls them so; what it can call none of its shards is another's."""
    rows = [(case, shard) for case, names in (ALIKE | APART).items() for shard in names]

    found = spark.createDataFrame(rows, "case string, shard string").groupBy("case").agg(shards("shard").alias("found"))

    assert {row.case: row.found for row in found.collect()} == ALIKE | {case: [] for case in APART}


KEYS = "bucket string, key string, shards array<string>"
RECORDS = "shard string, bucket string, notification string, problem string"


def test_shards_that_no_notification_joins_are_of_two_topics(spark: SparkSession) -> None:
    """A topic of radosgw that is called as a shard of another one, with notifications of its own, is told from it; not
    so the shards of a topic that has events of several notifications."""
    records = [
        ("logs", "a", "own", None), ("logs.1", "a", "gateway", None), ("logs.1", "b", "own", None),
        ("logs.1", "a", "own", "it cannot be read"), (None, "a", "own", None),
        ("photos", "a", "puts", None), ("photos.1", "a", "puts", None), ("photos.1", "a", "deletes", None),
        ("photos.2", "a", "deletes", None),
    ]  # fmt: skip
    keys = [
        ("a", "of two topics", ["logs", "logs.1"]),
        ("a", "of one topic", ["photos", "photos.2"]),
        ("a", "of two topics, and of one", ["logs", "logs.1", "photos", "photos.1"]),
        ("a", "where all is well", []),
    ]

    found = told_apart(spark.createDataFrame(keys, KEYS), spark.createDataFrame(records, RECORDS)).collect()

    assert {row.key: row.shards for row in found} == {
        "of two topics": [],
        "of one topic": ["photos", "photos.2"],
        "of two topics, and of one": ["photos", "photos.1"],
        "where all is well": [],
    }


def test_shards_without_a_common_notification_anywhere(spark: SparkSession) -> None:
    """Where no notification has events in two shards, no key lies in several of one topic."""
    records = [("logs", "a", "own", None), ("logs.1", "a", "gateway", None)]

    found = told_apart(
        spark.createDataFrame([("a", "k", ["logs", "logs.1"])], KEYS), spark.createDataFrame(records, RECORDS)
    ).collect()

    assert [row.shards for row in found] == [[]]
