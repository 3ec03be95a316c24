"""Entries that are moved from a queue's ring to objects beside it are delivered as if they still stood there."""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from devkit.clusters.ceph import Gateway, reached
from remora.codec.lock_ops import encode_break
from remora.codec.queue_state import QueueState, encode_spill, encode_state
from remora.codec.spill import encode_page, encode_run, run_key
from remora.config import RadosSettings
from remora.model.errors import OwnershipLost, StoreDamaged, StoreError, StoreUnavailable, TopicRefused
from remora.model.ledger import Tally
from remora.model.record import DeadLetter, Page
from remora.model.shard import LockToken, Shard
from remora.model.spill import Spill
from remora.model.topic import Topic
from remora.storage.librados import ObjectOperation, WriteOp
from remora.storage.rados import RadosStore
from remora.storage.rados.queues import runs
from remora.storage.rados.queues.runs import run_of
from support.stores import own_topic, spread

rados = pytest.importorskip("rados")

pytestmark = pytest.mark.ceph

Q = Shard("q")
WORKER, OTHER = "remora/h/b/1", "remora/h/b/2"


@dataclass
class Brook:
    """A queue with entries of ten bytes each, numbered as they came."""

    store: RadosStore
    gateway: Gateway
    token: LockToken
    count: int = 0

    async def commit(self, count: int) -> None:
        reservation = await self.store.two_phase.reserve(Q, count, 10 * count)
        entries = [b"%010d" % i for i in range(self.count, self.count + count)]
        await self.store.two_phase.commit(Q, reservation, entries)
        self.count += count

    async def spill(self, count: int) -> None:
        """Commit so many entries, and have them moved, behind all that stand in the ring."""
        await self.commit(count)
        while await self.store.spill.move(self.token):
            pass

    async def deliver(self, most: int = 1 << 20, limit: int = 7, token: LockToken | None = None) -> list[int]:
        """Read page by page and remove what was read; the numbers of the entries."""
        token, found, start = token or self.token, list[int](), b""
        while len(found) < most:
            page = await self.store.queue.read(token, start, min(limit, most - len(found)))
            if not page.entries:
                break
            found += map(int, page.entries)
            count = len(page.entries)
            await self.store.queue.remove(token, page.positions[-1], count, Tally(delivered=count))
            start = page.positions[-1]
        return found

    async def unaccounted(self, token: LockToken | None = None) -> list[int]:
        """As both ways of looking have it."""
        looks = [await self.store.ledger.balance(Q), *await self.store.ledger.balances([token or self.token])]
        return [each.unaccounted for each in looks]

    def deliver_as_gateway(self, page: Page) -> None:
        """What a radosgw does that has taken the queue: it knows of the ring only."""
        upto = page.positions[-1]
        request = struct.pack("<BBII", 1, 1, 4 + len(upto), len(upto)) + upto
        self.gateway.ioctx.execute("q", "2pc_queue", "2pc_queue_remove_entries", request)

    def runs(self) -> set[str]:
        """The objects of runs in the queue's omap, through a second client."""
        ioctx = self.gateway.ioctx
        with rados.ReadOpCtx() as operation:
            found, _ = ioctx.get_omap_vals(operation, "", "remora.run.", 1000)
            ioctx.operate_read_op(operation, "q")
            return {key for key, _ in found}

    def value(self) -> bytes:
        """What stands under the queue's name among the released ones, where older remoras look."""
        with self.gateway.beside("remora") as ioctx, rados.ReadOpCtx() as operation:
            found, _ = ioctx.get_omap_vals_by_keys(operation, ("q",))
            ioctx.operate_read_op(operation, "remora.released")
            value: bytes = dict(found).get("q", b"")
            return value


async def held(store: RadosStore, cookie: str = WORKER, shard: Shard = Q) -> LockToken:
    token = await store.locks.acquire(shard, cookie, 90)
    assert isinstance(token, LockToken), token
    return token


@pytest.fixture
async def brook(settings: RadosSettings, gateway: Gateway) -> AsyncIterator[Brook]:
    gateway.make_queue("q")
    gateway.register("q")
    async with reached(settings, guard_s=0.0) as store:
        yield Brook(store, gateway, await held(store))
        await store.releases.set_released([Q], released=False)


