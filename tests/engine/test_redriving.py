"""Re-driving goes at the pace that was asked for, in order, and ends at the first error."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from devkit.clock import in_virtual_time
from devkit.entries.entries import raw_entry
from engine.fakes import FakeStore
from remora.engine.redriving import MOST_LETTERS, Place, Portion, carry_out
from remora.model.errors import QueueFull
from remora.model.record import DeadLetter, Redrive
from remora.model.shard import Origin, Shard
from remora.model.topic import Topic


class Taking(FakeStore):
    """Notes when it was given what; full after this many."""

    def __init__(self, room: int = 1_000_000) -> None:
        super().__init__()
        self.room = room
        self.taken: list[tuple[float, DeadLetter]] = []

    async def redrive(self, shard: Shard, topic: Topic | None, again: Sequence[Redrive]) -> int:
        if len(self.taken) + len(again) > self.room:
            raise QueueFull("no room")
        now = asyncio.get_running_loop().time()
        self.taken += [(now, each.letter) for each in again]
        return len(again)


def portions(*counts: int) -> list[Portion]:
    numbers = iter(range(sum(counts)))

    def letter(number: int) -> DeadLetter:
        return DeadLetter("t", "i", f"0/{number}", "0/0", "expired", "", 0, 0, 0, raw_entry("k", number))

    place = Place(Shard("t", Origin.REMORA), None)
    return [Portion(place, [letter(next(numbers)) for _ in range(count)]) for count in counts]


@in_virtual_time
async def test_rate() -> None:
    """At 20 a second no letter goes before its time, save that those of one second go together."""
    store = Taking()

    done = [count async for count in carry_out(store, portions(130, 70), rate=20)]

    assert sum(done) == 200
    times = [at for at, _ in store.taken]
    assert all(at >= (number - 19) / 20 - 1e-6 for number, at in enumerate(times))
    assert [each.position for _, each in store.taken] == [f"0/{i}" for i in range(200)]


@in_virtual_time
async def test_without_a_rate() -> None:
    """At once, in portions of a bounded size."""
    store = Taking()

    done = [count async for count in carry_out(store, portions(200), rate=0)]

    assert max(done) == MOST_LETTERS
    assert asyncio.get_running_loop().time() == 0


@in_virtual_time
async def test_an_error_ends_it() -> None:
    """Nothing that follows is re-driven when something could not be, so that nothing overtakes."""
    store = Taking(room=100)

    with pytest.raises(QueueFull):
        async for _ in carry_out(store, portions(200, 5), rate=0):
            pass

    assert [each.position for _, each in store.taken] == [f"0/{i}" for i in range(MOST_LETTERS)]
