"""For how long a sequencer serves a log: not beyond its lock, counted from before it was asked for, nor as another's.

The clock of a server is moved by the store that it asks, as when an answer is slow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devkit.readers.samples import sample_value
from devkit.waits import until
from remora.codec.sequencer import Result
from remora.config import SqliteSettings
from remora.model.errors import StoreError, StoreUnavailable
from remora.model.log import LogKind, LogLock, LogName, Projection, Registered
from remora.policy.logs import sequence
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.logs import SqliteLogs
from support.sequencing import INIT_LOG, LEASE_S, Server, shown

LOG = LogName(b"pool", b"log")
FENCED = "remora_sequencer_fenced_total"

pytestmark = pytest.mark.guarantee("positions-of-a-log")


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[list[SqliteLogs]]:
    """The logs as two processes see them."""
    async with AsyncExitStack() as stack:
        settings = SqliteSettings(directory=str(tmp_path / "store"), files=1)
        made = [await stack.enter_async_context(SqliteStore(settings)) for _ in range(2)]
        await made[0].logs.create(LOG, LogKind.LOG, 8)
        yield [each.logs for each in made]


class Slow:
    """Logs whose answers come late, by parts of a lease: the store has acted long before its client knows."""

    def __init__(self, logs: SqliteLogs, *, register: float = 0.0, renew: float = 0.0) -> None:
        self._logs = logs
        self._register_s, self._renew_s = register * LEASE_S, renew * LEASE_S
        self.server: Server | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logs, name)

    def _pass(self, seconds: float) -> None:
        assert self.server is not None
        self.server.late_s += seconds

    async def register(self, lock: LogLock, address: str, reach: int) -> Registered:
        found = await self._logs.register(lock, address, reach)
        self._pass(self._register_s)
        return found

    async def renew_all(self, locks: Sequence[LogLock], lease_s: float) -> Sequence[StoreError | None]:
        answers = await self._logs.renew_all(locks, lease_s)
        self._pass(self._renew_s)
        return answers


def serving(logs: Slow) -> Server:
    logs.server = Server(logs)
    return logs.server


async def renew(server: Server) -> None:
    """Renew all locks now, whether that is due or not."""
    await server.sequencing._renew(list(server.sequencing._served.values()))


async def test_a_lock_that_a_renewal_finds_lost_ends_the_epoch(stores: Sequence[SqliteLogs]) -> None:
    """The log is not served from then on, though the trust in its lock would have lasted, and the reason is counted."""
    server = Server(stores[0])
    assert await server.position(LOG, 1) == 1
    await stores[1].seal(LOG)

    await renew(server)

    assert server.sequencing.served == 0
    assert server.round(LOG, 1) == INIT_LOG
    assert sample_value(server.sequencing._telemetry.registry, FENCED, {"reason": "lock"}) == 1


async def test_trust_is_counted_from_before_a_renewal(stores: Sequence[SqliteLogs]) -> None:
    """An answer that comes half a lease late leaves the rest of the trust, and not the whole of it."""
    server = serving(Slow(stores[0], renew=0.5))
    assert await server.position(LOG, 1) == 1

    await renew(server)
    assert shown(server.round(LOG, 1)) == 2
    server.late_s += (sequence.TRUSTED - 0.5) * LEASE_S

    assert server.round(LOG, 1) == INIT_LOG


async def test_a_host_that_slept_hands_out_nothing(
    stores: Sequence[SqliteLogs], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trust ends although the clock of the event loop stood still while the host was suspended."""
    server, clock, slept_s = Server(stores[0]), time.clock_gettime, 0.0
    del server.sequencing._now
    monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + slept_s * (which == time.CLOCK_BOOTTIME))
    assert await server.position(LOG, 1) == 1
    assert shown(server.round(LOG, 1)) == 2

    slept_s = LEASE_S

    assert server.round(LOG, 1) == INIT_LOG
    assert sample_value(server.telemetry.registry, FENCED, {"reason": "trust"}) == 1


@pytest.mark.parametrize("answers", [True, False], ids=["renewed", "without an answer"])
async def test_a_renewal_that_outlasts_its_epoch_says_nothing_of_the_next_one(
    stores: Sequence[SqliteLogs], answers: bool
) -> None:
    """While it is under way the trust ends, and the log is registered anew: workers are told the new trust, and not
    what is left of the old one, with which they would hand out nothing until the next renewal."""

    class Overtaken(Slow):
        async def renew_all(self, locks: Sequence[LogLock], lease_s: float) -> Sequence[StoreError | None]:
            found = await self._logs.renew_all(locks, lease_s)
            self._pass(LEASE_S)
            assert self.server is not None
            await self.server.position(LOG, 2)
            return found if answers else [StoreUnavailable("no answer")] * len(locks)

    server, told = serving(Overtaken(stores[0])), list[float]()
    assert await server.position(LOG, 1) == 1
    server.sequencing.trusted = lambda _, seconds: told.append(seconds)

    await renew(server)

    assert [seconds > 0 for seconds in told] == [True]
    assert server.sequencing.served == 1


