"""The store contract: two phases of events for several topics: room in all or in none, then the copies, once."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from remora.model.errors import (
    OnceConflict,
    QueueFull,
    ReservationExpired,
    ReservationUnknown,
    TopicClosed,
    TopicUnknown,
)
from remora.model.fan_out import FannedOut, TopicCopies, TopicRooms
from remora.model.ingest import ReservedRoom
from remora.model.topic import Topic
from support.stores import Bench, by_shard, copies_for, rooms_for

DIGEST = b"digest"
ANSWER = FannedOut(30, 1, {"a": 30, "b": 30})
SHARDS = 3


async def topics(bench: Bench, *names: str) -> list[Topic]:
    """New topics."""
    return [await bench.topic(SHARDS, name) for name in names]


async def announce(bench: Bench, of: list[Topic], count: int = 30) -> str:
    """Reserve room for events of these topics."""
    return await bench.store.ingest.announce(rooms_for(copies_for(of, count)), b"announced")


async def there(bench: Bench, *of: Topic) -> list[list[list[bytes]]]:
    """What waits in the shards of each topic, where no room is reserved."""
    assert await reserved(bench, *of) == [0] * len(of)
    return [await bench.pending(each) for each in of]


async def reserved(bench: Bench, *of: Topic) -> list[int]:
    """The shards of each topic that have room reserved; what is reserved has bytes, and else none are."""
    found = [[await bench.store.inspection.stats(shard) for shard in each.all_shards()] for each in of]
    assert all((each.reservations > 0) is (each.reserved_bytes > 0) for stats in found for each in stats)
    return [sum(each.reservations > 0 for each in stats) for stats in found]


def whole(*of: Topic, count: int = 30) -> list[list[list[bytes]]]:
    """What topics have of one request."""
    return [by_shard(each.topic, each.events) for each in copies_for(of, count)]


NOTHING: list[list[bytes]] = [[]] * SHARDS


async def test_room_then_copies(bench: Bench) -> None:
    """All topics keep room, the announcement is kept with it; a commit uses that of some and ends that of others, and
    is known by its reservation in every process, also after a restart."""
    a, b, c = await topics(bench, "a", "b", "c")
    reservation = await announce(bench, [a, b, c])
    assert reservation.startswith("~")
    beside = await bench.another()
    assert await beside.ingest.announced(reservation, DIGEST) == b"announced"
    assert await reserved(bench, a, b, c) == [SHARDS] * 3

    assert await beside.ingest.commit_announced(reservation, copies_for([a, b]), ANSWER, DIGEST) == ANSWER

    assert await there(bench, a, b, c) == [*whole(a, b), NOTHING]
    repeated = replace(ANSWER, repeated=True)
    assert await bench.store.ingest.announced(reservation, DIGEST) == repeated
    ingest = (await bench.reopened()).ingest
    assert await ingest.announced(reservation, DIGEST) == repeated
    assert await ingest.commit_announced(reservation, copies_for([c]), FannedOut(9, 9, {}), DIGEST) == repeated
    for refused in (ingest.announced(reservation, b"of others"), ingest.abort_announced(reservation)):
        with pytest.raises(OnceConflict, match=reservation):
            await refused
    assert await there(bench, a, b, c) == [*whole(a, b), NOTHING]


@pytest.mark.parametrize("id_", [f"~{'0' * 32}", "~", "", "t.0123", f"~once-{'0' * 40}"])
async def test_an_unknown_reservation(bench: Bench, id_: str) -> None:
    """What no reservation has as its id is none, whatever it looks like."""
    for asked in (
        bench.store.ingest.announced(id_, DIGEST),
        bench.store.ingest.commit_announced(id_, [], ANSWER, DIGEST),
        bench.store.ingest.abort_announced(id_),
    ):
        with pytest.raises(ReservationUnknown):
            await asked


async def test_some_events_of_a_topic(bench: Bench) -> None:
    """A topic gets the events that match, in order, also of several operations; other room comes back."""
    a, b = await topics(bench, "a", "b")
    count = 3600
    reservation = await announce(bench, [a, b], count)
    all_of_a, _ = copies_for([a, b], count)
    some = [event for number, event in enumerate(all_of_a.events) if number % 7 == 0 or number < 1700]

    answer = FannedOut(len(some), 0, {"a": len(some)})
    assert await bench.store.ingest.commit_announced(reservation, [TopicCopies(a, some)], answer, DIGEST) == answer

    assert await there(bench, a, b) == [by_shard(a, some), NOTHING]


async def test_events_that_match_nothing(bench: Bench) -> None:
    """A commit of no copies gives all room back, and is answered and remembered; so is one that needed no room."""
    (a,) = await topics(bench, "a")
    nothing = FannedOut(0, 3, {})
    for of in ([a], []):
        reservation = await announce(bench, of)
        assert await bench.store.ingest.commit_announced(reservation, [], nothing, DIGEST) == nothing
        assert await bench.store.ingest.announced(reservation, DIGEST) == replace(nothing, repeated=True)

    assert await there(bench, a) == [NOTHING]


async def test_two_commits_at_once(bench: Bench) -> None:
    """Of commits at the same moment, in two processes, one stores the events, and the others have its answer."""
    both = await topics(bench, "a", "b")
    reservation, beside = await announce(bench, both), await bench.another()

    found = await asyncio.gather(
        *(
            store.ingest.commit_announced(reservation, copies_for(both), ANSWER, DIGEST)
            for store in (bench.store, beside, bench.store, beside)
        )
    )

    assert sorted(each.repeated for each in found) == [False, True, True, True]
    assert await there(bench, *both) == whole(*both)


@pytest.mark.parametrize("place", [0, 1])
async def test_one_topic_refuses_all(bench: Bench, place: int) -> None:
    """Where one topic is full, closed or gone none keeps any room, and it is named."""
    both = await topics(bench, "a", "b")
    of = both[place]
    large = rooms_for(copies_for(both))
    large[place] = TopicRooms(of, [ReservedRoom(0, b"k", 256 << 20)])
    with pytest.raises(QueueFull):
        await bench.store.ingest.announce(large, b"announced")
    await bench.store.own_topics.change(replace(of, closed=True))
    with pytest.raises(TopicClosed, match=of.name):
        await announce(bench, both)
    await bench.store.own_topics.change(of)
    with pytest.raises(TopicUnknown, match=of.name):
        await announce(bench, [replace(each, id="x") if each is of else each for each in both])

    assert await there(bench, *both) == [NOTHING] * 2


async def test_an_aborted_one_is_not_committed(bench: Bench) -> None:
    """An abort ends the room in every topic; a commit after it is refused, and an abort is no error again."""
    both = await topics(bench, "a", "b")
    reservation = await announce(bench, both)
    for store in (bench.store, await bench.another()):
        await store.ingest.abort_announced(reservation)

    with pytest.raises(ReservationExpired):
        await bench.store.ingest.announced(reservation, DIGEST)
    with pytest.raises(ReservationExpired):
        await bench.store.ingest.commit_announced(reservation, copies_for(both), ANSWER, DIGEST)
    assert await there(bench, *both) == [NOTHING] * 2


async def test_a_topic_that_goes_between_the_phases(bench: Bench) -> None:
    """What was reserved in a topic that is removed goes with it; the others get their copies."""
    a, b = await topics(bench, "a", "b")
    reservation = await announce(bench, [a, b])
    await bench.store.own_topics.remove(b, discard=True)

    assert await bench.store.ingest.commit_announced(reservation, copies_for([a]), ANSWER, DIGEST) == ANSWER

    assert await there(bench, a) == whole(a)


async def test_a_topic_that_is_closed_between_the_phases(bench: Bench) -> None:
    """What was promised before a topic was closed is taken."""
    a, b = await topics(bench, "a", "b")
    reservation = await announce(bench, [a, b])
    await bench.store.own_topics.change(replace(a, closed=True))

    assert await bench.store.ingest.commit_announced(reservation, copies_for([a, b]), ANSWER, DIGEST) == ANSWER

    assert await there(bench, a, b) == whole(a, b)


async def test_a_topic_that_is_resharded_between_the_phases(bench: Bench) -> None:
    """Events of a topic that got another number of shards meanwhile are stored, each once."""
    a, b = await topics(bench, "a", "b")
    reservation = await announce(bench, [a, b])
    moved = await bench.store.own_topics.reshard(a, 5)
    events = [event._replace(shard=number % 5) for number, event in enumerate(copies_for([a])[0].events)]

    copies = [TopicCopies(moved, events), *copies_for([b])]
    assert await bench.store.ingest.commit_announced(reservation, copies, ANSWER, DIGEST) == ANSWER

    shards = [*moved.former_shards(), *moved.all_shards()]
    found = [await bench.contents(shard) for shard in dict.fromkeys(shards)]
    assert Counter(entry for of_shard in found for entry in of_shard) == Counter(event.payload for event in events)
    assert await there(bench, b) == whole(b)
