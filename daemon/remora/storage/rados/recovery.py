"""Recovery: finishes intents whose process has stopped. Every open store recovers all of them, every few seconds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple

from remora.bounded import each_of
from remora.model.errors import StoreError, StoreUnavailable, TopicUnknown
from remora.model.ingest import RESERVATION_AGE_S
from remora.policy.reservations import Sightings
from remora.storage.rados.finisher import RequestLog
from remora.storage.rados.intent_log import IntentState, L
from remora.storage.rados.refusals import MismatchError, MissingError
from remora.storage.rados.schedule import DueAction, ScheduleEntry

_log = logging.getLogger(__name__)

_EVERY_S = 3.0
_AT_ONCE = 256

_GRACE_S = 3.0
"""How long the process that commits an intent is left alone with it."""

_NEVER_CREATED_S = 900.0
"""An intent that is missing for so long was never created: the process that added its entry has stopped."""


class _Due(NamedTuple):
    """An entry, and for how many seconds this process has seen it."""

    entry: ScheduleEntry
    seen_s: float


class Recovery(Generic[L]):
    """Goes through the schedule of one kind of requests. `clock` is monotonic, in seconds."""

    def __init__(self, log: RequestLog[L], clock: Callable[[], float] = time.monotonic) -> None:
        self._intents, self._schedule, self._finisher = log.intents, log.schedule, log.finisher
        self._clock = clock
        self._seen: Sightings[ScheduleEntry] = Sightings()
        self._unreadable: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Look at the schedule every few seconds until cancelled."""
        while True:
            try:
                await self.look()
            except StoreError as exc:
                _log.debug("cannot look for unfinished requests: %s", exc)
            await asyncio.sleep(random.uniform(0.5, 1.5) * _EVERY_S)  # noqa: S311 - keeps daemons out of step

    async def look(self) -> None:
        """Finish what is due now, the longest seen first, a bounded number for each action. Then delete, for some
        seconds, what was retained for long enough. Raises StoreError.
        """
        schedule, now = await self._schedule.entries(), self._clock()
        self._seen = self._seen.after_look([*schedule[DueAction.COMPLETE], *schedule[DueAction.ABORT]], now)
        due = [*self._due(DueAction.COMPLETE, _GRACE_S, now), *self._due(DueAction.ABORT, RESERVATION_AGE_S, now)]
        self._report([each.entry for each in due], await each_of(due, self._finish, StoreError))
        page = schedule[DueAction.DELETE]
        while retained := [entry for entry in page if entry.overdue_s >= 0]:
            await self._finisher.delete(retained)
            if self._clock() - now > _EVERY_S:
                return
            page = await self._schedule.retained(retained[-1])

    def _due(self, action: DueAction, age_s: float, now: float) -> list[_Due]:
        """The entries of an action that were first seen this long ago or longer, the longest seen first."""
        found = [entry for entry in self._seen.seen_for(age_s, now) if entry.action is action]
        return [_Due(entry, now - self._seen.first_seen[entry]) for entry in found[:_AT_ONCE]]

    def _report(self, entries: Sequence[ScheduleEntry], outcomes: Sequence[StoreError | None]) -> None:
        """Log the intents that could not be finished: at ERROR, once each, where waiting does not help."""
        unreadable = set()
        for entry, outcome in zip(entries, outcomes, strict=True):
            if isinstance(outcome, StoreUnavailable):
                _log.debug("a request is not completed yet: %s", outcome)
            elif outcome is not None:
                unreadable.add(entry.name)
                if entry.name not in self._unreadable:
                    _log.error("events that were sent are not stored: %s", outcome)
        self._unreadable = frozenset(unreadable)

    async def _finish(self, due: _Due) -> None:
        """Finish the intent of an entry, if there is one, and remove the entry."""
        entry, seen_s = due
        known = await self._intents.load(entry.name)
        if known is None:
            if seen_s > _NEVER_CREATED_S:
                await self._schedule.replace([entry], None)
            return
        if known.state is IntentState.PREPARED:
            if entry.action is DueAction.ABORT:
                with contextlib.suppress(MismatchError, MissingError):  # committed in the last moment
                    await self._finisher.abort(entry.name, known.intent)
            elif seen_s > 2 * RESERVATION_AGE_S:  # the commit that added the entry failed
                await self._schedule.replace([entry], None)
            return
        if known.state is IntentState.COMMITTED:
            _log.info("storing the %d events of request %s, left by its process", known.intent.events, entry.name)
            with contextlib.suppress(TopicUnknown):
                await self._finisher.complete(entry.name, known.intent)
        else:
            await self._finisher.retain(entry.name, known.intent)
        await self._schedule.replace([entry], None)
