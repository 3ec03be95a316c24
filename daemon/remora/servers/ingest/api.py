"""What each request of the ingest API does: from its path, through checks, to the store and back.

The order of the checks is that of their cost and of what they may reveal: whether a web page asks, the path and method,
the token, its right to the topic, the topic, the size, the body, the events. Only the last step changes anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from remora.codec import seaweedfs
from remora.codec.s3_events import EventPart, encode
from remora.model.errors import OnceConflict, ReservationExceeded, TopicMoved, TopicUnknown
from remora.model.fan_out import FannedOut
from remora.model.ingest import IdempotencyKey, PublishResult, RoutedEvent
from remora.model.shard import Origin
from remora.model.topic import SequenceState, Topic
from remora.policy.shaping.rates import Cost
from remora.ports.producer import PublishSoon
from remora.servers.http.begun import Callback, in_task
from remora.servers.http.head import path_of
from remora.servers.http.request import Peer, Request
from remora.servers.http.response import Response
from remora.servers.ingest.announced import AnnouncedEvents
from remora.servers.ingest.answers import (
    JSON_HEADERS,
    distributed_response,
    json_response,
    openapi_document,
    stored_response,
)
from remora.servers.ingest.body import Body, now, read_body, taken
from remora.servers.ingest.body_budget import Share
from remora.servers.ingest.desk import Desk, admit, check_any, check_publishing, while_moving
from remora.servers.ingest.distribution import Distribution
from remora.servers.ingest.limits import Receipt
from remora.servers.ingest.problems import (
    DECIDED,
    FORBIDDEN,
    MISMATCH,
    NO_RESERVATION,
    NO_TOPIC,
    NOT_FOUND,
    WRONG_METHOD,
    WRONG_TYPE,
    RefusedRequest,
)
from remora.servers.ingest.request_reader import (
    JSON,
    BodyForm,
    Traced,
    digest,
    form_of,
    has_lines,
    idempotency_key,
    rooms_of,
    to_come,
)
from remora.servers.tokens import SenderGrant

T = TypeVar("T")

OF_NO_TOPIC = "~"
"""What the ids of reservations without a topic begin with, and no topic's name does."""

_RESERVATION = re.compile(r"([A-Za-z0-9_-]{1,200})\.[A-Za-z0-9_-]{1,64}")


class Call(NamedTuple):
    """A request on its way through a handler: what it is for, and the memory that it holds."""

    request: Request
    argument: str
    share: Share


@dataclass(frozen=True, slots=True)
class Operation:
    """What a method of a resource does, and how it is called in metrics."""

    kind: str
    handle: Callable[[Api, Call], Awaitable[Response]]


