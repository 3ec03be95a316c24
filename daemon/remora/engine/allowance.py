"""Bytes that may be held in memory at once, by a shard, an endpoint and a worker."""

from __future__ import annotations

import asyncio
from collections import deque


class Allowance:
    """A bound on held bytes, first come first served, inside an optional wider one.

    A request larger than the whole bound is let through when nothing else is held, since refusing it would
    stop its shard for good. Waiting in a narrow bound costs the wider one nothing, so that a shard whose
    endpoint hangs keeps others from nothing.
    """

    def __init__(self, limit: int, within: Allowance | None = None) -> None:
        self.limit = limit
        self.held = 0
        self._within = within
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, nbytes: int) -> None:
        """Wait until `nbytes` may be held, and hold them."""
        if self._waiting or not self._fits(nbytes):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((nbytes, turn))
            try:
                await turn
            except asyncio.CancelledError:
                # Granted and cancelled in the same step: the bytes are ours, and must go back.
                if turn.done() and not turn.cancelled():
                    self._return(nbytes)
                else:
                    self._waiting.remove((nbytes, turn))
                    self._admit()
                raise
        else:
            self.held += nbytes
        if self._within is not None:
            try:
                await self._within.take(nbytes)
            except asyncio.CancelledError:
                self._return(nbytes)
                raise

    def take_now(self, nbytes: int) -> bool:
        """Hold `nbytes` if that is possible without waiting; returns whether."""
        if self._waiting or not self._fits(nbytes):
            return False
        if self._within is not None and not self._within.take_now(nbytes):
            return False
        self.held += nbytes
        return True

    def adjust(self, nbytes: int) -> None:
        """Correct what is held by a difference of either sign, without waiting: an estimate became a fact."""
        self._return(-nbytes)
        if self._within is not None:
            self._within.adjust(nbytes)

    def give(self, nbytes: int) -> None:
        """Hold `nbytes` no longer."""
        self.adjust(-nbytes)

    def _fits(self, nbytes: int) -> bool:
        return self.held <= 0 or self.held + nbytes <= self.limit

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