@pytest.mark.parametrize("limit", [1, 7, 1000])
async def test_runs_come_before_the_ring(brook: Brook, limit: int) -> None:
    """Entries of two runs and the ring are read and removed in order, none twice, and the ledger agrees to the end."""
    await brook.spill(20)
    await brook.spill(15)
    await brook.commit(10)
    assert await brook.unaccounted() == [0, 0]
    assert (await brook.store.ledger.balance(Q)).spilled == 35
    assert len(brook.runs()) == 2

    assert await brook.deliver(most=22, limit=limit) == list(range(22))
    assert await brook.unaccounted() == [0, 0]
    assert (await brook.store.ledger.balance(Q)).pending == 23

    assert await brook.deliver(limit=limit) == list(range(22, 45))
    balance = await brook.store.ledger.balance(Q)
    assert (balance.pending, balance.spilled, balance.removed.delivered, balance.unaccounted) == (0, 0, 45, 0)
    assert not brook.runs()
    assert Q not in (await brook.store.spill.usage()).by_shard


async def test_what_comes_meanwhile_stays_behind_what_was_moved(brook: Brook) -> None:
    """While one part of a queue is moved and another delivered, each entry comes once and in its order."""
    found: list[int] = []
    for _ in range(12):
        await brook.commit(9)
        await brook.store.spill.move(brook.token)
        await brook.commit(4)
        found += await brook.deliver(most=10, limit=3)
    found += await brook.deliver()

    assert found == list(range(brook.count))
    assert await brook.unaccounted() == [0, 0]


async def test_entries_under_way_may_be_moved(brook: Brook) -> None:
    """Entries that were read from the ring and moved before their acknowledgement are removed from their run."""
    await brook.commit(10)
    page = await brook.store.queue.read(brook.token, b"", 6)
    await brook.spill(5)

    await brook.store.queue.remove(brook.token, page.positions[-1], 6, Tally(delivered=6))

    assert await brook.deliver() == list(range(6, 15))
    assert await brook.unaccounted() == [0, 0]


async def test_the_next_owner_delivers_runs_first(brook: Brook, settings: RadosSettings) -> None:
    """An owner of another process, and the first one when it has the queue again, begin at the front of the runs."""
    await brook.commit(3)
    await brook.deliver(most=1)  # it has looked when there were no runs
    await brook.store.locks.release(brook.token)
    async with reached(settings, guard_s=0.0) as store:
        other = Brook(store, brook.gateway, await held(store, OTHER), brook.count)
        await other.spill(10)
        await other.commit(2)
        assert await other.deliver(most=3, limit=2) == [1, 2, 3]
        await store.locks.release(other.token)
        token = await held(brook.store)

        assert await brook.deliver(token=token) == list(range(4, 15))
        assert await brook.unaccounted(token) == [0, 0]


async def test_a_queue_may_have_more_runs_than_an_osd_tells_at_a_time(brook: Brook) -> None:
    """Of 1,030 runs, of which an OSD names 1,024 in one answer, both the owner and a look from outside know all."""
    count = 1030
    await brook.commit(count)
    ring = await brook.store.queue.read(brook.token, b"", count)
    found = [Page(ring.positions[i : i + 2], ring.entries[i : i + 1], True) for i in range(count)]
    objects = [encode_page(each) for each in found]
    made = [run_of(each, (f"remora.run.{i:x}", ""), 20, objects[i]) for i, each in enumerate(found)]
    state = QueueState(made[0].first, made[-1].end, spill=Spill(made[0].first, 20 * count, count))
    brook.deliver_as_gateway(ring)
    with rados.WriteOpCtx() as operation:
        brook.gateway.ioctx.set_omap(operation, tuple(map(run_key, made)), tuple(map(encode_run, made)))
        operation.set_xattr("remora.state", encode_state(state))
        operation.set_xattr("remora.spill", encode_spill(state))
        brook.gateway.ioctx.operate_write_op(operation, "q")
    await brook.store.locks.release(brook.token)
    token = await held(brook.store)

    with brook.gateway.beside("remora") as ioctx:
        for i in (0, count - 1):
            ioctx.write_full(made[i].name, objects[i])
        first = await brook.store.queue.read(token, b"", 10)
        last = await brook.store.queue.read(token, ring.positions[-2], 10)
        for i in (0, count - 1):
            ioctx.remove_object(made[i].name)

    assert await brook.store.spill.runs(Q) == made
    assert (first.positions, last.positions) == (ring.positions[:2], ring.positions[-2:])
    assert first.entries + last.entries == [ring.entries[0], ring.entries[-1]]


