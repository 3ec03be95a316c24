"""How several workers share the shards of one store: fairly, by few moves, and without a gap in delivery."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from devkit.readers.samples import sample_value
from engine.fakes import FakeEndpoint, FakeExactRoute, FakeRoute, FakeStore, Fate, Verdict
from engine.runs import a_topic, a_worker, drained, running, until
from remora.config import DeliverySettings
from remora.engine.claims import move
from remora.engine.worker import Worker
from remora.metrics import Telemetry
from remora.model.errors import StoreUnavailable
from remora.model.member import Member, Offer
from remora.model.shard import Shard
from remora.ports.endpoint import Batch


class Crew:
    """Workers on one store that come and go during a test."""

    def __init__(self, store: FakeStore, endpoint: FakeEndpoint, stack: AsyncExitStack) -> None:
        self.store = store
        self.endpoint = endpoint
        self._stack = stack
        self.workers: list[Worker] = []
        self.telemetries: list[Telemetry] = []
        self.delivery = DeliverySettings()

    async def join(self, group_size: int = 1) -> Worker:
        """One worker more."""
        telemetry = Telemetry()
        self.telemetries.append(telemetry)
        name = f"remora/h/b/w{len(self.workers)}"
        worker = a_worker(self.store, self.endpoint, self.delivery, name, telemetry, group_size=group_size)
        self.workers.append(worker)
        await self._stack.enter_async_context(running(worker))
        return worker

    @property
    def held(self) -> list[int]:
        """How many shards each worker holds."""
        return [worker.held_shards for worker in self.workers]

    def moves(self, kind: str) -> float:
        """How many shards came from another worker, for this reason."""
        return sum(
            sample_value(each.registry, "remora_shard_moves_total", {"kind": kind}) or 0 for each in self.telemetries
        )

    async def settled(self, *held: int, within_s: float = 60) -> None:
        """Return when the workers hold this many shards, in any order; every shard at most once at any time."""
        async with asyncio.timeout(within_s):
            while sorted(self.held) != sorted(held):
                assert sum(self.held) <= len(self.store.queues)
                await asyncio.sleep(0.01)


def a_store(shards: int, *, tells: bool = True) -> FakeStore:
    """A store with one topic of this many shards."""
    store = FakeStore(tells=tells)
    topic = a_topic("t", shards=shards)
    store.metadata["t"] = topic
    for shard in topic.all_shards():
        store.make(shard.queue)
    return store


def a_crew(store: FakeStore, stack: AsyncExitStack, endpoint: FakeEndpoint | None = None) -> Crew:
    return Crew(store, endpoint or FakeEndpoint(), stack)


@pytest.mark.guarantee("many-workers-and-hosts")
@pytest.mark.parametrize("tells", [True, False])
@in_virtual_time
async def test_workers_that_start_together_share_without_a_move(tells: bool) -> None:
    """Workers that wait for each other at the start take a fair share each, and none needs to be moved after."""
    async with AsyncExitStack() as stack:
        crew = a_crew(a_store(22, tells=tells), stack)
        for _ in range(4):
            await crew.join(group_size=4)
        await crew.settled(5, 5, 6, 6, within_s=5)
        await asyncio.sleep(60)

        assert sorted(crew.held) == [5, 5, 6, 6]
        assert crew.moves("planned") == 0


@in_virtual_time
async def test_a_queue_that_becomes_ours_is_taken() -> None:
    """A queue that was a gateway's to deliver is held within seconds when its topic is pointed to Kafka."""
    store = a_store(1)
    store.metadata["t"] = a_topic("t", shards=1, uri="http://127.0.0.1:1")
    async with AsyncExitStack() as stack:
        crew = a_crew(store, stack)
        await crew.join(group_size=2)
        await crew.join(group_size=2)
        await asyncio.sleep(60)
        assert crew.held == [0, 0]
        store.metadata["t"] = a_topic("t", shards=1)

        await crew.settled(0, 1, within_s=10)


