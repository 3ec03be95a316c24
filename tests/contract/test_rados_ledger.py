"""The ledger of a queue that others remove from, and removals whose answers are lost or that come late."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from devkit.clusters.ceph import Ceph, Gateway, reached
from remora.config import RadosSettings
from remora.model.errors import ShardGone, StoreError, StoreUnavailable
from remora.model.ingest import RoutedEvent
from remora.model.ledger import Balance, Tally
from remora.model.record import Page
from remora.model.shard import LockHolder, LockToken, Shard
from remora.storage.librados import ObjectOperation
from remora.storage.rados import RadosStore
from support.stores import own_topic

pytestmark = pytest.mark.ceph

Q = Shard("q")
WORKER = "remora/h/b/1"


@dataclass
class Desk:
    """A queue with entries of ten bytes each, in a store of which single answers can be lost."""

    store: RadosStore
    gateway: Gateway

    async def commit(self, count: int) -> None:
        reservation = await self.store.two_phase.reserve(Q, count, 10 * count)
        await self.store.two_phase.commit(Q, reservation, [b"%010d" % i for i in range(count)])

    async def held(self, cookie: str = WORKER) -> LockToken:
        token = await self.store.locks.acquire(Q, cookie, 90)
        assert isinstance(token, LockToken), token
        return token

    async def listed(self, token: LockToken, count: int = 100) -> Page:
        return await self.store.queue.read(token, b"", count)

    async def unaccounted(self, token: LockToken) -> list[int]:
        """As both ways of looking have it."""
        looks = [await self.store.ledger.balance(Q), *await self.store.ledger.balances([token])]
        return [each.unaccounted for each in looks]

    def remove_as_gateway(self, upto: bytes) -> None:
        """What a radosgw does, and any tool may do: nothing is said about the entries."""
        request = struct.pack("<BBII", 1, 1, 4 + len(upto), len(upto)) + upto
        self.gateway.ioctx.execute("q", "2pc_queue", "2pc_queue_remove_entries", request)


@pytest.fixture
async def desk(settings: RadosSettings, gateway: Gateway) -> AsyncIterator[Desk]:
    gateway.make_queue("q")
    async with reached(settings) as store:
        yield Desk(store, gateway)


def lose_answers(monkeypatch: pytest.MonkeyPatch, store: RadosStore, *, carried_out: bool) -> list[ObjectOperation]:
    """Have the next removal seem to time out, whether it was carried out or not; the ones that were kept back."""
    connection: Any = store._connection
    run, late = connection.run, list[Any]()

    async def lossy(operation: ObjectOperation, oid: str, what: str, *rest: Any) -> int:
        if what.startswith("removing from") and type(operation).__name__ == "WriteOp":
            monkeypatch.setattr(connection, "run", run)
            if carried_out:
                await run(operation, oid, what, *rest)
            else:
                late.append(lambda: run(operation, oid, what, *rest))
            raise StoreUnavailable(f"{what}: no answer")
        answer: int = await run(operation, oid, what, *rest)
        return answer

    monkeypatch.setattr(connection, "run", lossy)
    return late


@pytest.mark.guarantee("nothing-leaves-silently")
@pytest.mark.parametrize("further", [0, 2])
async def test_removal_whose_answer_is_lost(desk: Desk, monkeypatch: pytest.MonkeyPatch, further: int) -> None:
    """A removal that was carried out counts once, whether it is repeated as it was or as a part of a larger one."""
    await desk.commit(10)
    token = await desk.held()
    page = await desk.listed(token)
    lose_answers(monkeypatch, desk.store, carried_out=True)
    with pytest.raises(StoreUnavailable, match="no answer"):
        await desk.store.queue.remove(token, page.positions[3], 3, Tally(delivered=3))

    if further:
        with pytest.raises(StoreUnavailable, match="front"):
            await desk.store.queue.remove(token, page.positions[5], 5, Tally(delivered=5))
    else:
        await desk.store.queue.remove(token, page.positions[3], 3, Tally(delivered=3))
    assert await desk.store.ledger.balance(Q) == Balance(Q, 10, 7, Tally(delivered=3))

    rest = await desk.listed(token)
    await desk.store.queue.remove(token, rest.positions[-1], 7, Tally(delivered=7))
    assert await desk.store.ledger.balance(Q) == Balance(Q, 10, 0, Tally(delivered=10))


async def test_removal_that_was_not_carried_out(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal that never reached the queue counts when it is repeated, with all that was done meanwhile."""
    await desk.commit(10)
    token = await desk.held()
    page = await desk.listed(token)
    lose_answers(monkeypatch, desk.store, carried_out=False)
    with pytest.raises(StoreUnavailable, match="no answer"):
        await desk.store.queue.remove(token, page.positions[3], 3, Tally(delivered=3))

    await desk.store.queue.remove(token, page.positions[5], 5, Tally(delivered=4, expired=1))

    assert await desk.store.ledger.balance(Q) == Balance(Q, 10, 5, Tally(delivered=4, expired=1))


