"""The notifications that an ingest server knows, where looks at them overtake each other."""

from __future__ import annotations

import asyncio
from typing import cast

from remora.model.notification import Definitions
from remora.ports.administration import Notifications
from remora.servers.ingest.matches import DefinitionLookup


class Looks:
    """A store whose looks end when a test says so, each with the definitions that the test gives it."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[asyncio.Future[Definitions]] = asyncio.Queue()
        self.lookup = DefinitionLookup(cast(Notifications, self))

    async def definitions(self) -> Definitions:
        """What the test answers."""
        answer: asyncio.Future[Definitions] = asyncio.get_running_loop().create_future()
        self.begun.put_nowait(answer)
        return await answer


async def test_a_slow_look_does_not_put_older_definitions_back() -> None:
    """A look that began earlier and ends later changes nothing, and who asked for it gets what is newer."""
    looks = Looks()
    asks = [asyncio.ensure_future(looks.lookup.get()) for _ in range(2)]
    first, second = await looks.begun.get(), await looks.begun.get()
    second.set_result(Definitions(version=2))
    await asyncio.wait(asks, return_when=asyncio.FIRST_COMPLETED)
    newer = looks.lookup.known()
    first.set_result(Definitions(version=1))

    assert newer is not None
    assert await asyncio.gather(*asks) == [newer, newer]
    assert looks.lookup.known() is newer


async def test_a_look_from_before_something_was_wrong_is_repeated() -> None:
    """Who finds that the definitions are wrong does not get them from a look that had begun before."""
    looks = Looks()
    asks = asyncio.ensure_future(looks.lookup.get())
    early = await looks.begun.get()
    looks.lookup.forget()
    early.set_result(Definitions(version=1))
    (await looks.begun.get()).set_result(Definitions(version=2))
    await asks

    assert looks.lookup._definitions.version == 2