@pytest.mark.guarantee("many-workers-and-hosts")
@pytest.mark.parametrize("tells", [True, False])
@in_virtual_time
async def test_who_joins_gets_a_fair_share_by_as_few_moves_as_can_be(tells: bool) -> None:
    """Each worker that joins is given what it lacks; nothing else moves, and nothing at all once that is done."""
    async with AsyncExitStack() as stack:
        crew = a_crew(a_store(22, tells=tells), stack)
        await crew.join()
        await crew.settled(22)
        await crew.join()
        await crew.settled(11, 11, within_s=10)
        assert crew.moves("planned") == 11
        await crew.join()
        await crew.settled(7, 7, 8, within_s=10)
        await asyncio.sleep(120)

        assert crew.moves("planned") == 11 + 7
        assert sorted(crew.held) == [7, 7, 8]


@in_virtual_time
async def test_workers_that_leave_are_replaced_within_a_moment() -> None:
    """What a worker gives back when it stops is taken by the others within about a second, each its share."""
    async with AsyncExitStack() as stack:
        crew = a_crew(a_store(22), stack)
        for _ in range(3):
            await crew.join(group_size=3)
        await crew.settled(7, 7, 8)
        await asyncio.sleep(30)

        crew.workers[0].end()
        await crew.settled(0, 11, 11, within_s=1.5)


class Stream:
    """A steady stream into every shard, and when its events arrived."""

    def __init__(self, store: FakeStore, endpoint: FakeEndpoint) -> None:
        self.store = store
        self.sent = 0
        self.last: dict[Hashable, float] = {}
        self.gaps: list[float] = []
        endpoint.fate, endpoint.verdict = self._push, self._commit

    def _push(self, route: FakeRoute, batch: Batch) -> Fate:
        self._note(route.shard)
        return Fate(wait_s=0.02)

    def _commit(self, route: FakeExactRoute, batches: Sequence[Batch]) -> Verdict:
        self._note(route.shard)
        return Verdict(wait_s=0.02)

    def _note(self, shard: Hashable) -> None:
        now = asyncio.get_running_loop().time()
        self.gaps.append(now - self.last.get(shard, now))
        self.last[shard] = now

    async def run(self) -> None:
        while True:
            for queue in self.store.queues.values():
                queue.append(raw_entry(f"k{self.sent % 5}", self.sent))
                self.sent += 1
            await asyncio.sleep(0.05)


@pytest.mark.guarantee("many-workers-and-hosts")
@pytest.mark.parametrize("tells", [True, False])
@in_virtual_time
async def test_a_planned_move_makes_no_gap_and_no_copy(tells: bool) -> None:
    """While shards with a steady stream move, none rests for a second, and every event arrives once."""
    store, endpoint = a_store(11, tells=tells), FakeEndpoint()
    stream = Stream(store, endpoint)
    async with AsyncExitStack() as stack:
        crew = a_crew(store, stack, endpoint)
        await crew.join()
        await crew.settled(11)
        source = asyncio.ensure_future(stream.run())
        await asyncio.sleep(5)
        stream.gaps.clear()
        await crew.join()
        await crew.settled(5, 6, within_s=10)
        await crew.join()
        await crew.settled(3, 4, 4, within_s=10)
        await asyncio.sleep(5)
        source.cancel()
        await drained(store, within_s=30)

        assert crew.moves("planned") == 5 + 3
        assert max(stream.gaps) < 1.0
    events = endpoint.events()
    assert len(events) == len(set(events)) == stream.sent


@pytest.mark.guarantee("many-workers-and-hosts")
@pytest.mark.parametrize("mode", ["at-least-once", "exactly-once"])
@in_virtual_time
async def test_a_move_for_load_makes_no_gap_and_no_copy(mode: Literal["at-least-once", "exactly-once"]) -> None:
    """While shards with a steady stream move for their load and back, none rests for a second, and every event arrives
    once and in the order of its key."""
    store, endpoint = a_store(6), FakeEndpoint()
    stream = Stream(store, endpoint)
    async with AsyncExitStack() as stack:
        crew = a_crew(store, stack, endpoint)
        crew.delivery = DeliverySettings(mode=mode)
        for _ in range(2):
            await crew.join(group_size=2)
        await crew.settled(3, 3)
        source = asyncio.ensure_future(stream.run())
        await asyncio.sleep(5)
        stream.gaps.clear()
        shards = list(crew.workers[0].ownership.shards)
        for receiver in ("w1", "w0"):
            for shard in shards:
                holder = await move(store, shard, receiver)
                assert holder.cookie == f"remora/h/b/{receiver}"
        source.cancel()
        await drained(store, within_s=30)

        assert crew.moves("load") == 2 * len(shards) == 6
        assert len(stream.gaps) > 6
        assert max(stream.gaps) < 1.0
    events = endpoint.events()
    assert len(events) == len(set(events)) == stream.sent
    numbers = [int(event.removeprefix(b"id-")) for event in events]
    for first in range(30):  # of six shards in turn, and of five keys: each thirtieth is of one key in one shard
        of_key = [number for number in numbers if number % 30 == first]
        assert of_key == sorted(of_key)


