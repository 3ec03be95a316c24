"""Which notifications an event matches, and the names of events that they may ask for.

The rules of buckets and event names are settled once for each pair of the two that comes, and kept. What is left of a
pair is a table by the keys' beginnings, so that a hundred notifications that differ in their prefix cost an event as
many lookups as there are lengths of prefixes; the rules beside a prefix are tried for those alone that it leaves.

`candidates` has what is left of a pair for `_event_copies.pyx`, which does the same for a whole request.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

from remora.model.notification import EventFilter, ExpectedEvent, Happening, Notification

_MOST_PAIRS = 4096

Rule = Callable[[Happening], bool]
"""Whether an event is as one rule of a filter says."""

NONE: Sequence[int] = ()
"""What an event matches that no notification takes."""

_ASKED = {"size_min": "size", "size_max": "size", "metadata": "metadata", "tags": "tags"}
"""The part of an event that a rule asks for, where that may be unknown of one to come."""

_IN_PYTHON = ("metadata", "tags", "regex")
"""The rules that are tried in Python wherever the others are."""

_MOST_SIZE = 2**64 - 1

MOST_PATTERN = 1024
"""Characters of a regular expression, which is the most that a key may have."""

PREFIX = "s3:"

_KINDS = MappingProxyType({
    "ObjectCreated:": (
        "Put", "Post", "Copy",
        "CompleteMultipartUpload", "PutRetention", "PutLegalHold",
        "PutTagging", "DeleteTagging",
    ),
    "ObjectRemoved:": ("Delete", "DeleteMarkerCreated", "NoOP", "DeleteAllVersions"),
    "ObjectAccessed:": ("Get", "Head", "GetRetention", "GetLegalHold", "Attributes"),
    "ObjectRestore:": ("Post", "Completed", "Delete"),
    "ObjectTransition:": ("Failed", "Complete"),
    "ObjectTagging:": ("Put", "Delete"),
    "ObjectAcl:": ("Put",),
    "ObjectLifecycle:Expiration:": ("Current", "Noncurrent", "DeleteMarker", "AbortMPU"),
    "ObjectLifecycle:Transition:": ("Current", "Noncurrent"),
    "ObjectSynced:": ("Create", "Delete", "DeletionMarkerCreated"),
    "LifecycleExpiration:": ("Delete", "DeleteMarkerCreated"),
    "LifecycleDelMarkerExpiration:": ("Delete",),
    "Replication:": (
        "OperationFailedReplication", "OperationNotTracked", "OperationMissedThreshold",
        "OperationReplicatedAfterThreshold", "OperationCompletedReplication", "OperationPendingReplication",
    ),
    "Scanner:": ("ManyVersions", "LargeVersions", "BigPrefix"),
})  # fmt: skip
"""What stands behind the colon, by what stands before it."""

_SENT_AS = MappingProxyType({
    "ObjectLifecycle:Expiration:NonCurrent": "ObjectLifecycle:Expiration:Noncurrent",
    "ObjectLifecycle:Expiration:AbortMultipartUpload": "ObjectLifecycle:Expiration:AbortMPU",
    "ObjectLifecycle:Transition:NonCurrent": "ObjectLifecycle:Transition:Noncurrent",
})  # fmt: skip
"""What radosgw's filters and its documentation call some events, and the names that these have in its records."""

_ALONE = ("LifecycleTransition", "IntelligentTiering", "ReducedRedundancyLostObject")
_NEVER_ALONE = ("BucketCreated:", "BucketRemoved:")  # which MinIO knows with a wildcard only

NAMES = (*(kind + each for kind, names in _KINDS.items() for each in names), *_ALONE)


def _wildcards() -> tuple[str, ...]:
    """Each beginning of a name up to a colon, with the `*` behind it, and the one that stands for all."""
    found = {"*": None}
    for kind in (*_KINDS, *_NEVER_ALONE):
        parts = kind.split(":")[:-1]
        found |= {":".join([*parts[: end + 1], "*"]): None for end in range(len(parts))}
    return tuple(found)


WILDCARDS = _wildcards()


def plain(name: str) -> str:
    """A name as records have it, or a wildcard, without the `s3:` that some senders and users write."""
    bare = name.removeprefix(PREFIX)
    return _SENT_AS.get(bare, bare)


def is_known(name: str) -> bool:
    """Whether an event can have this name, or a wildcard stands for such names."""
    return plain(name) in NAMES or plain(name) in WILDCARDS


def nearest(name: str) -> str:
    """The known name, or wildcard, that is most like this one."""
    known = (*NAMES, *WILDCARDS)
    by_small = {each.lower(): each for each in known}
    near = difflib.get_close_matches(plain(name).lower(), by_small, n=1, cutoff=0.0)
    return PREFIX + by_small[near[0]]


