"""What all parts of one dispatcher share: the owned shard, its state, and the services of the worker."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from random import Random

from remora.engine.delivery.scope import WorkerContext
from remora.engine.delivery.shard_state import AskLate, ShardState
from remora.engine.lease import Lease


@dataclass(frozen=True, slots=True)
class DispatchScope:
    """One owned shard, for as long as it has work. `finishing` is set when nothing more is to be read."""

    context: WorkerContext
    lease: Lease
    rng: Random
    state: ShardState = field(default_factory=ShardState)
    finishing: asyncio.Event = field(default_factory=asyncio.Event)

    async def first_of(self, at_most_s: float, *changes: Coroutine[object, object, object]) -> bool:
        """Wait for a change, for a time, or for `finishing`, whichever comes first; returns whether it was not time."""
        async with asyncio.TaskGroup() as tasks:
            ends = [tasks.create_task(each, name="change") for each in changes]
            ends.append(tasks.create_task(self.finishing.wait(), name="finish"))
            done, _ = await asyncio.wait(ends, timeout=at_most_s, return_when=asyncio.FIRST_COMPLETED)
            for each in ends:
                each.cancel()
        return bool(done)

    async def asked(self, ask: AskLate, positions: Sequence[bytes]) -> frozenset[bytes]:
        """What the endpoint knows of late answers; a shard that finishes waits for none."""
        known: list[frozenset[bytes]] = []

        async def listen() -> None:
            known.append(await ask(positions))

        await self.first_of(math.inf, listen())
        return frozenset().union(*known)
