"""Requests that come together, as one job: they read what they decide on once, and their entries go in at once."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from remora.model.errors import RemoraError
from remora.model.shard import Shard
from remora.storage.sqlite.files import File
from remora.storage.sqlite.write_batch import WriteBatch

T = TypeVar("T")

Request = Callable[[WriteBatch], T]
"""Adds to a write batch; raises before it changes anything, so that a refused request costs the others nothing.

It may be called again after the transaction was rolled back, and keeps nothing from one call to the next.
"""

_MOST_REQUESTS = 1024
_MOST_BYTES = 8 << 20


@dataclass(slots=True, eq=False)
class _Round:
    """Requests that are carried out one after the other; more may join until the first one is."""

    requests: list[Request[object]] = field(default_factory=list)
    arrived: list[Shard] = field(default_factory=list)
    outcomes: asyncio.Task[list[object]] = field(init=False)
    _nbytes: int = 0
    _is_closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def join(self, request: Request[object], nbytes: int, arrived: Sequence[Shard]) -> int | None:
        """Add a request; its place in the outcomes, or None when it is too late."""
        with self._lock:
            if self._is_closed or len(self.requests) >= _MOST_REQUESTS or self._nbytes > _MOST_BYTES:
                return None
            self.requests.append(request)
        self._nbytes += nbytes
        self.arrived += arrived
        return len(self.requests) - 1

    def run(self, connection: sqlite3.Connection) -> list[object]:
        """The job: the outcome of each request, an exception where it was refused."""
        with self._lock:
            self._is_closed = True
        batch = WriteBatch(connection)
        outcomes = [_outcome(request, batch) for request in self.requests]
        batch.flush()
        return outcomes


class Rounds:
    """Has requests carried out, those of a file together that wait for it at the same time."""

    def __init__(self) -> None:
        self._open: dict[File, _Round] = {}

    async def ask(self, file: File, request: Request[T], nbytes: int = 0, arrived: Sequence[Shard] = ()) -> T:
        """What the request answers or raises, when it is durable; `arrived` are the queues that it appends to.

        Whoever stops waiting does not undo it.
        """
        current = self._open.get(file)
        if current is None or (place := current.join(request, nbytes, arrived)) is None:
            current = self._open[file] = _Round()
            place = current.join(request, nbytes, arrived)
            # What others wait for too must not end with the first one's patience.
            current.outcomes = asyncio.create_task(self._carry_out(file, current), name=f"ingest {file.path.name}")
        outcome = (await asyncio.shield(current.outcomes))[place]  # type: ignore[index]  # a new round takes one
        if isinstance(outcome, Exception):
            raise outcome
        return outcome  # type: ignore[return-value]  # each place has its own type

    async def _carry_out(self, file: File, round_: _Round) -> list[object]:
        try:
            return await file.write(round_.run, durable=True, arrived=round_.arrived)
        finally:
            if self._open.get(file) is round_:  # what it holds may be megabytes
                del self._open[file]


def _outcome(request: Request[object], batch: WriteBatch) -> object:
    try:
        return request(batch)
    except (RemoraError, ValueError) as exc:
        return exc
