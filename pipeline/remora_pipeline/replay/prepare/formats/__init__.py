"""All formats by name, and which one a file has."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.prepare import tables
from remora_pipeline.replay.prepare.column_map import UNITS_NS, Mapping
from remora_pipeline.replay.prepare.entry import Dropped, FormatContext, Records, is_malformed
from remora_pipeline.replay.prepare.formats import cloudtrail, ibm_cos, op_log, rgw_bucket_logging, rgw_ops, s3_access
from remora_pipeline.replay.prepare.formats.s3_operations import begins
from remora_pipeline.replay.prepare.lines import BLANK, each_joined, each_line, each_line_of

_TRIED_LINES = 20


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of log.

    `splittable`: a file may be read from the middle, at the begin of any line. `has_requests`: requests have names, so
    that what was logged twice is found. `recognises` looks at how a file begins; it must not be true of another
    format's files.
    """

    name: str
    title: str
    records: Records
    recognises: Callable[[bytes], bool]
    splittable: bool = False
    has_requests: bool = False
    begins: Callable[[str], bool] = bool
    """Whether a line begins a record, so that a file may be cut there."""


def _has_lines(records: Records) -> Callable[[bytes], bool]:
    """Recognises a log by its first lines: one of them is of the format."""

    def recognises(head: bytes) -> bool:
        tried = 0
        for found in records(BytesIO(head), FormatContext("")):
            if any(
                not (isinstance(each, Dropped) and (each in (BLANK, rgw_ops.FRAME) or is_malformed(each)))
                for each in found.outcomes
            ):
                return True
            tried += found.outcomes != (BLANK,)
            if tried == _TRIED_LINES:
                break
        return False

    return recognises


def _lines(
    name: str, title: str, records: Records, *, has_requests: bool = False, begins: Callable[[str], bool] = bool
) -> Format:
    return Format(name, title, records, _has_lines(records), splittable=True, has_requests=has_requests, begins=begins)


def _is_csv(head: bytes) -> bool:
    """Whether a header names by itself which column is what."""
    names = tables.csv_header(re.split(rb"[\r\n]", head, maxsplit=1)[0].decode("utf-8-sig", "replace")).names
    return {"op", "key"} <= set(names) and any(f"ts_{unit}" in names for unit in UNITS_NS)


_ALL = (
    _lines("s3-access", "AWS S3 server access log", each_line(s3_access.parse), has_requests=True),
    Format("cloudtrail", "CloudTrail data events", cloudtrail.records, cloudtrail.recognises, has_requests=True),
    _lines("rgw-ops", "radosgw ops log", rgw_ops.records, has_requests=True, begins=rgw_ops.begins),
    _lines(
        "rgw-journal",
        "radosgw bucket logging, journal",
        each_joined(rgw_bucket_logging.parse_journal, begins),
        begins=begins,
    ),
    _lines(
        "rgw-standard",
        "radosgw bucket logging, standard",
        each_joined(rgw_bucket_logging.parse_standard, begins),
        has_requests=True,
        begins=begins,
    ),
    _lines("ibm-cos", "IBM object-store trace (SNIA)", each_line_of(ibm_cos.parser)),
    Format("op-log", "operation log of warp or s3dlio", op_log.records, op_log.recognises),
    Format("csv", "CSV with a header", tables.csv_records, _is_csv),
    Format("parquet", "Parquet", tables.parquet_records, lambda head: head.startswith(tables.PARQUET_MAGIC)),
)
FORMATS = {each.name: each for each in _ALL}


def detect(head: bytes, name: str, mapping: Mapping) -> Format:
    """The format of a file by its first bytes, uncompressed. Raises ReplayRefused with its name if it has none."""
    if cloudtrail.is_notification(head):
        raise ReplayRefused(f"{name}:1: {cloudtrail.NOTIFICATIONS}")
    if mapping != Mapping() and not FORMATS["parquet"].recognises(head):
        return FORMATS["csv"]
    for known in _ALL:
        if known.recognises(head):
            return known
    first = head.split(b"\n", 1)[0][:80].decode("utf-8", "replace")
    raise ReplayRefused(
        f"{name}:1: in none of the known formats; --format takes one of {', '.join(FORMATS)}, and a table needs "
        f"--ts-col, --op-col and --key-col where its columns have other names. It begins with {first!r}"
    )
