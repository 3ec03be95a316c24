"""The RADOS store next to a radosgw: an independent client sees remora's locks, and remora sees its."""

from __future__ import annotations

from dataclasses import replace

import pytest

from devkit.clusters.ceph import Ceph, Gateway, reached
from remora.config import RadosSettings
from remora.model.errors import OwnershipLost, ShardGone, StoreMisconfigured
from remora.model.ledger import Tally
from remora.model.shard import LockHolder, LockToken, Shard
from remora.storage.librados import WriteOp
from remora.storage.rados.queues import locks
from support.stores import expire, renew

pytestmark = pytest.mark.ceph


@pytest.mark.guarantee("radosgw-and-remora-side-by-side")
async def test_gateway_respects_our_lock(settings: RadosSettings, gateway: Gateway) -> None:
    """While remora holds a queue a gateway is refused, and what it sees is what a gateway's lock looks like."""
    gateway.make_queue("q")
    async with reached(settings) as store:
        token = await store.locks.acquire(Shard("q"), "remora/h/b/w", 60)
        assert isinstance(token, LockToken)

        assert not gateway.lock("q")
        (locker,) = gateway.lockers("q")
        assert locker.cookie == "remora/h/b/w"
        assert locker.description == ""

        await store.locks.release(token)
        assert gateway.lock("q")


@pytest.mark.guarantee("radosgw-and-remora-side-by-side")
async def test_we_respect_a_gateways_lock(settings: RadosSettings, gateway: Gateway) -> None:
    """A queue that a gateway owns is not taken; after its eviction the gateway is the one that is refused."""
    gateway.make_queue("q")
    assert gateway.lock("q")
    async with reached(settings) as store:
        holder = await store.locks.acquire(Shard("q"), "remora/h/b/w", 60)
        assert isinstance(holder, LockHolder)
        assert (holder.cookie, holder.entity) == ("gatewaycookie016", gateway.lockers("q")[0].entity)

        await store.locks.evict(Shard("q"), holder)
        assert isinstance(await store.locks.acquire(Shard("q"), "remora/h/b/w", 60), LockToken)

        assert not gateway.lock("q")


@pytest.mark.guarantee("radosgw-and-remora-side-by-side")
async def test_lock_of_a_queue_that_a_gateway_takes(settings: RadosSettings, gateway: Gateway) -> None:
    """Once a gateway has broken remora's lock and taken its own, remora's next call is refused."""
    gateway.make_queue("q")
    async with reached(settings) as store:
        token = await store.locks.acquire(Shard("q"), "w", 60)
        assert isinstance(token, LockToken)
        (ours,) = gateway.lockers("q")
        client = gateway.ioctx
        client.execute("q", "lock", "break_lock", _break_request("q_lock", int(ours.entity.split(".")[1]), "w"))
        assert gateway.lock("q")

        with pytest.raises(OwnershipLost):
            await store.queue.read(token, b"", 1)


async def test_queue_stays_usable_for_gateways(settings: RadosSettings, gateway: Gateway) -> None:
    """Locking a name whose queue is deleted leaves nothing behind on which a gateway's new queue would fail."""
    async with reached(settings) as store:
        gateway.make_queue("q")
        token = await store.locks.acquire(Shard("q"), "w", 60)
        assert isinstance(token, LockToken)
        gateway.delete_queue("q")
        for attempt in (store.locks.acquire(Shard("q"), "w", 60), renew(store, token, 60)):
            with pytest.raises(Exception, match="no such queue"):
                await attempt

        gateway.make_queue("q")  # creates exclusively, as radosgw does

        reservation = await store.two_phase.reserve(Shard("q"), 1, 10)
        await store.two_phase.commit(Shard("q"), reservation, [b"x"])


@pytest.mark.parametrize("queue", ["t", ":t", "tenant:t", "t.3"])
async def test_least_permissions(ceph: Ceph, queue: str) -> None:
    """With the permissions that the documentation asks for, and no more, every call of a worker works."""
    with ceph.client(namespace="notif") as ioctx:
        gateway = Gateway(ioctx)
        gateway.make_queue(queue)
        shard = Shard(queue)
        try:
            async with reached(replace(ceph.least, op_timeout_s=60)) as store:
                assert shard in await store.catalog.shards()
                await store.catalog.topics()
                reservation = await store.two_phase.reserve(shard, 1, 10)
                await store.two_phase.commit(shard, reservation, [b"entry"])
                token = await store.locks.acquire(shard, "w", 60)
                assert isinstance(token, LockToken)
                await renew(store, token, 60)
                page = await store.queue.read(token, b"", 10)
                assert page.entries == [b"entry"]
                await store.queue.remove(token, page.positions[-1], 1, Tally(delivered=1))
                await expire(store, token, 120)
                assert (await store.inspection.stats(shard)).entries == 0
                await store.locks.release(token)
        finally:
            gateway.delete_queue(queue)


async def test_missing_permission_is_named(ceph: Ceph, gateway: Gateway, namespace: str) -> None:
    """An operation that the user may not do names user, pool and operation."""
    gateway.make_queue("q")
    async with reached(replace(ceph.least, namespace=namespace)) as store:
        with pytest.raises(StoreMisconfigured) as refused:
            await store.locks.acquire(Shard("q"), "w", 60)

    assert "locking q" in str(refused.value)
    assert "client.remora" in str(refused.value)
    assert f"default.rgw.log:{namespace}" in str(refused.value)


def _break_request(name: str, client: int, cookie: str) -> bytes:
    def string(text: str) -> bytes:
        return len(text).to_bytes(4, "little") + text.encode()

    body = string(name) + b"\x08" + client.to_bytes(8, "little") + string(cookie)
    return b"\x01\x01" + len(body).to_bytes(4, "little") + body


@pytest.mark.parametrize("is_deleted", [False, True], ids=["the lock", "the queue"])
async def test_a_lock_that_ends_within_its_renewal(
    settings: RadosSettings, gateway: Gateway, monkeypatch: pytest.MonkeyPatch, *, is_deleted: bool
) -> None:
    """Is called lost, though the OSD answers as for a queue that is deleted; such a queue is called gone."""
    gateway.make_queue("q")
    async with reached(settings) as store:
        token = await store.locks.acquire(Shard("q"), "w", 60)
        assert isinstance(token, LockToken)
        await store.locks.release(token)
        if is_deleted:
            gateway.ioctx.remove_object("q")
        # As if the lock had ended right behind the check that begins the operation.
        monkeypatch.setattr(locks, "held_write", lambda token: WriteOp().assert_exists())

        with pytest.raises(ShardGone if is_deleted else OwnershipLost):
            await renew(store, token, 60)
