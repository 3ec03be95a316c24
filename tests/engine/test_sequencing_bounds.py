"""What a sequencer remembers, serves and waits for at most, whatever its clients ask for and its store does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devkit.readers.samples import sample_value
from remora.config import SqliteSettings
from remora.engine import sequencer as module
from remora.engine.sequencer import MOST_OF_ONE
from remora.model.errors import StoreUnavailable
from remora.model.log import MOST_POSITION, LogKind, LogLock, LogName, Registered
from remora.policy.logs import sequence
from remora.storage.sqlite import SqliteStore
from remora.storage.sqlite.logs import SqliteLogs
from support.sequencing import INIT_LOG, Server

LOG, IDS = LogName(b"pool", b"log"), LogName(b"pool", b"ids")


def numbered(number: int) -> LogName:
    return LogName(b"pool", b"%d" % number)


@pytest.fixture
async def logs(tmp_path: Path) -> AsyncIterator[SqliteLogs]:
    """A store with a log and a counter."""
    async with SqliteStore(SqliteSettings(directory=str(tmp_path / "store"), files=1)) as store:
        await store.logs.create(LOG, LogKind.LOG, 8)
        await store.logs.create(IDS, LogKind.COUNTER, 1)
        yield store.logs


async def settled(server: Server) -> None:
    """Wait for the registrations that are under way."""
    while tasks := server.sequencing._tasks:
        await asyncio.gather(*tasks)


async def test_one_client_leaves_room_for_the_logs_of_others(logs: SqliteLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many logs that do not exist a client asks for: the store is asked for its share of them, and another
    client's log is registered."""
    monkeypatch.setattr(module, "MOST_REMEMBERED", 2 * MOST_OF_ONE)
    server = Server(logs)
    server.sequencing.core.client = 1

    for number in range(4 * MOST_OF_ONE):
        assert server.round(numbered(number), 1) == INIT_LOG
    assert len(server.sequencing._tasks) == MOST_OF_ONE
    server.sequencing.core.client = 2

    assert await server.position(LOG, 1) == 1


async def test_what_a_client_asked_for_in_vain_is_forgotten(logs: SqliteLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    """When its time is over other logs have room in the share of that client."""
    monkeypatch.setattr(sequence, "UNKNOWN_S", 1800.0)  # no test takes as long
    server = Server(logs)
    for number in range(MOST_OF_ONE):
        server.round(numbered(number), 1)
    await settled(server)
    server.round(LOG, 1)
    assert LOG not in server.sequencing.states()

    server.late_s = 1800.0

    assert await server.position(LOG, 1) == 1


async def test_a_log_that_does_not_exist_is_not_waited_for(logs: SqliteLogs) -> None:
    """A client that asks for it again and again does not make it one that should be served."""
    server = Server(logs)
    server.round(numbered(1), 1)
    await settled(server)

    server.round(numbered(1), 1)

    assert not server.sequencing.waiting()


@pytest.mark.parametrize("create", ["", "counter"])
async def test_no_more_logs_are_served_than_may_be(logs: SqliteLogs, create: str) -> None:
    """Of many logs that are asked for in one round `max_logs` are served, none is made besides, and the others tell why
    they wait; they are served when there is room."""
    server = Server(logs, max_logs=2, create=create)
    if not create:
        for number in range(5):
            await logs.create(numbered(number), LogKind.COUNTER, 1)

    for number in range(5):
        server.round(numbered(number), 1)
    await settled(server)

    served = set(server.sequencing.core.counters)
    assert len(served) == 2
    assert len(await logs.all()) == (4 if create else 7)
    waiting = server.sequencing.waiting()
    assert {*waiting.values()} == {"the server serves 2 logs, as sequencer.max_logs says"}
    assert not server.sequencing.store_problem
    server.sequencing._stop(served.pop(), 1, "gone")
    server.late_s = 10.0
    assert await server.position(waiting.popitem()[0] if create else LOG, 1) == 1


class Broken:
    """Logs that fail so many times when one of their calls is made."""

    def __init__(self, logs: SqliteLogs, step: str, why: Exception, failures: int = 1) -> None:
        self._logs = logs
        self._step = step
        self._why = why
        self.failures = failures

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._logs, name)
        if name != self._step or not self.failures:
            return call

        async def broken(*given: Any) -> Any:
            self.failures -= 1
            await asyncio.sleep(0)
            raise self._why

        return broken


@pytest.mark.parametrize("why", [StoreUnavailable("the disk is full"), OSError("a defect")], ids=["store", "defect"])
async def test_who_waits_for_a_bound_goes_on_without_another_round(logs: SqliteLogs, why: Exception) -> None:
    """A bound that the store refuses to raise, or for a defect does not, is raised when it can be, though all clients
    wait and nobody asks."""
    failing = Broken(logs, "raise_bound", why, failures=3)
    server = Server(failing)
    assert await server.position(IDS, 1) == 1
    resumed = asyncio.Event()
    server.sequencing.resume = lambda _: resumed.set()
    counter = server.sequencing.core.counters[IDS]
    counter.position = counter.bound - 1
    server.round(IDS, 1)
    assert server.round(IDS, 1) == b""

    async with asyncio.timeout(60):
        await resumed.wait()

    assert not failing.failures
    assert server.round(IDS, 1)


