"""What topics share is opened once for all who wait, replaced, and closed when it is idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from remora.endpoints.shared import Shared, sweep
from remora.endpoints.tasks import CrashLog, Tasks
from remora.model.errors import EndpointMisconfigured, EndpointUnavailable


class Line:
    """A connection that is there."""

    def __init__(self) -> None:
        self.is_usable = True
        self.used_at: float | None = 0.0


class Lines:
    """Opens lines when it is let, and remembers which are closed, with their patience."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.opened: list[Line] = []
        self.closed: list[tuple[Line, float]] = []

    async def open(self) -> Line:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.opened.append(Line())
        return self.opened[-1]

    async def close(self, line: Line, patience_s: float) -> None:
        self.closed.append((line, patience_s))


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
async def shared(lines: Lines) -> AsyncIterator[Shared[Line]]:
    """One whose line says when it was used."""
    async with Tasks(CrashLog()) as tasks:
        made = Shared(
            "host:1", tasks, lines.open, lines.close,
            is_usable=lambda line: line.is_usable, used_at=lambda line, _: line.used_at,
        )  # fmt: skip
        yield made
        made.close()


async def settled() -> None:
    """Tasks that need not wait have run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_all_who_wait_have_the_same(lines: Lines, shared: Shared[Line]) -> None:
    """Several callers at once, one of which is cancelled, wait for one opening, and a later one finds it open."""
    lines.gate.clear()
    waiting = [asyncio.ensure_future(shared.ready()) for _ in range(3)]
    await settled()
    waiting[0].cancel()
    lines.gate.set()

    found = [await each for each in waiting[1:]] + [await shared.ready()]

    assert found == lines.opened * 3
    assert waiting[0].cancelled()


@pytest.mark.parametrize("error", [EndpointUnavailable("host:1: refused"), EndpointMisconfigured("no such user")])
async def test_a_failure_is_told_to_each_and_not_kept(
    lines: Lines, shared: Shared[Line], error: EndpointUnavailable | EndpointMisconfigured
) -> None:
    """Each who waited gets an error of its own, with the same words; the next one has another opened."""
    lines.gate.clear()
    lines.error = error
    waiting = [asyncio.ensure_future(shared.ready()) for _ in range(2)]
    await settled()
    lines.gate.set()

    found = await asyncio.gather(*waiting, return_exceptions=True)
    lines.error = None

    assert [(type(each), str(each)) for each in found] == [(type(error), str(error))] * 2
    assert found[0] is not found[1]
    assert await shared.ready() is lines.opened[0]


async def test_a_defect_is_told_to_each(lines: Lines, shared: Shared[Line]) -> None:
    """What no endpoint's error is names what could not be opened, and has its cause."""
    lines.error = ZeroDivisionError()

    with pytest.raises(RuntimeError, match="host:1 could not be opened") as caught:
        await shared.ready()

    assert caught.value.__cause__ is lines.error


async def test_what_is_of_no_use_is_replaced(lines: Lines, shared: Shared[Line]) -> None:
    """One that is not usable is not given out again, and left to its owner; one that is retired is closed."""
    first = await shared.ready()
    first.is_usable = False
    second = await shared.ready()
    shared.close_current(2.5)
    third = await shared.ready()
    await settled()

    assert [first, second, third] == lines.opened
    assert lines.closed == [(second, 2.5)]


async def test_what_is_idle_is_closed(lines: Lines, shared: Shared[Line]) -> None:
    """It stays while it is opened, used, or was used since the time that counts; then it is closed, once."""
    lines.gate.clear()
    waiting = asyncio.ensure_future(shared.ready())
    await settled()
    soon = asyncio.get_running_loop().time() + 1
    assert not shared.close_idle(soon)
    lines.gate.set()
    line = await waiting

    with shared.in_use():
        assert not shared.close_idle(soon)
    for used_at in (None, soon + 1):
        line.used_at = used_at
        assert not shared.close_idle(soon)
    line.used_at = soon
    assert shared.close_idle(soon)
    assert shared.close_idle(soon)
    await settled()

    assert lines.closed == [(line, 0.0)]
    assert await shared.ready() is lines.opened[1]


async def test_what_is_closed_opens_nothing(lines: Lines, shared: Shared[Line]) -> None:
    """Who waits when it is closed, and who comes later, hears that the endpoint is closed."""
    lines.gate.clear()
    waiting = asyncio.ensure_future(shared.ready())
    await settled()
    shared.close()

    for each in (waiting, shared.ready()):
        with pytest.raises(EndpointUnavailable, match="host:1: the endpoint is closed"):
            await each
    assert lines.opened == []


async def test_the_sweep_says_since_when() -> None:
    """The sweep gives the time before which use does not count, again and again until it is cancelled."""
    asked: list[float] = []
    enough = asyncio.Event()

    def close_idle(before: float) -> None:
        asked.append(asyncio.get_running_loop().time() - before)
        if len(asked) == 3:
            enough.set()

    sweeping = asyncio.ensure_future(sweep(0.004, close_idle))
    await enough.wait()
    sweeping.cancel()

    assert asked == pytest.approx([0.004] * len(asked), abs=0.003)
