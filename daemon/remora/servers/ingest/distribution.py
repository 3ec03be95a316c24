"""Events that are sent without a topic: which notifications they match, and the copies that these send to topics.

All copies of a request are stored, or none. A topic that is gone, closed or full refuses the whole request and is
named; definitions and topics are read anew once before a topic counts as gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from remora.codec import speedups
from remora.codec.event_copies import NO_TARGET, TopicMatches, happening_of
from remora.codec.s3_events import EventPart, Keyed, behind_event, encode, routed
from remora.metrics import Telemetry
from remora.model.entry import Time
from remora.model.errors import TopicMoved, TopicUnknown
from remora.model.fan_out import FannedOut, TopicCopies
from remora.model.ingest import IdempotencyKey
from remora.model.notification import Happening
from remora.model.topic import Topic
from remora.policy.ingest.matcher import NONE
from remora.ports.producer import FanningOut
from remora.servers.http.begun import Callback, in_task
from remora.servers.ingest.body import Body, now, taken
from remora.servers.ingest.desk import Desk, while_moving
from remora.servers.ingest.limits import Receipt
from remora.servers.ingest.matches import RequestMatcher
from remora.servers.ingest.problems import FORBIDDEN, NO_TOPIC, TOO_LARGE, UNMATCHED, RefusedRequest
from remora.servers.tokens import ANYBODY, SenderGrant

T = TypeVar("T")

MOST_COPIES = 4
"""The copies of a request have at most this many times the bytes that a request may have."""


class Matching:
    """Matches the events of a body, part by part. `by_topic` has what each topic gets, in order.

    Of each bucket `sent` has the places of the notifications that its events match, and `filtered` the entry of the
    last event that matches none.
    """

    accepted = unmatched = dropped = tests = 0
    unmatched_bucket = refused_bucket = ""

    def __init__(self, matcher: RequestMatcher, sender: SenderGrant, most_bytes: int) -> None:
        self.by_topic: dict[str, TopicMatches] = {}
        self.sent: dict[bytes, set[int]] = {}
        self.filtered: dict[bytes, bytes] = {}
        self.matcher = matcher
        self.sender = sender
        self._allowed: set[bytes] = set()
        self._left = most_bytes

    def take_all(self, body: Body, seed: bytes, most: int) -> Awaitable[None]:
        """Match the events of a body, `most` of them at most. Raises MalformedEvent, and what `take` raises."""
        parts = encode(body.raw, NO_TARGET, ndjson=body.is_ndjson, most=most, created=now(), seed=seed)
        return taken(parts, self.take)

    def take(self, part: EventPart) -> None:
        """Match some events. Raises RefusedRequest for a bucket that the sender has no right to, and for too many
        copies."""
        places = self.matcher.places(part.events, self.sent, self.filtered)
        if self.sender is not ANYBODY:
            self._check_rights()
        self.accepted += len(places)
        if self.filtered and (unmatched := places.count(NONE)):
            last = len(places) - 1 - places[::-1].index(NONE)
            self.unmatched_bucket = _shown(happening_of(part.events[last][1]).bucket)
            self.unmatched += unmatched
            self.accepted -= unmatched
        if part.dropped or part.tests:
            self.dropped += part.dropped
            self.tests += part.tests
        self._send(part.events, places)

    def _check_rights(self) -> None:
        """Refuse events of buckets that the sender may not send, and keep back what such events match."""
        for bucket in (*self.sent, *self.filtered):
            if bucket in self._allowed:
                continue
            if not self.sender.allows_bucket(name := bucket.decode(errors="surrogateescape")):
                self.refused_bucket = name
                self.filtered = {each: entry for each, entry in self.filtered.items() if each in self._allowed}
                raise RefusedRequest(FORBIDDEN, f"this token may not send events of bucket {name}")
            self._allowed.add(bucket)

    def _send(self, events: Sequence[Keyed], places: Sequence[Sequence[int]]) -> None:
        self._left -= speedups.distribute(events, places, self.matcher.sends, self.by_topic)
        if self._left < 0:
            raise RefusedRequest(TOO_LARGE, "the copies that notifications make of these events are too large together")


class Distribution:
    """Stores the events of one request."""

    def __init__(self, desk: Desk, sender: SenderGrant) -> None:
        self._store: FanningOut = desk.store.ingest
        self._desk = desk
        self._sender = sender

    async def store(self, body: Body, once: IdempotencyKey | None, receipt: Receipt) -> FannedOut:
        """Store the copies; the answer, `repeated` where a request under the same key had it before."""
        if once is not None:
            await in_task()
            before = await self._store.fanned_out(once)
            if before is not None:
                return told_repeated(self._desk.telemetry, before)
        return await by_definitions(self._desk, lambda matcher: self._stored(body, matcher, once, receipt))

    async def _stored(
        self, body: Body, matcher: RequestMatcher, once: IdempotencyKey | None, receipt: Receipt
    ) -> FannedOut:
        found = await self._matched(body, matcher, f"\0{once.key}".encode() if once else os.urandom(16))
        receipt.holds(found.accepted + found.unmatched)
        known = self._desk.topics
        topics = [known.known(name) or await known.look_up(name) for name in found.by_topic]
        created = now()
        copies = [copies_for(topic, found.by_topic[topic.name], created, body.context) for topic in topics]
        answer = FannedOut(found.accepted, found.unmatched, {each.topic.name: len(each.events) for each in copies})
        with Charges(self._desk) as charges:
            for each in copies:
                charges.add(each.topic.name, [len(event.payload) for event in each.events])
            stored = await self._fanned_out(copies, answer, once)
            if stored.repeated:
                return told_repeated(self._desk.telemetry, stored)
            charges.count(found.dropped)
        tell_stored(self._desk.telemetry, found)
        return stored

    async def _matched(self, body: Body, matcher: RequestMatcher, seed: bytes) -> Matching:
        settings = self._desk.settings
        found = Matching(matcher, self._sender, MOST_COPIES * settings.max_request_bytes)
        try:
            await found.take_all(body, seed, settings.max_events)
        finally:
            tell_kept_back(self._desk.telemetry, found)
        if found.unmatched and settings.unmatched == "refuse":
            raise RefusedRequest(UNMATCHED, f"an event of bucket {found.unmatched_bucket} matches no notification")
        return found

    async def _fanned_out(
        self, copies: Sequence[TopicCopies], answer: FannedOut, once: IdempotencyKey | None
    ) -> FannedOut:
        if once is None and not copies:
            return answer
        if once is None:
            stored = Callback[FannedOut]()
            if self._store.fan_out_soon(copies, answer, stored):
                return await stored
        await in_task()
        return await self._store.fan_out(copies, answer, once)


async def by_definitions(desk: Desk, work: Callable[[RequestMatcher], Awaitable[T]]) -> T:
    """Do something by the notifications, and once more by what they are now where a topic is gone or moves by then;
    nothing was done yet."""
    definitions = desk.definitions
    matcher = definitions.known() or await definitions.get()
    try:
        return await work(matcher)
    except (TopicUnknown, TopicMoved):
        pass
    except RefusedRequest as exc:
        if exc.kind is not NO_TOPIC:
            raise

    async def anew() -> T:
        definitions.forget()
        for topic in {topic for each in matcher.notifications for topic in each.topics}:
            desk.topics.forget(topic)
        return await work(await definitions.get())

    return await while_moving(anew)


def tell_kept_back(telemetry: Telemetry, found: Matching) -> None:
    """Tell what of a request is sent nowhere, also where it is refused for that."""
    news, at = telemetry.buckets, time.time()
    if found.refused_bucket:
        news.refused(_shown(os.fsencode(found.refused_bucket)), found.sender.name, at)
    for bucket, entry in found.filtered.items():
        event = happening_of(entry)
        rules = partial(_rules, found.matcher, event)
        news.filtered(_shown(bucket), _shown(event.key), _shown(event.name), rules, at)


def tell_taken(telemetry: Telemetry, copies: Iterable[tuple[str, int, int]], dropped: int) -> None:
    """Count a request's copies, by topic their number and bytes; members that entries could not hold, of the first."""
    for topic, events, nbytes in copies:
        telemetry.ingested(topic, events, nbytes, dropped)
        dropped = 0


