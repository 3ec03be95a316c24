"""Shares the shards with the other workers: announces this one, reads their rows, and does its part of the moves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from remora.bounded import portions
from remora.engine.admission.shares import WorkerShares
from remora.engine.ownership.members import MemberRows
from remora.engine.ownership.situation import Situation
from remora.metrics import Telemetry
from remora.model.errors import StoreError
from remora.model.member import Member
from remora.model.shard import Shard
from remora.policy.ownership.assignment import shared_number, transfers
from remora.policy.ownership.attempt import wants
from remora.policy.ownership.membership import Membership, Outgoing, expecting, offered_to, updated
from remora.policy.ownership.owners import quarantining_part
from remora.policy.ownership.view import View

LEAST_PAUSE_S = 0.05
"""Between two readings of the rows: what comes together, as many shards that arrive, is announced together."""


class Mover(Protocol):
    """Says which shards this worker offers to which others for their load, and which destinations it leaves to them."""

    @property
    def quarantined(self) -> tuple[str, ...]:
        """The destinations that this worker leaves to others."""
        ...

    def offers(self, view: View, on_offer: Mapping[Shard, Outgoing]) -> Mapping[Shard, Outgoing]:
        """What to offer now, beside what is on offer already."""
        ...


class Rebalancer:
    """See the module. It acts on the other workers' rows; the coordinator on the locks."""

    def __init__(
        self, situation: Situation, rows: MemberRows, telemetry: Telemetry, group_size: int, mover: Mover
    ) -> None:
        """`group_size` workers start together, this one included. `mover` says which shards move for their load."""
        self.expected = asyncio.Event()
        """Set when other workers offer shards to this one; the loop that acquires them clears it."""
        self.group_complete = asyncio.Event()
        """Set once `group_size` workers have announced themselves."""
        self._situation = situation
        self._roster = situation.roster
        self._rows = rows
        self._telemetry = telemetry
        self._group_size = group_size
        self._mover = mover
        self.budgets = WorkerShares()
        """What this worker has of the limits that all workers share, by their rows."""

    async def run(self) -> None:
        """Read the other workers' rows, and do this worker's part; when cancelled, remove its own row."""
        try:
            while True:
                self._situation.poll_soon.clear()
                try:
                    await self._poll()
                except StoreError as exc:  # the last view stands, and locks decide anyway
                    self._telemetry.members_failed(str(exc))
                    if self.budgets.see_nobody(self._members.cookie):
                        self._telemetry.budgets_whole()
                await asyncio.sleep(LEAST_PAUSE_S)
                again_s = self._members.poll_again_s(asyncio.get_running_loop().time())
                with suppress(TimeoutError):
                    async with asyncio.timeout(again_s):
                        await self._situation.poll_soon.wait()
        finally:
            await self._rows.withdraw()

    async def _poll(self) -> None:
        owned, situation = self._roster.owned, self._situation
        situation.members = replace(situation.members, quarantined=self._mover.quarantined, wants=self.budgets.wants())
        await self._rows.announce(self._members.row(owned), self._members.look_s)
        self.see(await self._rows.read())
        rows = self._members.rows(owned)
        self.budgets.see(self._members.cookie, {each.cookie: each.wants for each in rows})
        self._telemetry.quarantining(quarantining_part(rows))
        view = situation.view()
        wanted = {shard for shard in offered_to(view.members) if wants(view, shard)}
        situation.members = expecting(view.members, owned, wanted, view.now)
        if self._members.expects:
            self.expected.set()
        await self._transfer()
        await self._rows.announce(self._members.row(owned), self._members.look_s)

    def see(self, rows: Sequence[Member]) -> None:
        """These are the rows of the workers now."""
        known = self._members.workers
        self._situation.members = updated(self._members, rows, asyncio.get_running_loop().time())
        if self._members.workers != known:
            self._situation.plan_soon.set()
        if len(self._members.others) + 1 >= self._group_size:
            self.group_complete.set()
        self.aim()

    def aim(self) -> None:
        """Work out this worker's share, because the other workers or the shards have changed."""
        was, shared = self._members.target, shared_number(self._situation.view())
        self._situation.members = self._members.aimed(self._roster.owned, shared)
        if self._members.target != was:
            self._situation.plan_soon.set()
        self._telemetry.members(len(self._members.others) + 1, self._members.fair)

    async def _transfer(self) -> None:
        """Offer, withdraw and transfer as planned. What goes to no certain worker is released in portions."""
        view = self._situation.view()
        plan, offers, skew = transfers(view), dict(self._members.offers), self._members.skew
        for shard in plan.withdraw:
            withdrawn = offers.pop(shard)
            if withdrawn.begun and withdrawn.load is not None:
                skew -= 1
        for shard in plan.transfer:
            offers[shard] = replace(offers[shard], begun=True)
        offers |= {shard: view.members.outgoing(shard, to, view.now) for shard, to in plan.offer.items()}
        offers |= self._mover.offers(view, offers)
        self._situation.members = self._members.with_offers(offers, skew)
        for shard, outcome in plan.transfer.items():
            self._roster.release(shard, outcome)
        async for some in portions(list(plan.release.items())):
            if not self._members.draining or self._members.active:  # since then: the next plan says what to do
                return
            for shard, outcome in some:
                self._roster.release(shard, outcome)

    @property
    def _members(self) -> Membership:
        return self._situation.members
