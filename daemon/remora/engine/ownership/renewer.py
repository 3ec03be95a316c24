"""Renews locks and expires stale reservations, all that are due in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from remora.config.workers import OwnershipSettings
from remora.engine.lease import Lease, is_lost, renew_all
from remora.metrics import Telemetry
from remora.model.errors import StoreError
from remora.ports.delivery import DeliveryStore


@dataclass(frozen=True, slots=True)
class DueLeases:
    """The leases to renew now, and those whose reservations are to be expired."""

    renew: Sequence[Lease] = ()
    expire: Sequence[Lease] = ()


class LeaseRenewer:
    """`due` says what to do now; `renew` and `expire` do it, each with the failures as its answer.

    A call that hangs holds up only the shards that were due together with it.
    """

    def __init__(self, store: DeliveryStore, telemetry: Telemetry, settings: OwnershipSettings) -> None:
        self._store = store
        self._telemetry = telemetry
        self._settings = settings
        self._renewing: set[Lease] = set()
        self._expire_at: dict[Lease, float] = {}
        """By the lease itself: hashing the names in its token takes most of the time where there are very many."""
        self.beat_at = self._next_at = asyncio.get_running_loop().time()

    @property
    def pause_s(self) -> float:
        """The pause between two questions for what is due."""
        return min(1.0, self._settings.times.renew_s / 10)

    def look(self, now: float) -> bool:
        """Whether anything may be due: a lock that is acquired meanwhile is due a whole interval later."""
        self.beat_at = now
        return self._next_at <= now

    def due(self, leases: Iterable[Lease], now: float) -> DueLeases:
        """What is due of all leases. What is renewed or expired meanwhile is due a whole interval after that."""
        renew, expire, expire_at = [], [], {}
        expiry_s, renew_s = self._settings.reservation_interval_s, self._settings.times.renew_s
        next_at, known = now + min(renew_s, expiry_s), self._expire_at.get
        for each in leases:
            renew_at = each.term.renew_at
            if renew_at > now:
                next_at = min(next_at, renew_at)
            elif each not in self._renewing:
                renew.append(each)
            if (at := known(each)) is None:
                at = renew_at - renew_s + expiry_s
            if at <= now:
                at = now + expiry_s
                expire.append(each)
            expire_at[each] = at
            next_at = min(next_at, at)
        self._renewing.update(renew)
        self._expire_at, self._next_at = expire_at, next_at
        return DueLeases(renew, expire)

    async def renew(self, leases: Sequence[Lease]) -> list[tuple[Lease, StoreError]]:
        """Renew these leases; returns those that were not, and why. One without an answer is due again soon."""
        clock = asyncio.get_running_loop().time
        started = clock()
        try:
            failed = await renew_all(self._store.locks, leases, self._settings.times, clock)
        finally:
            self._renewing.difference_update(leases)
        for lease, why in failed:
            if not is_lost(why):
                self._next_at = min(self._next_at, lease.term.renew_at)
                self._telemetry.renewal_failed(lease.shard.queue, str(why))
        if renewed := len(leases) - len(failed):
            self._telemetry.renewed(clock() - started, renewed)
        return failed

    async def expire(self, leases: Sequence[Lease]) -> list[tuple[Lease, StoreError]]:
        """Expire stale reservations in these queues; returns those whose locks are lost."""
        answers: Sequence[StoreError | None]
        try:
            tokens = [each.token for each in leases]
            answers = await self._store.queue.expire_all(tokens, self._settings.reservation_age_s)
        except StoreError as exc:
            answers = [exc] * len(leases)
        lost = []
        for lease, answer in zip(leases, answers, strict=True):
            if answer is not None and is_lost(answer):
                lost.append((lease, answer))
            elif answer is not None:
                self._telemetry.expiry_failed(lease.shard.queue, str(answer))
        return lost