class Api:
    """Answers requests. It belongs to one event loop."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._settings = desk.settings
        self._store = desk.store
        self._topics = desk.topics
        self._soon = desk.store.ingest if isinstance(desk.store.ingest, PublishSoon) else None

    @property
    def stopping(self) -> bool:
        """Whether a connection ends with its next answer."""
        return self._desk.stopping

    async def answer(self, request: Request, connection: Peer, answered: Callable[[Response], None]) -> None:
        """Answer one request, whatever happens."""
        desk = self._desk
        began = desk.begin()
        kind = "other"
        try:
            with desk.body_budget.share(connection) as share:
                kind, work = self._route(request, share)
                response = await work
        except Exception as exc:  # the top of the loop over requests
            response = self.refuse(request, exc, connection.peer)
        except BaseException:
            desk.forget()
            raise
        desk.end(kind, response, began)
        answered(response)

    def _route(self, request: Request, share: Share) -> tuple[str, Awaitable[Response]]:
        head = request.head
        check_any(self._desk.stopping, head)
        operations, argument = resource_of(head.target)
        if operations is None:
            raise RefusedRequest(NOT_FOUND, "there is no such resource; /v1/openapi.json tells which there are")
        operation = operations.get("GET" if head.method == "HEAD" else head.method)
        if operation is None:
            allowed = ", ".join([*operations, *(["HEAD"] if "GET" in operations else [])])
            raise RefusedRequest(WRONG_METHOD, f"only {allowed}", headers={"Allow": allowed})
        return operation.kind, operation.handle(self, Call(request, argument, share))

    def refuse(self, request: Request | None, exc: Exception, peer: str) -> Response:
        """The answer to what failed with this, which is being handled."""
        return self._desk.refuse(request.head if request else None, exc, peer)

    # ------------------------------------------------------------------------------------------ events

    async def publish(self, call: Call) -> Response:
        """Store events in one step."""
        head, name = call.request.head, call.argument
        token, form, key = check_publishing(self._desk, head, name)
        topic = self._topics.known(name) or await self._topics.look_up(name)
        receipt = admit(self._desk, token, name, head.length or 0)
        raw = await self._charged_body(call, receipt)
        ndjson = has_lines(form, raw)
        once = IdempotencyKey(key, await digest(raw, ndjson)) if key else None
        try:
            with Traced(self._desk.tracer, head, name) as context:
                body = Body(raw, ndjson, context)
                try:
                    stored, dropped, nbytes = await self._publish(topic, body, once, receipt)
                except (TopicUnknown, TopicMoved):
                    stored, dropped, nbytes = await self._anew(
                        name, lambda topic: self._publish(topic, body, once, receipt)
                    )
        except BaseException:
            receipt.holds(0)
            raise
        if stored.repeated:
            receipt.holds(0)
        self._desk.count(name, stored, nbytes, dropped)
        return stored_response(stored, dropped)

    async def _publish(
        self, topic: Topic, body: Body, once: IdempotencyKey | None, receipt: Receipt
    ) -> tuple[PublishResult, int, int]:
        seed = f"{topic.name}\0{once.key}".encode() if once else os.urandom(16)
        events, dropped = await self._placed(body, topic, seed)
        receipt.holds(len(events))
        nbytes = _nbytes(events)
        if not events:
            return PublishResult(0), dropped, nbytes
        if self._soon is not None:
            stored = Callback[PublishResult]()
            self._soon.publish_soon(topic, events, once, stored)
            del events  # the store has them
            return await stored, dropped, nbytes
        await in_task()
        return await self._store.ingest.publish(topic, events, once), dropped, nbytes

    async def publish_seaweedfs(self, call: Call) -> Response:
        """Store what SeaweedFS posts where notifications send it."""

        def opened(form: BodyForm, raw: bytes) -> Body | None:
            if form is BodyForm.LINES:
                raise RefusedRequest(WRONG_TYPE, f"SeaweedFS posts {JSON}")
            records = seaweedfs.records_of(raw)
            return Body(records, False, b"") if records else None

        return await self.publish_matching(call, opened)

    async def publish_matching(
        self,
        call: Call,
        opened: Callable[[BodyForm, bytes], Body | None] = lambda form, raw: Body(raw, has_lines(form, raw), b""),
    ) -> Response:
        """Store events without a topic where notifications send them.

        `opened` gives the records of what was sent; none where it is about no object.
        """
        head, desk = call.request.head, self._desk
        sender = self._sender_of_buckets(call)
        form, key = form_of(head.headers), idempotency_key(head.headers)
        distribution = Distribution(desk, sender)
        receipt = desk.limits.admit(sender.name, None)
        receipt.received(head.length or 0)
        raw = await self._charged_body(call, receipt)
        try:
            body = opened(form, raw)
            if body is None:
                receipt.holds(0)
                return distributed_response(FannedOut(0, 0, {}))
            once = IdempotencyKey(key, await digest(raw, body.is_ndjson)) if key else None
            with Traced(desk.tracer, head, "") as context:
                stored = await distribution.store(body._replace(context=context), once, receipt)
        except BaseException:
            receipt.holds(0)
            raise
        if stored.repeated:
            receipt.holds(0)
        return distributed_response(stored)

    async def reserve(self, call: Call) -> Response:
        """Reserve room for events to come."""
        token = self._desk.permit(call.request.head, call.argument)
        if form_of(call.request.head.headers) is BodyForm.LINES:
            raise RefusedRequest(WRONG_TYPE, f"a reservation is {JSON}")
        topic = await self._topics.get(call.argument)
        receipt = self._desk.limits.admit(token, call.argument)
        raw, most = await self._body(call), self._settings.max_events
        rooms = rooms_of(raw, topic, most)
        await in_task()
        receipt.received(sum(each.nbytes for each in rooms))
        receipt.holds(len(rooms))
        try:
            reservation = await self._in_topic(
                call.argument,
                lambda now: self._store.ingest.reserve(now, rooms if now is topic else rooms_of(raw, now, most)),
            )
        except BaseException:
            receipt.returns()
            raise
        self._desk.limits.reserved(reservation, receipt)
        answer = {
            "reservation": reservation,
            "expires_in_seconds": int(self._desk.limits.reservation_s),
            "events": len(rooms),
        }
        return json_response(201, answer, {"Location": f"/v1/reservations/{reservation}"})

    async def reserve_matching(self, call: Call) -> Response:
        """Reserve room for events to come wherever notifications may send them."""
        sender = self._sender_of_buckets(call)
        if form_of(call.request.head.headers) is BodyForm.LINES:
            raise RefusedRequest(WRONG_TYPE, f"a reservation is {JSON}")
        announced = AnnouncedEvents(self._desk, sender)
        receipt = self._desk.limits.admit(sender.name, None)
        events = to_come(await self._body(call), self._settings.max_events)
        await in_task()
        receipt.received(sum(each.nbytes for each in events))
        receipt.holds(len(events))
        try:
            reservation, topics = await announced.reserve(events, receipt)
        except BaseException:
            receipt.returns()
            raise
        answer = {
            "reservation": reservation,
            "expires_in_seconds": int(self._desk.limits.reservation_s),
            "events": len(events),
            "topics": topics,
        }
        return json_response(201, answer, {"Location": f"/v1/reservations/{reservation}"})

    async def _commit_matching(self, call: Call) -> Response:
        announced = AnnouncedEvents(self._desk, self._sender_of_buckets(call))
        form = form_of(call.request.head.headers)
        raw = await self._body(call)
        ndjson = has_lines(form, raw)
        asked = await digest(raw, ndjson)
        await in_task()
        with Traced(self._desk.tracer, call.request.head, "") as context:
            return distributed_response(await announced.commit(call.argument, Body(raw, ndjson, context), asked))

    def _sender_of_buckets(self, call: Call) -> SenderGrant:
        """Whose token a request has that names no topic. Raises RefusedRequest where it has no right to any bucket."""
        sender = self._desk.sender(call.request.head)
        if not sender.buckets:
            raise RefusedRequest(
                FORBIDDEN, "this token may send to topics only (`remora token --bucket` makes another one)"
            )
        return sender

    async def commit(self, call: Call) -> Response:
        """Store the events that room was reserved for."""
        if call.argument.startswith(OF_NO_TOPIC):
            return await self._commit_matching(call)
        name = await self._topic_of_reservation(call)
        form = form_of(call.request.head.headers)
        raw = await self._body(call)
        ndjson = has_lines(form, raw)
        asked = await digest(raw, ndjson)
        await in_task()
        with Traced(self._desk.tracer, call.request.head, name) as context:
            body = Body(raw, ndjson, context)
            stored, dropped, nbytes = await self._in_topic(
                name, lambda topic: self._commit(topic, call.argument, body, asked)
            )
        self._desk.limits.ended(call.argument, Cost(nbytes, stored.events))
        self._desk.count(name, stored, nbytes, dropped)
        return stored_response(stored, dropped)

    async def _commit(self, topic: Topic, reservation: str, body: Body, asked: bytes) -> tuple[PublishResult, int, int]:
        events, dropped = await self._placed(body, topic, reservation.encode())
        if not events:
            raise RefusedRequest(MISMATCH, "there are no events")
        try:
            return await self._store.ingest.commit(topic, reservation, events, asked), dropped, _nbytes(events)
        except OnceConflict as exc:
            raise RefusedRequest(DECIDED, str(exc)) from exc
        except ReservationExceeded:
            if not body.context:
                raise
        # The room was reserved for the events alone: the trace context does without, and no event is refused for it.
        return await self._commit(topic, reservation, body._replace(context=b""), asked)

    async def abort(self, call: Call) -> Response:
        """Give reserved room back."""
        if call.argument.startswith(OF_NO_TOPIC):
            announced = AnnouncedEvents(self._desk, self._sender_of_buckets(call))
            await in_task()
            await announced.abort(call.argument)
            return Response(204, headers={"Server": "remora"})
        name = await self._topic_of_reservation(call)
        await in_task()
        try:
            await self._in_topic(name, lambda topic: self._store.ingest.abort(topic, call.argument))
        except OnceConflict as exc:
            raise RefusedRequest(DECIDED, str(exc)) from exc
        self._desk.limits.ended(call.argument, Cost())
        return Response(204, headers={"Server": "remora"})

    async def _in_topic(self, name: str, work: Callable[[Topic], Awaitable[T]]) -> T:
        """Do something in a topic, and again where it is another one, or divided anew, since it was looked up."""
        try:
            return await work(await self._topics.get(name))
        except (TopicUnknown, TopicMoved):
            return await self._anew(name, work)

    async def _anew(self, name: str, work: Callable[[Topic], Awaitable[T]]) -> T:
        """Do something in a topic that was changed within the time that we believed to know it; nothing was done yet.

        While its number of shards is being changed this is repeated: no sender need know of that.
        """

        async def once_more() -> T:
            self._topics.forget(name)
            return await work(await self._topics.get(name))

        return await while_moving(once_more)

    async def _topic_of_reservation(self, call: Call) -> str:
        """The name of the topic that a reservation begins with, when there is one and it may be sent to."""
        match = _RESERVATION.fullmatch(call.argument)
        self._desk.permit(call.request.head, match[1] if match else "")
        try:
            if match:
                return (await self._topics.get(match[1])).name
        except RefusedRequest as exc:
            if exc.kind is not NO_TOPIC:
                raise
        raise RefusedRequest(NO_RESERVATION, "there is no such reservation")

    async def _charged_body(self, call: Call, receipt: Receipt) -> bytes:
        """The body, which costs what it has inflated. One that does not come costs nothing, whatever length its head
        announced: else one head could use up a limit for years."""
        try:
            raw = await self._body(call)
        except BaseException:
            receipt.returns()
            raise
        receipt.received(len(raw))
        return raw

    def _body(self, call: Call) -> Awaitable[bytes]:
        settings = self._settings
        return read_body(
            call.request, call.share, most_bytes=settings.max_request_bytes, timeout_s=settings.request_timeout_s
        )

    async def _placed(self, body: Body, topic: Topic, seed: bytes) -> tuple[list[RoutedEvent], int]:
        """The events of a body, and how many of their members were dropped. Others get their turn meanwhile."""
        events: list[RoutedEvent] = []
        dropped, tests, context = 0, 0, body.context

        def take(part: EventPart) -> None:
            nonlocal events, dropped, tests
            found = part.routed(topic.shards)
            events += [each._replace(payload=each.payload + context) for each in found] if context else found
            dropped += part.dropped
            tests += part.tests

        most = self._settings.max_events
        await taken(encode(body.raw, topic, ndjson=body.is_ndjson, most=most, created=now(), seed=seed), take)
        if tests:
            self._desk.telemetry.ingest_tested(topic.name, tests)
        return events, dropped

    # -------------------------------------------------------------------------------------------- looks

    async def topics(self, call: Call) -> Response:
        """The topics that may be sent to."""
        sender = self._desk.sender(call.request.head)
        await in_task()
        found = (await self._store.catalog.topics()).values()
        shown = [each for each in found if each.origin is Origin.REMORA and sender.allows(each.name)]
        return json_response(200, {"topics": [_topic_json(each) for each in sorted(shown, key=lambda each: each.name)]})

    async def topic(self, call: Call) -> Response:
        """One topic."""
        self._desk.permit(call.request.head, call.argument)
        return json_response(200, _topic_json(await self._topics.get(call.argument)))

    async def sequence(self, call: Call) -> Response:
        """How far a topic's sequence has come."""
        self._desk.permit(call.request.head, call.argument)
        await in_task()
        topic_id, reached = await self._in_topic(call.argument, self._sequence)
        return json_response(
            200, {"topic": call.argument, "id": topic_id, "tail": reached.tail, "delivered": reached.delivered}
        )

    async def _sequence(self, topic: Topic) -> tuple[str, SequenceState]:
        return topic.id, await self._store.own_topics.sequence(topic)

    async def openapi(self, _: Call) -> Response:
        """The description of all this."""
        return Response(200, openapi_document(), JSON_HEADERS)

    async def health(self, _: Call) -> Response:
        """Whether requests are taken: where they are not, this is refused like all others."""
        return json_response(200, {"ok": True})


