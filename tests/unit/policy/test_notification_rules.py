"""What a notification may be, and which two send an event twice."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from remora.model.notification import EventFilter, Happening, Notification
from remora.policy.ingest.matcher import Matcher
from remora.policy.ingest.notification_rules import overlaps, refusals, too_many, unknown_topics

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
    ({"filter": EventFilter(size_min=5, size_max=4)}, "filter.size_max", "no size can match"),
    ({"filter": EventFilter(metadata=(("", "x"),))}, "filter.metadata", "a name is empty"),
    ({"filter": EventFilter(tags=(("", "x"),))}, "filter.tags", "a name is empty"),
    ({"filter": EventFilter(metadata=(("A", "1"), ("a", "2")))}, "filter.metadata", "a stands twice"),
    ({"filter": EventFilter(prefix="é" * 513)}, "filter.prefix", "more than 1024 bytes"),
    ({"filter": EventFilter(suffix="a" * 1025)}, "filter.suffix", "more than 1024 bytes"),
    ({"filter": EventFilter(prefix="\udcff")}, "filter.prefix", "is not UTF-8"),
    ({"filter": EventFilter(regex="\udcff")}, "filter.regex", "is not UTF-8"),
    ({"filter": EventFilter(tags=(("a", "\udcff"),))}, "filter.tags", "is not UTF-8"),
])  # fmt: skip
def test_refused(changes: dict[str, object], key: str, why: str) -> None:
    """What is wrong with a notification is named with its key and the reason, and nothing else is."""
    (found,) = refusals(replace(FINE, **changes))  # type: ignore[arg-type]  # of a table of the test

    assert (found.key, why in found.why) == (key, True), found


def test_fine() -> None:
    """Nothing is wrong with the notification of the documentation, where its topics are known, nor with ends as long as
    a key."""
    assert not list(refusals(FINE))
    assert not list(refusals(replace(FINE, filter=EventFilter("é" * 512, "a" * 1024))))
    assert not list(unknown_topics(FINE, {"thumbs", "audit"}))
    assert [each.why for each in unknown_topics(FINE, {"thumbs"})] == ["there is no topic 'audit' of remora's own"]
    assert not too_many(1000)
    assert too_many(1001) == "1001 notifications are more than 1000"


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, True),
    ({"topics": ("other",)}, False),
    ({"buckets": ("*",)}, True),
    ({"buckets": ("films",)}, False),
    ({"buckets": ("films", "ph*s")}, True),
    ({"buckets": ("films", "photos")}, True),
    ({"buckets": ("films", "p*x")}, False),
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


@pytest.mark.parametrize(("events", "expected"), [
    ((), True),
    (("*",), True),
    (("s3:ObjectRemoved:Delete", "s3:ObjectCreated:*"), True),
    (("s3:ObjectCreated:*",), False),
    (("s3:ObjectCreated:Put", "s3:ObjectCreated:Copy"), False),
])  # fmt: skip
def test_sizes_that_exclude_each_other(events: tuple[str, ...], expected: bool) -> None:
    """They do so for created objects alone: an event without a size matches both notifications."""
    small, large = EventFilter(size_max=10), EventFilter(size_min=20)
    pair = [Notification("small", ("t",), filter=small), Notification("large", ("t",), (), events, large)]
    removed = Happening(b"photos", b"ObjectRemoved:Delete", b"cat.jpg")

    assert bool(list(overlaps(pair))) is expected
    assert (list(Matcher(pair).matching(removed)) == [0, 1]) is expected


@pytest.mark.parametrize("pattern", ["{:0200d}", "{:0200d}-*", "*-{:0200d}"])
def test_many_notifications_are_compared_at_once(pattern: str) -> None:
    """Buckets that differ where no `*` stands are told apart without a look at each pair of their characters."""
    many = [Notification(f"n{at}", ("t",), (pattern.format(at),)) for at in range(100)]
    began = time.process_time()

    assert not list(overlaps(many))
    assert time.process_time() - began < 5


def test_notifications_of_many_buckets_are_compared_at_once() -> None:
    """Names of buckets are not compared pair by pair: a hundred notifications of a hundred buckets take no time."""
    many = [Notification(f"n{at}", ("t",), tuple(f"{at}-{bucket}" for bucket in range(100))) for at in range(100)]
    began = time.process_time()

    assert not list(overlaps(many))
    assert time.process_time() - began < 5


def test_the_overlaps_of_one() -> None:
    """Only pairs with the notification that is asked for are remarked on."""
    three = [Notification(name, ("t",)) for name in ("a", "b", "c")]

    assert [each.split(" overlap")[0] for each in overlaps(three, "b")] == [
        "notifications a and b", "notifications b and c",
    ]  # fmt: skip
