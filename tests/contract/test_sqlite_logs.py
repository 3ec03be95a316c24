"""Shared logs of the embedded store: epochs, seals, write-once positions, bounds of counters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from remora.config import SqliteSettings
from remora.model.errors import OwnershipLost
from remora.model.log import (
    MOST_POSITION,
    Cell,
    LogKind,
    LogLocked,
    LogName,
    LogRefused,
    LogUnknown,
    PositionTaken,
    PositionTrimmed,
    StaleEpoch,
)
from remora.ports.log import Logs
from remora.storage.sqlite import SqliteStore

LOG, COUNTER = LogName(b"pool", b"log"), LogName(b"pool", b"counter")
LEASE_S, REACH = 90.0, 1000


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[list[Logs]]:
    """The logs of three stores on one directory, with a log and a counter in it."""
    async with AsyncExitStack() as stack:
        settings = SqliteSettings(directory=str(tmp_path / "store"), files=2)
        made = [await stack.enter_async_context(SqliteStore(settings)) for _ in range(3)]
        await made[0].logs.create(LOG, LogKind.LOG, 8)
        await made[0].logs.create(COUNTER, LogKind.COUNTER, 1)
        yield [each.logs for each in made]


async def test_epochs_only_grow(stores: list[Logs]) -> None:
    """Each registration has the next epoch, whoever makes it, and the projection says who."""
    for number, logs in enumerate(stores, 1):
        lock = await logs.acquire(LOG, f"o{number}", LEASE_S)
        assert (await logs.register(lock, f"a{number}", REACH)).epoch == number
        found = await stores[0].projection(LOG)
        assert (found.epoch, found.owner, found.address) == (number, f"o{number}", f"a{number}")
        await logs.release(lock)


async def test_racing_registrations_never_share_an_epoch(stores: list[Logs]) -> None:
    """Of three servers that try again and again at once, each registration has an epoch of its own."""
    epochs: list[int] = []

    async def race(logs: Logs, owner: str) -> None:
        while len(epochs) < 30:
            try:
                lock = await logs.acquire(LOG, owner, LEASE_S)
            except LogLocked:
                await asyncio.sleep(0)
                continue
            epochs.append((await logs.register(lock, "", REACH)).epoch)
            await logs.release(lock)

    await asyncio.gather(*(race(logs, f"o{i}") for i, logs in enumerate(stores)))

    assert len(set(epochs)) == len(epochs)


async def test_a_lock_keeps_other_servers_out(stores: list[Logs]) -> None:
    """Who has not the lock registers nothing, and a lock that was broken by a seal is not renewed."""
    lock = await stores[0].acquire(LOG, "o1", LEASE_S)
    with pytest.raises(LogLocked):
        await stores[1].acquire(LOG, "o2", LEASE_S)
    assert await stores[0].renew_all([lock], LEASE_S) == [None]

    assert await stores[1].seal(LOG) == 1

    (error,) = await stores[0].renew_all([lock], LEASE_S)
    assert isinstance(error, OwnershipLost)
    with pytest.raises(OwnershipLost):
        await stores[0].register(lock, "", REACH)


async def test_nothing_lands_after_the_maximum_was_read(stores: list[Logs]) -> None:
    """While a writer appends with its token in a loop, a registration's position is at or above all that is there."""
    lock = await stores[0].acquire(LOG, "o1", LEASE_S)
    epoch = (await stores[0].register(lock, "", REACH)).epoch
    written: list[int] = []
    goes_on = asyncio.Event()

    async def write() -> None:
        for position in range(1, 10_000):
            await stores[1].append(LOG, epoch, position, b"x")
            written.append(position)
            if position == 50:
                goes_on.set()

    writer = asyncio.ensure_future(write())
    await goes_on.wait()
    found = await stores[0].register(lock, "", REACH)
    with pytest.raises(StaleEpoch):
        await writer

    assert found.position == written[-1]
    assert (await stores[2].read(LOG, found.position + 1))[0] is Cell.UNWRITTEN


