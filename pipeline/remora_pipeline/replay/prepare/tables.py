"""Tables: CSV with a header, and Parquet, by names of columns."""

from __future__ import annotations

import csv
import io
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.prepare.column_map import ISO, READS, UNITS_NS, Columns, columns, operation
from remora_pipeline.replay.prepare.entry import (
    NOT_UTF8,
    READ,
    Dropped,
    FormatContext,
    FoundLine,
    Outcome,
    iso_us,
    malformed,
    write,
)
from remora_pipeline.replay.prepare.lines import MOST_LINE_BYTES
from remora_pipeline.replay.shape import DELETE

DELIMITERS = ",\t;|"
PARQUET_MAGIC = b"PAR1"
_NUMBER = re.compile(r"-?\d{1,20}(?:\.\d{1,20})?(?:[eE][+-]?\d{1,2})?", re.ASCII)
_UNKNOWN = ("", "-", "nan", "null", "none", "na", "n/a", "\\n")
"""How tables write a size that nobody knows, in small letters."""

_ROWS = 8_192
_MOST_ROW_LINES = 256
"""A row with more lines is not looked for."""

_OPEN = "unexpected end of data"
"""What csv says of a text that ends within quotes."""


@dataclass(frozen=True, slots=True)
class _TableRow:
    """What a row says, by the values of its columns."""

    columns: Columns
    source: FormatContext

    def outcome(self, values: dict[str, Any]) -> Outcome:
        cells = self.columns
        for name in (cells.ts, cells.op, cells.key, cells.bucket):
            if name and values[name] in (None, ""):
                return Dropped(f"null in column {name}")
        try:
            word, key = _text(values[cells.op]), _text(values[cells.key])
            bucket = self.source.bucket or _text(values[cells.bucket or ""])
        except UnicodeDecodeError:
            return Dropped(NOT_UTF8)
        op = operation(word, self.source.mapping.op_map) or operation(word.strip(), self.source.mapping.op_map)
        if op is None:
            return malformed(f"unknown operation {word[:20]}; --op-map says what it means")
        if op in READS:
            return Dropped(READ)
        try:
            ts_us = moment_us(values[cells.ts], cells.ts_unit)
        except (ValueError, ArithmeticError):
            return malformed(f"column {cells.ts} is not a time" + (f" in {cells.ts_unit}" if cells.ts_unit else ""))
        try:
            size = _count(values[cells.size]) if cells.size and op != DELETE else None
        except (ValueError, ArithmeticError, TypeError):
            return malformed(f"column {cells.size} is not a number of bytes")
        return write(ts_us, op, bucket, key, size)


def csv_records(stream: BinaryIO, source: FormatContext) -> Iterator[FoundLine]:
    """The rows of a CSV file, counted as lines. Raises ReplayRefused for a header that lacks a column."""
    text = io.TextIOWrapper(stream, "utf-8", "surrogateescape", newline="")
    lines = _bounded(text)
    try:
        header = csv_header(next(lines, "").removeprefix("\ufeff"))
        if len(set(header.names)) < len(header.names):
            raise ReplayRefused(f"{source.name}:1: the header has a column twice")
        named = columns(source.mapping, header.names, f"{source.name}:1", bucket=source.bucket, has_times=False)
        yield from _csv_rows(lines, _TableRow(named, source), header)
    finally:
        text.detach()


def _bounded(text: io.TextIOWrapper) -> Iterator[str]:
    """The lines, with their ends; of one that is longer than any of a table only how it begins."""
    while line := text.readline(MOST_LINE_BYTES):
        rest = line
        while len(rest) == MOST_LINE_BYTES and not rest.endswith(("\r", "\n")):
            rest = text.readline(MOST_LINE_BYTES)
        yield line


def _csv_rows(lines: Iterator[str], row: _TableRow, header: CsvHeader) -> Iterator[FoundLine]:
    """The rows behind the header, each with the line it begins at.

    A quote that is never closed costs its own line only: those behind it are read anew.
    """
    line = 2
    ahead: deque[str] = deque()
    while True:
        taken = [each] if (each := ahead.popleft() if ahead else next(lines, None)) is not None else []
        if not taken:
            return
        cells = _row(taken, header)
        while cells is None and len(taken) < _MOST_ROW_LINES:
            if (each := ahead.popleft() if ahead else next(lines, None)) is None:
                break
            taken.append(each)
            cells = _row(taken, header)
        if len(taken) > 1 and (cells is None or len(cells) != len(header.names)):
            ahead.extendleft(reversed(taken[1:]))
            cells, taken = None, taken[:1]
        outcome = malformed("not CSV") if cells is None else _csv_outcome(row, header.names, cells)
        yield FoundLine(line, (outcome,), header.delimiter.join(cells or ()) or taken[0].rstrip("\r\n"))
        line += len(taken)


def _row(lines: Sequence[str], header: CsvHeader) -> Sequence[str] | None:
    """The cells of a row; None for one that is open within quotes. Of several lines only what is CSV to the letter."""
    try:
        return next(header.reader(lines, strict=True), ())
    except csv.Error as exc:
        if len(lines) > 1 or str(exc) == _OPEN:
            return None
    try:
        return next(header.reader(lines), ())
    except csv.Error:
        return None


