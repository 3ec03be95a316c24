"""Which notifications an event matches: S3's and radosgw's rules, and the compiled matcher beside a plain one."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.model.notification import EventFilter, ExpectedEvent, Happening, Notification
from remora.policy.ingest.matcher import (
    NAMES,
    WILDCARDS,
    Matcher,
    fits_bucket,
    is_known,
    may_both_fit,
    nearest,
    takes_bucket,
)

PUT = Happening(b"photos", b"ObjectCreated:Put", b"2026/cat.jpg", 7)
ALL = Notification("n", ("t",))


def matches(notification: Notification, event: Happening) -> bool:
    return list(Matcher([notification]).matching(event)) == [0]


@pytest.mark.parametrize(("asked", "name", "expected"), [
    ("s3:ObjectCreated:*", "ObjectCreated:Put", True),
    ("ObjectCreated:*", "s3:ObjectCreated:CompleteMultipartUpload", True),
    ("s3:ObjectCreated:Put", "s3:ObjectCreated:Put", True),
    ("s3:ObjectCreated:Put", "ObjectCreated:PutTagging", False),
    ("s3:ObjectCreated:*", "ObjectRemoved:Delete", False),
    ("s3:ObjectLifecycle:Expiration:*", "ObjectLifecycle:Expiration:Current", True),
    ("s3:ObjectLifecycle:Expiration:*", "ObjectLifecycle:Transition:Current", False),
    ("s3:*", "SomethingNew:Of:Tomorrow", True),
    ("s3:ObjectLifecycle:Expiration:NonCurrent", "ObjectLifecycle:Expiration:Noncurrent", True),
    ("s3:ObjectLifecycle:Transition:Noncurrent", "ObjectLifecycle:Transition:NonCurrent", True),
    ("s3:ObjectLifecycle:Expiration:AbortMultipartUpload", "ObjectLifecycle:Expiration:AbortMPU", True),
    ("s3:ObjectLifecycle:Expiration:AbortMPU", "ObjectLifecycle:Expiration:AbortMPU", True),
    ("s3:ObjectLifecycle:Expiration:AbortMPU", "ObjectLifecycle:Expiration:Noncurrent", False),
])  # fmt: skip
def test_events_by_name_and_wildcard(asked: str, name: str, expected: bool) -> None:
    """A name stands for itself, and for the other one that radosgw has for such events, and a wildcard for all names
    that go on behind it; `s3:` makes no difference."""
    assert is_known(asked)
    assert matches(replace(ALL, events=(asked,)), PUT._replace(name=name.encode())) is expected


@pytest.mark.parametrize(("given", "expected"), [
    (EventFilter(), True),
    (EventFilter(prefix="2026/"), True),
    (EventFilter(prefix="2026/cat.jpg.too-long"), False),
    (EventFilter(suffix=".jpg"), True),
    (EventFilter(suffix=".png"), False),
    (EventFilter(prefix="2026/", suffix=".png"), False),
    (EventFilter(regex="[0-9]+/[a-z]+\\.jpg"), True),
    (EventFilter(regex="[0-9]+/"), False),  # radosgw compares the whole key
    (EventFilter(size_min=7, size_max=7), True),
    (EventFilter(size_min=8), False),
    (EventFilter(size_max=6), False),
    (EventFilter(metadata=(("x-amz-meta-class", "hot"),)), True),
    (EventFilter(metadata=(("X-Amz-Meta-Class", "hot"),)), True),
    (EventFilter(metadata=(("x-amz-meta-class", "Hot"),)), False),
    (EventFilter(metadata=(("x-amz-meta-class", "hot"), ("x-amz-meta-b", "1"))), False),
    (EventFilter(tags=(("project", "remora"),)), True),
    (EventFilter(tags=(("project", "other"),)), True),  # one of several values of a tag, as in radosgw
    (EventFilter(tags=(("Project", "remora"),)), False),
])  # fmt: skip
def test_filters(given: EventFilter, expected: bool) -> None:
    """All rules that a filter has must match; pairs of the object that it does not name change nothing."""
    event = PUT._replace(
        metadata=((b"x-amz-meta-class", b"hot"), (b"x-amz-meta-a", b"1")),
        tags=((b"project", b"other"), (b"project", b"remora"), (b"more", b"")),
    )

    assert matches(replace(ALL, filter=given), event) is expected


@pytest.mark.parametrize(("name", "size", "expected"), [
    ("ObjectCreated:Put", 0, False), ("ObjectRemoved:Delete", 0, True), ("ObjectRemoved:Delete", 3, False),
])  # fmt: skip
def test_size_counts_for_events_that_have_one(name: str, size: int, expected: bool) -> None:
    """A least size keeps an empty object out, and no removal whose record has no size."""
    given = replace(ALL, filter=EventFilter(size_min=4))

    assert matches(given, PUT._replace(name=name.encode(), size=size)) is expected


def test_keys_are_bytes() -> None:
    """Prefix, suffix and regular expression compare a key's bytes, whether they are text or not."""
    event = PUT._replace(key="é/".encode() + b"\xff.jpg")

    assert matches(replace(ALL, filter=EventFilter(prefix="é/", suffix=".jpg", regex="é/.\\.jpg")), event)


