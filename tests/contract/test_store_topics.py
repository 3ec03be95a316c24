"""The store contract: topics of remora's own are made whole, changed in place, and removed with a count."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import pytest

from remora.model.errors import ShardGone, TopicRefused, TopicUnknown
from remora.model.ingest import Removed, ReservedRoom
from remora.model.ledger import Tally
from remora.model.record import DeadLetter
from remora.model.shard import LockToken, Origin
from remora.model.topic import MOST_SHARDS, Target, Topic
from support.stores import QUIET_S, Bench, by_shard, own_topic, renew, spread


def fresh(shards: int = 3) -> Topic:
    """A topic of a name that nobody has."""
    return own_topic(f"t-{uuid.uuid4().hex[:8]}", shards)


async def test_made_whole(bench: Bench) -> None:
    """A new topic has an id and as many empty queues as it has shards, and all workers see it."""
    asked, other = fresh(), await bench.another()

    made = await bench.store.own_topics.create(asked)

    assert made.id
    assert made == replace(asked, id=made.id)
    for store in (bench.store, other):
        assert await store.own_topics.find(asked.name) == made
        assert (await store.catalog.topics())[made.first_shard] == made
        assert set(made.all_shards()) <= set(await store.catalog.shards())
    assert [(await bench.store.inspection.stats(each)).entries for each in made.all_shards()] == [0, 0, 0]
    assert await bench.pending(made) == [[], [], []]


async def test_unknown_name(bench: Bench) -> None:
    """A name that no topic has is answered with None."""
    assert await bench.store.own_topics.find("never-made") is None


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"opaque_data": b"", "time_to_live_s": 0, "max_retries": 0, "retry_sleep_s": 0},
        {"opaque_data": b"\xff\x00", "time_to_live_s": 86_400, "max_retries": 7, "retry_sleep_s": 30},
        {"target": Target("kafka://u:p@h:9093,i:9093?a=b", "use-ssl=true&kafka-ack-level=broker", "elsewhere")},
    ],
)
async def test_attributes_last(bench: Bench, attributes: dict[str, object]) -> None:
    """Each attribute comes back as it was given, an unset limit apart from an explicit 0, also after a restart."""
    made = await bench.store.own_topics.create(replace(fresh(), **attributes))  # type: ignore[arg-type]  # by name

    store = await bench.reopened()

    assert {name: getattr(made, name) for name in attributes} == attributes
    assert await store.own_topics.find(made.name) == made
    assert (await store.catalog.topics())[made.first_shard] == made


@pytest.mark.parametrize("name", ["", "a.1", ":a", "tenant:a", "a b", "ä", "a/b", "a\n", "x" * 201])
async def test_bad_names_are_refused(bench: Bench, name: str) -> None:
    """A name that could be taken for another topic's shard, or for a tenant's topic, is refused."""
    with pytest.raises(TopicRefused):
        await bench.store.own_topics.create(own_topic(name))

    assert not [each for each in await bench.store.catalog.shards() if each.queue == name]


@pytest.mark.parametrize("shards", [-1, 0, MOST_SHARDS + 1])
async def test_bad_numbers_of_shards_are_refused(bench: Bench, shards: int) -> None:
    """A topic has one shard to 1024."""
    asked = fresh(shards)
    with pytest.raises(TopicRefused, match=str(MOST_SHARDS)):
        await bench.store.own_topics.create(asked)

    assert await bench.store.own_topics.find(asked.name) is None


async def test_topics_of_a_radosgw_are_not_touched(bench: Bench) -> None:
    """What claims to be a radosgw's topic is neither made nor changed nor removed."""
    made = await bench.topic()
    foreign = replace(made, origin=Origin.RADOSGW)

    with pytest.raises(TopicRefused):
        await bench.store.own_topics.create(replace(fresh(), origin=Origin.RADOSGW))
    with pytest.raises(TopicRefused):
        await bench.store.own_topics.change(foreign)
    with pytest.raises(TopicRefused):
        await bench.store.own_topics.remove(foreign, discard=True)

    assert await bench.store.own_topics.find(made.name) == made


