"""Group commit: which requests share a transaction of a writer that is idle."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from devkit.clock import in_virtual_time
from devkit.waits import PATIENT_S
from remora.model.shard import Shard
from remora.storage.sqlite.files.file import File
from remora.storage.sqlite.ingest.group_commit import NOTHING, GroupCommit, Wants


class IdleFile:
    """A file whose writer starts each transaction in the moment in which it gets it."""

    path = Path("queues-000.db")

    def __init__(self, connection: sqlite3.Connection, seconds: float = 0.0) -> None:
        """Each transaction takes so many `seconds`."""
        self.transactions: list[list[object]] = []
        self._connection = connection
        self._seconds = seconds

    async def write(
        self, job: Callable[[sqlite3.Connection], list[object]], *, arrived: Sequence[Shard], **how: bool
    ) -> list[object]:
        assert how == {"durable": True, "upkeep": False, "may_wait": False}
        self.transactions.append(outcomes := job(self._connection))
        if self._seconds:
            await asyncio.sleep(self._seconds)
        return outcomes


class SlowFile(IdleFile):
    """A file whose transactions end when the test says so, after all of their requests were carried out."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self.has_run = asyncio.Event()
        self.may_end = asyncio.Event()

    async def write(
        self, job: Callable[[sqlite3.Connection], list[object]], *, arrived: Sequence[Shard], **how: bool
    ) -> list[object]:
        outcomes = await super().write(job, arrived=arrived, **how)
        self.has_run.set()
        await self.may_end.wait()
        return outcomes


async def submitted(turns: Sequence[int]) -> list[list[object]]:
    """The transactions of requests, each made after a number of turns of the event loop, which it returns."""
    commits = GroupCommit()

    async def submit(file: IdleFile, turn: int) -> int:
        for _ in range(turn):
            await asyncio.sleep(0)
        return await commits.submit(cast(File, file), cast(Any, lambda batch: turn))

    with closing(sqlite3.connect(":memory:")) as connection:
        file = IdleFile(connection)
        assert await asyncio.gather(*(submit(file, turn) for turn in turns)) == list(turns)
        return file.transactions


async def test_requests_of_successive_turns_share_a_transaction() -> None:
    """A group waits for the next turn of the event loop as long as each turn brings another request."""
    assert await submitted([0, 0, 1, 2, 3, 4]) == [[0, 0, 1, 2, 3, 4]]


async def test_a_request_alone_is_not_kept() -> None:
    """A turn that brings no request ends the wait: what comes later has a transaction of its own."""
    assert await submitted([0, 6]) == [[0], [6]]


async def test_a_stream_of_requests_does_not_hold_up_the_first_ones() -> None:
    """Where every turn brings a request, a group still ends after eight or nine turns."""
    transactions = await submitted(range(40))

    assert [each for group in transactions for each in group] == list(range(40))
    assert max(map(len, transactions)) <= 10


@pytest.mark.parametrize(
    ("requests", "nbytes", "transactions"),
    [(2500, 0, [1024, 1024, 452]), (20, 1 << 20, [9, 9, 2])],
)
async def test_what_comes_at_once_is_divided(requests: int, nbytes: int, transactions: list[int]) -> None:
    """A transaction takes 1,024 requests, and none once it has more than 8 MiB: the others have the next ones."""
    commits, told = GroupCommit(), list[int]()
    with closing(sqlite3.connect(":memory:")) as connection:
        file = IdleFile(connection)
        for number in range(requests - 1):
            request = cast(Any, lambda batch, number=number: number)
            commits.submit_soon(cast(File, file), request, Wants(nbytes), told.append)
        last = await commits.submit(cast(File, file), cast(Any, lambda batch: requests - 1), Wants(nbytes))

    assert [len(each) for each in file.transactions] == transactions
    assert [*told, last] == list(range(requests))


