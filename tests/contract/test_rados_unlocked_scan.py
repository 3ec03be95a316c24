"""Looks at a queue of a cluster from a position on, which are refused where that position may be gone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from devkit.clusters.ceph import Gateway, reached
from remora.config import RadosSettings
from remora.model.ledger import Tally
from remora.model.position import Position
from remora.model.shard import LockToken, Shard
from remora.storage.rados import RadosStore
from remora.storage.rados.cluster.refusals import FrontMovedError
from remora.storage.rados.queues.inspection import UnlockedScan

pytestmark = pytest.mark.ceph

Q = Shard("q")
RING = 60_000


@pytest.fixture
async def store(settings: RadosSettings, gateway: Gateway) -> AsyncIterator[RadosStore]:
    """A store with one small queue."""
    gateway.make_queue("q", RING)
    async with reached(settings) as store:
        yield store


async def commit(store: RadosStore, count: int) -> None:
    reservation = await store.two_phase.reserve(Q, count, 1000 * count)
    await store.two_phase.commit(Q, reservation, [b"%01000d" % number for number in range(count)])


async def empty(store: RadosStore, token: LockToken) -> None:
    while (listing := await store.queue.read(token, b"", 100)).entries:
        count = len(listing.entries)
        await store.queue.remove(token, listing.positions[-1], count, Tally(delivered=count))


async def test_a_front_that_moved_refuses_the_look(store: RadosStore) -> None:
    """A position that the ring's turn has left behind its end is not listed from, and the OSD goes on."""
    scan = UnlockedScan(store._connection, Q, store._connection.session.placement.notif)
    token = await store.locks.acquire(Q, "remora/h/b/1", 90)
    assert isinstance(token, LockToken)
    await commit(store, 40)
    head = await scan.head()
    seen = await scan.page(head, head.front)
    position = Position.parse(seen.positions[-2].decode())
    await empty(store, token)
    await commit(store, 40)  # the ring turns: its tail lies before the position now
    assert (await scan.head()).tail.offset < position.offset

    with pytest.raises(FrontMovedError):
        await scan.page(head, position)

    head = await scan.head()
    assert len((await scan.page(head, head.front)).entries) == 40
