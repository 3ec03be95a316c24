"""Looks after requests whose worker has stopped: any store that is open does so for all of them, every few seconds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Sequence

from remora.model.errors import StoreError, StoreUnavailable, TopicUnknown
from remora.model.ingest import RESERVATION_AGE_S
from remora.storage.rados.completing import Completer
from remora.storage.rados.own_queues import each_of
from remora.storage.rados.refusals import MismatchError, MissingError
from remora.storage.rados.requests import Entry, Requests, Stage, State

_log = logging.getLogger(__name__)

_EVERY_S = 3.0

# A request that is not there was never made, or it will be in a moment.
_NEVER_MADE_S = 900.0


class Recovery:
    """Goes through the agenda."""

    def __init__(self, requests: Requests, completer: Completer) -> None:
        self._requests = requests
        self._completer = completer
        self._unreadable: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            try:
                await self.look()
            except StoreError as exc:
                _log.debug("requests are not looked after: %s", exc)
            await asyncio.sleep(random.uniform(0.5, 1.5) * _EVERY_S)  # noqa: S311 - keeps daemons out of step

    async def look(self) -> None:
        """Go through what is due now, the oldest first, a bounded number of each stage."""
        agenda = await self._requests.agenda()
        due = {stage: [entry for entry in entries if entry.overdue_s >= 0] for stage, entries in agenda.items()}
        unsettled = due[Stage.OPEN] + due[Stage.HELD]
        self._tell(unsettled, await each_of(unsettled, self._settle))
        if due[Stage.KEPT]:
            await self._completer.forget(due[Stage.KEPT])

    def _tell(self, entries: Sequence[Entry], outcomes: Sequence[StoreError | None]) -> None:
        """Say what is not brought to its end; once only when waiting does not help."""
        unreadable = set()
        for entry, outcome in zip(entries, outcomes, strict=True):
            if isinstance(outcome, StoreUnavailable):
                _log.debug("a request is not brought to its end yet: %s", outcome)
            elif outcome is not None:
                unreadable.add(entry.name)
                if entry.name not in self._unreadable:
                    _log.error("events that were sent are not stored: %s", outcome)
        self._unreadable = frozenset(unreadable)

    async def _settle(self, entry: Entry) -> None:
        """Bring a request to its end, if there is one, and take it off this place of the agenda."""
        known = await self._requests.load(entry.name)
        if known is None:
            if entry.overdue_s > _NEVER_MADE_S:
                await self._requests.move([entry], None)
            return
        if known.state is State.RESERVED:
            if entry.stage is Stage.HELD:
                with contextlib.suppress(MismatchError, MissingError):  # committed in the last moment
                    await self._completer.end(entry.name, known.request)
            elif entry.overdue_s > 2 * RESERVATION_AGE_S:  # the commit that noted it came to nothing
                await self._requests.move([entry], None)
            return
        if known.state is State.DECIDED:
            _log.info("storing the %d events of request %s, which somebody left", known.request.events, entry.name)
            with contextlib.suppress(TopicUnknown):
                await self._completer.carry_out(entry.name, known.request)
        else:
            await self._completer.keep(entry.name, known.request)
        await self._requests.move([entry], None)
