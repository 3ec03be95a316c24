"""Kinds of endpoints that other packages offer."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import pytest

from remora import endpoint_kinds
from remora.config import Settings
from remora.endpoints.kinds import EndpointOnDemand, OfferedKinds, Opening, offered_kinds, on_demand
from remora.model.errors import EndpointMisconfigured, StoreUnavailable
from remora.model.topic import Target
from support.file_sink import ARGUMENTS, FileEndpoint
from support.offered import offer


def test_a_kind_is_found_by_its_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is installed offers a kind by an entry point, with its arguments; remora's own stay."""
    sink = "support.file_sink:KIND"
    monkeypatch.syspath_prepend(offer(tmp_path, {"File": sink, "kafka": sink}))

    found = offered_kinds(endpoint_kinds.ENDPOINTS)

    assert found.failures == {}
    assert list(found.kinds) == ["file"]
    assert found.kinds["file"].arguments == ARGUMENTS
    assert isinstance(found.kinds["file"].make(Settings(), None), FileEndpoint)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("no.such.module:KIND", "cannot be loaded: ModuleNotFoundError"),
        ("support.file_sink:NOTHING", "cannot be loaded: AttributeError"),
        ("support.file_sink:ARGUMENTS", "is no EndpointKind"),
    ],
)
def test_a_package_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, why: str) -> None:
    """It costs the topics of its scheme only, whose reason names the package."""
    monkeypatch.syspath_prepend(offer(tmp_path, {"file": what, "good": "support.file_sink:KIND"}))
    found = offered_kinds(endpoint_kinds.ENDPOINTS)
    monkeypatch.setattr(endpoint_kinds, "OFFERED", found)

    assert list(found.kinds) == ["good"]
    with pytest.raises(EndpointMisconfigured) as caught:
        endpoint_kinds.check_target(Target("file:///x", "", "t"), Settings())
    assert "the package remora-sink offers file:// endpoints" in str(caught.value)
    assert why in str(caught.value)


def test_two_packages_for_a_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is taken: which it would be depends on nothing that an operator sees."""
    for name in ("one", "two"):
        monkeypatch.syspath_prepend(offer(tmp_path / name, {"file": "support.file_sink:KIND"}, name))

    assert offered_kinds(endpoint_kinds.ENDPOINTS) == OfferedKinds(
        {}, {"file": "several packages offer file:// endpoints"}
    )


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
