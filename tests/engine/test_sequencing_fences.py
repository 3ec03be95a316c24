"""What keeps a sequencer from a position that is taken: each fence is taken away once, and then it happens.

Two servers on one store, without processes or sockets: requests go to their cores as rounds pass them on, and the clock
of a server that was frozen goes on by itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from devkit.readers.samples import sample_value
from remora.config import SqliteSettings
from remora.model.log import MOST_POSITION, Cell, LogKind, LogLock, LogName, PositionTaken, Registered, StaleEpoch
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite import logs as sqlite_logs
from remora.storage.sqlite.logs import SqliteLogs
from support.sequencing import INIT_LOG, LEASE_S, Server, shown

LOG, IDS = LogName(b"pool", b"log"), LogName(b"pool", b"ids")
FENCED = pytest.mark.parametrize("fenced", [True, False], ids=["with the fence", "without it"])
SKIPPED = "remora_sequencer_skipped_positions_total"


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[list[SqliteLogs]]:
    """The logs as two processes see them, with a log and a counter in them."""
    async with AsyncExitStack() as stack:
        settings = SqliteSettings(directory=str(tmp_path / "store"), files=1)
        made = [await stack.enter_async_context(SqliteStore(settings)) for _ in range(2)]
        await made[0].logs.create(LOG, LogKind.LOG, 8)
        await made[0].logs.create(IDS, LogKind.COUNTER, 1)
        yield [each.logs for each in made]


@pytest.mark.guarantee("positions-of-a-log")
@FENCED
async def test_trust_before_handing_out(stores: Sequence[SqliteLogs], fenced: bool) -> None:
    """A server that slept through its lease hands nothing out; one that does not ask for trust first hands out what is
    below an entry that was acknowledged meanwhile."""
    frozen, other = Server(stores[0]), Server(stores[1])
    assert [await frozen.position(LOG, 1) for _ in range(2)] == [1, 2]
    await stores[1].seal(LOG)  # its lease ends
    for position in (1, 2, 3):
        assert await other.position(LOG, 3) == position
        await stores[1].append(LOG, 3, position, b"x")
    frozen.late_s = LEASE_S

    reply = frozen.round(LOG, 1, asks_for_trust=fenced)

    if fenced:
        assert reply == INIT_LOG
    else:
        assert shown(reply) == 3
        with pytest.raises(StaleEpoch):  # storage has a fence of its own
            await stores[0].append(LOG, 1, 3, b"late")


class Unsynced:
    """Logs whose counters have no bound that is synced, as if it were in memory alone."""

    def __init__(self, logs: SqliteLogs) -> None:
        self._logs = logs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logs, name)

    async def register(self, lock: LogLock, address: str, reach: int) -> Registered:
        found = await self._logs.register(lock, address, 0)
        return Registered(found.epoch, found.position, MOST_POSITION)


@pytest.mark.guarantee("positions-of-a-log")
@FENCED
async def test_the_synced_bound(stores: Sequence[SqliteLogs], fenced: bool) -> None:
    """After a kill a counter's next server begins behind everything that was handed out; where no bound was synced, it
    hands the same numbers out again."""
    killed = Server(stores[0] if fenced else Unsynced(stores[0]))
    numbers = [await killed.position(IDS, 1) for _ in range(5)]
    await stores[1].seal(IDS)  # its lock is free, as it is when a process has ended
    other = Server(stores[1])

    again = [await other.position(IDS, 3) for _ in range(5)]

    assert bool(set(numbers) & set(again)) == (not fenced)


@pytest.mark.guarantee("positions-of-a-log")
@FENCED
async def test_the_epoch_in_the_write(
    stores: Sequence[SqliteLogs], monkeypatch: pytest.MonkeyPatch, fenced: bool
) -> None:
    """A write that is late lands nowhere; without its epoch it takes the position that the new server hands out."""
    old, new = Server(stores[0]), Server(stores[1])
    assert await old.position(LOG, 1) == 1
    await stores[1].seal(LOG)
    assert await new.position(LOG, 3) == 1
    if not fenced:
        log_row = sqlite_logs._log_row
        monkeypatch.setattr(sqlite_logs, "_log_row", lambda *given: log_row(*given)._replace(epoch=1))

    with suppress(StaleEpoch):
        await stores[0].append(LOG, 1, 1, b"late")

    monkeypatch.undo()
    if fenced:
        await stores[1].append(LOG, 3, 1, b"new")
        assert await stores[0].read(LOG, 1) == (Cell.DATA, b"new")
    else:
        with pytest.raises(PositionTaken):
            await stores[1].append(LOG, 3, 1, b"new")


@pytest.mark.guarantee("positions-of-a-log")
@FENCED
async def test_trimmed_in_the_maximum(
    stores: Sequence[SqliteLogs], monkeypatch: pytest.MonkeyPatch, fenced: bool
) -> None:
    """A log that was trimmed to its end goes on behind it; one whose maximum forgets what was trimmed begins anew."""
    epoch = await stores[0].seal(LOG)
    await stores[0].append(LOG, epoch, 7, b"x")
    await stores[0].trim(LOG, 7)
    if not fenced:
        last = sqlite_logs._last
        monkeypatch.setattr(sqlite_logs, "_last", lambda connection, row: last(connection, row._replace(trimmed=0)))

    assert await Server(stores[1]).position(LOG, 2) == (8 if fenced else 1)


@pytest.mark.parametrize(("log", "kind"), [(LOG, LogKind.LOG), (IDS, LogKind.COUNTER)], ids=["log", "counter"])
async def test_skipped_positions_are_counted(stores: Sequence[SqliteLogs], log: LogName, kind: LogKind) -> None:
    """What a counter's server leaves below its bound counts where it lost the epoch; a clean stop skips nothing, and a
    log has no bound."""
    frozen, other = Server(stores[0]), Server(stores[1])
    assert [await frozen.position(log, 1) for _ in range(3)] == [1, 2, 3]
    await stores[1].seal(log)
    frozen.late_s = LEASE_S
    frozen.sequencing.before()
    first = await other.position(log, 3)
    await other.sequencing.close()

    skipped = [sample_value(each.sequencing._telemetry.registry, SKIPPED) for each in (frozen, other)]
    assert skipped == [first - 1 - 3 if kind is LogKind.COUNTER else 0, 0]
