"""The store contract: a re-driven letter is committed once and forgotten, a dropped one is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from devkit.entries.entries import raw_entry
from remora.codec.event_entry import decode
from remora.codec.shard_hash import shard as shard_number
from remora.engine.redriving import carry_out, plan
from remora.model.errors import QueueFull, ShardGone, TopicClosed, TopicUnknown
from remora.model.ingest import RoutedEvent
from remora.model.ledger import Tally
from remora.model.record import DeadLetter, LetterTotals, Redrive
from remora.model.shard import Shard
from remora.model.topic import Topic
from support.letters import letters_of
from support.stores import Bench


async def parked(bench: Bench, shard: Shard, count: int) -> list[DeadLetter]:
    """This many letters of entries that have left an empty queue."""
    await bench.commit(shard, *(b"%d" % number for number in range(count)))
    token = await bench.held(shard)
    page = await bench.store.queue.read(token, b"", count)
    letters = letters_of(token, page)
    await bench.store.letters.store(token, *letters)
    await bench.store.queue.remove(token, page.positions[-1], count, Tally(expired=count))
    await bench.store.locks.release(token)
    return letters


async def left(bench: Bench, shard: Shard) -> list[DeadLetter]:
    return [each async for each in bench.store.letters.stored(shard.queue)]


def again(letters: list[DeadLetter]) -> list[Redrive]:
    return [Redrive(each, b"again " + each.raw) for each in letters]


async def topic_of(bench: Bench, shard: Shard) -> Topic | None:
    """The topic of a queue where it is remora's own."""
    return await bench.store.own_topics.find(shard.queue) if bench.yard.origin == shard.origin == "remora" else None


async def test_letters_are_counted_until_they_are_gone(bench: Bench) -> None:
    """Each queue that has letters has their number, whoever asks, and none when the last one is dropped."""
    shard, other = await bench.queue(), await bench.queue()
    letters = await parked(bench, shard, 3)
    await parked(bench, other, 1)
    stores = [bench.store, await bench.another()]

    def own(counts: Mapping[str, int]) -> dict[str, int]:
        return {queue: count for queue, count in counts.items() if queue in (shard.queue, other.queue)}

    assert [own(await each.letters.counts()) for each in stores] == [{shard.queue: 3, other.queue: 1}] * 2
    await bench.store.letters.drop(letters[:2])
    assert own(await bench.store.letters.counts()) == {shard.queue: 1, other.queue: 1}
    await bench.store.letters.drop(letters)
    assert own(await bench.store.letters.counts()) == {other.queue: 1}


async def test_a_letter_keeps_its_last_failure(bench: Bench) -> None:
    """What the last attempt failed with, and when, is read as it was stored."""
    shard = await bench.queue()
    await bench.commit(shard, b"a")
    token = await bench.held(shard)
    [letter] = letters_of(token, await bench.store.queue.read(token, b"", 1))
    failed = replace(letter, last_failure="h:80: it answers with 503", failed_at=1_700_000_000.25)

    await bench.store.letters.store(token, failed)

    assert await left(bench, shard) == [failed]


async def test_redriven_entries_are_committed_in_order(bench: Bench) -> None:
    """Entries stand in the queue behind what was there, in order, and their letters are gone; others stay."""
    shard = await bench.queue()
    letters = await parked(bench, shard, 5)
    await bench.commit(shard, b"before")

    count = await bench.store.letters.redrive(shard, await topic_of(bench, shard), again(letters[1:4]))

    assert count == 3
    assert await bench.contents(shard) == [b"before", b"again 1", b"again 2", b"again 3"]
    assert await left(bench, shard) == [letters[0], letters[4]]
    assert (await bench.store.letters.totals())[shard.queue] == LetterTotals(redriven=3)


async def test_nothing_is_redriven_twice(bench: Bench) -> None:
    """The same call again, also from another worker, commits nothing and says so."""
    shard = await bench.queue()
    letters = await parked(bench, shard, 3)
    topic = await topic_of(bench, shard)
    other = await bench.another()

    assert await bench.store.letters.redrive(shard, topic, again(letters)) == 3
    assert await bench.store.letters.redrive(shard, topic, again(letters)) == 0
    assert await other.letters.redrive(shard, topic, again(letters[:1])) == 0

    assert len(await bench.contents(shard)) == 3


