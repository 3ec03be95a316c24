"""Work that is begun in a call, and goes on in a task where it must wait."""

from __future__ import annotations

import asyncio

import pytest

from remora.servers.http.begun import Callback, Work, begin, in_task


class Tasks:
    """Starts tasks, and knows them."""

    def __init__(self) -> None:
        self.all: list[asyncio.Task[None]] = []

    def start(self, work: Work) -> None:
        self.all.append(asyncio.ensure_future(work))


async def test_what_need_not_wait_runs_in_the_call() -> None:
    """Work without a wait is done when its beginning returns, and has no task."""
    tasks, done = Tasks(), list[str]()

    async def work() -> None:
        done.append("all")

    assert not begin(work(), tasks.start)
    assert (done, tasks.all) == (["all"], [])


@pytest.mark.parametrize("outcome", ["stored", OSError("the disk is full")], ids=str)
async def test_a_call_goes_on_without_a_task(outcome: str | Exception) -> None:
    """What work is called back with is its result, or is raised in it, within that call and without a task."""
    tasks, call, done = Tasks(), Callback[str](), list[object]()

    async def work() -> None:
        try:
            done.append(await call)
        except OSError as exc:
            done.append(exc)

    assert not begin(work(), tasks.start)
    assert done == []
    call(outcome)
    assert (done, tasks.all) == ([outcome], [])


async def test_the_first_that_must_wait_goes_on_in_a_task() -> None:
    """What stands before the wait is done in the call; what stands behind it has a task, and may wait for anything."""
    tasks, done = Tasks(), list[object]()

    async def work() -> None:
        done.append("before")
        await in_task()
        async with asyncio.timeout(60):  # which asks for the task
            await asyncio.sleep(0)
        await in_task()
        call = Callback[str]()
        asyncio.get_running_loop().call_soon(call, "stored")
        done.append(await call)

    assert begin(work(), tasks.start)
    assert done == ["before"]
    await tasks.all[0]
    assert (done, len(tasks.all)) == (["before", "stored"], 1)


async def test_work_that_a_task_begins_has_none() -> None:
    """Begun from within a task, which is how a connection's next request is, work is in no task of its own yet."""
    tasks, done = Tasks(), list[str]()

    async def following() -> None:
        await in_task()
        await asyncio.sleep(0)
        done.append("following")

    async def first() -> None:
        await in_task()
        assert begin(following(), tasks.start)
        done.append("first")

    begin(first(), tasks.start)
    await tasks.all[0]
    await tasks.all[1]

    assert (done, len(tasks.all)) == (["first", "following"], 2)


async def test_a_wait_that_was_not_announced_is_a_defect() -> None:
    """Waiting for anything else without a task is noticed where it happens."""

    async def work() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(AssertionError, match="waits outside of a task"):
        begin(work(), Tasks().start)
