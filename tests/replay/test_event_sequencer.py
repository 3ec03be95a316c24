"""Sequencers of different stores, put into the order of time."""

from __future__ import annotations

import struct

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from remora_pipeline.replay.event_sequencer import sequencer_order

pytestmark = pytest.mark.spark


def radosgw(sec: int, nsec: int) -> str:
    """A sequencer as radosgw writes it: little-endian seconds and nanoseconds in hex."""
    return struct.pack("<II", sec, nsec).hex().upper()


@pytest.mark.parametrize(
    ("source", "in_order"),
    [
        ("ceph:s3", [radosgw(1795227938, 255), radosgw(1795227938, 256), radosgw(1795227939, 0), radosgw(1 << 31, 1)]),
        ("aws:s3", ["0055AED6DCD90281E4", "0055AED6DCD90281E5", "0055aed6dcd90281e501", "0055AED6DD"]),
    ],
)
def test_sequencers_grow_with_time(spark: SparkSession, source: str, in_order: list[str]) -> None:
    """What a store wrote later is greater; a text that is missing or empty has no order."""
    rows = spark.createDataFrame(
        [(i, source, text) for i, text in enumerate([*in_order, "", None])], "i int, s string, q string"
    )

    found = rows.select("i", sequencer_order(F.col("s"), F.col("q")).alias("order")).orderBy("i").collect()

    orders = [row.order for row in found]
    assert orders[-2:] == [None, None]
    assert orders[:-2] == sorted(set(orders[:-2]))
