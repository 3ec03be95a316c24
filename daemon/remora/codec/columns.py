"""What is asked of many records at once. `_compiled.pyx` has the same for records that it has made; both have the same
tests. Change them together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from remora.model.record import Record


class Totals(NamedTuple):
    """Of some records: the bytes of all bodies, and each one's age zero in ns since the epoch, and its ordinal."""

    body_bytes: int
    created_ns: list[int]
    ordinals: list[int]


def totals(records: Sequence[Record]) -> Totals:
    """What metrics and acknowledgements need of records, in their order."""
    return Totals(
        sum([len(each.body) for each in records]),
        [each.created_ns for each in records],
        [each.ordinal for each in records],
    )


class Extent(NamedTuple):
    """Of some records: the bytes of all bodies, the first and the last age zero in ns since the epoch; 0 of none."""

    body_bytes: int
    oldest_ns: int
    newest_ns: int


def extent(records: Sequence[Record]) -> Extent:
    """What limits of traffic and lifetimes need of records."""
    body_bytes, created_ns, _ = totals(records)
    return Extent(body_bytes, min(created_ns, default=0), max(created_ns, default=0))


def traced(records: Sequence[Record]) -> Sequence[Record]:
    """Those that have a trace context, in their order."""
    return [each for each in records if each.traceparent]


def joined(parts: Iterable[Sequence[Record]]) -> Sequence[Record]:
    """The records of all parts, one part behind the other."""
    return [each for part in parts for each in part]
