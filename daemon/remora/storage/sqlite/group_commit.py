"""Group commit: requests that arrive while the writer is busy share one transaction, and so one sync."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from remora.model.errors import RemoraError
from remora.model.shard import Shard
from remora.ports.tracing import NO_TRACER, Tracer, Work
from remora.storage.sqlite.files import File
from remora.storage.sqlite.write_batch import WriteBatch

T = TypeVar("T")

Request = Callable[[WriteBatch], T]
"""Adds to a write batch; raises before it changes anything, so that a refused request costs the others nothing.

It may be called again after the transaction was rolled back, and keeps nothing from one call to the next.
"""

_MOST_REQUESTS = 1024
_MOST_BYTES = 8 << 20
MOST_LINKS = 32
"""Requests that the span of a group links to, of those that have a trace."""

_MOST_TURNS = 8
"""A group waits for at most as many turns of the event loop, and only while each of them brings another request."""


@dataclass(slots=True, eq=False)
class _Group:
    """Requests that one transaction carries out in order; more may join until the first of them runs."""

    requests: list[Request[object]] = field(default_factory=list)
    arrived: list[Shard] = field(default_factory=list)
    outcomes: asyncio.Task[list[object]] = field(init=False)
    nbytes: int = 0
    contexts: list[bytes] = field(default_factory=list)
    _is_closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def join(self, request: Request[object], nbytes: int, arrived: Sequence[Shard], context: bytes) -> int | None:
        """Add a request; returns its index in the outcomes, or None when the group is full or has begun to run."""
        with self._lock:
            if self._is_closed or len(self.requests) >= _MOST_REQUESTS or self.nbytes > _MOST_BYTES:
                return None
            self.requests.append(request)
        self.nbytes += nbytes
        self.arrived += arrived
        if context and len(self.contexts) < MOST_LINKS:
            self.contexts.append(context)
        return len(self.requests) - 1

    async def gather(self) -> None:
        """Let the requests join that the event loop has already read from their connections.

        The writer starts within microseconds once it is idle. Without this it would sync for the first request alone,
        and requests that were sent together would be spread over many small transactions.
        """
        for _ in range(_MOST_TURNS):
            joined = len(self.requests)
            await asyncio.sleep(0)
            if len(self.requests) == joined:
                return

    def run(self, connection: sqlite3.Connection) -> list[object]:
        """The writer's job: returns the outcome of each request, an exception where it was refused."""
        with self._lock:
            self._is_closed = True
        batch = WriteBatch(connection)
        outcomes = [_outcome(request, batch) for request in self.requests]
        batch.flush()
        return outcomes


class GroupCommit:
    """Carries requests out; those that wait for a file at the same time share a transaction."""

    def __init__(self, tracer: Tracer = NO_TRACER) -> None:
        self._open: dict[File, _Group] = {}
        self._tracer = tracer

    async def submit(
        self, file: File, request: Request[T], nbytes: int = 0, arrived: Sequence[Shard] = (), context: bytes = b""
    ) -> T:
        """Return what the request returns, or raise what it raises, once it is durable.

        `nbytes` is about how much the request writes, `arrived` are the queues that it appends to, `context` is
        that of its trace. Cancelling the caller does not undo the request.
        """
        current = self._open.get(file)
        if current is None or (index := current.join(request, nbytes, arrived, context)) is None:
            current = self._open[file] = _Group()
            index = current.join(request, nbytes, arrived, context)
            # A task of its own: the first caller's cancellation must not end what the others wait for.
            current.outcomes = asyncio.create_task(self._carry_out(file, current), name=f"ingest {file.path.name}")
        outcome = (await asyncio.shield(current.outcomes))[index]  # type: ignore[index]  # a new group takes one
        if isinstance(outcome, Exception):
            raise outcome
        return outcome  # type: ignore[return-value]  # each index has its own type

    async def _carry_out(self, file: File, group: _Group) -> list[object]:
        try:
            await group.gather()
            span = self._tracer.begin(Work.COMMIT, file.path.name, {}, links=group.contexts)
            try:
                outcomes = await file.write(group.run, durable=True, arrived=group.arrived)
            except RemoraError as exc:
                span.end(str(exc))
                raise
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
