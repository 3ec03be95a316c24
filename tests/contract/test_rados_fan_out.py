"""Events for several topics on RADOS: every copy or none, once, also when processes die, and topics and layouts go."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from devkit.clusters.ceph import reached
from devkit.waits import PATIENT_S, until
from remora.config import RadosSettings
from remora.model.errors import (
    OnceConflict,
    QueueFull,
    ReservationExpired,
    StoreUnavailable,
    TopicClosed,
    TopicMoved,
    TopicUnknown,
)
from remora.model.fan_out import FannedOut, TopicCopies
from remora.model.ingest import IdempotencyKey, PublishResult, RoutedEvent
from remora.model.topic import Topic
from remora.storage.rados import RadosStore
from remora.storage.rados.ingest import finisher
from remora.storage.rados.ingest.intent_log import FanOutEnvelope, IntentState, LoggedIntent
from remora.storage.rados.ingest.schedule import DueAction, ScheduleEntry
from support.gone_layouts import cases, deliver, give_up_reservations, pass_by
from support.rados_victim import ANSWER, DIGEST, MORE_SHARDS, SHARDS, Victim, armed, freeze_before, victims
from support.stores import by_shard, copies_for, own_topic, rooms_for, spread

pytestmark = pytest.mark.ceph

ONCE = IdempotencyKey("key", DIGEST)


@pytest.fixture
async def store(settings: RadosSettings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RadosStore]:
    """An open store, which is not the one that anything happens to. It looks after others' requests often."""
    monkeypatch.setattr(finisher, "_EVERY_S", 0.3)
    async with reached(settings) as store:
        yield store


async def topics(store: RadosStore, *names: str) -> list[Topic]:
    """Topics of some shards."""
    return [await store.own_topics.create(own_topic(name, SHARDS)) for name in names]


async def there(store: RadosStore, topic: Topic) -> list[list[bytes]]:
    """The same, where no room is reserved."""
    stats = [await store.inspection.stats(shard) for shard in topic.all_shards()]
    assert [each.reservations for each in stats] == [0] * len(stats)
    return await waiting(store, topic)


async def waiting(store: RadosStore, topic: Topic) -> list[list[bytes]]:
    """All that waits in each of a topic's shards."""
    return [[entry async for _, entry in store.inspection.dump(shard)] for shard in topic.all_shards()]


def whole(topic: Topic) -> list[list[bytes]]:
    """What a topic has of one request of the tests."""
    return by_shard(topic, copies_for([topic])[0].events)


async def is_settled(store: RadosStore) -> bool:
    """Whether every request for several topics that was decided has been carried out."""
    return not any(each.state is IntentState.COMMITTED for each in await noted(store, DueAction.COMPLETE))


async def noted(store: RadosStore, action: DueAction) -> list[LoggedIntent[FanOutEnvelope]]:
    """The requests for several topics that something is still to be done with."""
    log = store.ingest.fan_outs
    found = [await log.intents.load(entry.name) for entry in (await log.schedule.entries())[action]]
    return [each for each in found if each is not None]


# --------------------------------------------------------------------------------------------- what is asked


@pytest.mark.parametrize("once", [None, ONCE])
async def test_every_topic_gets_its_copies(store: RadosStore, once: IdempotencyKey | None) -> None:
    """Each topic has its own events in order, of one, of several and of no topic, and the answer is the one given."""
    a, b, c = await topics(store, "a", "b", "c")

    assert await store.ingest.fan_out(copies_for([a, b]), ANSWER, once) == ANSWER
    assert await store.ingest.fan_out(copies_for([c]), ANSWER, once and replace(once, key="other")) == ANSWER
    assert await store.ingest.fan_out([], ANSWER, once and replace(once, key="none")) == ANSWER

    assert [await there(store, each) for each in (a, b, c)] == [whole(each) for each in (a, b, c)]


