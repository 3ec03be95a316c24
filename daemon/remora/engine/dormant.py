"""Shards whose queues are empty, on a store that tells of arrivals: held, and nothing runs for them.

Why no entry is forgotten in a dormant shard:

* A shard that was just taken is dormant first and then looked at (`look`). An entry that was committed before
  the look is seen by it; one that was committed after it is told, and the shard is held by then.
* A dispatcher forgets what it was told right before each read. It returns, and its shard is dormant, in one
  step of the event loop, only when it was told of nothing since the read that found the queue empty. What was
  committed before that read was read; what was committed after it is told, and wakes the shard.
* When the store cannot tell, every dormant shard is looked at. And the survey tells too, every few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from remora.engine.dispatcher import ShardStatus, State
from remora.engine.held import Held
from remora.metrics import Telemetry
from remora.model.errors import StoreError
from remora.model.shard import Shard
from remora.model.topic import Topic
from remora.ports.delivery import DeliveryStore

DEAF_S = 2.0
"""The pause before the store is asked again when it could not tell of arrivals."""

WAVE_S = 0.05
"""The pause between two waves of shards that are woken."""

AWAKE_AT_ONCE = 1000
LEAST_WAVE = 32
"""A wave brings the shards that are awake up to the former number; it is never smaller than the latter, so that
shards behind broken endpoints, which stay awake, keep nobody asleep."""


class Dormant:
    """Wakes dormant shards, and passes on to the others what they are told."""

    def __init__(
        self,
        store: DeliveryStore,
        telemetry: Telemetry,
        held: Mapping[Shard, Held],
        wake: Callable[[Held], None],
        awake: Callable[[], int],
    ) -> None:
        """`awake` tells how many shards are."""
        self._store = store
        self._telemetry = telemetry
        self._held = held
        self._wake = wake
        self._awake = awake
        self._due: dict[Shard, None] = {}
        self._next_wave: asyncio.TimerHandle | None = None

    @property
    def is_possible(self) -> bool:
        """Whether shards go dormant at all: not where their queues have to be looked into all the time."""
        return self._store.arrivals.notifies

    async def hear(self) -> None:
        """Listen to the store until cancelled."""
        while self.is_possible:
            try:
                self.told(await self._store.arrivals.wait())
            except StoreError as exc:
                self._telemetry.arrivals_failed(str(exc))
                await asyncio.sleep(DEAF_S)
                await self.look(list(self._held))

    def told(self, shards: Iterable[Shard]) -> None:
        """These queues have entries, or had some a moment ago."""
        for shard in shards:
            held = self._held.get(shard)
            if held is None:
                continue
            if held.is_dormant:
                self._due[shard] = None
            elif held.service is not None:
                held.service.arrived()
        if self._next_wave is None:
            self._wake_some()

    def _wake_some(self) -> None:
        """Wake a wave of those that are due now, and the next one soon: thousands at once would hold much memory."""
        for shard in list(islice(self._due, max(LEAST_WAVE, AWAKE_AT_ONCE - self._awake()))):
            del self._due[shard]
            held = self._held.get(shard)
            if held is not None and held.is_dormant:
                self._wake(held)
        self._next_wave = asyncio.get_running_loop().call_later(WAVE_S, self._wake_some) if self._due else None

    async def look(self, shards: Sequence[Shard]) -> None:
        """Wake those of these shards that have entries. When that cannot be told now, the survey tells later."""
        dormant = [each for each in shards if each in self._held and self._held[each].is_dormant]
        if dormant:
            with contextlib.suppress(StoreError):
                self.told([each.shard for each in await self._store.inspection.backlog(dormant) if each.entries])

    async def busy_first(self, shards: Sequence[Shard]) -> Sequence[Shard]:
        """The same shards, those whose entries wait the longest in front."""
        try:
            found = await self._store.inspection.backlog(shards)
        except StoreError:
            return shards
        ages = {each.shard: each.oldest_age_s or 0.0 for each in found if each.entries}
        return sorted(shards, key=lambda shard: -ages.get(shard, -1.0))


def dormant_status(held: Held, topic: Topic | None, now: float) -> ShardStatus:
    """A dormant shard as `status` shows it; also one that is just being given back."""
    return ShardStatus(
        queue=held.lease.shard.queue,
        topic=topic.label if topic else "",
        endpoint=topic.target.redacted if topic else "",
        delivery="",
        state=State.IDLE if held.is_dormant else State.FINISHING,
        reason="",
        since_s=now - held.since,
        failures=0,
        in_flight_bytes=0,
        has_work=False,
        progress_age_s=0.0,
        remarks=(),
    )
