"""Each hour's peaks of topics are kept, as the ledgers of the shards that a worker holds show them."""

from __future__ import annotations

import asyncio
import time

import pytest

from devkit.clock import in_virtual_time
from engine.fakes import FakeEndpoint, FakeStore
from engine.runs import a_topic, a_worker, running
from remora.engine.catalogue import Catalogue
from remora.engine.peaks import PeakKeeper
from remora.metrics import Telemetry
from remora.model.errors import StoreUnavailable
from remora.model.ledger import Balance, Tally
from remora.model.peaks import HourPeak
from remora.model.shard import Shard, ShardStats
from remora.model.topic import Topic
from remora.policy.queues.advice import WINDOW_S

HOUR = 500_000


async def keeper_of(*topics: Topic) -> tuple[PeakKeeper, FakeStore]:
    """A keeper for topics of a scripted store, in the middle of an hour."""
    store, telemetry = FakeStore(), Telemetry()
    for topic in topics:
        for shard in topic.all_shards():
            store.make(shard.queue)
        store.metadata[topic.queue] = topic
    catalogue = Catalogue(store, telemetry, 1.0)
    await catalogue.refresh()
    keeper = PeakKeeper(store, catalogue, telemetry)
    keeper.wall = lambda: HOUR * 3600 + 1800
    await keeper.keep_due()
    return keeper, store


async def minute(keeper: PeakKeeper, **committed: int) -> None:
    """A minute goes by, after which so much was ever committed to these queues."""
    await asyncio.sleep(WINDOW_S)
    await keeper.count(
        [Balance(Shard(queue.replace("_", ".")), count, 0, Tally()) for queue, count in committed.items()]
    )


async def hour_over(keeper: PeakKeeper) -> None:
    """The clock goes on to the next hour."""
    now = keeper.wall()
    keeper.wall = lambda: now + 3600
    await keeper.keep_due()


@in_virtual_time
async def test_the_busiest_minute_of_the_busiest_shard_is_kept() -> None:
    """Of each topic the highest rate of a shard over a minute is kept once the hour is over, with the bytes by the mean
    size of what waited, and then the next hour begins anew; a topic in which nothing came has zeros."""
    orders, quiet = a_topic("orders", shards=2), a_topic("quiet")
    keeper, store = await keeper_of(orders, quiet)
    keeper.weigh([ShardStats(Shard("orders"), 10, True, 5_000, 1 << 20, 0, 0, None, None)])
    await minute(keeper, orders=0, orders_1=0, quiet=7)
    await minute(keeper, orders=6_000, orders_1=60, quiet=7)
    await minute(keeper, orders=6_060, orders_1=600, quiet=7)
    assert not store.hours

    await hour_over(keeper)

    assert store.hours == {orders: [HourPeak(HOUR, 2, 100, 50_000)], quiet: [HourPeak(HOUR, 1, 0, 0)]}
    await minute(keeper, orders=6_660, orders_1=600)
    await hour_over(keeper)
    assert store.hours[orders][1:] == [HourPeak(HOUR + 1, 2, 10, 5_000)]
    assert len(store.hours[quiet]) == 1


@in_virtual_time
async def test_rates_are_over_a_minute() -> None:
    """A look before a minute is over counts nothing, so that a burst of a second is no peak of a minute."""
    orders = a_topic("orders")
    keeper, store = await keeper_of(orders)
    await minute(keeper, orders=0)
    await asyncio.sleep(1)
    await keeper.count([Balance(Shard("orders"), 600, 0, Tally())])
    await asyncio.sleep(WINDOW_S - 1)
    await keeper.count([Balance(Shard("orders"), 600, 0, Tally())])

    await hour_over(keeper)

    assert store.hours[orders] == [HourPeak(HOUR, 1, 10, 0)]


@in_virtual_time
async def test_what_the_store_does_not_take_is_tried_again() -> None:
    """An hour that cannot be kept now is kept at a later look; a topic that is gone is left out."""
    orders, gone = a_topic("orders"), a_topic("gone")
    keeper, store = await keeper_of(orders, gone)
    await minute(keeper, orders=0, gone=0, nobodys=0)
    await minute(keeper, orders=60, gone=60, nobodys=60)
    del store.metadata["gone"], store.queues["gone"]
    await keeper._catalogue.refresh()  # what its task does each second
    store.before = lambda call: StoreUnavailable("away") if call == "keep_peaks" else None

    await hour_over(keeper)

    assert not store.hours
    store.before = lambda _: None
    await keeper.keep_due()
    await keeper.keep_due()
    assert store.hours == {orders: [HourPeak(HOUR, 1, 1, 0)]}


@in_virtual_time
async def test_a_worker_keeps_an_hour_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker at work writes one row for a topic within half a minute of the hour's end, and none until the next."""
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(time, "time", lambda: (HOUR + 1) * 3600 - 200 + loop.time())
    store = FakeStore(tells=True)
    store.make("t")
    store.metadata["t"] = a_topic()

    async with running(a_worker(store, FakeEndpoint())) as task:
        await asyncio.sleep(100)
        store.queues["t"].append(*[b"entry"] * 600)
        await asyncio.sleep(99)
        assert not store.hours
        await asyncio.sleep(31)
        assert len(store.hours) == 1
        await asyncio.sleep(100)
        task.cancel()

    ((hour,),) = store.hours.values()
    assert (hour.hour, hour.shards) == (HOUR, 1)
    assert 8 <= hour.events <= 10
    assert store.calls["keep_peaks"] == 1
