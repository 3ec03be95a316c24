"""Memory for the bodies of requests that are under way: bounded over all workers of the host.

While it is used up, a request waits at its headers and its connection is not read, so that TCP holds its sender back.
A semaphore of bytes would admit a large request never, or each small one before it; `policy.intake` says who is next.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType

from remora.metrics import Telemetry
from remora.policy.ingest.intake import Intake
from remora.process.host_load import HostLoad
from remora.servers.http.begun import in_task
from remora.servers.http.request import BodyReader
from remora.servers.ingest.problems import SLOW_DOWN, RefusedRequest, stopping

LOOK_S = 0.1
"""Who waits looks so often at what the other workers hold."""


class BodyBudget:
    """How many bytes of bodies are held now, and who waits. It belongs to one event loop."""

    def __init__(self, limit: int, host: HostLoad, telemetry: Telemetry) -> None:
        """From `limit` bytes of all workers on new requests wait, until less than half of it is held."""
        self._loop = asyncio.get_running_loop()
        self._intake: Intake[Share] = Intake(limit)
        self._host = host
        self._telemetry = telemetry
        self._at_headers: dict[Share, asyncio.Future[None]] = {}
        self._growing: dict[Share, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._host_paused = False
        self._has_observed = False

    @property
    def nbytes(self) -> int:
        """Bytes of the bodies of this worker."""
        return self._intake.own

    @property
    def waiting(self) -> int:
        """Requests of this worker that wait for memory."""
        return len(self._at_headers) + len(self._growing)

    def share(self, reader: BodyReader) -> Share:
        """One request's share; what it took is given back at the end of its block, however that ends."""
        return Share(self, reader)

    def end(self, share: Share) -> None:
        """Give back what a share took, and let in who may be now."""
        if share in self._intake:
            if self._intake.is_paused:
                self._observe()
            self._let_in(self._intake.end(share))

    def set_limit(self, limit: int) -> None:
        """Another limit, which counts at once."""
        self._observe()
        self._let_in(self._intake.set_limit(limit))

    def refuse_waiting(self) -> None:
        """The daemon is stopping: those that wait at their headers are answered so."""
        for waiter in self._at_headers.values():
            if not waiter.done():
                waiter.set_exception(stopping())

    def look(self) -> bool:
        """Let in who may be by what all workers hold now; whether ingest is paused."""
        self._observe()
        self._wake_growing()
        return self._intake.is_paused

    def admit(self, share: Share, nbytes: int) -> bool:
        """Whether a request may have its body read, with `nbytes` announced; 0: its length is unknown.

        Where it may not, it has to `wait`. What the other workers hold is looked at once for all of a turn of the loop.
        """
        if not self._has_observed:
            self._observe()
            self._has_observed = True
            self._loop.call_soon(setattr, self, "_has_observed", False)  # in the next turn
        if not self._intake.begin(share, nbytes):
            return False
        self._let_in(())
        return True

    async def wait(self, share: Share, timeout_s: float) -> None:
        """Return when a request that was not admitted may have its body read. Raises Problem after `timeout_s`.

        It stands among those that wait before its task begins: a request that ends in between may let it in.
        """
        with self._held_up(share, self._at_headers) as waiter:
            await in_task()
            try:
                async with asyncio.timeout(timeout_s):
                    await waiter
            except TimeoutError as exc:
                raise no_memory(timeout_s) from exc
            share.is_waiting = False

    async def grow(self, share: Share, nbytes: int) -> None:
        """Return when a body of unknown length may have `nbytes` more, and count them."""
        self._observe()
        while not self._intake.grow(share, nbytes, is_oldest=self._is_oldest(share)):
            with self._held_up(share, self._growing) as waiter:
                await waiter
                share.is_waiting = False
            self._observe()
        self._let_in(())

    @contextmanager
    def _held_up(self, share: Share, among: dict[Share, asyncio.Future[None]]) -> Iterator[asyncio.Future[None]]:
        """What is set when the share may go on; until then its connection is not read."""
        waiter = among[share] = self._loop.create_future()
        began = self._loop.time()
        share.reader.hold_for_memory()
        share.is_waiting = True
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._look_again)
        try:
            yield waiter
        finally:
            del among[share]
            self._telemetry.ingest_waited(self._loop.time() - began)
            share.reader.go_on_for_memory()

    def _look_again(self) -> None:
        self._timer = None
        self.look()
        if self.waiting:
            self._timer = self._loop.call_later(LOOK_S, self._look_again)

    def _observe(self) -> None:
        host, intake = self._host, self._intake
        self._host_paused = host.is_paused
        admitted = intake.observe(host.nbytes_of_others, is_paused=self._host_paused)
        if admitted or intake.is_paused != self._host_paused:
            self._let_in(admitted)

    def _let_in(self, admitted: Iterable[Share]) -> None:
        """Tell the other workers what is so by now, and those that wait who is let in."""
        intake, oldest = self._intake, self._intake.oldest_growing
        self._host.hold_bodies(intake.own, oldest.since_ns if oldest else 0)
        if intake.is_paused != self._host_paused:
            self._host_paused = intake.is_paused
            self._host.turn(is_paused=intake.is_paused)
            if intake.is_paused:
                self._telemetry.ingest_paused(intake.pending)
        for share in admitted:
            _wake(self._at_headers.get(share))
        if self._growing:
            self._wake_growing()

    def _wake_growing(self) -> None:
        for share, waiter in self._growing.items():
            if self._intake.may_grow(share, is_oldest=self._is_oldest(share)):
                _wake(waiter)

    def _is_oldest(self, share: Share) -> bool:
        return not self._host.has_older(share.since_ns)


class Share:
    """What one request holds."""

    __slots__ = ("_budget", "is_waiting", "nbytes", "reader", "since_ns")

    def __init__(self, budget: BodyBudget, reader: BodyReader) -> None:
        self._budget = budget
        self.reader = reader
        self.nbytes = 0
        self.since_ns = 0
        self.is_waiting = False
        """Whether it waits for memory, or did so until its time was over."""

    def __enter__(self) -> Share:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._budget.end(self)

    def begin(self, length: int | None) -> bool:
        """Whether a body of this length may be read, else it has to `wait`; None is unknown, and 0 never waits."""
        self.nbytes = length or 0
        if length is None:
            self.since_ns = time.monotonic_ns()
        if length != 0 and not self._budget.admit(self, self.nbytes):
            return False
        self.reader.go_on_for_memory()
        return True

    async def wait(self, timeout_s: float) -> None:
        """Return when the body may be read. Raises Problem when there is no memory for `timeout_s`."""
        await self._budget.wait(self, timeout_s)
        self.reader.go_on_for_memory()

    async def cover(self, nbytes: int) -> None:
        """Hold at least `nbytes` from now on; what a body of unknown length has beyond that waits for memory."""
        if nbytes > self.nbytes:
            await self._budget.grow(self, nbytes - self.nbytes)
            self.nbytes = nbytes


def no_memory(waited_s: float) -> RefusedRequest:
    """The refusal of a request that has waited for memory."""
    return RefusedRequest(SLOW_DOWN, f"other requests have held all the memory for bodies for {waited_s:g} s")


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