@in_virtual_time
async def test_a_shard_whose_endpoint_hangs_is_moved_when_it_is_done() -> None:
    """An owner finishes what is in flight, however long that takes, before the receiver has the shard."""
    store, endpoint = a_store(2), FakeEndpoint()
    under_way: set[Shard] = set()

    def slow(route: FakeRoute, batch: Batch) -> Fate:
        assert route.shard not in under_way, "two owners send at once"
        under_way.add(route.shard)
        asyncio.get_running_loop().call_later(6, under_way.discard, route.shard)
        return Fate(wait_s=6)

    endpoint.fate = slow
    async with AsyncExitStack() as stack:
        crew = a_crew(store, stack, endpoint)
        await crew.join()
        await crew.settled(2)
        for queue in store.queues.values():
            queue.append(raw_entry("k", 1))
        await asyncio.sleep(1)
        await crew.join()
        await crew.settled(1, 1, within_s=15)
        await drained(store, within_s=15)

    assert len(endpoint.arrived) == 2


@in_virtual_time
async def test_thousands_of_idle_shards_move_without_becoming_active() -> None:
    """Of 2,000 empty shards half are given to a second worker within seconds, and nothing is opened for any."""
    store, endpoint = a_store(1000), FakeEndpoint()
    store.metadata["u"] = a_topic("u", shards=1000)
    for shard in store.metadata["u"].all_shards():
        store.make(shard.queue)
    async with AsyncExitStack() as stack:
        crew = a_crew(store, stack, endpoint)
        await crew.join()
        await crew.settled(2000)
        await crew.join()
        await crew.settled(1000, 1000, within_s=20)

        assert crew.moves("planned") == 1000
        assert endpoint.routes == []


@in_virtual_time
async def test_a_look_at_thousands_of_rows_is_rare_and_delays_nothing_else() -> None:
    """Among 4,000 workers each looks at the rows every 40 s, is counted by the others from its first announcement on,
    and knows a new one within a look; its locks are taken and renewed as among few."""
    store, others = a_store(11), 4000
    for number in range(others):
        row = Member(f"remora/h{number}/b/w", "h", 11)
        store.announced[row.cookie] = row, 1e9
    looks: list[float] = []
    store.before = lambda call: looks.append(asyncio.get_running_loop().time()) if call == "members" else None
    async with AsyncExitStack() as stack:
        crew = a_crew(store, stack)
        worker = await crew.join()
        await crew.settled(11, within_s=3)
        for _ in range(130):
            await asyncio.sleep(1)
            assert store.announced["remora/h/b/w0"][1] > asyncio.get_running_loop().time()
            assert all(queue.lease_ends > asyncio.get_running_loop().time() for queue in store.queues.values())
        pauses = [after - before for before, after in pairwise(looks[1:])]
        store.announced["remora/new/b/w"] = Member("remora/new/b/w", "h"), 1e9
        await until(lambda: "remora/new/b/w" in worker.others, within_s=41)

    assert pauses
    assert all(40 <= pause < 41 for pause in pauses)


@pytest.mark.parametrize("tells", [True, False])
@in_virtual_time
async def test_a_worker_that_drains_gives_everything_away(tells: bool) -> None:
    """A draining worker hands all to the others without a gap, takes nothing, and takes part again when told to."""
    store, endpoint = a_store(12, tells=tells), FakeEndpoint()
    stream = Stream(store, endpoint)
    async with AsyncExitStack() as stack:
        crew = a_crew(store, stack, endpoint)
        for _ in range(3):
            await crew.join(group_size=3)
        await crew.settled(4, 4, 4)
        source = asyncio.ensure_future(stream.run())
        await asyncio.sleep(5)
        stream.gaps.clear()

        crew.workers[0].drain(True)
        await crew.settled(0, 6, 6, within_s=5)
        await asyncio.sleep(20)
        assert crew.held == [0, 6, 6]
        crew.workers[0].drain(False)
        await crew.settled(4, 4, 4, within_s=10)
        await asyncio.sleep(5)
        source.cancel()
        await drained(store, within_s=30)
        assert max(stream.gaps) < 1.0
    assert len(endpoint.events()) == len(set(endpoint.events())) == stream.sent