async def test_a_lock_that_hangs_holds_up_no_other_log(stores: Sequence[SqliteLogs]) -> None:
    """While the store does not answer for one log, as where its OSDs are away, the server goes on renewing the locks of
    others. Only that log loses its epoch, the server asks for it once, and calls the store well."""
    away, hung = LogName(b"pool", b"away"), list[str]()
    await stores[0].create(away, LogKind.LOG, 8)

    class OneAway(Slow):
        def place(self, log: LogName) -> LogName:
            return log

        async def renew_all(self, locks: Sequence[LogLock], lease_s: float) -> Sequence[StoreError | None]:
            if any(lock.log == away for lock in locks):
                hung.append("asked")
                await asyncio.Event().wait()
            return await self._logs.renew_all(locks, lease_s)

    server = serving(OneAway(stores[0]))
    sequencing = server.sequencing
    assert await server.position(LOG, 1) == await server.position(away, 1) == 1

    for _ in range(3):
        server.late_s += sequence.TRUSTED / 2 * LEASE_S
        sequencing.begin_renewals()
        await until(lambda: hung and sequencing._served[LOG].lease.term.renew_at > sequencing._now())
    assert shown(server.round(LOG, 1)) == 2
    assert server.round(away, 1) == INIT_LOG
    assert (hung, sequencing.store_problem) == (["asked"], "")
    await sequencing.close()


async def test_a_store_of_which_no_place_answers_cannot_be_used(stores: Sequence[SqliteLogs]) -> None:
    """What it says is told once nothing was renewed for as long as it is between two renewals, and no longer when
    something is."""
    answers: list[StoreError | None] = [StoreUnavailable("no answer"), None]

    class Away(Slow):
        async def renew_all(self, locks: Sequence[LogLock], lease_s: float) -> Sequence[StoreError | None]:
            return [answers.pop(0)]

    server = serving(Away(stores[0]))
    assert await server.position(LOG, 1) == 1

    server.late_s += sequence.RENEW * LEASE_S
    await renew(server)
    assert server.sequencing.store_problem == "no answer"
    await renew(server)
    assert server.sequencing.store_problem == ""


async def test_trust_is_counted_from_before_a_registration(stores: Sequence[SqliteLogs]) -> None:
    """A registration whose answer comes half a lease late leaves the rest of the trust, and not the whole of it."""
    server = serving(Slow(stores[0], register=0.5))
    assert await server.position(LOG, 1) == 1

    server.late_s += (sequence.TRUSTED - 0.5) * LEASE_S

    assert server.round(LOG, 1) == INIT_LOG


async def test_a_registration_that_outlasts_its_trust_is_not_served(stores: Sequence[SqliteLogs]) -> None:
    """Its log is not served at all, not even until the next round looks, and the reason is told."""
    server = serving(Slow(stores[0], register=0.9))

    assert server.round(LOG, 1) == INIT_LOG
    for task in list(server.sequencing._tasks):
        await task

    assert server.sequencing.served == 0
    assert server.sequencing.states()[LOG].reason == "its registration took longer than its lease"


async def test_an_epoch_of_another_owner_is_another_one(stores: Sequence[SqliteLogs]) -> None:
    """A log that was removed and made anew may have the same epoch under another server, as on RADOS: the first one
    stops serving it."""

    class FromTheFirst(Slow):
        async def projection(self, log: LogName) -> Projection:
            return replace(await self._logs.projection(log), epoch=1)

    old, new = serving(FromTheFirst(stores[0])), Server(stores[1])
    assert await old.position(LOG, 1) == 1
    await stores[1].seal(LOG)  # its lock is free, as it is when a process has ended
    await stores[1].remove(LOG)
    await stores[1].create(LOG, LogKind.LOG, 8)
    assert await new.position(LOG, 3) == 1

    old.sequencing.missed(LOG, Result.AHEAD)
    for task in list(old.sequencing._tasks):
        await task

    assert old.sequencing.served == 0
    assert "its epoch is 1 by now" in old.sequencing.states()[LOG].reason


async def test_a_later_epoch_of_the_same_owner_is_another_one(stores: Sequence[SqliteLogs]) -> None:
    """A registration of the server's own that landed after all, long after it was given up, ends the one before."""
    server = Server(stores[0])
    assert await server.position(LOG, 1) == 1
    await stores[0].register(server.sequencing._served[LOG].lease.token, "unix:/s", 0)

    server.sequencing.missed(LOG, Result.AHEAD)
    for task in list(server.sequencing._tasks):
        await task

    assert server.sequencing.served == 0
    assert "its epoch is 2 by now" in server.sequencing.states()[LOG].reason