def stands_for(pattern: str, name: str) -> bool:
    """Whether a name is the one that a notification asks for, or one of those that its wildcard stands for."""
    asked = plain(pattern)
    return plain(name).startswith(asked[:-1]) if asked.endswith("*") else asked == plain(name)


def may_lack_size(name: str) -> bool:
    """Whether a size of 0, which an entry has where its record has none, may be no size, in an event of this name or
    in one that a wildcard stands for. An object that was created is empty."""
    return "ObjectCreated:" not in name


def regex_matcher(pattern: str) -> Callable[[bytes], bool]:
    """What tells whether a whole key fits. ValueError with the reason for what RE2 does not take.

    Keys and pattern are compared byte by byte, since a key may be any bytes.
    """
    import re2  # which hosts without such a filter need not load

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    try:
        found = re2.compile(pattern.encode(errors="surrogateescape"), options)
    except re2.error as exc:
        reason = exc.args[0] if exc.args else b""
        raise ValueError(reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from exc
    fullmatch = found.fullmatch
    return lambda key: fullmatch(key) is not None


def fits_bucket(pattern: str, bucket: str) -> bool:
    """Whether a bucket's name fits a pattern, in which each `*` stands for anything, or for nothing."""
    first, *rest = pattern.split("*")
    if not rest:
        return bucket == pattern
    if not bucket.startswith(first):
        return False
    at = len(first)
    for part in rest[:-1]:
        found = bucket.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(bucket) - at >= len(rest[-1]) and bucket.endswith(rest[-1])


@lru_cache(maxsize=1024)
def may_both_fit(one: str, other: str) -> bool:
    """Whether some bucket's name fits both patterns."""
    # Nearly all pairs are told apart by what stands before the first `*` of each, or behind the last.
    head, tail = one.partition("*")[0], one.rpartition("*")[2]
    other_head, other_tail = other.partition("*")[0], other.rpartition("*")[2]
    if not (head.startswith(other_head) or other_head.startswith(head)):
        return False
    if not (tail.endswith(other_tail) or other_tail.endswith(tail)):
        return False
    # Row by row: which beginnings of `other` have a name in common with the beginning of `one` read so far.
    row = list(accumulate(other, lambda fits, char: fits and char == "*", initial=True))
    for char in one:
        below = [row[0] and char == "*"]
        for at, against in enumerate(other, 1):
            if char == "*" or against == "*":
                below.append(row[at] or below[at - 1])
            else:
                below.append(row[at - 1] and char == against)
        row = below
    return row[-1]


class Candidate(NamedTuple):
    """A notification that buckets and names leave, by its place, and its rules as `_event_copies.pyx` takes them.

    `takes_unsized` tells that an event of size 0 has `least`, too. `others` are tried in Python.
    """

    place: int
    prefix: bytes
    suffix: bytes
    least: int
    most: int
    takes_unsized: bool
    others: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A notification that buckets and names leave, by its place, and the rules that are still to be tried."""

    place: int
    rules: tuple[tuple[str, Rule], ...]

    def takes(self, event: Happening) -> bool:
        return all(rule(event) for _, rule in self.rules)


_Table = tuple[tuple[int, dict[bytes, tuple[_Candidate, ...]]], ...]
"""For each length of prefixes, the candidates by the beginning of the key."""


class Matcher:
    """Finds the notifications that an event matches. ValueError for a regular expression that RE2 does not take."""

    def __init__(self, notifications: Sequence[Notification]) -> None:
        self.notifications = tuple(notifications)
        self._rules = [tuple(_rules(each.filter)) for each in self.notifications]
        self._prefixes = [_bytes(each.filter.prefix) for each in self.notifications]
        self._pairs: dict[tuple[bytes, bytes], _Table] = {}
        self._by_bucket: dict[str, list[int]] = {}
        self._by_pattern: list[int] = []
        for place, each in enumerate(self.notifications):
            for bucket in each.buckets:
                self._by_bucket.setdefault(bucket, []).append(place)
            if not each.buckets or any("*" in bucket for bucket in each.buckets):
                self._by_pattern.append(place)

    def __bool__(self) -> bool:
        return bool(self.notifications)

    def matching(self, event: Happening) -> Sequence[int]:
        """The places of the notifications that the event matches, in their order."""
        pair = (event.bucket, event.name)
        table = self._pairs.get(pair)
        if table is None:
            table = self._learn(pair)
        if not table:
            return NONE
        key = event.key
        found: list[int] = []
        for length, by_beginning in table:
            if candidates := by_beginning.get(key[:length]):
                found += [each.place for each in candidates if not each.rules or each.takes(event)]
        if len(table) > 1:
            found.sort()
        return found or NONE

    def refusals(self, event: Happening) -> list[str]:
        """For each notification the first rule that the event does not keep; empty where it matches."""
        name, bucket = _text(event.name), _text(event.bucket)
        found = []
        for place, each in enumerate(self.notifications):
            if not takes_bucket(each, bucket):
                found.append("buckets")
            elif not takes_name(each, name):
                found.append("events")
            elif not event.key.startswith(self._prefixes[place]):
                found.append("prefix")
            else:
                found.append(next((rule for rule, keeps in self._rules[place] if not keeps(event)), ""))
        return found

    def possible(self, event: ExpectedEvent, of_bucket: Sequence[int]) -> Sequence[int]:
        """Of the places of the notifications that take its bucket, those that an event to come may match: a rule counts
        as kept where it asks for what is not known yet."""
        name = None if event.name is None else _text(event.name)
        known = Happening(
            event.bucket, event.name or b"", event.key, event.size or 0, event.metadata or (), event.tags or ()
        )
        open_rules = {rule for rule, asked in _ASKED.items() if getattr(event, asked) is None}
        return [
            place
            for place in of_bucket
            if (name is None or takes_name(self.notifications[place], name))
            and event.key.startswith(self._prefixes[place])
            and all(rule in open_rules or keeps(known) for rule, keeps in self._rules[place])
        ]

    def takers(self, bucket: str) -> Sequence[int]:
        """The places of the notifications that take a bucket, in their order. A thousand that name one bucket each
        cost as much as one."""
        named = self._by_bucket.get(bucket, ())
        return sorted({*named, *(each for each in self._by_pattern if takes_bucket(self.notifications[each], bucket))})

    def candidates(self, bucket: bytes, name: bytes) -> list[Candidate]:
        """The notifications for this bucket and name, in their order."""
        return [
            Candidate(
                place,
                self._prefixes[place],
                _bytes(of.suffix),
                min(of.size_min or 0, _MOST_SIZE),
                _MOST_SIZE if of.size_max is None else min(of.size_max, _MOST_SIZE),
                may_lack_size(_text(name)),
                tuple(rule for kind, rule in self._rules[place] if kind in _IN_PYTHON),
            )
            for place, of in self._of_pair(_text(bucket), _text(name))
        ]

    def _of_pair(self, bucket: str, name: str) -> Iterator[tuple[int, EventFilter]]:
        for place in self.takers(bucket):
            if takes_name(each := self.notifications[place], name):
                yield place, each.filter

    def _learn(self, pair: tuple[bytes, bytes]) -> _Table:
        by_length: dict[int, dict[bytes, tuple[_Candidate, ...]]] = {}
        for place, _ in self._of_pair(*map(_text, pair)):
            prefix = self._prefixes[place]
            candidates = by_length.setdefault(len(prefix), {})
            candidates[prefix] = (*candidates.get(prefix, ()), _Candidate(place, self._rules[place]))
        if len(self._pairs) >= _MOST_PAIRS:
            self._pairs.clear()
        found = self._pairs[pair] = tuple(sorted(by_length.items(), key=lambda item: item[0]))
        return found


def takes_bucket(notification: Notification, bucket: str) -> bool:
    """Whether a notification is for this bucket."""
    return not notification.buckets or any(fits_bucket(each, bucket) for each in notification.buckets)


def takes_name(notification: Notification, name: str) -> bool:
    """Whether a notification is for events of this name."""
    return not notification.events or any(stands_for(each, name) for each in notification.events)


def _rules(of: EventFilter) -> Iterable[tuple[str, Rule]]:
    """The rules of a filter beside its prefix, the cheapest first, each with its name."""
    if of.size_min is not None:
        least = of.size_min
        yield "size_min", lambda event: event.size >= least or (event.size == 0 and may_lack_size(_text(event.name)))
    if of.size_max is not None:
        most = of.size_max
        yield "size_max", lambda event: event.size <= most
    if of.suffix:
        suffix = _bytes(of.suffix)
        yield "suffix", lambda event: event.key.endswith(suffix)
    if of.metadata:
        wanted = {(_bytes(name).lower(), _bytes(value)) for name, value in of.metadata}
        yield "metadata", lambda event: wanted <= {(name.lower(), value) for name, value in event.metadata}
    if of.tags:
        tags = {(_bytes(name), _bytes(value)) for name, value in of.tags}
        yield "tags", lambda event: tags <= set(event.tags)
    if of.regex:
        fits = regex_matcher(of.regex)
        yield "regex", lambda event: fits(event.key)


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _text(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")