async def test_a_log_ends_with_its_last_position(logs: SqliteLogs) -> None:
    """The last position is handed out; once it is written the log is not served any more, and tells why."""
    epoch = await logs.seal(LOG)
    await logs.append(LOG, epoch, MOST_POSITION - 1, b"x")
    server = Server(logs)

    assert await server.position(LOG, 2) == MOST_POSITION
    await logs.append(LOG, 2, MOST_POSITION, b"y")
    await settled(server)
    assert server.round(LOG, 2) == INIT_LOG
    await settled(server)

    assert server.round(LOG, 3) == INIT_LOG
    assert server.sequencing.states()[LOG].reason == "its positions are used up"


class Gated:
    """Logs whose bounds are raised when the test lets them; `epochs` are those of all attempts."""

    def __init__(self, logs: SqliteLogs, failures: int = 0) -> None:
        self._logs = logs
        self._failures = failures
        self.epochs: list[int] = []
        self.gate = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logs, name)

    async def raise_bound(self, lock: LogLock, epoch: int, bound: int) -> None:
        self.epochs.append(epoch)
        await self.gate.wait()
        if self._failures:
            self._failures -= 1
            raise StoreUnavailable("the disk is full")
        await self._logs.raise_bound(lock, epoch, bound)


class Halting:
    """Logs of which one call is carried out, and answers when the test says so."""

    def __init__(self, logs: SqliteLogs, step: str) -> None:
        self._logs = logs
        self._step = step
        self.reached, self.goes_on = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._logs, name)
        if name != self._step:
            return call

        async def halted(*given: Any) -> Any:
            answer = await call(*given)
            self.reached.set()
            await self.goes_on.wait()
            return answer

        return halted


class LastEpoch:
    """Logs that are registered in an epoch that is larger than every other."""

    def __init__(self, logs: SqliteLogs) -> None:
        self._logs = logs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logs, name)

    async def register(self, *given: Any) -> Registered:
        return replace(await self._logs.register(*given), epoch=1 << 64)


async def near_its_bound(logs: Any) -> Server:
    """A server that has handed out so much of a counter that its bound is to be raised, and has begun to."""
    server = Server(logs)
    assert await server.position(IDS, 1) == 1
    counter = server.sequencing.core.counters[IDS]
    counter.position = counter.bound - 10
    server.round(IDS, 1)
    await asyncio.sleep(0)
    return server


async def test_a_bound_is_raised_once_at_a_time(logs: SqliteLogs) -> None:
    """However many rounds find it low while the store is asked."""
    gated = Gated(logs)
    server = await near_its_bound(gated)

    for _ in range(3):
        server.round(IDS, 1)
        await asyncio.sleep(0)

    assert gated.epochs == [1]
    gated.gate.set()
    await settled(server)


async def test_a_bound_that_another_server_has_raised_ends_the_epoch(logs: SqliteLogs) -> None:
    """A server whose lock is gone when it raises a bound does not serve the counter any more."""
    gated = Gated(logs)
    server = await near_its_bound(gated)
    await logs.seal(IDS)

    gated.gate.set()
    async with asyncio.timeout(60):
        await settled(server)

    assert server.sequencing.served == 0
    assert server.round(IDS, 1) == INIT_LOG
    await settled(server)


async def test_a_bound_is_raised_in_its_own_epoch_only(logs: SqliteLogs) -> None:
    """An attempt that failed is not repeated once its epoch is over, though the counter is served in another one."""
    gated = Gated(logs, failures=1)
    server = await near_its_bound(gated)
    server.sequencing._stop(IDS, 1, "gone")
    gated.gate.set()

    async with asyncio.timeout(60):
        assert await server.position(IDS, 2) > 1
        await settled(server)

    assert gated.epochs == [1]
    assert server.sequencing.served == 1


async def test_a_server_that_stops_registers_nothing(logs: SqliteLogs) -> None:
    """Requests that come while it stops begin no epoch, which nobody would end."""
    server = Server(logs)
    await server.sequencing.close()

    assert server.round(LOG, 1) == INIT_LOG
    await settled(server)

    assert (await logs.projection(LOG)).epoch == 0


