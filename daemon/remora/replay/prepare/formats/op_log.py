"""Operation logs of MinIO's warp and of s3dlio: tables with tabs (commas in old ones), bound by the header's names.

The name of the bucket is not in warp's: it is what its --bucket was, `warp-benchmark-bucket` by default.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from remora.replay.errors import ReplayRefused
from remora.replay.prepare.entry import (
    READ,
    Dropped,
    Found,
    Outcome,
    Source,
    iso_us,
    malformed,
    no_event,
    number,
    write,
)
from remora.replay.prepare.lines import BLANK, numbered
from remora.replay.shape import DELETE, PUT

BUCKET = "warp-benchmark-bucket"
_NEEDED = ("op", "file", "error", "start", "end")
_EVENTS = {"PUT": PUT, "POST": PUT, "DELETE": DELETE}
_READS = ("GET", "STAT", "HEAD", "LIST")


def header_of(line: str) -> tuple[str, dict[str, int]] | None:
    """The delimiter and the place of each column; None for a line that is no such header."""
    for delimiter in "\t,":
        names = line.strip().split(delimiter)
        if all(name in names for name in _NEEDED):
            return delimiter, {name: place for place, name in enumerate(names)}
    return None


def recognises(head: bytes) -> bool:
    """Whether the first line is such a header."""
    return header_of(head.split(b"\n", 1)[0].decode("utf-8", "replace")) is not None


def records(stream: BinaryIO, source: Source) -> Iterator[Found]:
    """The rows, counted as lines of the file. Raises ReplayRefused when the first line is no header."""
    lines = numbered(stream)
    first = next(lines, (1, ""))[1]
    header = header_of(first or "")
    if header is None:
        raise ReplayRefused(f"{source.name}:1: not the header of an operation log; it has {', '.join(_NEEDED)}")
    delimiter, places = header
    bucket = source.bucket or BUCKET
    for line, text in lines:
        if text is None:
            yield Found(line, (malformed("too long"),), "")
        elif not text.strip():
            yield Found(line, (BLANK,), "")
        elif text.startswith("#"):
            yield Found(line, (Dropped("a comment"),), text)
        else:
            yield Found(line, (_outcome(_cells(text, delimiter), places, bucket),), text)


def _cells(text: str, delimiter: str) -> Sequence[str]:
    """Only the form with commas may have quotes."""
    if delimiter == "\t":
        return text.split("\t")
    try:
        return next(csv.reader([text]), [])
    except csv.Error:
        return []


def _outcome(cells: Sequence[str], places: dict[str, int], bucket: str) -> Outcome:
    if len(cells) < len(places):
        return malformed(f"{len(places)} columns are in the header, and fewer here")
    op, key = cells[places["op"]].upper(), cells[places["file"]]
    event = _EVENTS.get(op)
    if event is None:
        return Dropped(READ) if op in _READS else no_event(op)
    if cells[places["error"]].strip('" '):
        return Dropped("failed with an error")
    try:
        if "n_objects" in places and (number(cells[places["n_objects"]]) or 1) > 1:
            return Dropped("one line for several objects, which does not tell their keys")
        ts_us, end_us = iso_us(cells[places["start"]]), iso_us(cells[places["end"]])
        size = number(cells[places["bytes"]]) if "bytes" in places else None
    except ValueError:
        return malformed("not the times and numbers of an operation")
    if key.startswith("s3://"):
        bucket, _, key = key.removeprefix("s3://").partition("/")
    return write(ts_us, event, bucket, key, size, end_us=max(ts_us, end_us))
