"""What ownership knows of a shard: the one that is held, and why another one is not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from remora.engine.dispatcher import ShardStatus
from remora.engine.tenure import Tenure
from remora.model.shard import LockHolder


class Service(Protocol):
    """What is run for a held shard: the dispatcher."""

    async def run(self) -> None: ...

    def finish(self) -> None: ...

    def arrived(self) -> None: ...

    def status(self) -> ShardStatus: ...


@dataclass(slots=True)
class Left:
    """Why a shard is not held by this worker, for status.

    `settled` when only a change of the catalogue can make it ours. `seen_at` is when its holder was seen.
    """

    reason: str
    holder: LockHolder | None = None
    not_before: float = 0.0
    evicted: bool = False
    settled: bool = False
    damaged: bool = False
    seen_at: float = 0.0


@dataclass(slots=True)
class Held:
    """A held shard. Its `task` runs its service, or gives it back; a dormant one has neither, and costs nothing.

    `begun` tells that the task has taken its first step: one that is cancelled before would never run at all, so
    it is not, and finds `ended` set.
    """

    tenure: Tenure
    expire_at: float
    since: float
    service: Service | None = None
    task: asyncio.Task[None] | None = None
    begun: bool = False
    renewing: bool = False
    ended: Left | None = None

    @property
    def is_dormant(self) -> bool:
        """Whether nothing at all runs for it."""
        return self.task is None

    def rest(self, now: float) -> None:
        """Its service has returned: it is dormant from here on."""
        self.service = self.task = None
        self.begun = False
        self.since = now
