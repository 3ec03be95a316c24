"""Sending events to the ingest API, in one step or in two, again and again until it is known what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import math
import os
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from random import Random
from typing import Self, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from remora.client.distribution import ComingEvent, RoomWhereNotified, WhereNotified
from remora.client.errors import (
    IngestError,
    IngestMisconfigured,
    IngestUnavailable,
    Problem,
    RequestRejected,
    TopicNotFound,
    problem_of,
    refusal,
)
from remora.model.words import several
from remora.policy.delivery.retry import MOST_LIMITED_S, Backoff, Patience

T = TypeVar("T")

Event = bytes | Mapping[str, object]
"""A record in S3's event format: as JSON on one line, or as the value that JSON is made of."""

NDJSON = "application/x-ndjson"

_BACKOFF = Backoff(base_s=0.1, cap_s=5.0)
_LONGEST_RETRY_AFTER_S = 60.0
_ABORT_S = 5.0
_SILENT_S = 10.0
_LIMITED = HTTPStatus.TOO_MANY_REQUESTS
_AGAIN = frozenset({408, 425, _LIMITED, 502, 503, 504, 507})
_LARGE = 1 << 20  # aiohttp warns of larger bodies unless they are handed over as a file


@dataclass(frozen=True, slots=True)
class Taken:
    """Events that are stored durably; `repeated` when an earlier attempt of this very request had stored them.

    `dropped_fields` counts the members of records that a queue's entry has no room for.
    """

    events: int
    repeated: bool
    dropped_fields: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """Room for some events of a topic, which cannot be refused any more until it expires."""

    id: str
    events: int
    expires_in_s: float


