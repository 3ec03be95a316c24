"""The body of a record equals radosgw's, byte for byte."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.codec import rendering_plain
from remora.codec.event_entry import decode
from remora.model.entry import EventEntry, Time
from unit.codec.samples import MINIMAL, entries, real_pairs, with_event


@pytest.mark.guarantee("radosgws-bytes")
def test_bodies_equal_those_that_radosgw_posted() -> None:
    """Every captured entry gives the very bytes that the radosgw which wrote it sent to its endpoint."""
    pairs = real_pairs()

    assert len(pairs) >= 36
    for pair in pairs:
        assert rendering_plain.body(decode(pair.entry)) == pair.body


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (b'"', rb"\""),
        (b"\\", rb"\\"),
        (b"\t", rb"\t"),
        (b"\n", rb"\n"),
        (b"\r", rb"\u000d"),
        (b"\b", rb"\u0008"),
        (b"\f", rb"\u000c"),
        (b"\0", rb"\u0000"),
        (b"\x1b", rb"\u001b"),
        (b"\x1f", rb"\u001f"),
        (b"\x7f", rb"\u007f"),
        (b"/<&>' ~", b"/<&>' ~"),
        ("é日😀\u2028".encode(), "é日😀\u2028".encode()),
        (b"\x80\xff\xfe", b"\x80\xff\xfe"),
    ],
)
def test_strings_are_escaped_as_radosgw_escapes_them(text: bytes, written: bytes) -> None:
    """Quotes, backslash, tab and newline have short forms, other control characters do not, the rest stays."""
    assert rendering_plain.escape(b"a" + text + b"z") == b"a" + written + b"z"


@given(st.text())
def test_every_json_reader_understands_the_escapes(text: str) -> None:
    """What is valid text comes back from the body unchanged."""
    entry = with_event(decode(MINIMAL), object_key=text.encode("utf-8", "replace"))

    found = json.loads(rendering_plain.body(entry))

    assert found["Records"][0]["s3"]["object"]["key"] == text.encode("utf-8", "replace").decode()


@pytest.mark.parametrize(
    ("time", "written"),
    [
        (Time(1_795_230_088, 808_357_999), b"2026-11-21T03:01:28.808357Z"),
        (Time(1_700_000_000, 0), b"2023-11-14T22:13:20.000000Z"),
        (Time(2**32 - 1, 999_999_999), b"2106-02-07T06:28:15.999999Z"),
        (Time(315_360_000, 1000), b"1979-12-30T00:00:00.000001Z"),
        (Time(315_359_999, 1999), b"315359999.000001"),
        (Time(0, 0), b"0.000000"),
        (Time(1_700_000_000, 2_500_000_000), b"2023-11-14T22:13:22.500000Z"),
        (Time(2**32 - 1, 1_000_000_000), b"0.000000"),
    ],
)
def test_times_are_written_as_radosgw_writes_them(time: Time, written: bytes) -> None:
    """Microseconds are cut off, the first ten years are seconds, and nanoseconds carry over."""
    assert rendering_plain.time_text(time) == written


def test_an_event_of_version_one_has_empty_places_for_what_came_later() -> None:
    """Bucket id and opaque data are empty strings, metadata and tags empty lists."""
    entry = decode(MINIMAL)
    old = with_event(entry, version=1, bucket_id=b"", metadata=(), tags=(), opaque_data=b"")

    found = json.loads(rendering_plain.body(old))["Records"][0]

    assert (found["s3"]["bucket"]["id"], found["opaqueData"]) == ("", "")
    assert (found["s3"]["object"]["metadata"], found["s3"]["object"]["tags"]) == ([], [])
    assert list(found) == list(json.loads(rendering_plain.body(entry))["Records"][0])


@pytest.mark.parametrize(
    ("version", "opaque", "expected"),
    [
        (3, None, "oq"),
        (3, b"now", "now"),
        (3, b"", ""),
        (4, b"now", "now"),
        (2, b"now", "oq"),
        (1, b"now", "oq"),
        (1, None, "oq"),
    ],
)
def test_opaque_data_follows_the_release_that_wrote_the_entry(version: int, opaque: bytes, expected: str) -> None:
    """Entries from version 3 on take the topic's current value, older ones keep their own."""
    entry = replace(decode(MINIMAL), version=version)

    assert json.loads(rendering_plain.body(entry, opaque))["Records"][0]["opaqueData"] == expected


def test_metadata_and_tags_stand_in_the_order_in_which_radosgw_holds_them() -> None:
    """Keys are sorted by their bytes; of equal metadata keys the last value stays, equal tags all stay."""
    entry = with_event(
        decode(MINIMAL),
        metadata=((b"b", b"1"), ("é".encode(), b"2"), (b"a", b"3"), (b"b", b"4")),
        tags=((b"b", b"2"), (b"a", b"9"), (b"b", b"1")),
    )

    found = json.loads(rendering_plain.body(entry))["Records"][0]["s3"]["object"]

    assert [(p["key"], p["val"]) for p in found["metadata"]] == [("a", "3"), ("b", "4"), ("é", "2")]
    assert [(p["key"], p["val"]) for p in found["tags"]] == [("a", "9"), ("b", "2"), ("b", "1")]


@given(entries)
def test_any_entry_has_one_record_without_spaces_between_its_parts(entry: EventEntry) -> None:
    """A body is always one JSON document, with its members in radosgw's order."""
    found = json.loads(rendering_plain.body(entry).decode("utf-8", "replace"))

    assert list(found) == ["Records"]
    assert list(found["Records"][0])[-2:] == ["eventId", "opaqueData"]
    assert found["Records"][0]["s3"]["object"]["size"] == entry.event.object_size


@pytest.mark.parametrize(
    ("created", "sequencer", "expected"),
    [
        (Time(1_700_000_001, 7), b"00F1536515CD5B07", 1_700_000_001_000_000_007),
        (None, b"00F1536515CD5B07", 1_700_000_000_123_456_789),
        (Time(0, 0), b"00F1536515CD5B07", 1_700_000_000_123_456_789),
        (None, b"00f1536515cd5b07", 1_700_000_000_123_456_789),
        (None, b"00F1536515CD5B0", 1_600_000_000_000_000_005),
        (None, b"00F1536515CD5B0G", 1_600_000_000_000_000_005),
        (None, b"0000000000000000", 1_600_000_000_000_000_005),
        (None, b"", 1_600_000_000_000_000_005),
    ],
)
def test_age_counts_from_the_commit_else_from_the_event_and_never_from_zero(
    created: Time | None, sequencer: bytes, expected: int
) -> None:
    """The entry's creation time comes first, then the sequencer, then the object's time."""
    version = 1 if created is None else 3
    entry = replace(decode(MINIMAL), creation_time=created, version=version)
    entry = with_event(entry, object_sequencer=sequencer, event_time=Time(1_600_000_000, 5))

    assert rendering_plain.created_ns(entry) == expected
