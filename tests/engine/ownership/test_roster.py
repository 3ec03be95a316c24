"""The states of an owned shard, and that its lock is released after its service, whatever ends that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from devkit.clock import in_virtual_time
from engine.fakes import FakeStore
from engine.ownership.parts import ScriptedService, a_roster, a_store, service_of, taken
from engine.runs import until
from remora.engine.ownership.owned import NEXT, Phase
from remora.engine.ownership.roster import Roster
from remora.model.errors import LockLetGo, NotOurs, OwnershipLost, ShardGone, StoreUnavailable
from remora.model.shard import Shard
from remora.policy.ownership.not_owned import Broken, Errored, GivenBack, NotOwned, transferred

T = Shard("t")


async def an_active_shard(store: FakeStore, tasks: asyncio.TaskGroup) -> Roster:
    roster = a_roster(store, tasks)
    roster.activate(roster.add(await taken(store, "t")))
    await until(lambda: roster.owned[T].phase is Phase.ACTIVE)
    return roster


def test_no_state_leads_back_from_releasing() -> None:
    """A shard that is being released is released, and every other state can lead there."""
    assert NEXT[Phase.RELEASING] == set()
    assert all(Phase.RELEASING in following for phase, following in NEXT.items() if phase is not Phase.RELEASING)


@in_virtual_time
async def test_a_state_that_may_not_follow_is_a_defect() -> None:
    """A shard that is being released is not served, idle or finished once more: whoever tries has a defect."""
    store = a_store("t")
    async with asyncio.TaskGroup() as tasks:
        owned = a_roster(store, tasks).add(await taken(store, "t"))
    owned.release(GivenBack())

    for phase in Phase:
        with pytest.raises(AssertionError, match="RELEASING is not followed by"):
            owned.enter(phase)


class Hesitant(ScriptedService):
    """Has something under way when it is told to finish, which takes a while."""

    def end(self) -> None:
        asyncio.get_running_loop().call_later(5, super().end)


@in_virtual_time
async def test_what_is_under_way_is_finished_however_often_a_shard_is_given_back() -> None:
    """Each plan names a shard that is to leave until it has left: its service is told once, and never cancelled."""
    store = a_store("t")
    async with asyncio.TaskGroup() as tasks:
        roster = a_roster(store, tasks, serve=Hesitant)
        roster.activate(roster.add(await taken(store, "t")))
        await until(lambda: roster.owned[T].phase is Phase.ACTIVE)
        service = service_of(roster, "t")
        for _ in range(3):
            roster.release(T, GivenBack())
            await asyncio.sleep(1)

        assert roster.owned[T].phase is Phase.FINISHING
        await until(lambda: not roster.owned)

    assert not service.ended.cancelled()


@in_virtual_time
async def test_a_shard_becomes_active_and_idle_again() -> None:
    """A shard that is taken is idle; it is served when entries come, and idle again when its service returns."""
    store = a_store("t")
    async with asyncio.TaskGroup() as tasks:
        roster = a_roster(store, tasks)
        owned = roster.add(await taken(store, "t"))
        assert (owned.phase, roster.active()) == (Phase.IDLE, 0)

        roster.notify([T, Shard("unknown")])
        assert (owned.phase, roster.active()) == (Phase.STARTING, 1)
        await until(lambda: owned.phase is Phase.ACTIVE)
        roster.notify([T])
        assert service_of(roster, "t").arrivals == 1

        service_of(roster, "t").ended.set_result(None)
        await until(lambda: owned.is_idle)
        assert (owned.service, owned.task, roster.active(), roster.observed) == (None, None, 0, {})


def refused(roster: Roster) -> None:
    service_of(roster, "t").ended.set_exception(OwnershipLost("broken"))


def let_run_out(roster: Roster) -> None:
    owned = roster.owned[T]
    owned.lease.term = type(owned.lease.term)(0.0, -1.0)
    service_of(roster, "t").ended.set_exception(OwnershipLost("ran out"))


ENDS: list[tuple[Callable[[Roster], object], type[NotOwned], str]] = [
    (refused, Broken, "its lock was broken"),
    (let_run_out, Errored, "ran out"),
    (lambda roster: service_of(roster, "t").ended.set_exception(ShardGone("is gone")), Errored, "is gone"),
    (lambda roster: service_of(roster, "t").ended.set_exception(NotOurs("http")), Errored, "http"),
    (lambda roster: service_of(roster, "t").ended.set_exception(ZeroDivisionError()), Errored, "a defect"),
    (lambda roster: roster.release(T, GivenBack()), GivenBack, "given back"),
    (lambda roster: roster.release(T, transferred("w2", 5.0)), type(transferred("", 0)), "handed to w2"),
    (lambda roster: roster.lose(roster.owned[T].lease, OwnershipLost("taken")), Broken, "its lock was broken"),
    (lambda roster: roster.lose(roster.owned[T].lease, LockLetGo("opened anew")), Errored, "opened anew"),
    (lambda roster: roster.lose(roster.owned[T].lease, ShardGone("deleted")), Errored, "deleted"),
    (lambda roster: roster.end_all(), GivenBack, "given back"),
]


@pytest.mark.parametrize(("end", "kind", "reason"), ENDS)
@in_virtual_time
async def test_whatever_ends_a_service_its_lock_is_released(
    end: Callable[[Roster], object], kind: type[NotOwned], reason: str
) -> None:
    """The lock goes once the service has returned, and the reason why the shard is not owned says what ended it."""
    store = a_store("t")
    async with asyncio.TaskGroup() as tasks:
        roster = await an_active_shard(store, tasks)
        end(roster)
        await until(lambda: not roster.owned)

    assert store.queues["t"].holder is None
    assert isinstance(roster.observed[T], kind)
    assert reason in roster.observed[T].reason
    assert roster.transferred.is_set() is ("handed" in reason)


@in_virtual_time
async def test_a_shard_is_owned_until_its_lock_is_released() -> None:
    """While the release takes long the shard cannot be taken again, and a second reason changes nothing."""
    store = a_store("t")
    store.before = lambda call: 4.0 if call == "release" else 0
    async with asyncio.TaskGroup() as tasks:
        roster = await an_active_shard(store, tasks)
        roster.release(T, GivenBack())
        await asyncio.sleep(3)
        roster.lose(roster.owned[T].lease, OwnershipLost("late"))
        roster.release(T, transferred("w2", 0))
        assert roster.owned[T].is_releasing
        await until(lambda: not roster.owned)

    assert roster.observed[T] == GivenBack()


@in_virtual_time
async def test_a_shard_that_is_ended_before_its_first_step_is_released() -> None:
    """A service that was made and has not begun is not run, and the lock is released all the same."""
    store = a_store("t")
    async with asyncio.TaskGroup() as tasks:
        roster = a_roster(store, tasks)
        owned = roster.add(await taken(store, "t"))
        roster.activate(owned)
        roster.end(owned, GivenBack())
        await until(lambda: not roster.owned)

    assert store.queues["t"].holder is None


@in_virtual_time
async def test_a_release_that_fails_ends_the_ownership_all_the_same() -> None:
    """The lease of a lock that could not be released ends by itself, and the shard may be tried again."""
    store = a_store("t")
    store.before = lambda call: StoreUnavailable("away") if call == "release" else None
    async with asyncio.TaskGroup() as tasks:
        roster = await an_active_shard(store, tasks)
        roster.release(T, GivenBack())
        await until(lambda: not roster.owned)

    assert store.queues["t"].holder is not None


@in_virtual_time
async def test_a_lease_that_is_not_this_ones_is_not_lost() -> None:
    """A late answer about an earlier lease does not end the shard, which was acquired anew meanwhile."""
    store = a_store("t")
    async with asyncio.TaskGroup() as tasks:
        roster = a_roster(store, tasks)
        former = roster.add(await taken(store, "t")).lease
        owned = roster.add(await taken(store, "t"))
        roster.lose(former, OwnershipLost("late"))

        assert owned.is_idle


@in_virtual_time
async def test_very_many_shards_become_active_in_waves() -> None:
    """Of 2,500 shards that get entries at the same moment a thousand are active first, then a few at a time."""
    queues = [f"q{number}" for number in range(2500)]
    store = a_store(*queues)
    async with asyncio.TaskGroup() as tasks:
        roster = a_roster(store, tasks)
        for queue in queues:
            roster.add(await taken(store, queue))
        roster.notify([Shard(queue) for queue in queues])
        assert roster.active() == 1000
        await asyncio.sleep(0.06)
        assert roster.active() == 1032
        roster.end_all()
        await asyncio.sleep(0.06)
        assert roster.active() == 0, "no further wave once all are being given back"
        await roster.empty()

    assert all(queue.holder is None for queue in store.queues.values())


@in_virtual_time
async def test_what_no_task_released_is_released_in_the_end() -> None:
    """After a worker was cut short, idle shards and those whose tasks never ran are released too."""
    store = a_store("t", "u")
    tasks = asyncio.TaskGroup()
    roster = a_roster(store, tasks)

    async def cut_short() -> None:
        async with tasks:
            roster.add(await taken(store, "t"))
            roster.activate(roster.add(await taken(store, "u")))
            raise ZeroDivisionError

    with pytest.raises(ExceptionGroup):
        await cut_short()
    assert all(queue.holder is not None for queue in store.queues.values())
    await roster.release_all()

    assert [queue.holder for queue in store.queues.values()] == [None, None]
