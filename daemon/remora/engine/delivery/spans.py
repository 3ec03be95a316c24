"""The spans of a shard on its way: its listings, what is sent of them, and what is removed.

A batch links to the listing that its first record came from and to the requests that its records came with, a removal
to the listings that it removes. So one of them leads to the others in a tracing backend.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from remora.codec.speedups import joined, traced
from remora.model.errors import EndpointError
from remora.model.position import Position
from remora.model.record import DeadLetter, Page, Record
from remora.policy.status.stages import EventStage
from remora.ports.endpoint import Batch, ExactRoute, Route
from remora.ports.tracing import Attributes, PageTimes, Span, StagesOf, Tracer, Work

MOST_LISTINGS = 64
"""Listings of a shard that are remembered: more are hardly under way at once."""

MOST_LINKS = 32
"""Requests that a batch links to, of the thousands that it may hold events of."""

MOST_READINGS, APART_S = 4, 50e-6
"""How often two clocks are read that are to say the same moment, and how long that may take."""


@dataclass(slots=True)
class ShardSpans:
    """See the module. `name` is the topic, `queue` the shard."""

    tracer: Tracer
    queue: str
    name: str
    clock: Callable[[], float] = time.monotonic
    _listings: deque[tuple[Position, Position, bytes]] = field(default_factory=lambda: deque(maxlen=MOST_LISTINGS))
    _pages: deque[tuple[Position, Position, PageTimes]] = field(default_factory=lambda: deque(maxlen=MOST_LISTINGS))

    def now(self) -> tuple[float, int]:
        """This moment by the monotonic clock, in seconds, and by the wall clock, in nanoseconds.

        They are read again where the process was paused between the two, a few times at most.
        """
        for _ in range(MOST_READINGS):
            at, at_ns = self.clock(), time.time_ns()  # in this order: at a listing no pause is of no stage
            if self.clock() - at <= APART_S:
                break
        return at, at_ns

    def listing(self, limit: int) -> Span:
        """A read of the queue begins."""
        return self.tracer.begin(Work.LISTING, self.name, self._about({"remora.limit": limit}))

    def listed(self, span: Span, page: Page) -> None:
        """The page has come. A look into an empty queue makes no span."""
        if not page.entries:
            return
        if span.context:
            first = _place(page.positions[0])
            while self._listings and self._listings[-1][0] >= first:  # read again after a failure
                self._listings.pop()
            self._listings.append((first, _place(page.positions[-1]), span.context))
        span.end(attributes={"messaging.batch.message_count": len(page.entries), "remora.bytes": page.nbytes})

    def taken(self, page: Page, times: PageTimes) -> None:
        """A page is being packed; when that has ended is written into its times."""
        if self.tracer.is_on:
            self._pages.append((_place(page.positions[0]), _place(page.positions[-1]), times))

    def stages(self, begun: float, ended: float) -> StagesOf:
        """What stages records passed that were pushed and acknowledged then."""

        def of(record: Record) -> dict[EventStage, float]:
            place = _place(record.position)
            pages = (times for first, end, times in reversed(self._pages) if first <= place < end)
            times = next(pages, None)  # the latest: it may have been read again after a failure
            return times.stages(record.created_ns, begun, ended) if times else {}

        return of

    def batch(self, records: Sequence[Record], found: Sequence[Record]) -> Span:
        """Records leave; `found` are those of them that have contexts."""
        links = list(dict.fromkeys(bytes(each.traceparent) for each in found[:MOST_LINKS]))
        first = _place(records[0].position) if records else None
        at = bisect_right(self._listings, first, key=lambda each: each[0]) - 1 if first else -1
        contexts = [bytes.fromhex(each.decode().replace("-", "")) for each in links]
        if first and at >= 0 and first < self._listings[at][1]:
            contexts.insert(0, self._listings[at][2])
        about = self._about({"messaging.batch.message_count": len(records)})
        return self.tracer.begin(Work.BATCH, self.name, about, links=contexts)

    def arrived(self, found: Sequence[Record], batch: Span, begun: float) -> None:
        """These records with contexts have arrived; their push began then."""
        at, at_ns = self.now()
        self.tracer.arrived(self.name, found, at_ns, batch.context, self.stages(begun, at))

    def removal(self, upto: bytes, count: int) -> Span:
        """Entries before this position are being removed."""
        end, links = _place(upto) if self._listings else None, []
        while end and self._listings and self._listings[0][0] < end:
            links.append(self._listings[0][2])
            if self._listings[0][1] > end:
                break
            self._listings.popleft()
        about = self._about({"messaging.batch.message_count": count})
        return self.tracer.begin(Work.REMOVAL, self.name, about, links=links)

    def _about(self, more: Attributes) -> Attributes:
        return {"messaging.destination.partition.id": self.queue, **more}


class TracedRoute:
    """A route whose pushes have spans."""

    def __init__(self, route: Route, spans: ShardSpans) -> None:
        self._route, self._spans = route, spans

    @property
    def stale(self) -> bool:
        """As the route."""
        return self._route.stale

    @property
    def acks_show_load(self) -> bool:
        """As the route."""
        return self._route.acks_show_load

    @property
    def width(self) -> int:
        """As the route."""
        return self._route.width

    def pack(self, records: Sequence[Record]) -> tuple[list[Batch], list[tuple[Record, str]]]:
        """As the route."""
        return self._route.pack(records)

    async def look_again(self) -> None:
        """As the route."""
        await self._route.look_again()

    async def push(self, batch: Batch) -> None:
        """Push, and tell how that went."""
        found = traced(batch.records)
        span, begun = self._spans.batch(batch.records, found), self._spans.clock()
        try:
            await self._route.push(batch)
        except EndpointError as exc:
            span.end(str(exc), {"remora.arrived": exc.arrived})
            raise
        span.end(attributes={"remora.lane": batch.lane})
        if found:
            self._spans.arrived(found, span, begun)

    async def publish_letters(self, letters: Sequence[DeadLetter]) -> None:
        """As the route."""
        await self._route.publish_letters(letters)


class TracedExactRoute:
    """A route whose transactions have spans: what is committed together is one batch."""

    def __init__(self, route: ExactRoute, spans: ShardSpans) -> None:
        self._route, self._spans = route, spans

    @property
    def reached(self) -> bytes | None:
        """As the route."""
        return self._route.reached

    @property
    def stale(self) -> bool:
        """As the route."""
        return self._route.stale

    def pack(self, records: Sequence[Record]) -> tuple[list[Batch], list[tuple[Record, str]]]:
        """As the route."""
        return self._route.pack(records)

    async def look_again(self) -> None:
        """As the route."""
        await self._route.look_again()

    async def commit(self, batches: Sequence[Batch], upto: bytes, letters: Sequence[DeadLetter] = ()) -> None:
        """Commit, and tell how that went."""
        records = joined([batch.records for batch in batches])
        found = traced(records)
        span, begun = self._spans.batch(records, found), self._spans.clock()
        try:
            await self._route.commit(batches, upto, letters)
        except EndpointError as exc:
            span.end(str(exc))
            raise
        span.end()
        if found:
            self._spans.arrived(found, span, begun)


def _place(position: bytes) -> Position:
    return Position.parse(position.decode())
