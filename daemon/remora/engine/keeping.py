"""Keeps what is held: renews locks and expires stale reservations, all that are due in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from remora.config import OwnershipSettings
from remora.engine.held import Held
from remora.metrics import Telemetry
from remora.model.errors import OwnershipLost, ShardGone, StoreDamaged, StoreError
from remora.model.shard import Shard
from remora.policy.lease import Term
from remora.ports.delivery import DeliveryStore


class Keeper:
    """Looks through the held shards whenever something is due, and never waits for the store itself.

    So a call that hangs holds up only the shards that were due together with it.
    """

    def __init__(
        self,
        store: DeliveryStore,
        telemetry: Telemetry,
        settings: OwnershipSettings,
        held: Mapping[Shard, Held],
        lose: Callable[[Held, StoreError], None],
        wake: Callable[[Held], None],
    ) -> None:
        """`lose` is called with a hold that is over and why; `wake` with a dormant shard that is damaged."""
        self._store = store
        self._telemetry = telemetry
        self._settings = settings
        self._held = held
        self._lose = lose
        self._wake = wake
        self.beat_at = self._next_at = asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Keep until cancelled."""
        now = asyncio.get_running_loop().time
        async with asyncio.TaskGroup() as tasks:
            while True:
                self.beat_at = now()
                if self._next_at <= now():
                    due, stale = self._look(now())
                    if due:
                        tasks.create_task(self._renew(due), name="renew locks")
                    if stale:
                        tasks.create_task(self._expire(stale), name="expire reservations")
                await asyncio.sleep(min(1.0, self._settings.times.renew_s / 10))

    def _look(self, now: float) -> tuple[list[Held], list[Held]]:
        """What is to be renewed and expired now, and, for later, when it is worth looking again.

        What is taken or renewed meanwhile is due a whole interval after that.
        """
        due, stale = [], []
        expiry_s = self._settings.reservation_interval_s
        next_at = now + min(self._settings.times.renew_s, expiry_s)
        for each in self._held.values():
            if each.ended is not None:
                continue
            renew_at = each.lease.term.renew_at
            if renew_at > now:
                next_at = min(next_at, renew_at)
            elif not each.renewing:
                each.renewing = True
                due.append(each)
            if each.expire_at <= now:
                each.expire_at = now + expiry_s
                stale.append(each)
            next_at = min(next_at, each.expire_at)
        self._next_at = next_at
        return due, stale

    # ------------------------------------------------------------------------------------ renewal

    async def _renew(self, due: Sequence[Held]) -> None:
        times, started = self._settings.times, asyncio.get_running_loop().time()
        try:
            answers = await self._store.locks.renew_all([each.lease.token for each in due], times.lease_s)
        except StoreError as exc:
            answers = [exc] * len(due)
        finally:
            for each in due:
                each.renewing = False
        term, renewed = Term.granted(times, started), 0
        for held, answer in zip(due, answers, strict=True):
            if answer is None:
                held.lease.renewed(term)
                renewed += 1
            else:
                self._not_renewed(held, answer)
        if renewed:
            self._telemetry.renewed(asyncio.get_running_loop().time() - started, renewed)

    def _not_renewed(self, held: Held, why: StoreError) -> None:
        if isinstance(why, OwnershipLost | ShardGone):
            self._lose(held, why)
            return
        held.lease.renewal_failed(self._settings.times, why)
        self._next_at = min(self._next_at, held.lease.term.renew_at)
        self._telemetry.renewal_failed(held.lease.shard.queue, str(why))
        if isinstance(why, StoreDamaged) and held.is_dormant:
            self._wake(held)  # its dispatcher meets the damage, and says so

    # ------------------------------------------------------------------------------------- expiry

    async def _expire(self, stale: Sequence[Held]) -> None:
        try:
            answers = await self._store.queue.expire_all(
                [each.lease.token for each in stale], self._settings.reservation_age_s
            )
        except StoreError as exc:
            answers = [exc] * len(stale)
        for held, answer in zip(stale, answers, strict=True):
            if isinstance(answer, OwnershipLost | ShardGone):
                self._lose(held, answer)
            elif answer is not None:
                self._telemetry.expiry_failed(held.lease.shard.queue, str(answer))
