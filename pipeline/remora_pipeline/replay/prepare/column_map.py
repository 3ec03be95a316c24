"""Which column of a table means what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.shape import WRITES

UNITS_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
ISO = "iso"
READS = ("GET", "HEAD", "LIST", "STAT", "OTHER")
"""Operations that a table may name beside the writes; they make no events."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """What the user says of columns; None is found by the usual names ts_us, op, key, bucket and size."""

    ts_col: str | None = None
    ts_unit: str | None = None
    op_col: str | None = None
    key_col: str | None = None
    bucket_col: str | None = None
    size_col: str | None = None
    op_map: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of columns that are there; `ts_unit` None is for a column that has times by its type."""

    ts: str
    ts_unit: str | None
    op: str
    key: str
    bucket: str | None
    size: str | None

    @property
    def names(self) -> list[str]:
        """All of them."""
        return [name for name in (self.ts, self.op, self.key, self.bucket, self.size) if name]


def operation(text: str, op_map: dict[str, str]) -> str | None:
    """What a table's word for an operation means; None is for an unknown one."""
    if text in op_map:
        return op_map[text]
    upper = text.upper()
    return upper if upper in WRITES or upper in READS else None


def columns(mapping: Mapping, header: Sequence[str], where: str, *, bucket: str | None, has_times: bool) -> Columns:
    """The columns of a table with this header. Raises ReplayRefused with `where` for one that is not there.

    `has_times` tells of the time column that its type is a time already, so that it needs no unit.
    """
    there = f"; its columns are {', '.join(header[:30])}"

    def column(given: str | None, usual: Sequence[str], option: str, meaning: str) -> str:
        for name in (given,) if given else usual:
            if name in header:
                return name
        if given:
            raise ReplayRefused(f"{where}: there is no column {given} ({option}){there}")
        raise ReplayRefused(f"{where}: no column is known to have the {meaning}: name it with {option}{there}")

    ts = column(mapping.ts_col, [f"ts_{unit}" for unit in ("us", "ns", "ms", "s")], "--ts-col", "time")
    unit = mapping.ts_unit
    if unit is None and not has_times:
        unit = next((unit for unit in UNITS_NS if ts.endswith(f"_{unit}")), None)
        if unit is None:
            raise ReplayRefused(f"{where}: in which unit is column {ts}? Say it with --ts-unit")
    usual_bucket = mapping.bucket_col or ("bucket" if "bucket" in header else None)
    if usual_bucket is None and bucket is None:
        raise ReplayRefused(f"{where}: no column is known to have the bucket: name it with --bucket-col or --bucket")
    usual_size = "size" if "size" in header else None
    return Columns(
        ts=ts,
        ts_unit=unit,
        op=column(mapping.op_col, ["op"], "--op-col", "operation"),
        key=column(mapping.key_col, ["key"], "--key-col", "key"),
        bucket=None if bucket else column(usual_bucket, [], "--bucket-col", "bucket"),
        size=column(mapping.size_col, [], "--size-col", "size") if mapping.size_col else usual_size,
    )