class TopicSequence(msgspec.Struct, frozen=True):
    """How far the sequence of a topic has come; `id` is another one when the topic was made anew.

    `tail` is the last number that an event was given, 0 before the first. Each event up to `delivered` is at the
    endpoint, or a dead letter, or was given up.
    """

    id: str
    tail: int
    delivered: int


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that may be repeated: why it failed, and whether it may have been carried out all the same.

    `retry_after_s` is how long the server asks to wait, 0 where it does not. `problem` is its answer, if there was one.
    """

    text: str
    outcome_unknown: bool
    retry_after_s: float = 0.0
    problem: Problem | None = None

    @property
    def is_limited(self) -> bool:
        """Whether a rate limit of the token or the topic refused the request, and said how long to wait."""
        return self.problem is not None and self.problem.status == _LIMITED and self.retry_after_s > 0


class _TakenJson(msgspec.Struct):
    stored: int
    repeated: bool = False
    dropped_fields: int = 0


class _TopicJson(msgspec.Struct):
    kafka_topic: str = ""
    closed: bool = False


class _ReservationJson(msgspec.Struct):
    reservation: str
    events: int = 0
    expires_in_seconds: float = 0.0


class _RoomJson(_ReservationJson, kw_only=True):
    topics: dict[str, int]


_taken = msgspec.json.Decoder(_TakenJson)
_reserved = msgspec.json.Decoder(_ReservationJson)
_room = msgspec.json.Decoder(_RoomJson)
_distributed = msgspec.json.Decoder(WhereNotified)
_topic = msgspec.json.Decoder(_TopicJson)
_sequence = msgspec.json.Decoder(TopicSequence)


class IngestClient:
    """One server's ingest API, over a bounded number of connections. Belongs to the event loop that entered it.

    `address` is `unix:/path`, `http://host:port` or `https://host:port`; `ca_file` is what a TLS server's
    certificate is checked with, in place of the system's authorities.

    Each call is repeated, with pauses, while the server is away, does not answer, or has no room: as long as an
    attempt can begin within `deadline_s`, and then it raises IngestUnavailable. Waits that a rate limit of the token or
    the topic asks for (429) do not count there: they may take `limited_s` together. A repetition never stores anything
    twice. Each attempt may take `attempt_s`; the last one too, because one that is cut off leaves its outcome unknown.
    Every other refusal is raised at once, as one of the errors of this package.
    """

    def __init__(  # noqa: PLR0913 - each has a default, and users give the few that they need by name
        self,
        address: str,
        *,
        token: str = "",
        ca_file: str | Path | None = None,
        connections: int = 8,
        deadline_s: float = 60.0,
        limited_s: float = MOST_LIMITED_S,
        attempt_s: float = 35.0,
    ) -> None:
        self._path, self._base = _parse_address(address)
        self._address = address
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._ca_file = ca_file
        # Not the connector's own limit: what waits there would use up the time of an attempt.
        self._free = asyncio.Semaphore(connections)
        self._patience = Patience(deadline_s, limited_s)
        self._attempt_s = attempt_s
        self._rng = Random()  # noqa: S311  # spreads load, guards nothing
        self._session: aiohttp.ClientSession | None = None
        self.on_wait: Callable[[str, float], None] = lambda _why, _elapsed_s: None
        """Called before each pause with why the last attempt failed, and for how long the request has been tried; and
        each 10 s of an attempt that is not answered."""

    async def __aenter__(self) -> Self:
        if self._path:
            connector: aiohttp.BaseConnector = aiohttp.UnixConnector(self._path, limit=0)
        else:
            connector = aiohttp.TCPConnector(limit=0, ssl=self._tls())
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._attempt_s),
        )
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # ----------------------------------------------------------------------------------------- one step

    async def publish(
        self, topic: str, records: Iterable[Event], *, idempotency_key: str | None = None, traceparent: str = ""
    ) -> Taken:
        """Store events, all or none; returns when they are durable.

        Without a key each call is a request of its own. With one, a later call that has the same key and the same
        records is a repetition of it. `traceparent`, as W3C's Trace Context has it, goes with each event to where it is
        delivered.
        """
        lines = ndjson(records)
        return await self.publish_ndjson(topic, lines, idempotency_key=idempotency_key, traceparent=traceparent)

    async def publish_ndjson(
        self, topic: str, lines: bytes, *, idempotency_key: str | None = None, traceparent: str = ""
    ) -> Taken:
        """Store the events of some lines; each line is a record or `{"Records":[...]}`."""
        key = idempotency_key or secrets.token_hex(16)
        headers = {"Content-Type": NDJSON, "Idempotency-Key": key, **_traced(traceparent)}
        return _as_taken(await self._ask("POST", f"{_path_of_topic(topic)}/events", lines, headers))

    async def publish_once(self, topic: str, lines: bytes, *, idempotency_key: str) -> Taken | Failure:
        """Attempt to store the events of some lines, once: for callers that count and time every attempt themselves.

        A later attempt with the same key and the same lines is a repetition of it.
        """
        headers = {"Content-Type": NDJSON, "Idempotency-Key": idempotency_key}
        answer = await self._attempt("POST", f"{_path_of_topic(topic)}/events", lines, headers)
        return answer if isinstance(answer, Failure) else _as_taken(answer)

    async def check_topic(self, topic: str) -> str:
        """The Kafka topic of a topic that the server has and takes events for. Raises TopicNotFound where it does not.

        It is empty where the server does not say.
        """
        found = _read(_topic, await self._ask("GET", _path_of_topic(topic), b"", {}))
        if found.closed:
            raise TopicNotFound(f"topic {topic} is being drained and takes no new events")
        return found.kafka_topic

    async def sequence(self, topic: str) -> TopicSequence:
        """How far the sequence of a topic has come. Raises NotSequenced for one that numbers no events."""
        return _read(_sequence, await self._ask("GET", f"{_path_of_topic(topic)}/sequence", b"", {}))

    # ---------------------------------------------------------------------------------------- two steps

    async def reserve(self, topic: str, rooms: Sequence[tuple[str, str, int]]) -> Reservation:
        """Reserve room for events to come, each of (bucket, object key, bytes at most), in all shards or none.

        An attempt whose answer was lost leaves a reservation behind, which expires by itself.
        """
        events = [{"bucket": bucket, "object": key, "bytes": nbytes} for bucket, key, nbytes in rooms]
        body = msgspec.json.encode({"events": events})
        headers = {"Content-Type": "application/json"}
        answer = await self._ask("POST", f"{_path_of_topic(topic)}/reservations", body, headers)
        found = _read(_reserved, answer)
        return Reservation(found.reservation, found.events, found.expires_in_seconds)

    async def commit(self, reservation: Reservation, records: Iterable[Event], *, traceparent: str = "") -> Taken:
        """Store the events that room was reserved for, and end the reservation."""
        return await self.commit_ndjson(reservation, ndjson(records), traceparent=traceparent)

    async def commit_ndjson(self, reservation: Reservation, lines: bytes, *, traceparent: str = "") -> Taken:
        """Store the events of some lines, and end the reservation."""
        headers = {"Content-Type": NDJSON, **_traced(traceparent)}
        answer = await self._ask("PUT", _path_of(reservation), lines, headers)
        return _as_taken(answer)

    async def abort(self, reservation: Reservation | RoomWhereNotified) -> None:
        """Give the room back. Aborting again is no error."""
        await self._ask("DELETE", _path_of(reservation), b"", {})

    @asynccontextmanager
    async def reserved(self, topic: str, rooms: Sequence[tuple[str, str, int]]) -> AsyncIterator[Reservation]:
        """A reservation for the block to commit; it is aborted when the block fails.

        Where that cannot be done within a few seconds it is left to expire.
        """
        reservation = await self.reserve(topic, rooms)
        async with self._aborted_on_failure(reservation):
            yield reservation

    @asynccontextmanager
    async def _aborted_on_failure(self, reservation: Reservation | RoomWhereNotified) -> AsyncIterator[None]:
        try:
            yield
        except BaseException:
            with contextlib.suppress(IngestError, TimeoutError):
                async with asyncio.timeout(_ABORT_S):
                    await self.abort(reservation)
            raise

    # ------------------------------------------------------------------------- where notifications send it

    async def publish_matching(
        self, records: Iterable[Event], *, idempotency_key: str | None = None, traceparent: str = ""
    ) -> WhereNotified:
        """Store events in the topics that the server's notifications send them to, all copies or none.

        It is repeated as `publish` is. A repetition keeps the topics of the attempt that was carried out.
        """
        return await self.publish_matching_ndjson(
            ndjson(records), idempotency_key=idempotency_key, traceparent=traceparent
        )

    async def publish_matching_ndjson(
        self, lines: bytes, *, idempotency_key: str | None = None, traceparent: str = ""
    ) -> WhereNotified:
        """Store the events of some lines, each a record or `{"Records":[...]}`, as `publish_matching` does."""
        key = idempotency_key or secrets.token_hex(16)
        headers = {"Content-Type": NDJSON, "Idempotency-Key": key, **_traced(traceparent)}
        return _read(_distributed, await self._ask("POST", "/v1/events", lines, headers))

    async def reserve_matching(self, events: Sequence[ComingEvent]) -> RoomWhereNotified:
        """Reserve room in every topic that notifications may send these events to, or in none."""
        body = msgspec.json.encode({"events": [event.as_json for event in events]})
        answer = await self._ask("POST", "/v1/reservations", body, {"Content-Type": "application/json"})
        found = _read(_room, answer)
        return RoomWhereNotified(found.reservation, found.events, found.expires_in_seconds, found.topics)

    async def commit_matching(
        self, reservation: RoomWhereNotified, records: Iterable[Event], *, traceparent: str = ""
    ) -> WhereNotified:
        """Store the copies that the events need, give the other room back, and end the reservation."""
        return await self.commit_matching_ndjson(reservation, ndjson(records), traceparent=traceparent)

    async def commit_matching_ndjson(
        self, reservation: RoomWhereNotified, lines: bytes, *, traceparent: str = ""
    ) -> WhereNotified:
        """Do the same with the events of some lines."""
        headers = {"Content-Type": NDJSON, **_traced(traceparent)}
        return _read(_distributed, await self._ask("PUT", _path_of(reservation), lines, headers))

    @asynccontextmanager
    async def reserved_matching(self, events: Sequence[ComingEvent]) -> AsyncIterator[RoomWhereNotified]:
        """Room for the block to commit; it is aborted when the block fails, as in `reserved`."""
        reservation = await self.reserve_matching(events)
        async with self._aborted_on_failure(reservation):
            yield reservation

    # ----------------------------------------------------------------------------------------- requests

    async def _ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """The body of the answer to a request that succeeded, after as many attempts as it takes."""
        loop = asyncio.get_running_loop()
        begun, limited_s = loop.time(), 0.0
        failures, outcome_unknown = 0, False
        while True:
            with self._silence_told(begun):
                failure = await self._attempt(method, path, body, headers)
            if isinstance(failure, bytes):
                return failure
            failures += 1
            outcome_unknown = outcome_unknown or failure.outcome_unknown
            delay_s = max(failure.retry_after_s, _BACKOFF.delay(failures, self._rng.random()))
            elapsed_s = loop.time() - begun
            if self._patience.is_over(elapsed_s, limited_s, delay_s, is_limited=failure.is_limited):
                tried = f"tried {several(failures, 'time')} in {self._patience.failing_s:g} s"
                waited = f" and {limited_s:.3g} s of waiting for a rate limit" if limited_s else ""
                asked = f"; the limit asks for {failure.retry_after_s:g} s more" if failure.is_limited else ""
                text = f"{self._address}: {failure.text}; {tried}{waited}{asked}"
                raise IngestUnavailable(text, failure.problem, outcome_unknown=outcome_unknown)
            limited_s += delay_s * failure.is_limited
            self.on_wait(f"{self._address}: {failure.text}", elapsed_s)
            await asyncio.sleep(delay_s)

    @contextlib.contextmanager
    def _silence_told(self, begun: float) -> Iterator[None]:
        """Say of an attempt, again and again, that it is not answered."""
        loop = asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = []

        def wait() -> None:
            timers[:] = [loop.call_later(_SILENT_S, say)]

        def say() -> None:
            self.on_wait(f"{self._address}: no answer yet", loop.time() - begun)
            wait()

        wait()
        try:
            yield
        finally:
            timers[0].cancel()

    async def _attempt(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes | Failure:
        """The body of a good answer, or why to try again. Raises what is not to be tried again."""
        if self._session is None:
            raise RuntimeError("enter the client first: async with IngestClient(...)")
        try:
            async with (
                self._free,
                self._session.request(
                    method,
                    self._base + path,
                    data=io.BytesIO(body) if len(body) > _LARGE else body,
                    headers=headers,
                    allow_redirects=False,  # the token is for this address alone
                ) as response,
            ):
                answer = await response.read()
                status = response.status
                retry_after = response.headers.get("Retry-After", "")
        except aiohttp.ClientSSLError as exc:
            raise IngestMisconfigured(f"{self._address}: {_tls_reason(exc)}") from exc
        except aiohttp.ClientConnectorError as exc:
            if isinstance(exc.os_error, PermissionError):
                raise IngestMisconfigured(f"{self._address}: {exc.os_error.strerror}") from exc
            return Failure(f"cannot connect: {_reason(exc.os_error)}", outcome_unknown=False)
        except TimeoutError:
            return Failure("no answer in time", outcome_unknown=True)
        except (aiohttp.ClientError, OSError) as exc:
            return Failure(f"the connection broke: {str(exc) or type(exc).__name__}", outcome_unknown=True)
        if 200 <= status < 300:
            return answer
        problem = problem_of(status, answer)
        if status in _AGAIN:
            # Only a server that lost its own store does not know the outcome of a request that it answers.
            unknown = problem.code == "StoreUnavailable" or status in (502, 504)
            most_s = math.inf if status == _LIMITED else _LONGEST_RETRY_AFTER_S
            is_number = retry_after.isascii() and retry_after.isdigit()  # a date counts as nothing
            return Failure(problem.text, unknown, min(most_s, float(retry_after)) if is_number else 0.0, problem)
        raise refusal(problem)

    def _tls(self) -> ssl.SSLContext | bool:
        if self._ca_file is None:
            return True
        try:
            return ssl.create_default_context(cafile=str(self._ca_file))
        except (OSError, ssl.SSLError) as exc:
            raise IngestMisconfigured(f"cannot use the certificates in {self._ca_file}: {exc}") from exc


def _tls_reason(error: aiohttp.ClientSSLError) -> str:
    match getattr(error, "certificate_error", None) or getattr(error, "os_error", None):
        case ssl.SSLCertVerificationError(verify_message=why):
            return f"its certificate is not trusted: {why}"
        case ssl.SSLError(reason="WRONG_VERSION_NUMBER"):
            return "it does not speak TLS; is it http://?"
        case _:
            return str(error)


def _reason(error: OSError) -> str:
    """What is wrong without asyncio's own words; names that do not resolve have numbers below 0."""
    known = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
    return known or str(error)


