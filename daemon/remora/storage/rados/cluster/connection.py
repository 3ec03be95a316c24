"""Keeps a session with the cluster while the store is open, and opens another one when it is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

from remora.config.stores import RadosSettings
from remora.model.errors import StoreError, StoreMisconfigured, StoreUnavailable
from remora.ports.credit import NO_TRAFFIC, StoreTraffic
from remora.storage.librados import ObjectOperation
from remora.storage.rados.cluster.client import check_client
from remora.storage.rados.cluster.osds import Osds
from remora.storage.rados.cluster.placement import Locator
from remora.storage.rados.cluster.refusals import PLAIN, Refusals
from remora.storage.rados.cluster.session import ClusterSession, open_session, run_blocking

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 15.0

# How long opening waits for the outcome of the first attempt to connect. A cluster that is up answers in a fraction of
# this, so a missing pool or a refused user is reported at once; one that is away does not delay the start.
_VERDICT_S = 2.0


class ClusterConnection:
    """Connects in the background, retries with back-off, and runs operations while there is a session.

    `on_state` is called with whether the cluster is reached, and a sentence, whenever that changes. `topics` says
    whether radosgw's topics are read, too. The parts of the store report to `traffic` what they do.
    """

    def __init__(
        self,
        settings: RadosSettings,
        on_state: Callable[[bool, str], None],
        *,
        topics: bool,
        traffic: StoreTraffic = NO_TRAFFIC,
    ) -> None:
        self._settings, self._reads_topics = settings, topics
        self.traffic = traffic
        self._on_state = on_state
        self._session: ClusterSession | None = None
        self._problem: StoreError = StoreUnavailable("not connected to the cluster yet")
        self.osds = Osds()
        self._answered_at = 0.0
        self._silent = False
        self._tried = asyncio.Event()
        self._stack = AsyncExitStack()

    @property
    def connected(self) -> bool:
        """Whether there is a session and the cluster answers in it."""
        return self._session is not None and not self._silent

    @property
    def under_way(self) -> int:
        """How many operations are not answered yet."""
        return self._session.under_way if self._session else 0

    @property
    def description(self) -> str:
        """The pool, what named it, the user, and the OSDs' releases; without a session the reason. One line."""
        user = self._settings.name
        if self._session is None:
            return f"Ceph as {user}: {self._problem}"
        placement = self._session.placement
        where = f"Ceph pool {placement.notif} (from {placement.source}) as {user}, {self._session.entity}"
        return f"{where}; {self.osds.releases}"

    @property
    def session(self) -> ClusterSession:
        """The session. Raises StoreUnavailable or StoreMisconfigured with the reason when there is none."""
        if self._session is None:
            raise type(self._problem)(str(self._problem))
        return self._session

    async def run(
        self,
        operation: ObjectOperation,
        oid: str,
        what: str,
        refusals: Refusals = PLAIN,
        locator: Locator | None = None,
    ) -> int:
        """Carry out an operation, in the queues' pool unless `locator` names another; see `ClusterSession.run`."""
        try:
            session = self.session
        except StoreError:
            operation.end(answered=False)
            raise
        try:
            version = await session.run(operation, locator or session.placement.notif, oid, what, refusals)
        except StoreUnavailable as exc:
            self._note_silence(exc)
            raise
        except StoreError:
            self._note_answer()
            raise
        self._note_answer()
        return version

    def _note_answer(self) -> None:
        self._answered_at = asyncio.get_running_loop().time()
        if self._silent:
            self._silent = False
            self._on_state(True, self.description)

    def _note_silence(self, exc: StoreUnavailable) -> None:
        """Report the cluster as away once no operation was answered for a time-out: one alone may meet a dead OSD."""
        quiet_s = asyncio.get_running_loop().time() - self._answered_at
        if not self._silent and self._session is not None and quiet_s >= self._settings.op_timeout_s:
            self._silent = True
            self._on_state(False, str(exc))

    async def __aenter__(self) -> ClusterConnection:
        await run_blocking(lambda: check_client(self._settings), "checking the client")
        tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        keeper = tasks.create_task(self._keep_session(), name="rados session")
        self._stack.callback(keeper.cancel)
        try:
            await self._wait_for_verdict()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def _wait_for_verdict(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_VERDICT_S):
                await self._tried.wait()
        if self._session is None and isinstance(self._problem, StoreMisconfigured):
            raise self._problem

    async def _keep_session(self) -> None:
        failures = 0
        while True:
            try:
                session = await open_session(self._settings, topics=self._reads_topics)
            except StoreError as exc:
                failures += 1
                self._set_state(None, exc)
                await asyncio.sleep(reconnect_pause_s(failures))
                continue
            failures = 0
            try:
                await self.osds.ask(session)
                self._set_state(session, StoreUnavailable("the connection was lost"))
                async with asyncio.TaskGroup() as tasks:
                    asking = tasks.create_task(self.osds.keep_asking(session), name="rados releases")
                    await session.lost.wait()
                    asking.cancel()
                self._set_state(None, StoreUnavailable("the cluster has shut this client out; connecting anew"))
            finally:
                self._session = None
                await session.close()
            await asyncio.sleep(reconnect_pause_s(1))  # where the whole host is blocklisted, every new client is, too

    def _set_state(self, session: ClusterSession | None, problem: StoreError) -> None:
        self._session, self._problem, self._silent = session, problem, False
        self._tried.set()
        self._on_state(self.connected, self.description if session else str(problem))


def reconnect_pause_s(failures: int) -> float:
    """Exponential back-off with jitter, so that many daemons do not reconnect in step."""
    longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**failures)
    return random.uniform(longest / 4, longest)  # noqa: S311 - spreads load, guards nothing
