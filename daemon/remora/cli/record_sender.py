"""Sending many records over several connections, in order for each key, and counting their outcomes."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from remora.cli.records import Bad, GivenRecord
from remora.client import (
    ComingEvent,
    EventsRefused,
    IngestClient,
    IngestError,
    IngestUnavailable,
    ReservationGone,
    Taken,
    WhereNotified,
)
from remora.codec import event_entry
from remora.model.entry import Pairs
from remora.model.errors import RemoraError

SHOWN = 10
"""Refused records that are shown with their reason; more are only counted."""

MOST_BATCH_BYTES = 4 << 20
_WAITING = 2  # batches that a connection may have waiting
GRACE_S = 5.0
"""How long requests under way have when the sending is stopped."""

_RESERVE_AGAIN = 3
_ENDPOINT_BYTES = 2048  # what the topic's own attributes may add to an entry
_LEAST_ROOM_BYTES = 4096

R = TypeVar("R")
T = TypeVar("T")


@dataclass(slots=True)
class Counts:
    """Outcomes of the records that were read.

    `refused` are those that are malformed or that the server does not take; `unknown` those of requests whose outcome
    was not learnt: they may be stored or not. `unmatched` match no notification, where those decide.
    """

    read: int = 0
    stored: int = 0
    repeated: int = 0
    refused: int = 0
    unknown: int = 0
    unmatched: int = 0
    dropped_fields: int = 0

    @property
    def not_stored(self) -> int:
        """Records that were read and are certainly not stored, though nothing is wrong with them."""
        return self.read - self.stored - self.repeated - self.refused - self.unknown - self.unmatched

    @property
    def all_stored(self) -> bool:
        """Whether nothing is missing."""
        return self.stored + self.repeated + self.unmatched == self.read


@dataclass(slots=True)
class Outcome:
    """Counts, the copies that notifications made by topic, the first refusals, and what ended the sending before its
    time."""

    counts: Counts = field(default_factory=Counts)
    copies: Counter[str] = field(default_factory=Counter)
    refusals: list[Bad] = field(default_factory=list)
    failure: RemoraError | None = None
    interrupted: bool = False

    def refuse(self, bad: Bad) -> None:
        """Count a refused record."""
        self.counts.refused += 1
        if len(self.refusals) < SHOWN:
            self.refusals.append(bad)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPlan:
    """How to send. `name` begins all idempotency keys, and has to be another one each time unless `repeatable`.

    Without a topic events go to where the server's notifications send them.
    """

    topic: str | None
    batch: int
    connections: int
    name: str
    repeatable: bool
    two_phase: bool
    skip_malformed: bool


Part = tuple[str, Sequence[GivenRecord]]
"""Records that make one request, and its idempotency key."""


class RecordSender:
    """Sends what it is given. All records of a key go over one connection, one request after the other.

    So they are stored in the order in which they were given, whatever fails and is repeated. Leaving its block sends
    what is left. Once it is stopped, by a failure or from outside, nothing more is sent, and requests under way have
    a few seconds.
    """

    def __init__(self, client: IngestClient, plan: SendPlan, outcome: Outcome) -> None:
        self._client, self._plan, self._outcome = client, plan, outcome
        self._lanes = [_Lane(number) for number in range(plan.connections)]
        self._tasks: list[asyncio.Task[None]] = []
        self.stopped = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._run(lane), name=f"send:{lane.number}") for lane in self._lanes]
        for task in self._tasks:
            task.add_done_callback(self._ended)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        try:
            if kind is None:
                await self._finish()
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        for task in self._tasks:
            if not task.cancelled():
                task.result()

    async def give(self, record: GivenRecord) -> None:
        """Send a record, together with others of its connection; waits while that has enough to do."""
        lane = self._lanes[zlib.crc32(record.key) % len(self._lanes)]
        lane.add(record)
        if len(lane.waiting) >= self._plan.batch or lane.nbytes >= MOST_BATCH_BYTES:
            await lane.queue.put(lane.take())

    async def flush(self) -> None:
        """Send what is waiting for others of its connection."""
        for lane in self._lanes:
            if lane.waiting:
                await lane.queue.put(lane.take())

    async def _finish(self) -> None:
        ending = asyncio.ensure_future(self._end())
        stopped = asyncio.ensure_future(self.stopped.wait())
        await asyncio.wait(list[asyncio.Future[Any]]([ending, stopped]), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        await asyncio.wait([ending], timeout=GRACE_S)
        ending.cancel()
        await asyncio.wait([ending])

    async def _end(self) -> None:
        await self.flush()
        for lane in self._lanes:
            await lane.queue.put([])
        await asyncio.wait(self._tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.stopped.set()

    async def _run(self, lane: _Lane) -> None:
        # It goes on when the sender is stopped, so that no caller waits for ever for room in the queue.
        while batch := await lane.queue.get():
            await self._deliver((f"{self._plan.name}-{lane.number}-{lane.batches}", batch))
            lane.batches += 1

    async def _deliver(self, batch: Part) -> None:
        """Send a batch; where some of it is refused, the rest in parts, with keys of their own."""
        todo = deque([batch])
        refused = False
        while todo and not self.stopped.is_set():
            key, part = todo.popleft()
            try:
                self._count(await self._send(part, key))
            except EventsRefused as exc:
                before, bad, after = _around(part, key, exc)
                if bad is not None:
                    self._outcome.refuse(bad)
                    refused = True
                    if not self._plan.skip_malformed:
                        todo, after = deque(), None
                todo.extendleft(part for part in (after, before) if part)
            except IngestError as exc:
                if isinstance(exc, IngestUnavailable) and exc.outcome_unknown:
                    self._outcome.counts.unknown += len(part)
                self._outcome.failure = self._outcome.failure or exc
                self.stopped.set()
            except asyncio.CancelledError:
                self._outcome.counts.unknown += len(part)
                raise
        if refused and not self._plan.skip_malformed:
            self.stopped.set()

    async def _send(self, part: Sequence[GivenRecord], key: str) -> Taken | WhereNotified:
        lines = b"\n".join([record.record for record in part])
        client, topic = self._client, self._plan.topic
        if topic is None:
            if not self._plan.two_phase:
                return await client.publish_matching_ndjson(lines, idempotency_key=key)
            coming = [_coming(record) for record in part]
            return await _in_two_phases(
                lambda: client.reserve_matching(coming), lambda room: client.commit_matching_ndjson(room, lines)
            )
        if not self._plan.two_phase:
            return await client.publish_ndjson(topic, lines, idempotency_key=key)
        rooms = [(each.bucket, each.key, each.nbytes) for each in map(_coming, part)]
        return await _in_two_phases(
            lambda: client.reserve(topic, rooms), lambda reservation: client.commit_ndjson(reservation, lines)
        )

    def _count(self, taken: Taken | WhereNotified) -> None:
        counts = self._outcome.counts
        if isinstance(taken, WhereNotified):
            counts.stored += taken.accepted
            counts.unmatched += taken.unmatched
            self._outcome.copies.update(taken.topics)
        elif taken.repeated:
            counts.repeated += taken.events
        else:
            counts.stored += taken.events
            counts.dropped_fields += taken.dropped_fields


async def _in_two_phases(reserve: Callable[[], Awaitable[R]], commit: Callable[[R], Awaitable[T]]) -> T:
    """Reserve room and commit, anew where the server was away for longer than it keeps a reservation."""
    for _ in range(_RESERVE_AGAIN):
        try:
            reservation = await reserve()
        except IngestUnavailable as exc:
            raise IngestUnavailable(str(exc), exc.problem, outcome_unknown=False) from exc  # nothing is stored by it
        try:
            return await commit(reservation)
        except ReservationGone as exc:
            gone = exc
    raise gone


class _Lane:
    """One connection's share: what waits to become a batch, and batches that wait to be sent."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.waiting: list[GivenRecord] = []
        self.nbytes = 0
        self.batches = 0
        self.queue: asyncio.Queue[Sequence[GivenRecord]] = asyncio.Queue(_WAITING)

    def add(self, record: GivenRecord) -> None:
        """Let a record wait for others."""
        self.waiting.append(record)
        self.nbytes += len(record.record)

    def take(self) -> Sequence[GivenRecord]:
        """All that waits."""
        waiting, self.waiting, self.nbytes = self.waiting, [], 0
        return waiting