class CsvHeader(NamedTuple):
    """The names in a header, and what stands between cells; with `has_blanks` blanks behind that belong to no cell."""

    names: list[str]
    delimiter: str
    has_blanks: bool = False

    def reader(self, lines: Iterable[str], *, strict: bool = False) -> Iterator[list[str]]:
        """The rows of lines. Raises csv.Error."""
        return csv.reader(lines, delimiter=self.delimiter, skipinitialspace=self.has_blanks, strict=strict)


def csv_header(line: str) -> CsvHeader:
    """What a header line says."""
    found = [(_cells(line.rstrip("\r\n"), delimiter), delimiter) for delimiter in DELIMITERS]
    cells, delimiter = max(found, key=lambda each: len(each[0]))
    has_blanks = len(cells) > 1 and all(cell.startswith(" ") for cell in cells[1:])
    names = _cells(line.rstrip("\r\n"), delimiter, has_blanks=has_blanks)
    return CsvHeader([name.strip() for name in names], delimiter, has_blanks)


def _cells(line: str, delimiter: str, *, has_blanks: bool = False) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter, skipinitialspace=has_blanks), [])
    except csv.Error:
        return []


def _csv_outcome(row: _TableRow, header: Sequence[str], cells: Sequence[str]) -> Outcome:
    if not cells:
        return Dropped("a blank line")
    if len(cells) != len(header):
        return malformed(f"not the {len(header)} columns of the header")
    return row.outcome(dict(zip(header, cells, strict=True)))


def parquet_records(stream: BinaryIO, source: FormatContext) -> Iterator[FoundLine]:
    """The rows of a Parquet file, or of some of its row groups, counted from 1. Reads only the columns it needs."""
    try:
        file = pq.ParquetFile(stream)
        schema = file.schema_arrow
        groups = range(*source.part) if source.part else range(file.num_row_groups)
    except (pa.ArrowException, OSError) as exc:
        raise ReplayRefused(f"{source.name}: not a whole Parquet file: {exc}") from exc
    ts = source.mapping.ts_col or next((f"ts_{unit}" for unit in UNITS_NS if f"ts_{unit}" in schema.names), "ts_us")
    has_times = ts in schema.names and pa.types.is_timestamp(schema.field(ts).type)
    named = columns(source.mapping, schema.names, source.name, bucket=source.bucket, has_times=has_times)
    if has_times:
        named = Columns(named.ts, "us", named.op, named.key, named.bucket, named.size)
    row = _TableRow(named, source)
    line = 0
    try:
        for batch in file.iter_batches(_ROWS, row_groups=list(groups), columns=named.names):
            for values in _values(batch, ts if has_times else None):
                line += 1
                shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
                yield FoundLine(line, (row.outcome(values),), shown)
    except (pa.ArrowException, OSError) as exc:
        raise ReplayRefused(f"{source.name}: behind row {line}: {exc}") from exc


def _values(batch: pa.RecordBatch, times: str | None) -> Iterator[dict[str, Any]]:
    """Rows; a column of times, in whichever unit, as whole microseconds."""
    if times is not None:
        place = batch.schema.get_field_index(times)
        in_us = batch.column(place).cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        batch = batch.set_column(place, times, in_us)
    try:
        rows = batch.to_pylist()
    except UnicodeDecodeError:  # one text of them all is not UTF-8, which no reader of Parquet sees to
        plain = [each.dictionary_decode() if pa.types.is_dictionary(each.type) else each for each in batch.columns]
        texts = pa.string(), pa.large_string()
        read = [each.cast(pa.large_binary()) if each.type in texts else each for each in plain]
        rows = pa.RecordBatch.from_arrays(read, names=batch.schema.names).to_pylist()
    yield from rows


def moment_us(value: Any, unit: str | None) -> int:
    """Microseconds since 1970 of a cell: a number in this unit, or a time by its text or type. May raise ValueError."""
    if isinstance(value, datetime):
        return iso_us(value.isoformat())
    if isinstance(value, bytes):
        value = value.decode()
    if unit == ISO:
        return iso_us(str(value).strip())
    nanoseconds = UNITS_NS[unit or "us"]
    if isinstance(value, int):
        return value * nanoseconds // 1_000
    text = str(value).strip()
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(text)
    return int(Decimal(text) * nanoseconds // 1_000)  # of a float its shortest text is what was meant


def _count(value: Any) -> int | None:
    """A size; a float, as tables with nulls have them, counts when it is whole."""
    if isinstance(value, bytes):
        value = value.decode()
    if value is None or (isinstance(value, str) and value.strip().lower() in _UNKNOWN):
        return None
    if isinstance(value, str):
        value = value.strip()
        if _NUMBER.fullmatch(value) is None:
            raise ValueError(value)
        value = Decimal(value)
    if value != value:  # a float's way to say null
        return None
    if int(value) != value:
        raise ValueError(value)
    return int(value)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
