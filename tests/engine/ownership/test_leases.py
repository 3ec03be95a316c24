"""The lease taker and the lease renewer, each alone on a scripted store."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeStore
from engine.ownership.parts import ME, a_store, taken
from engine.runs import QUICK, a_topic
from remora.engine.catalogue import Catalogue
from remora.engine.lease import Lease
from remora.engine.ownership.renewer import LeaseRenewer
from remora.engine.ownership.taker import DAMAGE_PAUSE_S, LeaseTaker, TakenLock
from remora.engine.ownership.worker_info import WorkerInfo
from remora.metrics import Telemetry
from remora.model.errors import OwnershipLost, StoreDamaged, StoreUnavailable
from remora.model.shard import LockHolder, Shard
from remora.policy.ownership.not_owned import Damaged, Elsewhere, Errored, Foreign, Schemes

T = Shard("t")


async def a_taker(store: FakeStore, claim_from_radosgw: str = "never") -> LeaseTaker:
    catalogue = Catalogue(store, Telemetry(), 1)
    await catalogue.refresh()
    settings = replace(QUICK, claim_from_radosgw=claim_from_radosgw)  # type: ignore[arg-type]  # one of the two
    return LeaseTaker(store, catalogue, settings, WorkerInfo(ME, Schemes(frozenset({"kafka"}))))


@in_virtual_time
async def test_a_free_lock_is_acquired_and_trusted_from_before_the_request() -> None:
    """However long the store takes to answer, trust ends before the lease does."""
    store = a_store("t")
    taker, asked_at = await a_taker(store), asyncio.get_running_loop().time()
    store.before = store.after = lambda _: 2.0

    outcome = await taker.acquire(T)

    assert isinstance(outcome, TakenLock)
    assert outcome.term.trusted_until == asked_at + QUICK.lease_s - QUICK.trust_margin_s


@in_virtual_time
async def test_a_lock_that_had_to_be_broken_is_trusted_from_before_the_second_request() -> None:
    """The lease begins with the request that was granted, not with the one that was refused."""
    store = a_store("t")
    store.steal("t", "remora/claim/1")
    taker, began = await a_taker(store), asyncio.get_running_loop().time()
    store.before = lambda call: 1.0 if call in ("acquire", "evict") else 0

    outcome = await taker.acquire(T)

    assert isinstance(outcome, TakenLock)
    assert outcome.term.trusted_until == began + 2 + QUICK.lease_s - QUICK.trust_margin_s


@pytest.mark.parametrize(
    ("holder", "claim_from_radosgw", "is_taken"),
    [
        ("remora/h/b/w2", "always", False),
        ("remora/claim/1", "never", True),
        ("gateway", "never", False),
        ("gateway", "always", True),
    ],
)
@in_virtual_time
async def test_whose_lock_is_broken(holder: str, claim_from_radosgw: str, is_taken: bool) -> None:
    """A claim's lock is broken and taken, a gateway's by the settings; of another holder the answer names it."""
    store = a_store("t")
    store.steal("t", holder)
    outcome = await (await a_taker(store, claim_from_radosgw)).acquire(T)

    assert isinstance(outcome, TakenLock) is is_taken
    if not is_taken:
        assert isinstance(outcome, Elsewhere)
        assert outcome.holder is not None
        assert outcome.holder.cookie == holder
        assert store.calls["evict"] == 0


@in_virtual_time
async def test_what_fails_is_a_reason() -> None:
    """Damage is left alone for a while, and a queue that is gone or a store that is away raises nothing."""
    store = a_store("t")
    taker, now = await a_taker(store), asyncio.get_running_loop().time()

    store.before = lambda _: StoreDamaged("bad disk")
    assert await taker.acquire(T) == Damaged(reason="bad disk", until=now + DAMAGE_PAUSE_S)
    store.before = lambda _: StoreUnavailable("away")
    assert await taker.acquire(T) == await taker.holder(T) == Errored(reason="away")
    store.before = lambda _: None
    gone = await taker.acquire(Shard("gone"))
    assert isinstance(gone, Errored)
    assert "no queue object" in gone.reason


@in_virtual_time
async def test_which_shards_are_ours_to_deliver() -> None:
    """By the topic's metadata, which is settled, or else by the oldest entry, which a later one may contradict."""
    store = a_store("t", "web", "bare")
    store.metadata["web"] = a_topic("web", uri="http://h/")
    del store.metadata["bare"]
    taker = await a_taker(store)

    assert await taker.examine(T) is None
    web, bare = await taker.examine(Shard("web")), await taker.examine(Shard("bare"))
    assert isinstance(web, Foreign)
    assert isinstance(bare, Foreign)
    assert (web.settled, bare.settled) == (True, False)
    store.queues["bare"].append(raw_entry("k", 1))
    assert await taker.examine(Shard("bare")) is None