async def test_existing_topic_is_not_made_again(bench: Bench) -> None:
    """A second topic of a name is refused, and the first keeps its attributes and entries."""
    made = await bench.topic()
    events = spread(made, 5)
    await bench.store.ingest.publish(made, events)

    with pytest.raises(TopicRefused):
        await bench.store.own_topics.create(own_topic(made.name, 1))

    assert await bench.store.own_topics.find(made.name) == made
    assert await bench.pending(made) == by_shard(made, events)


async def test_one_of_several_makers_wins(bench: Bench) -> None:
    """Workers that make a topic side by side make one topic: one is answered with it, the others are refused."""
    other, asked = await bench.another(), fresh()

    answers = await asyncio.gather(
        *(store.own_topics.create(asked) for store in (bench.store, other) for _ in range(3)), return_exceptions=True
    )

    made = [each for each in answers if isinstance(each, Topic)]
    refused = [each for each in answers if isinstance(each, TopicRefused)]
    assert (len(made), len(refused)) == (1, 5), answers
    assert await other.own_topics.find(asked.name) == made[0]
    await bench.store.ingest.publish(made[0], spread(made[0], 3))


async def test_change_replaces_attributes(bench: Bench) -> None:
    """A change is seen by all workers, keeps the topic's id and entries, and can be made again."""
    made, other = await bench.topic(), await bench.another()
    events = spread(made, 5)
    await bench.store.ingest.publish(made, events)
    changed = replace(made, target=Target("kafka://other:9092", "", "x"), time_to_live_s=60, closed=True)

    await bench.store.own_topics.change(changed)

    for store in (bench.store, other):
        assert await store.own_topics.find(made.name) == changed
        assert (await store.catalog.topics())[made.first_shard] == changed
    assert await bench.pending(made) == by_shard(made, events)
    await other.own_topics.change(made)
    assert await bench.store.own_topics.find(made.name) == made


@pytest.mark.guarantee("topics-of-remoras-own")
async def test_attributes_are_changed_apart_from_shards(bench: Bench) -> None:
    """A change of attributes with another number of shards is refused with why, and changes nothing."""
    made = await bench.topic()

    for shards in (1, 4):
        with pytest.raises(TopicRefused, match="shards"):
            await bench.store.own_topics.change(replace(made, shards=shards, max_retries=9))

    assert await bench.store.own_topics.find(made.name) == made


async def test_changing_what_is_not_there(bench: Bench) -> None:
    """A topic that never was, or that was made anew, is not changed by a caller that knew another one."""
    with pytest.raises(TopicUnknown):
        await bench.store.own_topics.change(replace(fresh(), id="0" * 32))
    old = await bench.topic()
    await bench.store.own_topics.remove(old, discard=False)
    new = await bench.store.own_topics.create(own_topic(old.name))

    with pytest.raises(TopicUnknown):
        await bench.store.own_topics.change(replace(old, max_retries=9))
    with pytest.raises(TopicUnknown):
        await bench.store.own_topics.remove(old, discard=True)

    assert new.id != old.id
    assert await bench.store.own_topics.find(new.name) == new


async def test_removing_an_empty_topic(bench: Bench) -> None:
    """An empty topic goes with all its shards, for all workers, and a second removal says that it is unknown."""
    made, kept, other = await bench.topic(), await bench.topic(), await bench.another()

    assert await bench.store.own_topics.remove(made, discard=False) == Removed(3, 0)

    for store in (bench.store, other):
        assert await store.own_topics.find(made.name) is None
        assert made.first_shard not in await store.catalog.topics()
        assert set(kept.all_shards()) <= set(await store.catalog.shards())
        assert not set(made.all_shards()) & set(await store.catalog.shards())
        for shard in made.all_shards():
            with pytest.raises(ShardGone):
                await store.inspection.stats(shard)
    with pytest.raises(TopicUnknown):
        await bench.store.own_topics.remove(made, discard=False)


