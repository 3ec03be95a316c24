"""Whom a worker takes, in which order, and how often it asks."""

from __future__ import annotations

import asyncio

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from devkit.readers.samples import sample_value
from engine.fakes import FakeEndpoint, FakeStore, Fate
from engine.ownership.parts import a_store
from engine.runs import QUICK, a_topic, a_worker, drained, running, until
from remora.metrics import Telemetry
from remora.model.errors import EndpointUnavailable, StoreDamaged, StoreFull
from remora.model.record import Page
from remora.model.shard import LockToken, Shard


def sample(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    return sample_value(telemetry.registry, name, labels)


@in_virtual_time
async def test_queues_with_entries_are_taken_first() -> None:
    """Of very many queues the few that have entries are delivered while most others are not even taken."""
    store, endpoint = a_store(*(f"q{i:04}" for i in range(2000))), FakeEndpoint()
    store.queues["q1999"].append(raw_entry("k", 1))
    store.before = lambda call: 0.1 if call == "acquire" else 0
    worker = a_worker(store, endpoint)

    async with running(worker):
        await drained(store)
        assert len(worker.shards) < 600
        await asyncio.sleep(30)
        assert len(worker.shards) == 2000


@pytest.mark.parametrize("tells", [True, False])
@in_virtual_time
async def test_a_shard_that_is_held_is_not_considered_again(tells: bool) -> None:
    """Readings of a catalogue that did not change cost no call for shards that are held or that stay elsewhere."""
    store, endpoint = a_store("mine", "web", tells=tells), FakeEndpoint()
    store.metadata["web"] = a_topic("web", uri="http://h/")

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(5)
        before = store.calls["acquire"], store.calls["peek"], store.calls["stats"]
        await asyncio.sleep(60)
        assert (store.calls["acquire"], store.calls["peek"], store.calls["stats"]) == before


@in_virtual_time
async def test_very_many_queues_of_another_owner_are_tried_in_turn_and_taken_together() -> None:
    """Of 2,000 queues that another worker holds some are tried each time; once it has gone all are taken at once."""
    queues = [f"q{i}" for i in range(2000)]
    store, endpoint = a_store(*queues), FakeEndpoint()
    for each in queues:
        store.steal(each, "remora/other/b/w2", lease_s=1e6)
    worker = a_worker(store, endpoint)

    async with running(worker):
        await asyncio.sleep(5)
        tried = store.calls["acquire"]
        await asyncio.sleep(10 * QUICK.discovery_interval_s)
        assert 10 * 200 < store.calls["acquire"] - tried < 10 * 300
        for each in queues:
            store.queues[each].holder = None
        await asyncio.sleep(QUICK.discovery_interval_s + 1)
        assert len(worker.shards) == 2000


@in_virtual_time
async def test_one_queue_that_comes_free_among_very_many_is_found() -> None:
    """A queue that another worker gives back is taken within a few readings, however many others it keeps."""
    queues = [f"q{i}" for i in range(2000)]
    store, endpoint = a_store(*queues), FakeEndpoint()
    for each in queues:
        store.steal(each, "remora/other/b/w2", lease_s=1e6)
    worker = a_worker(store, endpoint)

    async with running(worker):
        await asyncio.sleep(5)
        store.queues["q1234"].holder = None
        await asyncio.sleep(10 * QUICK.discovery_interval_s)
        assert [each.queue for each in worker.shards] == ["q1234"]


@pytest.mark.parametrize("tells", [True, False])
@in_virtual_time
async def test_a_renewal_that_hangs_holds_up_only_its_own(tells: bool) -> None:
    """While the renewal of one queue's lock never answers in time, a queue taken later is kept for good."""
    store, endpoint = a_store("hung", tells=tells), FakeEndpoint()
    hangs = False
    renew = store._renew

    async def renew_slowly(token: LockToken, lease_s: float) -> None:
        if hangs and token.shard.queue == "hung":
            await asyncio.sleep(1e6)
        await renew(token, lease_s)

    store._renew = renew_slowly  # type: ignore[method-assign]
    worker = a_worker(store, endpoint)

    async with running(worker) as task:
        await asyncio.sleep(1.5)
        hangs = True
        store.make("later")
        store.metadata["later"] = a_topic("later", to="later")
        await asyncio.sleep(60)
        losses = store.queues["later"].lease_ends
        assert losses > asyncio.get_running_loop().time()
        assert worker.beat_age_s() < 2
        worker.end()
        await asyncio.wait([task])


@in_virtual_time
async def test_a_damaged_part_of_the_store_stops_its_own_shards_only() -> None:
    """A queue that cannot be read says so in status and metric, is looked into seldom, and recovers when repaired."""
    store, endpoint, telemetry = a_store("bad", "good"), FakeEndpoint(), Telemetry()
    for each in ("bad", "good"):
        store.queues[each].append(raw_entry("k", 1))
    read, damaged = store.queue.read, True

    async def read_damaged(token: LockToken, start: bytes, limit: int) -> Page:
        if damaged and token.shard.queue == "bad":
            store.calls["damaged"] += 1
            raise StoreDamaged("queues-003.db is malformed")
        return await read(token, start, limit)

    store.queue.read = read_damaged  # type: ignore[method-assign]
    worker = a_worker(store, endpoint, telemetry=telemetry)

    async with running(worker):
        await drained(store, "good", within_s=2)
        await asyncio.sleep(600)
        [bad] = [each for each in worker.shards if each.queue == "bad"]
        assert (bad.state, bad.reason) == ("stopped", "queues-003.db is malformed")
        assert store.calls["damaged"] <= 600 / 30 + 2
        assert sample(telemetry, "remora_topic_failing", topic="bad", kind="damaged") == 1

        damaged = False
        await drained(store, within_s=35)
        await asyncio.sleep(1)
        assert sample(telemetry, "remora_topic_failing", topic="bad", kind="damaged") is None


@in_virtual_time
async def test_a_lock_in_a_damaged_part_of_the_store_is_tried_seldom() -> None:
    """A queue whose lock cannot be taken for damage is tried every half minute, and taken when repaired."""
    store, endpoint, telemetry = a_store("bad"), FakeEndpoint(), Telemetry()
    store.before = lambda call: StoreDamaged("queues-003.db is malformed") if call == "acquire" else None
    worker = a_worker(store, endpoint, telemetry=telemetry)

    async with running(worker):
        await asyncio.sleep(300)
        assert store.calls["acquire"] <= 300 / 30 + 1
        assert worker.not_owned[Shard("bad")].reason == "queues-003.db is malformed"
        assert sample(telemetry, "remora_topic_failing", topic="bad", kind="damaged") == 1
        store.before = lambda call: None
        await asyncio.sleep(32)
        assert len(worker.shards) == 1
        assert sample(telemetry, "remora_topic_failing", topic="bad", kind="damaged") is None


@in_virtual_time
async def test_an_idle_shard_whose_lock_is_damaged_says_so() -> None:
    """An idle shard whose renewals meet damage is shown as stopped, also after its lease has run out."""
    store, endpoint = a_store("t"), FakeEndpoint()
    worker = a_worker(store, endpoint)

    async with running(worker):
        await asyncio.sleep(30)
        damage = StoreDamaged("queues-003.db is malformed")
        store.before = lambda call: damage if call not in ("shards", "topics", "backlog", "arrivals") else None
        for _ in range(5):
            await asyncio.sleep(20)
            assert [(each.state, each.reason) for each in worker.shards] == [("stopped", "queues-003.db is malformed")]
        store.before = lambda call: None


@pytest.mark.parametrize("tells", [True, False])
@in_virtual_time
async def test_a_topic_whose_queues_became_empty_shows_nothing_waiting(tells: bool) -> None:
    """The backlog of a topic is what the last poll found, 0 when it found nothing, and gone with the topic."""
    store, endpoint, telemetry = a_store("t", tells=tells), FakeEndpoint(), Telemetry()
    store.queues["t"].append(*(raw_entry("k", i) for i in range(7)))
    endpoint.opening = lambda target: EndpointUnavailable("down") if down else None
    down = True

    def waiting() -> float | None:
        return sample(telemetry, "remora_backlog_entries", topic="t", estimated="false")

    async with running(a_worker(store, endpoint, telemetry=telemetry)):
        await asyncio.sleep(20)
        assert waiting() == 7
        down = False
        await drained(store)
        await asyncio.sleep(20)
        assert waiting() == 0
        store.queues["t"].append(raw_entry("k", 8))
        down = True
        del store.queues["t"], store.metadata["t"]
        await asyncio.sleep(20)
        assert waiting() is None


@pytest.mark.parametrize("tells", [True, False])
@in_virtual_time
async def test_an_outage_does_not_make_a_backlog_look_empty(tells: bool) -> None:
    """While the queues cannot be looked at, what waited in them when they could is still shown."""
    store, endpoint, telemetry = a_store("t", tells=tells), FakeEndpoint(), Telemetry()
    store.queues["t"].append(*(raw_entry("k", i) for i in range(7)))
    endpoint.opening = lambda _: EndpointUnavailable("down")
    poll = store.inspection.backlog

    async with running(a_worker(store, endpoint, telemetry=telemetry)):
        endpoint.opening = lambda _: None
        endpoint.fate = lambda *_: Fate(arrives=0, error=EndpointUnavailable("down"))
        await asyncio.sleep(20)
        store.inspection.backlog = lambda shards: poll([])  # type: ignore[method-assign]
        await asyncio.sleep(60)
        assert sample(telemetry, "remora_backlog_entries", topic="t", estimated="false") == 7
        store.inspection.backlog = poll  # type: ignore[method-assign]
        endpoint.fate = lambda *_: Fate()
        await drained(store)


@in_virtual_time
async def test_a_full_store_stops_no_delivery_and_nothing_is_sent_twice() -> None:
    """While removals are refused for want of room, entries go on being delivered, each once, and leave later."""
    store, endpoint, telemetry = a_store("t"), FakeEndpoint(), Telemetry()
    queue = store.queues["t"]
    queue.append(*(raw_entry(f"k{i % 7}", i) for i in range(100)))
    full = True
    store.before = lambda call: StoreFull("no space left on the device") if full and call == "remove" else None

    async with running(a_worker(store, endpoint, telemetry=telemetry)):
        await asyncio.sleep(30)
        queue.append(*(raw_entry(f"k{i % 7}", i) for i in range(100, 5000)))
        await asyncio.sleep(300)
        assert queue.waiting == 5000
        assert len(endpoint.arrived) == 5000
        assert store.calls["remove"] < 30
        assert sample(telemetry, "remora_topic_failing", topic="t", kind="store") == 1

        full = False
        await drained(store, within_s=31)
        await asyncio.sleep(20)
        assert sample(telemetry, "remora_topic_failing", topic="t", kind="store") is None

    assert sorted(endpoint.events()) == sorted(b"id-%d" % i for i in range(5000))


@in_virtual_time
async def test_a_full_store_and_a_failing_endpoint_together_send_nothing_twice() -> None:
    """What was delivered and could not be removed is not sent again after the endpoint failed meanwhile."""
    store, endpoint = a_store("t"), FakeEndpoint()
    queue = store.queues["t"]
    queue.append(*(raw_entry("k", i) for i in range(50)))
    full, down = True, False
    store.before = lambda call: StoreFull("no space left on the device") if full and call == "remove" else None
    endpoint.fate = lambda *_: Fate(arrives=0, error=EndpointUnavailable("down")) if down else Fate()

    async with running(a_worker(store, endpoint)):
        await asyncio.sleep(30)
        down = True
        queue.append(*(raw_entry("k", i) for i in range(50, 100)))
        await asyncio.sleep(60)
        down = False
        await asyncio.sleep(60)
        full = False
        await drained(store, within_s=60)

    assert endpoint.events() == [b"id-%d" % i for i in range(100)]


def holder_of(store: FakeStore, queue: str) -> str:
    """The cookie of a queue's holder; empty when nobody does."""
    holder = store.queues[queue].holder
    return holder.cookie if holder else ""


@pytest.mark.guarantee("radosgw-and-remora-side-by-side")
@in_virtual_time
async def test_a_released_queue_stays_with_radosgw_until_it_is_claimed() -> None:
    """No worker takes a released queue, also a worker that starts later, until it is claimed; then one has it again."""
    store, endpoint = a_store("t", "other", tells=False), FakeEndpoint()
    released = frozenset({Shard("t")})
    first, second, third = (a_worker(store, endpoint, cookie=f"remora/h/b/w{i}") for i in (1, 2, 3))

    async with running(first), running(second):
        await until(lambda: len([*first.shards, *second.shards]) == 2)
        store.left_to_radosgw = released
        await until(lambda: Shard("t") in first.not_owned and Shard("t") in second.not_owned)
        assert not holder_of(store, "t"), "it was given back"
        store.steal("t", "gatewaycookie016")
        store.queues["t"].append(raw_entry("k", 1))
        async with running(third):
            for _ in range(300):
                await asyncio.sleep(1)
                assert holder_of(store, "t") == "gatewaycookie016"
                store.queues["t"].lease_ends += 1
            lefts = [each.not_owned[Shard("t")] for each in (first, second, third)]
            assert {each.reason for each in lefts} == {"released to radosgw until it is claimed"}
            assert [each.holder.cookie for each in lefts if each.holder] == ["gatewaycookie016"] * 3

        store.left_to_radosgw = frozenset()
        store.queues["t"].holder = None
        await drained(store, within_s=5)


@in_virtual_time
async def test_a_free_released_queue_is_left_alone() -> None:
    """Nobody takes a released queue that nobody holds, and to look at it now and then is all that it costs."""
    store, endpoint = a_store("t", tells=False), FakeEndpoint()
    store.left_to_radosgw = frozenset({Shard("t")})
    worker = a_worker(store, endpoint)

    async with running(worker):
        await asyncio.sleep(300)

        assert not worker.shards
        assert store.calls["acquire"] == 0
        assert store.calls["stats"] <= 31


@in_virtual_time
async def test_a_release_lets_what_is_under_way_arrive_first() -> None:
    """A worker that leaves a released queue finishes what it has sent and removes it: nothing is left to come twice."""
    store, endpoint = a_store("t", tells=False), FakeEndpoint()
    endpoint.fate = lambda *_: Fate(wait_s=2)
    worker = a_worker(store, endpoint)

    async with running(worker):
        await until(lambda: worker.shards)
        store.queues["t"].append(*(raw_entry("k", i) for i in range(5)))
        await until(lambda: endpoint.pushes)
        store.left_to_radosgw = frozenset({Shard("t")})
        await until(lambda: not worker.shards)

        assert len(endpoint.events()) == 5 - store.queues["t"].waiting
        assert store.queues["t"].holder is None


@in_virtual_time
async def test_a_queue_whose_lock_was_broken_says_who_has_it() -> None:
    """While a worker stays away from a queue whose lock was broken, its status names its holder by then."""
    store, endpoint = a_store("t", tells=False), FakeEndpoint()
    worker = a_worker(store, endpoint)

    async with running(worker):
        await until(lambda: worker.shards)
        store.steal("t", "gatewaycookie016")
        await until(lambda: (left := worker.not_owned.get(Shard("t"))) and left.holder)

        left = worker.not_owned[Shard("t")]
        assert left.holder is not None
        assert left.holder.cookie == "gatewaycookie016"
        assert "broken" in left.reason
