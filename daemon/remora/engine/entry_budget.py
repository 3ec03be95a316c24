"""Entries that may be listed and not acknowledged at once, by the shards of a topic and of a destination."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from remora.engine.byte_budget import ByteBudget
from remora.engine.eviction import Givers
from remora.policy.permits import Unacked, entries_to_list


class EntryBudget:
    """A bound on entries, first come first served, inside an optional wider one.

    Entries are asked for before a listing, then listed, then done. Who finds no room waits until half of the bound is
    free; waiting in a narrow bound costs the wider one nothing.
    """

    def __init__(
        self,
        most: Callable[[], int] = lambda: 0,
        within: EntryBudget | None = None,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        """`most` tells the bound as it is now, 0 for none; `on_wait` is called when a session begins to wait here."""
        self._most = most
        self._within = within
        self._on_wait = on_wait
        self._unacked = Unacked(most())
        self._waiting: deque[tuple[int, float | None, asyncio.Future[int]]] = deque()

    @property
    def held(self) -> int:
        """Entries that are listed and not done."""
        return self._unacked.count

    @property
    def is_bounded(self) -> bool:
        """Whether there is any bound now."""
        return bool(self._most()) or (self._within is not None and self._within.is_bounded)

    async def ask(self, limit: int, average: float | None) -> int:
        """Wait until something may be listed; returns how many entries, at most `limit`, which are asked for then.

        `average` is how many records an entry makes.
        """
        entries = 0 if self._waiting else self._take(limit, average)
        if not entries:
            entries = await self._wait(limit, average)
        if self._within is None:
            return entries
        try:
            granted = await self._within.ask(entries, average)
        except asyncio.CancelledError:
            self._give_back(entries)
            raise
        self._give_back(entries - granted)
        return granted

    def try_ask(self, limit: int, average: float | None) -> int:
        """As `ask`, without waiting; 0 where it would wait."""
        entries = 0 if self._waiting else self._take(limit, average)
        if self._within is None or not entries:
            return entries
        granted = self._within.try_ask(entries, average)
        self._give_back(entries - granted)
        return granted

    def listed(self, asked: int, entries: int) -> None:
        """A listing for which `asked` were asked has come with `entries`, which are held from now on."""
        self._unacked.sent(entries)
        self._give_back(asked)
        if self._within is not None:
            self._within.listed(asked, entries)

    def release(self, entries: int) -> None:
        """`entries` that were listed are done, or thrown away."""
        self._unacked.acked(entries)
        self.admit()
        if self._within is not None:
            self._within.release(entries)

    def admit(self) -> None:
        """Let go on who may by now; the bound may have changed."""
        while self._waiting:
            limit, average, turn = self._waiting[0]
            entries = 0 if turn.cancelled() else self._take(limit, average)
            if not entries and not turn.cancelled():
                return
            self._waiting.popleft()
            if entries:
                turn.set_result(entries)

    async def _wait(self, limit: int, average: float | None) -> int:
        turn: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((limit, average, turn))
        self._on_wait()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # granted and cancelled in the same step
                self._give_back(turn.result())
            else:
                with suppress(ValueError):  # passed over meanwhile
                    self._waiting.remove((limit, average, turn))
                self.admit()
            raise

    def _take(self, limit: int, average: float | None) -> int:
        self._unacked.set_most(self._most())
        entries = entries_to_list(limit, self._unacked.permits, average)
        self._unacked.asked += entries
        return entries

    def _give_back(self, asked: int) -> None:
        self._unacked.asked -= asked
        self.admit()


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a shard may hold at once of what is on its way to a destination, and who gives some of it back."""

    nbytes: ByteBudget
    entries: EntryBudget
    givers: Givers = field(default_factory=Givers)
