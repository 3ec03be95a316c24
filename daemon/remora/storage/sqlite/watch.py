"""Sees to a store that cannot be used: notices it where no other part asks, and notices when it can be used again.

A process goes on with files that are gone from their directory as if nothing had happened: what it stored there would
be lost with it. So every write looks first whether the file still lies where it was opened; and all files are looked at
every second, since a daemon that gets no requests must not seem ready either.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from remora.model.errors import StoreError, StoreMisconfigured
from remora.storage.sqlite.files import Files

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0


class Watch:
    """Looks at the files of a store for as long as it is open."""

    def __init__(self, files: Files, begin: Callable[[], Awaitable[None]]) -> None:
        """`begin` is called whenever the files were opened."""
        self._files = files
        self._begin = begin
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the files and look after them from now on; those that are to be waited for are opened later."""
        await self._files.open()
        if self._files.is_open:
            await self._begin()
        self._task = asyncio.create_task(self._run(), name="watch the store")

    async def close(self) -> None:
        """Look no more. The files are still open, where they were."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        told = ""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self.look()
                told = ""
            except StoreError:
                pass  # which the state says
            except Exception as exc:  # a defect costs one look: without looks a store that is away would stay so
                if told != repr(exc):
                    told = repr(exc)
                    _log.exception("the look at the embedded store failed, and the next one follows")

    async def look(self) -> None:
        """Find out what cannot be used, and what can be used again. Other files in the place of ours are opened: they
        are those of a disk that came back under another number, or of a backup."""
        files = self._files
        if files.is_open:
            await files.look()
            if files.has_found_again:
                files.has_found_again = False
                await self._begin()
        if not files.is_open or files.is_stale:
            with suppress(StoreMisconfigured):  # which the state tells
                await files.reopen()
                await self._begin()