def test_a_regular_expression_takes_linear_time() -> None:
    """An expression that other engines need exponential time for is tried on the longest key at once."""
    given = replace(ALL, filter=EventFilter(regex="(a*)*(a*)*(a|aa)+b"))

    assert not matches(given, PUT._replace(key=b"a" * 1024))


@given(st.text("ab*", max_size=7), st.text("ab", max_size=8))
def test_buckets_by_pattern(pattern: str, bucket: str) -> None:
    """A pattern of a bucket's name means what the same pattern means to a shell."""
    assert fits_bucket(pattern, bucket) is (re.fullmatch(fnmatch.translate(pattern), bucket) is not None)


@given(st.text("ab*", max_size=5), st.text("ab*", max_size=5), st.text("ab", max_size=6))
def test_patterns_with_a_bucket_in_common(one: str, other: str, bucket: str) -> None:
    """Two patterns that a bucket fits are said to have one in common."""
    if fits_bucket(one, bucket) and fits_bucket(other, bucket):
        assert may_both_fit(one, other)


def test_patterns_without_a_bucket_in_common() -> None:
    """Patterns are said to have no bucket in common where their ends, or their beginnings, differ."""
    assert not any(may_both_fit(*pair) for pair in (("a*", "b*"), ("*a", "*b"), ("raw", "raw-*"), ("a", "")))


texts = st.text("ab/", max_size=3)
pairs = st.lists(st.tuples(st.sampled_from(["x-amz-meta-a", "b"]), texts), max_size=2, unique_by=lambda pair: pair[0])
filters = st.builds(
    EventFilter,
    prefix=texts,
    suffix=texts,
    regex=st.sampled_from(["", "", "a.*", ".*b", "[ab]*/?"]),
    size_min=st.none() | st.integers(0, 3),
    size_max=st.none() | st.integers(0, 3),
    metadata=pairs.map(tuple),
    tags=pairs.map(tuple),
)
definitions = st.lists(
    st.builds(
        Notification,
        id=st.just("n"),
        topics=st.just(("t",)),
        buckets=st.lists(st.sampled_from(["a", "b", "a*", "*b", "*"]), max_size=2).map(tuple),
        events=st.lists(st.sampled_from(["s3:ObjectCreated:*", "ObjectRemoved:Delete"]), max_size=2).map(tuple),
        filter=filters,
    ),
    max_size=6,
)
events = st.builds(
    Happening,
    bucket=st.sampled_from([b"a", b"b", b"ab"]),
    name=st.sampled_from([b"ObjectCreated:Put", b"s3:ObjectRemoved:Delete"]),
    key=texts.map(str.encode),
    size=st.integers(0, 4),
    metadata=pairs.map(lambda found: tuple((a.encode(), b.encode()) for a, b in found)),
    tags=pairs.map(lambda found: tuple((a.encode(), b.encode()) for a, b in found)),
)


