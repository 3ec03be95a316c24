"""The engine's tests fail where its loop would block."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster, blockbuster_ctx

from engine.runs import START_S
from support.stores import unhurried_stores

__all__ = ["unhurried_stores"]


@pytest.fixture(autouse=True)
def _nothing_blocks_the_loop() -> Iterator[BlockBuster]:
    """What the engine calls in its event loop raises BlockingError if it blocks: files, sockets, locks, sleeps."""
    with blockbuster_ctx("remora.engine") as detector:
        for name, function in detector.functions.items():
            if name.startswith(
                "sqlite3."
            ):  # the embedded store reads in the loop on purpose; storage/sqlite/files/file.py
                function.deactivate()
        yield detector


@pytest.fixture
def wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of day goes with the loop's clock."""

    def seconds() -> float:
        try:
            return START_S + asyncio.get_running_loop().time()
        except RuntimeError:  # before and after the loop
            return START_S

    monkeypatch.setattr(time, "time", seconds)
    monkeypatch.setattr(time, "time_ns", lambda: int(seconds() * 1e9))
