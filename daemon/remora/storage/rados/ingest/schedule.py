"""The schedule: which intents have to be looked at when the process that works on them may have stopped.

Object `remora.requests` in remora's namespace, `remora.fanouts` for requests of several topics, has an omap key
`<action>/<due>/<name>` for each of them; due times are ms since the epoch, by the clock of the host that wrote the key.
A key is written before its intent, so that no intent is unknown:

* `open`: complete it, unless its own process does: it is committed, or about to be.
* `held`: abort it, once its room was reserved for long enough.
* `kept`: delete it: it is completed or aborted, and was retained long enough for those who repeat it.

Only `kept` goes by the due time. The others go by how long a process has seen the key, on its monotonic clock (see
`policy.reservations`), so that a host whose wall clock is wrong aborts no fresh reservation and leaves none behind.
Retained intents are too many for that: a daemon that stores 1,000 requests a second would have to see 900,000 keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from remora.model.ingest import RESERVATION_AGE_S
from remora.storage.librados import ObjectOperation, ReadOp, WriteOp
from remora.storage.rados.cluster.connection import ClusterConnection
from remora.storage.rados.cluster.part import RadosPart
from remora.storage.rados.cluster.refusals import OWN, MissingError
from remora.storage.rados.ingest.intent_log import Logged, now_ms

_PAGE = 256
MOST_WATCHED = 16_384
"""The most keys of an action that are seen at a time: as many intents as may wait to be completed or aborted."""

_KEY = re.compile(r"(open|held|kept)/([0-9]{15})/(.+)")

_GRACE_S = 3.0
_RETAINED_S = 900.0
_MARKED_S = 180.0
"""An intent that cannot be repeated is retained for its marks, which outlast every attempt to complete it."""


class DueAction(StrEnum):
    """What to do with an intent, by the first part of its key."""

    COMPLETE = "open"
    ABORT = "held"
    DELETE = "kept"


class ScheduleEntry(NamedTuple):
    """A key of the schedule."""

    action: DueAction
    due_ms: int
    name: str

    @property
    def key(self) -> str:
        return f"{self.action}/{self.due_ms:015d}/{self.name}"

    @property
    def overdue_s(self) -> float:
        """Seconds since it was due, by this host's wall clock; below 0 before that."""
        return (now_ms() - self.due_ms) / 1000


def completion(name: str, intent: Logged) -> ScheduleEntry:
    """The entry of an intent that its own process completes now."""
    return ScheduleEntry(DueAction.COMPLETE, intent.decided_ms + int(_GRACE_S * 1000), name)


def expiry(name: str, intent: Logged) -> ScheduleEntry:
    """The entry of a reservation."""
    return ScheduleEntry(DueAction.ABORT, intent.made_ms + int((RESERVATION_AGE_S + _GRACE_S) * 1000), name)


def deletion(name: str, intent: Logged) -> ScheduleEntry:
    """The entry of an intent that is completed or aborted now."""
    retained_s = _RETAINED_S if intent.repeated else _MARKED_S
    return ScheduleEntry(DueAction.DELETE, now_ms() + int(retained_s * 1000), name)


class Schedule(RadosPart):
    """Adds, replaces and lists the entries of one kind of requests."""

    def __init__(self, connection: ClusterConnection, kind: type[Logged]) -> None:
        super().__init__(connection)
        self._object = kind.SCHEDULE

    async def add(self, entry: ScheduleEntry) -> None:
        """Add an entry; no error when it is there."""
        await self._run(WriteOp().create(exclusive=False).set_omap({entry.key: b""}))

    async def replace(self, entries: Sequence[ScheduleEntry], new: ScheduleEntry | None) -> None:
        """Remove entries, and add another one if any, in one operation; no error for entries that are gone."""
        operation = WriteOp().create(exclusive=False).remove_omap([entry.key for entry in entries])
        if new is not None:
            operation.set_omap({new.key: b""})
        await self._run(operation)

    async def entries(self) -> dict[DueAction, list[ScheduleEntry]]:
        """The entries of each action, ordered by due time: up to 256 to delete, up to 16,384 of each other one."""
        operation = ReadOp().assert_exists()
        pages = {action: operation.omap_page("", f"{action}/", _PAGE) for action in DueAction}
        try:
            await self._run(operation)
        except MissingError:
            return {action: [] for action in DueAction}
        keys = {action: list(page.values) for action, page in pages.items()}
        for action in (DueAction.COMPLETE, DueAction.ABORT):
            if pages[action].more:
                operation = ReadOp().assert_exists()
                page = operation.omap_page(keys[action][-1], f"{action}/", MOST_WATCHED - _PAGE)
                await self._run(operation)
                keys[action] += list(page.values)
        return {action: list(_parsed(each)) for action, each in keys.items()}

    async def retained(self, after: ScheduleEntry) -> list[ScheduleEntry]:
        """Up to 256 further entries to delete, ordered by due time."""
        operation = ReadOp().assert_exists()
        page = operation.omap_page(after.key, f"{DueAction.DELETE}/", _PAGE)
        await self._run(operation)
        return list(_parsed(page.values))

    async def _run(self, operation: ObjectOperation) -> None:
        await self._connection.run(operation, self._object, f"looking into {self._object}", OWN, self._own)


def _parsed(keys: Iterable[str]) -> Iterator[ScheduleEntry]:
    """The entries of these keys; a key of another form is a newer version's and is skipped."""
    for key in keys:
        if match := _KEY.fullmatch(key):
            action, due_ms, name = match.groups()
            yield ScheduleEntry(DueAction(action), int(due_ms), name)
