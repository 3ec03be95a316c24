"""A prepared trace: what it is, its buckets, its events as a table of Spark's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from remora_pipeline.replay import layout
from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.layout import PreparedDirectory, Trace
from remora_pipeline.replay.paths import pattern
from remora_pipeline.replay.session import in_one_line
from remora_pipeline.replay.shape import EVENT


def trace_of(prepared: PreparedDirectory) -> Trace:
    """What was prepared. Raises ReplayRefused for a directory that is not whole."""
    if not prepared.trace.exists():
        raise ReplayRefused(f"{prepared.path}: there is no {prepared.trace.name}: make it with remora replay prepare")
    return layout.read(prepared.trace, Trace)


def buckets(prepared: PreparedDirectory) -> set[str]:
    """The buckets of all events. Raises ReplayRefused for files that cannot be read."""
    found: set[str] = set()
    with _reading(prepared):
        for batch in ds.dataset(prepared.events).to_batches(columns=["bucket"]):
            found.update(pc.unique(batch["bucket"]).to_pylist())
    return found


def read_events(spark: SparkSession, prepared: PreparedDirectory) -> DataFrame:
    """The prepared events. Raises ReplayRefused for files of another shape, or that cannot be read."""
    see_events(prepared)
    with in_one_line():
        return spark.read.schema(EVENT).parquet(pattern(prepared.events))


def see_events(prepared: PreparedDirectory) -> None:
    """Raise ReplayRefused for events that are none: files of another shape, or that cannot be read."""
    with _reading(prepared):
        # Not asked of Spark, which starts a job for it.
        kinds = {field.name: field.dataType for field in from_arrow_schema(ds.dataset(prepared.events).schema)}
    for field in EVENT:
        if kinds.get(field.name) != field.dataType:
            raise ReplayRefused(f"{prepared.events}: the column {field.name} is not {field.dataType.simpleString()}")


@contextmanager
def _reading(prepared: PreparedDirectory) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as exc:
        raise ReplayRefused(f"{prepared.events}: {str(exc).partition(chr(10))[0]}") from exc
