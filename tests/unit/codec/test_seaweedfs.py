"""What SeaweedFS posts becomes S3's records: requests of a real SeaweedFS 4.44, and others made of them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.codec.event_copies import NO_TARGET
from remora.codec.event_entry import decode
from remora.codec.s3_events import MalformedEvent
from remora.codec.seaweedfs import records_of
from remora.model.entry import S3Event, Time
from support.placed import place
from unit.codec.samples import DATA

CREATED = Time(1_800_000_000, 5)


def captured() -> Iterator[tuple[str, dict[str, Any]]]:
    """What a real SeaweedFS posted, with the request that it had before."""
    for line in (DATA / "seaweedfs-4.44.jsonl").read_text("utf-8").splitlines():
        found = json.loads(line)
        yield found["after"], found["body"]


def events_of(posting: object) -> list[S3Event]:
    """The events that remora stores of a posting."""
    body = records_of(json.dumps(posting, ensure_ascii=False).encode())
    if not body:
        return []
    parts = place(body, NO_TARGET, ndjson=False, most=2, created=CREATED, seed=b"seed")
    return [decode(event.payload).event for part in parts for event in part.events]


def posting_after(request: str, key: str) -> dict[str, Any]:
    """The one about this path after a request."""
    return next(copy.deepcopy(body) for after, body in captured() if (after, body["key"]) == (request, key))


def told(request: str) -> list[tuple[str, str, str, int]]:
    """Name, bucket, key and size of the events after a request."""
    return sorted(
        (event.event_name.decode(), event.bucket_name.decode(), event.object_key.decode(), event.object_size)
        for after, body in captured()
        if after == request
        for event in events_of(body)
    )


@pytest.mark.parametrize(("request_", "expected"), [
    ("create bucket", []),
    ("put plain", [("ObjectCreated:Put", "bucket", "plain", 4)]),
    ("overwrite plain", [("ObjectCreated:Put", "bucket", "plain", 5)]),
    ("put nested", [("ObjectCreated:Put", "bucket", "deep/er/a b+c%25\u00e4.jpg", 5000)]),
    ("put empty", [("ObjectCreated:Put", "bucket", "empty", 0)]),
    ("put folder", [("ObjectCreated:Put", "bucket", "folder/", 0)]),
    ("tag", [("ObjectTagging:Put", "bucket", "plain", 5)]),
    ("copy", [("ObjectCreated:Put", "bucket", "copied", 5)]),
    ("multipart", []),
    ("complete", [("ObjectCreated:CompleteMultipartUpload", "bucket", "multi/part", 5 << 20)]),
    ("delete plain", [("ObjectRemoved:Delete", "bucket", "plain", 5)]),
    ("delete nested", [("ObjectRemoved:Delete", "bucket", "deep/er/a b+c%25\u00e4.jpg", 5000)]),
    ("create vbucket", []),
    ("versioning", []),
    ("v1", [("ObjectCreated:Put", "versioned", "v/k", 1)]),
    ("v2", [("ObjectCreated:Put", "versioned", "v/k", 2)]),
])  # fmt: skip
def test_requests_of_a_real_seaweedfs(request_: str, expected: list[tuple[str, str, str, int]]) -> None:
    """One request to SeaweedFS' S3 becomes the one event that S3 has for it, whatever else its filer posts of it."""
    assert told(request_) == expected


def test_a_delete_marker_and_a_renamed_file() -> None:
    """A delete marker is one event; a file that the filer renamed is a removal and a creation."""
    assert told("vdelete") == [
        ("ObjectCreated:Put", "bucket", "renamed", 5),
        ("ObjectRemoved:Delete", "bucket", "copied", 5),
        ("ObjectRemoved:DeleteMarkerCreated", "versioned", "v/k", 0),
    ]


