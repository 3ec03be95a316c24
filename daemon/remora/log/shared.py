"""A shared log for programs: appends that land once, reads, and following it as it grows.

Each append takes a position of the sequencer and writes it to the store. Those of one turn of the event loop take their
positions in one range, and their writes are under way side by side. An epoch that ends is nothing to the caller: the
append takes a position of the next one. A position that nobody writes is filled by those who follow the log.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Sequence
from typing import Self

from remora.client import SequencerUnavailable
from remora.log.entries import Entry, LogReads, LogTimes
from remora.log.follower import MADE_AGAIN, Follower
from remora.log.servers import LogServers
from remora.model.errors import RemoraError, StoreError
from remora.model.log import LogKind, LogName, LogRefused, LogUnknown, PositionTaken, StaleEpoch, Token, check_entry
from remora.policy.logs import appends
from remora.policy.logs.appends import Next
from remora.ports.log import Logs

PATIENCE = LogTimes()


class NotAppended(RemoraError):
    """The entry is not in the log, and never will be: no position could be had, or written, in time."""

    retriable = True


class AppendUnclear(RemoraError):
    """The entry may be in the log, at `position`: the store did not say in time what became of the write."""

    def __init__(self, text: str, position: int) -> None:
        super().__init__(text)
        self.position = position


class Log:
    """See the module. Many tasks may use one; it needs the log's store, and the addresses of sequencers."""

    def __init__(
        self,
        logs: Logs,
        name: LogName,
        addresses: Sequence[str] = (),
        times: LogTimes = PATIENCE,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`addresses` are asked where the projection names no server, or one that does not answer.

        With `tls`, which holds the client's certificate, addresses of TCP are reached over TLS.
        """
        self.name = name
        self._logs = logs
        self._times = times
        self._servers = LogServers(logs, name, addresses, times.ask_s, tls=tls)
        self._reads = LogReads(logs, name)
        self._holds_entries = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._servers.__aexit__(*exc_info)

    # ---------------------------------------------------------------------------------------- writing

    async def append(self, data: bytes) -> int:
        """Append an entry, durably, and return its position; it lands once.

        An append that begins after another one has ended gets the larger position. Raises NotAppended where the entry
        is not in the log and never will be, AppendUnclear where nobody could tell in time, and LogUnknown and
        LogRefused. A cancelled append may land, or leave a hole.
        """
        check_entry(data)  # before a position is taken, which would be a hole
        ends, pause_s = self._now() + self._times.give_up_s, self._times.first_look_s
        await self._require_entries()
        while True:
            try:
                token = await self._servers.next(ends - self._now())
            except SequencerUnavailable as exc:
                raise NotAppended(f"not appended: {exc}") from exc
            step, error = await self._write(token, data, ends)
            if step is Next.DONE:
                return token.position
            if step is Next.FAIL:
                assert error is not None
                raise error
            if self._now() >= ends:
                raise NotAppended(f"not appended within {self._times.give_up_s:g} s: {error or step.value}") from error
            if isinstance(error, StaleEpoch):
                self._servers.ended(token)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, self._times.look_s)

    async def _require_entries(self) -> None:
        """Raise LogRefused for a counter, whose positions are somebody else's. A store that does not say is asked again
        at the next append; meanwhile it is the one that refuses."""
        if self._holds_entries:
            return
        try:
            kind = (await self._logs.projection(self.name)).kind
        except StoreError:  # also of a log that its first request makes
            return
        if kind is LogKind.COUNTER:
            raise LogRefused(f"{self.name} is a counter: it holds no entries")
        self._holds_entries = True

    async def _write(self, token: Token, data: bytes, ends: float) -> tuple[Next, StoreError | None]:
        """Write a position, and find out what became of that. Raises AppendUnclear where nobody can tell."""
        step, error, pause_s = Next.AGAIN, None, self._times.first_look_s
        while True:
            if step is Next.AGAIN:
                error = await _error_of(self._logs.append(self.name, token.epoch, token.position, data))
                step = appends.after_write(error)
            else:
                step, error = await self._found_out(token, data)
            if step not in (Next.AGAIN, Next.FIND_OUT) or self._now() >= ends or self._servers.is_closed:
                break
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._times.look_s)
        if step in (Next.FIND_OUT, Next.UNCLEAR):
            why = error or "these bytes stand there, written in its own epoch or in a later one"
            raise AppendUnclear(f"the entry may be at position {token.position} of {self.name}: {why}", token.position)
        return step, error

    async def _found_out(self, token: Token, data: bytes) -> tuple[Next, StoreError | None]:
        """What follows a write whose outcome is unknown, once the position is filled or was looked at."""
        error = await _error_of(self._logs.fill(self.name, token.epoch, token.position))
        step = appends.after_fill(error)
        if step is not Next.LOOK:
            return step, error
        try:
            found = await self._reads.one(token.position)
        except StoreError as exc:
            return (Next.FIND_OUT if exc.retriable else Next.UNCLEAR), exc
        is_ours, same_epoch = found.data == data, isinstance(error, PositionTaken)
        return appends.after_look(found.cell, is_ours=is_ours, same_epoch=same_epoch), None

    async def fill(self, position: int) -> None:
        """Write a position off; no error where it is filled. Raises PositionTaken, PositionTrimmed, LogUnknown.

        Raises StaleEpoch where an epoch that is half begun, as a kill leaves it, stays so for `give_up_s`.
        Raises LogRefused behind the tail, which is as `trim` finds it: a position that was written off there would be
        the last one of the next epoch, with holes up to it, or the log's end.
        """
        if position > (last := await self._last()):
            raise LogRefused(f"position {position} of {self.name} was not handed out yet: {last} is the last one")
        ends, pause_s = self._now() + self._times.give_up_s, self._times.first_look_s
        while True:
            try:
                return await self._fill(position)
            except StaleEpoch:
                if self._now() >= ends or self._servers.is_closed:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._times.look_s)

    async def _fill(self, position: int, log_id: str = "") -> None:
        """Write a position off in the epoch that the log has. Raises StaleEpoch where that is over by then, and where
        it has not begun yet on the stripe of the position, and LogUnknown where the log is not the one of this id."""
        found = await self._logs.projection(self.name)
        if log_id and found.id != log_id:
            raise LogUnknown(MADE_AGAIN)
        await self._logs.fill(self.name, found.epoch, position)

    async def trim(self, upto: int) -> None:
        """Delete all entries up to this position for good, durably.

        It ends at the tail: behind it nothing is handed out yet, and who appends there would be refused. Where no
        sequencer says what the tail is, the last position that is written counts.
        """
        await self._logs.trim(self.name, min(upto, await self._last()))

    async def _last(self) -> int:
        try:
            return (await self._servers.tail(self._times.ask_s)).position
        except SequencerUnavailable:
            return (await self._logs.figures(self.name)).tail

    # ---------------------------------------------------------------------------------------- reading

    async def tail(self) -> int:
        """The last position that was handed out, 0 where there was none; never below an append that had ended.

        Raises SequencerUnavailable.
        """
        return (await self._servers.tail(self._times.give_up_s)).position

    async def read(self, position: int) -> Entry:
        """What stands at a position: data, or nothing that is filled, unwritten or trimmed."""
        return await self._reads.one(position)

    async def read_range(self, first: int, last: int) -> list[Entry]:
        """What stands at the positions from `first` to `last`, in order, each as it is at some time during the call."""
        return await self._reads.several(first, last)

    async def follow(self, start: int = 1) -> AsyncGenerator[Entry, None]:
        """Every entry from a position on, in order, for ever: new ones as they come.

        What is filled or trimmed is passed over. A position that was handed out and stays unwritten is filled after a
        time-out; its appender, should it still live, takes another one. It goes on while no sequencer is there, and
        raises StoreUnavailable once the store has been away for `give_up_s`, SequencerUnavailable when the log is left,
        and LogUnknown when it is removed, also where one of its name was made since.
        """
        follower = Follower(self._reads, self._servers, self._fill, self._times, start)
        while True:
            for each in await follower.look():
                yield each

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


async def _error_of(write: Awaitable[None]) -> StoreError | None:
    """The error of a write, where it has one."""
    try:
        await write
    except StoreError as exc:
        return exc
    return None
