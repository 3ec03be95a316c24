"""Copies of an event for topics: like the entry that the topic's own way makes, with the notification's id."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.codec.event_copies import NO_TARGET, copier, original_of
from remora.codec.event_entry import decode
from remora.codec.s3_events import place
from remora.codec.trace_context import context_of, parse
from remora.model.entry import Time
from remora.model.notification import Happening
from remora.model.shard import Origin
from remora.model.topic import Target, Topic

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


def topic_of(**changes: Any) -> Topic:
    return replace(Topic("t", "", "t", Target("kafka://b:9093", "a=b", "t-events"), origin=Origin.REMORA), **changes)


@pytest.mark.parametrize("changes", [
    {}, {"opaque_data": b"of the topic"}, {"time_to_live_s": 60, "max_retries": 0, "retry_sleep_s": 7},
])  # fmt: skip
def test_like_an_entry_of_the_topic(changes: dict[str, Any]) -> None:
    """But for the configuration's id a copy is byte for byte what the topic's own way makes of the record."""
    topic = topic_of(**changes)
    body = SAMPLE

    copy = copier(topic, CREATED)(original_of(entry_for(NO_TARGET, body), with_pairs=True), b"thumbnails")

    own = decode(entry_for(topic, body))
    assert decode(copy) == replace(own, event=replace(own.event, configuration_id=b"thumbnails"))
    same = copier(topic, CREATED)(original_of(entry_for(NO_TARGET, body), with_pairs=True), own.event.configuration_id)
    assert same == entry_for(topic, body)


def test_what_is_asked_of_an_event() -> None:
    """What notifications ask of an event is what its entry has."""
    body = SAMPLE
    event = decode(entry_for(NO_TARGET, body)).event

    found = original_of(entry_for(NO_TARGET, body), with_pairs=True).happening

    assert found == Happening(
        event.bucket_name, event.event_name, event.object_key, event.object_size, event.metadata, event.tags
    )
    assert event.metadata
    bare = original_of(entry_for(NO_TARGET, body), with_pairs=False).happening
    assert bare == found._replace(metadata=(), tags=())


def test_the_trace_context_stands_behind_each_copy() -> None:
    """A copy has the context of its request where readers of entries look for it."""
    original = original_of(entry_for(NO_TARGET, SAMPLE), with_pairs=False)

    assert context_of(copier(topic_of(), CREATED, CONTEXT)(original, b"n")) == CONTEXT


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

    copy = copier(topic, CREATED)(original_of(entry_for(NO_TARGET, body), with_pairs=True), b"its own")

    assert copy == entry_for(topic, body)
