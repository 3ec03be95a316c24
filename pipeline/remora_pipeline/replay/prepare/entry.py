"""What a line of a log says: a write that will be replayed, or why there is none."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import BinaryIO, NamedTuple

from remora_pipeline.replay.prepare.column_map import Mapping
from remora_pipeline.replay.shape import DELETE, WRITES

MALFORMED = "malformed: "
"""Begins the reason for dropping what is not a line of its format at all."""

READ = "a read"
NOT_UTF8 = "the key, bucket or request id is not UTF-8"
LATEST_US = 7_258_118_400_000_000
"""The year 2200: a time stamp beyond it was read in a wrong unit."""

MOST_BYTES = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NO_TIME, _LEAP = timedelta(0), timedelta(seconds=1)
_LEAP_SECOND = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:)60(?!\d)", re.ASCII)
_UTC = re.compile(r"(.*?\d)(?: ?\+00:?00)?(?: UTC| GMT|z)", re.ASCII)
# Not strptime, whose %b goes by the locale.
_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: month for month, name in enumerate(_NAMES, start=1)}
_CLF = re.compile(rf"(\d\d)/({'|'.join(_MONTHS)})/(\d{{4}}):(\d\d):(\d\d):(\d\d) ([+-])(\d\d)(\d\d)", re.ASCII)


class Write(NamedTuple):
    """A successful write.

    `ts_us` is when the request began, `end_us` when it was answered where the log tells that finer than in whole
    seconds, else `ts_us` again: of two that began at once, the one that ended first is first. `request` is the same for
    what is logged twice, and None where the log has no such name. `size` is the object's, None where it is unknown.
    """

    ts_us: int
    end_us: int
    op: str
    bucket: str
    key: str
    size: int | None
    request: str | None


class Dropped(NamedTuple):
    """Nothing to replay; lines with the same reason are counted together."""

    reason: str


Outcome = Write | Dropped


class FoundLine(NamedTuple):
    """What stands at a line (from 1; a row or record in formats without lines), and the text of it, to be shown."""

    line: int
    outcomes: Sequence[Outcome]
    text: str


@dataclass(frozen=True, slots=True)
class FormatContext:
    """What a format may have to know beside the bytes: the file's name, the bucket if the user says it, and columns."""

    name: str
    bucket: str | None = None
    mapping: Mapping = field(default_factory=Mapping)
    part: tuple[int, int] | None = None
    """Of a Parquet file the row groups to read, the last one excluded; None is all."""


Records = Callable[[BinaryIO, FormatContext], Iterator[FoundLine]]


def malformed(reason: str) -> Dropped:
    """A line that is not of its format."""
    return Dropped(MALFORMED + reason)


def is_malformed(outcome: Outcome) -> bool:
    """Whether this is of a line that is not of its format."""
    return isinstance(outcome, Dropped) and outcome.reason.startswith(MALFORMED)


def no_event(operation: str) -> Dropped:
    """Returns the outcome for an operation that no store notifies of."""
    return Dropped(f"no event: {operation[:40]}")


def is_success(status: str | int) -> bool:
    """Whether a request with this status has done something; 000 and 0 are of clients that went away."""
    return 200 <= int(status) < 300


def failed(status: str | int) -> Dropped:
    """A request that did not succeed: nothing was written."""
    return Dropped(f"failed with status {str(status)[:3]}")


def write(  # noqa: PLR0913 - what a log's line says of one write; a value to hold it would be the Write itself
    ts_us: int,
    op: str,
    bucket: str,
    key: str,
    size: int | None,
    *,
    end_us: int | None = None,
    request: str | None = None,
) -> Outcome:
    """A write, unless one of its values cannot be replayed."""
    if op not in WRITES:
        return no_event(op)
    if not 0 <= ts_us < LATEST_US:
        return malformed("time stamp is before 1970 or after 2199: is its unit another one?")
    if not bucket:
        return malformed("no bucket")
    if not key:
        return malformed("no key")
    if op == DELETE:
        size = None
    if size is not None and not 0 <= size <= MOST_BYTES:
        return malformed("size is negative or beyond 64 bits")
    try:
        key.encode()
        bucket.encode()
        (request or "").encode()
    except UnicodeEncodeError:
        return Dropped(NOT_UTF8)
    return Write(ts_us, ts_us if end_us is None else end_us, op, bucket, key, size, request)


@lru_cache(maxsize=4096)
def clf_us(text: str) -> int:
    """Microseconds of `21/Nov/2026:02:14:07 +0000`; raises ValueError. Logs have many lines of each second."""
    found = _CLF.fullmatch(text)
    if found is None:
        raise ValueError(text)
    day, month, year, hour, minute, second, sign, hours, minutes = found.groups()
    leap = _LEAP if second == "60" else _NO_TIME
    moment = datetime(int(year), _MONTHS[month], int(day), int(hour), int(minute), min(int(second), 59), tzinfo=UTC)
    if int(second) > 60:
        raise ValueError(text)
    offset = timedelta(hours=int(hours), minutes=int(minutes))
    return (moment + leap - _EPOCH + (offset if sign == "-" else -offset)) // _MICROSECOND


def iso_us(text: str) -> int:
    """Microseconds of an ISO 8601 time, UTC where it names no zone, finer digits cut off; raises ValueError.

    A leap second is the one behind it, as clocks of computers have it. The zone may be called UTC, as databases write.
    """
    try:
        moment, leap = datetime.fromisoformat(text), _NO_TIME
    except ValueError:
        if (named := _UTC.fullmatch(text)) is not None:
            return iso_us(named[1])
        if (found := _LEAP_SECOND.match(text)) is None:
            raise
        moment, leap = datetime.fromisoformat(f"{found[1]}59{text[found.end() :]}"), _LEAP
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment + leap - _EPOCH) // _MICROSECOND


def number(text: str) -> int | None:
    """A count as logs write it: digits, or `-` for unknown; raises ValueError for anything else."""
    if text in ("-", ""):
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise ValueError(text)
    return int(text)
