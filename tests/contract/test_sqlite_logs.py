"""Shared logs in the embedded store: under which lock an epoch begins and a bound moves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remora.config import SqliteSettings
from remora.model.errors import OwnershipLost
from remora.model.log import MOST_POSITION, Cell, LogKind, LogName, StaleEpoch
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.logs import SqliteLogs

IDS = LogName(b"pool", b"ids")
LEASE_S = 3600.0

pytestmark = pytest.mark.guarantee("positions-of-a-log")


@pytest.fixture
async def logs(tmp_path: Path) -> AsyncIterator[SqliteLogs]:
    """A store with a counter."""
    async with SqliteStore(SqliteSettings(directory=str(tmp_path / "store"), files=1)) as store:
        await store.logs.create(IDS, LogKind.COUNTER, 1)
        yield store.logs


async def test_a_lease_that_has_ended_is_no_lock(logs: SqliteLogs) -> None:
    """Under it no epoch begins, no bound moves, and it is not renewed, though nobody else has taken the lock."""
    lock = await logs.acquire(IDS, "server", LEASE_S)
    epoch = (await logs.register(lock, "unix:/s", 100)).epoch
    await logs.acquire(IDS, "server", 0.0)

    for act in (logs.register(lock, "unix:/s", 100), logs.raise_bound(lock, epoch, 500)):
        with pytest.raises(OwnershipLost):
            await act
    assert isinstance((await logs.renew_all([lock], LEASE_S))[0], OwnershipLost)
    assert (await logs.figures(IDS)).tail == 100


async def test_a_lock_of_a_log_that_was_made_anew(logs: SqliteLogs) -> None:
    """A lock of the former log counts for nothing in the new one, also where its owner has the new one's lock, too."""
    former = await logs.acquire(IDS, "server", LEASE_S)
    await logs.register(former, "unix:/s", 100)
    await logs.seal(IDS)
    await logs.remove(IDS)
    await logs.create(IDS, LogKind.COUNTER, 1)
    lock = await logs.acquire(IDS, "server", LEASE_S)

    with pytest.raises(OwnershipLost):
        await logs.register(former, "unix:/s", 100)
    assert isinstance((await logs.renew_all([former], LEASE_S))[0], OwnershipLost)
    await logs.release(former)

    assert (await logs.register(lock, "unix:/s", 100)).position == 0


async def test_a_position_of_a_log_that_was_removed_is_of_none(logs: SqliteLogs) -> None:
    """Who knows one writes nothing to a log that was made again under the name, whether it is served already or not:
    all epochs of that one lie above."""
    entries = LogName(b"pool", b"entries")
    await logs.create(entries, LogKind.LOG, 1)
    lock = await logs.acquire(entries, "server", LEASE_S)
    epoch = (await logs.register(lock, "unix:/s", 100)).epoch
    await logs.release(lock)
    await logs.remove(entries)
    await logs.create(entries, LogKind.LOG, 1)

    with pytest.raises(StaleEpoch):
        await logs.append(entries, epoch, 2, b"late")
    lock = await logs.acquire(entries, "server", LEASE_S)
    assert (await logs.register(lock, "unix:/s", 100)).epoch > epoch
    with pytest.raises(StaleEpoch):
        await logs.append(entries, epoch, 2, b"late")

    assert (await logs.figures(entries)).tail == 0


async def test_positions_that_no_log_has(logs: SqliteLogs) -> None:
    """A reader may ask for any number: nothing is written behind the last position that there can be, and a log that is
    trimmed up to there is trimmed up to its last one."""
    entries = LogName(b"pool", b"entries")
    await logs.create(entries, LogKind.LOG, 1)
    epoch = (await logs.register(await logs.acquire(entries, "server", LEASE_S), "unix:/s", 100)).epoch
    await logs.append(entries, epoch, 1, b"a")

    assert await logs.read(entries, MOST_POSITION + 1) == (Cell.UNWRITTEN, b"")
    await logs.trim(entries, MOST_POSITION + 1)
    assert (await logs.figures(entries)).trimmed == MOST_POSITION
