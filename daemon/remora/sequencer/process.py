"""`remora sequencer` from its first socket to its last lock: a store, the logs it serves, and their connections."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from random import Random

from prometheus_client import Metric

from remora import __version__
from remora.app import open_logs
from remora.codec import speedups
from remora.config.sequencer import SequencerSettings
from remora.config.settings import Settings
from remora.engine.sequencer import Sequencing, ServedTotals
from remora.metrics import configure_logging
from remora.metrics.sequencer import SequencerFigures, SequencerTelemetry
from remora.model.errors import ConfigError
from remora.model.exits import Exit
from remora.model.health import Health
from remora.policy.logs.sequence import LogPhase
from remora.policy.status import readiness
from remora.policy.status.readiness import HostReadiness
from remora.process.alone import Alone
from remora.process.loop import run_loop
from remora.process.sockets import listening_sockets, shown_address
from remora.sequencer.owners import Owners
from remora.sequencer.shared import SharedCounters
from remora.sequencer.workers import SequencerWorkers
from remora.servers.admin import Sources, serve_admin
from remora.servers.sequencer import Rounds, SecureConnections, may_speak_plainly, tls_context

Report = Callable[[str], None]

OTHER_DESCRIPTORS = 256
"""Files and sockets that are no connections of clients: the store's, logs, pages."""

MOST_REASONS = 10
MOST_LOGS = 1000
"""Logs on the status page."""

_log = logging.getLogger(__name__)


def run(settings: Settings, report_s: float = 0.0, report: Report = print) -> Exit:
    """Serve until SIGTERM or SIGINT; every `report_s` seconds `report` gets a line, never where that is 0.

    Raises ConfigError where the address cannot be listened on.
    """
    configure_logging(settings.log)
    _have_descriptors(settings.sequencer.max_connections)
    gc.freeze()  # what was imported stays
    return run_loop(_serve(settings, report_s, report))


def _have_descriptors(connections: int) -> None:
    """Let this process have a descriptor for each connection, of which a shell grants it about as many alone."""
    wanted = connections + OTHER_DESCRIPTORS
    with suppress(ValueError, OSError):  # the kernel, or a filter of system calls, has the last word
        few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if few >= wanted:
            return
        if most < wanted:
            problem = f"sequencer.max_connections is {connections}, but this process may have {most} files"
            _log.warning(problem, extra={"event": "few_descriptors"})
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, most), most))


async def _serve(settings: Settings, report_s: float, report: Report) -> Exit:
    mine = settings.sequencer
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop.set)
    if speedups.IMPLEMENTATION != "compiled":
        _log.warning(speedups.NOT_COMPILED, extra={"event": "not_compiled"})
    with listening_sockets("sequencer.listen", mine.listen, int(mine.socket_mode, 8)) as sockets:
        address = shown_address(sockets)
        owners = Owners(settings)
        async with open_logs(settings, is_dead=owners.is_dead) as logs:
            telemetry = SequencerTelemetry(settings.admin.metric_topics, settings.log.repeat_interval_s)
            alone = Alone(telemetry.crashed)
            chance = Random()  # noqa: S311  # spreads retries, guards nothing
            workers, core = _workers(mine), speedups.SequencerCore
            make = core if workers == 1 else functools.partial(SharedCounters, mine.max_logs)
            sequencing = Sequencing(logs, mine, address, chance, telemetry, make)
            serving = _alone(mine, sequencing, sockets) if workers == 1 else _together(mine, sequencing, sockets, alone)
            async with serving as rounds, _admin(settings, Pages(sequencing, rounds, telemetry)):
                sys.stderr.write(f"remora: the sequencer listens on {address}\n")
                with (
                    owners.present(sequencing.owner),
                    _running(alone, "renewing locks", sequencing.run),
                    _running(alone, "looking for dead sequencers", lambda: _sweeps(owners, mine.lease_s)),
                    _running(alone, "rates", lambda: _reports(sequencing, rounds, report_s, report)),
                ):
                    await stop.wait()
                await sequencing.close()
    return Exit.OK


def _workers(settings: SequencerSettings) -> int:
    """How many processes hand positions out. Their counters need C11's atomics: without a compiler it is one."""
    wanted = settings.workers or len(os.sched_getaffinity(0))
    if wanted > 1 and speedups.SequencerCells is None:
        _log.warning(
            "sequencer.workers is %d, and one process hands positions out: the sequencer was not compiled", wanted,
            extra={"event": "one_sequencer_worker"},
        )  # fmt: skip
        return 1
    return wanted


@asynccontextmanager
async def _alone(
    settings: SequencerSettings, sequencing: Sequencing, sockets: Sequence[socket.socket]
) -> AsyncIterator[Rounds]:
    """Hand positions out in this process."""
    context, is_allowed = tls_context(settings), may_speak_plainly(settings)
    before, after, secure = sequencing.before, sequencing.after, None
    if context is not None:
        core = sequencing.core
        secure = SecureConnections(core, context, may_be_plain=is_allowed, before=before, after=after)
    rounds = Rounds(
        sequencing.core,
        sockets,
        most_connections=settings.max_connections,
        may_connect=is_allowed if secure is None else lambda _: True,
        secure=secure,
        before=before,
        after=after,
    )
    async with rounds:
        sequencing.resume = rounds.resume
        yield rounds


