"""Group commit: requests that arrive while the writer is busy share one transaction, and so one sync."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from remora.model.errors import RemoraError, StoreFull, StoreUnavailable
from remora.model.shard import Shard
from remora.policy.ingest.group_commit import Past, fitting, wait_s
from remora.policy.status.stages import EventStage
from remora.ports.stages import NO_METER, StageMeter
from remora.ports.tracing import NO_TRACER, Tracer, Work
from remora.storage.sqlite.files.connections import PAGE_BYTES, pages_left
from remora.storage.sqlite.files.file import File
from remora.storage.sqlite.tables.write_batch import WriteBatch

T = TypeVar("T")

Request = Callable[[WriteBatch], T]
"""Adds to a write batch; raises before it changes anything, so that a refused request costs the others nothing.

It may be called again after the transaction was rolled back, and keeps nothing from one call to the next.
"""

Done = Callable[[Any], None]
"""Gets what a request returns, or the exception that it raises."""


class Wants(NamedTuple):
    """What a request asks for beside itself: about how much it writes, the queues that it appends to, and the context
    of its trace."""

    nbytes: int = 0
    arrived: Collection[Shard] = ()
    context: bytes = b""


NOTHING = Wants()

_FIRST = Past()

_MOST_REQUESTS = 1024
_MOST_BYTES = 8 << 20
MOST_LINKS = 32
"""Requests that the span of a group links to, of those that have a trace."""

_MOST_TURNS = 8
"""A group waits for at most as many turns of the event loop, and only while each of them brings another request."""


@dataclass(slots=True, eq=False)
class _Group:
    """Requests that one transaction carries out in order; more may join until the first of them runs.

    Run again, since the file had no room for all of them, it refuses those that still find none, and not the others.
    """

    requests: list[Request[object]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    waiting: list[Done] = field(default_factory=list)
    arrived: dict[Shard, None] = field(default_factory=dict)
    nbytes: int = 0
    contexts: list[bytes] = field(default_factory=list)
    wanted: int = 0
    since: float = field(default_factory=time.monotonic)
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    _is_closed: bool = False
    _has_run: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def join(self, request: Request[object], wants: Wants, done: Done) -> bool:
        """Add a request; False when the group is full or has begun to run."""
        with self._lock:
            if self._is_closed or self._is_full:
                return False
            self.requests.append(request)
            self.sizes.append(wants.nbytes)
            self.waiting.append(done)
            self.nbytes += wants.nbytes
            self.arrived.update(dict.fromkeys(wants.arrived))
        # One that is full waits for nobody: the next group could be enough before it, and overtake it.
        if len(self.requests) == self.wanted or self._is_full:
            self.enough.set()
        if wants.context and len(self.contexts) < MOST_LINKS:
            self.contexts.append(wants.context)
        return True

    @property
    def _is_full(self) -> bool:
        return len(self.requests) >= _MOST_REQUESTS or self.nbytes > _MOST_BYTES

    async def gather(self, past: Past) -> None:
        """Let the requests join that the event loop has already read from their connections, and those that follow
        the answers of the transaction before.

        The writer starts within microseconds once it is idle. Without this it would sync for the first request alone,
        and requests that were sent together would be spread over many small transactions.
        """
        for _ in range(_MOST_TURNS):
            joined = len(self.requests)
            await asyncio.sleep(0)
            if len(self.requests) == joined:
                break
        if most_s := wait_s(len(self.requests), past):
            self.wanted = past.requests
            with suppress(TimeoutError):
                async with asyncio.timeout(most_s):
                    await self.enough.wait()

    def run(self, connection: sqlite3.Connection) -> list[object]:
        """The writer's job: returns the outcome of each request, an exception where it was refused."""
        with self._lock:
            self._is_closed = True
        taken = [True] * len(self.requests)
        if self._has_run:
            taken = fitting(self.sizes, PAGE_BYTES * pages_left(connection))
        self._has_run = True
        batch = WriteBatch(connection, self.arrived)
        outcomes = [
            _outcome(request, batch) if is_taken else StoreFull("no room is left for it")
            for request, is_taken in zip(self.requests, taken, strict=True)
        ]
        batch.flush()
        return outcomes


class GroupCommit:
    """Carries requests out; those that wait for a file at the same time share a transaction. It is synced, unless what
    it does need not outlive a power cut. `upkeep` of delivery joins the transaction of what comes a moment later."""

    def __init__(
        self,
        tracer: Tracer = NO_TRACER,
        meter: StageMeter = NO_METER,
        *,
        durable: bool = True,
        upkeep: bool = False,
    ) -> None:
        self._durable, self._upkeep = durable, upkeep
        self._open: dict[File, _Group] = {}
        self._past: WeakKeyDictionary[File, Past] = WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        self._tracer, self._meter = tracer, meter

    async def submit(self, file: File, request: Request[T], wants: Wants = NOTHING) -> T:
        """Return what the request returns, or raise what it raises, once it is durable.

        Cancelling the caller does not undo the request.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(outcome: object) -> None:
            if future.done():
                return
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)  # type: ignore[arg-type]  # each request has its own type

        self.submit_soon(file, request, wants, done)
        return await future

    def submit_soon(self, file: File, request: Request[T], wants: Wants, done: Done) -> None:
        """The same without waiting: `done` is called in the event loop with what it returns or raises."""
        current = self._open.get(file)
        if current is None or not current.join(request, wants, done):
            current = self._open[file] = _Group()
            current.join(request, wants, done)
            # A task of its own: no caller's end must end what the others wait for.
            task = asyncio.create_task(self._carry_out(file, current), name=f"ingest {file.path.name}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, file: File, group: _Group) -> None:
        """Write a group, and tell all that wait for it what came of their requests."""
        try:
            outcomes = await self._written(file, group)
        except Exception as exc:  # handed to the callers, whatever it is
            outcomes = [exc] * len(group.waiting)
        except BaseException:
            for done in group.waiting:
                done(StoreUnavailable(f"{file.path}: the daemon gave it up"))
            raise
        for done, outcome in zip(group.waiting, outcomes, strict=True):
            try:
                done(outcome)
            except Exception as exc:  # a defect of one caller, which the others must not wait for
                context = {"message": "a request was not told its outcome", "exception": exc}
                asyncio.get_running_loop().call_exception_handler(context)

    async def _written(self, file: File, group: _Group) -> list[object]:
        try:
            if not self._upkeep:
                await group.gather(self._past.get(file, _FIRST))
            began = asyncio.get_running_loop().time()
            span = self._tracer.begin(Work.COMMIT, file.path.name, {}, links=group.contexts)
            try:
                outcomes = await file.write(
                    group.run,
                    durable=self._durable,
                    upkeep=self._upkeep,
                    may_wait=self._upkeep,
                    arrived=group.arrived,
                )
            except RemoraError as exc:
                span.end(str(exc))
                raise
            self._meter.stage_took(EventStage.COMMIT, "sqlite", time.monotonic() - group.since)
            if any(isinstance(each, StoreFull) for each in outcomes):
                refusal = file.refused()
                outcomes = [refusal if isinstance(each, StoreFull) else each for each in outcomes]
            self._past[file] = Past(len(group.requests), asyncio.get_running_loop().time() - began)
            span.end(attributes={"remora.requests": len(group.requests), "remora.bytes": group.nbytes})
            return outcomes
        finally:
            if self._open.get(file) is group:  # what it holds may be megabytes
                del self._open[file]


def _outcome(request: Request[object], batch: WriteBatch) -> object:
    try:
        return request(batch)
    except (RemoraError, ValueError) as exc:
        return exc