def test_what_a_record_has() -> None:
    """ETag, owner, time, metadata, tags and version are those that SeaweedFS says."""
    (plain,) = events_of(posting_after("put plain", "/buckets/bucket/plain"))
    (nested,) = events_of(posting_after("put nested", "/buckets/bucket/deep/er/a b+c%25\u00e4.jpg"))
    version = next(body for after, body in captured() if after == "v1" and "/v_" in body["key"])

    assert plain.object_etag == b"841a2d689ad86bd1611447453c22c6fc"
    assert (plain.user_identity, plain.event_time) == (b"dev", Time(1795791854, 0))
    assert plain.metadata == ((b"x-amz-meta-class", b"hot"),)
    assert nested.tags == ((b"a", b"b"), (b"project", b"remora"))
    assert events_of(version)[0].object_version_id == b"671410cf6ff358b53dccb2f4d8b33a2e"


@pytest.mark.parametrize("event_type", ["rename", "update", "create", "", None])
def test_the_event_type_is_not_read(event_type: str | None) -> None:
    """An overwritten file is a creation also where a release calls it renamed, or says nothing."""
    posting = posting_after("overwrite plain", "/buckets/bucket/plain") | {"event_type": event_type}

    assert [event.event_name for event in events_of(posting)] == [b"ObjectCreated:Put"]


def test_a_file_moved_out_of_a_bucket_or_into_one() -> None:
    """A file that leaves all buckets is removed, and one that comes from elsewhere is created."""
    posting = posting_after("vdelete", "/buckets/bucket/copied")
    out, into = copy.deepcopy(posting), copy.deepcopy(posting)
    out["message"]["new_parent_path"] = "/"
    into["key"] = "/elsewhere/copied"

    assert [event.event_name for event in events_of(out)] == [b"ObjectRemoved:Delete"]
    assert [(event.event_name, event.object_key) for event in events_of(into)] == [(b"ObjectCreated:Put", b"renamed")]


def test_only_a_version_lies_where_versions_lie() -> None:
    """An object whose name looks like that of a version keeps it where SeaweedFS knows no version of it."""
    posting = posting_after("put plain", "/buckets/bucket/plain")
    posting["key"] = "/buckets/bucket/a.versions/v_0f"

    assert events_of(posting)[0].object_key == b"a.versions/v_0f"


def test_all_tags_removed() -> None:
    """An object that loses its tags has an event of its own."""
    posting = posting_after("tag", "/buckets/bucket/plain")
    message = posting["message"]
    message["old_entry"], message["new_entry"] = message["new_entry"], message["old_entry"]

    assert [event.event_name for event in events_of(posting)] == [b"ObjectTagging:Delete"]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"{}", b'{"key":1,"message":{}}', b'{"key":"k"}', b'{"key":"k","message":[]}',
             b'{"key":"/buckets/b/k","message":{"new_entry":{"extended":{"a":"no base64!"}}}}', b'{"key":"\xff"}',
             b'{"key":"/buckets/b/k","message":{},"\xff":1}', b'{"key":"k","message":{},"\xed\xa0\x80":"\xff"}'],
)  # fmt: skip
def test_what_seaweedfs_does_not_post_is_refused(body: bytes) -> None:
    """A body of another form is refused with a reason, and never taken for one about no object."""
    with pytest.raises(MalformedEvent):
        records_of(body)


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
entries = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "name": texts, "is_directory": st.booleans(), "chunks": st.lists(st.just({"size": 1}), max_size=2),
        "attributes": st.fixed_dictionaries(
            {}, optional={"file_size": st.integers(0, 2**63), "mtime": st.integers(-5, 2**40)}
        ),
        "extended": st.dictionaries(
            st.sampled_from(["X-Amz-Meta-A", "x-amz-meta-a", "X-Amz-Tagging-", "Seaweed-X-Amz-Version-Id"]),
            st.sampled_from(["", "aA==", "/w=="]),
        ),
    },
)  # fmt: skip


@given(st.sampled_from(["/", "/buckets/", "/buckets/b", "/buckets/b/"]), texts, entries, entries, texts)
def test_anything_of_this_form_is_answered(
    before: str, name: str, old: dict[str, Any] | None, new: dict[str, Any] | None, folder: str
) -> None:
    """Whatever the members are, there are records that can be stored, or a refusal, or nothing."""
    message = {"old_entry": old, "new_entry": new, "new_parent_path": folder}
    try:
        found = events_of({"key": before + name, "message": message})
    except MalformedEvent:
        return
    assert len(found) <= 2
