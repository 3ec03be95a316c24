"""What a replay sends to: one attempt at a time, and what came of it. Nothing here repeats anything by itself."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from remora_pipeline.replay.run.schedule import DueEvent


class AttemptResult(enum.Enum):
    """What is known after an attempt."""

    DONE = enum.auto()
    REFUSED = enum.auto()
    """The same would be refused again; nothing happened."""
    BUSY = enum.auto()
    """Nothing happened; it may be tried again."""
    LOST = enum.auto()
    """It may have happened."""


@dataclass(frozen=True, slots=True)
class TargetAnswer:
    """What came of an attempt. `status` is HTTP's; None where no answer came.

    `retry_after_s` is how long the server asks to wait. `culprit` is the one event, by its place in the request, that
    was refused where the others would not have been.
    """

    result: AttemptResult
    status: int | None = None
    error: str | None = None
    retry_after_s: float = 0.0
    culprit: int | None = None

    @property
    def is_limited(self) -> bool:
        """Whether a rate limit refused the request."""
        return self.status == HTTPStatus.TOO_MANY_REQUESTS


class OpenTarget(Protocol):
    """An open connection to where events go. Belongs to the event loop that opened it."""

    @property
    def batch(self) -> int:
        """The most events that go into one request. The events of a request take effect in their order, or none."""
        ...

    @property
    def is_repeatable(self) -> bool:
        """Whether a request that may have happened can be sent again, and still happens once."""
        ...

    async def send(self, events: Sequence[DueEvent], request: str) -> TargetAnswer:
        """Attempt a request once. `request` names it: a repetition has the same name, and no other request has."""
        ...
