"""Idle shards: those whose queues are empty, on a store that notifies of arrivals. They are owned, and nothing runs.

Why no entry is forgotten in an idle shard:

* A shard that was just acquired is idle first and is polled then. An entry that was committed before the poll is seen
  by it; of one that was committed after it the store notifies, and the shard is owned by then.
* A dispatcher forgets what it was notified of right before each read. It returns, and its shard is idle, in one step
  of the event loop, only when it was notified of nothing since the read that found the queue empty. What was
  committed before that read was read; of what was committed after it the store notifies, and the shard becomes active.
* When the store cannot notify, every idle shard is polled. And the backlog monitor notifies too, every few seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from remora.engine.ownership.owned import OwnedShard
from remora.engine.status import ShardStatus
from remora.metrics import Telemetry
from remora.model.errors import StoreError
from remora.model.shard import Shard
from remora.model.topic import Topic
from remora.policy.status.condition import State
from remora.ports.delivery import DeliveryStore

DEAF_S = 2.0
"""The pause before the store is asked again when it could not notify of arrivals."""


class IdleShards:
    """Finds out which idle shards have entries."""

    def __init__(self, store: DeliveryStore, telemetry: Telemetry) -> None:
        self._store = store
        self._telemetry = telemetry

    @property
    def is_possible(self) -> bool:
        """Whether shards become idle at all: not where their queues have to be polled all the time."""
        return self._store.arrivals.notifies

    async def listen(self) -> Sequence[Shard] | None:
        """Wait for arrivals and return the queues that they came to; None, after a pause, if the store cannot tell."""
        try:
            arrived = await self._store.arrivals.wait()
        except StoreError as exc:
            self._telemetry.arrivals_failed(str(exc))
            await asyncio.sleep(DEAF_S)
            return None
        self._telemetry.arrived(len(arrived))
        return arrived

    async def poll(self, shards: Sequence[Shard]) -> Sequence[Shard]:
        """Those of these shards that have entries; none if that is not known: the backlog monitor finds them."""
        return list(await self.ages(shards))

    async def ages(self, shards: Sequence[Shard]) -> dict[Shard, float]:
        """The ages in seconds of the oldest entries of those shards that have any; empty if that is not known."""
        if not shards:
            return {}
        try:
            found = await self._store.inspection.backlog(shards)
        except StoreError:
            return {}
        return {each.shard: each.oldest_age_s or 0.0 for each in found if each.entries}


def idle_status(owned: OwnedShard, topic: Topic | None, now: float) -> ShardStatus:
    """A shard without a service as `status` shows it: an idle one, or one that is being released."""
    return ShardStatus(
        queue=owned.shard.queue,
        topic=topic.label if topic else "",
        endpoint=topic.target.redacted if topic else "",
        delivery="",
        state=State.IDLE if owned.is_idle else State.FINISHING,
        reason="",
        since_s=now - owned.since,
        failures=0,
        in_flight_bytes=0,
        has_work=False,
        progress_age_s=0.0,
        remarks=(),
    )
