"""Keeps the workers alive: starts them, replaces those that end, kills those that hang, and stops them all.

Nothing that a worker, a file or a reload does ends it: each of its tasks and steps fails alone, and is done again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from random import Random
from types import MappingProxyType

from remora import __version__, config
from remora.config import Settings
from remora.metrics import Telemetry, configure_logging
from remora.model.caller import Caller
from remora.model.errors import ConfigError, WorkerFailed
from remora.model.exits import Exit
from remora.model.member import WorkerCookie
from remora.policy.restart import Watchdog, failures_in_a_row, restart_pause_s
from remora.process import credit, host_load, kept_settings
from remora.process.alone import AGAIN_S, Alone
from remora.process.credit import CreditMemory
from remora.process.notify import Notifier
from remora.process.pipe import (
    Dead,
    Drain,
    Finish,
    Groups,
    Heartbeat,
    Message,
    Ready,
    Release,
    Reload,
    Shares,
    Start,
    StopNow,
    ToSupervisor,
    WantGroup,
)
from remora.process.sockets import control_sockets, listening_sockets
from remora.process.usage import default_workers
from remora.servers import tokens
from remora.supervisor.child import Child, Spawned, start_process
from remora.supervisor.shaper import Shaper
from remora.supervisor.shaping import CreditReport, HostShaping
from remora.supervisor.view import OutageReport, WorkersView

START_S = 60.0
"""How much longer than the watchdog's time a worker may be silent before it is ready: it opens its store then."""

STOP_S = 12.0
"""What workers may take beyond `delivery.drain_timeout` for giving back locks and closing, before they are killed.

Together they stay below TimeoutStopSec= of the unit, so that it is the supervisor that says who did not end.
"""

STOP_NOW_S = 8.0
"""The same when the drain was cut short."""

LOOKS = 40
"""How often the watchdog is looked at in its time: often enough that every gap is one."""

MOST_DEAD = 100
"""How many cookies of ended workers are remembered for their successors."""


@dataclass(slots=True)
class Slot:
    """The place of one worker: who is in it, or when the next one is started."""

    number: int
    child: Child | None = None
    failures: int = 0
    due_at: float = 0.0


