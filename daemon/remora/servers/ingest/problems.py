"""Refusals as problem documents (RFC 9457), and which error of the store is which of them."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from remora.model import errors
from remora.servers.http.response import Response

CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_S = 1

_HEADERS = MappingProxyType({"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store", "Server": "remora"})


@dataclass(frozen=True, slots=True)
class Kind:
    """A reason to refuse: its status, its name for programs, its title, and whether to come back later."""

    status: int
    code: str
    title: str
    retry: bool = False


SLOW_DOWN = Kind(503, "SlowDown", "Please reduce your request rate", retry=True)
STOPPING = Kind(503, "ServiceUnavailable", "The daemon is stopping", retry=True)
STORE_AWAY = Kind(503, "StoreUnavailable", "The store does not answer", retry=True)
STORE_FULL = Kind(507, "StoreFull", "The store has no room left", retry=True)
STORE_DAMAGED = Kind(500, "StoreDamaged", "A part of the store cannot be read")
STORE_WRONG = Kind(500, "StoreMisconfigured", "The store cannot be used")
DEFECT = Kind(500, "InternalError", "The request failed unexpectedly")

RATE_LIMITED = Kind(429, "RateLimited", "The limit of this token or topic is used up")

BAD_REQUEST = Kind(400, "BadRequest", "The request cannot be understood")
UNAUTHORIZED = Kind(401, "Unauthorized", "A valid token is needed")
FORBIDDEN = Kind(403, "Forbidden", "The token has no right to this topic")
CROSS_ORIGIN = Kind(403, "CrossOrigin", "Web pages may not send here")
UNCONFIRMED = Kind(403, "SubscriptionUnconfirmed", "A subscription is confirmed by an operator")
NOT_FOUND = Kind(404, "NotFound", "There is no such resource")
NO_TOPIC = Kind(404, "NoSuchTopic", "There is no such topic")
UNMATCHED = Kind(422, "NoNotificationMatches", "An event matches no notification")
NO_SEQUENCE = Kind(404, "NotSequenced", "The topic numbers no events")
NO_RESERVATION = Kind(404, "NoSuchReservation", "There is no such reservation")
WRONG_METHOD = Kind(405, "MethodNotAllowed", "The resource has no such method")
TIMEOUT = Kind(408, "RequestTimeout", "The request did not arrive in time")
TOPIC_CLOSED = Kind(409, "TopicClosed", "The topic takes no new events")
MISMATCH = Kind(409, "ReservationMismatch", "The events are not those that room was reserved for")
DECIDED = Kind(409, "ReservationDecided", "The reservation was ended in another way before")
EXPIRED = Kind(410, "ReservationExpired", "The reservation has ended without events")
EXCEEDED = Kind(413, "ReservationExceeded", "An event is larger than what was reserved for it")
TOO_LARGE = Kind(413, "EntityTooLarge", "The request is too large")
TOO_MANY = Kind(413, "TooManyEvents", "The request has too many events")
WRONG_TYPE = Kind(415, "UnsupportedMediaType", "The body is of a type that is not taken here")
EXPECTATION = Kind(417, "ExpectationFailed", "Only 100-continue can be expected")
MALFORMED = Kind(422, "MalformedEvent", "An event is not as it should be")
KEY_REUSED = Kind(422, "IdempotencyKeyReused", "The idempotency key was used for another request")
"""422 is what the draft of the Idempotency-Key header asks for; 409 is its answer to a request still under way."""

_OF_ERROR: tuple[tuple[type[errors.RemoraError], Kind], ...] = (
    (errors.QueueFull, SLOW_DOWN),
    (errors.StoreFull, STORE_FULL),
    (errors.StoreUnavailable, STORE_AWAY),
    (errors.DirectoryLost, STORE_AWAY),
    (errors.StoreDamaged, STORE_DAMAGED),
    (errors.TopicMoved, STORE_AWAY),
    (errors.TopicUnknown, NO_TOPIC),
    (errors.TopicNotSequenced, NO_SEQUENCE),
    (errors.TopicClosed, TOPIC_CLOSED),
    (errors.OnceConflict, KEY_REUSED),
    (errors.ReservationUnknown, NO_RESERVATION),
    (errors.ReservationExpired, EXPIRED),
    (errors.ReservationMismatch, MISMATCH),
    (errors.ReservationExceeded, EXCEEDED),
    (errors.StoreError, STORE_WRONG),
)

_INWARD = (STORE_AWAY, STORE_FULL, STORE_DAMAGED, STORE_WRONG)

ALL = tuple(each for each in globals().values() if isinstance(each, Kind))


class RefusedRequest(Exception):
    """A request that is refused: nothing was changed, save where its kind is that the store did not answer."""

    def __init__(
        self,
        kind: Kind,
        detail: str,
        *,
        record: int | None = None,
        line: int | None = None,
        field: str | None = None,
        headers: dict[str, str] | None = None,
        reason: str = "",
    ) -> None:
        """`reason` is for the log, where it is another one than `detail`."""
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.reason = reason or detail
        self.headers = headers or {}
        self._where = {"record": record, "line": line, "field": field}

    def response(self) -> Response:
        """The answer to give."""
        retry = {"Retry-After": str(RETRY_AFTER_S)} if self.kind.retry else {}
        return Response(self.kind.status, self.document(), {**_HEADERS, **retry, **self.headers})

    def document(self) -> bytes:
        """The problem document."""
        detail = self.detail.encode(errors="backslashreplace").decode()  # a client's text in it may be no UTF-8
        return msgspec.json.encode(
            {
                "type": f"urn:remora:problem:{self.kind.code}",
                "title": self.kind.title,
                "status": self.kind.status,
                "code": self.kind.code,
                "detail": detail,
                **{name: value for name, value in self._where.items() if value is not None},
            }
        )


def stopping() -> RefusedRequest:
    """The refusal of a request that comes, or still waits, while the daemon stops."""
    return RefusedRequest(STOPPING, "the daemon is stopping and takes no more requests")


def of_error(error: errors.StoreError) -> RefusedRequest:
    """What an error of the store is to the client. How the store is made is the operator's affair: that is logged."""
    kind = next(kind for of, kind in _OF_ERROR if isinstance(error, of))
    detail = f"{kind.title[0].lower()}{kind.title[1:]}; the daemon's log says more" if kind in _INWARD else str(error)
    return RefusedRequest(kind, detail, reason=str(error))
