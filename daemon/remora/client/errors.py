"""Errors of a client of the ingest API: why its events are not stored."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType

import msgspec

from remora.model.errors import PermissionMissing, RemoraError

MOST_TEXT = 500
"""Characters that are shown of an answer that is no problem document."""


class Problem(msgspec.Struct, frozen=True):
    """A problem document (RFC 9457). `record` counts from 0, `line` from 1, and `field` is a dotted path."""

    status: int = 0
    code: str = ""
    title: str = ""
    detail: str = ""
    record: int | None = None
    line: int | None = None
    field: str | None = None

    @property
    def text(self) -> str:
        """One sentence for a person."""
        return self.detail or self.title or f"status {self.status}"


class IngestError(RemoraError):
    """A request that did not succeed. `problem` is the server's answer, None where there was none.

    Nothing was stored by it, unless this is IngestUnavailable and says otherwise.
    """

    def __init__(self, text: str, problem: Problem | None = None) -> None:
        super().__init__(text)
        self.problem = problem


class IngestUnavailable(IngestError):
    """The server was not reachable, had no room, or did not answer, until the deadline was over.

    With `outcome_unknown` one of the attempts may have been carried out. Repeating the call with the same
    idempotency key, or the same commit, stores nothing twice.
    """

    retriable = True

    def __init__(self, text: str, problem: Problem | None = None, *, outcome_unknown: bool) -> None:
        super().__init__(text, problem)
        self.outcome_unknown = outcome_unknown


class IngestMisconfigured(IngestError, PermissionMissing):
    """The address, a certificate, or the permission for a socket is wrong: an operator must act."""


class NotPermitted(IngestError, PermissionMissing):
    """The token is missing or unknown, or has no right to this topic."""

    @property
    def wants_token(self) -> bool:
        """Whether it is a token that the server knows that is missing, and not a right of the one it got."""
        return self.problem is not None and self.problem.status == HTTPStatus.UNAUTHORIZED


class TopicNotFound(IngestError):
    """There is no such topic, or it takes no new events."""


class NotSequenced(IngestError):
    """The topic numbers no events."""


class EventsRefused(IngestError):
    """The events are malformed or too large; the problem says which of them and why. The same will never pass."""


class Ambiguous(IngestError):
    """The idempotency key, or the reservation, was used for something else before."""


class ReservationGone(IngestError):
    """The reservation has expired, was aborted, or never was."""


class RequestRejected(IngestError):
    """The server does not take such requests, or failed in a way that a repetition would not mend."""


_BY_CODE: Mapping[str, type[IngestError]] = MappingProxyType({
    "NoSuchTopic": TopicNotFound,
    "TopicClosed": TopicNotFound,
    "NotSequenced": NotSequenced,
    "NoSuchReservation": ReservationGone,
    "ReservationExpired": ReservationGone,
    "ReservationDecided": Ambiguous,
    "IdempotencyKeyReused": Ambiguous,
    "Unauthorized": NotPermitted,
    "Forbidden": NotPermitted,
    "MalformedEvent": EventsRefused,
    "TooManyEvents": EventsRefused,
    "EntityTooLarge": EventsRefused,
    "ReservationExceeded": EventsRefused,
    "ReservationMismatch": EventsRefused,
    "BadRequest": EventsRefused,
})  # fmt: skip
_BY_STATUS: Mapping[int, type[IngestError]] = MappingProxyType({
    400: EventsRefused, 401: NotPermitted, 403: NotPermitted, 413: EventsRefused, 422: EventsRefused,
})  # fmt: skip
"""For answers of something in between, such as a proxy, which have no code."""

_decode = msgspec.json.Decoder(Problem).decode


def problem_of(status: int, body: bytes) -> Problem:
    """The problem document of an answer; one made from its text when it is something else."""
    try:
        found = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = body[:MOST_TEXT].decode("utf-8", "replace").strip()
        return Problem(status=status, detail=f"status {status}: {text}" if text else "")
    return msgspec.structs.replace(found, status=status)


def refusal(problem: Problem) -> IngestError:
    """The error to raise for an answer that a repetition would not change."""
    kind = _BY_CODE.get(problem.code) or _BY_STATUS.get(problem.status, RequestRejected)
    return kind(problem.text, problem)
