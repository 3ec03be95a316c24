"""Work in bounded parts: calls side by side, and very many items, some in each turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
E = TypeVar("E", bound=Exception)

AT_ONCE = 32

PORTION = 250
"""Items that are gone through in one turn of the event loop. Each takes 5 to 50 microseconds."""


async def each_of(
    items: Collection[T],
    call: Callable[[T], Awaitable[R]],
    errors: type[E] | tuple[type[E], ...],
    *,
    at_once: int = AT_ONCE,
) -> list[R | E]:
    """The answer to the call for each item, in order, or the error of these kinds that it raised.

    The calls begin in the items' order. An error of another kind is raised at once.
    """
    todo, found = iter(enumerate(items)), dict[int, R | E]()

    async def work() -> None:
        for place, item in todo:
            try:
                found[place] = await call(item)
            except errors as exc:
                found[place] = exc

    await asyncio.gather(*(work() for _ in range(min(at_once, len(items)))))
    return [found[place] for place in range(len(items))]


async def all_of(items: Collection[T], call: Callable[[T], Awaitable[R]], *, at_once: int = AT_ONCE) -> list[R]:
    """The answers for all items, in order. Raises the first error after all items were tried."""
    answers: list[R] = []
    for answer in await each_of(items, call, Exception, at_once=at_once):
        if isinstance(answer, Exception):
            raise answer
        answers.append(answer)
    return answers


async def portions(every: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """Some of the items after the other. Heartbeats, renewals and all else have their turn behind each portion.

    Anything may have changed by the next one. So decide about a portion by what is known when its turn has come, and
    act on it in the same turn.
    """
    for first in range(0, len(every), PORTION):
        yield every[first : first + PORTION]
        await asyncio.sleep(0)
