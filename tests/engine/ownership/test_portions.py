"""Very many shards are judged in several turns of the event loop, between which anything may change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import pytest

from devkit.clock import in_virtual_time
from engine.ownership.parts import a_store, coordinating, taken
from engine.runs import Turns, a_topic, until
from remora.bounded import PORTION
from remora.engine.ownership import coordinator as coordinator_module
from remora.engine.ownership import situation as situation_module
from remora.engine.ownership.roster import Roster
from remora.model.shard import Shard
from remora.model.topic import Topic
from remora.policy.ownership.assignment import Acquisitions, judged
from remora.policy.ownership.not_owned import GivenBack, NotOwned, Schemes, reason_to_leave
from remora.policy.ownership.view import View

MANY = 2 * PORTION + 1
QUEUES = [f"t{number:04}" for number in range(MANY)]
LAST = Shard(QUEUES[-1])


def behind_a_portion(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> Callable[[], None]:
    """Returns what arms it: then `act` is called once, behind the first portion that is judged."""
    armed = False

    def judge(view: View, shards: Iterable[Shard]) -> Acquisitions:
        nonlocal armed
        found = judged(view, shards)
        if armed:
            armed = False
            asyncio.get_running_loop().call_soon(act)
        return found

    def arm() -> None:
        nonlocal armed
        armed = True

    monkeypatch.setattr(coordinator_module, "judged", judge)
    return arm


@in_virtual_time
async def test_very_many_shards_are_judged_in_several_turns_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shard is judged once after a change of the catalogue, by its topic and by what is known of it, and all are
    acquired."""
    by_topic, by_view = Turns(), Turns()

    def reason(topic: Topic | None, schemes: Schemes) -> str | None:
        by_topic.count()
        return reason_to_leave(topic, schemes)

    def judge(view: View, shards: Iterable[Shard]) -> Acquisitions:
        for _ in shards:
            by_view.count()
        return judged(view, shards)

    monkeypatch.setattr(situation_module, "reason_to_leave", reason)
    monkeypatch.setattr(coordinator_module, "judged", judge)

    async with coordinating(a_store(*QUEUES)) as coordinator:
        await until(lambda: len(coordinator.shards) == MANY)

    for turns in (by_topic, by_view):
        assert sum(turns.counts) == MANY
        assert max(turns.counts) <= PORTION


@in_virtual_time
async def test_a_drain_that_begins_between_two_portions_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is to drain asks for no lock, also of the shards that were due before it heard of that."""
    store = a_store(*QUEUES)

    async with coordinating(store) as coordinator:
        behind_a_portion(monkeypatch, lambda: coordinator.drain(True))()
        await asyncio.sleep(10)

        assert coordinator.shards == []
    assert store.calls["acquire"] == 0


@in_virtual_time
async def test_a_shard_that_comes_between_two_portions_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker may hand it over meanwhile: it is owned, and nothing else is said of it."""
    store = a_store(*QUEUES)
    lock = await taken(store, LAST.queue)

    async with coordinating(store) as coordinator:
        behind_a_portion(monkeypatch, lambda: coordinator._roster.add(lock))()
        await until(lambda: len(coordinator.shards) == MANY)

        assert LAST not in coordinator.not_owned
    assert store.calls["acquire"] == MANY


@in_virtual_time
async def test_a_shard_that_leaves_between_two_portions_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of shards that no catalogue lists any longer those are served, to find out whether they are gone, that are still
    owned when their turn has come."""
    store = a_store(*QUEUES)

    async with coordinating(store) as coordinator:
        await until(lambda: len(coordinator.shards) == MANY)
        roster = coordinator._roster
        arm = behind_a_portion(monkeypatch, lambda: roster.release(LAST, GivenBack()))
        arm()
        store.queues.clear()
        await until(lambda: len(coordinator.active()) == MANY - 1)

        assert LAST not in coordinator.shards


@pytest.mark.parametrize("by", ["topic", "view"])
@in_virtual_time
async def test_a_catalogue_that_changes_between_two_portions_is_read_again(
    monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """A queue that is made while shards are judged, by their topics or by what is known of them, is acquired as soon as
    the others, though nothing else changes after it."""
    store = a_store(*QUEUES)

    async with coordinating(store) as coordinator:
        catalogue = coordinator._catalogue

        def make() -> None:
            store.make("u")
            store.metadata["u"] = a_topic("u", to="u")
            catalogue.shards = [*catalogue.shards, Shard("u")]
            catalogue._topics = {**catalogue.topics, Shard("u"): store.metadata["u"]}

        def reason(topic: Topic | None, schemes: Schemes) -> str | None:
            if "u" not in store.queues:
                asyncio.get_running_loop().call_soon(make)
                monkeypatch.setattr(situation_module, "reason_to_leave", reason_to_leave)
            return reason_to_leave(topic, schemes)

        if by == "topic":
            monkeypatch.setattr(situation_module, "reason_to_leave", reason)
        else:
            behind_a_portion(monkeypatch, make)()
        await until(lambda: Shard("u") in coordinator.shards)

        assert len(coordinator.shards) == MANY + 1


@in_virtual_time
async def test_a_view_is_of_one_reading_of_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    """While another reading is gone through, a view has the shards and quarantines of the one before it, and then all
    those of the new one."""
    store, seen = a_store(*QUEUES[:-1]), list[View]()

    async with coordinating(store) as coordinator:
        await until(lambda: len(coordinator.shards) == MANY - 1)
        situation = coordinator._situation
        coordinator.shedder._meters.quarantined = lambda: ("kafka://b:9092",)
        await until(lambda: situation.view().quarantined)

        def reason(topic: Topic | None, schemes: Schemes) -> str | None:
            if len(seen) < MANY:
                seen.append(situation.view())
            return reason_to_leave(topic, schemes)

        monkeypatch.setattr(situation_module, "reason_to_leave", reason)
        store.make(LAST.queue)
        store.metadata[LAST.queue] = a_topic(LAST.queue, to=LAST.queue)
        await until(lambda: len(coordinator.shards) == MANY)
        after = situation.view()

    before = {Shard(queue) for queue in QUEUES[:-1]}
    assert len(seen) == MANY
    assert all(each.shards.keys() == before for each in seen)
    assert all(each.quarantined.keys() == before for each in seen)
    assert after.shards.keys() == after.quarantined.keys() == {*before, LAST}


@pytest.mark.parametrize("goes_on", [True, False])
@in_virtual_time
async def test_very_many_shards_are_given_back_in_several_turns(monkeypatch: pytest.MonkeyPatch, goes_on: bool) -> None:
    """A worker that drains and has no other to hand its shards to releases all of them. It keeps those that are left
    when the drain is undone."""
    store, turns = a_store(*QUEUES), Turns()
    release = Roster.release

    async with coordinating(store) as coordinator:
        await until(lambda: len(coordinator.shards) == MANY)

        def count(roster: Roster, shard: Shard, outcome: NotOwned) -> None:
            turns.count()
            release(roster, shard, outcome)
            if not goes_on:
                coordinator.drain(False)

        monkeypatch.setattr(Roster, "release", count)
        coordinator.drain(True)
        await asyncio.sleep(10)

        assert len(coordinator.shards) == (0 if goes_on else MANY)
    assert sum(turns.counts) == (MANY if goes_on else PORTION)
    assert max(turns.counts) <= PORTION
