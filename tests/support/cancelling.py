"""Cancels work at each of its waits in turn, and tells which sockets and tasks are left of it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

from devkit.waits import PATIENT_S

Moment = Literal["waits", "woken"]
"""A wait is cancelled as it begins, or in the turn in which it would end: what was waited for has happened then."""

TURNS = 5
"""Of the event loop, in which transports that were cut close their sockets."""


class Steps:
    """Counts the waits of tasks, and cancels a task at one of them; then all of `work` is cancelled, too."""

    def __init__(self, number: int, moment: Moment) -> None:
        self.work: asyncio.Task[Any] | None = None
        self.hit = ""
        self._left = number
        self._moment = moment

    def is_due(self, moment: Moment, what: Coroutine[Any, Any, Any]) -> bool:
        """Whether this is the wait to cancel."""
        if moment != self._moment or self.hit or self.work is None or self.work.done():
            return False
        self._left -= 1
        if self._left:
            return False
        task = asyncio.current_task()
        assert task is not None
        self.hit = f"{task.get_name()} in {_where(what)}"
        if task is not self.work:
            asyncio.get_running_loop().call_soon(self.work.cancel)
        return True


class _Stepping(Coroutine[Any, Any, Any]):
    """A coroutine whose waits are counted."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], steps: Steps) -> None:
        self._coroutine = coroutine
        self._steps = steps
        self._has_waited = False

    def send(self, value: Any) -> Any:
        if self._has_waited and self._steps.is_due("woken", self._coroutine):
            return self._waits(self._coroutine.throw(asyncio.CancelledError()))
        return self._waits(self._coroutine.send(value))

    def throw(self, *exc: Any) -> Any:
        return self._waits(self._coroutine.throw(*exc))

    def _waits(self, on: Any) -> Any:
        self._has_waited = True
        if self._steps.is_due("waits", self._coroutine):
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        return on

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._coroutine.__await__()


def _where(coroutine: Any) -> str:
    """The lines at which a coroutine waits, from the outermost to the innermost."""
    lines = []
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        lines.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        coroutine = coroutine.cr_await
    return " > ".join(lines)


@contextmanager
def _stepping(steps: Steps) -> Iterator[None]:
    """Count the waits of all tasks that are started while the block runs."""
    loop = asyncio.get_running_loop()

    def make(_: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(_Stepping(coroutine, steps), loop=loop, **options)

    loop.set_task_factory(make)
    try:
        yield
    finally:
        loop.set_task_factory(None)


def clients() -> dict[str, int]:
    """The sockets of this process that connect to somewhere, as `ours -> theirs`, but not those of its own servers."""
    found: dict[tuple[str, str], int] = {}
    listening = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # what is closed meanwhile
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as each:
                if each.family not in (socket.AF_INET, socket.AF_INET6) or each.type != socket.SOCK_STREAM:
                    continue
                ours, theirs = _name(each.getsockname()), "nobody"
                if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    listening.add(ours)
                    continue
                with suppress(OSError):
                    theirs = _name(each.getpeername())
                found[ours, theirs] = int(name)
    return {f"{ours} -> {theirs}": number for (ours, theirs), number in found.items() if ours not in listening}


def _name(address: Any) -> str:
    return f"{address[0]}:{address[1]}"


def _hang_up(number: int) -> None:
    """End a connection that nobody owns: uvloop would wait for the other side to do so when it is closed."""
    with suppress(OSError), socket.socket(fileno=os.dup(number)) as each:
        each.shutdown(socket.SHUT_RDWR)


async def leaves_nothing(
    attempt: Callable[[Steps], Coroutine[Any, Any, None]], moment: Moment, besides: str = "", most: int = 2000
) -> int:
    """Cancel an attempt at each of its waits, until it has none that is not tried; answers how many there were.

    The attempt sets `work` to the task that is to be cancelled, and closes all that it owns itself. Connections to the
    address `besides` do not count: a library holds them in a thread, which no cancellation reaches.
    """
    for number in range(1, most):
        sockets, tasks = clients(), asyncio.all_tasks()
        steps = Steps(number, moment)
        with _stepping(steps):
            async with asyncio.timeout(PATIENT_S):
                await attempt(steps)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        open_still = {
            name: each
            for name, each in clients().items()
            if name not in sockets and not (besides and name.endswith(f" {besides}"))
        }
        for each in open_still.values():
            _hang_up(each)
        left = [*open_still, *(asyncio.all_tasks() - tasks)]
        assert not left, f"wait {number} ({moment}): {steps.hit} leaves {left}"
        if not steps.hit:
            return number - 1
    raise AssertionError(f"more than {most} waits")