@pytest.mark.parametrize("step", ["acquire", "register"])
async def test_a_stop_amid_a_registration_leaves_no_hole(logs: SqliteLogs, step: str) -> None:
    """A server that is stopped while the store registers a counter for it gives the lock back when that is done, and
    the next server hands out the number that comes next."""
    held = Halting(logs, step)
    server = Server(held)
    assert server.round(IDS, 1) == INIT_LOG
    await held.reached.wait()

    stopping = asyncio.create_task(server.sequencing.close())
    await asyncio.sleep(0)
    held.goes_on.set()
    await stopping

    assert not server.sequencing._tasks
    assert await Server(logs).position(IDS, 2) == 1


async def test_a_log_whose_epochs_are_used_up_is_refused(logs: SqliteLogs) -> None:
    """A log whose projection, or a stripe, has an epoch that no later one fits behind is not served, and tells why;
    other logs are."""
    server = Server(LastEpoch(logs))

    assert server.round(LOG, 1) == INIT_LOG
    await settled(server)

    assert server.sequencing.states()[LOG].reason == "its epochs are used up"
    assert not server.sequencing.served
    server.sequencing._logs = logs
    assert await server.position(IDS, 1) == 1


async def test_only_logs_of_its_pools_are_served(logs: SqliteLogs) -> None:
    """A log of another pool is not registered, and waits with the reason."""
    server = Server(logs, pools=("other",))

    assert server.round(LOG, 1) == INIT_LOG
    await settled(server)

    assert (await logs.projection(LOG)).epoch == 0
    assert server.sequencing.states()[LOG].reason == "its pool is not among sequencer.pools"


async def test_a_bound_that_is_raised_when_its_epoch_is_over_ends_quietly(logs: SqliteLogs) -> None:
    """A server that has lost its lock when the store answers raises no bound, and nothing fails."""
    gated = Gated(logs)
    server = await near_its_bound(gated)
    (raising,) = server.sequencing._tasks
    server.sequencing._stop(IDS, 1, "its lock was not renewed in time")

    gated.gate.set()
    await raising

    assert IDS not in server.sequencing.core.counters


DEFECTS = [
    OSError("too many open files"),
    TimeoutError(),
    RuntimeError("the executor was shut down"),
    KeyError("a defect"),
]


@pytest.mark.parametrize("step", ["acquire", "create", "register"])
@pytest.mark.parametrize("defect", DEFECTS, ids=repr)
async def test_a_defect_of_a_registration_ends_that_attempt_alone(
    logs: SqliteLogs, step: str, defect: Exception
) -> None:
    """A log whose registration fails unforeseen waits with the reason, takes no place from others, and is served at a
    later request; the defect is counted."""
    log = numbered(1) if step == "create" else LOG
    server = Server(Broken(logs, step, defect), max_logs=1, create="log")
    assert server.round(log, 1) == INIT_LOG
    await settled(server)

    assert server.sequencing.waiting() == {log: f"registering a log failed unexpectedly: {defect!r}"}
    assert sample_value(server.telemetry.registry, "remora_crashes_total") == 1
    assert not server.sequencing.store_problem
    server.late_s = sequence.LONGEST_PAUSE_S
    async with asyncio.timeout(60):
        assert await server.position(log, 1) == 1


async def test_a_log_that_cannot_be_handed_to_the_core_is_registered_again(
    logs: SqliteLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect between a registration and its first position leaves no log that counts as served and has no counter."""
    server = Server(logs)
    core, fails = server.sequencing.core, True

    class Once:
        def __getattr__(self, name: str) -> Any:
            return getattr(core, name)

        def serve(self, *given: Any) -> None:
            nonlocal fails
            if fails:
                fails = False
                raise MemoryError
            core.serve(*given)

    monkeypatch.setattr(server.sequencing, "core", Once())
    assert server.round(LOG, 1) == INIT_LOG
    await settled(server)

    assert not server.sequencing.served
    server.late_s = sequence.LONGEST_PAUSE_S
    async with asyncio.timeout(60):
        assert await server.position(LOG, 2) == 1


async def test_a_defect_of_a_look_is_counted(logs: SqliteLogs) -> None:
    """A look at a projection that fails unforeseen ends no epoch, and is counted."""
    server = Server(Broken(logs, "projection", KeyError("a defect")))
    assert await server.position(LOG, 1) == 1

    assert server.round(LOG, 2) == INIT_LOG
    await asyncio.wait(server.sequencing._tasks)

    assert sample_value(server.telemetry.registry, "remora_crashes_total") == 1
    assert server.round(LOG, 1) != INIT_LOG


async def test_a_defect_at_the_stop_is_counted(logs: SqliteLogs) -> None:
    """A bound that cannot be given back for a defect counts what is skipped, as one that the store refuses does."""
    server = Server(Broken(logs, "settle", KeyError("a defect")))
    assert await server.position(IDS, 1) == 1

    await server.sequencing.close()

    assert sample_value(server.telemetry.registry, "remora_crashes_total") == 1
    assert sample_value(server.telemetry.registry, "remora_sequencer_skipped_positions_total") == module.REACH - 1