async def clients_in_turn(rounds: int, pauses_s: Sequence[float]) -> tuple[list[int], float]:
    """How many requests each transaction of 4 ms carried, and how long all took.

    Each client sends its next request so long after the answer to the one before.
    """
    commits, loop = GroupCommit(), asyncio.get_running_loop()
    began = loop.time()

    async def client(file: IdleFile, pause_s: float) -> None:
        for _ in range(rounds):
            await commits.submit(cast(File, file), cast(Any, lambda batch: 0))
            await asyncio.sleep(pause_s)

    with closing(sqlite3.connect(":memory:")) as connection:
        file = IdleFile(connection, 0.004)
        async with asyncio.TaskGroup() as tasks:
            for pause_s in pauses_s:
                tasks.create_task(client(file, pause_s))
        return [len(each) for each in file.transactions], loop.time() - began


@in_virtual_time
async def test_clients_that_wait_for_answers_share_each_transaction() -> None:
    """The first one that is back waits for the others, and no longer than until the last one is back, too."""
    sizes, seconds = await clients_in_turn(5, [0.0001, 0.0005, 0.001, 0.0015])

    assert sizes == [4] * 5
    assert round(seconds, 6) == round(5 * (0.004 + 0.0015), 6)


@in_virtual_time
async def test_who_does_not_come_is_waited_for_once() -> None:
    """Two clients of which one is slow: the other one loses half a transaction's time, and nothing from then on."""
    sizes, _ = await clients_in_turn(2, [0.0, 1.0])
    assert sizes == [2, 1, 1]

    alone, seconds = await clients_in_turn(10, [0.0])
    assert (alone, round(seconds, 6)) == ([1] * 10, 0.04)


@in_virtual_time
async def test_no_request_overtakes_a_group_that_is_full() -> None:
    """Behind a transaction of nine requests one of 9 MiB waits for no others, and the nine behind it are stored behind
    it: answers to requests of one connection tell in which order these were stored."""
    commits = GroupCommit()
    large, small = Wants(9 << 20), NOTHING
    with closing(sqlite3.connect(":memory:")) as connection:
        file = IdleFile(connection, 0.004)
        for wants in ([small] * 9, [large, *[small] * 9]):
            async with asyncio.TaskGroup() as tasks:
                for each in wants:
                    request = cast(Any, lambda batch, each=each: "large" if each is large else "small")
                    tasks.create_task(commits.submit(cast(File, file), request, each))

        assert file.transactions == [["small"] * 9, ["large"], ["small"] * 9]


async def test_a_caller_that_fails_is_no_trouble_to_the_others() -> None:
    """All are told what came of their requests, in their order, and the defect is reported."""
    told: list[int] = []
    reported: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(repr(context["exception"])))
    commits = GroupCommit()

    def failing(outcome: int) -> None:
        raise ValueError(outcome)

    with closing(sqlite3.connect(":memory:")) as connection:
        file = IdleFile(connection)
        for number, done in enumerate((told.append, failing, told.append)):
            request = cast(Any, lambda batch, number=number: number)
            commits.submit_soon(cast(File, file), request, NOTHING, done)
        last = await commits.submit(cast(File, file), cast(Any, lambda batch: 3))

    assert (told, last) == ([0, 2], 3)
    assert reported == ["ValueError(1)"]
    assert file.transactions == [[0, 1, 2, 3]]


@in_virtual_time
async def test_a_request_joins_no_transaction_that_has_begun() -> None:
    """What comes while a transaction runs has the next one: it would be answered without having been stored."""
    commits = GroupCommit()
    with closing(sqlite3.connect(":memory:")) as connection:
        file = SlowFile(connection)
        async with asyncio.timeout(PATIENT_S), asyncio.TaskGroup() as tasks:
            first = tasks.create_task(commits.submit(cast(File, file), cast(Any, lambda batch: "first")))
            await file.has_run.wait()
            second = tasks.create_task(commits.submit(cast(File, file), cast(Any, lambda batch: "second")))
            await asyncio.sleep(1)
            file.may_end.set()

        assert [first.result(), second.result()] == ["first", "second"]
        assert file.transactions == [["first"], ["second"]]
