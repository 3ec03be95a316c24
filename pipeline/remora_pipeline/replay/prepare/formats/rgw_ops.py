"""radosgw's ops log: an object of JSON on each line, or the stream of its socket (`[`, then objects with commas).

A line is written when a request ends, and tells when it began: file order is the order of completion. From 20.2 on a
line has the object's name; before, the name is taken out of the request's target, which S3 and Swift spell differently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO
from urllib.parse import unquote

import msgspec

from remora_pipeline.replay.prepare.entry import (
    NOT_UTF8,
    READ,
    Dropped,
    FormatContext,
    FoundLine,
    Outcome,
    failed,
    is_success,
    iso_us,
    malformed,
    no_event,
    write,
)
from remora_pipeline.replay.prepare.lines import numbered
from remora_pipeline.replay.prepare.objects import objects
from remora_pipeline.replay.shape import COPY, DELETE, MPU_COMPLETE, PUT

_EVENTS = {
    "put_obj": PUT,
    "post_obj": PUT,
    "copy_obj": COPY,
    "complete_multipart": MPU_COMPLETE,
    "delete_obj": DELETE,
}
_MULTI_DELETE = "multi_object_delete"
_WITHOUT_KEYS = {
    "bulk_delete": Dropped("a delete of several objects that does not tell their keys"),
    "bulk_upload": Dropped("an upload of an archive that does not tell its objects' keys"),
}
_PART = Dropped("no event: a part of a multipart upload")
_NONE_DELETED = Dropped("no event: a delete of several objects that names none")
FRAME = Dropped("the frame of the socket's stream")
_READS = ("get_", "list_", "head_", "stat_")
_NO_NAME = "-"
_REQUEST = re.compile(r" HTTP/[\d.]+\s*$")
_SCHEMES = ("http://", "https://")
# rgw_swift_url_prefix is `swift` by default and may be anything; the account is there with rgw_swift_account_in_url.
_SWIFT_PREFIX = "/swift"
_SWIFT = re.compile(
    r"(?P<prefix>/[^/]+)?/v1(?:\.0)?/(?P<account>AUTH_[^/]*/)?(?P<container>[^/]+)/(?P<key>.+)", re.ASCII | re.DOTALL
)


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
    object: str | None = None
    http_status: str | int = ""
    object_size: int | None = None
    total_time: int | float = 0
    trans_id: str = ""
    op_data: _Deletes | None = None


_decoder = msgspec.json.Decoder(_Entry)


def records(stream: BinaryIO, source: FormatContext) -> Iterator[FoundLine]:
    """What the objects of a file say, each with the line that it begins at; commonly there is one on each line."""
    return objects(numbered(stream), parse)


def begins(line: str) -> bool:
    """Whether a line begins an entry: within one that takes several lines all others are indented, or close it."""
    return line.startswith(("{", "[{", ",{"))


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
    return (_outcome(entry, ts_us, status),)


def _outcome(entry: _Entry, ts_us: int, status: int) -> Outcome:
    event = _EVENTS.get(entry.operation)
    if event is None:
        if (nameless := _WITHOUT_KEYS.get(entry.operation)) is not None:
            return nameless
        return Dropped(READ) if entry.operation.startswith(_READS) else no_event(entry.operation)
    if not is_success(status):
        return failed(status)
    # What stands between the method and the version of HTTP, without scheme and host.
    target = _REQUEST.sub("", entry.uri.partition(" ")[2] or entry.uri)
    target = "/" + target.partition("://")[2].partition("/")[2] if target.startswith(_SCHEMES) else target
    if {"partNumber", "uploadId"} <= _arguments(target):
        return _PART
    try:
        bucket, key = _named(entry, target)
    except UnicodeDecodeError:
        return Dropped(NOT_UTF8)
    if not key and entry.operation == "post_obj":
        return Dropped("an upload by form, whose key is not in the log")
    if not key and entry.uri.startswith("COPY "):
        return Dropped("a copy by Swift's COPY, whose new key is not in the log")
    return write(
        ts_us,
        event,
        bucket,
        key,
        entry.object_size if event in (PUT, DELETE) else entry.object_size or None,  # of others radosgw writes 0
        end_us=_end_us(entry, ts_us),
        request=entry.trans_id or None,
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
    if not is_success(status):
        return (failed(status),)
    if entry.op_data is None:
        return (_WITHOUT_KEYS["bulk_delete"],)
    if not entry.op_data.objects:
        return (_NONE_DELETED,)
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


def _arguments(target: str) -> set[str]:
    """The names in the query, which release 16 writes twice, one behind the other."""
    if "?" not in target:
        return set()
    return {unquote(pair.partition("=")[0]) for pair in re.split("[?&]", target.partition("?")[2])}


def _named(entry: _Entry, target: str) -> tuple[str, str]:
    """Bucket and key; the key is empty where the log does not tell it. May raise UnicodeDecodeError."""
    bucket = _bucket(entry)
    if entry.object and entry.object != _NO_NAME:
        return bucket or _swift(entry, target)[0], entry.object
    if entry.uri.startswith("COPY "):  # the target is the source
        return bucket, ""
    by_swift, by_s3 = _swift(entry, target), _path_style(entry, target)
    if by_s3 and not (by_swift[1] and _is_swift(entry)):
        return bucket, by_s3
    if by_swift[1]:
        return by_swift
    path = _path(target)
    is_by_form = entry.operation == "post_obj" and path.removesuffix("/") in _spelt(entry)
    return bucket, "" if is_by_form else path


def _path(target: str) -> str:
    return unquote(target.partition("?")[0], errors="strict").removeprefix("/")


def _path_style(entry: _Entry, target: str) -> str:
    """The key behind the bucket where that is in front of it, and not in the host; empty otherwise."""
    path = _path(target)
    for bucket in _spelt(entry):
        if path.startswith(f"{bucket}/"):
            return path.removeprefix(f"{bucket}/")
    return ""


def _spelt(entry: _Entry) -> set[str]:
    """The bucket as a path may have it: with its tenant in front or not."""
    return {entry.bucket.replace("/", ":"), _bucket(entry)} - {""}


def _is_swift(entry: _Entry) -> bool:
    """Whether the answer is Swift's for sure: S3 answers 200 to a write whose key is in its target."""
    return str(entry.http_status) in ("201", "202")


def _swift(entry: _Entry, target: str) -> tuple[str, str]:
    """Container and key of a path of Swift's; both are empty for another path."""
    found = _SWIFT.fullmatch(target.partition("?")[0])
    if found is None or not (found["account"] or found["prefix"] == _SWIFT_PREFIX or _is_swift(entry)):
        return "", ""
    container = unquote(found["container"], errors="strict")
    if entry.bucket and container != _bucket(entry):
        return "", ""
    return container, unquote(found["key"], errors="strict")