@asynccontextmanager
async def _together(
    settings: SequencerSettings, sequencing: Sequencing, sockets: Sequence[socket.socket], alone: Alone
) -> AsyncIterator[SequencerWorkers]:
    """Have worker processes hand positions out; this one registers logs, renews their locks and ends their epochs."""
    tls_context(settings)  # what is wrong with it is said at the start
    counters = sequencing.core
    assert isinstance(counters, SharedCounters)
    sequencing.trusted, sequencing.has_room = counters.trust, counters.has_room
    workers = SequencerWorkers(settings, _workers(settings), sockets, counters, sequencing, alone)
    with _running(alone, "sequencer workers", workers.run):
        await workers.begin()
        yield workers
        await workers.end()


@asynccontextmanager
async def _admin(settings: Settings, pages: Pages) -> AsyncIterator[None]:
    """Serve the pages while the block runs. Positions are handed out also where their address cannot be had."""
    listen, mode = settings.sequencer.admin_listen, int(settings.admin.socket_mode, 8)
    async with AsyncExitStack() as stack:
        if listen:
            try:
                sockets = stack.enter_context(listening_sockets("sequencer.admin_listen", listen, mode))
            except ConfigError as exc:
                _log.warning("no metrics, health and status: %s", exc, extra={"event": "admin_unavailable"})
            else:
                address = await stack.enter_async_context(serve_admin(sockets, pages.sources()))
                _log.info("metrics, health and status", extra={"event": "admin_listens", "address": address})
        yield


HandsOut = Rounds | SequencerWorkers
"""What has the connections: this process, or its workers."""


class Pages:
    """What the admin server of a sequencer shows."""

    def __init__(self, sequencing: Sequencing, rounds: HandsOut, telemetry: SequencerTelemetry) -> None:
        self._sequencing = sequencing
        self._rounds = rounds
        self._telemetry = telemetry
        telemetry.figures = self._figures

    def sources(self) -> Sources:
        """Where the pages come from."""
        questions = {"/-/ready": readiness.ready}
        return Sources(lambda: Health(ok=True), self._ready, self._status, self._metrics, questions=questions)

    def _health(self) -> Health:
        """Well unless the store cannot be used; a log that is not served says why."""
        problem = self._sequencing.store_problem
        reasons = [f"{log}: {reason}" for log, reason in self._sequencing.waiting().items() if reason]
        return Health(not problem, tuple([problem] * bool(problem) + reasons[:MOST_REASONS]))

    async def _ready(self, _: Callable[[HostReadiness], Health]) -> Health:
        return self._health()

    async def _status(self) -> dict[str, object]:
        health, positions = self._health(), self._sequencing.core.counters
        waiting = self._sequencing.waiting()
        logs = [
            {
                "log": str(log),
                "state": state.phase.value,
                "epoch": state.epoch,
                "tail": positions[log].position if log in positions else None,
                "waited_for": log in waiting,
                "reason": state.reason,
            }
            for log, state in sorted(self._sequencing.states().items())[:MOST_LOGS]
        ]
        return {
            "version": __version__,
            "ready": health.ok,
            "reasons": list(health.reasons),
            "connections": self._rounds.connections,
            "core": speedups.IMPLEMENTATION,
            "workers": self._rounds.pids if isinstance(self._rounds, SequencerWorkers) else [os.getpid()],
            "served": self._sequencing.served,
            "logs": logs,
        }

    async def _metrics(self) -> list[Metric]:
        return list(self._telemetry.registry.collect())

    def _figures(self) -> SequencerFigures:
        sequencing, figures = self._sequencing, self._rounds.figures
        states = dict.fromkeys((phase.value for phase in LogPhase), 0)
        for state in sequencing.states().values():
            states[state.phase.value] += 1
        return SequencerFigures(
            positions={str(log): count for log, count in sequencing.positions().items()},
            epochs={str(log): counter.epoch for log, counter in sequencing.core.counters.items()},
            results=sequencing.results(),
            states=states,
            closed={why.value: count for why, count in figures.closed.items()},
            waiting=len(sequencing.waiting()),
            connections=self._rounds.connections,
            rounds=figures.rounds,
            round_requests=tuple(figures.round_requests),
            sampled_requests=figures.sampled_requests,
        )


@contextmanager
def _running(alone: Alone, what: str, work: Callable[[], Coroutine[object, object, None]]) -> Iterator[None]:
    """Have a task run while the block does; after a defect it begins anew."""
    task = asyncio.ensure_future(alone.task(what, work))
    try:
        yield
    finally:
        task.cancel()


async def _sweeps(owners: Owners, every_s: float) -> None:
    """Delete what sequencers of this host have left that were killed."""
    while True:
        owners.sweep(asyncio.get_running_loop().time())
        await asyncio.sleep(every_s)


async def _reports(sequencing: Sequencing, rounds: HandsOut, every_s: float, report: Report) -> None:
    """A line of rates for each interval."""
    if not every_s:
        return
    now = asyncio.get_running_loop().time
    at, before = now(), ServedTotals()
    while True:
        await asyncio.sleep(at + every_s - now())
        took_s, totals = now() - at, sequencing.totals()
        at += took_s
        positions = (totals.positions - before.positions) / took_s
        requests = (totals.requests - before.requests) / took_s
        logs, before = sequencing.served, totals
        report(f"{positions:.0f} positions/s, {requests:.0f} requests/s, {logs} logs, {rounds.connections} connections")
