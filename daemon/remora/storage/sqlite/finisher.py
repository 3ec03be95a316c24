"""Finishes requests that are decided and whose process has stopped, and deletes marks that nobody needs.

Every open store does so at its opening and every few seconds. However many do it at once, a file takes its part once.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from remora.model.errors import StoreError
from remora.storage.sqlite import decisions
from remora.storage.sqlite.decisions import Decision
from remora.storage.sqlite.fan_out import FanOut
from remora.storage.sqlite.file import File, write_nothing
from remora.storage.sqlite.files import Files
from remora.storage.sqlite.write_batch import REMEMBERED_NS

_log = logging.getLogger(__name__)

EVERY_S = 3.0
GRACE_S = 3.0
"""How long the process that has decided a request is left alone with it."""

_MARKS_EVERY = 20
"""Marks are looked at once in so many looks."""


class Finisher:
    """Looks into all files for as long as the store is open."""

    def __init__(self, files: Files, ingest: FanOut) -> None:
        self._files = files
        self._ingest = ingest
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Finish what is there, and look again every few seconds from now on."""
        await self.look(0.0)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="finish requests")

    async def end(self) -> None:
        """Look no longer."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        looks = 0
        while True:
            await asyncio.sleep(EVERY_S)
            await self.look(GRACE_S)
            looks += 1
            if looks % _MARKS_EVERY == 0:
                await self.sweep()

    async def look(self, least_s: float) -> None:
        """Finish the requests that were decided at least this long ago. A file that cannot be used keeps those waiting
        that concern it, and no others."""
        with suppress(StoreError):
            for home, file in enumerate(self._files.all):
                for decision in await self._open(file, least_s):
                    await self._finish(home, decision)

    async def _open(self, file: File, least_s: float) -> list[Decision]:
        try:
            return await file.read(lambda connection: decisions.open_decisions(connection, int(least_s * 1e9)))
        except StoreError as exc:
            _log.debug("decided requests are not looked for: %s", exc)
            return []

    async def _finish(self, home: int, decision: Decision) -> None:
        try:
            await self._ingest.finish(home, decision)
        except StoreError as exc:
            _log.debug("a decided request is not finished yet: %s", exc)

    async def sweep(self, keep_ns: int = REMEMBERED_NS) -> None:
        """Delete old marks whose decisions are closed for good."""
        with suppress(StoreError):
            for file in self._files.sound:
                marks = await file.read(lambda connection: decisions.old_marks(connection, keep_ns))
                for home, names in marks.items():
                    await self._unmark(file, self._files.all[home], names)

    async def _unmark(self, file: File, home: File, names: list[str]) -> None:
        kept = await home.read(lambda connection: decisions.still_open(connection, names))
        if closed := [name for name in names if name not in kept]:
            await home.write(write_nothing, upkeep=True)  # syncs the closings, too
            await file.write(lambda connection: decisions.unmark(connection, closed), durable=False, upkeep=True)