async def test_a_page_is_read_while_the_one_before_is_removed(brook: Brook, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read of a run waits for no removal that is under way, nor does one of the ring behind the runs."""
    await brook.spill(10)
    await brook.commit(5)
    connection: Any = brook.store._connection
    run, is_open = connection.run, asyncio.Event()

    async def held_back(operation: ObjectOperation, oid: str, what: str, *rest: Any, **named: Any) -> int:
        if what.startswith("removing from") and isinstance(operation, WriteOp):
            await is_open.wait()
        answer: int = await run(operation, oid, what, *rest, **named)
        return answer

    page = await brook.store.queue.read(brook.token, b"", 4)
    monkeypatch.setattr(connection, "run", held_back)
    removing = asyncio.create_task(brook.store.queue.remove(brook.token, page.positions[-1], 4, Tally(delivered=4)))
    entries = list(page.entries)
    async with asyncio.timeout(60):
        for _ in range(2):
            page = await brook.store.queue.read(brook.token, page.positions[-1], 100)
            entries += page.entries
    assert not removing.done()
    is_open.set()
    await removing

    assert list(map(int, entries)) == list(range(15))
    assert await brook.deliver() == list(range(4, 15))
    assert await brook.unaccounted() == [0, 0]


@pytest.mark.parametrize("carried_out", [True, False])
async def test_a_move_without_an_answer_counts_once(
    brook: Brook, monkeypatch: pytest.MonkeyPatch, carried_out: bool
) -> None:
    """Whether the move was carried out or comes late, no entry is lost or doubled, and a late one is refused."""
    await brook.spill(4)
    await brook.commit(10)
    connection: Any = brook.store._connection
    run, late = connection.run, list[Any]()

    async def lossy(operation: ObjectOperation, oid: str, what: str, *rest: Any) -> int:
        if what.startswith("removing from") and isinstance(operation, WriteOp):
            monkeypatch.setattr(connection, "run", run)
            if carried_out:
                await run(operation, oid, what, *rest)
            else:
                late.append(lambda: run(operation, oid, what, *rest))
            raise StoreUnavailable(f"{what}: no answer")
        answer: int = await run(operation, oid, what, *rest)
        return answer

    monkeypatch.setattr(connection, "run", lossy)
    with pytest.raises(StoreUnavailable):
        await brook.store.spill.move(brook.token)
    found = await brook.deliver(most=3, limit=2)
    for each in late:
        with pytest.raises(StoreError):
            await each()

    assert found + await brook.deliver() == list(range(14))
    assert await brook.unaccounted() == [0, 0]


async def test_who_lost_the_lock_moves_nothing(brook: Brook) -> None:
    """A move under a lock that a radosgw has by now is refused, and the entries are in the ring."""
    await brook.commit(10)
    holder = brook.gateway.lockers("q")[0]
    brook.gateway.ioctx.execute("q", "lock", "break_lock", encode_break("q_lock", holder.entity, holder.cookie))
    brook.gateway.lock("q")

    with pytest.raises(OwnershipLost):
        await brook.store.spill.move(brook.token)

    assert not brook.runs()
    assert (await brook.store.inspection.stats(Q, exact=True)).spilled_entries == 0


async def test_a_radosgw_delivers_behind_the_runs_and_nothing_is_lost(brook: Brook, settings: RadosSettings) -> None:
    """What a radosgw removed while nobody held the queue is booked, and reported to who takes it; the runs stay, and
    come before what is left."""
    await brook.spill(10)
    await brook.commit(10)
    await brook.deliver(most=4, limit=4)
    page = await brook.store.queue.read(brook.token, b"", 100)
    ring = await brook.store.queue.read(brook.token, page.positions[-1], 6)
    await brook.store.locks.release(brook.token)
    brook.deliver_as_gateway(ring)

    seams: list[tuple[Shard, int]] = []
    async with reached(settings, on_seam=lambda *seam: seams.append(seam)) as other:
        for _ in range(2):
            await other.locks.release(await held(other, OTHER))

    token = await held(brook.store)

    assert seams == [(Q, 6)]
    first = await brook.store.queue.read(token, b"", 100)
    second = await brook.store.queue.read(token, first.positions[-1], 100)
    assert first.positions[-1] == second.positions[0]
    assert list(map(int, first.entries + second.entries)) == [*range(4, 10), *range(16, 20)]
    assert await brook.deliver(token=token, limit=100) == [*range(4, 10), *range(16, 20)]
    balance = await brook.store.ledger.balance(Q)
    assert (balance.unaccounted, balance.pending, balance.removed.delivered) == (0, 0, 14)
    assert balance.removed.removed_elsewhere == 6


async def test_a_run_that_is_gone_or_changed_stops_the_queue(brook: Brook) -> None:
    """Neither is passed over: the queue says that it is damaged until its bytes are as they were."""
    await brook.spill(10)
    await brook.commit(5)
    (name,) = [run.name for run in await brook.store.spill.runs(Q)]
    with brook.gateway.beside("remora") as ioctx:
        data = ioctx.read(name, 1 << 20)
        ioctx.write_full(name, data[:-1] + b"?")
        with pytest.raises(StoreDamaged, match="10 spilled entries from"):
            await brook.store.queue.read(brook.token, b"", 100)
        ioctx.remove_object(name)
        with pytest.raises(StoreDamaged, match="10 spilled entries from"):
            await brook.store.queue.read(brook.token, b"", 100)
        ioctx.write_full(name, data)

    assert await brook.deliver() == list(range(15))


async def test_looks_from_outside_see_runs_first(brook: Brook) -> None:
    """`peek`, `dump` and the figures count over runs and ring, also while the owner moves and removes."""
    await brook.spill(10)
    await brook.commit(5)

    assert await brook.store.catalog.peek(Q) == b"%010d" % 0
    assert [int(raw) async for _, raw in brook.store.inspection.dump(Q)] == list(range(15))
    stats = await brook.store.inspection.stats(Q, exact=True)
    assert (stats.entries, stats.spilled_entries) == (15, 10)
    seen = []
    async for _, raw in brook.store.inspection.dump(Q):
        seen.append(int(raw))
        if len(seen) == 3:
            await brook.deliver(most=8)
            await brook.spill(1)
    assert seen == sorted(set(seen))
    assert seen[-1] >= 14


async def test_letters_of_spilled_entries_stand_until_they_leave_their_run(brook: Brook) -> None:
    """A letter's announcement outlasts the move of its entry, and commands leave such a letter alone."""
    await brook.commit(6)
    page = await brook.store.queue.read(brook.token, b"", 6)
    place, behind = (each.decode() for each in page.positions[2:4])
    letter = DeadLetter("q", brook.token.incarnation, place, behind, "refused", "no", 1, 1.0, 2.0, page.entries[2])
    await brook.store.letters.store(brook.token, letter)
    await brook.spill(1)

    assert await brook.store.letters.standing(brook.token) == [letter]
    assert await brook.store.letters.drop([letter]) == 0
    assert await brook.deliver(most=4, limit=2) == [0, 1, 2, 3]
    assert await brook.store.letters.standing(brook.token) == []
    assert await brook.store.letters.drop([letter]) == 1


async def test_runs_that_no_queue_names_are_swept_after_an_hour(brook: Brook) -> None:
    """What a move that was cut short has left is deleted, with its name; what a queue names is kept."""
    await brook.spill(5)
    brook.gateway.make_queue("other")
    token = await held(brook.store, shard=Shard("other"))
    reservation = await brook.store.two_phase.reserve(Shard("other"), 1, 1)
    await brook.store.two_phase.commit(Shard("other"), reservation, [b"x"])
    await brook.store.spill.move(token)
    brook.gateway.delete_queue("other")
    runs: Any = brook.store._runs

    await runs.sweep(0.0)
    await runs.sweep(3599.0)
    assert {Q, Shard("other")} <= (await brook.store.spill.usage()).by_shard.keys()
    await runs.sweep(3600.0)

    assert Shard("other") not in (await brook.store.spill.usage()).by_shard
    assert await brook.deliver() == list(range(5))


async def test_older_remoras_leave_a_queue_with_runs_alone(brook: Brook) -> None:
    """They find it among the released ones from before the first move until the last run has gone; newer do not."""
    assert await brook.store.spill.guard(brook.token)
    assert brook.value().startswith(b"spilling")
    await brook.spill(5)

    assert Q not in await brook.store.releases.released()
    await brook.deliver()
    assert brook.value() == b""


@asynccontextmanager
async def spilled_topic(store: RadosStore, name: str) -> AsyncIterator[tuple[Topic, Sequence[LockToken]]]:
    """A topic of remora's own with two held queues, each of which has ten entries in runs and none in its ring."""
    topic = await store.own_topics.create(own_topic(name, 2))
    try:
        await store.ingest.publish(topic, spread(topic, 20))
        tokens = [await held(store, shard=each) for each in topic.all_shards()]
        for each in tokens:
            assert await store.spill.guard(each)
            assert await store.spill.move(each) == 10
        yield topic, tokens
    finally:
        if await store.own_topics.find(name) is not None:
            await store.own_topics.remove(topic, discard=True)


async def drained(store: RadosStore, token: LockToken) -> int:
    """Deliver what a queue has; how many entries that are."""
    page = await store.queue.read(token, b"", 100)
    count = len(page.entries)
    await store.queue.remove(token, page.positions[-1], count, Tally(delivered=count))
    return count


async def test_a_topic_with_runs_is_unreadable_for_older_remoras(brook: Brook) -> None:
    """The state of a topic of remora's own says that it spills while any of its queues has runs."""
    store = brook.store
    async with spilled_topic(store, "brooks") as (topic, tokens):
        registry: Any = store.own_topics._registry
        assert (await registry.find("brooks")).stored.state == "spilling"
        assert topic.first_shard in await store.catalog.topics()
        for i, each in enumerate(tokens):
            await drained(store, each)
            assert (await registry.find("brooks")).stored.state == ("ready" if i else "spilling")


async def test_a_topic_is_not_removed_while_its_entries_stand_in_runs(brook: Brook) -> None:
    """`topic rm` counts what is spilled: it refuses while the rings are empty and the runs are not, and all stays."""
    store = brook.store
    async with spilled_topic(store, "kept") as (topic, tokens):
        with pytest.raises(TopicRefused, match="20 entries of kept wait; nothing was removed"):
            await store.own_topics.remove(topic, discard=False)

        for each in tokens:
            assert await drained(store, each) == 10
            await store.locks.release(each)
        assert (await store.own_topics.remove(topic, discard=False)).entries == 0


async def test_real_monitors_say_how_full_the_pool_is(brook: Brook, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool of new runs is found by its name in what real monitors say, and takes none where it is full enough."""
    assert (await brook.store.spill.usage()).full == ""
    monkeypatch.setattr(runs, "_FULL_FRACTION", 0.0)

    assert re.fullmatch(r"pool \S+ is \d+% full", (await brook.store.spill.usage()).full)


async def test_a_release_waits_for_the_runs(brook: Brook) -> None:
    """A queue that is released while entries are spilled is left to radosgw when the last of them is delivered."""
    await brook.store.spill.guard(brook.token)
    await brook.spill(5)
    await brook.store.releases.set_released([Q], released=True)
    assert Q not in await brook.store.releases.released()
    assert brook.value().startswith(b"releasing")

    await brook.deliver()

    assert Q in await brook.store.releases.released()
    assert brook.value() == b"1"
    assert not await brook.store.spill.guard(brook.token)


async def test_a_claim_ends_a_release_and_keeps_the_guard(brook: Brook) -> None:
    """A queue with spilled entries that is claimed again is kept from older remoras as before."""
    await brook.store.spill.guard(brook.token)
    await brook.spill(5)
    await brook.store.releases.set_released([Q], released=True)

    await brook.store.releases.set_released([Q], released=False)

    assert brook.value().startswith(b"spilling")
    await brook.deliver()
    assert brook.value() == b""


async def test_only_what_was_exported_is_dropped(brook: Brook) -> None:
    """Entries that were moved after the export stay, and the ledger counts the others as exported, for good."""
    await brook.spill(10)
    exported = [(place, int(raw)) async for place, raw in brook.store.spill.entries(Q)]
    assert await brook.store.spill.drop(brook.token) == 0
    await brook.store.spill.exported(Q, str((await brook.store.spill.runs(Q))[-1].end))
    await brook.spill(5)

    assert await brook.store.spill.drop(brook.token) == 10

    assert [number for _, number in exported] == list(range(10))
    assert await brook.deliver() == list(range(10, 15))
    balance = await brook.store.ledger.balance(Q)
    assert (balance.removed.exported, balance.removed.delivered, balance.unaccounted) == (10, 5, 0)
