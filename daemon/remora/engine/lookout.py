"""Looks at destinations that shards wait for after a failure, so that they are used soon after they answer again.

The pause before an attempt grows with an outage, and so would the time from its end to the first entry that leaves. A
look costs a connection and a question, whatever number of shards waits, and holds no entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from remora.engine.destination import Destination
from remora.metrics import Telemetry
from remora.policy.retry import look_every_s


class Lookout:
    """Looks for a worker, in a task that lives while shards wait. `destinations` gives all that it has now."""

    def __init__(self, destinations: Callable[[], Iterable[Destination]], telemetry: Telemetry) -> None:
        self._destinations = destinations
        self._telemetry = telemetry
        self._tasks: asyncio.TaskGroup | None = None
        self._looking: asyncio.Task[None] | None = None
        self._looked_at: set[Destination] = set()

    @contextmanager
    def within(self, tasks: asyncio.TaskGroup) -> Iterator[None]:
        """Look while the block runs, in a task of this group."""
        self._tasks = tasks
        try:
            yield
        finally:
            self._tasks = None
            if self._looking is not None:
                self._looking.cancel()

    def want(self) -> None:
        """A shard has begun to wait for a destination."""
        if self._tasks is not None and (self._looking is None or self._looking.done()):
            self._looking = self._tasks.create_task(self._guarded(), name="lookout")

    async def _guarded(self) -> None:
        """A defect costs the looks until a shard begins to wait once more: pauses end by themselves."""
        try:
            await self._look_on()
        except Exception:
            self._telemetry.crashed("looking at destinations")
            self._looked_at.clear()

    async def _look_on(self) -> None:
        """Look at each destination that is waited for, at once and then again and again, as long as one is.

        A look that hangs holds up no other one.
        """
        async with asyncio.TaskGroup() as tasks:
            while (wanted := [each for each in self._destinations() if each.is_wanted]) or self._looked_at:
                for each in wanted:
                    if each not in self._looked_at:
                        self._looked_at.add(each)
                        tasks.create_task(self._look(each), name="look at a destination")
                await asyncio.sleep(look_every_s(len(wanted)))

    async def _look(self, destination: Destination) -> None:
        try:
            await destination.look()
        except Exception:  # a defect in a look costs the look: pauses end by themselves
            self._telemetry.crashed("looking at a destination")
        finally:
            self._looked_at.discard(destination)
