"""Work that is begun in the call it came with: what need not wait runs at once, and the first that must wait goes on in
a task.

A task costs a request some microseconds and a turn of the loop. Most requests to publish do without: their body has
come with their head, their topic is known, and the store calls back when their events are durable. All of this is one
coroutine for every request. It says `await in_task()` before whatever may wait, and `await outcome_of(...)` where it is
called back; outside of a task nothing else may be awaited that does not return at once.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")

Work = Coroutine[Any, Any, None]


class _Call:
    """What work that has no task waits for: a call, with which it goes on."""

    __slots__ = ("go_on",)

    go_on: Callable[[Any], object]

    def __call__(self, outcome: object) -> None:
        self.go_on(outcome)


class _Begun:
    """Work without a task.

    `now` is the one that runs. `current_task` does not tell: the end of a request in a task begins the next one.
    """

    __slots__ = ("_start", "_work")

    now: ClassVar[_Begun | None] = None

    def __init__(self, work: Work, start: Callable[[Work], None]) -> None:
        self._work = work
        self._start = start

    def go_on(self, outcome: object = None) -> bool:
        """Run up to the next wait; whether that is for anything but a call, so that a task goes on."""
        around, _Begun.now = _Begun.now, self
        try:
            call = self._work.send(outcome)
        except StopIteration:
            return False
        finally:
            _Begun.now = around
        if call is None:
            self._start(self._work)
            return True
        assert isinstance(call, _Call), f"{self._work} waits outside of a task"
        call.go_on = self.go_on
        return False


def begin(work: Work, start: Callable[[Work], None]) -> bool:
    """Run work up to its first wait. Where that is for anything but a call, `start` gets it for a task: then True."""
    return _Begun(work, start).go_on()


@coroutine
def in_task() -> Generator[None, None, None]:
    """Go on in a task; nothing happens where one runs this already."""
    if _Begun.now is not None:
        yield


@coroutine
def outcome_of(ask: Callable[[Callable[[T | Exception], None]], object]) -> Generator[Any, Any, T]:
    """What `ask` has its argument called with, later and in the event loop; an exception is raised."""
    if _Begun.now is not None:
        call = _Call()
        ask(call)
        outcome = yield call
    else:
        future = get_running_loop().create_future()
        ask(lambda outcome: None if future.done() else future.set_result(outcome))
        outcome = yield from future
    if isinstance(outcome, Exception):
        raise outcome
    return outcome  # type: ignore[no-any-return]  # of what it is called with
