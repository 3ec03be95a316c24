"""What runs in Spark's tasks: pieces of files in, what their lines say out. A wrong file is a row, too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from remora.model.words import printable
from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.prepare.column_map import Mapping
from remora_pipeline.replay.prepare.entry import FormatContext, FoundLine, Write
from remora_pipeline.replay.prepare.formats import FORMATS
from remora_pipeline.replay.prepare.sources import opened, shown

WRITE, DROPPED, LINES, REFUSED = "write", "dropped", "lines", "refused"
"""Kinds of rows: a write; lines dropped for a reason, counted, with one of them; the lines of a piece; a wrong file."""

PIECES = "piece int, path binary, compression string, start long, end long, lot int"

READ = (
    "kind string, piece int, line long, item int, ts_us long, end_us long, op string, bucket string, key string,"
    " size long, request string, reason string, count long, text string"
)

EXAMPLES = 3
SHOWN_CHARS = 160
MOST_REASONS = 100
OTHER_REASONS = "other reasons"
_ROWS = 8_192
_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("piece", pa.int32()),
        ("line", pa.int64()),
        ("item", pa.int32()),
        ("ts_us", pa.int64()),
        ("end_us", pa.int64()),
        ("op", pa.string()),
        ("bucket", pa.string()),
        ("key", pa.string()),
        ("size", pa.int64()),
        ("request", pa.string()),
        ("reason", pa.string()),
        ("count", pa.int64()),
        ("text", pa.string()),
    ]
)
_Row = tuple[Any, ...]
Reader = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def reader(form: str, bucket: str | None, mapping: Mapping) -> Reader:
    """A function for mapInArrow, from pieces to rows of READ."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for piece in batch.to_pylist():
                yield from _batches(_rows(piece, form, bucket, mapping))

    return read


def _batches(rows: Iterator[_Row]) -> Iterator[pa.RecordBatch]:
    waiting: list[_Row] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) == _ROWS:
            yield _batch(waiting)
            waiting.clear()
    if waiting:
        yield _batch(waiting)


def _batch(rows: Sequence[_Row]) -> pa.RecordBatch:
    cells = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(cells, schema=_SCHEMA)


def _rows(piece: dict[str, Any], form: str, bucket: str | None, mapping: Mapping) -> Iterator[_Row]:
    path, number = Path(os.fsdecode(piece["path"])), piece["piece"]
    start, end = piece["start"], piece["end"]
    is_parquet = form == "parquet"
    source = FormatContext(shown(path), bucket, mapping, (start, end) if is_parquet else None)
    within = (0, None) if is_parquet else (start, end)
    tally = DropTally()
    line = 0
    try:
        with opened(path, piece["compression"], *within) as stream:
            for found in FORMATS[form].records(stream, source):
                line = found.line
                for item, outcome in enumerate(found.outcomes):
                    if isinstance(outcome, Write):
                        yield (WRITE, number, line, item, *outcome, None, None, None)
                    else:
                        tally.add(outcome.reason, found)
    except ReplayRefused as exc:
        yield _note(REFUSED, number, 0, str(exc), 1, "")
    except OSError as exc:
        yield _note(REFUSED, number, 0, f"{source.name}: behind line {line}: {exc.strerror or exc}", 1, "")
    yield from tally.rows(number)
    yield _note(LINES, number, 0, "", line, "")


def _note(kind: str, piece: int, line: int, reason: str, count: int, text: str) -> _Row:
    return (kind, piece, line, 0, None, None, None, None, None, None, None, reason, count, text)


class DropTally:
    """Dropped lines of a piece by reason, with the first few of each; bounded whatever the lines say."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._examples: dict[str, list[tuple[int, str]]] = {}

    def add(self, reason: str, found: FoundLine) -> None:
        """Count one."""
        if reason not in self._counts and len(self._counts) >= MOST_REASONS:
            reason = OTHER_REASONS
        self._counts[reason] = self._counts.get(reason, 0) + 1
        examples = self._examples.setdefault(reason, [])
        if len(examples) < EXAMPLES:
            examples.append((found.line, found.text[:SHOWN_CHARS]))

    def rows(self, piece: int) -> Iterator[_Row]:
        """A row for each example; the first of a reason has the count of all."""
        for reason, examples in self._examples.items():
            for place, (line, text) in enumerate(examples):
                count = self._counts[reason] if place == 0 else 0
                yield _note(DROPPED, piece, line, printable(reason), count, printable(text))
