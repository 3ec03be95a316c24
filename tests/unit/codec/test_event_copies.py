"""Copies of an event for topics: like the entry that the topic's own way makes, with the notification's id."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.codec import event_copies, speedups
from remora.codec.event_copies import NO_TARGET, happening_of
from remora.codec.event_entry import decode
from remora.codec.s3_events import behind_event
from remora.codec.trace_context import context_of, parse
from remora.model.entry import Time
from remora.model.notification import Happening
from remora.model.shard import Origin
from remora.model.topic import Target, Topic
from support.placed import place

SAMPLE = json.dumps({"Records": [{
    "eventVersion": "2.2", "eventSource": "aws:s3", "awsRegion": "eu", "eventName": "ObjectCreated:Put",
    "s3": {
        "configurationId": "of its own store", "bucket": {"name": "bkt", "arn": "arn:aws:s3:::bkt"},
        "object": {
            "key": "a%20key", "size": 7, "eTag": "e", "metadata": [{"key": "x-amz-meta-a", "val": "1"}],
            "tags": [{"key": "t", "val": "1"}, {"key": "t", "val": "2"}],
        },
    },
    "opaqueData": "of the event",
}]}).encode()  # fmt: skip

CREATED = Time(1_800_000_000, 5)
CONTEXT = parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


def entry_for(topic: Topic, body: bytes) -> bytes:
    (part,) = place(body, topic, ndjson=False, most=1, created=CREATED, seed=b"seed")
    return part.events[0].payload


def copy_of(entry: bytes, topic: Topic, notification: bytes, context: bytes = b"") -> bytes:
    """The copy as this installation makes it, which the plain way makes, too."""
    given = ([entry], [notification], topic.opaque_data or b"", behind_event(topic, CREATED), context)
    (found,) = speedups.copies(*given)
    assert event_copies.copies(*given) == [found]
    return found


def topic_of(**changes: Any) -> Topic:
    return replace(Topic("t", "", "t", Target("kafka://b:9093", "a=b", "t-events"), origin=Origin.REMORA), **changes)


@pytest.mark.parametrize("changes", [
    {}, {"opaque_data": b"of the topic"}, {"time_to_live_s": 60, "max_retries": 0, "retry_sleep_s": 7},
])  # fmt: skip
def test_like_an_entry_of_the_topic(changes: dict[str, Any]) -> None:
    """But for the configuration's id a copy is byte for byte what the topic's own way makes of the record."""
    topic = topic_of(**changes)
    body = SAMPLE

    copy = copy_of(entry_for(NO_TARGET, body), topic, b"thumbnails")

    own = decode(entry_for(topic, body))
    assert decode(copy) == replace(own, event=replace(own.event, configuration_id=b"thumbnails"))
    same = copy_of(entry_for(NO_TARGET, body), topic, own.event.configuration_id)
    assert same == entry_for(topic, body)


def test_what_is_asked_of_an_event() -> None:
    """What notifications ask of an event is what its entry has."""
    body = SAMPLE
    event = decode(entry_for(NO_TARGET, body)).event

    found = happening_of(entry_for(NO_TARGET, body))

    assert found == Happening(
        event.bucket_name, event.event_name, event.object_key, event.object_size, event.metadata, event.tags
    )
    assert event.metadata


def test_the_trace_context_stands_behind_each_copy() -> None:
    """A copy has the context of its request where readers of entries look for it."""
    assert context_of(copy_of(entry_for(NO_TARGET, SAMPLE), topic_of(), b"n", CONTEXT)) == CONTEXT


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)


@given(texts, texts, st.integers(0, 2**63 - 1), st.dictionaries(texts, texts, max_size=3), texts)
def test_any_record(key: str, region: str, size: int, metadata: dict[str, str], opaque: str) -> None:
    """A copy of any record differs from the topic's own entry in the configuration's id alone."""
    record = {
        "eventSource": "ceph:s3", "eventName": "ObjectCreated:Put", "awsRegion": region, "opaqueData": opaque,
        "s3": {
            "configurationId": "its own", "bucket": {"name": "b"},
            "object": {
                "key": key or "k", "size": size, "metadata": [{"key": a, "val": b} for a, b in metadata.items()],
            },
        },
    }  # fmt: skip
    body = json.dumps({"Records": [record]}).encode()
    topic = topic_of()

    assert copy_of(entry_for(NO_TARGET, body), topic, b"its own") == entry_for(topic, body)


@pytest.mark.skipif(speedups.IMPLEMENTATION != "compiled", reason="nothing was compiled")
def test_no_entry_is_read_beyond_its_end() -> None:
    """An entry that ends early, or whose lengths are too large, is refused by the compiled way."""
    entry, sizes = entry_for(NO_TARGET, SAMPLE), (b"\xff\xff\xff\xff", b"\x00\x00\x00\x80")
    damaged = [entry[:end] for end in range(len(entry) - len(behind_event(NO_TARGET, CREATED)))]
    damaged += [entry[:12] + size + entry[16:] for size in sizes]

    for each in damaged:
        with pytest.raises(ValueError, match="no entry"):
            speedups.copies([each], [b"n"], b"", b"", b"")
