"""What the benchmarks against other servers make of a SIGKILL in the middle."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from devkit.bench.against_redis_killed import HandedOut
from devkit.bench.sigkill import over_a_sigkill


@pytest.mark.parametrize(
    ("came", "copies", "out_of_order"),
    [
        ([(1, -1), (2, 1), (9, 2)], 0, 0),  # what a restart skips is no fault
        ([(1, -1), (2, 1), (1, 2), (2, 2)], 2, 0),  # a copy counts once, as a copy
        ([(2, -1), (1, -1)], 0, 0),  # both were asked for before either came
        ([(5, -1), (3, 5)], 0, 1),
    ],
)
def test_a_number_is_judged_by_those_that_had_come_when_it_was_asked_for(
    came: list[tuple[int, int]], copies: int, out_of_order: int
) -> None:
    """One that came before is a copy, and a new one below those is out of order."""
    found = HandedOut()
    for number, highest_before in came:
        found.add(number, highest_before)

    assert (found.numbers, found.copies, found.out_of_order) == (len(came), copies, out_of_order)


def test_a_server_is_killed_when_the_clients_say_so_and_started_again() -> None:
    """What is looked at is the second server, after all clients have ended."""
    happened: list[str] = []
    again = threading.Event()

    @contextmanager
    def running() -> Iterator[Callable[[], None]]:
        happened.append("started")
        if happened.count("started") == 2:
            again.set()
        yield lambda: happened.append("killed")

    async def clients(kill: Callable[[], None]) -> None:
        kill()
        await asyncio.to_thread(again.wait)
        happened.append("clients ended")

    assert over_a_sigkill(running, clients, lambda: len(happened)) == 4
    assert happened == ["started", "killed", "started", "clients ended"]


def test_clients_that_fail_before_the_sigkill_end_the_turn() -> None:
    """Their error is raised, and nobody waits for a kill that is never due."""

    @contextmanager
    def running() -> Iterator[Callable[[], None]]:
        yield lambda: None

    async def clients(_: Callable[[], None]) -> None:
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        over_a_sigkill(running, clients, lambda: None)