def plainly(each: Notification, event: Happening) -> bool:
    """The rules as the documentation says them, one after the other."""
    key, of = event.key.decode(), each.filter
    sized = event.size or b"Created" in event.name
    return bool(
        (not each.buckets or any(fnmatch.fnmatchcase(event.bucket.decode(), one) for one in each.buckets))
        and (not each.events or any(one.removeprefix("s3:").strip("*") in event.name.decode() for one in each.events))
        and key.startswith(of.prefix)
        and key.endswith(of.suffix)
        and (not of.regex or re.fullmatch(of.regex, key))
        and (of.size_min is None or not sized or event.size >= of.size_min)
        and (of.size_max is None or not sized or event.size <= of.size_max)
        and {(a.encode(), b.encode()) for a, b in of.metadata} <= set(event.metadata)
        and {(a.encode(), b.encode()) for a, b in of.tags} <= set(event.tags)
    )


@given(definitions, st.lists(events, max_size=4))
def test_like_a_plain_matcher(notifications: list[Notification], happened: list[Happening]) -> None:
    """The compiled matcher finds what the plain rules find, in the notifications' order, and says what they refuse."""
    matcher = Matcher(notifications)

    for event in happened:
        expected = [place for place, each in enumerate(notifications) if plainly(each, event)]
        assert list(matcher.matching(event)) == expected
        assert [place for place, rule in enumerate(matcher.refusals(event)) if not rule] == expected


@given(definitions, events, st.sets(st.sampled_from(["name", "size", "metadata", "tags"])))
def test_what_an_event_to_come_may_match(notifications: list[Notification], event: Happening, known: set[str]) -> None:
    """An event to come may match what it matches in the end, whatever is known of it before; where all is known it
    matches just that."""
    matcher = Matcher(notifications)
    expected = ExpectedEvent(event.bucket, event.key, **{part: getattr(event, part) for part in known})

    bucket = event.bucket.decode(errors="surrogateescape")
    takers = [place for place, each in enumerate(notifications) if takes_bucket(each, bucket)]
    assert matcher.takers(bucket) == takers
    possible = matcher.possible(expected, takers)

    assert set(matcher.matching(event)) <= set(possible)
    if len(known) == 4:
        assert possible == list(matcher.matching(event))
    if not known:
        blind = [replace(each, events=(), filter=_of_keys(each.filter)) for each in notifications]
        assert possible == list(Matcher(blind).matching(event))


def _of_keys(of: EventFilter) -> EventFilter:
    return EventFilter(of.prefix, of.suffix, of.regex)


def test_the_first_rule_that_refuses_is_named() -> None:
    """For each notification that an event does not match the rule is named that it does not keep."""
    matcher = Matcher([
        replace(ALL, buckets=("raw-*",)),
        replace(ALL, events=("ObjectRemoved:*",)),
        replace(ALL, filter=EventFilter(prefix="2025/")),
        replace(ALL, filter=EventFilter(suffix=".png", regex="x")),
        ALL,
    ])  # fmt: skip

    assert matcher.refusals(PUT) == ["buckets", "events", "prefix", "suffix", ""]


def test_every_name_is_known_and_its_wildcards() -> None:
    """All names are known with and without `s3:`, and a name that is none has the nearest for a hint."""
    assert all(map(is_known, (*NAMES, *WILDCARDS, *(f"s3:{name}" for name in NAMES))))
    assert not is_known("s3:ObjectCreated")
    assert not is_known("s3:ObjectCreated:Putt")
    assert nearest("objectcreated:putt") == "s3:ObjectCreated:Put"
    assert nearest("s3:ObjectCreated:**") == "s3:ObjectCreated:*"
