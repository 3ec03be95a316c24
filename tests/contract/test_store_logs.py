"""The contract of shared logs, on both stores: epochs, seals, write-once positions, bounds of counters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import pytest

from remora.config import RadosSettings, SqliteSettings
from remora.model.errors import OwnershipLost
from remora.model.log import (
    MOST_DATA_BYTES,
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
from remora.ports.log import Logs, LogStore
from remora.storage.sqlite import SqliteStore

POOL = b"default.rgw.log"
LOG, COUNTER = LogName(POOL, b"log"), LogName(POOL, b"counter")
LEASE_S, REACH = 90.0, 1000

Opens = Callable[[], AbstractAsyncContextManager[LogStore]]


@pytest.fixture(params=["sqlite", pytest.param("rados", marks=pytest.mark.ceph)])
def opens(request: pytest.FixtureRequest) -> Opens:
    """Opens one more client of every store that keeps the contract, one kind after the other."""
    if request.param == "sqlite":
        embedded = SqliteSettings(directory=str(request.getfixturevalue("tmp_path") / "store"), files=2)
        return lambda: SqliteStore(embedded)
    from devkit.clusters.ceph import reached_logs  # needs Debian's binding, which a host without Ceph does not have

    cluster: RadosSettings = request.getfixturevalue("settings")
    return lambda: reached_logs(cluster)


@pytest.fixture
async def stores(opens: Opens) -> AsyncIterator[list[Logs]]:
    """The logs as three clients of one store see them, with a log and a counter in it."""
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(opens()) for _ in range(3)]
        await made[0].logs.create(LOG, LogKind.LOG, 8)
        await made[0].logs.create(COUNTER, LogKind.COUNTER, 1)
        yield [each.logs for each in made]


async def test_epochs_only_grow(stores: list[Logs]) -> None:
    """Each registration has the next epoch, whichever server makes it, and the projection says who."""
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


async def test_raising_a_bound_never_lowers_it(stores: list[Logs]) -> None:
    """A raise that comes late, below what may be handed out by now, changes nothing: positions would come twice."""
    lock = await stores[0].acquire(COUNTER, "o1", LEASE_S)
    epoch = (await stores[0].register(lock, "", REACH)).epoch

    await stores[0].raise_bound(lock, epoch, 2500)
    await stores[0].raise_bound(lock, epoch, 1500)

    assert (await stores[1].figures(COUNTER)).tail == 2500
    assert (await stores[0].register(lock, "", REACH)).position == 2500


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
    """No log of such a name, or in such a pool, is made."""
    for log in (LogName(POOL, name), LogName(name, LOG.name)):
        with pytest.raises(LogRefused):
            await stores[0].create(log, LogKind.LOG, 8)
    assert len(await stores[0].all()) == 2


async def test_a_counter_holds_no_entries(stores: list[Logs]) -> None:
    """Nothing can be written to it, and nothing read."""
    epoch = await stores[0].seal(COUNTER)
    with pytest.raises(LogRefused):
        await stores[0].append(COUNTER, epoch, 1, b"x")
    with pytest.raises(LogRefused):
        await stores[0].read(COUNTER, 1)


async def test_a_log_that_was_never_served_takes_nothing(stores: list[Logs]) -> None:
    """Epoch 0 is nobody's: nothing is written with it, nothing trimmed, and every position is unwritten."""
    with pytest.raises(StaleEpoch):
        await stores[0].append(LOG, 0, 1, b"x")
    with pytest.raises(LogRefused):
        await stores[0].trim(LOG, 3)

    assert (await stores[0].read(LOG, 1))[0] is Cell.UNWRITTEN
    assert (await stores[0].figures(LOG)).tail == 0


@pytest.mark.parametrize("epochs", [1, -1], ids=["later", "earlier"])
async def test_a_token_of_another_epoch_writes_nothing(stores: list[Logs], epochs: int) -> None:
    """Neither one of an earlier epoch nor one of an epoch that was never begun; nor does it fill anything."""
    await stores[0].seal(LOG)
    epoch = await stores[0].seal(LOG)

    for write in (stores[1].append(LOG, epoch + epochs, 1, b"x"), stores[1].fill(LOG, epoch + epochs, 2)):
        with pytest.raises(StaleEpoch):
            await write

    assert (await stores[0].figures(LOG)).tail == 0


