"""The oldest entry of a queue between two sessions: whether there is one, and whose topic it says it belongs to."""

from __future__ import annotations

import asyncio
import time

from remora.codec.event_entry import attributes
from remora.codec.rendering_plain import age_s
from remora.engine.delivery.letters import dead_letter_all
from remora.engine.delivery.triage import Rejected
from remora.engine.dispatching.outlet import Outlet
from remora.engine.dispatching.scope import DispatchScope
from remora.engine.dispatching.standing import Standing
from remora.model.errors import CodecError
from remora.model.ledger import Cause, Tally
from remora.model.record import Page
from remora.model.topic import Topic


class OldestEntry:
    """See the module."""

    def __init__(self, scope: DispatchScope, outlet: Outlet, standing: Standing) -> None:
        self._scope = scope
        self._context, self._lease = scope.context, scope.lease
        self._outlet = outlet
        self._standing = standing

    async def waits(self) -> bool:
        """Whether there is a reason to open a way that costs the endpoint a producer, or that did not open when it was
        last tried; else wait a moment for one.

        The look is checked by the store: so who lost the lock while frozen seldom comes so far as to fence its owner.
        """
        return await self._found() is not None

    async def waits_since(self) -> float | None:
        """As `waits`: when the oldest entry was committed, in Unix seconds, and None for False.

        Where an entry does not tell, it is the time of the shard's last progress.
        """
        if (page := await self._found()) is None:
            return None
        now_ns = time.time_ns()
        if (age := age_s(page.entries[0], now_ns)) is None:
            age = asyncio.get_running_loop().time() - self._scope.state.progress.progress_at
        return now_ns / 1e9 - age

    async def _found(self) -> Page | None:
        """The oldest entry; None where nothing waits, after a moment in which something might have come."""
        page = await self._read()
        if page.entries:
            return page
        self._scope.state.shaped.cancel()
        if not self._context.store.arrivals.notifies:
            news = self._scope.state.progress.news
            await self._scope.first_of(self._context.settings.idle_max_s, self._outlet.changed(), news.wait())
        return None

    async def find_topic(self) -> Topic | None:
        """The topic's attributes from its metadata, else from the oldest entry's own copy; None if there is none."""
        known = self._outlet.look()
        if known is not None:
            return known
        page = await self._read()
        if not page.entries:
            if not self._context.store.arrivals.notifies:
                await self._scope.first_of(self._context.settings.idle_max_s, self._context.catalogue.next_reading())
            return None
        if page.corrupt:
            await self._dead_letter(page, Rejected(0, "corrupt", page.corrupt[0]))
            return None
        try:
            return attributes(page.entries[0])
        except CodecError as exc:
            await self._dead_letter(page, Rejected(0, "undecodable", str(exc)))
            return None

    async def _read(self) -> Page:
        """The oldest entry, if there is one."""
        progress = self._scope.state.progress
        self._lease.require_trust()
        progress.news.clear()
        page = await self._context.store.queue.read(self._lease.token, b"", 1)
        if page.entries:
            progress.begin_work()
        else:
            progress.end_work()
            self._standing.emptied()
        return page

    async def _dead_letter(self, page: Page, rejected: Rejected) -> None:
        """Dead-letter an entry that says nothing, at the head of a queue whose topic nothing else tells."""
        redelivery = self._scope.state.redelivery
        (letter,) = await dead_letter_all(self._context, self._lease, None, redelivery, page, [rejected])
        self._lease.require_trust()
        tally = Tally.of(Cause.of_letter(letter.cause))
        await self._context.store.queue.remove(self._lease.token, page.positions[1], 1, tally)
        redelivery.removed(page.positions[1])
