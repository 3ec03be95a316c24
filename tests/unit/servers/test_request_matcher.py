"""The notifications that the events of a request match: the compiled way beside the plain one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from remora.codec import event_copies, speedups
from remora.codec.event_copies import NO_TARGET, TopicMatches
from remora.codec.s3_events import Keyed, encode
from remora.model.entry import Time
from remora.model.notification import EventFilter, Happening, Notification
from remora.servers.ingest.matches import RequestMatcher
from unit.policy.test_matcher import definitions, events

pytestmark = pytest.mark.skipif(speedups.MatchFinder is None, reason="nothing was compiled")


def entries_of(happened: Sequence[Happening]) -> list[Keyed]:
    """The events of a request, as they are encoded for no topic."""
    body = "\n".join(json.dumps(_record(each)) for each in happened).encode()
    return [
        event
        for part in encode(body, NO_TARGET, ndjson=True, most=len(happened), created=Time(1, 2), seed=b"seed")
        for event in part.events
    ]


def _record(event: Happening) -> dict[str, Any]:
    metadata, tags = (
        [{"key": name.decode(), "val": value.decode()} for name, value in pairs]
        for pairs in (event.metadata, event.tags)
    )
    found = {"key": event.key.decode(), "size": event.size, "metadata": metadata, "tags": tags}
    return {
        "eventSource": "ceph:s3", "eventName": event.name.decode(),
        "s3": {"bucket": {"name": event.bucket.decode()}, "object": found},
    }  # fmt: skip


def outcome(notifications: Sequence[Notification], found: Sequence[Keyed]) -> object:
    """All that a request's events come to, by the way that `speedups` offers."""
    matcher = RequestMatcher(notifications)
    sent: dict[bytes, set[int]] = {}
    filtered: dict[bytes, bytes] = {}
    by_topic: dict[str, TopicMatches] = {}
    places = matcher.places(found, sent, filtered)
    total = speedups.distribute(found, places, matcher.sends, by_topic)
    return list(map(tuple, places)), sent, filtered, total, by_topic


def agree(notifications: Sequence[Notification], happened: Sequence[Happening]) -> object:
    """Compare both ways, and return what they come to."""
    found = entries_of(happened)
    compiled = outcome(notifications, found)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(speedups, "MatchFinder", None)
        patched.setattr(speedups, "distribute", event_copies.distribute)
        assert compiled == outcome(notifications, found)
    return compiled


keyed = events.map(lambda event: event._replace(key=event.key or b"a"))  # a record has a key


@settings(max_examples=300)
@given(definitions, st.lists(keyed, min_size=1, max_size=6))
@example([Notification("n", ("t",), filter=EventFilter(size_min=1))], [Happening(b"a", b"ObjectRemoved:Delete", b"k")])
def test_generated_requests_come_to_the_same(notifications: list[Notification], happened: list[Happening]) -> None:
    """Places, copies and what is kept of a bucket are the same in both ways."""
    agree(notifications, happened)


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.text("ab", max_size=5), st.text("ab", max_size=5)), max_size=40),
    st.lists(st.text("ab", min_size=1, max_size=9), min_size=1, max_size=8),
)
def test_beginnings_and_ends_of_each_other(affixes: list[tuple[str, str]], keys: list[str]) -> None:
    """Of many prefixes and suffixes, some of which are those of others, the ones are found that a key has."""
    notifications = [
        Notification(f"n{number}", ("t", f"t{number % 3}"), filter=EventFilter(prefix=prefix, suffix=suffix))
        for number, (prefix, suffix) in enumerate(affixes)
    ]
    happened = [Happening(b"b", b"ObjectCreated:Put", key.encode(), 1) for key in keys]

    agree(notifications, happened)


def test_bytes_beyond_ascii_are_in_order() -> None:
    """Prefixes and suffixes of bytes above 127 are found among others."""
    letters = ["", "a", "z", "\u00e4", "\u20ac", "\u20ac\u20ac", "\U0001f41f"]
    notifications = [Notification("p", ("t",), filter=EventFilter(prefix=each)) for each in letters]
    notifications += [Notification("s", ("t",), filter=EventFilter(suffix=each)) for each in letters]
    happened = [
        Happening(b"b", b"ObjectCreated:Put", f"{one}-{other}".encode(), 1) for one in letters for other in letters
    ]

    agree(notifications, happened)


@pytest.mark.parametrize("size", [0, 1, 2**31, 2**63 - 1])
def test_the_largest_sizes(size: int) -> None:
    """Sizes, and rules about them, count over their whole range, also where a rule is beyond it."""
    rules = [EventFilter(size_min=each) for each in (0, 1, size, 2**64, 2**70)]
    rules += [EventFilter(size_max=each) for each in (0, size, 2**64, 2**70)]
    notifications = [Notification("n", ("t",), filter=each) for each in rules]

    agree(
        notifications, [Happening(b"b", name, b"k", size) for name in (b"ObjectCreated:Put", b"ObjectRemoved:Delete")]
    )
