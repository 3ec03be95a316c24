"""What fails alone: a step or a task of a process, whose defect is logged and ends nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType

AGAIN_S = 1.0
"""After a defect a task is started again in this time, so that one that fails always costs little."""


@dataclass(frozen=True, slots=True)
class StepAlone:
    """A block that is left without its exception. As a class, since type checkers believe this of no generator."""

    what: str
    crashed: Callable[[str], None]

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(exc, Exception):
            return False
        self.crashed(self.what)
        return True


class Alone:
    """Runs steps and tasks. `crashed` gets the name of one that failed, while its exception is handled."""

    def __init__(self, crashed: Callable[[str], None]) -> None:
        self._crashed = crashed

    def step(self, what: str) -> StepAlone:
        """A block whose defect ends the block only."""
        return StepAlone(what, self._crashed)

    def each(self, what: str, *steps: Callable[[], object]) -> None:
        """Take all of these steps, in their order, whatever becomes of any."""
        for each in steps:
            with self.step(what):
                each()

    async def task(self, what: str, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """Do this work until it comes to its end, and begin it again after a defect, unless it is to end anyway."""
        me, pause_s = asyncio.current_task(), 0.0
        while not (me is not None and me.cancelling()):
            with self.step(what):  # all that waits is in here: nothing but a cancellation gets out
                if pause_s:
                    await asyncio.sleep(pause_s)
                pause_s = AGAIN_S
                await work()
                return
