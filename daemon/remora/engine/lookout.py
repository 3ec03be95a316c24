"""Looks at destinations that shards wait for after a failure, so that they are used soon after they answer again.

The pause before an attempt grows with an outage, and so would the time from its end to the first entry that leaves. A
look costs a connection and a question, whatever number of shards waits, and holds no entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from remora.engine.destination import Destination
from remora.metrics import Telemetry
from remora.policy.retry import look_every_s


class Lookout:
    """Looks for a worker. `destinations` gives all that it has now."""

    def __init__(self, destinations: Callable[[], Iterable[Destination]], telemetry: Telemetry) -> None:
        self._destinations = destinations
        self._telemetry = telemetry
        self._wanted = asyncio.Event()
        self._looked_at: set[Destination] = set()

    def want(self) -> None:
        """A shard has begun to wait for a destination."""
        self._wanted.set()

    async def run(self) -> None:
        """Look at each destination that is waited for, at once and then again and again, until cancelled.

        A look that hangs holds up no other one.
        """
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._wanted.wait()
                wanted = [each for each in self._destinations() if each.is_wanted]
                if not wanted:
                    self._wanted.clear()
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
