"""Acquires the locks of shards, and says why not where that is not to be."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from remora.config.workers import OwnershipSettings
from remora.engine.catalogue import Catalogue, first_known_topic
from remora.engine.lease import RELEASE_WITHIN_S
from remora.engine.ownership.worker_info import WorkerInfo
from remora.model import member
from remora.model.caller import Caller
from remora.model.errors import ShardGone, StoreDamaged, StoreError
from remora.model.shard import LockHolder, LockToken, Shard
from remora.policy.ownership.attempt import may_evict
from remora.policy.ownership.lease import Term
from remora.policy.ownership.not_owned import Damaged, Elsewhere, Errored, Foreign, NotOwned, reason_to_leave
from remora.ports.delivery import DeliveryStore

DAMAGE_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class TakenLock:
    """A lock that was acquired, and for how long it may be trusted."""

    token: LockToken
    term: Term
    claimed_by: Caller | None = None
    """Who claimed it by command from whoever had it before; None where nobody did, or the claim does not say."""


class LeaseTaker:
    """See the module. No method raises StoreError: what fails is a reason not to own the shard."""

    def __init__(
        self, store: DeliveryStore, catalogue: Catalogue, settings: OwnershipSettings, worker: WorkerInfo
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._settings = settings
        self._worker = worker

    async def holder(self, shard: Shard) -> LockHolder | NotOwned | None:
        """Who holds a shard's lock now, None when it is free; or why that is not known."""
        try:
            return (await self._store.inspection.stats(shard)).holder
        except StoreError as exc:
            return _refusal(exc, _now())

    async def examine(self, shard: Shard) -> NotOwned | None:
        """Why a shard is not remora's to deliver, by its topic's metadata or else its oldest entry; None when it is."""
        known, now = self._catalogue.topic(shard), _now()
        try:
            why = reason_to_leave(known or await first_known_topic(self._store, shard), self._worker.schemes)
        except StoreError as exc:
            return _refusal(exc, now)
        return Foreign(reason=why, settled=known is not None) if why is not None else None

    async def acquire(self, shard: Shard) -> TakenLock | NotOwned:
        """Take a shard's lock, if need be by breaking one that may be broken.

        The term is counted from before the request. When cancelled it waits a few seconds for the answer, and gives
        back a lock that was granted: it would keep the shard from all others for a whole lease.
        """
        asking = asyncio.ensure_future(self._acquire(shard))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(RELEASE_WITHIN_S):
                    if isinstance(outcome := await asking, TakenLock):
                        await self._store.locks.release(outcome.token)
            raise

    async def _acquire(self, shard: Shard) -> TakenLock | NotOwned:
        times, cookie, now = self._settings.times, self._worker.cookie, _now()
        from_radosgw = self._settings.claim_from_radosgw == "always"
        asked_at, claimed_by = now, None
        try:
            answer = await self._store.locks.acquire(shard, cookie, times.lease_s)
            if isinstance(answer, LockHolder) and may_evict(answer, from_radosgw=from_radosgw):
                await self._store.locks.evict(shard, answer)
                asked_at, claimed_by = _now(), member.claimed_by(answer.cookie)
                answer = await self._store.locks.acquire(shard, cookie, times.lease_s)
        except StoreError as exc:
            return _refusal(exc, now)
        if isinstance(answer, LockHolder):
            return Elsewhere(holder=answer, seen_at=_now())
        return TakenLock(answer, Term.granted(times, asked_at), claimed_by)


def _refusal(exc: StoreError, now: float) -> NotOwned:
    match exc:
        case ShardGone():
            return Errored(reason="registered, but there is no queue object of this name")
        case StoreDamaged():
            return Damaged(reason=str(exc), until=now + DAMAGE_PAUSE_S)
        case _:
            return Errored(reason=str(exc))


def _now() -> float:
    return asyncio.get_running_loop().time()
