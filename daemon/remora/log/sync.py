"""A shared log for programs without an event loop: the same calls, which wait."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from threading import Lock, Thread
from types import TracebackType
from typing import Any, Self, TypeVar

from remora.log.entries import Entry
from remora.log.shared import Log

T = TypeVar("T")


class SyncLog:
    """A `Log` whose calls wait; an event loop in a thread of its own carries them out.

        with SyncLog(open_log("orders")) as log:
            position = log.append(b"hello")

    Threads may share one: what several append at once is under way side by side. When one of them leaves the block,
    calls of others that wait raise CancelledError, and later ones RuntimeError.
    """

    def __init__(self, opening: AbstractAsyncContextManager[Log]) -> None:
        self._opening = opening
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="remora-log", daemon=True)
        self._log: Log
        self._guard = Lock()
        self._is_closed = False
        self._asked: set[Future[Any]] = set()
        """The calls that wait."""

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._log = self._result(self._start(self._opening.__aenter__()))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._guard:
            self._is_closed = True
            for each in self._asked:
                each.cancel()
        try:
            self._result(self._start(self._opening.__aexit__(None, None, None)))
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._guard:  # what is asked behind the end would be waited for for ever
            if self._is_closed:
                work.close()
                raise RuntimeError("the log is closed")
            asked = self._start(work)
            self._asked.add(asked)
        try:
            return self._result(asked)
        finally:
            with self._guard:
                self._asked.discard(asked)

    def _start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _result(self, asked: Future[T]) -> T:
        try:
            return asked.result()
        except BaseException:  # as Ctrl-C is
            asked.cancel()
            raise

    def append(self, data: bytes) -> int:
        """As `Log.append`."""
        return self._run(self._log.append(data))

    def fill(self, position: int) -> None:
        """As `Log.fill`."""
        self._run(self._log.fill(position))

    def trim(self, upto: int) -> None:
        """As `Log.trim`."""
        self._run(self._log.trim(upto))

    def tail(self) -> int:
        """As `Log.tail`."""
        return self._run(self._log.tail())

    def read(self, position: int) -> Entry:
        """As `Log.read`."""
        return self._run(self._log.read(position))

    def read_range(self, first: int, last: int) -> list[Entry]:
        """As `Log.read_range`."""
        return self._run(self._log.read_range(first, last))

    def follow(self, start: int = 1) -> Generator[Entry, None, None]:
        """As `Log.follow`; each step waits for the next entry."""
        entries = self._log.follow(start)
        try:
            while True:
                yield self._run(anext(entries))
        finally:
            with suppress(RuntimeError):  # the log is closed, and nothing of it goes on
                self._run(entries.aclose())
