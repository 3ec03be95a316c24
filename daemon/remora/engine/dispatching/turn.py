"""Whether a shard may try its destination now, or a hold, another shard, or an earlier owner's attempt comes first."""

from __future__ import annotations

import asyncio

from remora.engine.delivery.head_expiry import FOR_EVER_S, HeadExpiry
from remora.engine.destination import SPREAD_S
from remora.engine.dispatching.oldest_entry import OldestEntry
from remora.engine.dispatching.outlet import Outlet
from remora.engine.dispatching.scope import DispatchScope
from remora.engine.dispatching.standing import Standing
from remora.engine.dispatching.waits import Waits
from remora.engine.quarantines import Turns
from remora.model.topic import Topic
from remora.policy.admission.holds import hold_text
from remora.policy.admission.line import Demand
from remora.policy.status.condition import State


class Turn:
    """See the module. Quarantines know the shard by this object."""

    def __init__(self, scope: DispatchScope, outlet: Outlet, standing: Standing) -> None:
        self._scope = scope
        self._quarantines = scope.context.quarantines
        self._outlet = outlet
        self._standing = standing
        self._kept_pace = False
        self._turns: Turns | None = None  # where this shard has its turn, or waits for it

    async def may_try(self, topic: Topic, oldest: OldestEntry, waits: Waits) -> bool:
        """Whether this shard may try its destination: while its topic is held none does, and of those that a quarantine
        holds back one with entries.

        Else it has waited for its turn, or nothing waits in it.
        """
        if await self._is_held(topic, oldest, waits):
            return False
        turns = self._quarantines.turns(topic)
        if turns is not self._turns:
            self.end()
        if turns is None:
            return True
        self._turns = turns
        since = await oldest.waits_since()
        if since is None:
            self.end()
            return False
        if turns.take(self, topic.label, since, asyncio.get_running_loop().time()):
            return True
        await self._wait(turns, waits)
        return False

    async def _is_held(self, topic: Topic, oldest: OldestEntry, waits: Waits) -> bool:
        """Whether an operator holds the topic. Then it has waited for the end of that, and what expired is given up."""
        context, shard = self._scope.context, self._scope.lease.shard
        limit, shaped = context.holds.limit(shard), self._scope.state.shaped

        def asked() -> Demand:
            at_tail = shaped.at_tail or not shaped.is_known
            return Demand(context.gate.priority_of(topic, shard, at_tail=at_tail), (limit,), 0)

        if context.gate.admit_now(asked()):
            return False
        self.end()
        shaped.cancel()
        if await oldest.waits() and (hold := context.catalogue.hold(shard)) is not None:
            self._standing.held(hold_text(hold))
            await waits.wait(FOR_EVER_S, turn=lambda: context.gate.admit(asked()))
        return True

    async def _wait(self, turns: Turns, waits: Waits) -> None:
        """Wait while another shard tries what is in quarantine; then for a moment, if that is over.

        All its shards come back over this moment, and not at once.
        """
        self._standing.enter(State.QUARANTINED, turns.why)
        try:
            await waits.wait(FOR_EVER_S, turn=lambda: turns.wait(self))
        finally:
            turns.forget(self)
        if turns.is_over:
            await self._scope.first_of(self._scope.rng.random() * SPREAD_S)

    def end(self) -> None:
        """Let another shard try a destination that is in quarantine."""
        if self._turns is not None:
            self._turns.release(self, asyncio.get_running_loop().time())
            self._turns = None

    async def is_early(self, head: HeadExpiry, waits: Waits) -> bool:
        """Wait where an earlier owner's attempt was a moment ago and a pace is set; once, and whether it came to that.

        From then on the shard's own pauses keep the pace.
        """
        if self._kept_pace:
            return False
        wait_s = await head.due_in_s(self._outlet.limits.retry_sleep_s)
        self._kept_pace = True
        if wait_s:
            self._standing.enter(State.RETRYING, "an earlier holder's attempt failed, and the next one is not due yet")
            with self._standing.pausing(wait_s):
                await waits.wait(wait_s)
        return bool(wait_s)