def tell_stored(telemetry: Telemetry, found: Matching) -> None:
    """Tell what became of the events of a request whose copies are stored."""
    for bucket, places in found.sent.items():
        ids = [found.matcher.notifications[each].id for each in places]
        telemetry.buckets.sent(_shown(bucket), ids, time.time())
    if found.tests:
        telemetry.ingest_tested("", found.tests)
    if found.unmatched:
        telemetry.ingest_unmatched(found.unmatched, found.unmatched_bucket)


def told_repeated(telemetry: Telemetry, before: FannedOut) -> FannedOut:
    """The answer of a request that was stored before, which is counted for each topic."""
    for topic in before.topics:
        telemetry.ingest_repeated(topic)
    return before


def _rules(matcher: RequestMatcher, event: Happening) -> dict[str, str]:
    """The first rule of each notification that the event does not keep."""
    return dict(zip([each.id for each in matcher.notifications], matcher.refusals(event), strict=True))


def _shown(raw: bytes) -> str:
    return raw.decode(errors="replace")


def copies_for(topic: Topic, matches: TopicMatches, created: Time, context: bytes) -> TopicCopies:
    """The copies of events for a topic, each in the shard that its key names."""
    tail = behind_event(topic, created)
    payloads = speedups.copies(matches.entries, matches.notifications, topic.opaque_data or b"", tail, context)
    return TopicCopies(topic, routed(matches.keys, payloads, topic.shards))


class Charges:
    """What a request's copies are charged by topic; given back where the block ends without having counted or reserved
    them."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._charged: list[tuple[str, int, int, Receipt]] = []

    def add(self, topic: str, sizes: Sequence[int]) -> None:
        """Charge a topic for copies of these bytes. Raises RefusedRequest where its limit is used up."""
        nbytes = sum(sizes)
        self._charged.append((topic, len(sizes), nbytes, self._desk.limits.admit_copies(topic, len(sizes), nbytes)))

    def count(self, dropped: int) -> None:
        """All are stored."""
        tell_taken(self._desk.telemetry, (each[:3] for each in self._charged), dropped)
        self._charged = []

    def reserve(self, reservation: str, receipt: Receipt) -> None:
        """Room for all is reserved; what is not used of it comes back with the reservation's end, as of the receipt."""
        self._desk.limits.reserved(reservation, receipt, {topic: each for topic, _, _, each in self._charged})
        self._charged = []

    def __enter__(self) -> Charges:
        return self

    def __exit__(self, *of_exception: object) -> None:
        for *_, receipt in self._charged:
            receipt.returns()
