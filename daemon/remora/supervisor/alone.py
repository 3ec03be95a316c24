"""What fails alone: a step or a task of the supervisor, whose defect is logged and ends nothing else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator

AGAIN_S = 1.0
"""After a defect a task is started again in this time, so that one that fails always costs little."""


class Alone:
    """Runs steps and tasks. `crashed` gets the name of one that failed, while its exception is handled."""

    def __init__(self, crashed: Callable[[str], None]) -> None:
        self._crashed = crashed

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[None]:
        """A block whose defect ends the block only."""
        try:
            yield
        except Exception:
            self._crashed(what)

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