async def test_a_position_is_written_once(stores: list[Logs]) -> None:
    """Data stays, a fill is repeatable and takes the position, and holes stand below the largest one."""
    epoch = await stores[0].seal(LOG)
    await stores[0].append(LOG, epoch, 5, b"five")
    await stores[0].fill(LOG, epoch, 3)
    await stores[1].fill(LOG, epoch, 3)

    for write in (stores[1].append(LOG, epoch, 5, b"other"), stores[1].fill(LOG, epoch, 5)):
        with pytest.raises(PositionTaken):
            await write
    with pytest.raises(PositionTaken):
        await stores[1].append(LOG, epoch, 3, b"late")

    assert await stores[2].read(LOG, 5) == (Cell.DATA, b"five")
    assert await stores[2].read(LOG, 3) == (Cell.FILLED, b"")
    assert await stores[2].read(LOG, 4) == (Cell.UNWRITTEN, b"")
    assert (await stores[2].figures(LOG)).tail == 5


async def test_a_log_trimmed_to_its_end_goes_on_behind_it(stores: list[Logs]) -> None:
    """Its next epoch begins behind what was trimmed, and a late write below lands nowhere."""
    epoch = await stores[0].seal(LOG)
    for position in (1, 2, 7):
        await stores[0].append(LOG, epoch, position, b"x")

    await stores[0].trim(LOG, 7)
    await stores[0].trim(LOG, 2)

    with pytest.raises(PositionTrimmed):
        await stores[1].append(LOG, epoch, 4, b"late")
    assert (await stores[1].read(LOG, 7))[0] is Cell.TRIMMED
    lock = await stores[0].acquire(LOG, "o", LEASE_S)
    assert (await stores[0].register(lock, "", REACH)).position == 7
    assert (await stores[0].figures(LOG)).keys == 0


async def test_a_counter_skips_to_its_bound_unless_it_was_settled(stores: list[Logs]) -> None:
    """After a kill the next epoch begins at the bound that was synced; after a clean stop behind the last position."""
    lock = await stores[0].acquire(COUNTER, "o1", LEASE_S)
    first = await stores[0].register(lock, "", REACH)
    await stores[0].raise_bound(lock, first.epoch, 2500)
    second = await stores[0].register(lock, "", REACH)

    await stores[0].settle(lock, second.epoch, 2777)
    third = await stores[0].register(lock, "", REACH)

    assert [(each.position, each.bound) for each in (first, second, third)] == [(0, 1000), (2500, 3500), (2777, 3777)]


async def test_a_replaced_server_cannot_move_a_bound(stores: list[Logs]) -> None:
    """Neither up nor down, once another epoch has begun."""
    lock = await stores[0].acquire(COUNTER, "o1", LEASE_S)
    old = await stores[0].register(lock, "", REACH)
    new = await stores[0].register(lock, "", REACH)

    for change in (
        stores[0].raise_bound(lock, old.epoch, MOST_POSITION),
        stores[0].settle(lock, old.epoch, 1),
    ):
        with pytest.raises(StaleEpoch):
            await change

    await stores[0].settle(lock, new.epoch, new.position)
    assert (await stores[0].figures(COUNTER)).tail == new.position


async def test_a_log_that_was_made_again_is_another_one(stores: list[Logs]) -> None:
    """The lock of the one that was removed means nothing for it, and it is empty."""
    lock = await stores[0].acquire(LOG, "o1", LEASE_S)
    epoch = (await stores[0].register(lock, "", REACH)).epoch
    await stores[0].append(LOG, epoch, 1, b"old")
    with pytest.raises(LogLocked):
        await stores[1].remove(LOG)
    await stores[0].release(lock)
    await stores[1].remove(LOG)
    with pytest.raises(LogUnknown):
        await stores[1].projection(LOG)
    made = await stores[1].create(LOG, LogKind.LOG, 8)

    with pytest.raises(OwnershipLost):
        await stores[0].register(lock, "", REACH)

    assert (made.epoch, made.id == lock.id) == (0, False)
    assert (await stores[1].read(LOG, 1))[0] is Cell.UNWRITTEN


@pytest.mark.parametrize("name", [b"", b"\xff", b"a\nb", b"x" * 256], ids=["empty", "no UTF-8", "a control", "long"])
async def test_a_name_that_cannot_be_is_refused(stores: list[Logs], name: bytes) -> None:
    """And nothing is made."""
    with pytest.raises(LogRefused):
        await stores[0].create(LogName(b"pool", name), LogKind.LOG, 8)
    assert len(await stores[0].all()) == 2


async def test_a_counter_holds_no_entries(stores: list[Logs]) -> None:
    """Nothing can be written to it, and nothing read."""
    epoch = await stores[0].seal(COUNTER)
    with pytest.raises(LogRefused):
        await stores[0].append(COUNTER, epoch, 1, b"x")
    with pytest.raises(LogRefused):
        await stores[0].read(COUNTER, 1)
