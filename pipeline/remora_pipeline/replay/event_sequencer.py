"""The order of an object's notifications by `s3.object.sequencer`, for stores that write it in different ways."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

DIGITS = 40
"""Sequencers are padded to this many hex digits; no known writer has longer ones."""


def sequencer_order(source: Column, sequencer: Column) -> Column:
    """A text that grows with time for the events of one key; null where there is no sequencer.

    S3's are hex numbers that are compared left-aligned, filled up with zeros. radosgw (`eventSource` ceph:s3) writes
    the bytes of two little-endian numbers, seconds and nanoseconds, whose text does not grow: they are turned round.
    """
    text = F.upper(sequencer)
    turned = F.concat(*[F.substring(text, place, 2) for place in (7, 5, 3, 1, 15, 13, 11, 9)])
    is_radosgw = (source == "ceph:s3") & text.rlike("^[0-9A-F]{16}$")
    return F.when(F.length(text) > 0, F.rpad(F.when(is_radosgw, turned).otherwise(text), DIGITS, "0"))
