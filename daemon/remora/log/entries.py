"""Reading a shared log: one position, or many side by side."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

from remora.model.log import Cell, LogName
from remora.ports.log import Logs

READ_AT_ONCE = 64
"""Positions that are read side by side."""


@dataclass(frozen=True, slots=True)
class LogTimes:
    """How patient a log is.

    `give_up_s`: how long a call may go on while a server or the store is away. `hole_s`: how long whoever follows the
    log waits for a position that was handed out before filling it. `ask_s`: how long one server is asked.
    `first_look_s` and `look_s`: the shortest and the longest pause before something is tried again, or looked for.
    """

    give_up_s: float = 30.0
    hole_s: float = 1.0
    ask_s: float = 1.0
    first_look_s: float = 0.002
    look_s: float = 0.1


class Entry(NamedTuple):
    """What stands at a position."""

    position: int
    cell: Cell
    data: bytes


class LogReads:
    """What can be read of a log without a sequencer."""

    def __init__(self, logs: Logs, name: LogName) -> None:
        self._logs = logs
        self._name = name

    async def one(self, position: int) -> Entry:
        """What stands at a position."""
        return Entry(position, *await self._logs.read(self._name, position))

    async def several(self, first: int, last: int) -> list[Entry]:
        """What stands at these positions, in order, each as it is at some time during the call."""
        found: list[Entry] = []
        for begin in range(first, last + 1, READ_AT_ONCE):
            found += await asyncio.gather(*map(self.one, range(begin, min(begin + READ_AT_ONCE, last + 1))))
        return found

    async def id(self) -> str:
        """What the log is told by from another one of its name, before or after it."""
        return (await self._logs.projection(self._name)).id

    async def trimmed(self) -> int:
        """Up to which position everything is deleted."""
        return (await self._logs.figures(self._name)).trimmed
