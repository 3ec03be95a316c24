"""A worker process from its first message to its last lock."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import assert_never

import msgspec

from remora import __version__
from remora.app import make_store, open_servers, open_tracer
from remora.config import Settings, ShapingSettings
from remora.endpoint_kinds import addresses_of, certificate_subject, open_endpoints
from remora.engine.admission.gate import Gate
from remora.engine.admission.shares import WorkerShares
from remora.engine.admission.store_traffic import WorkerTraffic
from remora.engine.ownership.worker_info import Meters
from remora.engine.worker import Worker, WorkerSetup
from remora.metrics import Telemetry, configure_logging
from remora.model.errors import RemoraError, StoreError, StoreMisconfigured
from remora.model.exits import Exit, exit_code
from remora.ports.credit import NoBank
from remora.ports.store import ShardStore
from remora.ports.tracing import NO_TRACER
from remora.process.credit import CreditMemory, HostCredit
from remora.process.host_load import HostLoad
from remora.process.liveness_lock import has_been_used, remember_store
from remora.process.loop import GarbageWatch, Kept, measure_lag, run_loop
from remora.process.pipe import (
    Ask,
    Dead,
    Drain,
    Failed,
    Finish,
    Groups,
    Pipe,
    Ready,
    Release,
    Reload,
    Reply,
    Shares,
    Start,
    StopNow,
    ToWorker,
    UseStore,
    WantGroup,
    families,
)
from remora.process.usage import Usage
from remora.servers.server import OfHost, Server, Serving
from remora.worker.dead_owner_sweep import DeadOwnerSweep
from remora.worker.introductions import HostIntroductions
from remora.worker.memory import FINISH_S, PROBE_BYTES, START_BYTES, MemoryGuard
from remora.worker.report import Report

FIRST_LOOK_S = 2.0
"""How long a start waits for the store to say that something can never work."""

BEATS = 10
BEAT_S = 1.0
"""How many heartbeats there are in the watchdog's time, and how often they come at least. Each looks for memory."""


def run(channel: int) -> Exit:
    """Work for the supervisor at the other end of this socket; returns the exit code."""
    gc.freeze()  # what was imported stays
    return run_loop(_run(socket.socket(fileno=channel)))


async def _run(channel: socket.socket) -> Exit:
    pipe = await Pipe.opened(channel)
    line = await pipe.line()
    if line is None:
        return Exit.FAILURE
    start = msgspec.json.decode(line, type=Start)
    configure_logging(start.settings.log)
    process = Process(start, pipe)
    try:
        with process.memory.watching(), process.garbage:
            code = await process.run()
            if code is Exit.OUT_OF_MEMORY:
                process.memory.end()  # at once: to close the loop, asyncio starts a thread, which takes memory
            return code
    except RemoraError as exc:
        code = exit_code(exc)
        pipe.send(Failed(code=code, reason=str(exc)))
        await pipe.sent()
        return code
    except BaseException as exc:
        process.memory.saw(exc)
        raise


