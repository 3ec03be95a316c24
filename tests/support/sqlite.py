"""Fixtures of an embedded store of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remora.config import SqliteSettings
from remora.model.shard import Shard
from remora.storage.sqlite import SqliteStore


@pytest.fixture
def configured(tmp_path: Path) -> SqliteSettings:
    """A directory of one file, which holds all queues."""
    return SqliteSettings(directory=str(tmp_path / "store"), files=1)


@pytest.fixture
async def store(configured: SqliteSettings) -> AsyncIterator[SqliteStore]:
    """An open store."""
    async with SqliteStore(configured) as opened:
        yield opened


async def append(store: SqliteStore, shard: Shard, *payloads: bytes) -> None:
    """Commit entries to a single queue, as a gateway does."""
    reservation = await store.two_phase.reserve(shard, len(payloads), sum(map(len, payloads)))
    await store.two_phase.commit(shard, reservation, payloads)