@pytest.mark.parametrize("position", [0, -1, MOST_POSITION + 1])
async def test_a_position_outside_of_the_log_is_refused(stores: list[Logs], position: int) -> None:
    """A log has the positions 1 to the largest one, which is written and read like every other."""
    epoch = await stores[0].seal(LOG)
    with pytest.raises(LogRefused):
        await stores[0].append(LOG, epoch, position, b"x")

    await stores[0].append(LOG, epoch, MOST_POSITION, b"last")

    assert await stores[1].read(LOG, MOST_POSITION) == (Cell.DATA, b"last")
    assert (await stores[1].figures(LOG)).tail == MOST_POSITION


@pytest.mark.parametrize("upto", [-990, -2, -1, 0])
async def test_a_trim_that_ends_before_the_first_position_deletes_nothing(stores: list[Logs], upto: int) -> None:
    """Who keeps the last thousand entries of a log that has ten trims up to a position below 0."""
    epoch = await stores[0].seal(LOG)
    for position in range(1, 11):
        await stores[0].append(LOG, epoch, position, b"kept")

    await stores[1].trim(LOG, upto)

    assert {await stores[2].read(LOG, position) for position in range(1, 11)} == {(Cell.DATA, b"kept")}
    figures = await stores[2].figures(LOG)
    assert (figures.tail, figures.trimmed) == (10, 0)


async def test_positions_behind_the_last_one_are_unwritten_until_all_is_trimmed(stores: list[Logs]) -> None:
    """A number that is no position any more is read and trimmed as what it is: behind all others."""
    epoch = await stores[0].seal(LOG)
    await stores[0].append(LOG, epoch, 1, b"x")
    assert await stores[1].read(LOG, MOST_POSITION + 1) == (Cell.UNWRITTEN, b"")

    await stores[1].trim(LOG, MOST_POSITION + 1)

    assert (await stores[2].figures(LOG)).trimmed == MOST_POSITION


async def test_entries_may_be_empty_and_large(stores: list[Logs]) -> None:
    """An empty entry is no hole, one of 16 MiB comes back as it was, and a larger one is refused."""
    epoch = await stores[0].seal(LOG)
    large = bytes(range(256)) * (MOST_DATA_BYTES // 256)

    await stores[0].append(LOG, epoch, 1, b"")
    await stores[0].append(LOG, epoch, 2, large)
    with pytest.raises(LogRefused):
        await stores[0].append(LOG, epoch, 3, large + b"x")

    assert await stores[1].read(LOG, 1) == (Cell.DATA, b"")
    assert await stores[1].read(LOG, 2) == (Cell.DATA, large)


async def test_a_lock_that_was_given_back_is_free(stores: list[Logs]) -> None:
    """Another server takes it at once, and giving it back twice takes nothing from that one."""
    lock = await stores[0].acquire(LOG, "o1", LEASE_S)
    await stores[0].release(lock)
    other = await stores[1].acquire(LOG, "o2", LEASE_S)

    await stores[0].release(lock)

    assert await stores[1].renew_all([other], LEASE_S) == [None]
    (error,) = await stores[0].renew_all([lock], LEASE_S)
    assert isinstance(error, OwnershipLost)


async def test_all_logs_are_listed(stores: list[Logs]) -> None:
    """Each with its name and its projection, in the order of the names."""
    await stores[0].create(LogName(POOL, "ä b".encode()), LogKind.LOG, 1024)

    found = await stores[1].all()

    assert [(name.name.decode(), each.kind, each.width) for name, each in found] == [
        ("counter", LogKind.COUNTER, 1), ("log", LogKind.LOG, 8), ("ä b", LogKind.LOG, 1024)
    ]  # fmt: skip
