"""A room, and the gate at which one waits for it, where nothing else of a worker is needed."""

from __future__ import annotations

from collections.abc import Callable

from remora.engine.admission.gate import Gate
from remora.metrics import Telemetry
from remora.model.traffic import Priority
from remora.policy.admission.limits import ByteLimit
from remora.policy.admission.line import Demand, Shortage


class Place:
    """A room in an optional wider one; both have the same gate."""

    def __init__(
        self,
        limit: int,
        within: Place | None = None,
        *,
        leaves_room: bool = False,
        evict: Callable[[Shortage], None] = lambda _: None,
    ) -> None:
        wider: ByteLimit | None = within.room if within else None
        self.room: ByteLimit = ByteLimit(limit, wider, leaves_room=leaves_room, evict=evict)
        self.gate: Gate = within.gate if within else Gate(Telemetry())

    @property
    def held(self) -> int:
        return self.room.held

    @property
    def limit(self) -> int:
        return self.room.limit

    async def acquire(self, nbytes: int, priority: Priority = Priority.CLIENT_LOW) -> None:
        await self.gate.admit(Demand(priority, self.room.chain, nbytes))

    def try_acquire(self, nbytes: int) -> bool:
        return self.gate.admit_now(Demand(Priority.IDLE, self.room.chain, nbytes))

    def release(self, nbytes: int) -> None:
        self.gate.free([freed for room in self.room.chain for freed in room.adjust(-nbytes)])