@pytest.mark.guarantee("nothing-leaves-silently")
async def test_removal_that_comes_late(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal that was given up and arrives after its repetition is refused, under the same lock and cookie too."""
    await desk.commit(10)
    token = await desk.held()
    page = await desk.listed(token)
    late = lose_answers(monkeypatch, desk.store, carried_out=False)
    with pytest.raises(StoreUnavailable, match="no answer"):
        await desk.store.queue.remove(token, page.positions[3], 3, Tally(delivered=3))
    await desk.store.queue.remove(token, page.positions[5], 5, Tally(delivered=5))
    await desk.store.locks.release(token)
    again = await desk.held()
    expected = await desk.store.ledger.balance(Q)

    with pytest.raises(StoreError):
        await late[0]()  # type: ignore[operator]  # carries the operation out now

    assert await desk.store.ledger.balance(Q) == expected == Balance(Q, 10, 5, Tally(delivered=5))
    assert len((await desk.listed(again)).entries) == 5


async def test_late_removal_between_a_look_and_the_next_one(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal that arrives after the queue was listed anew makes the next one fail, and counts once."""
    await desk.commit(10)
    token = await desk.held()
    page = await desk.listed(token)
    late = lose_answers(monkeypatch, desk.store, carried_out=False)
    with pytest.raises(StoreUnavailable, match="no answer"):
        await desk.store.queue.remove(token, page.positions[3], 3, Tally(delivered=3))
    again = await desk.listed(token)
    await late[0]()  # type: ignore[operator]  # carries the operation out now

    with pytest.raises(StoreUnavailable, match="front"):
        await desk.store.queue.remove(token, again.positions[5], 5, Tally(delivered=5))

    assert await desk.store.ledger.balance(Q) == Balance(Q, 10, 7, Tally(delivered=3))


async def test_ledger_begins_where_remora_first_takes_the_queue(desk: Desk) -> None:
    """What a radosgw delivered before is nobody's affair; from then on everything counts."""
    await desk.commit(6)
    token = await desk.held()
    page = await desk.listed(token)
    await desk.store.locks.release(token)
    desk.gateway.ioctx.rm_xattr("q", "remora.state")  # as if it had never been here
    desk.remove_as_gateway(page.positions[4])
    assert await desk.store.ledger.balance(Q) == Balance(Q, 2, 2, Tally())

    again = await desk.held()

    assert await desk.unaccounted(again) == [0, 0]
    assert await desk.store.ledger.balance(Q) == Balance(Q, 2, 2, Tally())


@pytest.mark.guarantee("nothing-leaves-silently")
async def test_what_a_gateway_removed_is_removed_elsewhere(desk: Desk) -> None:
    """Entries that a radosgw delivered between two owners of remora count so, from when it has removed them."""
    await desk.commit(10)
    token = await desk.held()
    page = await desk.listed(token)
    await desk.store.queue.remove(token, page.positions[2], 2, Tally(delivered=2))
    await desk.store.locks.release(token)

    assert desk.gateway.lock("q")
    desk.remove_as_gateway(page.positions[6])
    expected = Balance(Q, 10, 4, Tally(delivered=2, removed_elsewhere=4))
    assert await desk.store.ledger.balance(Q) == expected

    holder = await desk.store.locks.acquire(Q, WORKER, 90)
    assert isinstance(holder, LockHolder)
    await desk.store.locks.evict(Q, holder)
    again = await desk.held()
    assert await desk.unaccounted(again) == [0, 0]
    assert await desk.store.ledger.balance(Q) == expected
    rest = await desk.listed(again)
    await desk.store.queue.remove(again, rest.positions[-1], 4, Tally(delivered=4))
    assert await desk.store.ledger.balance(Q) == Balance(Q, 10, 0, Tally(delivered=6, removed_elsewhere=4))


@pytest.mark.guarantee("nothing-leaves-silently")
@pytest.mark.parametrize("before", [True, False])
async def test_removed_behind_our_back(desk: Desk, before: bool) -> None:
    """Entries that somebody removes under our very lock are unaccounted for, also after our own next removal."""
    await desk.commit(10)
    token = await desk.held()
    page = await desk.listed(token)
    if before:
        await desk.store.queue.remove(token, page.positions[2], 2, Tally(delivered=2))
    desk.remove_as_gateway(page.positions[5])
    missing = 3 if before else 5
    assert all(0 < each < 10 for each in await desk.unaccounted(token))

    again = await desk.listed(token)
    await desk.store.queue.remove(token, again.positions[2], 2, Tally(delivered=2))
    assert await desk.unaccounted(token) == [missing, missing]

    await desk.store.locks.release(token)
    another = await desk.held("remora/h/b/2")
    assert await desk.unaccounted(another) == [0, 0]
    assert (await desk.store.ledger.balance(Q)).removed.removed_elsewhere == missing


async def test_topic_that_is_being_removed(ceph: Ceph, settings: RadosSettings, namespace: str) -> None:
    """What waits in the queues of a topic that is being removed with them counts as dropped, until they are gone."""
    async with reached(settings) as store:
        topic = await store.own_topics.create(own_topic(f"{namespace}-t", 1))
        shard = topic.shard(0)
        await store.ingest.publish(topic, [RoutedEvent(0, b"b:k", b"entry")] * 3)
        token = await store.locks.acquire(shard, WORKER, 90)
        assert isinstance(token, LockToken)
        page = await store.queue.read(token, b"", 1)
        await store.queue.remove(token, page.positions[-1], 1, Tally(delivered=1))

        with ceph.client(namespace="remora") as ioctx:
            ioctx.set_xattr(shard.queue, "remora.topic", b"removing " + topic.id.encode())

        expected = Balance(shard, 3, 0, Tally(delivered=1, dropped=2))
        assert await store.ledger.balance(shard) == expected
        assert [each.unaccounted for each in await store.ledger.balances([token])] == [0]
        assert (await store.own_topics.remove(topic, discard=True)).entries == 2
        with pytest.raises(ShardGone):
            await store.ledger.balance(shard)


async def test_ledger_of_a_newer_version(desk: Desk) -> None:
    """A ledger that a newer remora wrote is not touched: the queue is refused with the reason."""
    token = await desk.held()
    await desk.store.locks.release(token)
    value = desk.gateway.ioctx.get_xattr("q", "remora.state").replace(b"\xa7version\x01", b"\xa7version\x03")
    desk.gateway.ioctx.set_xattr("q", "remora.state", value)

    with pytest.raises(StoreError, match="newer than this remora"):
        await desk.store.locks.acquire(Q, WORKER, 90)

    assert desk.gateway.ioctx.get_xattr("q", "remora.state") == value


@pytest.mark.guarantee("nothing-leaves-silently")
async def test_fence_of_the_state(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused comparison leaves queue and state as they were, the entries included."""
    await desk.commit(4)
    token = await desk.held()
    page = await desk.listed(token)
    state = desk.gateway.ioctx.get_xattr("q", "remora.state")
    connection: Any = desk.store._connection
    run, refused = connection.run, list[StoreError]()

    async def outpaced(operation: ObjectOperation, oid: str, what: str, *rest: Any) -> int:
        if type(operation).__name__ == "WriteOp":
            monkeypatch.setattr(connection, "run", run)
            desk.gateway.ioctx.set_xattr("q", "remora.state", b"another")
            try:
                version: int = await run(operation, oid, what, *rest)
            except StoreError as exc:
                refused.append(exc)
                desk.gateway.ioctx.set_xattr("q", "remora.state", state)
                raise
            return version
        answer: int = await run(operation, oid, what, *rest)
        return answer

    monkeypatch.setattr(connection, "run", outpaced)
    await desk.store.queue.remove(token, page.positions[3], 3, Tally(delivered=3))

    assert len(refused) == 1
    assert await desk.store.ledger.balance(Q) == Balance(Q, 4, 1, Tally(delivered=3))
