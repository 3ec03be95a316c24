"""Endpoints that are made when a topic first needs them."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any, Self, cast

import pytest

from remora.endpoints.demand import EndpointOnDemand, on_demand
from remora.endpoints.kinds import Opening
from remora.model.errors import StoreUnavailable


class Noted:
    """An endpoint that notes who opens and closes it."""

    def __init__(self, fails: bool = False) -> None:
        self._fails = fails
        self.opened_in: asyncio.Task[Any] | None = None
        self.closed_in: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> Self:
        await asyncio.sleep(0)
        if self._fails:
            raise OSError("it cannot be opened")
        self.opened_in = asyncio.current_task()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.closed_in = asyncio.current_task()


async def made(source: EndpointOnDemand) -> object:
    """What it has made."""
    return await source.made()


class Kind:
    """Makes endpoints in turn; what is an exception is raised."""

    def __init__(self, *made: Noted | Exception) -> None:
        self._made = list(made)
        self.calls = 0

    def __call__(self) -> Opening:
        self.calls += 1
        made = self._made.pop(0)
        if isinstance(made, Exception):
            raise made
        return cast("Opening", made)


async def test_an_endpoint_is_made_once_and_only_if_a_topic_needs_it() -> None:
    """Two who need it at the same time get the same one, the other kind is never made, and who opened it closes it."""
    endpoint, unused = Noted(), Kind()
    used = Kind(endpoint)
    async with on_demand([EndpointOnDemand({"a", "b"}, used), EndpointOnDemand({"c"}, unused)]) as (first, second):
        assert (set(first.schemes), set(second.schemes)) == ({"a", "b"}, {"c"})
        await asyncio.sleep(0)
        assert used.calls == 0

        assert set(await asyncio.gather(made(first), made(first))) == {endpoint}
        assert await made(first) is endpoint
        assert endpoint.closed_in is None

    assert (used.calls, unused.calls) == (1, 0)
    assert endpoint.opened_in is endpoint.closed_in is not None


async def test_nothing_waits_while_an_endpoint_is_made() -> None:
    """The event loop goes on while a client is imported."""
    loop, endpoint = asyncio.get_running_loop(), Noted()
    begun, goes_on = asyncio.Event(), threading.Event()

    def make() -> Opening:
        loop.call_soon_threadsafe(begun.set)
        assert goes_on.wait(10.0)
        return cast("Opening", endpoint)

    async with on_demand([EndpointOnDemand({"a"}, make)]) as (source,):
        asked = asyncio.ensure_future(made(source))
        await begun.wait()
        goes_on.set()
        assert await asked is endpoint


@pytest.mark.parametrize("failure", [ImportError("no module named aiokafka"), Noted(fails=True)])
async def test_an_endpoint_that_cannot_be_made_costs_those_who_wait(failure: Exception | Noted) -> None:
    """They get the failure, nobody else does, and the next one who needs it has it tried again."""
    endpoint = Noted()
    async with on_demand([EndpointOnDemand({"a"}, Kind(failure, endpoint))]) as (source,):
        failed = await asyncio.gather(source.made(), source.made(), return_exceptions=True)
        assert [type(each) for each in failed] == [type(failure) if isinstance(failure, Exception) else OSError] * 2

        assert await made(source) is endpoint


async def made_and_failed(endpoint: Noted) -> None:
    """A worker whose store fails when its endpoint was made."""
    async with on_demand([EndpointOnDemand({"a"}, Kind(endpoint))]) as (source,):
        await source.made()
        raise StoreUnavailable("away")


async def test_what_fails_beside_endpoints_fails_as_itself() -> None:
    """An error of the block comes out in person, and what was made is closed before."""
    endpoint = Noted()
    with pytest.raises(StoreUnavailable):
        await made_and_failed(endpoint)

    assert endpoint.closed_in is not None


async def test_who_gives_up_waiting_takes_the_endpoint_from_nobody() -> None:
    """A cancelled wait does not cancel the making of it."""
    endpoint = Noted()
    async with on_demand([EndpointOnDemand({"a"}, Kind(endpoint))]) as (source,):
        hurried = asyncio.ensure_future(source.made())
        await asyncio.sleep(0)
        hurried.cancel()

        assert await made(source) is endpoint
        assert hurried.cancelled()
