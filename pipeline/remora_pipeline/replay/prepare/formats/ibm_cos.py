"""IBM's object-store traces (SNIA IOTTA): milliseconds, operation, object, size, and the range of a read.

A file has one bucket, which its name tells; parts of one trace belong together. Only successful requests are in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import PurePath

from remora_pipeline.replay.prepare.entry import Dropped, FormatContext, Outcome, malformed, number, write
from remora_pipeline.replay.prepare.formats.s3_operations import event_of

_LINE = re.compile(
    r"(?P<ms>\d{1,15})[ \t]+(?P<operation>REST\.[A-Z]+\.OBJECT)[ \t]+(?P<key>[0-9A-Fa-f]{1,16})"
    r"(?:[ \t]+(?P<size>\d{1,19})(?:[ \t]+-?\d+){0,2})?\s*",
    re.ASCII,
)
_NAME = re.compile(r"IBMObjectStoreTrace(\d+)", re.IGNORECASE | re.ASCII)


def parser(source: FormatContext) -> Callable[[str], Sequence[Outcome]]:
    """What the lines of this file say."""
    bucket = source.bucket or bucket_of(source.name)

    def parse(line: str) -> Sequence[Outcome]:
        found = _LINE.fullmatch(line)
        if found is None:
            return (malformed("not the fields of an IBM object-store trace"),)
        event = event_of(found["operation"])
        if isinstance(event, Dropped):
            return (event,)
        return (write(int(found["ms"]) * 1000, event, bucket, found["key"], number(found["size"] or "-")),)

    return parse


def bucket_of(name: str) -> str:
    """`ibm001` for IBMObjectStoreTrace001Part0; of other names what a bucket's name may have."""
    file = PurePath(name).name
    if known := _NAME.search(file):
        return f"ibm{known[1]}"
    return re.sub(r"[^a-z0-9]+", "-", file.split(".")[0].lower()).strip("-") or "ibm"
