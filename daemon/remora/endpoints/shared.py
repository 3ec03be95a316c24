"""What topics of an endpoint share: opened once for all callers, replaced when unusable, closed when idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from remora.endpoints.tasks import Tasks
from remora.model.errors import EndpointError, EndpointUnavailable

T = TypeVar("T")


class Shared(Generic[T]):
    """One connection, channel or file at a time. `what` names it in messages."""

    def __init__(
        self,
        what: str,
        tasks: Tasks,
        open_one: Callable[[], Coroutine[Any, Any, T]],
        close_one: Callable[[T, float], Coroutine[Any, Any, None]],
        *,
        is_usable: Callable[[T], bool] = lambda _: True,
        used_at: Callable[[T, float], float | None] = lambda _, at: at,
    ) -> None:
        """`close_one` gets the seconds that what is under way may take, and runs in the background.

        What `is_usable` denies is not given out again; it is left to its owner, who knows why. `used_at` gets the time
        of the last `ready` or end of use, and says when it was used last; None while it is.
        """
        self.what = what
        self.current: T | None = None
        self.is_closed = False
        self.users = 0
        self._tasks = tasks
        self._open_one = open_one
        self._close_one = close_one
        self._is_usable = is_usable
        self._used_at = used_at
        self._last_used = asyncio.get_running_loop().time()
        self._opening: asyncio.Task[T | Exception] | None = None

    async def ready(self) -> T:
        """What is open, or is opened now. Raises EndpointError; a defect is raised too, for each caller that waited."""
        self._last_used = asyncio.get_running_loop().time()
        if self.current is not None and self._is_usable(self.current):
            return self.current
        if self.is_closed:
            raise self._closed()
        if self._opening is None:
            self._opening = self._tasks.ask(self._open(), name=f"open {self.what}")
        opening = self._opening
        await asyncio.wait([opening])  # neither cancels it with one of those who wait, nor them with it
        if opening.cancelled():
            raise self._closed()
        outcome = opening.result()
        del opening
        try:
            if isinstance(outcome, EndpointError):
                raise outcome.again() from outcome.__cause__
            if isinstance(outcome, Exception):
                raise RuntimeError(f"{self.what} could not be opened") from outcome
            return outcome
        finally:
            del outcome  # no frame may keep the exception that it raises: see `without_frames`

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """It is not idle during the block."""
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1
            self._last_used = asyncio.get_running_loop().time()

    def close_current(self, patience_s: float = 0.0) -> None:
        """Close what is open, in the background; the next who needs one has another opened."""
        one, self.current = self.current, None
        if one is not None:
            self._tasks.begin(self._close_one(one, patience_s), name=f"close {self.what}")

    def close_idle(self, before: float) -> bool:
        """Retire it where nothing used it since then; whether there is nothing now, and nobody who needs it."""
        if self.users or self._opening is not None:
            return False
        used_at = self._last_used if self.current is None else self._used_at(self.current, self._last_used)
        if used_at is None or used_at > before:
            return False
        self.close_current()
        return True

    def close(self, patience_s: float = 0.0) -> None:
        """Retire it, and open no other one."""
        self.is_closed = True
        if self._opening is not None:
            self._opening.cancel()
        self.close_current(patience_s)

    async def _open(self) -> T:
        try:
            self.current = opened = await self._open_one()
        finally:
            self._opening = None
        return opened

    def _closed(self) -> EndpointUnavailable:
        return EndpointUnavailable(f"{self.what}: the endpoint is closed", "aborted")


async def leave_open(_one: object, _patience_s: float) -> None:
    """Closes nothing: for what needs no goodbye, or what its owner closes."""


async def sweep(idle_s: float, close_idle: Callable[[float], None]) -> None:
    """Until cancelled, have what was not used for `idle_s` closed; `close_idle` gets the time since when."""
    while True:
        await asyncio.sleep(min(idle_s / 4, 10.0))
        close_idle(asyncio.get_running_loop().time() - idle_s)