class Process:
    """A store, the endpoints, the engine's worker, and the servers; the supervisor commands it over the pipe."""

    def __init__(self, start: Start, pipe: Pipe) -> None:
        self._start = start
        self._settings = start.settings
        self._pipe = pipe
        self._finish = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._wants_memory = False
        self._drains = start.drains
        self._telemetry = Telemetry(
            metric_topics=start.settings.admin.metric_topics,
            repeat_interval_s=start.settings.log.repeat_interval_s,
        )
        self.memory, self.garbage = MemoryGuard(start.number, self._telemetry), GarbageWatch()
        self._sweep = DeadOwnerSweep(start, self._telemetry)
        self._kept = Kept()
        self._credit: HostCredit | None = None
        if start.credit >= 0:
            memory = CreditMemory(start.credit, start.workers)
            self._credit = HostCredit(memory, start.number - 1, lambda group: pipe.send(WantGroup(group=group)))
            self._credit.learn(start.groups)
        self._budgets = WorkerShares()
        self._gate = Gate(self._telemetry, self._credit, self._budgets)
        self._budgets.on_change = lambda shares: pipe.send(Shares(shares=dict(shares)))
        self._gate.configure(start.settings.shaping.rules, start.settings.shaping.tick_s)
        self._gate.introduce = self._introductions = HostIntroductions(
            lambda location: asyncio.to_thread(certificate_subject, location, self._settings),
            addresses_of,
            self._gate.refresh,
        )
        self._store: ShardStore
        self._tracer = NO_TRACER
        self._report = Report(start.cookie, self._telemetry, self._gate)
        self._worker: Worker | None = None
        self._servers: Mapping[str, Server] = {}

    async def run(self) -> Exit:
        """Open everything, work until the supervisor asks to finish, close everything in the opposite order."""
        self._telemetry.running(__version__)
        if not self.memory.has(START_BYTES):
            return Exit.OUT_OF_MEMORY
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._finish.set)
        for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends these to the whole group; the supervisor acts
            loop.add_signal_handler(number, lambda: None)
        failure: RemoraError | None = None
        clean = False
        async with asyncio.TaskGroup() as tasks:
            helpers = [
                tasks.create_task(self._hear(tasks), name="hear the supervisor"),
                tasks.create_task(self._beat(), name="heartbeat"),
            ]
            try:
                clean = await self._work()
            except RemoraError as exc:
                failure = exc  # in person: the group would wrap it
            finally:
                for each in helpers:
                    each.cancel()
        if failure is not None:
            raise failure
        if self._wants_memory:
            return Exit.OUT_OF_MEMORY
        return Exit.OK if clean else Exit.DRAIN_TIMEOUT

    async def _work(self) -> bool:
        settings, telemetry = self._settings, self._telemetry
        folder, state = Path(settings.supervisor.run_directory), self._report.store_state
        # A store that was in use on this host and is not there now is not begun anew.
        made = not (self._start.replaces or has_been_used(folder, settings.store_name))
        async with (
            open_tracer(settings, telemetry, self._start.cookie) as self._tracer,
            make_store(
                settings,
                state,
                make=made,
                waits=True,
                tracer=self._tracer,
                meter=telemetry,
                on_seam=telemetry.spill_seam,
                traffic=WorkerTraffic(self._gate),
            ) as self._store,
            open_endpoints(settings, telemetry) as endpoints,
        ):
            if self._report.is_connected:
                with suppress(OSError):  # `DeadOwnerSweep` says so where the folder cannot be used
                    remember_store(Path(self._settings.supervisor.run_directory), self._settings.store_name)
            await self._look_once()
            rng = Random()  # noqa: S311  # spreads retries, guards nothing
            worker = self._worker = self._report.worker = Worker(self._store, endpoints, telemetry, self._setup(), rng)
            worker.drain(self._drains)
            with self._sweep:
                async with self._serving():
                    self._pipe.send(Ready())
                    return await self._serve(worker)

    def _setup(self) -> WorkerSetup:
        settings = self._settings
        usage = Usage(self._start.workers, kept_s=lambda: self._kept.seconds)
        meters = Meters(
            settings.balance,
            limits=usage.limits,
            probe=usage.percents,
            taken_in=lambda: self._telemetry.taken_in_bytes,
        )
        start = self._start
        return WorkerSetup(
            start.cookie,
            settings.ownership,
            settings.delivery,
            start.group_size,
            meters,
            self._gate,
            settings.quarantine,
            self._budgets,
            self._tracer,
            heal=settings.rados.heal,
            spill=settings.spill.rules,
            counts_letters=start.sweeps,
            layouts=self._store.own_topics,
            hostname=socket.gethostname(),
        )

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        """Serve what the supervisor listens for, while the block runs."""
        start = self._start
        load = HostLoad(start.load, start.workers, start.number - 1)
        host = OfHost(load, self._credit or NoBank(), self._tracer, self._introductions.learn_tokens)
        sockets = {name: [socket.socket(fileno=each) for each in found] for name, found in start.listeners.items()}
        given = Serving(self._settings, self._store, self._telemetry, host)
        async with open_servers(sockets, given) as servers:
            self._servers = self._report.servers = servers
            yield

    async def _look_once(self) -> None:
        """Raise StoreMisconfigured when this user may not even see the queues; for a store that is away don't wait."""
        try:
            async with asyncio.timeout(FIRST_LOOK_S):
                await self._store.catalog.shards()
        except StoreMisconfigured:
            raise
        except (StoreError, TimeoutError):
            return  # the worker waits for it, and says so

    async def _serve(self, worker: Worker) -> bool:
        """Work until the supervisor asks to finish; returns whether everything in flight was finished."""
        async with asyncio.TaskGroup() as tasks:
            helpers = [
                tasks.create_task(measure_lag(self._telemetry), name="lag"),
                tasks.create_task(self._report_levels(worker), name="levels"),
                tasks.create_task(self._sweep.run(worker), name="sweep after dead owners"),
                tasks.create_task(self._introductions.run(), name="introductions"),
            ]
            if self._settings.balance.by_load:
                helpers.append(tasks.create_task(self._kept.run(), name="kept from running"))
            work = tasks.create_task(worker.run(), name="worker")
            await self._finish.wait()
            clean = await self._drain(worker, work)
            for each in helpers:
                each.cancel()
        return clean

    async def _drain(self, worker: Worker, work: asyncio.Task[None]) -> bool:
        """Finish what is in flight, for as long as the settings allow; returns whether everything was finished."""
        for each in self._servers.values():
            each.end()
        worker.end()
        at_once = asyncio.ensure_future(self._stop_now.wait())
        await asyncio.wait(
            [work, at_once], timeout=self._settings.delivery.drain_timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        at_once.cancel()
        clean = work.done()
        work.cancel()
        await asyncio.wait([work])
        if clean:
            self._sweep.finished()
        return clean

    async def _report_levels(self, worker: Worker) -> None:
        while True:
            self._telemetry.in_flight(worker.budget.held, worker.entries.held)
            self._telemetry.store_synced(self._store.synced)
            self._telemetry.store_depth(*self._store.depth)
            self._telemetry.note_stages(self._telemetry.clock())
            self.garbage.report(self._telemetry)
            self.garbage.settle(worker.held_shards)
            self._report.store_failing(self._store.failing, self._store.damaged)
            self._telemetry.shaping_waiting(self._gate.waiting_by_scope())
            await asyncio.sleep(1)

    # -------------------------------------------------------------------------------- the supervisor

    async def _hear(self, tasks: asyncio.TaskGroup) -> None:
        """Do what the supervisor says; without one, end at once, as a process that is killed does.

        No supervisor would watch this worker from then on, and a new one starts others in its place.
        """
        while (line := await self._pipe.line()) is not None:
            self._do(msgspec.json.decode(line, type=ToWorker), tasks)
        os._exit(Exit.FAILURE)

    def _do(self, message: ToWorker, tasks: asyncio.TaskGroup) -> None:
        match message:
            case Finish():
                self._finish.set()
            case StopNow():
                self._finish.set()
                self._stop_now.set()
            case Reload(settings=settings, groups=groups):
                self._reload(settings, groups)
            case Groups(groups=groups, shaping=shaping):
                self._shape(shaping, groups)
            case Drain(on=on):
                self._give_away(on)
            case Release() | UseStore():
                self._command(message)
            case Dead(cookies=cookies):
                self._sweep.mark_dead(cookies)
            case Ask():
                tasks.create_task(self._answer(message), name=f"answer {message.what}")
            case Start():
                raise AssertionError("a worker is started once")
            case _:
                assert_never(message)

    def _give_away(self, on: bool) -> None:
        self._drains = on
        if self._worker is not None:
            self._worker.drain(on)

    def _command(self, asked: Release | UseStore) -> None:
        """Do what a command of this host has asked the supervisor for."""
        if isinstance(asked, UseStore):
            self._gate.use_store(asked.priority, asked.nbytes)
        elif self._worker is not None:
            self._worker.quarantines.release(asked.destination, asked.caller)

    def _shape(self, shaping: ShapingSettings, groups: Mapping[str, int]) -> None:
        """Shape as these settings say; credit is dealt out to these groups."""
        if self._credit is not None:
            self._credit.learn(groups)
        self._gate.configure(shaping.rules, shaping.tick_s)

    def _reload(self, new: Settings, groups: Mapping[str, int]) -> None:
        """Use settings that differ in nothing but what can change in a running worker."""
        self._settings = new
        if self._worker is not None:
            self._worker.reload(new.delivery, new.balance, new.quarantine, new.ownership.schemes)
        self._telemetry.repeats.interval_s = new.log.repeat_interval_s
        configure_logging(new.log)
        self._shape(new.shaping, groups)
        for each in self._servers.values():
            each.reload(new)

    async def _answer(self, asked: Ask) -> None:
        """Answer a question. A defect in an answer costs the answer only."""
        try:
            body = await self._body(asked)
        except Exception:
            self._telemetry.crashed(f"answering {asked.what}")
        else:
            self._pipe.send(Reply(number=asked.number, body=msgspec.Raw(body)))

    async def _body(self, asked: Ask) -> bytes:
        match asked.what:
            case "use":
                return msgspec.json.encode(self._report.use())
            case "status":
                return msgspec.json.encode(await self._report.status(self._store if self._worker else None))
            case "flows":
                return msgspec.json.encode(self._gate.flows)
            case "addresses":
                return msgspec.json.encode(self._introductions.addresses)
            case "metrics":
                # Hundreds of topics take tens of milliseconds to write out; deliveries go on meanwhile.
                return await asyncio.to_thread(lambda: msgspec.json.encode(families(self._telemetry.registry)))

    async def _beat(self) -> None:
        """Say that the event loop goes round, and whether the worker's own loops do anything."""
        beat_s = min(BEAT_S, self._settings.supervisor.watchdog_s / BEATS)
        while True:
            if not (self._wants_memory or self._finish.is_set() or self.memory.has(PROBE_BYTES)):
                self._wants_memory = True
                self._finish.set()
                asyncio.get_running_loop().call_later(FINISH_S, self.memory.end)
            self._pipe.send(self._report.heartbeat(is_finishing=self._finish.is_set()))
            await asyncio.sleep(beat_s)
