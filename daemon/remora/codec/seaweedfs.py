"""What SeaweedFS posts about its files, as S3's records.

Its filer posts a change of any file or folder: `key` is the path, and `message` what was there before and after. Field
names are those of its source (weed/notification/webhook, filer.proto), tried with release 4.44. `event_type` is not
read: releases differ in what they call an overwritten file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from remora.codec.json_pieces import not_json
from remora.codec.s3_records import TWICE, MalformedEvent
from remora.codec.speedups import repeated_name

_BUCKETS = "/buckets/"
_MARKER = "Seaweed-X-Amz-Delete-Marker"
_ETAG = "Seaweed-X-Amz-ETag"
_OWNER = "Seaweed-X-Amz-Owner"
_VERSION = "Seaweed-X-Amz-Version-Id"
_PARTS = "X-Seaweedfs-Multipart-Parts-Count"
_METADATA, _TAG = "x-amz-meta-", "X-Amz-Tagging-"
_OF_VERSION = re.compile(r"(.+)\.versions/v_[0-9a-f]+", re.DOTALL)
"""Where a version of an object lies in its bucket."""

_NEVER = 2**32
"""The first second that an entry cannot hold."""


class SeaweedAttributes(msgspec.Struct, frozen=True):
    """What a file is like. Members of the value 0 are left out."""

    file_size: int = 0
    mtime: int = 0
    mtime_ns: int = 0
    md5: bytes = b""


class SeaweedChunk(msgspec.Struct, frozen=True):
    """A part of a file. Its id is left out: the same one is written in two ways before and after a change."""

    offset: int = 0
    size: int = 0
    modified_ts_ns: int = 0
    e_tag: str = ""


class SeaweedEntry(msgspec.Struct, frozen=True):
    """A file or a folder."""

    name: str = ""
    is_directory: bool = False
    chunks: list[SeaweedChunk] = msgspec.field(default_factory=list)
    attributes: SeaweedAttributes = msgspec.field(default_factory=SeaweedAttributes)
    extended: dict[str, bytes] = msgspec.field(default_factory=dict)
    content: bytes = b""

    def text(self, name: str) -> str:
        """One of its extended attributes."""
        return self.extended.get(name, b"").decode(errors="replace")

    @property
    def etag(self) -> str:
        """S3's ETag, without quotes."""
        return self.text(_ETAG).strip('"') or self.attributes.md5.hex()

    @property
    def body(self) -> object:
        """What differs where an object was written anew."""
        return self.attributes, self.chunks, self.content, self.etag

    @property
    def tags(self) -> Mapping[str, str]:
        return {name.removeprefix(_TAG): self.text(name) for name in self.extended if name.startswith(_TAG)}


class SeaweedChange(msgspec.Struct, frozen=True):
    """What was there before and after, and the folder in which it is after."""

    old_entry: SeaweedEntry | None = None
    new_entry: SeaweedEntry | None = None
    new_parent_path: str = ""


class SeaweedPosting(msgspec.Struct, frozen=True):
    """What is posted. The path is that from before, where there was something before."""

    key: str
    message: SeaweedChange


class _Place(NamedTuple):
    """Where an object lies."""

    bucket: str
    key: str


_DECODER = msgspec.json.Decoder(SeaweedPosting)


def records_of(body: bytes) -> bytes:
    """`{"Records":[...]}` of what is posted; empty where it is about no object. Raises MalformedEvent."""
    try:
        body.decode()  # msgspec does not look at members that it passes over
        posting = _DECODER.decode(body)
    except UnicodeDecodeError as exc:
        raise MalformedEvent(None, None, "", str(not_json(exc))) from exc
    except msgspec.ValidationError as exc:
        reason, _, path = str(exc).partition(" - at ")
        raise MalformedEvent(None, None, path.strip("`").removeprefix("$."), reason) from exc
    except (msgspec.DecodeError, RecursionError) as exc:
        raise MalformedEvent(None, None, "", f"not valid JSON: {exc}") from exc
    if (name := repeated_name(body)) is not None:
        raise MalformedEvent(None, None, name, TWICE)
    found = list(_records(posting))
    return msgspec.json.encode({"Records": found}) if found else b""


def _records(posting: SeaweedPosting) -> Iterator[Mapping[str, Any]]:
    old, new = posting.message.old_entry, posting.message.new_entry
    path, folder = posting.key, posting.message.new_parent_path
    if old and new and folder:
        path = f"{folder.rstrip('/')}/{new.name}"
    if old and new and path == posting.key:
        yield from _changed(path, old, new)
        return
    if old and (place := _place_of(posting.key, old)):
        yield _record("ObjectRemoved:Delete", place, old, at=None)
    if new and (place := _place_of(path, new)):
        yield _record(_name_of_creation(new), place, new, at=new.attributes)


def _changed(path: str, old: SeaweedEntry, new: SeaweedEntry) -> Iterator[Mapping[str, Any]]:
    """What became of a file that stays where it was; of a change that S3 has no event for, nothing."""
    if not (place := _place_of(path, new)):
        return
    if old.body != new.body:
        yield _record(_name_of_creation(new), place, new, at=new.attributes)
    elif old.tags != new.tags:
        yield _record("ObjectTagging:Put" if new.tags else "ObjectTagging:Delete", place, new, at=None)


def _name_of_creation(entry: SeaweedEntry) -> str:
    if entry.text(_MARKER) == "true":
        return "ObjectRemoved:DeleteMarkerCreated"
    return "ObjectCreated:CompleteMultipartUpload" if _PARTS in entry.extended else "ObjectCreated:Put"


def _place_of(path: str, entry: SeaweedEntry) -> _Place | None:
    """The object that a path means; None for what lies in no bucket, parts of uploads, and folders that S3 did not
    make."""
    bucket, _, key = path.removeprefix(_BUCKETS).partition("/")
    if not path.startswith(_BUCKETS) or not key or bucket.startswith(".") or key.partition("/")[0] == ".uploads":
        return None
    if entry.is_directory:
        return _Place(bucket, key + "/") if _ETAG in entry.extended else None
    version = _OF_VERSION.fullmatch(key) if _VERSION in entry.extended else None
    return _Place(bucket, version[1] if version else key)


def _record(name: str, place: _Place, entry: SeaweedEntry, *, at: SeaweedAttributes | None) -> Mapping[str, Any]:
    """A record; without a time where SeaweedFS does not say when it happened."""
    metadata = {
        name.lower(): entry.text(name) for name in entry.extended if name.lower().startswith(_METADATA)
    }  # of names that differ in case alone S3 knows one
    found = {
        "eventVersion": "2.2", "eventSource": "seaweedfs:s3", "eventName": name,
        "userIdentity": {"principalId": entry.text(_OWNER)},
        "s3": {
            "s3SchemaVersion": "1.0",
            "bucket": {"name": place.bucket, "arn": f"arn:aws:s3:::{place.bucket}"},
            "object": {
                "key": quote(place.key, errors="surrogatepass"),
                "size": max(entry.attributes.file_size, len(entry.content)),
                "eTag": entry.etag,
                "versionId": entry.text(_VERSION),
                "metadata": [{"key": name, "val": value} for name, value in metadata.items()],
                "tags": [{"key": name, "val": value} for name, value in entry.tags.items()],
            },
        },
    }  # fmt: skip
    if at and 0 < at.mtime < _NEVER and 0 <= at.mtime_ns < 10**9:
        time = datetime.fromtimestamp(at.mtime, UTC)
        found["eventTime"] = f"{time:%Y-%m-%dT%H:%M:%S}.{at.mtime_ns:09}Z"
    return found
