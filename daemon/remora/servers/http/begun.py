"""Work that is begun in the call it came with: what need not wait runs at once, and the first that must wait goes on in
a task.

A task costs a request some microseconds and a turn of the loop. Most requests to publish do without: their body has
come with their head, their topic is known, and the store calls back when their events are durable. All of this is one
coroutine for every request. It says `await in_task()` before whatever may wait, and awaits a `Callback` where it is
called back; outside of a task nothing else may be awaited that does not return at once.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Work = Coroutine[Any, Any, None]


_has_task = True
"""Whether what runs has a task of its own. `current_task` does not tell: the end of a request in a task begins the next
one. A variable of the module, since one of a class costs a microsecond each time that it is set."""


class Callback(Generic[T]):
    """What somebody is to call, later and in the event loop, with an outcome; whoever awaits it gets that, or has the
    exception raised that it is."""

    __slots__ = ("_go_on",)

    _go_on: Callable[[T | Exception], object]

    def __init__(self) -> None:
        self._go_on = lambda _: None

    def __call__(self, outcome: T | Exception) -> None:
        self._go_on(outcome)

    def __await__(self) -> Generator[Any, Any, T]:
        if not _has_task:
            outcome = yield self
        else:
            future = get_running_loop().create_future()
            self._go_on = lambda outcome: None if future.done() else future.set_result(outcome)
            outcome = yield from future
        if isinstance(outcome, Exception):
            raise outcome
        return outcome  # type: ignore[no-any-return]  # of what it is called with

    def then(self, go_on: Callable[[T | Exception], object]) -> None:
        """Have this done with the outcome."""
        self._go_on = go_on


class _Begun:
    """Work without a task."""

    __slots__ = ("_start", "_work")

    def __init__(self, work: Work, start: Callable[[Work], None]) -> None:
        self._work = work
        self._start = start

    def go_on(self, outcome: object = None) -> bool:
        """Run up to the next wait; whether that is for anything but a call, so that a task goes on."""
        global _has_task
        around, _has_task = _has_task, False
        try:
            call = self._work.send(outcome)
        except StopIteration:
            return False
        finally:
            _has_task = around
        if call is None:
            self._start(self._work)
            return True
        assert isinstance(call, Callback), f"{self._work} waits outside of a task"
        call.then(self.go_on)
        return False


def begin(work: Work, start: Callable[[Work], None]) -> bool:
    """Run work up to its first wait. Where that is for anything but a call, `start` gets it for a task: then True."""
    return _Begun(work, start).go_on()


@coroutine
def in_task() -> Generator[None, None, None]:
    """Go on in a task; nothing happens where one runs this already."""
    if not _has_task:
        yield
