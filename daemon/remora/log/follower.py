"""Following a log: which entries come next, when a position counts as a hole, and what is done while something is away.

A position is a hole when it was handed out, or something stands behind it, and nothing is written there for a while. It
is filled then. Its appender, should it still live, is refused and takes another position, so that nothing is lost.

A log that is removed and made again is another log, and its positions mean something else: a follower ends there. It
looks when another epoch is served, when the tail has gone back, and before it fills.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from remora.client import SequencerUnavailable
from remora.log.entries import READ_AT_ONCE, Entry, LogReads, LogTimes
from remora.log.servers import LogServers
from remora.model.errors import StoreError
from remora.model.log import Cell, LogUnknown, PositionTaken, PositionTrimmed, StaleEpoch

MADE_AGAIN = "the log was removed and made again while it was followed: follow the new one from its first position"


class Follower:
    """The place of a reader in a log. `look` is called again and again by one task."""

    def __init__(
        self,
        reads: LogReads,
        servers: LogServers,
        fill: Callable[[int, str], Awaitable[None]],
        times: LogTimes,
        start: int,
    ) -> None:
        """`fill` writes a position off in the log of this id. Raises LogUnknown where it is another one by now."""
        self._reads = reads
        self._servers = servers
        self._fill = fill
        self._times = times
        self._position = start
        self._id = ""
        self._epoch = 0
        self._end = 0
        """The last position that is known to be handed out."""
        self._pause_s = times.first_look_s
        self._waits_since: float | None = None
        self._waits_for = self._waited_for = 0
        """The last position that was known to be handed out when the wait began, and when the last one that is over
        did: holes up to there have had their time, and are filled at once."""
        self._away_since: float | None = None

    async def look(self) -> Sequence[Entry]:
        """The entries that come next, where there are any yet; none after a pause.

        Raises StoreError that no waiting helps, and any once the store has been away for `give_up_s`, and
        SequencerUnavailable when the log was closed.
        """
        self._servers.check_open()
        try:
            found = await self._next()
        except StoreError as exc:
            now = asyncio.get_running_loop().time()
            self._away_since = now if self._away_since is None else self._away_since
            if not exc.retriable or now - self._away_since >= self._times.give_up_s:
                raise
            await self._rest()
            return []
        self._away_since = None
        if found is None:
            await self._rest()
            return []
        self._pause_s = self._times.first_look_s
        return found

    async def _rest(self) -> None:
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, self._times.look_s)

    async def _next(self) -> Sequence[Entry] | None:
        """Entries, and the place behind them; None where nothing is there yet."""
        if not self._id:
            self._id = await self._reads.id()
        begin = self._position
        found = await self._reads.several(begin, max(begin, min(self._end, begin + READ_AT_ONCE - 1)))
        passed = self._passed(found)
        if passed and passed[-1].cell is Cell.TRIMMED:
            self._position = max(passed[-1].position, await self._reads.trimmed()) + 1
        elif passed:
            self._position = passed[-1].position + 1
        else:
            return None if await self._waits() else []
        self._waits_since = None
        return [each for each in passed if each.cell is Cell.DATA]

    @staticmethod
    def _passed(found: Sequence[Entry]) -> Sequence[Entry]:
        """What is read for good: up to the first unwritten position, and no further than the first trimmed one."""
        for number, each in enumerate(found):
            if each.cell is Cell.UNWRITTEN:
                return found[:number]
            if each.cell is Cell.TRIMMED:
                return found[: number + 1]
        return found

    async def _waits(self) -> bool:
        """Whether to wait for the next position, which is unwritten; one that was waited for long enough is filled."""
        now = asyncio.get_running_loop().time()
        if self._position > self._end:
            self._waits_since = None
            self._end = max(self._end, await self._handed_out())
            return self._position >= self._end
        if self._position > self._waited_for:
            if self._waits_since is None:
                self._waits_since, self._waits_for = now, self._end
            if now - self._waits_since < self._times.hole_s:
                return True
            self._waited_for = self._waits_for
        try:
            await self._fill(self._position, self._id)
        except StaleEpoch:  # the next epoch has begun, but not where this position lies
            return True
        except (PositionTaken, PositionTrimmed):  # which of the two is seen at the next look
            return False
        return False

    async def _handed_out(self) -> int:
        """The last position that is known to be handed out: its server says so, or something is written there."""
        try:
            tail = await self._servers.tail(self._times.ask_s)
        except SequencerUnavailable:
            ahead = await self._reads.several(self._position, self._position + READ_AT_ONCE - 1)
            return max((each.position for each in ahead if each.cell is not Cell.UNWRITTEN), default=0)
        if tail.epoch != self._epoch or tail.position < self._position - 1:
            if await self._reads.id() != self._id:
                raise LogUnknown(MADE_AGAIN)
            self._epoch = tail.epoch
        return tail.position