@pytest.mark.guarantee("no-loss")
async def test_two_at_the_same_time(bench: Bench) -> None:
    """Of several that re-drive the same letters at the same time each entry is committed by one."""
    shard = await bench.queue()
    letters = await parked(bench, shard, 6)
    topic = await topic_of(bench, shard)
    stores = [bench.store, await bench.another(), await bench.another()]

    counts = await asyncio.gather(
        *(store.letters.redrive(shard, topic, [each]) for each in again(letters) for store in stores)
    )

    assert sum(counts) >= 6
    assert sorted(await bench.contents(shard)) == [b"again %d" % i for i in range(6)]
    assert await left(bench, shard) == []
    assert (await bench.store.letters.totals())[shard.queue] == LetterTotals(redriven=6)


async def test_dropped_letters(bench: Bench) -> None:
    """Dropped letters are gone and counted, once; the queue and other letters stay as they were."""
    shard = await bench.queue()
    letters = await parked(bench, shard, 3)
    await bench.commit(shard, b"entry")

    assert await bench.store.letters.drop(letters[:2]) == 2
    assert await bench.store.letters.drop(letters[:2]) == 0
    assert await bench.store.letters.drop([]) == 0

    assert await left(bench, shard) == letters[2:]
    assert await bench.contents(shard) == [b"entry"]
    assert (await bench.store.letters.totals())[shard.queue] == LetterTotals(dropped=2)


async def test_a_queue_without_room(bench: Bench) -> None:
    """Where the entries do not fit none is committed, and every letter stays."""
    shard = await bench.queue(ring_bytes=16 << 10)
    letters = await parked(bench, shard, 2)

    with pytest.raises(QueueFull):
        await bench.store.letters.redrive(
            shard, await topic_of(bench, shard), [Redrive(each, b"x" * 10_000) for each in letters]
        )

    assert await left(bench, shard) == letters
    assert await bench.contents(shard) == []


async def test_a_queue_that_is_gone(bench: Bench) -> None:
    """Letters of a queue that was deleted stay, and re-driving them into it says that it is gone."""
    shard = await bench.queue()
    letters = await parked(bench, shard, 1)
    topic = await topic_of(bench, shard)
    await bench.yard.delete(shard.queue)

    with pytest.raises((ShardGone, TopicUnknown)):
        await bench.store.letters.redrive(shard, topic, again(letters))

    assert await left(bench, shard) == letters


async def test_own_topics(bench: Bench) -> None:
    """In a topic of remora's own letters may move to another of its shards; a closed or replaced one takes none."""
    topic = await bench.topic(shards=2)
    first, second = topic.all_shards()
    letters = await parked(bench, first, 3)

    assert await bench.store.letters.redrive(second, topic, again(letters[:1])) == 1
    assert await bench.contents(second) == [b"again 0"]

    await bench.store.own_topics.change(replace(topic, closed=True))
    with pytest.raises(TopicClosed):
        await bench.store.letters.redrive(first, topic, again(letters[1:]))
    await bench.store.own_topics.change(replace(topic, closed=False))
    with pytest.raises(TopicUnknown):
        await bench.store.letters.redrive(first, replace(topic, id="0" * len(topic.id)), again(letters[1:]))

    assert await left(bench, first) == letters[1:]
    assert await bench.store.letters.redrive(first, topic, again(letters[1:])) == 2


async def test_totals_survive_a_restart(bench: Bench) -> None:
    """What was counted is counted on by the next process, and where nothing was done there is nothing."""
    shard = await bench.queue()
    letters = await parked(bench, shard, 3)
    assert (await bench.store.letters.totals()).get(shard.queue, LetterTotals()) == LetterTotals()
    await bench.store.letters.drop(letters[:1])
    await bench.reopened()
    await bench.store.letters.drop(letters[1:])

    assert (await bench.store.letters.totals())[shard.queue] == LetterTotals(dropped=3)