async def test_a_repeat_keeps_the_topics_of_its_first_try(store: RadosStore, settings: RadosSettings) -> None:
    """A repeat under its key stores nothing and has the first answer, whatever it matches by then, also in another
    process; other contents under the key are refused, and a topic's own keys are others."""
    a, b, c = await topics(store, "a", "b", "c")
    other = FannedOut(9, 9, {"other": 9})

    assert await store.ingest.fanned_out(ONCE) is None
    assert await store.ingest.fan_out(copies_for([a, b]), ANSWER, ONCE) == ANSWER
    async with reached(settings) as beside:
        for each in (store, beside):
            assert await each.ingest.fan_out(copies_for([c]), other, ONCE) == replace(ANSWER, repeated=True)
            assert await each.ingest.fanned_out(ONCE) == replace(ANSWER, repeated=True)
            with pytest.raises(OnceConflict):
                await each.ingest.fan_out(copies_for([a, b]), ANSWER, replace(ONCE, digest=b"other"))
    assert not (await store.ingest.publish(c, spread(c, 3), ONCE)).repeated

    assert [await there(store, each) for each in (a, b)] == [whole(a), whole(b)]
    assert await there(store, c) == by_shard(c, spread(c, 3))


async def test_two_first_tries_at_once(store: RadosStore, settings: RadosSettings) -> None:
    """Of two requests of one key that match different topics at once, one is stored and both have its answer."""
    given = await topics(store, "a", "b", "c", "d")
    other = FannedOut(9, 0, {"c": 9, "d": 9})
    async with reached(settings) as beside:
        answers = await asyncio.gather(
            store.ingest.fan_out(copies_for(given[:2]), ANSWER, ONCE),
            beside.ingest.fan_out(copies_for(given[2:]), other, ONCE),
        )

    assert answers[0].topics == answers[1].topics
    assert not all(each.repeated for each in answers)
    stored = given[:2] if answers[0].topics == ANSWER.topics else given[2:]
    assert [await there(store, each) for each in given] == [
        whole(each) if each in stored else [[]] * SHARDS for each in given
    ]


