"""Bytes that may be held in memory at once, by a shard, an endpoint and a worker."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from remora.model.traffic import Priority
from remora.policy.eviction import Shortage

_RANKS = {priority: rank for rank, priority in enumerate(Priority)}


@dataclass(frozen=True, slots=True, eq=False)
class _Asker:
    """Somebody who waits."""

    nbytes: int
    priority: Priority
    turn: asyncio.Future[None]


class ByteBudget:
    """A bound on held bytes, inside an optional wider one: the highest priority first, then first come first served.

    A request larger than the whole bound is let through when nothing else is held, since refusing it would
    stop its shard for good. Waiting in a narrow bound costs the wider one nothing, so that a shard whose
    endpoint hangs keeps others from nothing.
    """

    def __init__(
        self,
        limit: int,
        within: ByteBudget | None = None,
        *,
        leaves_room: bool = False,
        evict: Callable[[Shortage], None] = lambda _: None,
    ) -> None:
        """With `leaves_room` no more is held than is left free in the wider one.

        So there is always room for one more: the first that never gives back what it holds takes a half at most, the
        second a quarter, and those that fill up side by side all get the same. `evict` is called when the first that
        waits finds no room, and may have others release some before it returns.
        """
        assert within is not None or not leaves_room
        self.limit = limit
        self.held = 0
        self._within = within
        self._leaves_room = leaves_room
        self.evict = evict
        self._is_evicting = False
        self._waiting: deque[_Asker] = deque()
        self._short: dict[Callable[[], None], None] = {}

    @property
    def reach(self) -> int:
        """How many bytes may be held as things stand, those that are held included."""
        if self._within is None:
            return self.limit
        if self._leaves_room:
            free = self._within.limit - self._within.held
            return max(0, min(self.limit, (free + self.held) // 2))
        return min(self.limit, self._within.reach)

    async def acquire(self, nbytes: int, priority: Priority = Priority.CLIENT_LOW) -> None:
        """Wait until `nbytes` may be held, and hold them. Who waits at a lower priority is passed by."""
        if self._is_behind(priority) or not self._fits(nbytes):
            await self._wait(_Asker(nbytes, priority, asyncio.get_running_loop().create_future()))
        else:
            self.held += nbytes
        if self._within is not None:
            try:
                await self._within.acquire(nbytes, priority)
            except asyncio.CancelledError:
                self._return(nbytes)
                raise

    async def _wait(self, asker: _Asker) -> None:
        place = len(self._waiting)
        while place and _RANKS[self._waiting[place - 1].priority] > _RANKS[asker.priority]:
            place -= 1
        self._waiting.insert(place, asker)
        self._ask_for_room()
        self.make_room()
        try:
            await asker.turn
        except asyncio.CancelledError:
            # Granted and cancelled in the same step: the bytes are ours, and must go back.
            if asker.turn.done() and not asker.turn.cancelled():
                self._return(asker.nbytes)
            else:
                with suppress(ValueError):  # passed over meanwhile, when others gave back
                    self._waiting.remove(asker)
                self._admit()
            raise

    def try_acquire(self, nbytes: int) -> bool:
        """Hold `nbytes` if that is possible without waiting or passing by; returns whether."""
        if self._waiting or not self._fits(nbytes):
            return False
        if self._within is not None and not self._within.try_acquire(nbytes):
            return False
        self.held += nbytes
        return True

    def adjust(self, nbytes: int) -> None:
        """Correct what is held by a difference of either sign, without waiting: an estimate became a fact."""
        self._return(-nbytes)
        if self._within is not None:
            self._within.adjust(nbytes)

    def release(self, nbytes: int) -> None:
        """Hold `nbytes` no longer."""
        self.adjust(-nbytes)

    def make_room(self) -> None:
        """Have others release some for the first that waits; then for the next one, as long as that helps."""
        if self._is_evicting:
            return
        self._is_evicting = True
        try:
            while self._waiting:
                first = self._waiting[0]
                self._evict_for(first)
                if self._is_first(first):
                    break
        finally:
            self._is_evicting = False
        if self._within is not None:
            self._within.make_room()

    def _evict_for(self, first: _Asker) -> None:
        """Of the wider budget's others, too, where it is only for them that there is no room."""
        limit = self.reach if self._leaves_room else self.limit
        if first.nbytes <= limit:
            self.evict(Shortage(limit, self.held, first.nbytes, first.priority))
        within, needed = self._within, self.held + first.nbytes
        if within is not None and self._leaves_room and self._is_first(first) and needed <= self.limit:
            within.evict(Shortage(within.limit, within.held, needed + first.nbytes, first.priority))

    def _is_first(self, asker: _Asker) -> bool:
        return bool(self._waiting) and self._waiting[0] is asker

    def _is_behind(self, priority: Priority) -> bool:
        """Whether somebody waits who is not to be passed by."""
        return bool(self._waiting) and _RANKS[self._waiting[0].priority] <= _RANKS[priority]

    def _fits(self, nbytes: int) -> bool:
        return self.held <= 0 or self.held + nbytes <= (self.reach if self._leaves_room else self.limit)

    def _return(self, nbytes: int) -> None:
        self.held -= nbytes
        self._admit()

    def _admit(self) -> None:
        was_first = self._waiting[0] if self._waiting else None
        while self._waiting and self._fits(self._waiting[0].nbytes):
            asker = self._waiting.popleft()
            if asker.turn.cancelled():
                continue
            self.held += asker.nbytes
            asker.turn.set_result(None)
        self._ask_for_room()
        short, self._short = self._short, {}
        for look in short:
            look()
        if self._waiting and self._waiting[0] is not was_first:
            self.make_room()

    def _ask_for_room(self) -> None:
        """Have the wider budget call when it has more room, where a session here waits for that."""
        if self._waiting and self._within is not None and self._leaves_room:
            self._within.tell(self._admit)

    def tell(self, look: Callable[[], None]) -> None:
        """Call `look` once, when bytes are given back."""
        self._short[look] = None
