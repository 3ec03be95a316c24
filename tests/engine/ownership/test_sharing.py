"""The rows of the workers, idle shards, and the coordinator, each on a scripted store."""

from __future__ import annotations

import asyncio

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeStore
from engine.ownership.parts import ME, a_store, coordinating
from engine.runs import a_topic, until
from remora.engine.ownership.idle import DEAF_S, IdleShards
from remora.engine.ownership.members import ANNOUNCEMENTS_IN_TTL, MemberRows
from remora.metrics import Telemetry
from remora.model.errors import StoreUnavailable
from remora.model.member import Member
from remora.model.shard import Shard
from remora.policy.ownership.not_owned import Elsewhere, Foreign


@in_virtual_time
async def test_a_row_is_written_when_it_is_news_or_gets_old() -> None:
    """The same row is written again only before it would count no more, another one at once."""
    store = FakeStore()
    rows, row = MemberRows(store.members, ME, 8.0), Member(ME, "h", 1)
    for _ in range(5):
        await rows.announce(row)
    assert store.calls["announce"] == 1
    await rows.announce(Member(ME, "h", 2))
    assert store.calls["announce"] == 2
    await asyncio.sleep(8.0 / ANNOUNCEMENTS_IN_TTL)
    await rows.announce(Member(ME, "h", 2))
    assert store.calls["announce"] == 3


@in_virtual_time
async def test_a_row_counts_for_several_looks() -> None:
    """Where looks are far apart, as among many workers, a row is written at each and lives for four of them."""
    store = FakeStore()
    rows, row = MemberRows(store.members, ME, 9.0), Member(ME, "h", 1)
    await rows.announce(row, 40.0)
    _, until_s = store.announced[ME]
    assert until_s == 160.0
    await asyncio.sleep(39)
    await rows.announce(row, 40.0)
    assert store.calls["announce"] == 1
    await asyncio.sleep(1)
    await rows.announce(row, 40.0)
    assert store.calls["announce"] == 2


@in_virtual_time
async def test_a_worker_withdraws_its_row_and_removes_those_of_the_dead() -> None:
    """A store that hangs or is away keeps no worker from ending."""
    store = FakeStore()
    rows = MemberRows(store.members, ME, 8.0)
    await rows.announce(Member(ME, "h"))
    await store.announce(Member("dead", "h"), 8.0)
    await rows.remove(["dead"])
    assert [each.cookie for each in await rows.read()] == [ME]
    store.before = lambda _: StoreUnavailable("away")
    await rows.withdraw()
    store.before = lambda _: 100.0
    await rows.withdraw()
    store.before = lambda _: None
    await rows.withdraw()

    assert await rows.read() == []


@in_virtual_time
async def test_which_idle_shards_have_entries() -> None:
    """Those of whose entries the store notifies or knows; while it cannot notify, the answer is that it cannot."""
    store = a_store("t", "u")
    idle = IdleShards(store, Telemetry())
    store.queues["u"].append(raw_entry("k", 1))
    both = [Shard("t"), Shard("u")]

    assert await idle.poll(both) == [Shard("u")]
    assert Shard("u") in (await idle.listen() or ())
    store.before = lambda _: StoreUnavailable("away")
    assert await idle.poll(both) == []
    before = asyncio.get_running_loop().time()
    assert await idle.listen() is None
    assert asyncio.get_running_loop().time() == before + DEAF_S


@in_virtual_time
async def test_a_coordinator_owns_what_is_free_and_ours() -> None:
    """Of a free queue, a gateway's topic and another worker's queue it owns the first, and says why not the others."""
    store = a_store("mine", "web", "theirs")
    store.metadata["web"] = a_topic("web", uri="http://h/")
    store.steal("theirs", "remora/h/b/w2", 1e6)

    async with coordinating(store) as coordinator:
        await until(lambda: coordinator.shards and len(coordinator.not_owned) == 2)
        assert coordinator.shards == [Shard("mine")]
        assert isinstance(coordinator.not_owned[Shard("web")], Foreign)
        assert isinstance(coordinator.not_owned[Shard("theirs")], Elsewhere)
        assert coordinator.active() == []

        store.queues["mine"].append(raw_entry("k", 1))
        await until(coordinator.active)

    assert store.queues["mine"].holder is None
    assert store.announced == {}