def _around(part: Sequence[GivenRecord], key: str, exc: EventsRefused) -> tuple[Part | None, Bad | None, Part | None]:
    """What to do with a batch that the server refused: the part before the record that it named, that record, the rest.

    Where it named none, the two halves. The server has the same opinion of records as this program, unless it is of
    another release or has lower limits.
    """
    problem, middle = exc.problem, len(part) // 2
    named = problem.record if problem and problem.code == "MalformedEvent" else None
    if named is None and middle:
        return (f"{key}.0", part[:middle]), None, (f"{key}.1", part[middle:])
    at = named if named is not None and named < len(part) else 0
    before, after = part[:at], part[at + 1 :]
    bad = Bad(part[at].line, f"refused by the server: {exc}")
    return (f"{key}.0", before) if before else None, bad, (f"{key}.1", after) if after else None


def reservable(record: GivenRecord) -> bool:
    """Whether room can be reserved for a record: a reservation is JSON, and cannot name just any bytes."""
    try:
        record.key.decode()
    except UnicodeDecodeError:
        return False
    return True


def _coming(record: GivenRecord) -> ComingEvent:
    """What to reserve for a record, whose entry in its topic may be larger than the one that is known here."""
    event = event_entry.decode(record.entry).event
    return ComingEvent(
        event.bucket_name.decode(),
        event.object_key.decode(),
        max(_LEAST_ROOM_BYTES, len(record.entry) + _ENDPOINT_BYTES),
        event_name=event.event_name.decode(errors="replace"),
        size=event.object_size if b"ObjectCreated:" in event.event_name else None,  # others may have none
        metadata=_said(event.metadata),
        tags=_said(event.tags),
    )


def _said(pairs: Pairs) -> dict[str, str] | None:
    """Pairs as a reservation takes them; None, which counts as any, where it cannot."""
    try:
        found = {name.decode(): value.decode() for name, value in pairs}
    except UnicodeDecodeError:
        return None
    return found if len(found) == len(pairs) else None
