"""Finishes requests that are decided and whose process has stopped, and deletes marks that nobody needs.

Every open store does so at its opening and every few seconds. However many do it at once, a file takes its part once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from remora.model.errors import StoreError, StoreFull, StoreUnavailable
from remora.storage.sqlite.files.file import File, write_nothing
from remora.storage.sqlite.files.open_files import Files
from remora.storage.sqlite.ingest.decisions import decision_of
from remora.storage.sqlite.ingest.fan_out import FanOut
from remora.storage.sqlite.tables.clock import boot_id, now_ns
from remora.storage.sqlite.tables.write_batch import AGE, REMEMBERED_NS

_log = logging.getLogger(__name__)

EVERY_S = 3.0
GRACE_S = 3.0
"""How long the process that has decided a request is left alone with it."""

_MARKS_EVERY = 20
"""Marks are looked at once in so many looks."""

_AT_ONCE = 256
_MARKS_AT_ONCE = 4096

_OPEN = f"""
SELECT number, id, digest, answer, parts, checksum FROM decisions
WHERE length(parts) > 0 AND number > :after AND {AGE} >= :least ORDER BY number LIMIT {_AT_ONCE}
"""  # noqa: S608 - constants
_MARKS = f"""
SELECT id, home, {AGE} > :keep FROM taken WHERE id > :after ORDER BY id LIMIT {_MARKS_AT_ONCE}
"""  # noqa: S608 - constants
_STILL_OPEN = "SELECT id FROM decisions WHERE length(parts) > 0 AND id IN (SELECT value FROM json_each(?))"
_UNMARK = "DELETE FROM taken WHERE id IN (SELECT value FROM json_each(?))"


@dataclass(slots=True)
class _Outcomes:
    """What a look at all files has met: those that do not answer, which are not asked again, and requests that nobody
    can finish."""

    stuck: set[int] = field(default_factory=set)
    damaged: dict[str, str] = field(default_factory=dict)


class DecisionFinisher:
    """Looks into all files for as long as the store is open."""

    def __init__(self, files: Files, ingest: FanOut) -> None:
        self._files = files
        self._ingest = ingest
        self._task: asyncio.Task[None] | None = None
        self._damaged: frozenset[str] = frozenset()

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
        that concern it, and no others; a request that is damaged is named once."""
        look = _Outcomes()
        for home, file in self._files.by_number if self._files.is_open else ():
            asked = {"boot": boot_id(), "now": now_ns(), "least": int(least_s * 1e9), "after": 0}
            with suppress(StoreError):
                while rows := await file.read(lambda found: found.execute(_OPEN, asked).fetchall()):  # noqa: B023 - awaited
                    asked["after"] = rows[-1][0]
                    # Many at once, as those who sent them would.
                    await asyncio.gather(*(self._finish(home, row[1:], look) for row in rows))
        for name, why in look.damaged.items():
            if name not in self._damaged:
                _log.error("events that were sent are not stored: %s", why)
        self._damaged = frozenset(look.damaged)

    async def _finish(self, home: int, row: Sequence[Any], look: _Outcomes) -> None:
        try:
            for part, failure in await self._ingest.complete(home, decision_of(*row), look.stuck):
                if isinstance(failure, StoreUnavailable):
                    look.stuck.add(part.file)
                raise failure
        except (StoreUnavailable, StoreFull) as exc:
            _log.debug("request %s is not finished yet: %s", row[0], exc)
        except Exception as exc:  # whatever it is, the others are finished
            look.damaged[row[0]] = str(exc) if isinstance(exc, StoreError) else repr(exc)

    async def sweep(self, keep_ns: int = REMEMBERED_NS) -> None:
        """Delete old marks whose decisions are closed for good."""
        for file in self._files.sound if self._files.is_open else ():
            with suppress(StoreError):
                await self._sweep(file, keep_ns)

    async def _sweep(self, file: File, keep_ns: int) -> None:
        """Look at all marks of a file, some thousand at a time; those stay whose decisions cannot be looked at."""
        asked = {"boot": boot_id(), "now": now_ns(), "keep": keep_ns, "after": ""}
        while rows := await file.read(lambda found: found.execute(_MARKS, asked).fetchall()):
            asked["after"] = rows[-1][0]
            marks: dict[int, list[str]] = {}
            for name, home, is_old in rows:
                if is_old:
                    marks.setdefault(home, []).append(name)
            for home, names in marks.items():
                with suppress(StoreError):
                    if closed := await self._closed_for_good(home, names):
                        await file.write(
                            lambda found: found.execute(_UNMARK, (_json(closed),)),
                            durable=False,
                            upkeep=True,
                        )
            await asyncio.sleep(0)  # others have their turn

    async def _closed_for_good(self, home: int, names: list[str]) -> list[str]:
        """Those of these requests whose decision no power cut brings back: what is synced here is synced with all that
        was written before."""
        if not self._files.has(home):
            return names  # nobody decides there any more
        file = self._files.numbered(home)
        rows = await file.read(lambda found: found.execute(_STILL_OPEN, (_json(names),)).fetchall())
        still_open = {name for (name,) in rows}
        await file.write(write_nothing, upkeep=True)
        return [name for name in names if name not in still_open]


def _json(names: Sequence[str]) -> str:
    return msgspec.json.encode(names).decode()
