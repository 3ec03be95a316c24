"""What each request of the ingest API does: from its path, through checks, to the store and back.

The order of the checks is that of their cost and of what they may reveal: the path and method, the token, its right
to the topic, the topic, the size, the body, the events. Only the last step changes anything.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_request import BaseRequest

from remora.codec.s3_events import MalformedEvent, place
from remora.config import IngestSettings
from remora.metrics import Telemetry
from remora.model.entry import Time
from remora.model.errors import OnceConflict, ReservationExceeded, StoreError, TopicUnknown
from remora.model.ingest import IdempotencyKey, PublishResult, RoutedEvent
from remora.model.shard import Origin
from remora.model.topic import SequenceState, Topic
from remora.policy.rates import Cost
from remora.ports.producing import IngestStore
from remora.ports.tracing import NO_TRACER
from remora.process.host_load import HostLoad
from remora.servers.ingest.body import read_body
from remora.servers.ingest.body_budget import BodyBudget, Share
from remora.servers.ingest.connections import Connection, Connections
from remora.servers.ingest.credentials import Credentials
from remora.servers.ingest.handler import VERSION
from remora.servers.ingest.limits import IngestLimits, Receipt
from remora.servers.ingest.openapi import DOCUMENT
from remora.servers.ingest.problems import (
    BAD_REQUEST,
    DECIDED,
    DEFECT,
    FORBIDDEN,
    MISMATCH,
    NO_RESERVATION,
    NO_TOPIC,
    NOT_FOUND,
    STOPPING,
    UNAUTHORIZED,
    WRONG_METHOD,
    WRONG_TYPE,
    Problem,
    of_error,
)
from remora.servers.ingest.reading import JSON, digest, idempotency_key, is_ndjson, malformed, rooms_of
from remora.servers.ingest.tokens import ANYBODY, Grant
from remora.servers.ingest.topics import TopicLookup
from remora.servers.ingest.traced import traced

T = TypeVar("T")

JSON_HEADERS = MappingProxyType({"Content-Type": JSON, "Server": "remora"})

_RESERVATION = re.compile(r"([A-Za-z0-9_-]{1,200})\.[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Call:
    """A request on its way through a handler: what it is for, and the memory that it holds."""

    request: BaseRequest
    argument: str
    share: Share
    connection: Connection


@dataclass(frozen=True, slots=True)
class Body:
    """What a request with events carries: its bytes, their form, and the trace context that goes behind each event."""

    raw: bytes
    is_ndjson: bool
    context: bytes


@dataclass(frozen=True, slots=True)
class Operation:
    """What a method of a resource does, and how it is called in metrics."""

    kind: str
    handle: Callable[[Api, Call], Awaitable[web.Response]]


class Api:
    """Answers requests. It belongs to one event loop."""

    def __init__(
        self,
        settings: IngestSettings,
        store: IngestStore,
        telemetry: Telemetry,
        credentials: Credentials,
        host: HostLoad,
        limits: IngestLimits,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._store = store
        self._telemetry = telemetry
        self._credentials = credentials
        self.limits = limits
        self.tracer = NO_TRACER
        self._topics = TopicLookup(store.own_topics)
        self.body_budget = BodyBudget(settings.pause_at_bytes, host, telemetry)
        self.under_way = 0
        self.stopping = False
        self.idle = asyncio.Event()
        self.idle.set()

    async def answer(self, request: BaseRequest, connections: Connections) -> web.Response:
        """Answer one request, whatever happens."""
        started = self._loop.time()
        connection = connections.of(request.protocol)
        connection.begin()
        self.under_way += 1
        self.idle.clear()
        kind = "other"
        try:
            with self.body_budget.share(connection) as share:
                kind, work = self._route(request, share, connection)
                response = await work
        except Exception as exc:  # the top of the loop over requests
            response = self.refuse(request, exc)
        finally:
            self.under_way -= 1
            if not self.under_way:
                self.idle.set()
            connection.answered()
        if self.stopping:
            response.force_close()
        self._telemetry.ingest_answered(kind, response.status, self._loop.time() - started)
        return response

    def _route(self, request: BaseRequest, share: Share, connection: Connection) -> tuple[str, Awaitable[web.Response]]:
        if self.stopping:
            raise Problem(STOPPING, "the daemon is stopping and takes no more requests")
        if VERSION in request:
            raise Problem(BAD_REQUEST, f"expected HTTP/1.1, not {request[VERSION]}")
        template, argument = template_of(request.path)
        operations = ROUTES.get(template)
        if operations is None:
            raise Problem(NOT_FOUND, "there is no such resource; /v1/openapi.json tells which there are")
        operation = operations.get("GET" if request.method == "HEAD" else request.method)
        if operation is None:
            allowed = ", ".join([*operations, *(["HEAD"] if "GET" in operations else [])])
            raise Problem(WRONG_METHOD, f"only {allowed}", headers={"Allow": allowed})
        return operation.kind, operation.handle(self, Call(request, argument, share, connection))

    def refuse(self, request: BaseRequest, exc: BaseException | None) -> web.Response:
        """The answer to a request that failed with this, which is being handled."""
        if isinstance(exc, MalformedEvent):
            exc = malformed(exc)
        elif isinstance(exc, StoreError):
            exc = of_error(exc)
        elif isinstance(exc, HttpProcessingError):
            exc = Problem(BAD_REQUEST, f"not HTTP: {exc.message.splitlines()[0] if exc.message else ''}")
        elif isinstance(exc, ConnectionError):  # the client is gone, and this is not read
            exc = Problem(BAD_REQUEST, "the connection ended")
        elif not isinstance(exc, Problem):
            self._telemetry.crashed("ingest")
            exc = Problem(DEFECT, "the daemon's log has the reason")
        peer = request.remote or ""
        self._telemetry.ingest_refused(exc.kind.code, exc.kind.status, exc.reason, peer)
        response = exc.response()
        if "Expect" in request.headers:
            response.force_close()  # whether its body follows is up to the client now, so nothing else may
        return response

    # ------------------------------------------------------------------------------------------ rights

    def _permit(self, call: Call, topic: str) -> str:
        """The name of the request's token. Raises Problem unless it may send to the topic."""
        sender = self._sender(call)
        if not sender.allows(topic):
            raise Problem(FORBIDDEN, f"this token may not send to {topic}")
        return sender.name

    def _sender(self, call: Call) -> Grant:
        tokens = self._credentials.tokens
        if tokens is None:
            return ANYBODY
        scheme, _, token = call.request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise _unauthorized("send the token as Authorization: Bearer", "")
        grant = tokens.grant(token.strip())
        if grant is None:
            raise _unauthorized("this token is not known here", ', error="invalid_token"')
        return grant

    # ------------------------------------------------------------------------------------------ events

    async def publish(self, call: Call) -> web.Response:
        """Store events in one step."""
        token = self._permit(call, call.argument)
        ndjson, key = is_ndjson(call.request), idempotency_key(call.request)
        await self._topics.get(call.argument)
        receipt = self.limits.admit(token, call.argument)
        receipt.received(call.request.content_length or 0)
        raw = await self._body(call)
        receipt.received(len(raw))
        once = IdempotencyKey(key, await digest(raw, ndjson)) if key else None
        try:
            with traced(self.tracer, call.request, call.argument) as context:
                body = Body(raw, ndjson, context)
                stored, dropped, nbytes = await self._in_topic(
                    call.argument, lambda topic: self._publish(topic, body, once, receipt)
                )
        except BaseException:
            receipt.holds(0)
            raise
        if stored.repeated:
            receipt.holds(0)
        self._count(call.argument, stored, nbytes, dropped)
        return _json(200, {"stored": stored.events, "repeated": stored.repeated, "dropped_fields": dropped})

    async def _publish(
        self, topic: Topic, body: Body, once: IdempotencyKey | None, receipt: Receipt
    ) -> tuple[PublishResult, int, int]:
        seed = f"{topic.name}\0{once.key}".encode() if once else os.urandom(16)
        events, dropped = await self._placed(body, topic, seed)
        receipt.holds(len(events))
        stored = await self._store.ingest.publish(topic, events, once) if events else PublishResult(0)
        return stored, dropped, _nbytes(events)

    async def reserve(self, call: Call) -> web.Response:
        """Reserve room for events to come."""
        token = self._permit(call, call.argument)
        if is_ndjson(call.request):
            raise Problem(WRONG_TYPE, f"a reservation is {JSON}")
        topic = await self._topics.get(call.argument)
        receipt = self.limits.admit(token, call.argument)
        rooms = rooms_of(await self._body(call), topic, self._settings.max_events)
        receipt.received(sum(each.nbytes for each in rooms))
        receipt.holds(len(rooms))
        try:
            reservation = await self._in_topic(call.argument, lambda topic: self._store.ingest.reserve(topic, rooms))
        except BaseException:
            receipt.holds(0)
            raise
        self.limits.reserved(reservation, receipt)
        answer = {
            "reservation": reservation,
            "expires_in_seconds": int(self.limits.reservation_s),
            "events": len(rooms),
        }
        return _json(201, answer, {"Location": f"/v1/reservations/{reservation}"})

    async def commit(self, call: Call) -> web.Response:
        """Store the events that room was reserved for."""
        name = await self._topic_of_reservation(call)
        ndjson = is_ndjson(call.request)
        raw = await self._body(call)
        asked = await digest(raw, ndjson)
        with traced(self.tracer, call.request, name) as context:
            body = Body(raw, ndjson, context)
            stored, dropped, nbytes = await self._in_topic(
                name, lambda topic: self._commit(topic, call.argument, body, asked)
            )
        self.limits.ended(call.argument, Cost(nbytes, stored.events))
        self._count(name, stored, nbytes, dropped)
        return _json(200, {"stored": stored.events, "repeated": stored.repeated, "dropped_fields": dropped})

    async def _commit(self, topic: Topic, reservation: str, body: Body, asked: bytes) -> tuple[PublishResult, int, int]:
        events, dropped = await self._placed(body, topic, reservation.encode())
        if not events:
            raise Problem(MISMATCH, "there are no events")
        try:
            return await self._store.ingest.commit(topic, reservation, events, asked), dropped, _nbytes(events)
        except OnceConflict as exc:
            raise Problem(DECIDED, str(exc)) from exc
        except ReservationExceeded:
            if not body.context:
                raise
        # The room was reserved for the events alone: the trace context does without, and no event is refused for it.
        return await self._commit(topic, reservation, replace(body, context=b""), asked)

    async def abort(self, call: Call) -> web.Response:
        """Give reserved room back."""
        name = await self._topic_of_reservation(call)
        try:
            await self._in_topic(name, lambda topic: self._store.ingest.abort(topic, call.argument))
        except OnceConflict as exc:
            raise Problem(DECIDED, str(exc)) from exc
        self.limits.ended(call.argument, Cost())
        return web.Response(status=204, headers={"Server": "remora"})

    async def _in_topic(self, name: str, work: Callable[[Topic], Awaitable[T]]) -> T:
        """Do something in a topic; once more where it was made anew within the time that we believed to know it."""
        try:
            return await work(await self._topics.get(name))
        except TopicUnknown:
            self._topics.forget(name)
            return await work(await self._topics.get(name))

    async def _topic_of_reservation(self, call: Call) -> str:
        """The name of the topic that a reservation begins with, when there is one and it may be sent to."""
        match = _RESERVATION.fullmatch(call.argument)
        self._permit(call, match[1] if match else "")
        try:
            if match:
                return (await self._topics.get(match[1])).name
        except Problem as exc:
            if exc.kind is not NO_TOPIC:
                raise
        raise Problem(NO_RESERVATION, "there is no such reservation")

    async def _body(self, call: Call) -> bytes:
        settings = self._settings
        body = await read_body(
            call.request, call.share, most_bytes=settings.max_request_bytes, timeout_s=settings.request_timeout_s
        )
        call.connection.complete()
        return body

    async def _placed(self, body: Body, topic: Topic, seed: bytes) -> tuple[list[RoutedEvent], int]:
        """The events of a body, and how many of their members were dropped. Others get their turn meanwhile."""
        events: list[RoutedEvent] = []
        dropped, begun = 0, False
        created = Time(*divmod(time.time_ns(), 10**9))
        most, context = self._settings.max_events, body.context
        for part in place(body.raw, topic, ndjson=body.is_ndjson, most=most, created=created, seed=seed):
            if begun:
                await asyncio.sleep(0)
            begun = True
            events += (
                [each._replace(payload=each.payload + context) for each in part.events] if context else part.events
            )
            dropped += part.dropped
        return events, dropped

    def _count(self, topic: str, stored: PublishResult, nbytes: int, dropped: int) -> None:
        if stored.repeated:
            self._telemetry.ingest_repeated(topic)
        else:
            self._telemetry.ingested(topic, stored.events, nbytes, dropped)

    # -------------------------------------------------------------------------------------------- looks

    async def topics(self, call: Call) -> web.Response:
        """The topics that may be sent to."""
        sender = self._sender(call)
        found = (await self._store.catalog.topics()).values()
        shown = [each for each in found if each.origin is Origin.REMORA and sender.allows(each.name)]
        return _json(200, {"topics": [_topic_json(each) for each in sorted(shown, key=lambda each: each.name)]})

    async def topic(self, call: Call) -> web.Response:
        """One topic."""
        self._permit(call, call.argument)
        return _json(200, _topic_json(await self._topics.get(call.argument)))

    async def sequence(self, call: Call) -> web.Response:
        """How far a topic's sequence has come."""
        self._permit(call, call.argument)
        topic_id, reached = await self._in_topic(call.argument, self._sequence)
        return _json(
            200, {"topic": call.argument, "id": topic_id, "tail": reached.tail, "delivered": reached.delivered}
        )

    async def _sequence(self, topic: Topic) -> tuple[str, SequenceState]:
        return topic.id, await self._store.own_topics.sequence(topic)

    async def openapi(self, _: Call) -> web.Response:
        """The description of all this."""
        return web.Response(body=DOCUMENT, headers=JSON_HEADERS)

    async def health(self, _: Call) -> web.Response:
        """Whether requests are taken: where they are not, this is refused like all others."""
        return _json(200, {"ok": True})


ROUTES: Mapping[str, Mapping[str, Operation]] = MappingProxyType({
    "/v1/topics/{topic}/events": {"POST": Operation("publish", Api.publish)},
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


def _unauthorized(detail: str, error: str) -> Problem:
    return Problem(UNAUTHORIZED, detail, headers={"WWW-Authenticate": f'Bearer realm="remora"{error}'})


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


def _json(status: int, value: object, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode(value), headers={**JSON_HEADERS, **headers} if headers else JSON_HEADERS
    )
