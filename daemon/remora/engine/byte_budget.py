"""Bytes that may be held in memory at once, by a shard, an endpoint and a worker."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress


class ByteBudget:
    """A bound on held bytes, first come first served, inside an optional wider one.

    A request larger than the whole bound is let through when nothing else is held, since refusing it would
    stop its shard for good. Waiting in a narrow bound costs the wider one nothing, so that a shard whose
    endpoint hangs keeps others from nothing.
    """

    def __init__(self, limit: int, within: ByteBudget | None = None, *, leaves_room: bool = False) -> None:
        """With `leaves_room` no more is held than is left free in the wider one.

        So there is always room for one more: the first that never gives back what it holds takes a half at most, the
        second a quarter, and those that fill up side by side all get the same.
        """
        assert within is not None or not leaves_room
        self.limit = limit
        self.held = 0
        self._within = within
        self._leaves_room = leaves_room
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
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

    async def acquire(self, nbytes: int) -> None:
        """Wait until `nbytes` may be held, and hold them."""
        if self._waiting or not self._fits(nbytes):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((nbytes, turn))
            self._ask_for_room()
            try:
                await turn
            except asyncio.CancelledError:
                # Granted and cancelled in the same step: the bytes are ours, and must go back.
                if turn.done() and not turn.cancelled():
                    self._return(nbytes)
                else:
                    with suppress(ValueError):  # passed over meanwhile, when others gave back
                        self._waiting.remove((nbytes, turn))
                    self._admit()
                raise
        else:
            self.held += nbytes
        if self._within is not None:
            try:
                await self._within.acquire(nbytes)
            except asyncio.CancelledError:
                self._return(nbytes)
                raise

    def try_acquire(self, nbytes: int) -> bool:
        """Hold `nbytes` if that is possible without waiting; returns whether."""
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

    def _fits(self, nbytes: int) -> bool:
        return self.held <= 0 or self.held + nbytes <= (self.reach if self._leaves_room else self.limit)

    def _return(self, nbytes: int) -> None:
        self.held -= nbytes
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            nbytes, turn = self._waiting.popleft()
            if turn.cancelled():
                continue
            self.held += nbytes
            turn.set_result(None)
        self._ask_for_room()
        short, self._short = self._short, {}
        for look in short:
            look()

    def _ask_for_room(self) -> None:
        """Have the wider budget call when it has more room, where a session here waits for that."""
        if self._waiting and self._within is not None and self._leaves_room:
            self._within.tell(self._admit)

    def tell(self, look: Callable[[], None]) -> None:
        """Call `look` once, when bytes are given back."""
        self._short[look] = None
