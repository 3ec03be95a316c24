"""A shard that this worker owns, and what runs for it."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Protocol

from remora.engine.lease import Lease
from remora.engine.status import ShardStatus
from remora.model.shard import Shard
from remora.model.topic import Topic
from remora.policy.ownership.not_owned import NotOwned
from remora.policy.status.condition import State


class ShardService(Protocol):
    """What runs for an active shard: the dispatcher. `topic` is whose entries it delivers, once it knows."""

    @property
    def topic(self) -> Topic | None: ...

    async def run(self) -> None: ...

    def end(self) -> None: ...

    def arrived(self) -> None: ...

    def status(self) -> ShardStatus: ...


class Phase(Enum):
    """The states of an owned shard. It leaves the table at the end of the last one."""

    IDLE = "its queue is empty, and nothing runs for it"
    STARTING = "its service was made, and has not taken its first step"
    ACTIVE = "its service runs"
    FINISHING = "its service finishes what is in flight; then the shard is released"
    RELEASING = "its service has ended or is being cancelled, and its lock is being released"


NEXT = {
    Phase.IDLE: {Phase.STARTING, Phase.RELEASING},
    Phase.STARTING: {Phase.ACTIVE, Phase.RELEASING},
    Phase.ACTIVE: {Phase.IDLE, Phase.FINISHING, Phase.RELEASING},
    Phase.FINISHING: {Phase.RELEASING},
    Phase.RELEASING: set[Phase](),
}
"""Which state may follow which."""


class OwnedShard:
    """A shard whose lock this worker has. An idle one has neither service nor task, and costs nothing.

    `outcome` is why it is not owned any more once it has left. `since` is when it was taken or
    became idle, on the monotonic clock.
    """

    __slots__ = ("lease", "outcome", "phase", "service", "since", "task")

    def __init__(self, lease: Lease, since: float) -> None:
        self.lease = lease
        self.since = since
        self.phase = Phase.IDLE
        self.service: ShardService | None = None
        self.task: asyncio.Task[None] | None = None
        self.outcome: NotOwned | None = None

    @property
    def shard(self) -> Shard:
        """Which one it is."""
        return self.lease.shard

    @property
    def is_idle(self) -> bool:
        """Whether nothing at all runs for it."""
        return self.phase is Phase.IDLE

    @property
    def is_releasing(self) -> bool:
        """Whether nothing may be done with it any more but to release its lock."""
        return self.phase is Phase.RELEASING

    @property
    def is_leaving(self) -> bool:
        """Whether it is being given back."""
        return self.phase in (Phase.FINISHING, Phase.RELEASING)

    @property
    def has_work(self) -> bool:
        """Whether entries wait in it, as far as is known."""
        return self.service is not None and self.service.status().has_work

    def enter(self, phase: Phase) -> None:
        """Go to the next state."""
        assert phase in NEXT[self.phase], f"{self.shard}: {self.phase.name} is not followed by {phase.name}"
        self.phase = phase

    def passivate(self, now: float) -> None:
        """Its service has returned: nothing runs for it from here on. It has been idle since its queue was empty."""
        self.enter(Phase.IDLE)
        idle_s = 0.0
        if self.service is not None and (status := self.service.status()).state is State.IDLE:
            idle_s = status.since_s
        self.service = self.task = None
        self.since = now - idle_s

    def end(self, outcome: NotOwned) -> None:
        """Its service finishes, so that the shard is released for this reason unless it is lost first."""
        self.enter(Phase.FINISHING)
        self.outcome = outcome

    def release(self, outcome: NotOwned) -> None:
        """It leaves now, for this reason; no error, and the first reason stands, when that is so already."""
        if self.phase is not Phase.RELEASING:
            self.enter(Phase.RELEASING)
            self.outcome = outcome
