"""Prepared directories for tests, made without the command that makes them from logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from remora_pipeline.replay import layout
from remora_pipeline.replay.layout import PreparedDirectory, Trace

SCHEMA = pa.schema(
    [
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("ts_us", pa.int64(), nullable=False),
        pa.field("op", pa.string(), nullable=False),
        pa.field("bucket", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("size", pa.int64()),
        pa.field("kseq", pa.int64(), nullable=False),
    ]
)


class Wanted(NamedTuple):
    """An event of a trace."""

    ts_us: int
    op: str
    key: str
    bucket: str = "b"
    size: int | None = 10


def rows(wanted: Iterable[Wanted]) -> list[dict[str, Any]]:
    """The events as they are prepared: numbered in this order, and within each key."""
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for seq, each in enumerate(wanted):
        place = (each.bucket, each.key)
        found.append({"seq": seq, "kseq": seen[place]} | each._asdict())
        seen[place] += 1
    return found


def prepare(folder: Path, wanted: Sequence[Wanted]) -> PreparedDirectory:
    """A directory with these events, in two files."""
    prepared, events = PreparedDirectory(folder), rows(wanted)
    prepared.events.mkdir(parents=True)
    half = len(events) // 2
    for number, part in enumerate((events[:half], events[half:])):
        pq.write_table(pa.Table.from_pylist(part, schema=SCHEMA), prepared.events / f"part-{number}.parquet")
    times = [each.ts_us for each in wanted] or [0]
    layout.write(
        prepared.trace,
        Trace(
            name="invented",
            sha256="0" * 64,
            sources=("invented",),
            format="csv",
            options={},
            events=len(events),
            keys=len({(each.bucket, each.key) for each in wanted}),
            buckets=len({each.bucket for each in wanted}),
            first_us=min(times),
            last_us=max(times),
            bytes=sum(each.size or 0 for each in wanted),
            operations=dict(Counter(each.op for each in wanted)),
            dropped={},
            peak_per_s=1,
            hottest=(),
        ),
    )
    return prepared