def ndjson(records: Iterable[Event]) -> bytes:
    """Records one a line. Raises ValueError for bytes with a line break inside."""
    lines = [_line(record) for record in records]
    return b"\n".join([*lines, b""])


def _line(record: Event) -> bytes:
    if not isinstance(record, bytes):
        return msgspec.json.encode(record)
    line = record.strip()
    if b"\n" in line:
        raise ValueError("a record that is given as bytes must be on one line")
    return line


def _parse_address(address: str) -> tuple[str, str]:
    """The path of a socket (or nothing), and what URLs begin with."""
    kind, _, rest = address.partition(":")
    if kind == "unix" and rest.startswith("/"):
        return rest, "http://localhost"
    host = rest.removeprefix("//").rstrip("/")
    if kind in ("http", "https") and rest.startswith("//") and _is_host(host):
        return "", f"{kind}://{host}"
    raise IngestMisconfigured(f'expected "unix:/path", "http://host:port" or "https://host:port", not "{address}"')


def _is_host(text: str) -> bool:
    """Whether this is a host, with a port or without: what is none would be tried until the time is over."""
    try:
        found = urlsplit(f"http://{text}")
        return bool(found.hostname and found.port != 0 and text.encode()) and not set(text) & set("/?#@ ")
    except ValueError:  # a port beyond 65535, half of a bracket, or no UTF-8
        return False


def _path_of_topic(topic: str) -> str:
    """Where a topic is. Raises TopicNotFound for a name that would make the path that of something else."""
    if topic in ("", ".", ".."):
        raise TopicNotFound(f"there is no topic {topic!r}")
    return f"/v1/topics/{quote(topic, safe='', errors='surrogateescape')}"


def _path_of(reservation: Reservation | RoomWhereNotified) -> str:
    return f"/v1/reservations/{quote(reservation.id, safe='')}"


def _traced(traceparent: str) -> dict[str, str]:
    return {"traceparent": traceparent} if traceparent else {}


def _as_taken(answer: bytes) -> Taken:
    found = _read(_taken, answer)
    return Taken(found.stored, found.repeated, found.dropped_fields)


def _read(decoder: msgspec.json.Decoder[T], answer: bytes) -> T:
    try:
        return decoder.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        problem = Problem(status=HTTPStatus.OK, detail="the answer is none of the ingest API's")
        raise RequestRejected(problem.detail, problem) from exc
