"""A session with the cluster: one connected client and its pool handles, from connecting to shutting down."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar, cast

from remora.config.stores import RadosSettings
from remora.model.errors import StoreError, StoreUnavailable
from remora.storage.librados import (
    Cluster,
    Completions,
    IoCtx,
    LibradosError,
    ObjectOperation,
    ObjectWatch,
    UnwatchOp,
    WatchOp,
)
from remora.storage.rados.cluster.client import connected_client
from remora.storage.rados.cluster.placement import Locator, Placement, find_placement
from remora.storage.rados.cluster.refusals import PLAIN, MissingError, PoolMissing, Refusals, refusal


async def run_blocking(call: Callable[[], T], name: str, discard: Callable[[T], object] | None = None) -> T:
    """Run `call`, which may block, in a thread of its own and return its result, or raise what it raises.

    `asyncio.to_thread` was weighed: its executor joins its threads when the loop or the interpreter ends, so a call
    that waits for a monitor would keep the process from ending. This thread is a daemon. Cancelling the caller leaves
    the call running; its result then goes to `discard`, in a thread.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if error is not None:
            if not future.done():
                future.set_exception(error)
        elif not future.done():
            future.set_result(cast("T", result))
        elif discard is not None:
            threading.Thread(target=discard, args=(result,), name=name, daemon=True).start()

    def work() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as exc:  # handed to the caller, whatever it is
            error = exc
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:  # the loop has closed: no caller waits any more
            if discard is not None and error is None:
                discard(cast("T", result))

    threading.Thread(target=work, name=name, daemon=True).start()
    return await future


T = TypeVar("T")

_CLOSE_S = 2.0

_UNWATCH_S = 1.0


