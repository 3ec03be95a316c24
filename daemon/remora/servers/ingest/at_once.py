"""The straight way of a request to publish: from its bytes into the store's next transaction, within one call.

Nearly every request takes it: one whose body has come with its head and is neither long nor compressed, to a topic that
is known, while there is memory. It needs no task and no turn of the loop; the store calls back when it is durable.
What is checked, and in which order, stands in `checks`, for this way and for `Api.publish`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from remora.codec.s3_events import place
from remora.model.entry import Time
from remora.model.errors import TopicUnknown
from remora.model.ingest import IdempotencyKey, PublishResult, RoutedEvent
from remora.model.topic import Topic
from remora.ports.producing import PublishSoon
from remora.ports.tracing import Span
from remora.servers.ingest.body_budget import Share
from remora.servers.ingest.checks import admit, check_publishing
from remora.servers.ingest.desk import Desk
from remora.servers.ingest.limits import Receipt
from remora.servers.ingest.reading import digest_now, has_lines
from remora.servers.ingest.request import Request
from remora.servers.ingest.response import Response
from remora.servers.ingest.service import Peer
from remora.servers.ingest.stored import stored_response
from remora.servers.ingest.traced import begin_trace

AT_ONCE_BYTES = 128 << 10
"""A longer body is worked through in steps, between which others have their turn."""


class Client(NamedTuple):
    """Who waits for an answer, and is told it by a call."""

    connection: Peer
    answered: Callable[[Response], None]


class StraightWay:
    """Takes requests to publish, where nothing is in the way."""

    def __init__(
        self, desk: Desk, store: PublishSoon, long_way: Callable[[Request, Client], Coroutine[Any, Any, None]]
    ) -> None:
        """A request goes the `long_way` after all where its topic turns out to be another one by now."""
        self.desk = desk
        self.store = store
        self.long_way = long_way
        self._most = min(AT_ONCE_BYTES, desk.settings.max_request_bytes)

    def publish(self, request: Request, name: str, client: Client) -> bool:
        """Begin to store a request's events; False where it cannot take this way, and then nothing was done."""
        body, headers, desk = request.body, request.head.headers, self.desk
        if not body or len(body) > self._most:
            return False
        if b"content-encoding" in headers or b"expect" in headers or (topic := desk.topics.known(name)) is None:
            return False
        if (share := desk.body_budget.take(len(body))) is None:
            return False
        publishing = _Publishing(self, request, topic, share, client)
        try:
            publishing.run(body)
        except Exception as exc:  # the top of the loop over requests
            publishing.fail(exc)
        return True


class _Publishing:
    """One request on this way."""

    __slots__ = (
        "_began", "_client", "_desk", "_dropped", "_nbytes", "_receipt", "_request", "_share", "_span", "_topic",
        "_way",
    )  # fmt: skip

    def __init__(self, way: StraightWay, request: Request, topic: Topic, share: Share, client: Client) -> None:
        self._way = way
        self._desk = way.desk
        self._request = request
        self._topic = topic
        self._share = share
        self._client = client
        self._began = way.desk.begin()
        self._receipt: Receipt | None = None
        self._span: Span | None = None
        self._dropped = self._nbytes = 0

    def run(self, body: bytes) -> None:
        """Check everything, and hand the events to the store. Raises what a refusal is made of."""
        desk, topic, head = self._desk, self._topic, self._request.head
        token, form, key = check_publishing(desk, head, topic.name)
        receipt = self._receipt = admit(desk, token, topic.name, len(body))
        ndjson = has_lines(form, body)
        once = IdempotencyKey(key, digest_now(body, ndjson)) if key else None
        context, self._span = begin_trace(desk.tracer, head, topic.name)
        events, self._dropped, tests = _placed(body, topic, ndjson, once, desk.settings.max_events)
        if tests:
            desk.telemetry.ingest_tested(topic.name, tests)
        if context:
            events = [each._replace(payload=each.payload + context) for each in events]
        receipt.holds(len(events))
        self._nbytes = sum([len(each.payload) for each in events])
        if events:
            self._way.store.publish_soon(topic, events, once, self._stored)
        else:
            self._end(PublishResult(0))

    def _stored(self, outcome: PublishResult | Exception) -> None:
        """The store's answer."""
        if isinstance(outcome, TopicUnknown):
            self._try_again()
        elif isinstance(outcome, Exception):
            self.fail(outcome)
        else:
            self._end(outcome)

    def _end(self, stored: PublishResult) -> None:
        desk, receipt = self._desk, self._receipt
        assert self._span is not None
        assert receipt is not None
        self._span.end()
        if stored.repeated:
            receipt.holds(0)
        desk.count(self._topic.name, stored, self._nbytes, self._dropped)
        self._finish(stored_response(stored, self._dropped))

    def fail(self, exc: Exception) -> None:
        """The request failed with this."""
        if self._receipt is not None:
            self._receipt.holds(0)
        if self._span is not None:
            self._span.end(str(exc) or type(exc).__name__)
        self._finish(self._desk.refuse(self._request.head, exc, self._client.connection.peer))

    def _try_again(self) -> None:
        """The topic was made anew within the time that we believed to know it: the request takes the other way."""
        desk = self._desk
        desk.topics.forget(self._topic.name)
        if self._receipt is not None:
            self._receipt.holds(0)
            self._receipt.received(0)
        desk.body_budget.end(self._share)
        desk.abandon()
        self._client.connection.start(self._way.long_way(self._request, self._client))

    def _finish(self, response: Response) -> None:
        self._desk.body_budget.end(self._share)
        self._desk.end("publish", response, self._began)
        self._client.answered(response)


def _placed(
    body: bytes, topic: Topic, ndjson: bool, once: IdempotencyKey | None, most: int
) -> tuple[Sequence[RoutedEvent], int, int]:
    """The events of a body, how many of their members were dropped, and how many test events there were."""
    seed = f"{topic.name}\0{once.key}".encode() if once else os.urandom(16)
    created = Time(*divmod(time.time_ns(), 10**9))
    parts = list(place(body, topic, ndjson=ndjson, most=most, created=created, seed=seed))
    if len(parts) == 1:
        return parts[0]
    events = [event for part in parts for event in part.events]
    return events, sum(part.dropped for part in parts), sum(part.tests for part in parts)
