"""A lake of a test: a catalog in one SQLite file, and tables in a folder beside it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from remora_pipeline.replay.pipeline.iceberg.catalog import LakeAddress, made
from remora_pipeline.replay.pipeline.iceberg.locations import data_files
from remora_pipeline.replay.pipeline.iceberg.tables import FORMS

START = datetime(2026, 11, 21, 12, tzinfo=UTC)


def lake(folder: Path, namespace: str = "remora") -> LakeAddress:
    """An address below a folder."""
    return LakeAddress(f"jdbc:sqlite:{folder}/catalog.db", namespace, f"file://{folder}/warehouse")


def table(folder: Path, name: str) -> Table:
    """A table of it, made where there is none."""
    address = lake(folder)
    return made(address.connected(), address, name, FORMS[name], {})


def files(of: Table, *rows: dict[str, Any]) -> list[DataFile]:
    """Rows as data files, which belong to the table when they are committed; what a row leaves out is null."""
    schema = of.schema().as_arrow()
    arrow = pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema)
    return list(data_files(of.metadata, arrow, of.io))


def event(number: int, **changes: Any) -> dict[str, Any]:
    """A row of the journal."""
    return {
        "topic": "t", "partition": 0, "offset": number, "record": 0, "tenant": "", "bucket": "photos",
        "key": f"k{number}", "event_name": "ObjectCreated:Put", "size": number,
        "record_timestamp": START + timedelta(seconds=number), **changes,
    }  # fmt: skip


def rows(of: Table, *columns: str) -> list[tuple[Any, ...]]:
    """What a reader that is not remora sees, sorted."""
    of.refresh()
    return sorted(tuple(row[name] for name in columns) for row in of.scan().to_arrow().to_pylist())