@pytest.mark.guarantee("topics-of-remoras-own")
async def test_entries_are_not_given_up_by_accident(bench: Bench) -> None:
    """While an entry waits in any shard a removal is refused, says how many wait, and leaves the topic open."""
    made = await bench.topic()
    events = [spread(made, 3)[2]] * 17
    await bench.store.ingest.publish(made, events)

    with pytest.raises(TopicRefused, match="17"):
        await bench.store.own_topics.remove(made, discard=False)

    assert await bench.store.own_topics.find(made.name) == made
    await bench.store.ingest.publish(made, events[:1])
    assert await bench.pending(made) == [[], [], [events[0].payload] * 18]


async def test_discarded_entries_are_counted(bench: Bench) -> None:
    """A removal with `discard` tells how many entries nobody will deliver."""
    made = await bench.topic()
    await bench.store.ingest.publish(made, spread(made, 2_000))
    await bench.store.ingest.reserve(made, [ReservedRoom(0, b"bkt:k", 100)])

    assert await bench.store.own_topics.remove(made, discard=True) == Removed(3, 2_000)

    assert not set(made.all_shards()) & set(await bench.store.catalog.shards())


@pytest.mark.guarantee("topics-of-remoras-own")
async def test_a_new_topic_of_the_name_is_another(bench: Bench) -> None:
    """A topic made anew is empty and unlocked, and nothing that was held of the old one works on it."""
    old = await bench.topic()
    await bench.store.ingest.publish(old, spread(old, 3))
    tokens = [await bench.held(shard) for shard in old.all_shards()]
    page = await bench.store.queue.read(tokens[1], b"", 9)
    await bench.store.own_topics.remove(old, discard=True)
    new = await bench.store.own_topics.create(own_topic(old.name))
    events = spread(new, 6, "new")
    await bench.store.ingest.publish(new, events)

    for token in tokens:
        with pytest.raises(ShardGone):
            await renew(bench.store, token, QUIET_S)
    with pytest.raises(ShardGone):
        await bench.store.queue.remove(tokens[1], page.positions[-1], 1, Tally(delivered=1))

    assert await bench.pending(new) == by_shard(new, events)
    again = await bench.held(new.shard(1), "w2")
    assert again.incarnation != tokens[1].incarnation


async def test_letters_outlive_their_topic(bench: Bench) -> None:
    """What was parked of a topic stays readable when it is removed."""
    made = await bench.topic()
    token = await bench.held(made.shard(2))
    letter = DeadLetter(f"{made.name}.2", token.incarnation, "0/1", "0/2", "refused", "why", 1, 1.0, 2.0, b"raw")
    await bench.store.letters.store(token, letter)

    await bench.store.own_topics.remove(made, discard=False)

    assert [each async for each in bench.store.letters.stored(f"{made.name}.2")] == [letter]


async def test_shards_are_owned_one_by_one(bench: Bench) -> None:
    """Each shard of a topic may have another owner, who lists and removes that shard's entries alone."""
    made, other = await bench.topic(), await bench.another()
    events = spread(made, 9)
    await bench.store.ingest.publish(made, events)
    first = await bench.held(made.shard(0))
    second = await other.locks.acquire(made.shard(1), "w2", QUIET_S)
    assert isinstance(second, LockToken)

    page = await other.queue.read(second, b"", 2)
    await other.queue.remove(second, page.positions[-1], 2, Tally(delivered=2))

    expected = by_shard(made, events)
    assert (await bench.store.queue.read(first, b"", 9)).entries == expected[0]
    assert await bench.pending(made) == [expected[0], expected[1][2:], expected[2]]


async def test_many_shards(bench: Bench) -> None:
    """Names of shards stay apart when a number begins with another one."""
    made = await bench.topic(shards=12)
    events = spread(made, 24)
    await bench.store.ingest.publish(made, events)

    assert await bench.pending(made) == by_shard(made, events)
    assert (await bench.store.own_topics.remove(made, discard=True)).shards == 12
