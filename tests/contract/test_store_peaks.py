"""The store contract: peaks of topics are merged by hour, kept for 30 days, seen by all, and end with their topic."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import pytest

from remora.engine.catalogue import Catalogue
from remora.engine.peaks import PeakKeeper
from remora.metrics import Telemetry
from remora.model.ledger import Tally
from remora.model.peaks import KEPT_HOURS, HourPeak
from remora.model.shard import LockToken, Origin
from remora.model.topic import Topic
from support.stores import QUIET_S, Bench, own_topic, spread

NOW = 494_000
"""The hour of the tests; others of the same store may be before or after."""


def fresh(shards: int = 3) -> Topic:
    """A topic of a name that nobody has."""
    return own_topic(f"t-{uuid.uuid4().hex[:8]}", shards)


async def test_peaks_are_seen_by_all_and_outlive_who_kept_them(bench: Bench) -> None:
    """What one worker keeps of several topics another one reads, in the order of hours, from the hour that it asks for,
    and after a restart too; a topic without any has none."""
    topics = [await bench.store.own_topics.create(fresh()) for _ in range(3)]
    first, second = HourPeak(NOW, 3, 500, 70_000), HourPeak(NOW - 30, 3, 7, 0)
    assert await bench.store.peaks.kept(topics[0], 0) == []

    await bench.store.peaks.keep({topics[0]: first, topics[1]: second})
    await bench.store.peaks.keep({topics[0]: second})
    await bench.store.peaks.keep({})

    other = (await bench.another()).peaks
    assert list(await other.kept(topics[0], NOW - 100)) == [second, first]
    assert list(await other.kept(topics[0], NOW)) == [first]
    assert list(await other.kept(topics[1], NOW - 100)) == [second]
    assert list(await other.kept(topics[2], NOW - 100)) == []
    assert list(await (await bench.reopened()).peaks.kept(topics[0], NOW - 100)) == [second, first]


async def test_workers_of_one_hour_merge(bench: Bench) -> None:
    """Of what several workers keep at once of one hour the higher figures count, each for itself; another number of
    shards is another row."""
    topics = [await bench.store.own_topics.create(fresh()) for _ in range(3)]
    workers = [bench.store, await bench.another(), await bench.another()]

    await asyncio.gather(
        *(
            each.peaks.keep({topic: HourPeak(NOW, 3, 100 + number, 900 - number) for topic in topics})
            for number, each in enumerate(workers)
        )
    )
    await bench.store.peaks.keep({topics[0]: HourPeak(NOW, 6, 1, 1)})
    await bench.store.peaks.keep({topics[0]: HourPeak(NOW, 3, 5, 5)})

    merged = HourPeak(NOW, 3, 102, 900)
    assert list(await bench.store.peaks.kept(topics[0], NOW)) == [merged, HourPeak(NOW, 6, 1, 1)]
    assert [list(await bench.store.peaks.kept(each, NOW)) for each in topics[1:]] == [[merged], [merged]]


async def test_thirty_days_are_kept(bench: Bench) -> None:
    """When an hour is kept, those of more than 30 days before go, and no other; many topics fit into one call."""
    topic = await bench.store.own_topics.create(fresh(1))
    others = [replace(topic, queue=f"{topic.queue}-{number}", id=f"{number}") for number in range(100)]
    old, edge = HourPeak(NOW - KEPT_HOURS - 24, 1, 9, 9), HourPeak(NOW + 1 - KEPT_HOURS, 1, 8, 8)
    new = HourPeak(NOW, 1, 7, 7)
    await bench.store.peaks.keep({topic: old})
    await bench.store.peaks.keep({topic: edge})
    assert list(await bench.store.peaks.kept(topic, old.hour)) == [old, edge]

    await bench.store.peaks.keep({topic: new, **dict.fromkeys(others, new)})

    assert list(await bench.store.peaks.kept(topic, old.hour)) == [edge, new]


async def test_peaks_end_with_their_topic(bench: Bench) -> None:
    """A topic that is removed and made anew has no peaks, and what is kept of one that is gone is no error."""
    made = await bench.store.own_topics.create(fresh())
    peak = HourPeak(NOW, 3, 500, 70_000)
    await bench.store.peaks.keep({made: peak})
    await bench.store.own_topics.remove(made, discard=False)

    again = await bench.store.own_topics.create(replace(made, id=""))
    await bench.store.peaks.keep({made: peak})

    assert list(await bench.store.peaks.kept(again, NOW)) == []


async def test_a_topic_of_a_radosgw_has_peaks_too(bench: Bench) -> None:
    """Where radosgw's topics lie in the store they have peaks beside those of remora's own of the same name."""
    if bench.yard.origin is Origin.REMORA:
        pytest.skip("no radosgw comes to this store")
    own = await bench.store.own_topics.create(fresh(1))
    theirs = replace(own, origin=Origin.RADOSGW, id="")

    await bench.store.peaks.keep({theirs: HourPeak(NOW, 1, 5, 5), own: HourPeak(NOW, 1, 6, 6)})

    assert list(await bench.store.peaks.kept(theirs, NOW)) == [HourPeak(NOW, 1, 5, 5)]
    assert list(await bench.store.peaks.kept(own, NOW)) == [HourPeak(NOW, 1, 6, 6)]


async def test_a_worker_keeps_what_its_ledgers_show(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is committed to a shard that a worker holds is kept as its topic's peak once the hour is over, whether or
    not it was delivered meanwhile."""
    monkeypatch.setattr("remora.engine.peaks.WINDOW_S", 0.0)
    store = bench.store
    topic = await store.own_topics.create(fresh(2))
    token = await store.locks.acquire(topic.shard(1), "remora/h/b/w1", QUIET_S)
    assert isinstance(token, LockToken)
    catalogue = Catalogue(store, Telemetry(), 1.0)
    await catalogue.refresh()
    keeper = PeakKeeper(store, catalogue, Telemetry())
    keeper.wall = lambda: NOW * 3600
    await keeper.keep_due()

    await keeper.count(await store.ledger.balances([token]))
    await store.ingest.publish(topic, spread(topic, 40))
    keeper.weigh(await store.inspection.backlog([token.shard]))
    page = await store.queue.read(token, b"", 100)
    await store.queue.remove(token, page.positions[-1], len(page.entries), Tally(delivered=len(page.entries)))
    await keeper.count(await store.ledger.balances([token]))
    keeper.wall = lambda: (NOW + 1) * 3600
    await keeper.keep_due()

    (peak,) = await store.peaks.kept(topic, NOW)
    assert (peak.hour, peak.shards) == (NOW, 2)
    assert peak.bytes > peak.events > 0
