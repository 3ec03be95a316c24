"""Calls side by side: their answers and errors in order, and never more of them than are allowed."""

from __future__ import annotations

import asyncio

import pytest

from remora.bounded import PORTION, all_of, each_of, portions


class Counted:
    """A call that waits twice for its turn, counts how many run, and fails for some items."""

    def __init__(self, failures: dict[int, Exception] | None = None) -> None:
        self.failures = failures or {}
        self.running = self.most = 0
        self.tried: list[int] = []

    async def __call__(self, item: int) -> str:
        self.tried.append(item)
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(2 + item % 3):
            await asyncio.sleep(0)
        self.running -= 1
        if item in self.failures:
            raise self.failures[item]
        return f"answer {item}"


@pytest.mark.parametrize(("items", "at_once", "most"), [(0, 4, 0), (3, 4, 3), (100, 4, 4), (5, 1, 1)])
async def test_as_many_calls_run_as_are_allowed(items: int, at_once: int, most: int) -> None:
    """Never more than `at_once` run, begun in order; the answers are in the order of the items."""
    call = Counted()

    answers = await each_of(range(items), call, ValueError, at_once=at_once)

    assert answers == [f"answer {item}" for item in range(items)]
    assert call.tried == list(range(items))
    assert call.most == most


async def test_an_error_stands_in_the_place_of_its_answer() -> None:
    """An error of the kinds that are asked for keeps no other call from its answer."""
    failures: dict[int, Exception] = {1: ValueError("one"), 4: KeyError("four")}

    answers = await each_of(range(6), Counted(failures), (ValueError, KeyError), at_once=2)

    assert answers == ["answer 0", failures[1], "answer 2", "answer 3", failures[4], "answer 5"]


async def test_an_error_of_another_kind_is_raised() -> None:
    """It is no answer."""
    with pytest.raises(KeyError, match="one"):
        await each_of(range(6), Counted({1: KeyError("one")}), ValueError, at_once=2)


async def test_the_first_error_is_raised_when_all_were_tried() -> None:
    """Of several errors the first in the order of the items is raised, and no item is left out for one."""
    call = Counted({2: ValueError("two"), 3: KeyError("three")})

    with pytest.raises(ValueError, match="two"):
        await all_of(range(6), call, at_once=3)

    assert sorted(call.tried) == list(range(6))


@pytest.mark.parametrize("count", [0, 1, PORTION, PORTION + 1, 3 * PORTION])
async def test_others_have_their_turn_behind_each_portion(count: int) -> None:
    """All items come, in order and a bounded number at a time; what waits for its turn has it behind each portion."""
    seen: list[int] = []
    turns: list[int] = []

    async for some in portions(range(count)):
        seen += some
        assert len(some) <= PORTION
        asyncio.get_running_loop().call_soon(turns.append, len(seen))

    assert seen == list(range(count))
    assert turns == [min(count, first + PORTION) for first in range(0, count, PORTION)]
