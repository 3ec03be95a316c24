"""The numbers that a server hands out around a SIGKILL: how many, those that came twice, and those out of order.

`CLIENTS` ask for one number after the other. When half of the numbers have come the server gets SIGKILL, and is started
again in its directory. A request that gets no answer is asked again, and its number may be missing: that is no fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field

from devkit.bench.sigkill import AGAIN_S, over_a_sigkill

CLIENTS = 32
NUMBERS = 20_000

Ask = Callable[[], Awaitable[int | None]]
"""Asks for a number; None where no answer came."""


@dataclass
class HandedOut:
    """Numbers as clients got them. `out_of_order` are new ones that are below one which had come before they were asked
    for."""

    numbers: int = 0
    copies: int = 0
    out_of_order: int = 0
    highest: int = -1
    _seen: set[int] = field(default_factory=set)

    def add(self, number: int, highest_before: int) -> None:
        """A number that came, and the highest that had come when it was asked for."""
        self.numbers += 1
        if number in self._seen:
            self.copies += 1
        else:
            self.out_of_order += number < highest_before
        self._seen.add(number)
        self.highest = max(self.highest, number)

    @property
    def figures(self) -> dict[str, int]:
        """The counts, by name, as the report has them."""
        return {"numbers": self.numbers, "copies": self.copies, "out_of_order": self.out_of_order}


def killed(
    running: Callable[[], AbstractContextManager[Callable[[], object]]],
    client: Callable[[], AbstractAsyncContextManager[Ask]],
) -> HandedOut:
    """One turn. `running` gives what kills the server, `client` what asks it for a number."""
    found = HandedOut()

    async def asked(half: Callable[[], None]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CLIENTS):
                tasks.create_task(ask_all(half))

    async def ask_all(half: Callable[[], None]) -> None:
        async with client() as ask:
            while found.numbers < NUMBERS:
                before = found.highest
                number = await ask()
                if number is None:
                    await asyncio.sleep(AGAIN_S)
                    continue
                found.add(number, before)
                if found.numbers == NUMBERS // 2:
                    half()

    return over_a_sigkill(running, asked, lambda: found)
