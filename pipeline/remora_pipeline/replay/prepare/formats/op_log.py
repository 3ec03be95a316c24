"""Operation logs of MinIO's warp and of s3dlio: tables with tabs (commas in old ones), bound by the header's names.

Texts that hold delimiters, quotes or line breaks are quoted, as in CSV. The name of the bucket is not in warp's: it is
what its --bucket was, `warp-benchmark-bucket` by default. s3dlio names objects by URIs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from typing import BinaryIO

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.prepare.entry import (
    READ,
    Dropped,
    FormatContext,
    FoundLine,
    Outcome,
    iso_us,
    malformed,
    no_event,
    number,
    write,
)
from remora_pipeline.replay.prepare.lines import BLANK, TOO_LONG, is_blank, numbered
from remora_pipeline.replay.shape import DELETE, PUT

BUCKET = "warp-benchmark-bucket"
_NEEDED = ("op", "file", "error", "start", "end")
_EVENTS = {"PUT": PUT, "POST": PUT, "DELETE": DELETE}
_READS = ("GET", "STAT", "HEAD", "LIST")
_SEVERAL = Dropped("one line for several objects, which does not tell their keys")
_BATCH = "(batch)"
_MOST_LINES = 256
"""A text with more lines is not looked for."""

_MOST_BEFORE = 100
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)/?(.*)", re.DOTALL)
_HTTP = ("http", "https")
_QUOTED = {
    False: re.compile(r'"((?:[^"]|"")*+)"'),
    True: re.compile(r'"((?:[^"\\]|\\.)*+)"', re.DOTALL),
}
_ESCAPED = {False: re.compile(r'(")"'), True: re.compile(r'\\(["\\])')}


def header_of(line: str) -> tuple[str, dict[str, int]] | None:
    """The delimiter and the place of each column; None for a line that is no such header."""
    for delimiter in "\t,":
        names = [name.strip('" ') for name in line.strip().split(delimiter)]
        if all(name in names for name in _NEEDED):
            return delimiter, {name: place for place, name in enumerate(names)}
    return None


def recognises(head: bytes) -> bool:
    """Whether the first line that is no comment is such a header."""
    return _header(numbered(BytesIO(head))) is not None


def _header(lines: Iterator[tuple[int, str | None]]) -> tuple[str, dict[str, int]] | None:
    for _, text in islice(lines, _MOST_BEFORE):
        if text is None or not (is_blank(text) or text.startswith("#")):
            return header_of(text or "")
    return None


def records(stream: BinaryIO, source: FormatContext) -> Iterator[FoundLine]:
    """The rows, each with the line that it begins at. Raises ReplayRefused when the first line is no header."""
    lines = numbered(stream)
    header = _header(lines)
    if header is None:
        raise ReplayRefused(f"{source.name}:1: not the header of an operation log; it has {', '.join(_NEEDED)}")
    delimiter, places = header
    rows = _Rows(delimiter, places, source.bucket or BUCKET, 1 + max(places.values()))
    waiting: list[tuple[int, str]] = []
    for line, text in lines:
        if waiting and text is not None and not rows.is_whole(text) and len(waiting) < _MOST_LINES:
            waiting.append((line, text))
            joined = "\n".join(each for _, each in waiting)
            if rows.cells(joined) is not None:
                yield FoundLine(waiting[0][0], (rows.outcome(joined),), joined)
                waiting = []
            continue
        yield from (FoundLine(at, (rows.outcome(each),), each) for at, each in waiting)
        waiting = []
        if text is not None and rows.may_go_on(text):
            waiting = [(line, text)]
        else:
            yield FoundLine(line, (TOO_LONG if text is None else rows.outcome(text),), text or "")
    yield from (FoundLine(at, (rows.outcome(each),), each) for at, each in waiting)


@dataclass(frozen=True, slots=True)
class _Rows:
    """What rows say, by the header."""

    delimiter: str
    places: dict[str, int]
    bucket: str
    width: int
    """The fewest cells of a row; a header may have a name twice, so that it has more columns than names."""

    def may_go_on(self, text: str) -> bool:
        """Whether a row has its other lines behind this one."""
        return '"' in text and not text.startswith("#") and self.cells(text) is None

    def is_whole(self, text: str) -> bool:
        """Whether a line is a row by itself, whatever is before it: it has all columns, and times where they belong."""
        cells = self.cells(text)
        if cells is None:
            return False
        try:
            iso_us(cells[self.places["start"]])
            iso_us(cells[self.places["end"]])
        except ValueError:
            return False
        return True

    def cells(self, text: str) -> Sequence[str] | None:
        """The cells of a row; None where it lacks some. Quotes within quotes are doubled, or behind a backslash."""
        if '"' not in text:
            plain = text.split(self.delimiter)
            return plain if len(plain) >= self.width else None
        for has_backslashes in (False, True):
            cells = _cells(text, self.delimiter, has_backslashes=has_backslashes)
            if cells is not None and len(cells) >= self.width:
                return cells
        return None

    def outcome(self, text: str) -> Outcome:
        """What one row says."""
        if is_blank(text):
            return BLANK
        if text.startswith("#"):
            return Dropped("a comment")
        cells = self.cells(text)
        if cells is None:
            return malformed(f"{self.width} columns are in the header, and fewer here")
        return _outcome(cells, self.places, self.bucket)


def _cells(text: str, delimiter: str, *, has_backslashes: bool) -> Sequence[str] | None:
    """The cells of a row; None for a text that ends within quotes. Only a cell that begins with a quote is quoted."""
    quoted = _QUOTED[has_backslashes]
    cells: list[str] = []
    at = 0
    while True:
        inside = ""
        if text.startswith('"', at):
            found = quoted.match(text, at)
            if found is None:
                return None
            inside, at = _ESCAPED[has_backslashes].sub(r"\1", found[1]), found.end()
        end = text.find(delimiter, at)
        cells.append(inside + text[at : end if end >= 0 else len(text)])
        if end < 0:
            return cells
        at = end + len(delimiter)


def _outcome(cells: Sequence[str], places: dict[str, int], bucket: str) -> Outcome:
    op, key = cells[places["op"]].upper(), cells[places["file"]]
    event = _EVENTS.get(op)
    if event is None:
        return Dropped(READ) if op in _READS else no_event(op)
    if cells[places["error"]].strip():
        return Dropped("failed with an error")
    try:
        if key == _BATCH or ("n_objects" in places and (number(cells[places["n_objects"]]) or 1) > 1):
            return _SEVERAL
        ts_us, end_us = iso_us(cells[places["start"]]), iso_us(cells[places["end"]])
        size = number(cells[places["bytes"]]) if "bytes" in places else None
    except ValueError:
        return malformed("not the times and numbers of an operation")
    bucket, key = _named(bucket, key)
    if key == _BATCH:
        return _SEVERAL
    return write(ts_us, event, bucket, key, size, end_us=max(ts_us, end_us))


def _named(bucket: str, key: str) -> tuple[str, str]:
    """Bucket and key of an object's name: a URI names the bucket itself, but not that of a file."""
    found = _URI.fullmatch(key)
    if found is None:
        return bucket, key
    scheme, authority, path = found[1].lower(), found[2], found[3]
    if scheme in _HTTP:  # the bucket is in the path
        authority, _, path = path.partition("/")
    return authority or bucket, path.lstrip("/") if not authority else path
