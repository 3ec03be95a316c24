"""What ownership knows of a shard: the one that is held, and why another one is not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from remora.engine.dispatcher import ShardStatus
from remora.engine.lease import Lease
from remora.model.member import is_workers
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

    `settled` when only a change of the catalogue can make it ours. `seen_at` is when its holder was seen. `waiting`
    when it may be free, and is left to another worker until `not_before`; `handed` when it is on its way to that one.
    `released` when it is radosgw's by command, until it is claimed.
    """

    reason: str
    holder: LockHolder | None = None
    not_before: float = 0.0
    evicted: bool = False
    settled: bool = False
    damaged: bool = False
    seen_at: float = 0.0
    waiting: bool = False
    handed: bool = False
    released: bool = False

    @property
    def lapses_at(self) -> float:
        """When its holder's lease ends, as far as is known."""
        return self.seen_at + self.holder.lease_left_s if self.holder else 0.0

    def is_apart(self, now: float) -> bool:
        """Whether it is none of the shards that the workers share: not ours, paused, or held by no worker.

        What a worker holds that nobody sees any more will be shared soon.
        """
        if self.holder is None or self.released:
            return not self.waiting
        return now < self.lapses_at and not is_workers(self.holder.cookie)


@dataclass(slots=True)
class Held:
    """A held shard. Its `task` runs its service, or gives it back; a dormant one has neither, and costs nothing.

    `begun` tells that the task has taken its first step: one that is cancelled before would never run at all, so
    it is not, and finds `ended` set. `parting` is set while its service finishes, to be given back then.
    """

    lease: Lease
    expire_at: float
    since: float
    service: Service | None = None
    task: asyncio.Task[None] | None = None
    begun: bool = False
    renewing: bool = False
    parting: Left | None = None
    ended: Left | None = None

    @property
    def is_dormant(self) -> bool:
        """Whether nothing at all runs for it."""
        return self.task is None

    @property
    def is_leaving(self) -> bool:
        """Whether it is being given back."""
        return self.parting is not None or self.ended is not None

    @property
    def has_work(self) -> bool:
        """Whether entries wait in it, as far as is known."""
        return self.service is not None and self.service.status().has_work

    def rest(self, now: float) -> None:
        """Its service has returned: it is dormant from here on."""
        self.service = self.task = None
        self.begun = False
        self.since = now
