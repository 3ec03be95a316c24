"""The store contract: holds of topics are seen by all workers, outlive who made them, and end with their topic."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace

import pytest

from remora.model.errors import TopicUnknown
from remora.model.shard import Origin, Shard
from remora.model.topic import Topic, TopicHold
from remora.ports.store import ShardStore
from support.stores import Bench, own_topic

HOLD = TopicHold(since=1_700_000_000.25, until=1_700_007_200.5, reason='der Index wird neu gebaut: \u00fc\n"x"')


def fresh(shards: int = 3) -> Topic:
    """A topic of a name that nobody has."""
    return own_topic(f"t-{uuid.uuid4().hex[:8]}", shards)


async def held(store: ShardStore, *topics: Topic) -> Mapping[Shard, TopicHold]:
    """The holds of these topics alone: all tests of a cluster share one object."""
    found = await store.holds.held()
    return {each.first_shard: found[each.first_shard] for each in topics if each.first_shard in found}


async def test_holds_are_seen_by_all_and_outlive_who_made_them(bench: Bench) -> None:
    """A hold comes back as it was made, with the topic's id, to each worker and after a restart; a later one replaces
    it, and the other topics' stay."""
    made, other = [await bench.store.own_topics.create(fresh()) for _ in range(2)]
    reader = await bench.another()
    assert await held(reader, made, other) == {}

    await bench.store.holds.set_hold(made, HOLD)
    await bench.store.holds.set_hold(other, TopicHold(1.0))
    both = {made.first_shard: replace(HOLD, topic_id=made.id), other.first_shard: TopicHold(1.0, topic_id=other.id)}
    assert await held(reader, made, other) == both
    assert await reader.holds.held() is await reader.holds.held()
    assert await held(await bench.reopened(), made, other) == both

    await bench.store.holds.set_hold(made, TopicHold(2.0))
    await bench.store.holds.set_hold(other, None)
    await bench.store.holds.set_hold(other, None)
    assert await held(bench.store, made, other) == {made.first_shard: TopicHold(2.0, topic_id=made.id)}


async def test_a_change_of_the_topic_leaves_its_hold(bench: Bench) -> None:
    """A topic whose attributes are changed is held as before."""
    made = await bench.store.own_topics.create(fresh())
    await bench.store.holds.set_hold(made, HOLD)

    await bench.store.own_topics.change(replace(made, time_to_live_s=5))

    assert await held(bench.store, made) == {made.first_shard: replace(HOLD, topic_id=made.id)}


async def test_a_hold_ends_with_its_topic(bench: Bench) -> None:
    """A topic that is removed takes its hold along: one that is made anew under the name is not held, and an id that is
    gone cannot be held."""
    made = await bench.store.own_topics.create(fresh())
    await bench.store.holds.set_hold(made, HOLD)
    await bench.store.own_topics.remove(made, discard=False)
    assert await held(bench.store, made) == {}
    with pytest.raises(TopicUnknown):
        await bench.store.holds.set_hold(made, HOLD)

    again = await bench.store.own_topics.create(replace(made, id=""))

    with pytest.raises(TopicUnknown):
        await bench.store.holds.set_hold(made, HOLD)
    assert await held(bench.store, again) == {}


async def test_a_topic_of_a_radosgw_is_held_by_its_name(bench: Bench) -> None:
    """Where radosgw's topics lie in the store they are held beside those of remora's own of the same name."""
    if bench.yard.origin is not Origin.RADOSGW:
        pytest.skip("no radosgw comes to this store")
    made = await bench.store.own_topics.create(fresh())
    foreign = replace(made, origin=Origin.RADOSGW, id="")

    await bench.store.holds.set_hold(foreign, HOLD)

    assert await held(bench.store, made, foreign) == {foreign.first_shard: HOLD}
    await bench.store.own_topics.remove(made, discard=False)
    assert await held(bench.store, made, foreign) == {foreign.first_shard: HOLD}
    await bench.store.holds.set_hold(foreign, None)
    assert await held(bench.store, foreign) == {}