ROUTES: Mapping[str, Mapping[str, Operation]] = MappingProxyType({
    "/v1/topics/{topic}/events": {"POST": Operation("publish", Api.publish)},
    "/v1/events": {"POST": Operation("publish", Api.publish_matching)},
    "/v1/sources/seaweedfs": {"POST": Operation("publish", Api.publish_seaweedfs)},
    "/v1/reservations": {"POST": Operation("reserve", Api.reserve_matching)},
    "/v1/topics/{topic}/reservations": {"POST": Operation("reserve", Api.reserve)},
    "/v1/reservations/{reservation}": {
        "PUT": Operation("commit", Api.commit),
        "DELETE": Operation("abort", Api.abort),
    },
    "/v1/topics": {"GET": Operation("look", Api.topics)},
    "/v1/topics/{topic}": {"GET": Operation("look", Api.topic)},
    "/v1/topics/{topic}/sequence": {"GET": Operation("look", Api.sequence)},
    "/v1/openapi.json": {"GET": Operation("look", Api.openapi)},
    "/v1/health": {"GET": Operation("look", Api.health)},
})  # fmt: skip
"""Every resource by its template in the OpenAPI document, with its methods."""


@lru_cache(maxsize=512)
def resource_of(target: bytes) -> tuple[Mapping[str, Operation] | None, str]:
    """The methods of what a request asks for, None where there is no such resource, and what its parameter is."""
    template, argument = template_of(path_of(target))
    return ROUTES.get(template), argument


def template_of(path: str) -> tuple[str, str]:
    """The template that a decoded path fits, and what stands for its parameter."""
    match path.split("/"):
        case ["", "v1", "topics", name, ("events" | "reservations" | "sequence") as what] if name:
            return f"/v1/topics/{{topic}}/{what}", name
        case ["", "v1", "reservations", name] if name:
            return "/v1/reservations/{reservation}", name
        case ["", "v1", "topics", name] if name:
            return "/v1/topics/{topic}", name
        case _:
            return path, ""


def _nbytes(events: Sequence[RoutedEvent]) -> int:
    return sum([len(each.payload) for each in events])


def _topic_json(topic: Topic) -> dict[str, object]:
    return {
        "name": topic.name,
        "shards": topic.shards,
        "endpoint": topic.target.redacted,
        "kafka_topic": topic.target.topic,
        "closed": topic.closed,
    }