@in_virtual_time
async def test_who_holds_a_lock() -> None:
    """The holder as the store shows it, None while the lock is free."""
    store = a_store("t")
    taker = await a_taker(store)
    assert await taker.holder(T) is None
    store.steal("t", "gateway")

    holder = await taker.holder(T)

    assert isinstance(holder, LockHolder)
    assert holder.cookie == "gateway"


# -------------------------------------------------------------------------------------- renewing


async def leases(store: FakeStore, *queues: str) -> list[Lease]:
    found = [await taken(store, queue) for queue in queues]
    return [Lease(each.token, each.term, lambda: 1) for each in found]


@in_virtual_time
async def test_all_that_is_due_is_renewed_in_one_call() -> None:
    """Nothing is due before its time, then all together, once; and again an interval after the answer."""
    store, now = a_store("t", "u"), asyncio.get_running_loop().time
    renewer, owned = LeaseRenewer(store, Telemetry(), QUICK), await leases(store, "t", "u")
    assert renewer.due(owned, now()).renew == []
    assert not renewer.look(now() + 2.9)
    await asyncio.sleep(3)

    assert renewer.look(now())
    due = renewer.due(owned, now())
    assert due.renew == owned
    assert renewer.due(owned, now()).renew == [], "they are under way"
    assert await renewer.renew(due.renew) == []
    assert store.calls["renew_all"] == 1
    assert all(each.term.renew_at == now() + QUICK.renew_interval_s for each in owned)
    await asyncio.sleep(3)
    assert renewer.due(owned, now()).renew == owned


@in_virtual_time
async def test_a_renewed_lock_is_trusted_from_before_the_request() -> None:
    """However long the store takes to answer, trust ends before the lease does."""
    store, now = a_store("t"), asyncio.get_running_loop().time
    renewer, owned = LeaseRenewer(store, Telemetry(), QUICK), await leases(store, "t")
    await asyncio.sleep(3)
    asked_at = now()
    store.before = store.after = lambda _: 1.5

    assert await renewer.renew(owned) == []

    assert now() > asked_at
    assert owned[0].term.trusted_until == asked_at + QUICK.lease_s - QUICK.trust_margin_s


@in_virtual_time
async def test_a_renewal_without_an_answer_is_repeated_soon() -> None:
    """The lease keeps its trust, and is due again after a tenth of the interval."""
    store, now = a_store("t"), asyncio.get_running_loop().time
    renewer, [lease] = LeaseRenewer(store, Telemetry(), QUICK), await leases(store, "t")
    trusted_until = lease.term.trusted_until
    renewer.due([lease], now())
    await asyncio.sleep(3)
    store.before = lambda _: StoreUnavailable("away")

    [(failed, why)] = await renewer.renew(renewer.due([lease], now()).renew)

    assert (failed, str(why), lease.term.trusted_until) == (lease, "away", trusted_until)
    await asyncio.sleep(0.31)
    assert renewer.look(now())
    assert renewer.due([lease], now()).renew == [lease]


@in_virtual_time
async def test_lost_locks_are_told_by_renewal_and_by_expiry() -> None:
    """A lock that another owner has is an answer of both; an expiry that merely fails is not."""
    store, now = a_store("t", "u"), asyncio.get_running_loop().time
    renewer, owned = LeaseRenewer(store, Telemetry(), QUICK), await leases(store, "t", "u")
    renewer.due(owned, now())
    await asyncio.sleep(QUICK.reservation_interval_s)
    due = renewer.due(owned, now())
    assert due.expire == owned
    for queue in ("t", "u"):
        store.queues[queue].lease_ends = now() + 5
    store.steal("u", "gateway")

    renewed, expired = await renewer.renew(owned), await renewer.expire(owned)

    assert [(lease.shard.queue, type(why)) for lease, why in renewed] == [("u", OwnershipLost)]
    assert [(lease.shard.queue, type(why)) for lease, why in expired] == [("u", OwnershipLost)]
    store.before = lambda _: StoreUnavailable("away")
    assert await renewer.expire(owned) == []
