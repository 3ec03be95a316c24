"""What all requests share: what is checked before a body, in which order; the topics that they name; and how they are
counted, refused and finished."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from remora.codec.s3_events import MalformedEvent
from remora.config.ingest import IngestSettings
from remora.metrics import Telemetry
from remora.model.errors import StoreError, TopicMoved
from remora.model.ingest import PublishResult
from remora.model.topic import NAME, Topic
from remora.policy.ingest.browsers import is_of_page
from remora.ports.administration import OwnTopics
from remora.ports.producer import IngestStore
from remora.ports.tracing import NO_TRACER
from remora.process.host_load import HostLoad
from remora.servers.http.begun import in_task
from remora.servers.http.head import MOST_KEPT, VERSIONS, Head, NotARequest
from remora.servers.http.response import Response
from remora.servers.ingest.body_budget import BodyBudget
from remora.servers.ingest.credentials import Credentials
from remora.servers.ingest.limits import IngestLimits, Receipt
from remora.servers.ingest.matches import DefinitionLookup
from remora.servers.ingest.problems import (
    BAD_REQUEST,
    CROSS_ORIGIN,
    DEFECT,
    FORBIDDEN,
    NO_TOPIC,
    UNAUTHORIZED,
    RefusedRequest,
    of_error,
    stopping,
)
from remora.servers.ingest.request_reader import BodyForm, form_of, idempotency_key, malformed
from remora.servers.tokens import ANYBODY, SenderGrant, Tokens, bearer_of


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
        return _permitted(self._credentials.tokens, head, topic)

    def sender(self, head: Head) -> SenderGrant:
        """Whose token the request has. Raises Problem where tokens are needed and it has none that is known."""
        return _sender_of(self._credentials.tokens, head)

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


_for_each_head = lru_cache(maxsize=MOST_KEPT)
"""What a head says is found out once: requests whose heads have the same bytes get the same one. What raises is found
out anew each time."""


@_for_each_head
def _permitted(tokens: Tokens | None, head: Head, topic: str) -> str:
    """As `Desk.permit`, with the tokens as they are now: others that are read in their place are other ones."""
    sender = _sender_of(tokens, head)
    if sender is not ANYBODY and not sender.allows(topic):
        raise RefusedRequest(FORBIDDEN, f"this token may not send to {topic}")
    return sender.name


def _sender_of(tokens: Tokens | None, head: Head) -> SenderGrant:
    if tokens is None:
        return ANYBODY
    token = bearer_of(head.headers.get(b"authorization"))
    if not token:
        raise _unauthorized("send the token as Authorization: Bearer", "")
    grant = tokens.grant(token)
    if grant is None:
        raise _unauthorized("this token is not known here", ', error="invalid_token"')
    return grant


def _unauthorized(detail: str, error: str) -> RefusedRequest:
    return RefusedRequest(UNAUTHORIZED, detail, headers={"WWW-Authenticate": f'Bearer realm="remora"{error}'})


ONCE = ("Authorization", "Content-Encoding", "Content-Type", "Idempotency-Key")
"""Headers that may stand once: of several it would be open which one is meant, and a proxy may read another one."""


@_for_each_head
def check_any(is_stopping: bool, head: Head) -> None:
    """Let in a request of any kind. Raises Problem.

    A page comes first: it learns nothing here, not even what there is.
    """
    if is_of_page(head.headers.given(b"origin"), head.headers.given(b"sec-fetch-site")):
        raise RefusedRequest(CROSS_ORIGIN, "requests that a web page in a browser has sent are not taken")
    if is_stopping:
        raise stopping()
    if head.version not in VERSIONS:
        raise RefusedRequest(BAD_REQUEST, f"expected HTTP/1.1, not HTTP/{head.version}")
    if head.headers.repeats:
        for name in ONCE:
            if len(head.headers.values(name.lower().encode())) > 1:
                raise RefusedRequest(BAD_REQUEST, f"{name}: stands more than once", field=name)


def check_publishing(desk: Desk, head: Head, topic: str) -> tuple[str, BodyForm, str]:
    """Let in a request to publish to a topic, whether there is one or not; raises Problem. It passed `check_any`.

    Gives the name of its token, the form that its body has, and its idempotency key.
    """
    token = desk.permit(head, topic)
    return token, form_of(head.headers), idempotency_key(head.headers)


def admit(desk: Desk, token: str, topic: str, nbytes: int) -> Receipt:
    """Charge a request with so many bytes to a topic that there is. Raises Problem where a limit is used up."""
    receipt = desk.limits.admit(token, topic)
    receipt.received(nbytes)
    return receipt


FRESH_S = 1.0
MOST_KNOWN = 10_000
"""For how long a topic counts as known, and how many are."""


@dataclass(slots=True)
class _Known:
    """A topic, until when it counts as known, and whether somebody looks it up anew."""

    topic: Topic
    until: float
    is_asked: bool = False


class TopicLookup:
    """OwnTopics as they were at most a second ago, and a second more while they are looked up anew.

    Older ones do no harm: the store refuses to store into a topic that is gone, another one, or closed by now.
    """

    def __init__(self, store: OwnTopics) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._known: dict[str, _Known] = {}

    def known(self, name: str) -> Topic | None:
        """The topic of this name, where it is known. Who gets None is to `look_up` it, and others need not wait for
        that: else all requests of a busy second would."""
        known = self._known.get(name)
        if known is None:
            return None
        late_s = self._loop.time() - known.until
        if late_s >= 0 and (not known.is_asked or late_s >= FRESH_S):
            known.is_asked = True
            return None
        return known.topic

    async def get(self, name: str) -> Topic:
        """The topic of this name, known or looked up. Raises Problem when there is none, and StoreError."""
        return self.known(name) or await self.look_up(name)

    async def look_up(self, name: str) -> Topic:
        """The topic of this name as the store has it. Raises as `get`."""
        await in_task()
        topic = await self._store.find(name) if NAME.fullmatch(name) else None
        if topic is None:
            self._known.pop(name, None)
            raise RefusedRequest(NO_TOPIC, f"there is no topic {name!r}; `remora topic create` makes one")
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[name] = _Known(topic, self._loop.time() + FRESH_S)
        return topic

    def forget(self, name: str) -> None:
        """What was known of this topic has turned out to be wrong."""
        self._known.pop(name, None)


T = TypeVar("T")

MOVING_S, MOVED_PAUSE_S = 10.0, 0.02
"""For how long, and with which pauses, a request is repeated whose topic gets another number of shards."""


async def while_moving(work: Callable[[], Awaitable[T]]) -> T:
    """Do something, and again while it is refused because the topic moves: nothing was done then.

    Raises TopicMoved when the topic still moves after MOVING_S.
    """
    until = asyncio.get_running_loop().time() + MOVING_S
    while True:
        try:
            return await work()
        except TopicMoved:
            if asyncio.get_running_loop().time() >= until:
                raise
        await in_task()
        await asyncio.sleep(MOVED_PAUSE_S)