class ClusterSession:
    """Runs operations on the cluster through one client instance. A later session holds none of its locks."""

    placement: Placement
    """Set by `open_session`, which needs the connection to learn it."""

    def __init__(self, cluster: Cluster, settings: RadosSettings) -> None:
        self.lost = asyncio.Event()
        self._cluster = cluster
        self._settings = settings
        self._completions = Completions(asyncio.get_running_loop())
        self._pools: dict[Locator, IoCtx] = {}
        self._watches: dict[tuple[Locator, str], ObjectWatch] = {}
        # A blocking call holds this: the client must not be shut down under it.
        self._blocking = threading.Lock()
        self._closed = False

    @property
    def entity(self) -> str:
        """The name of this client in locks: `client.<number>`."""
        return f"client.{self._cluster.instance_id}"

    @property
    def under_way(self) -> int:
        """How many operations are not answered yet."""
        return self._completions.under_way

    async def run(
        self, operation: ObjectOperation, locator: Locator, oid: str, what: str, refusals: Refusals = PLAIN
    ) -> int:
        """Carry out an operation on an object and return the object's version.

        `what` begins the text of each error. Raises what `refusals` has for the errno, else StoreUnavailable,
        StoreMisconfigured or StoreError. `lost` is set when the cluster has blocklisted this client.
        """
        try:
            ioctx = self._pools.get(locator) or await self.open(locator)
            self._check_open(what)
        except BaseException:
            operation.end(answered=False)
            raise
        # Librados' own time-out comes first, unless its threads hang.
        timeout_s = None if operation.endless else self._settings.op_timeout_s + 1
        try:
            code, version = await self._completions.run(operation, ioctx.handle, oid, timeout_s)
        except TimeoutError as exc:
            raise StoreUnavailable(f"{what}: no answer within {timeout_s:g} s") from exc
        except LibradosError as exc:
            raise refusal(exc.code, what, self._settings.name, str(locator), PLAIN) from exc
        if code < 0:
            if code == -errno.ESHUTDOWN:
                self.lost.set()
            raise refusal(-code, what, self._settings.name, str(locator), refusals)
        return version

    @asynccontextmanager
    async def watching(
        self, locator: Locator, oid: str, notified: Callable[[], None], lost: Callable[[], None]
    ) -> AsyncIterator[ObjectWatch]:
        """Watch an object. `notified` is called whenever anybody notifies it, `lost` when that has ended by itself.

        Raises MissingError when there is no such object. Should the caller be cancelled before the OSD has answered,
        the OSD drops the watch when it is not heard of for half a minute.
        """
        place = locator, oid
        if (watch := self._watches.get(place)) is None:
            watch = self._watches[place] = ObjectWatch(asyncio.get_running_loop())
        watch.notified, watch.lost = notified, lost
        try:
            await self.run(WatchOp(watch), locator, oid, f"watching {oid}")
        except BaseException:
            watch.end()
            raise
        try:
            yield watch
        finally:
            watch.end()
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_UNWATCH_S):
                    await self.run(UnwatchOp(watch), locator, oid, f"ending the watch of {oid}")

    async def has_pool(self, pool: str) -> bool:
        """Whether the pool exists now."""
        return await self._run_blocking(lambda: self._cluster.has_pool(pool), f"looking for pool {pool}")

    async def ask_monitors(self, prefix: str, **arguments: str) -> bytes:
        """What the monitors answer to a command, in JSON."""
        command = json.dumps({"prefix": prefix, "format": "json", **arguments}).encode()
        return await self._run_blocking(lambda: self._cluster.mon_command(command), f"asking for {prefix}")

    async def list_objects(self, locator: Locator, prefix: str) -> list[str]:
        """The names of all objects whose name begins with the prefix, in no order."""
        ioctx = self._pools.get(locator) or await self.open(locator)

        def names() -> list[str]:
            return [name for name in ioctx.list_objects() if name.startswith(prefix)]

        return await self._run_blocking(names, f"listing objects of {locator}")

    async def open(self, locator: Locator) -> IoCtx:
        """Open a pool. Raises PoolMissing when there is no pool of that name."""
        what = f"opening pool {locator.pool}"
        try:
            ioctx = await self._run_blocking(lambda: self._cluster.open_pool(locator.pool, locator.namespace), what)
        except MissingError as exc:
            raise PoolMissing(f"there is no pool {locator.pool} (named by {self.placement.source})") from exc
        return self._pools.setdefault(locator, ioctx)

    def _check_open(self, what: str) -> None:
        if self._closed:
            raise StoreUnavailable(f"{what}: the connection was closed")

    async def _run_blocking(self, call: Callable[[], T], what: str) -> T:
        def guarded() -> T:
            with self._blocking:
                self._check_open(what)
                return call()

        # Librados bounds each request of the call; this bounds their sum.
        timeout_s = 3 * max(self._settings.op_timeout_s, self._settings.mount_timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                return await run_blocking(guarded, what)
        except TimeoutError as exc:
            raise StoreUnavailable(f"{what}: no answer within {timeout_s:g} s") from exc
        except LibradosError as exc:
            raise refusal(exc.code, what, self._settings.name, "", PLAIN) from exc

    async def close(self) -> None:
        """Shut the client down; after a few seconds returns and leaves the rest to a daemon thread."""
        self._closed = True
        for watch in self._watches.values():
            watch.stop()
        if not await self._completions.close(_CLOSE_S):
            return  # shutting down under these operations would free what they use

        def shut_down() -> None:
            with self._blocking:
                for ioctx in self._pools.values():
                    ioctx.destroy()
                self._cluster.shutdown()

        try:
            async with asyncio.timeout(_CLOSE_S):
                await run_blocking(shut_down, "closing the client")
        except TimeoutError:
            return
        for watch in self._watches.values():
            watch.close()


async def open_session(settings: RadosSettings, *, topics: bool) -> ClusterSession:
    """Connect, learn the placement, and open the queues' pool; with `topics` also the pools of topics.

    Raises PoolMissing, for a pool of topics only where the settings name it: a zone may be ahead of its radosgw,
    which makes it when there is something to store.
    """
    cluster = await run_blocking(lambda: connected_client(settings), "connecting", discard=Cluster.shutdown)
    session = ClusterSession(cluster, settings)
    try:
        session.placement = await find_placement(settings, timeout_s=2 * settings.mount_timeout_s)
        await session.open(session.placement.notif)
        for name, locator in (("log_pool", session.placement.log), ("topics_pool", session.placement.topics)):
            if topics and getattr(settings, name):
                await session.open(locator)
    except BaseException:
        await session.close()
        raise
    return session
