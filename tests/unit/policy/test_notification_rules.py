"""What a notification may be, and which two send an event twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remora.model.notification import EventFilter, Notification
from remora.policy.notification_rules import overlaps, refusals, too_many, unknown_topics

FINE = Notification(
    "thumbnails",
    ("thumbs", "audit"),
    ("photos", "raw-*"),
    ("s3:ObjectCreated:*",),
    EventFilter("2026/", ".jpg", "^[a-z0-9/]+\\.jpg$", 1, None, (("x-amz-meta-class", "hot"),), (("project", "x"),)),
)


@pytest.mark.parametrize(("changes", "key", "why"), [
    ({"id": "a b"}, "id", "letters"),
    ({"topics": ()}, "topics", "expected one topic"),
    ({"topics": ("a.b",)}, "topics", "'a.b' is no name of a topic"),
    ({"topics": ("a", "a")}, "topics", "stands twice"),
    ({"buckets": ("raw-[a-z",)}, "buckets", "only * stands for anything"),
    ({"buckets": ("",)}, "buckets", "expected 1 to 255 bytes"),
    ({"events": ("s3:ObjectCreated:Putt",)}, "events", "did you mean s3:ObjectCreated:Put?"),
    ({"filter": EventFilter(regex="[a-")}, "filter.regex", "missing ]"),
    ({"filter": EventFilter(regex="(a)\\1")}, "filter.regex", "invalid escape sequence"),
    ({"filter": EventFilter(regex="(?=a)")}, "filter.regex", "RE2 does not take it"),
    ({"filter": EventFilter(regex="a" * 1025)}, "filter.regex", "more than 1024 characters"),
    ({"filter": EventFilter(size_min=-1)}, "filter.size_min", "not negative"),
    ({"filter": EventFilter(size_min=5, size_max=4)}, "filter.size_max", "no event can match"),
    ({"filter": EventFilter(metadata=(("", "x"),))}, "filter.metadata", "a name is empty"),
    ({"filter": EventFilter(tags=(("", "x"),))}, "filter.tags", "a name is empty"),
])  # fmt: skip
def test_refused(changes: dict[str, object], key: str, why: str) -> None:
    """What is wrong with a notification is named with its key and the reason, and nothing else is."""
    (found,) = refusals(replace(FINE, **changes))  # type: ignore[arg-type]  # of a table of the test

    assert (found.key, why in found.why) == (key, True), found


def test_fine() -> None:
    """Nothing is wrong with the notification of the documentation, where its topics are known."""
    assert not list(refusals(FINE))
    assert not list(unknown_topics(FINE, {"thumbs", "audit"}))
    assert [each.why for each in unknown_topics(FINE, {"thumbs"})] == ["there is no topic 'audit' of remora's own"]
    assert not too_many(1000)
    assert too_many(1001) == "1001 notifications are more than 1000"


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, True),
    ({"topics": ("other",)}, False),
    ({"buckets": ("*",)}, True),
    ({"buckets": ("films",)}, False),
    ({"events": ("s3:ObjectRemoved:*",)}, False),
    ({"events": ("s3:ObjectCreated:Put",)}, True),
    ({"filter": EventFilter(prefix="2025/")}, False),
    ({"filter": EventFilter(prefix="2026/05/")}, True),
    ({"filter": EventFilter(suffix=".png")}, False),
    ({"filter": EventFilter(size_max=0)}, False),
])  # fmt: skip
def test_overlaps(changes: dict[str, object], expected: bool) -> None:
    """Two notifications with a topic in common are remarked on, unless their plain rules exclude each other."""
    other = replace(FINE, id="other", **changes)  # type: ignore[arg-type]  # of a table of the test

    assert bool(list(overlaps([FINE, other]))) is expected
