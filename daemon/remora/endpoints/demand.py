"""An endpoint that is made when a topic first needs it: a worker imports only clients that its topics deliver by."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

from remora.endpoints.kinds import Opening
from remora.ports.endpoint import Endpoint


class EndpointOnDemand:
    """As `EndpointSource` says. `run` is called once, and opens and closes the endpoint in its own task.

    `make` runs in a thread: it imports a client, which takes some tenths of a second of a busy processor.
    """

    def __init__(self, schemes: Iterable[str], make: Callable[[], Opening]) -> None:
        self.schemes = frozenset(schemes)
        self._make = make
        self._wanted = asyncio.Event()
        self._made: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()

    async def made(self) -> Endpoint:
        """As `EndpointSource`."""
        self._wanted.set()
        return await asyncio.shield(self._made)

    async def run(self) -> None:
        """Make the endpoint when it is wanted, and close it when this is cancelled."""
        while True:
            await self._wanted.wait()
            async with AsyncExitStack() as stack:
                try:
                    endpoint = await stack.enter_async_context(await asyncio.to_thread(self._make))
                except Exception as exc:  # such as a library that is missing by now: it costs those who wait
                    self._made.set_exception(exc)
                    self._made.exception()  # it is no news for the log where nobody waits any longer
                    self._made = asyncio.get_running_loop().create_future()
                    self._wanted.clear()
                    continue
                self._made.set_result(endpoint)
                await asyncio.Event().wait()


@asynccontextmanager
async def on_demand(sources: Iterable[EndpointOnDemand]) -> AsyncIterator[list[EndpointOnDemand]]:
    """Endpoints that can be made while the block runs; at its end all that were made are closed."""
    found, failure = list(sources), None
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each.run(), name=f"endpoint of {min(each.schemes)}") for each in found]
        try:
            yield found
        except Exception as exc:
            failure = exc  # in person: the group would wrap it
        finally:
            for task in running:
                task.cancel()
    if failure is not None:
        raise failure
