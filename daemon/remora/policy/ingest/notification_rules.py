"""What a notification may be: each thing that is wrong with one, the pairs that send an event twice to a topic, and
whether one may be replaced, or a topic removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from remora.model.errors import NotificationRefused, TopicNamed
from remora.model.notification import MOST_NOTIFICATIONS, NOTIFICATION_ID, Definitions, EventFilter, Notification
from remora.model.topic import NAME
from remora.policy.ingest.matcher import (
    MOST_PATTERN,
    is_known,
    may_both_fit,
    may_lack_size,
    nearest,
    plain,
    regex_matcher,
    stands_for,
)

MOST_BUCKET = 255
MOST_KEY = 1024
"""Bytes of a bucket's name, and of a key."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What is wrong with a notification: the rule's key in its table, and why."""

    key: str
    why: str


def refusals(notification: Notification) -> Iterator[Refusal]:
    """Everything that is wrong with a notification, whatever topics there are."""
    if not NOTIFICATION_ID.fullmatch(notification.id):
        yield Refusal("id", "expected 1 to 200 letters, digits, '-' and '_'")
    yield from _of_topics(notification.topics)
    for pattern in notification.buckets:
        if not pattern or len(pattern.encode(errors="replace")) > MOST_BUCKET:
            yield Refusal("buckets", f"expected 1 to {MOST_BUCKET} bytes in a pattern")
        elif wrong := next((char for char in pattern if char in "[]?\\" or not char.isprintable()), ""):
            yield Refusal("buckets", f"{pattern!r} has {wrong!r}: only * stands for anything in a bucket's name")
    for name in notification.events:
        if not is_known(name):
            yield Refusal("events", f"there is no event {name!r}; did you mean {nearest(name)}?")
    yield from _of_filter(notification.filter)


def unknown_topics(notification: Notification, known: Collection[str]) -> Iterator[Refusal]:
    """Each topic of a notification that there is not."""
    for topic in notification.topics:
        if topic not in known:
            yield Refusal("topics", f"there is no topic {topic!r} of remora's own")


def too_many(count: int) -> str:
    """Why so many notifications are refused; empty where they are not."""
    return f"{count} notifications are more than {MOST_NOTIFICATIONS}" if count > MOST_NOTIFICATIONS else ""


def _of_topics(topics: Sequence[str]) -> Iterator[Refusal]:
    if not topics:
        yield Refusal("topics", "expected one topic or more")
    for topic in topics:
        if not NAME.fullmatch(topic):
            yield Refusal("topics", f"{topic!r} is no name of a topic: 1 to 200 letters, digits, '-' and '_'")
    if len(set(topics)) < len(topics):
        yield Refusal("topics", "a topic stands twice")


def _of_filter(given: EventFilter) -> Iterator[Refusal]:
    if name := _not_unicode(given):
        yield Refusal(f"filter.{name}", "is not UTF-8")
        return
    yield from _of_texts(given)
    for name, size in (("size_min", given.size_min), ("size_max", given.size_max)):
        if size is not None and size < 0:
            yield Refusal(f"filter.{name}", "a size is not negative")
    if given.size_min is not None and given.size_max is not None and 0 <= given.size_max < given.size_min:
        yield Refusal("filter.size_max", "is below size_min, so that no size can match")
    if len(given.regex) > MOST_PATTERN:
        yield Refusal("filter.regex", f"has more than {MOST_PATTERN} characters")
    elif given.regex:
        try:
            regex_matcher(given.regex)
        except ValueError as exc:
            yield Refusal("filter.regex", f"RE2 does not take it: {exc}")


def _of_texts(given: EventFilter) -> Iterator[Refusal]:
    for name, text in (("prefix", given.prefix), ("suffix", given.suffix)):
        if len(text.encode()) > MOST_KEY:
            yield Refusal(f"filter.{name}", f"has more than {MOST_KEY} bytes, as no key has")
    for name, pairs in (("metadata", given.metadata), ("tags", given.tags)):
        if any(not key for key, _ in pairs):
            yield Refusal(f"filter.{name}", "a name is empty")
    names = [name.lower() for name, _ in given.metadata]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        yield Refusal("filter.metadata", f"{twice} stands twice, since these names count in any case")


def _not_unicode(given: EventFilter) -> str:
    """The first rule that cannot be stored: what is not UTF-8 in an argument came as halves of surrogate pairs."""
    ends = (("prefix", given.prefix), ("suffix", given.suffix), ("regex", given.regex))
    pairs = [(name, text) for name in ("metadata", "tags") for pair in getattr(given, name) for text in pair]
    for name, text in (*ends, *pairs):
        try:
            text.encode()
        except UnicodeEncodeError:
            return name
    return ""


def overlaps(notifications: Sequence[Notification], of: str = "") -> Iterator[str]:
    """A remark for each pair that may send one event twice to a topic; with `of` for pairs with that notification only.
    What a regular expression, metadata or tags rule out is not looked at."""
    for one, other in combinations(notifications, 2):
        if of and of not in (one.id, other.id):
            continue
        shared = [topic for topic in one.topics if topic in other.topics]
        if shared and _may_overlap(one, other):
            yield (
                f"notifications {one.id} and {other.id} overlap: an event that matches both is sent twice to"
                f" {', '.join(shared)}"
            )


def _may_overlap(one: Notification, other: Notification) -> bool:
    """Whether buckets, names and plain rules leave an event for both."""
    events = [(plain(a), plain(b)) for a in one.events or ("*",) for b in other.events or ("*",)]
    names = [b if stands_for(a, b) else a for a, b in events if stands_for(a, b) or stands_for(b, a)]
    if not any(_filters_may_overlap(one.filter, other.filter, name) for name in names):
        return False
    return _share_a_bucket(one.buckets or ("*",), other.buckets or ("*",))


def _share_a_bucket(some: Sequence[str], others: Sequence[str]) -> bool:
    """Whether some bucket's name fits a pattern of each. Names alone are not compared pair by pair: there may be
    hundreds in each of a thousand notifications."""
    if not set(some).isdisjoint(others):
        return True
    stars, other_stars = ([each for each in patterns if "*" in each] for patterns in (some, others))
    return any(may_both_fit(a, b) for a in stars for b in others) or any(
        may_both_fit(a, b) for a in some for b in other_stars
    )


def _filters_may_overlap(one: EventFilter, other: EventFilter, name: str) -> bool:
    for low, high in ((one.size_min, other.size_max), (other.size_min, one.size_max)):
        if low is not None and high is not None and low > high and not may_lack_size(name):
            return False
    if not (one.prefix.startswith(other.prefix) or other.prefix.startswith(one.prefix)):
        return False
    return one.suffix.endswith(other.suffix) or other.suffix.endswith(one.suffix)


def check_replacement(name: str, now: Notification | None, before: Notification | None, count: int) -> None:
    """Raise NotificationRefused where it is not as `before` says, or where a new one is one too many beside `count`."""
    if now != before:
        if now is None:
            raise NotificationRefused(f"there is no notification {name}")
        raise NotificationRefused(f"notification {name} {'was changed meanwhile' if before else 'is there already'}")
    if before is None and count >= MOST_NOTIFICATIONS:
        raise NotificationRefused(f"there are {MOST_NOTIFICATIONS} notifications, and no more are possible")


def check_topics(notification: Notification, known: Collection[str]) -> None:
    """Raise NotificationRefused, with each of its topics that there is not."""
    if unknown := [each.why for each in unknown_topics(notification, known)]:
        raise NotificationRefused(f"notification {notification.id}: {'; '.join(unknown)}")


def check_removal(topic: str, definitions: Definitions) -> None:
    """Raise TopicNamed, with all their ids, where notifications send to a topic that is to be removed."""
    if named := definitions.naming(topic):
        raise TopicNamed(
            f"topic {topic} stays: notifications send to it ({', '.join(named)}); `remora notification rm` removes one"
        )
