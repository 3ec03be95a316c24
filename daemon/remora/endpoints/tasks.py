"""The tasks of an endpoint that no caller awaits, or several do: none of them ends any other.

In a plain task group an unexpected exception would end the group, hence all topics of the worker. Here it
goes to the callers that wait for the task's outcome, each of which serves one topic; without any, into the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Protocol, Self, TypeVar

from remora.model.errors import RemoraError, without_frames

log = logging.getLogger(__name__)

T = TypeVar("T")


class CrashObserver(Protocol):
    """Who wants to know of defects."""

    def crashed(self, what: str) -> None:
        """The exception being handled is a defect of `what`."""
        ...


class CrashLog:
    """Tells the log of defects, where there is no telemetry."""

    def crashed(self, what: str) -> None:
        log.error("%s failed unexpectedly", what, exc_info=True)  # noqa: LOG014 # called in a handler


class Tasks:
    """Used as `async with`; leaving it waits for all of them."""

    def __init__(self, observer: CrashObserver) -> None:
        self._observer = observer
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._group.__aexit__(None, None, None)

    def ask(self, work: Coroutine[object, object, T], name: str) -> asyncio.Task[T | Exception]:
        """Start what a caller waits for; its failure is a value, since it may end when the caller is gone."""
        return self._start(_outcome(work), work, name)

    def begin(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        """Start what no caller waits for."""
        return self._start(self._guarded(work, name), work, name)

    def _start(
        self, whole: Coroutine[object, object, T], work: Coroutine[object, object, object], name: str
    ) -> asyncio.Task[T]:
        task = self._group.create_task(whole, name=name)
        task.add_done_callback(lambda _: work.close())  # one that is cancelled before its first step never awaits it
        return task

    async def _guarded(self, work: Coroutine[object, object, None], name: str) -> None:
        try:
            await work
        except Exception:
            self._observer.crashed(name)


async def _outcome(work: Coroutine[object, object, T]) -> T | Exception:
    try:
        return await work
    except RemoraError as exc:
        return without_frames(exc)  # which hold this task, hence the exception
    except Exception as exc:
        return exc
