"""An event loop whose clock jumps to the next timer when nothing else is to do: hours pass in no time."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any


class NothingWillHappen(AssertionError):
    """Every task waits and no timer is set: the code under test has come to a standstill."""


class _Selector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout == 0:
            return []  # something is ready: asking the kernel in each turn would be a tenth of a test's time
        if events := super().select(0):
            return events
        if timeout is None:
            raise NothingWillHappen("every task waits for ever")
        self.now += max(timeout, 0.0)
        return []


class ClockLoop(asyncio.SelectorEventLoop):
    """Only for code that touches nothing real: a socket or thread would never be waited for."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def pass_by(self, seconds: float) -> None:
        """Let time go by in which nothing runs, as in a process that is stopped: what is due meanwhile is late."""
        self._clock.now += seconds


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on a ClockLoop."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=ClockLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run