@in_virtual_time
async def test_a_lone_worker_that_drains_lets_go() -> None:
    """Where there is nobody else a draining worker releases all, keeps away, and comes back when told to."""
    async with AsyncExitStack() as stack:
        crew = a_crew(a_store(5), stack)
        worker = await crew.join()
        await crew.settled(5)

        worker.drain(True)
        await crew.settled(0, within_s=2)
        assert all(queue.holder is None for queue in crew.store.queues.values())
        await asyncio.sleep(20)
        assert crew.held == [0]
        worker.drain(False)
        await crew.settled(5, within_s=3)


@in_virtual_time
async def test_when_the_last_other_goes_during_a_drain_all_is_let_go() -> None:
    """A draining worker whose receivers have gone releases the rest as it is."""
    store = a_store(5)
    async with AsyncExitStack() as stack:
        crew = a_crew(store, stack)
        worker = await crew.join()
        await crew.settled(5)
        await store.members.announce(Member("remora/h/b/silent", "h"), 2.5)
        await asyncio.sleep(1.5)

        worker.drain(True)
        await crew.settled(0, within_s=5)


def stolen(store: FakeStore, cookie: str, lease_s: float, queues: Iterable[str] | None = None) -> None:
    for queue in store.queues if queues is None else queues:
        store.steal(queue, cookie, lease_s)