async def test_a_first_try_that_has_taken_the_room(
    store: RadosStore, settings: RadosSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that finds no room, since another process's try with its key has it, has the answer of that one."""
    a, b = await topics(store, "a", "b")
    async with reached(settings) as beside:

        async def taken(*_: object, **__: object) -> None:
            await store.ingest.fan_out(copies_for([a, b]), ANSWER, ONCE)
            await store.ingest.publish(a, spread(a, 3), ONCE)
            raise QueueFull("there is no room")

        monkeypatch.setattr(beside.ingest, "_reserve", taken)
        assert await beside.ingest.fan_out(copies_for([a, b]), ANSWER, ONCE) == replace(ANSWER, repeated=True)
        assert await beside.ingest.publish(a, spread(a, 3), ONCE) == PublishResult(3, repeated=True)
        with pytest.raises(QueueFull):
            await beside.ingest.fan_out(copies_for([a, b]), ANSWER, replace(ONCE, key="other"))
        with pytest.raises(QueueFull):
            await beside.ingest.publish(a, spread(a, 3), replace(ONCE, key="other"))

    assert await there(store, b) == whole(b)


async def test_first_tries_of_one_process_wait_for_each_other(
    store: RadosStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several tries with one key at once in one process one alone asks for room, and all have its answer."""
    both, asked = await topics(store, "a", "b"), Counter[str]()
    reserve = store.ingest._reserve

    async def counted(topic: Topic, *args: Any, **kwargs: Any) -> Any:
        asked[topic.name] += 1
        return await reserve(topic, *args, **kwargs)

    monkeypatch.setattr(store.ingest, "_reserve", counted)
    answers = await asyncio.gather(*[store.ingest.fan_out(copies_for(both), ANSWER, ONCE) for _ in range(3)])
    results = await asyncio.gather(*[store.ingest.publish(both[0], spread(both[0], 3), ONCE) for _ in range(3)])

    assert sorted(each.repeated for each in answers) == [False, True, True]
    assert sorted(each.repeated for each in results) == [False, True, True]
    assert asked == {"a": 2, "b": 1}


@pytest.mark.parametrize("place", [0, 1])
async def test_one_topic_refuses_the_whole_request(store: RadosStore, place: int) -> None:
    """Where one topic is closed, gone or full nothing is stored anywhere, the topic is named, and no room is kept."""
    both = await topics(store, "a", "b")
    of = both[place]

    await store.own_topics.change(replace(of, closed=True))
    with pytest.raises(TopicClosed, match=of.name):
        await store.ingest.fan_out(copies_for(both), ANSWER, ONCE)
    await store.own_topics.change(of)
    another = copies_for([replace(each, id="x") if each is of else each for each in both])
    with pytest.raises(TopicUnknown, match=of.name):
        await store.ingest.fan_out(another, ANSWER)
    large = copies_for(both)
    large[place] = TopicCopies(of, [RoutedEvent(0, b"k", bytes(129 << 20))])
    with pytest.raises(QueueFull):
        await store.ingest.fan_out(large, ANSWER, ONCE)

    assert [await there(store, each) for each in both] == [[[]] * SHARDS] * 2
    assert await store.ingest.fan_out(copies_for(both), ANSWER, ONCE) == ANSWER
    assert [await there(store, each) for each in both] == [whole(each) for each in both]


# ------------------------------------------------------------------------------------------ killed and frozen


@pytest.mark.guarantee("topics-of-remoras-own", "no-loss", "duplicates")
async def test_killed_at_each_step(settings: RadosSettings, store: RadosStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever step a process is killed after, others store every copy or none; its repeat stores them once. A topic
    that is removed meanwhile ends its own part only."""
    monkeypatch.setattr(finisher, "_GRACE_S", 3600.0)
    left = await victims(settings, "fan-out")
    pairs = [[await store.own_topics.find(f"{each.topic}{end}") for end in ("", "-b")] for each in left]
    gone = left[-4]  # decided, and not all of it is stored
    topic = pairs[-4][1]
    assert topic is not None
    await store.own_topics.remove(topic, discard=True)
    monkeypatch.setattr(finisher, "_GRACE_S", 0.0)
    await until(partial(is_settled, store))

    stored = []
    for victim, pair in zip(left, pairs, strict=True):
        some = [each for each in pair[: 1 if victim is gone else 2] if each is not None]
        found = [
            [[entry async for _, entry in store.inspection.dump(shard)] for shard in each.all_shards()] for each in some
        ]
        assert found in ([[[]] * SHARDS] * len(some), [whole(each) for each in some])
        stored.append(found != [[[]] * SHARDS] * len(some))
    # Reservations in both, a note and the decision; commits, and two steps to remember it by.
    assert stored == [False] * (2 * SHARDS + 1) + [True] * (2 * SHARDS + 4)
    for victim, pair, was_stored in zip(left, pairs, stored, strict=True):
        if victim is not gone:
            copies = copies_for([each for each in pair if each is not None])
            answer = await store.ingest.fan_out(copies, ANSWER, IdempotencyKey(victim.topic, DIGEST))
            assert answer == replace(ANSWER, repeated=was_stored)
            for each in pair:
                assert each is not None
                assert await waiting(store, each) == whole(each)


@pytest.mark.guarantee("no-loss", "duplicates", "topics-of-remoras-own")
@pytest.mark.parametrize("number", cases(range(1, 17), at_the_gate=[3, 11]))
async def test_one_that_stands_still_while_a_layout_goes(
    settings: RadosSettings, store: RadosStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A request stands still before any of its writes while a layout of one of its topics is sealed, delivered, shut
    and gone, and others finish it. Then it is stored whole in both, or in neither; its repeat stores it once."""
    monkeypatch.setattr(finisher, "_GRACE_S", 3600.0)
    a, b = await topics(store, "a", "b")
    async with reached(settings) as late:
        frozen = freeze_before(late, number)
        storing = asyncio.ensure_future(armed(late.ingest.fan_out(copies_for([a, b]), ANSWER, ONCE)))
        storing.add_done_callback(lambda _: frozen.is_there.set())
        await asyncio.wait_for(frozen.is_there.wait(), PATIENT_S)
        found = await pass_by(store, a, MORE_SHARDS)
        monkeypatch.setattr(finisher, "_GRACE_S", 0.0)
        await until(partial(is_settled, store))  # by another process, which knows nothing of what this one has stored
        frozen.thaw.set()
        (answer,) = await asyncio.gather(storing, return_exceptions=True)
        assert not isinstance(answer, BaseException) or isinstance(answer, (TopicMoved, StoreUnavailable))

    moved = await store.own_topics.find("a")
    assert moved is not None
    expected = Counter(each.payload for each in copies_for([a])[0].events)
    beside = [RoutedEvent(0, each.key, each.payload) for each in copies_for([a])[0].events]
    await store.ingest.fan_out([TopicCopies(moved, beside), *copies_for([b])], ANSWER, ONCE)
    assert Counter(found + await deliver(store, moved.all_shards())) == expected
    assert Counter(await deliver(store, b.all_shards())) == Counter(each.payload for each in copies_for([b])[0].events)


async def pairs_of(store: RadosStore, victim: Victim) -> list[Topic]:
    """The topics that a process sends to, and behind these the one that it keeps room in only."""
    found = [await store.own_topics.find(f"{victim.topic}{end}") for end in ("", "-b", "-c")]
    return [each for each in found if each is not None]


@pytest.mark.guarantee("topics-of-remoras-own", "no-loss")
async def test_killed_at_each_step_of_announcing(
    settings: RadosSettings, store: RadosStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever step of a reservation without a topic a process is killed after, nothing is stored. A reservation that
    came to be is given up in its time with all its room, and other room expires in the queues."""
    left = await victims(settings, "announce")
    # Room in the queues of three topics, then a note, then the reservation.
    assert len(left) == 3 * SHARDS + 3
    monkeypatch.setattr(finisher, "RESERVATION_AGE_S", 0.0)
    await until(partial(_nothing_is_held, store))

    for number, victim in enumerate(left):
        given = await pairs_of(store, victim)
        if number < 3 * SHARDS + 1:
            for each in given:
                await give_up_reservations(store, each)
        assert [await there(store, each) for each in given] == [[[]] * SHARDS] * 3


@pytest.mark.guarantee("topics-of-remoras-own", "no-loss", "duplicates")
async def test_killed_at_each_step_of_a_commit(
    settings: RadosSettings, store: RadosStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever step of a commit without a topic a process is killed after, others store every copy or none; the same
    commit again stores them once, and no room is left but what expires."""
    monkeypatch.setattr(finisher, "_GRACE_S", 0.0)
    left = await victims(settings, "announced")
    await until(partial(is_settled, store))

    stored = []
    for victim in left:
        a, b, c = await pairs_of(store, victim)
        found = [await waiting(store, each) for each in (a, b)]
        assert found in ([[[]] * SHARDS] * 2, [whole(a), whole(b)])
        stored.append(found != [[[]] * SHARDS] * 2)
        again = await store.ingest.commit_announced(victim.reservation, copies_for([a, b]), ANSWER, DIGEST)
        assert again == replace(ANSWER, repeated=stored[-1])
        await give_up_reservations(store, c)
        assert [await there(store, each) for each in (a, b, c)] == [whole(a), whole(b), [[]] * SHARDS]
        with pytest.raises(OnceConflict):
            await store.ingest.announced(victim.reservation, b"of others")
    # A note and the decision; room that comes back, commits, and two steps to remember it by.
    assert stored == [False] + [True] * (1 + SHARDS + 2 * SHARDS + 2 + 1)


async def test_killed_at_each_step_of_an_abort(settings: RadosSettings, store: RadosStore) -> None:
    """Whatever step of an abort a process is killed after, an abort again is no error, and no room is left but what
    expires."""
    for victim in await victims(settings, "announced-abort"):
        given = await pairs_of(store, victim)
        await store.ingest.abort_announced(victim.reservation)
        with pytest.raises(ReservationExpired):
            await store.ingest.commit_announced(victim.reservation, copies_for(given[:2]), ANSWER, DIGEST)
        for each in given:
            await give_up_reservations(store, each)
            assert await there(store, each) == [[]] * SHARDS


@pytest.mark.parametrize("needed", [True, False])
async def test_a_commit_whose_room_has_expired(store: RadosStore, *, needed: bool) -> None:
    """A commit is refused where a queue has given up room that it needs, and all other room is given back then; room
    that it does not need may be gone."""
    a, b, c = await topics(store, "a", "b", "c")
    reservation = await store.ingest.announce(rooms_for(copies_for([a, b, c])), b"announced")
    await give_up_reservations(store, b if needed else c)

    committing = store.ingest.commit_announced(reservation, copies_for([a, b]), ANSWER, DIGEST)
    if needed:
        with pytest.raises(ReservationExpired):
            await committing
        with pytest.raises(ReservationExpired):
            await store.ingest.announced(reservation, DIGEST)
    else:
        assert await committing == ANSWER

    stored = [[[]] * SHARDS] * 2 if needed else [whole(a), whole(b)]
    assert [await there(store, each) for each in (a, b, c)] == [*stored, [[]] * SHARDS]


@pytest.mark.guarantee("no-loss", "duplicates", "topics-of-remoras-own")
@pytest.mark.parametrize("number", cases(range(1, 15), at_the_gate=[2, 6]))
async def test_a_commit_that_stands_still_while_a_layout_goes(
    settings: RadosSettings, store: RadosStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A commit without a topic stands still before any of its writes while a layout of one of its topics is sealed,
    delivered, shut and gone, and others finish it. Then it is stored whole in both, or it is told that it has expired
    and nothing is; the same commit again says the same."""
    monkeypatch.setattr(finisher, "_GRACE_S", 3600.0)
    a, b, c = await topics(store, "a", "b", "c")
    reservation = await store.ingest.announce(rooms_for(copies_for([a, b, c])), b"announced")
    async with reached(settings) as late:
        frozen = freeze_before(late, number)
        committing = asyncio.ensure_future(
            armed(late.ingest.commit_announced(reservation, copies_for([a, b]), ANSWER, DIGEST))
        )
        committing.add_done_callback(lambda _: frozen.is_there.set())
        await asyncio.wait_for(frozen.is_there.wait(), PATIENT_S)
        found = await pass_by(store, a, MORE_SHARDS)
        monkeypatch.setattr(finisher, "_GRACE_S", 0.0)
        await until(partial(is_settled, store))
        frozen.thaw.set()
        (answer,) = await asyncio.gather(committing, return_exceptions=True)
        assert not isinstance(answer, BaseException) or isinstance(answer, (TopicMoved, StoreUnavailable))

    moved = await store.own_topics.find("a")
    assert moved is not None
    beside = [RoutedEvent(0, each.key, each.payload) for each in copies_for([a])[0].events]
    copies = [TopicCopies(moved, beside), *copies_for([b])]
    expected = [Counter(each.payload for each in of.events) for of in copies]
    try:
        await store.ingest.commit_announced(reservation, copies, ANSWER, DIGEST)
    except ReservationExpired:
        assert isinstance(answer, BaseException)
        expected = [Counter()] * 2
    await give_up_reservations(store, b)
    assert Counter(found + await deliver(store, moved.all_shards())) == expected[0]
    assert Counter(await deliver(store, b.all_shards())) == expected[1]


async def test_a_topic_that_goes_meanwhile(
    settings: RadosSettings, store: RadosStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a topic is removed between the decision and the storing, the others get their copies, and it is success."""
    monkeypatch.setattr(finisher, "_GRACE_S", 3600.0)
    a, b = await topics(store, "a", "b")
    async with reached(settings) as late:
        frozen = freeze_before(late, 2 * SHARDS + 3)
        storing = asyncio.ensure_future(armed(late.ingest.fan_out(copies_for([a, b]), ANSWER, ONCE)))
        await asyncio.wait_for(frozen.is_there.wait(), PATIENT_S)
        await store.own_topics.remove(b, discard=True)
        frozen.thaw.set()
        assert await storing == ANSWER

    assert await there(store, a) == whole(a)


async def test_what_tells_of_a_request_goes_with_it(store: RadosStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time a request is deleted with its marks in the queues of all its topics, and its key is free."""
    both = await topics(store, "a", "b")
    await store.ingest.fan_out(copies_for(both), ANSWER, ONCE)
    log = store.ingest.fan_outs
    (kept,) = (await log.schedule.entries())[DueAction.DELETE]
    await log.schedule.replace([kept], _due_now(kept))

    await until(partial(_is_gone, store))
    assert await store.ingest.fan_out(copies_for(both), ANSWER, ONCE) == ANSWER
    for each in both:
        assert [len(entries) for entries in await there(store, each)] == [2 * len(of) for of in whole(each)]


def _due_now(entry: ScheduleEntry) -> ScheduleEntry:
    """The entry, due now."""
    return entry._replace(due_ms=0)


async def _nothing_is_held(store: RadosStore) -> bool:
    """Whether no reservation is left to be given up."""
    return not await noted(store, DueAction.ABORT)


async def _is_gone(store: RadosStore) -> bool:
    return await store.ingest.fanned_out(ONCE) is None