async def test_letters_that_are_unknown(bench: Bench) -> None:
    """Re-driving nothing is nothing; letters that are unknown are left out."""
    shard = await bench.queue()
    [letter] = await parked(bench, shard, 1)
    topic = await topic_of(bench, shard)

    assert await bench.store.letters.redrive(shard, topic, []) == 0
    assert await bench.store.letters.redrive(shard, topic, again([replace(letter, position="0/77")])) == 0
    assert await bench.contents(shard) == []


@pytest.mark.guarantee("no-loss")
async def test_letters_of_entries_that_stand_are_left_alone(bench: Bench) -> None:
    """A letter whose entry stands in its queue is neither re-driven nor dropped, and named; once it has left it is."""
    shard = await bench.queue()
    topic = await topic_of(bench, shard)
    await bench.commit(shard, b"0", b"1", b"2")
    token = await bench.held(shard)
    page = await bench.store.queue.read(token, b"", 3)
    letters = letters_of(token, page)
    await bench.store.letters.store(token, *letters)
    await bench.store.queue.remove(token, page.positions[1], 1, Tally(expired=1))
    other = await bench.another()

    assert list(await other.letters.still_standing(letters)) == letters[1:]
    assert await other.letters.redrive(shard, topic, again(letters)) == 1
    assert await other.letters.drop(letters) == 0
    assert await bench.contents(shard) == [b"1", b"2", b"again 0"]
    assert await left(bench, shard) == letters[1:]

    await bench.store.queue.remove(token, page.positions[3], 2, Tally(expired=2))
    assert list(await other.letters.still_standing(letters)) == []
    assert await other.letters.redrive(shard, topic, again(letters[:2])) == 1
    assert await other.letters.drop(letters) == 1
    assert await left(bench, shard) == []


async def test_letters_of_a_queue_that_is_gone_may_be_dropped(bench: Bench) -> None:
    """Entries that went with their queue stand nowhere, also where there is another queue of the name."""
    shard = await bench.queue()
    await bench.commit(shard, b"0")
    token = await bench.held(shard)
    letters = letters_of(token, await bench.store.queue.read(token, b"", 1))
    await bench.store.letters.store(token, *letters)
    await bench.yard.delete(shard.queue)
    await bench.yard.make(shard.queue, 1 << 20)
    await bench.commit(shard, b"another")
    await bench.held(shard, "w2")

    assert list(await bench.store.letters.still_standing(letters)) == []
    assert await bench.store.letters.drop(letters) == 1


async def test_letters_follow_their_topic_into_other_shards(bench: Bench) -> None:
    """A re-drive whose topic gets another number of shards meanwhile goes on in those that take events then, each
    letter in the shard of its key."""
    topic = await bench.topic(2, "moving")
    for number in range(8):
        entry, key = raw_entry(f"k{number}", number), b"bkt:k%d" % number
        await bench.store.ingest.publish(topic, [RoutedEvent(shard_number(key, 2), key, entry)])
    for shard in topic.open_shards():
        token = await bench.held(shard)
        page = await bench.store.queue.read(token, b"", 8)
        await bench.store.letters.store(token, *letters_of(token, page))
        await bench.store.queue.remove(token, page.positions[-1], len(page.entries), Tally(expired=len(page.entries)))
    stored = [each for shard in topic.open_shards() for each in await left(bench, shard)]
    planned = await plan(bench.store, stored, raw=False, origin=None)

    moved = await bench.store.own_topics.reshard(topic, 5)
    counts = [count async for count in carry_out(bench.store, planned.portions, 0)]

    assert (len(stored), sum(counts)) == (8, 8)
    found = [sorted(decode(entry).event.object_key for entry in each) for each in await bench.pending(moved)]
    assert found == [
        [key for key in (b"k%d" % number for number in range(8)) if shard_number(b"bkt:" + key, 5) == number_of_shard]
        for number_of_shard in range(5)
    ]
    assert [await left(bench, shard) for shard in topic.open_shards()] == [[], []]