class Supervisor:
    """See the module. `run` is called once."""

    def __init__(
        self,
        settings: Settings,
        file: Path | None,
        spawn: Callable[[Sequence[int]], Spawned] = start_process,
        retired: Sequence[str] = (),
        listening: Mapping[str, Sequence[socket.socket]] = MappingProxyType({}),
    ) -> None:
        """`retired` is what to say of options that the file has and that are none any longer.

        `listening` are the sockets of the workers' servers, by the servers' names.
        """
        self._settings = settings
        self._retired = retired
        self._address = settings.admin.listen
        self._spawn = spawn
        self._file = file
        self._slots = [Slot(number + 1) for number in range(settings.supervisor.workers or default_workers())]
        self._boot = boot_id()
        self._dead: list[str] = []
        self._news = asyncio.Event()
        self._stops = 0
        self._drains = False
        self._failure: WorkerFailed | None = None
        self._was_ready = False
        """Whether a worker has ever been ready: those that are started from then on replace others."""
        self._listeners = listening
        self._load = host_load.shared_memory(len(self._slots))
        self._credit = credit.shared_memory(len(self._slots))
        # A permutation of the workers each tick guards nothing.
        self._shaper = Shaper(CreditMemory(self._credit, len(self._slots)), Random())  # noqa: S311
        self._watchdog = Watchdog(settings.supervisor.watchdog_s, 0.0)
        self._tasks = asyncio.TaskGroup()
        self._notifier = Notifier(os.environ)
        self._telemetry = Telemetry(
            metric_topics=settings.admin.metric_topics, repeat_interval_s=settings.log.repeat_interval_s
        )
        self._alone = Alone(self._telemetry.crashed)
        self._view = WorkersView(self._telemetry, len(self._slots), self._alone)
        self._shaping = HostShaping(
            self._shaper,
            settings.shaping,
            settings.ingest.limit,
            len(self._slots),
            self._view,
            self._telemetry,
        )
        self._shaping.on_change = self._shaper.on_new_groups = self._tell_shaping
        self._shaping.on_use = lambda place, use: self._tell(use, self._slots[place : place + 1])

    @property
    def count(self) -> int:
        """How many workers there are to be."""
        return len(self._slots)

    @property
    def inherited(self) -> tuple[int, ...]:
        """The descriptors that every worker inherits."""
        return *(each.fileno() for each in chain(*self._listeners.values())), self._load, self._credit

    async def run(self) -> Exit:
        """Listen for commands, start the workers, reconcile until a stop is asked for, and wait for all to end."""
        settings = self._settings
        if settings.admin.control_tokens:
            tokens.load(settings.admin.control_tokens, tokens.CONTROL)  # refused now, rather than at the first command
        self._telemetry.started(__version__, str(config.file_of(self._file) or config.BUILT_IN), len(self._slots))
        passed_over = [f"{name} is passed over: {why}" for name, why in config.strangers(os.environ)]
        self._telemetry.config_remarks([*self._shaping.remarks, *self._retired, *passed_over])
        self._watchdog.looked_at = asyncio.get_running_loop().time()
        with (
            self._notifier,
            listening_sockets("admin.listen", settings.admin.listen, int(settings.admin.socket_mode, 8)) as admin,
            control_sockets(settings, self._telemetry.control_unavailable) as control,
        ):
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._on_stop, number.name)
            loop.add_signal_handler(signal.SIGHUP, self._on_reload)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # `remora run` has it wait
            async with self._tasks:
                self._reconcile()
                is_clean = await self._serve(admin, control)
        if self._failure is not None:
            raise self._failure
        return Exit.OK if is_clean else Exit.DRAIN_TIMEOUT

    async def _serve(self, admin: Sequence[socket.socket], control: Sequence[socket.socket]) -> bool:
        """Speak for the workers while they run; returns whether all of them finished."""
        # Not before the workers are started: these take about as long to import as they take to begin.
        from remora.servers.admin import Sources, serve_admin
        from remora.servers.control import Control, TokenDoor, of_socket, routes_of
        from remora.servers.routes import served

        view = self._view
        sources = Sources(
            view.live,
            view.readiness,
            view.status,
            view.metrics,
            self._shaping.show,
            has_page=True,
        )
        shaping = self._shaping
        changes = Control(
            self._drain, self._release, shaping.change, shaping.use_store, self._telemetry.control_refused
        )
        by_token = TokenDoor(self._settings.admin.control_tokens, self._settings.control_socket)

        async def admin_pages() -> None:
            async with serve_admin(admin, sources, routes_of(changes, by_token)) as address:
                self._telemetry.serving(address, self._settings.control_socket if control else "")
                self._address = address
                self._remember()
                await asyncio.Event().wait()

        async def commands() -> None:
            async with served(routes_of(changes, of_socket), control):
                await asyncio.Event().wait()

        helpers = [
            self._begin("admin pages", admin_pages),
            self._begin("commands", commands),
            self._begin("notify", lambda: self._notifier.run(lambda: True, view.line)),
            self._begin("watchdog", self._look),
            self._begin("shaper", self._shaper.run),
            self._begin("report of shaping", CreditReport(self._shaper, self._telemetry).run),
            self._begin("report of outages", OutageReport(view, self._telemetry).run),
        ]
        await self._alone.task("reconciling", self._until_stop)
        is_clean = await self._end_all()
        for each in helpers:
            each.cancel()
        return is_clean

    def _begin(self, what: str, work: Callable[[], Coroutine[object, object, None]]) -> asyncio.Task[None]:
        return self._tasks.create_task(self._alone.task(what, work), name=what)

    # ---------------------------------------------------------------------------------- reconciling

    async def _until_stop(self) -> None:
        """Reconcile at any news, until a stop is asked for or the start has failed."""
        while not (self._stops or self._failure):
            await self._news.wait()
            self._reconcile()

    def _reconcile(self) -> None:
        """Make the workers what they are to be, from whatever they are."""
        self._news.clear()
        now = asyncio.get_running_loop().time()
        for slot in self._slots:
            try:
                self._fill(slot, now)
            except Exception:
                self._telemetry.crashed(f"place of worker {slot.number}")
                self._fill_later(slot, now + AGAIN_S)
        with self._alone.step("count of workers"):
            self._count()

    def _fill(self, slot: Slot, now: float) -> None:
        """Have a worker in this place, now or when it is due."""
        if slot.child is not None and slot.child.code is not None:
            self._reap(slot, slot.child, now)
        if slot.child is None and self._failure is None:
            if slot.due_at <= now:
                self._start(slot, now)
            else:
                self._fill_later(slot, slot.due_at)

    def _fill_later(self, slot: Slot, at: float) -> None:
        slot.due_at = at
        asyncio.get_running_loop().call_at(at, self._news.set)

    def _count(self) -> None:
        """Let others see the workers as they are now; the first time that all are ready, the start is over."""
        children = self._view.children = [slot.child for slot in self._slots if slot.child is not None]
        ready = sum(child.is_ready for child in children)
        self._telemetry.workers(ready)
        if ready == len(self._slots) and not self._view.has_started:
            self._view.has_started = True
            self._notifier.ready()

    def _start(self, slot: Slot, now: float) -> None:
        """Start a worker; where the host cannot do that now, another time. All that can fail comes before."""
        cookie = str(WorkerCookie(self._settings.ownership.host, self._boot, str(uuid.uuid4())))
        descriptors = {name: tuple(each.fileno() for each in sockets) for name, sockets in self._listeners.items()}
        self._alone.each(
            f"start of worker {slot.number}",
            lambda: self._shaper.add(slot.number - 1),
            lambda: self._watchdog.watch(slot.number, now, patience_s=START_S),
        )
        start = Start(
            number=slot.number,
            cookie=cookie,
            settings=replace(self._settings, shaping=self._shaping.in_force),
            listeners=descriptors,
            load=self._load,
            workers=len(self._slots),
            credit=self._credit,
            groups=self._shaper.slots,
            dead=tuple(self._dead),
            sweeps=slot.number == 1,
            drains=self._drains,
            group_size=1 if self._was_ready else len(self._slots),
            replaces=self._was_ready,
        )
        try:
            spawned = self._spawn(self.inherited)
        except OSError as exc:
            self._not_started(slot, exc, now)
            return
        child = slot.child = Child(spawned, cookie, slot.number, self._hear, self._alone)
        self._tasks.create_task(child.run(start), name=f"worker {slot.number}")
        self._telemetry.worker_started(slot.number, child.pid)

    def _not_started(self, slot: Slot, exc: OSError, now: float) -> None:
        """The host has no process, memory, descriptor or interpreter to spare: that passes."""
        self._leave(slot)
        slot.failures += 1
        pause_s = restart_pause_s(slot.failures)
        self._telemetry.worker_not_started(slot.number, str(exc), pause_s)
        self._fill_later(slot, now + pause_s)

    def _leave(self, slot: Slot) -> None:
        """Nobody is in this place now: what it has of the host's is the others'."""
        self._alone.each(
            f"end of worker {slot.number}",
            lambda: host_load.clear(self._load, slot.number - 1),
            lambda: self._shaper.remove(slot.number - 1),
            lambda: self._watchdog.forget(slot.number),
        )

    def _reap(self, slot: Slot, child: Child, now: float) -> None:
        """A worker ended by itself: before it was ready that ends a start, otherwise it is replaced."""
        slot.child = None
        slot.due_at = now
        self._leave(slot)
        with self._alone.step(f"counters of worker {slot.number}"):
            self._view.ended(child.cookie)
        if not self._view.has_started and child.ready_at is None and not child.is_given_up:
            self._failure = self._failure or _failed(child)
            return
        if child.code != Exit.OK:
            # The other workers take its queues at once; without others, its successor does.
            self._dead = [*self._dead, child.cookie][-MOST_DEAD:]
            self._tell(Dead(cookies=(child.cookie,)))
        served_s = now - child.ready_at if child.ready_at is not None else 0.0
        slot.failures = failures_in_a_row(slot.failures, served_s)
        pause_s = restart_pause_s(slot.failures)
        slot.due_at = now + pause_s
        self._telemetry.worker_ended(slot.number, child.pid, child.why, pause_s)

    def _hear(self, child: Child, message: ToSupervisor | None) -> None:
        """A worker said something; None: it has ended."""
        now = asyncio.get_running_loop().time()
        match message:
            case Heartbeat(is_alive=True):
                self._watchdog.heard(child.number, now)
            case WantGroup(group=group):
                if self._shaper.want(group):
                    self._tell_shaping()
            case Shares(shares=shares):
                self._shaper.share(child.number - 1, shares)
            case Ready():
                self._was_ready = True
                self._news.set()
                self._telemetry.worker_ready(child.number, child.pid, now - child.started_at)
                self._watchdog.watch(child.number, now)
            case None:
                self._news.set()

    def _tell_shaping(self) -> None:
        """Sends the workers the shaping settings and the groups."""
        self._tell(Groups(groups=self._shaper.slots, shaping=self._shaping.in_force))

    def _tell(self, message: Message, slots: Sequence[Slot] | None = None) -> None:
        """Tell the workers that run in these places, or all of them."""
        for slot in self._slots if slots is None else slots:
            if slot.child is not None and slot.child.code is None:
                with self._alone.step(f"message to worker {slot.number}"):
                    slot.child.tell(message)

    async def _look(self) -> None:
        """Kill workers that make no progress; what comes of it is reconciled like any other end."""
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            for number in self._watchdog.look(now):
                child = self._slots[number - 1].child
                if child is not None:
                    self._telemetry.worker_hangs(number, child.pid, self._watchdog.silent_s(number, now))
                    child.kill()
                self._watchdog.forget(number)
            await asyncio.sleep(self._watchdog.limit_s / LOOKS)

    # ------------------------------------------------------------------------------------- stopping

    async def _end_all(self) -> bool:
        """Let all workers finish, for as long as the settings allow; returns whether all of them did."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        self._view.stops = True
        self._alone.each("closing", *(each.close for each in chain(*self._listeners.values())))
        if self._failure is None:
            self._notifier.stopping()
            self._tell(Finish())
            await self._all_ended(self._settings.delivery.drain_timeout_s + STOP_S, unless_stops=2)
        self._tell(StopNow())
        await self._all_ended(STOP_NOW_S)
        for slot in self._slots:
            if slot.child is not None:
                slot.child.kill()
        await self._all_ended(STOP_NOW_S)
        unfinished = [slot.child for slot in self._slots if slot.child is not None and slot.child.code != Exit.OK]
        if self._failure is None:
            for child in unfinished:
                self._telemetry.worker_unfinished(child.number, child.pid, child.why)
            self._telemetry.drained(loop.time() - started, not unfinished)
        return not unfinished

    async def _all_ended(self, within_s: float, *, unless_stops: int | None = None) -> None:
        """Return when all workers have ended, when the time is over, or at the given number of signals to stop."""
        until = asyncio.get_running_loop().time() + within_s

        async def ended() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    while any(slot.child is not None and slot.child.code is None for slot in self._slots):
                        if unless_stops is not None and self._stops >= unless_stops:
                            return
                        await self._news.wait()
                        self._news.clear()

        await self._alone.task("stopping", ended)

    # -------------------------------------------------------------------------------------- signals

    def _on_stop(self, name: str) -> None:
        """The first signal drains, the second one stops at once."""
        if not self._stops:
            self._telemetry.draining(name)
        self._stops += 1
        self._news.set()

    def _on_reload(self) -> None:
        self._notifier.reloading()
        try:
            file = config.file_of(self._file)
            new, self._retired = config.loaded(file, os.environ)
            changed = config.changes(self._settings, new)
            self._settings = config.applied(self._settings, new)
        except ConfigError as exc:
            self._telemetry.reload_failed(str(exc))
        except Exception as exc:
            self._telemetry.crashed("reload")
            self._telemetry.reload_failed(f"{type(exc).__name__}: {exc}")
        else:
            self._telemetry.reloaded(str(file or config.BUILT_IN), changed.live, changed.restart)
            self._apply(new)
        self._notifier.ready()

    def _apply(self, new: Settings) -> None:
        """Have all that uses the settings use those of a reload."""
        self._telemetry.repeats.interval_s = new.log.repeat_interval_s
        self._alone.each(
            "reload",
            lambda: configure_logging(new.log),
            lambda: self._shaping.reload(self._settings.shaping, self._settings.ingest.limit),
            lambda: self._telemetry.config_remarks([*self._shaping.remarks, *self._retired]),
            self._remember,
        )
        self._tell(Reload(settings=self._settings, groups=self._shaper.slots))

    def _remember(self) -> None:
        """Keep for commands what this daemon works by, and where it listens, whatever becomes of its file."""
        listens = replace(self._settings.admin, listen=self._address)
        kept_settings.remember(replace(self._settings, admin=listens), config.file_of(self._file))

    def _drain(self, on: bool, caller: Caller) -> None:
        """Give this host's queues to the workers of others, or take part again."""
        self._telemetry.host_drain(self._drains, on, caller)
        self._drains = self._view.drains = on
        self._tell(Drain(on=on))

    def _release(self, destination: str | None, caller: Caller) -> None:
        """Have all workers use a destination again, or all of them."""
        self._telemetry.quarantine_release(destination, caller)
        self._tell(Release(destination=destination, caller=caller))


def _failed(child: Child) -> WorkerFailed:
    """Why a start ends with a worker that did."""
    if child.failed is not None:
        return WorkerFailed(child.failed.code, child.failed.reason)
    return WorkerFailed(child.code or Exit.FAILURE, f"worker {child.number} ended before it was ready: {child.why}")


def boot_id() -> str:
    """What tells this boot of the host from others; `unknown` where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"
