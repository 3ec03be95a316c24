"""Watches the room of the held queues: how long it lasts, and gives back what of it their store has leaked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from remora.bounded import portions
from remora.metrics import Telemetry
from remora.metrics.series import RoomLeft
from remora.model.errors import CodecError, StoreError
from remora.model.shard import LockToken, QueueRoom, Shard
from remora.policy.queues.mends import Heal, RoomOverTime, should_mend
from remora.ports.delivery import DeliveryStore

_AT_ONCE = 8


class Rooms:
    """Called with each look at the held queues; it asks the store for nothing but mends."""

    def __init__(self, store: DeliveryStore, telemetry: Telemetry, heal: Heal, label: Callable[[Shard], str]) -> None:
        self._store = store
        self._telemetry = telemetry
        self.heal = heal
        self.label = label
        self._known: dict[Shard, RoomOverTime] = {}
        self._capacity: dict[Shard, int] = {}

    async def look(self, held: Sequence[LockToken], seen: Mapping[Shard, QueueRoom | None]) -> None:
        """Take what was seen of held queues: show how long the worst of each topic lasts, and mend those that need it.

        A queue that was seen without figures is empty. What is known of a queue that is held no longer is forgotten;
        one that could not be looked at stays as it was.
        """
        now, tokens = asyncio.get_running_loop().time(), {each.shard: each for each in held}
        self._known = {shard: known for shard, known in self._known.items() if shard in tokens}
        self._capacity = {shard: nbytes for shard, nbytes in self._capacity.items() if shard in tokens}
        self._capacity |= {shard: room.capacity_bytes for shard, room in seen.items() if room is not None}
        worst: dict[str, RoomLeft] = {}
        needs: list[LockToken] = []
        async for some in portions([each for each in seen.items() if each[0] in tokens]):
            for shard, told in some:
                room = told or QueueRoom(self._capacity.get(shard, 0), 0, 0, 0)
                known = self._known[shard] = self._known.get(shard, RoomOverTime()).after(room, now)
                if room.capacity_bytes:
                    label, full_s = self.label(shard), known.seconds_until_full(room)
                    left = RoomLeft(room.room_bytes, room.capacity_bytes, room.leaked_bytes, full_s)
                    worst[label] = worst[label] + left if label in worst else left
                if should_mend(self.heal, room, known.quiet_s(now)):
                    needs.append(tokens[shard])
        async for shown in portions(list(worst.items())):
            for topic, left in shown:
                self._telemetry.room_left(topic, left)
        await self._mend(needs)

    async def _mend(self, tokens: Sequence[LockToken]) -> None:
        todo = iter(tokens)

        async def work() -> None:
            for token in todo:
                await self.mend_one(token)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(_AT_ONCE, len(tokens))):
                tasks.create_task(work(), name="mending")

    async def mend_one(self, token: LockToken) -> None:
        """Give one queue its leaked room back; what keeps it from that is logged."""
        queue, topic = token.shard.queue, self.label(token.shard)
        try:
            done = await self._store.mends.mend(token)
        except (StoreError, CodecError) as exc:
            self._telemetry.mend_failed(topic, queue, str(exc))
            return
        if done.after is not None:
            self._known[token.shard] = self._known.get(token.shard, RoomOverTime()).after_mend()
            self._telemetry.mended(topic, queue, done.before, done.after)
        elif done.is_busy:
            self._telemetry.mend_failed(topic, queue, "other clients always came first")
