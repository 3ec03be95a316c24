"""radosgw's ops log: an object of JSON on each line, or the stream of its socket (`[`, then objects with commas).

A line is written when a request ends, and tells when it began: file order is the order of completion. There is no key,
it is taken out of the request's target.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import unquote

import msgspec

from remora.replay.prepare.entry import NOT_UTF8, READ, Dropped, Outcome, failed, iso_us, malformed, no_event, write
from remora.replay.shape import COPY, DELETE, MPU_COMPLETE, PUT

_EVENTS = {
    "put_obj": PUT,
    "post_obj": PUT,
    "copy_obj": COPY,
    "complete_multipart": MPU_COMPLETE,
    "delete_obj": DELETE,
}
_MULTI_DELETE = "multi_object_delete"
FRAME = Dropped("the frame of the socket's stream")
_READS = ("get_", "list_", "head_", "stat_")


class _Deleted(msgspec.Struct):
    key: str
    http_status: int | str = 200
    error: bool = False
    version_id: str = ""


class _Deletes(msgspec.Struct):
    objects: list[_Deleted] = []


class _Entry(msgspec.Struct):
    operation: str
    time: str
    uri: str
    bucket: str = ""
    http_status: str | int = ""
    object_size: int | None = None
    total_time: int | float = 0
    trans_id: str = ""
    op_data: _Deletes | None = None


_decoder = msgspec.json.Decoder(_Entry)


def parse(line: str) -> Sequence[Outcome]:
    """What one line says; one that deletes several objects says so of each of them."""
    text = line.strip().removeprefix("[").removesuffix("]").strip().removesuffix(",").strip()
    if not text:
        return (FRAME,)
    try:
        entry = _decoded(text)
        ts_us = iso_us(entry.time)
        status = int(entry.http_status)
    except (ValueError, RecursionError):
        return (malformed("not an entry of an ops log"),)
    if entry.operation == _MULTI_DELETE:
        return _deletes(entry, ts_us, status)
    event = _EVENTS.get(entry.operation)
    if event is None:
        return (Dropped(READ) if entry.operation.startswith(_READS) else no_event(entry.operation),)
    if status >= 300:
        return (failed(status),)
    bucket = _bucket(entry)
    try:
        key = _key(entry, bucket)
    except UnicodeDecodeError:
        return (Dropped(NOT_UTF8),)
    if not key and entry.operation == "post_obj":
        return (Dropped("an upload by form, whose key is not in the log"),)
    return (
        write(
            ts_us, event, bucket, key, entry.object_size, end_us=_end_us(entry, ts_us), request=entry.trans_id or None
        ),
    )


def _decoded(text: str) -> _Entry:
    try:
        return _decoder.decode(text.encode("utf-8", "surrogateescape"))
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # A user agent may hold any bytes, and radosgw writes them as they are.
        return msgspec.convert(json.loads(text), _Entry)


def _deletes(entry: _Entry, ts_us: int, status: int) -> Sequence[Outcome]:
    if status >= 300:
        return (failed(status),)
    if entry.op_data is None:
        return (Dropped("a delete of several objects that does not tell their keys"),)
    bucket, end_us = _bucket(entry), _end_us(entry, ts_us)
    found: list[Outcome] = []
    for deleted in entry.op_data.objects:
        code = str(deleted.http_status)
        if deleted.error or (code.isdecimal() and int(code) >= 300):
            found.append(failed(deleted.http_status))
            continue
        request = f"{entry.trans_id} {deleted.version_id} {deleted.key}" if entry.trans_id else None
        found.append(write(ts_us, DELETE, bucket, deleted.key, None, end_us=end_us, request=request))
    return found


def _end_us(entry: _Entry, ts_us: int) -> int:
    """`total_time` is in milliseconds."""
    took = entry.total_time
    return ts_us + int(took * 1000) if 0 <= took < 1e9 else ts_us


def _bucket(entry: _Entry) -> str:
    return entry.bucket.rpartition("/")[2]  # tenant/bucket


def _key(entry: _Entry, bucket: str) -> str:
    """The key in the request's target, behind the bucket where that is in front of it and not in the host."""
    parts = entry.uri.split(" ")
    path = unquote((parts[1] if len(parts) > 1 else parts[0]).partition("?")[0], errors="strict").removeprefix("/")
    for prefix in {f"{entry.bucket.replace('/', ':')}/", f"{bucket}/"}:  # tenant:bucket in a path
        if path.startswith(prefix):
            return path.removeprefix(prefix)
    return "" if path == bucket else path