@pytest.mark.guarantee("many-workers-and-hosts")
@pytest.mark.parametrize("shards", [22, 2500])
@in_virtual_time
async def test_a_silent_owner_is_replaced_when_its_leases_end(shards: int) -> None:
    """Shards of a worker that went silent are not taken before their leases end, and all within 5 s after."""
    store = a_store(min(shards, 1000))
    for number in range(1, shards // 1000):
        store.metadata[f"u{number}"] = topic = a_topic(f"u{number}", shards=1000)
        for shard in topic.all_shards():
            store.make(shard.queue)
    count = len(store.queues)
    silent = Member("remora/other/b/w", "other", count)
    stolen(store, silent.cookie, 60)
    await store.members.announce(silent, 10)

    async with AsyncExitStack() as stack:
        crew = a_crew(store, stack)
        for _ in range(2):
            await crew.join(group_size=2)
        await asyncio.sleep(59.5)
        assert crew.held == [0, 0]
        await crew.settled(count // 2, count // 2, within_s=5.5)

        assert crew.moves("stale") == count


@in_virtual_time
async def test_locks_of_a_dead_worker_are_taken_at_once() -> None:
    """Told that a worker is dead, another breaks its locks, forgets it, and delivers its shards at once."""
    store, endpoint = a_store(22), FakeEndpoint()
    dead = Member("remora/h/b/dead", "h", 11)
    async with AsyncExitStack() as stack:
        crew = a_crew(store, stack, endpoint)
        await crew.join()
        await crew.settled(22)
        stolen(store, dead.cookie, 80, [f"t.{number}" for number in range(1, 12)])
        await store.members.announce(dead, 3600)
        await asyncio.sleep(60)
        assert crew.held == [11]
        store.queues["t.3"].append(raw_entry("k", 1))

        await crew.workers[0].clear(lambda cookie, _: cookie == dead.cookie)
        await crew.settled(22, within_s=0.5)
        await drained(store, within_s=0.5)

        assert crew.moves("cleared") == 11
        assert dead.cookie not in store.announced


@in_virtual_time
async def test_survivors_of_a_dead_worker_take_their_share_each() -> None:
    """When all survivors are told that a worker is dead, they share what it held without a move after."""
    store = a_store(24)
    dead = Member("remora/h/b/dead", "h", 8)
    stolen(store, dead.cookie, 600, [f"t.{number}" for number in range(1, 9)])
    async with AsyncExitStack() as stack:
        crew = a_crew(store, stack)
        for _ in range(2):
            await store.members.announce(dead, 600)
            await crew.join(group_size=3)
        await crew.settled(8, 8)

        await asyncio.gather(*(each.clear(lambda cookie, _: cookie == dead.cookie) for each in crew.workers))
        await crew.settled(12, 12, within_s=1)
        assert crew.moves("planned") == 0


@in_virtual_time
async def test_an_offer_that_nobody_answers_costs_nothing() -> None:
    """A frozen receiver gets nothing: the owner keeps the shards and delivers, and stops offering in the end."""
    store, endpoint = a_store(6), FakeEndpoint()
    stream = Stream(store, endpoint)
    async with AsyncExitStack() as stack:
        crew = a_crew(store, stack, endpoint)
        await crew.join()
        await crew.settled(6)
        source = asyncio.ensure_future(stream.run())
        await asyncio.sleep(3)
        stream.gaps.clear()
        await store.members.announce(Member("remora/h/b/frozen", "h"), 10)
        await asyncio.sleep(5)
        [mine] = [each for each in await store.members.live() if each.cookie == "remora/h/b/w0"]
        assert sum(len(offer.shards) for offer in mine.offers) == 3
        await asyncio.sleep(20)
        assert crew.held == [6]
        assert max(stream.gaps) < 0.5
        [mine] = await store.members.live()
        assert mine.offers == ()
        source.cancel()
        await drained(store, within_s=30)


@in_virtual_time
async def test_a_shard_that_is_promised_to_another_is_left_to_it() -> None:
    """A free shard that its owner offered to somebody else is not taken by the worker that sees it first."""
    store = a_store(3)
    giver = Member("remora/h/b/giver", "h", 0, True, (Offer("remora/h/b/receiver", (Shard("t.2"),)),))
    receiver = Member("remora/h/b/receiver", "h", 0, False, (), (Shard("t.2"),))
    async with AsyncExitStack() as stack:
        crew = a_crew(store, stack)
        await store.members.announce(giver, 20)
        await store.members.announce(receiver, 20)
        await crew.join(group_size=3)
        await asyncio.sleep(15)
        assert store.queues["t.2"].holder is None
        assert store.queues["t"].holder is not None
        await asyncio.sleep(15)
        assert store.queues["t.2"].holder is not None


@pytest.mark.guarantee("many-workers-and-hosts")
@in_virtual_time
async def test_a_shard_never_waits_for_a_worker_that_does_not_come() -> None:
    """What stays free although it is another worker's share is taken by one that is there, after about a second."""
    store = a_store(10)
    async with AsyncExitStack() as stack:
        crew = a_crew(store, stack)
        await store.members.announce(Member("remora/h/b/useless", "h"), 3600)
        await crew.join(group_size=2)
        await asyncio.sleep(0.5)
        assert crew.held == [5]
        await crew.settled(10, within_s=2)


@pytest.mark.guarantee("many-workers-and-hosts")
@in_virtual_time
async def test_workers_that_cannot_see_each_other_deliver_all_the_same() -> None:
    """While nobody can announce itself or be seen, every shard is held and delivered, by the worker that came first."""
    store, endpoint = a_store(10), FakeEndpoint()
    store.before = lambda call: StoreUnavailable("away") if call in ("announce", "members") else None
    async with AsyncExitStack() as stack:
        crew = a_crew(store, stack, endpoint)
        for _ in range(2):
            await crew.join(group_size=2)
        await asyncio.sleep(10)
        assert sum(crew.held) == 10
        store.queues["t.7"].append(raw_entry("k", 1))
        await drained(store, within_s=5)
        store.before = lambda _: None
        await crew.settled(5, 5, within_s=15)


@in_virtual_time
async def test_a_receiver_that_freezes_keeps_a_shard_from_nobody_for_long() -> None:
    """A shard that was released for a worker which then does not come is back at work within a few seconds."""
    store, endpoint = a_store(2), FakeEndpoint()
    frozen = Member("remora/h/b/x", "h")
    async with AsyncExitStack() as stack:
        crew = a_crew(store, stack, endpoint)
        await crew.join()
        await crew.settled(2)
        await store.members.announce(frozen, 20)
        await asyncio.sleep(2)
        [mine] = [each for each in await store.members.live() if each.cookie == "remora/h/b/w0"]
        [offer] = mine.offers
        await store.members.announce(replace(frozen, expects=offer.shards), 20)
        await crew.settled(1, within_s=2)
        await crew.settled(2, within_s=5)
