"""The detector of blocking calls, which all tests of the engine run under."""

from __future__ import annotations

import os

import pytest
from blockbuster import BlockingError

from devkit.clock import in_virtual_time
from engine.fakes import FakeStore
from remora.engine.catalogue import Catalogue
from remora.metrics import Telemetry
from remora.model.shard import Shard


class BlockingStore(FakeStore):
    """A store that looks into a file while the engine waits for its answer."""

    async def shards(self) -> list[Shard]:
        os.stat("/etc")
        return []


@in_virtual_time
async def test_a_call_that_blocks_the_loop_is_found() -> None:
    """What the engine calls in its loop, and what blocks there, fails the test that comes by."""
    catalogue = Catalogue(BlockingStore(), Telemetry(), 1.0)

    with pytest.raises(BlockingError, match=r"os\.stat"):
        await catalogue.run()
