"""Kinds of endpoints: how one is made, and those that other packages offer by their metadata.

A package offers a kind with an entry point of the group GROUP: its name is the URI scheme, its object an EndpointKind.
The built-in ones cannot be replaced. What cannot be loaded costs the topics of its scheme only.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from remora.endpoints.arguments import Argument
from remora.ports.endpoint import Endpoint

if TYPE_CHECKING:
    from remora.config.settings import Settings
    from remora.metrics import Telemetry


GROUP = "remora.endpoints"


class Opening(Endpoint, Protocol):
    """An endpoint with the connections that it makes between entering and leaving it."""

    async def __aenter__(self) -> Self:
        """Make it ready to open routes."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> bool | None:
        """Close every connection within a few seconds."""
        ...


class EndpointKind(NamedTuple):
    """How an endpoint is made, the arguments that its topics may have beside those of all kinds, and the module that
    tries the way to it step by step, if one does. `make` runs in any thread, with an event loop or without."""

    make: Callable[[Settings, Telemetry | None], Opening]
    arguments: Sequence[Argument[object]] = ()
    probe: str = ""


@dataclass(frozen=True, slots=True)
class OfferedKinds:
    """The kinds of other packages by their schemes, and why some cannot be used."""

    kinds: Mapping[str, EndpointKind] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)


def offered_kinds(but: Collection[str]) -> OfferedKinds:
    """What the packages of this environment offer, but these schemes; of several for a scheme none is taken."""
    # Whether the metadata of any package on Python's path name the group.
    offers = (file for place in sys.path for file in Path(place or ".").glob("*.dist-info/entry_points.txt"))
    if not any(_names_group(each) for each in offers):
        return OfferedKinds()
    from importlib.metadata import entry_points  # a large module, which few hosts need

    kinds: dict[str, EndpointKind] = {}
    failures: dict[str, str] = {}
    for each in sorted(entry_points(group=GROUP), key=str):
        scheme = each.name.lower()
        if scheme in but or scheme in failures:
            continue
        if scheme in kinds:
            del kinds[scheme]
            failures[scheme] = f"several packages offer {scheme}:// endpoints"
            continue
        try:
            found = each.load()
            if not isinstance(found, EndpointKind):
                raise TypeError(f"{each.value} is no EndpointKind")
            kinds[scheme] = found
        except Exception as exc:  # of a package that is not ours
            whose = each.dist.name if each.dist is not None else each.value
            failures[scheme] = f"the package {whose} offers {scheme}:// endpoints and cannot be loaded: {exc!r}"
    return OfferedKinds(kinds, failures)


def _names_group(file: Path) -> bool:
    try:
        return f"[{GROUP}]".encode() in file.read_bytes()
    except OSError:  # of a package that is being removed
        return False


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
