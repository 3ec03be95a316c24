"""What delivering and taking in tell a tracer: spans of work on many events, and the way of single ones.

A context is what stands behind an entry (`codec/trace_context.py`): 26 bytes, empty where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from remora.model.record import Record
from remora.policy.status.stages import EventStage

Attributes = Mapping[str, str | int]


class Work(StrEnum):
    """What a span is of. Each is a trace of its own, but for a request that belongs to its client's."""

    REQUEST = "request"
    COMMIT = "commit"
    LISTING = "list"
    BATCH = "send"
    REMOVAL = "remove"


@dataclass(slots=True)
class PageTimes:
    """When a page was asked for, when it came, when it was taken in, and when all of it was packed.

    All are of one monotonic clock, in seconds; `asked_ns` is the first by the wall clock.
    """

    asked_ns: int
    asked: float
    came: float
    taken: float = 0.0
    packed: float = 0.0

    def stages(self, created_ns: int, begun: float, ended: float) -> dict[EventStage, float]:
        """The seconds of each stage of an entry that was committed, pushed and acknowledged then."""
        return {
            EventStage.WAIT_LISTING: max(0, self.asked_ns - created_ns) / 1e9,
            EventStage.LIST: self.came - self.asked,
            EventStage.WAIT_PACKING: self.taken - self.came,
            EventStage.RENDER: self.packed - self.taken,
            EventStage.WAIT_TURN: begun - self.packed,
            EventStage.PUSH: ended - begun,
        }


StagesOf = Callable[[Record], Mapping[EventStage, float]]
"""The seconds of each stage that a record has passed; empty where that is not known."""


class Span(Protocol):
    """One piece of work, which began when the span was made. One that is never ended is not exported."""

    @property
    def context(self) -> bytes:
        """What others link to; empty where the span is not sampled."""
        ...

    def end(self, failure: str = "", attributes: Attributes | None = None) -> None:
        """The work is done, or has failed for this reason."""
        ...


class Tracer(Protocol):
    """Makes spans, of which it exports some; it neither waits nor raises."""

    @property
    def is_on(self) -> bool:
        """Whether anything is exported."""
        ...

    def begin(
        self, work: Work, name: str, attributes: Attributes, *, parent: bytes = b"", links: Sequence[bytes] = ()
    ) -> Span:
        """A span of work on `name`.

        It is sampled where its parent is; without a parent where one of its links is, and now and then without one.
        """
        ...

    def arrived(self, name: str, records: Sequence[Record], now_ns: int, batch: bytes, stages_of: StagesOf) -> None:
        """These records of topic `name`, which have contexts, have arrived with the batch of this context."""
        ...


class _NoSpan:
    context = b""

    def end(self, failure: str = "", attributes: Attributes | None = None) -> None:
        """Nothing."""


class _NoTracer:
    is_on = False

    def begin(
        self, work: Work, name: str, attributes: Attributes, *, parent: bytes = b"", links: Sequence[bytes] = ()
    ) -> Span:
        """A span that is not sampled."""
        return NO_SPAN

    def arrived(self, name: str, records: Sequence[Record], now_ns: int, batch: bytes, stages_of: StagesOf) -> None:
        """Nothing."""


NO_SPAN: Span = _NoSpan()
NO_TRACER: Tracer = _NoTracer()
