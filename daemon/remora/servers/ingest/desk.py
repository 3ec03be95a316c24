"""What all requests share: who may send, what they may send, and how they are counted, refused and finished."""

from __future__ import annotations

import asyncio

from remora.codec.s3_events import MalformedEvent
from remora.config.ingest import IngestSettings
from remora.metrics import Telemetry
from remora.model.errors import StoreError
from remora.model.ingest import PublishResult
from remora.ports.producer import IngestStore
from remora.ports.tracing import NO_TRACER
from remora.process.host_load import HostLoad
from remora.servers.http.head import Head, NotARequest
from remora.servers.http.response import Response
from remora.servers.ingest.body_budget import BodyBudget
from remora.servers.ingest.credentials import Credentials
from remora.servers.ingest.limits import IngestLimits
from remora.servers.ingest.matches import DefinitionLookup
from remora.servers.ingest.problems import BAD_REQUEST, DEFECT, FORBIDDEN, UNAUTHORIZED, RefusedRequest, of_error
from remora.servers.ingest.request_reader import malformed
from remora.servers.ingest.topics import TopicLookup
from remora.servers.tokens import ANYBODY, SenderGrant, bearer_of


class Desk:
    """One for all requests of a server. It belongs to one event loop."""

    def __init__(
        self,
        settings: IngestSettings,
        store: IngestStore,
        telemetry: Telemetry,
        credentials: Credentials,
        host: HostLoad,
        limits: IngestLimits,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.settings = settings
        self.store = store
        self.telemetry = telemetry
        self.limits = limits
        self.tracer = NO_TRACER
        self.topics = TopicLookup(store.own_topics)
        self.definitions = DefinitionLookup(store.notifications)
        self.body_budget = BodyBudget(settings.pause_at_bytes, host, telemetry)
        self._credentials = credentials
        self.under_way = 0
        self.stopping = False
        self.idle = asyncio.Event()
        self.idle.set()

    def begin(self) -> float:
        """A request begins; the time."""
        self.under_way += 1
        if self.under_way == 1:
            self.idle.clear()
        return self.loop.time()

    def end(self, kind: str, response: Response, began: float) -> None:
        """It has its answer."""
        self.forget()
        self.telemetry.ingest_answered(kind, response.status, self.loop.time() - began)

    def forget(self) -> None:
        """It has no answer, since it begins once more."""
        self.under_way -= 1
        if not self.under_way:
            self.idle.set()

    def count(self, topic: str, stored: PublishResult, nbytes: int, dropped: int) -> None:
        """Events of a topic are stored."""
        if stored.repeated:
            self.telemetry.ingest_repeated(topic)
        else:
            self.telemetry.ingested(topic, stored.events, nbytes, dropped)

    # ------------------------------------------------------------------------------------------ rights

    def permit(self, head: Head, topic: str) -> str:
        """The name of the request's token. Raises Problem unless it may send to the topic."""
        sender = self.sender(head)
        if sender is not ANYBODY and not sender.allows(topic):
            raise RefusedRequest(FORBIDDEN, f"this token may not send to {topic}")
        return sender.name

    def sender(self, head: Head) -> SenderGrant:
        """Whose token the request has. Raises Problem where tokens are needed and it has none that is known."""
        tokens = self._credentials.tokens
        if tokens is None:
            return ANYBODY
        token = bearer_of(head.headers.get(b"authorization"))
        if not token:
            raise _unauthorized("send the token as Authorization: Bearer", "")
        grant = tokens.grant(token)
        if grant is None:
            raise _unauthorized("this token is not known here", ', error="invalid_token"')
        return grant

    # ---------------------------------------------------------------------------------------- refusals

    def refuse(self, head: Head | None, exc: BaseException, peer: str) -> Response:
        """The answer to a request that failed with this, which is being handled; None is one that cannot be read."""
        problem = self._problem(exc)
        self.telemetry.ingest_refused(problem.kind.code, problem.kind.status, problem.reason, peer)
        response = problem.response()
        if head is None or b"expect" in head.headers:
            response.close()  # whether its body follows is up to the client now, so nothing else may
        return response

    def _problem(self, exc: BaseException) -> RefusedRequest:
        match exc:
            case RefusedRequest():
                return exc
            case MalformedEvent():
                return malformed(exc)
            case StoreError():
                return of_error(exc)
            case NotARequest():
                return RefusedRequest(BAD_REQUEST, f"not HTTP: {exc}")
        self.telemetry.crashed("ingest")
        return RefusedRequest(DEFECT, "the daemon's log has the reason")


def _unauthorized(detail: str, error: str) -> RefusedRequest:
    return RefusedRequest(UNAUTHORIZED, detail, headers={"WWW-Authenticate": f'Bearer realm="remora"{error}'})
