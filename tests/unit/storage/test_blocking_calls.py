"""Calls that may block run beside the loop and never block it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from remora.storage.rados.cluster.session import run_blocking


async def test_result_and_error_come_back() -> None:
    """The caller gets what the call returns or raises."""

    def fail() -> None:
        raise LookupError("why")

    assert await run_blocking(lambda: 7, "seven") == 7
    with pytest.raises(LookupError, match="why"):
        await run_blocking(fail, "fails")


async def test_cancelled_caller_waits_for_nothing() -> None:
    """Cancelling returns at once; what the call makes later is given back."""
    going, discarded = threading.Event(), threading.Event()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await run_blocking(lambda: going.wait(60), "slow", discard=lambda made: discarded.set() if made else None)
    going.set()

    assert await asyncio.to_thread(discarded.wait, 60)


def test_loop_that_has_closed() -> None:
    """A call that outlives its loop gives back what it made."""
    going, discarded = threading.Event(), threading.Event()

    async def leave() -> None:
        call = asyncio.ensure_future(run_blocking(lambda: going.wait(60), "slow", discard=lambda _: discarded.set()))
        await asyncio.sleep(0)
        call.cancel()

    asyncio.run(leave())
    going.set()

    assert discarded.wait(60)


async def test_threads_are_daemons() -> None:
    """A call that hangs for ever does not keep the process from ending."""
    assert await run_blocking(lambda: threading.current_thread().daemon, "daemon")
