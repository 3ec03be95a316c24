"""Registers the logs that clients ask for, keeps their locks, and raises the bounds of counters.

A round of requests asks `before` for trust in the locks, once, and nothing is handed out of a log whose trust is over.
What is decided is in `policy/logs/sequence.py`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from remora.codec import speedups
from remora.codec.sequencer import Core, Result
from remora.config.sequencer import SequencerSettings
from remora.engine.lease import LogLease, is_lost, release_all, renew_all
from remora.metrics.sequencer import SequencerTelemetry
from remora.model.errors import OwnershipLost, StoreError
from remora.model.log import (
    MOST_POSITION,
    LogKind,
    LogLock,
    LogLocked,
    LogName,
    LogRefused,
    LogUnknown,
    Registered,
    StaleEpoch,
    name_problem,
)
from remora.policy.logs import sequence
from remora.policy.logs.sequence import LogPhase, LogShares, LogState
from remora.policy.ownership.lease import Term
from remora.ports.log import Logs

REACH = 1 << 20
"""How many positions a counter may hand out before its bound is raised durably; a kill skips that many at most."""

LOW = REACH // 2
"""With fewer left the bound is raised in the background."""

MOST_REMEMBERED = 4096
"""Logs that are remembered although they are not served, once they were asked for."""

MOST_OF_ONE = 256
"""Those of them that one connection has asked for first."""

FORGET_EVERY_S = 0.1
"""How often those that may be forgotten are looked for."""

NO_POSITIONS = "its positions are used up"
NO_EPOCHS = "its epochs are used up"

REGISTRATIONS = 32
"""Logs that are registered side by side."""

RENEWALS, RENEWAL_S = 1024, 0.1
"""So many renewals begin within so many seconds, however long those before them take."""

ASKED_WITHIN_S = 10.0
"""How long a log that is not served counts as one that clients wait for."""


@dataclass(slots=True)
class Served:
    """A log that is served: its lock, until when that may be trusted, and its first position in this epoch."""

    lease: LogLease
    epoch: int
    first: int
    is_raising: bool = False


@dataclass(frozen=True, slots=True)
class EndedEpoch:
    """An epoch that is served no more: its last position, and how many more were left below a counter's bound.

    The next server begins behind the bound, and hands those that are left out only where they were given back.
    """

    position: int = 0
    left: int = 0


@dataclass(slots=True)
class ServedTotals:
    """What was done since the start, for reports and metrics."""

    positions: int = 0
    requests: int = 0


MakesCore = Callable[[Callable[[LogName, Result], None], int, int], Core]
"""Makes a core of whom it tells what it misses, the longest range, and with how few positions left a bound is low."""


class _NoRoom(StoreError):
    """The server serves as many logs as it may."""


class Sequencing:
    """See the module. `run` is called once; `core` and the rounds ask it through `missed`, `before` and `after`."""

    def __init__(
        self,
        logs: Logs,
        settings: SequencerSettings,
        address: str,
        rng: Random,
        telemetry: SequencerTelemetry,
        core: MakesCore = speedups.SequencerCore,
    ) -> None:
        """`address` is where clients reach this server; `core` has the counters."""
        self._logs = logs
        self._settings = settings
        self._times = sequence.lease_times(settings.lease_s)
        self._address = address
        self._rng = rng
        self._telemetry = telemetry
        self.owner = secrets.token_hex(8)
        """The name of this server process in locks and projections."""
        self._states: dict[LogName, LogState] = {}
        self._shares = LogShares(MOST_REMEMBERED, MOST_OF_ONE)
        self._forget_at = 0.0
        self._served: dict[LogName, Served] = {}
        self._taking: set[LogName] = set()
        self._slots = asyncio.Semaphore(REGISTRATIONS)
        self._renewals = asyncio.Semaphore(RENEWALS)
        self._renewing: set[LogLease] = set()
        self._renewed_at = float("-inf")
        self._soonest = float("inf")
        self._tasks: set[asyncio.Task[None]] = set()
        self._registering: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._totals = ServedTotals()
        self._asked: dict[LogName, float] = {}
        self._store_problem = ""
        self.resume: Callable[[LogName], None] = lambda _: None
        """Called when connections that wait for a log may go on."""
        self.core = core(self.missed, settings.max_range, LOW)
        self.trusted: Callable[[LogName, float], None] = lambda _, __: None
        """Told for how many seconds from now the lock of a log is trusted, each time that this becomes known."""
        self.has_room: Callable[[], bool] = lambda: True
        """Whether the core has room for one more log."""

    # -------------------------------------------------------------------------------- from rounds

    def missed(self, log: LogName, result: Result) -> None:
        """A client asked for a log that is not served, or knows a later epoch of it."""
        if self._is_closing:
            return
        now = self._now()
        state = self._states.get(log, LogState())
        if result is Result.AHEAD:
            state, looks = sequence.ahead(state, now)
            if looks:
                self._start(self._look_again(log), f"projection of {log}")
        else:
            if log not in self._states and not self._remembers(log, now):
                return
            state, begins = sequence.asked(state, now)
            if begins:
                task = self._start(self._register(log, state.attempt), f"register {log}")
                self._registering.add(task)
                task.add_done_callback(self._registering.discard)
            if not state.is_missing:
                self._asked[log] = now
        self._states[log] = state

    def before(self) -> None:
        """Stop serving every log whose lock is not trusted any more; called before anything is handed out."""
        now = self._now()
        if now < self._soonest:
            return
        for log, served in list(self._served.items()):
            if not served.lease.term.is_trusted(now):
                self._stop(log, served.epoch, "its lock was not renewed in time", "trust")
        self._note_soonest()

    def after(self) -> None:
        """Raise the bounds that are low; called behind each round."""
        for log in self.core.low:
            served = self._served.get(log)
            if served is not None and not served.is_raising:
                served.is_raising = True
                self._start(self._raise_bound(log, served), f"bound of {log}")

    # ---------------------------------------------------------------------------------------- life

    async def run(self) -> None:
        """Renew locks until cancelled."""
        while True:
            await asyncio.sleep(self._times.renew_s / 5)
            self.begin_renewals()
            self.before()

    def begin_renewals(self) -> None:
        """Begin to renew what is due, and wait for nothing: a place of the store that hangs holds up its own logs only,
        and not those that are due meanwhile."""
        due: defaultdict[Hashable, list[Served]] = defaultdict(list)
        for log, served in self._served.items():
            if served.lease.term.renew_at <= self._now() and served.lease not in self._renewing:
                due[self._logs.place(log)].append(served)
        for together in due.values():
            self._renewing.update(each.lease for each in together)
            self._start(self._renew(together), "renew locks of logs")

    async def close(self) -> None:
        """Hand out nothing more, leave no holes behind counters, and give the locks back, within a few seconds.

        A registration that is under way goes on until then, for it has a lock to give back, and a bound.
        """
        self._is_closing = True
        for task in self._tasks - self._registering:
            task.cancel()
        leaving = [(each, self._stop(log, each.epoch, "the server stops")) for log, each in list(self._served.items())]
        ends = [self._leave(each.lease.token, each.epoch, ended) for each, ended in leaving]
        await release_all([*ends, *(_end_of(each) for each in self._registering)])
        for task in list(self._tasks):
            task.cancel()

    async def _leave(self, lock: LogLock, epoch: int, ended: EndedEpoch) -> None:
        try:
            await self._logs.settle(lock, epoch, ended.position)
            await self._logs.release(lock)
        except Exception as exc:
            self._telemetry.skipped(ended.left)
            if not isinstance(exc, StoreError):
                self._telemetry.crashed("giving a lock back")

    # ------------------------------------------------------------------------------------- figures

    @property
    def served(self) -> int:
        """How many logs are served."""
        return len(self._served)

    def totals(self) -> ServedTotals:
        """What was done since the start."""
        made = ServedTotals(**{name: getattr(self._totals, name) for name in ServedTotals.__slots__})
        for log, served in self._served.items():
            counter = self.core.counters[log]
            made.positions += counter.position - served.first
            made.requests += counter.requests
        made.requests += sum(self.core.results.values())
        return made

    @property
    def store_problem(self) -> str:
        """Why the store could not be used the last time; empty when it could."""
        return self._store_problem

    def states(self) -> dict[LogName, LogState]:
        """Where each log is that clients asked for."""
        return dict(self._states)

    def positions(self) -> dict[LogName, int]:
        """How many positions each log has handed out in the epoch that is served."""
        return {log: self.core.counters[log].position - served.first for log, served in self._served.items()}

    def waiting(self) -> dict[LogName, str]:
        """The logs that clients ask for and that are not served, though they may exist, each with its reason."""
        oldest = self._now() - ASKED_WITHIN_S
        self._asked = {log: at for log, at in self._asked.items() if at > oldest}
        return {log: self._states.get(log, LogState()).reason for log in self._asked}

    def results(self) -> dict[str, int]:
        """Requests since the start by what became of them."""
        made = {result.value: count for result, count in self.core.results.items()}
        made[Result.OK.value] = self.totals().requests - sum(self.core.results.values())
        return made

    def _failed(self, what: str, exc: Exception) -> str:
        """Note the failure that is handled; why it is, for the status. A defect says so, and is tried again as others
        are: a log whose registration ended without an outcome would never be served again."""
        if not isinstance(exc, StoreError):
            self._telemetry.crashed(what)
            return f"{what} failed unexpectedly: {exc!r}"
        if not isinstance(exc, LogUnknown | LogRefused | LogLocked | _NoRoom):
            self._store_problem = str(exc)
        return str(exc)

    # -------------------------------------------------------------------------------- registration

    async def _register(self, log: LogName, attempt: int) -> None:
        try:
            async with self._slots:
                began = self._now()
                lock = await self._locked(log)
                found = await self._logs.register(lock, self._address, REACH)
            if max(found.position, found.epoch) >= MOST_POSITION:
                raise LogRefused(NO_POSITIONS if found.position >= MOST_POSITION else NO_EPOCHS)
            self._taking.discard(log)
            if self._is_closing:
                left = found.bound - found.position if found.bound < MOST_POSITION else 0
                await self._leave(lock, found.epoch, EndedEpoch(found.position, left))
            else:
                self._serve(lock, found, attempt, began)
        except Exception as exc:
            self._taking.discard(log)
            unknown = isinstance(exc, LogUnknown | LogRefused)
            self._telemetry.not_registered("unknown" if unknown else "failed")
            if unknown:
                self._asked.pop(log, None)
            why, chance = self._failed("registering a log", exc), self._rng.random()
            state = self._states.get(log, LogState())
            self._states[log] = sequence.failed(state, attempt, self._now(), why, chance=chance, unknown=unknown)

    def _serve(self, lock: LogLock, found: Registered, attempt: int, began: float) -> None:
        """Serve an epoch that was begun, unless it was overtaken, or took longer than its lock is trusted."""
        log = lock.log
        state, serves = sequence.registered(self._states.get(log, LogState()), attempt, found.epoch)
        if not serves:
            return
        term = Term.granted(self._times, began)
        if not term.is_trusted(self._now()):
            self._states[log] = LogState(attempt=attempt, reason="its registration took longer than its lease")
            return
        self.core.serve(log, found.epoch, found.position, found.bound)
        self._states[log] = state
        self._shares.drop(log)
        self._served[log] = Served(LogLease(lock, term), found.epoch, found.position)
        self._soonest = min(self._soonest, term.trusted_until)
        self._asked.pop(log, None)
        self._store_problem, self._renewed_at = "", self._now()
        self._telemetry.registered(self._now() - began)
        self.trusted(log, term.trusted_until - self._now())

    async def _locked(self, log: LogName) -> LogLock:
        """The lock of a log, which is made first where the settings allow it. Raises StoreError."""
        if problem := name_problem(log) or self._pool_problem(log):
            raise LogRefused(problem)
        if self._is_closing:
            raise LogLocked("the server stops")
        try:
            lock = await self._logs.acquire(log, self.owner, self._settings.lease_s)
        except LogUnknown:
            if not self._settings.create:
                raise
        else:
            await self._take_place(log, lock)
            return lock
        await self._take_place(log)
        kind = LogKind(self._settings.create)
        with suppress(LogRefused):  # another server has made it meanwhile
            await self._logs.create(log, kind, self._settings.width)
        return await self._logs.acquire(log, self.owner, self._settings.lease_s)

    def _pool_problem(self, log: LogName) -> str:
        pools = self._settings.pools
        if pools and log.pool.decode(errors="replace") not in pools:
            return "its pool is not among sequencer.pools"
        return ""

    async def _take_place(self, log: LogName, lock: LogLock | None = None) -> None:
        """Have the log be one of `max_logs`; otherwise its lock is given back, and that is an error."""
        most = self._settings.max_logs
        if len(self._served) + len(self._taking) < most and self.has_room():
            self._taking.add(log)
            return
        if lock is not None:
            await self._logs.release(lock)
        raise _NoRoom(f"the server serves {most} logs, as sequencer.max_logs says")

    def _remembers(self, log: LogName, now: float) -> bool:
        """Whether one more log may be remembered for its client; those whose pause is over make room for it."""
        if self._shares.admit(log, self.core.client):
            return True
        if now < self._forget_at:
            return False
        self._forget_at = now + FORGET_EVERY_S
        for each, state in list(self._states.items()):
            if state.phase is LogPhase.UNKNOWN or (state.phase is LogPhase.REFUSED and now >= state.until):
                del self._states[each]
                self._shares.drop(each)
        return self._shares.admit(log, self.core.client)

    # ------------------------------------------------------------------------------- what is served

    async def _renew(self, due: Sequence[Served]) -> None:
        """Renew locks of one place."""
        await self._renewals.acquire()
        asyncio.get_running_loop().call_later(RENEWAL_S, self._renewals.release)
        of = {each.lease: each for each in due}
        try:
            failed = await renew_all(self._logs, list(of), self._times, self._now)
        finally:
            self._renewing.difference_update(of)
        if len(failed) < len(due):
            self._store_problem, self._renewed_at = "", self._now()
        for lease, why in failed:
            if is_lost(why):
                self._stop(lease.token.log, of[lease].epoch, str(why), "lock")
            elif self._now() - self._renewed_at >= self._times.renew_s:  # no place of the store has answered since
                self._failed("renewing locks", why)
        for each in due:
            log = each.lease.token.log
            if self._served.get(log) is each:  # else its trust is none of the epoch that is served by now
                self.trusted(log, each.lease.term.trusted_until - self._now())
        self._note_soonest()

    async def _raise_bound(self, log: LogName, served: Served) -> None:
        """Raise a bound, with pauses until that is done: connections that wait for it make no round that would ask."""
        pause_s = sequence.FIRST_PAUSE_S
        while self._served.get(log) is served:
            position = self.core.counters[log].position
            if position >= MOST_POSITION:
                self._stop(log, served.epoch, NO_POSITIONS, "end")
                return
            bound = min(position + REACH, MOST_POSITION)
            try:
                await self._logs.raise_bound(served.lease.token, served.epoch, bound)
            except (OwnershipLost, StaleEpoch, LogUnknown) as exc:
                self._stop(log, served.epoch, str(exc), "epoch")
            except Exception as exc:
                self._failed("raising a bound", exc)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, sequence.LONGEST_PAUSE_S)
            else:
                if self._served.get(log) is not served:  # it was fenced while the store was asked
                    return
                self.core.raise_bound(log, served.epoch, bound)
                if self.core.counters[log].position < MOST_POSITION:
                    served.is_raising = False
                    self.resume(log)
                    return

    async def _look_again(self, log: LogName) -> None:
        """Whether the log is another server's by now, as clients say who know a later epoch."""
        served = self._served.get(log)
        if served is None:
            return
        try:
            found = await self._logs.projection(log)
        except LogUnknown as exc:
            self._stop(log, served.epoch, str(exc), "epoch")
            return
        except StoreError:
            return
        if (found.epoch, found.owner) != (served.epoch, self.owner):
            self._stop(log, served.epoch, f"its epoch is {found.epoch} by now", "epoch")

    def _stop(self, log: LogName, epoch: int, reason: str, kind: str = "") -> EndedEpoch:
        """Serve an epoch no more and forget its counter.

        `kind` is the reason for metrics, none where the server stops.
        """
        state, stops = sequence.lost(self._states.get(log, LogState()), epoch, reason)
        if not stops:
            return EndedEpoch()
        self._states[log] = state
        served, counter = self._served.pop(log), self.core.forget(log)
        assert counter is not None
        self._totals.positions += counter.position - served.first
        self._totals.requests += counter.requests
        self._telemetry.ended(str(log), counter.position - served.first)
        ended = EndedEpoch(counter.position, counter.bound - counter.position if counter.bound < MOST_POSITION else 0)
        if kind:
            self._telemetry.fenced(kind)
            self._telemetry.skipped(ended.left)
        asyncio.get_running_loop().call_soon(self.resume, log)
        return ended

    def _note_soonest(self) -> None:
        self._soonest = min((each.lease.term.trusted_until for each in self._served.values()), default=float("inf"))

    def _start(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        try:
            task.result()
        except asyncio.CancelledError:
            pass
        except Exception:
            self._telemetry.crashed(task.get_name())

    def _now(self) -> float:
        """Goes on while the host sleeps, as leases do; the loop's clock stands still."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)


async def _end_of(task: asyncio.Task[None]) -> None:
    """Return when a task has ended, however that was."""
    await asyncio.wait([task])
