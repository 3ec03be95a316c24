"""The connections of a worker, by what makes them alike. Kept open between requests, and bounded in number and age."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Self

from remora.config.delivery import HttpSettings
from remora.endpoints.dial import dial, look_up
from remora.endpoints.http.connection import HttpConnection
from remora.endpoints.http.target import HttpServer, Login
from remora.endpoints.observer import HttpObserver
from remora.endpoints.tasks import Tasks
from remora.endpoints.threads import run_blocking
from remora.endpoints.tls import Trust, build_context, refused_client
from remora.model.errors import EndpointMisconfigured, EndpointUnavailable
from remora.policy.delivery.destinations import DestinationRules
from remora.policy.ownership.quarantine import CONNECT

WORKER_CONNECTIONS = 4096
"""Open connections of one worker; the shipped unit allows 65,536 files."""

LEFT_FREE = 16
"""Of what other paths leave free of a receiver's connections one path leaves this part of it to them."""

SWEEP_S = 0.25

PROTOCOLS = ("http/1.1",)
"""What a TLS connection offers: pools of 1.1 suffice for bodies of a kilobyte."""


@dataclass(frozen=True, slots=True)
class ConnectionKey:
    """All that makes connections alike. `credential` is the digest of a named one: never shared with another."""

    server: HttpServer
    tls: Trust | None = None
    login: Login | None = None
    credential: str = ""
    by_operator: bool = False

    @property
    def shows_certificate(self) -> bool:
        """Whether the client shows who it is."""
        return self.tls is not None and self.tls.client is not None


@dataclass(slots=True, eq=False)
class Pool:
    """The connections to one peer. The last one used is used first, so that the others become idle.

    `most` may be open. Its paths share them: one whose requests hang never has all of them, and of those that wait for
    one the path goes first that has the fewest, of several such the one that got none for longest: where paths are more
    than connections, those that have some would else keep them. Of a path those get one in the order in which they
    came: a lane that goes on would else keep others waiting, and with them the front of their queue.
    Those that are `late` only wait for an answer that came too late, and make way for others.
    """

    peer: ConnectionKey
    most: int
    idle: list[HttpConnection] = field(default_factory=list)
    late: list[HttpConnection] = field(default_factory=list)
    open: set[HttpConnection] = field(default_factory=set)
    opening: int = 0
    taken: Counter[str] = field(default_factory=Counter)
    waiting: dict[str, deque[asyncio.Future[None]]] = field(default_factory=dict)
    context: ssl.SSLContext | None = None
    used_at: float = 0.0

    @property
    def count(self) -> int:
        """Connections that are open or about to be."""
        return len(self.open) + self.opening

    def take(self, path: str) -> bool:
        """Let the path have one more connection, if it may; whether that is so."""
        if not self._may_take(path, self.taken.total()):
            return False
        self.taken[path] += 1
        return True

    def _may_take(self, path: str, total: int) -> bool:
        free = self.most - (total - self.taken[path])
        return self.taken[path] < free - free // LEFT_FREE

    def release(self, path: str) -> None:
        """The path has one less."""
        self.taken[path] -= 1
        if not self.taken[path]:
            del self.taken[path]

    def wait(self, path: str) -> asyncio.Future[None]:
        """A turn of this path, which is done when the path has one more connection for it."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.setdefault(path, deque()).append(turn)
        return turn

    def give_up(self, path: str, turn: asyncio.Future[None]) -> None:
        """Nobody waits for the turn any more."""
        if turn.done() and not turn.cancelled():
            self.release(path)
            return
        with suppress(KeyError, ValueError):  # it was passed over
            self.waiting[path].remove(turn)
            if not self.waiting[path]:
                del self.waiting[path]

    def wake(self) -> bool:
        """Let one go on that waits and for which there is a connection; whether there was such a one."""
        total = self.taken.total()
        while self.idle or self.late or self.count < self.most:
            paths = [each for each in self.waiting if self._may_take(each, total)]
            if not paths:
                return False
            path = min(paths, key=self.taken.__getitem__)
            turns = self.waiting.pop(path)
            turn = turns.popleft()
            if turns:
                self.waiting[path] = turns  # behind the other paths
            if not turn.done():
                turn.set_result(None)
                self.taken[path] += 1
                return True
        return False


class Pools:
    """Used as `async with`; leaving it closes every connection, and none is opened afterwards."""

    def __init__(self, settings: HttpSettings, rules: DestinationRules, observer: HttpObserver) -> None:
        self._settings = settings
        self._rules = rules
        self._observer = observer
        self._pools: dict[ConnectionKey, Pool] = {}
        self._tasks = Tasks(observer)
        self._sweeper: asyncio.Task[None] | None = None
        self._ended = False

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._sweeper = self._tasks.begin(self._sweep(), name="sweep HTTP connections")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._sweeper is not None
        self._ended = True
        self._sweeper.cancel()
        for pool in self._pools.values():
            for each in list(pool.open):
                each.close()
        await self._tasks.__aexit__(None, None, None)

    @property
    def count(self) -> int:
        """Connections of all pools."""
        return sum(each.count for each in self._pools.values())

    @asynccontextmanager
    async def connection(self, peer: ConnectionKey, path: str = "") -> AsyncIterator[HttpConnection]:
        """A connection for one exchange, an idle one or a new one. Raises EndpointUnavailable or EndpointMisconfigured.

        Where as many are open as may be, this waits for one; as long as a request may take, and then fails.
        """
        pool = self._pools.get(peer)
        if pool is None:
            pool = self._pools[peer] = Pool(peer, self._settings.connections)
        connection = await self._acquire(pool, path)
        if pool.waiting:
            self._wake(pool)  # there may be one for another path, too, or for more of this one
        try:
            yield connection
        finally:
            pool.release(path)
            if connection.is_late:
                pool.late.append(connection)
            elif connection.is_open:
                pool.idle.append(connection)
            self._wake(pool)

    async def prove(self, peer: ConnectionKey) -> None:
        """Return when a connection is open or could be opened; it is kept. Raises as `connection` does."""
        async with self.connection(peer):
            return

    # ----------------------------------------------------------------------- taking and giving back

    async def _acquire(self, pool: Pool, path: str) -> HttpConnection:
        now = asyncio.get_running_loop().time
        until = now() + self._settings.request_timeout_s
        has_room = True
        while True:
            self._check_life(pool)
            pool.used_at = now()
            if not (has_room and pool.take(path)):
                await self._wait(pool, path, until - now())
            try:
                self._check_life(pool)
                if (connection := self._rested(pool)) is not None:
                    return connection
                if pool.count >= pool.most and pool.late:
                    pool.late[0].close()
                if has_room := self._has_room():  # the pool has: none is idle, and take() bounds those in use
                    return await self._open(pool)
            except BaseException:
                pool.release(path)
                self._wake(pool)
                raise
            pool.release(path)

    def _rested(self, pool: Pool) -> HttpConnection | None:
        """An idle connection that may be used again; those that are too old are closed."""
        now = asyncio.get_running_loop().time()
        while pool.idle:
            connection = pool.idle.pop()
            if connection.is_open and now - connection.opened_at < self._settings.connection_age_s:
                return connection
            connection.close()
        return None

    def _has_room(self) -> bool:
        """Whether the worker may have one more; a late or idle one of another pool makes way."""
        if self.count < WORKER_CONNECTIONS:
            return True
        late = [pool.late[0] for pool in self._pools.values() if pool.late]
        resting = late or [pool.idle[0] for pool in self._pools.values() if pool.idle]
        if not resting:
            return False
        min(resting, key=lambda each: each.used_at).close()
        return True

    async def _wait(self, pool: Pool, path: str, left_s: float) -> None:
        turn = pool.wait(path)
        try:
            async with asyncio.timeout(left_s):
                await turn
        except (TimeoutError, asyncio.CancelledError) as exc:
            pool.give_up(path, turn)
            self._wake(pool)
            if isinstance(exc, TimeoutError):
                raise EndpointUnavailable(f"{pool.peer.server}: all connections are in use", "aborted") from None
            raise

    def _wake(self, pool: Pool) -> None:
        """Let one more try that waits here, or in another pool where none does: the room may be the worker's."""
        for each in (pool, *self._pools.values()):
            if each.waiting and each.wake():
                return

    async def _open(self, pool: Pool) -> HttpConnection:
        pool.opening += 1
        try:
            connection = await self._connect(pool)
            pool.open.add(connection)
            self._observer.http_opened()
        finally:
            pool.opening -= 1
        if self._ended:  # the pool does not look after it any more
            connection.close()
        self._check_life(pool)
        if not connection.is_open:
            self._closed(pool, connection)
            raise EndpointUnavailable(f"{pool.peer.server}: the connection was closed at once", CONNECT)
        return connection

    def _check_life(self, pool: Pool) -> None:
        """Without the sweep no request would ever be given up."""
        if self._ended:
            raise EndpointUnavailable(f"{pool.peer.server}: the endpoint is closed", "aborted")

    def _closed(self, pool: Pool, connection: HttpConnection) -> None:
        if connection in pool.open:
            pool.open.discard(connection)
            for resting in (pool.idle, pool.late):
                if connection in resting:
                    resting.remove(connection)
            self._observer.http_closed()
            self._wake(pool)

    async def _sweep(self) -> None:
        """Give up requests whose time is over, and close what is idle or old; one timer for all of them."""
        loop, settings = asyncio.get_running_loop(), self._settings
        while True:
            await asyncio.sleep(SWEEP_S)
            now = loop.time()
            for peer, pool in list(self._pools.items()):
                for each in list(pool.open):
                    if each.is_busy:
                        each.sweep(now)
                for each in list(pool.idle):
                    too_long = now - each.used_at > settings.idle_timeout_s
                    if too_long or now - each.opened_at > settings.connection_age_s:
                        each.close()
                if not pool.count and not pool.waiting and now - pool.used_at > settings.idle_timeout_s:
                    del self._pools[peer]

    # -------------------------------------------------------------------------------- connecting

    async def addresses(self, peer: ConnectionKey, timeout_s: float) -> list[str]:
        """Returns the addresses of a server after the rules have allowed each. Raises as connecting does."""
        server = peer.server
        return await look_up(server.host, server.port, self._rules, timeout_s, by_operator=peer.by_operator)

    async def _connect(self, pool: Pool) -> HttpConnection:
        """Look the server up, and connect to the first of its addresses that answers."""
        server, patience_s = pool.peer.server, self._settings.connect_timeout_s
        try:
            async with asyncio.timeout(patience_s):
                addresses = await self.addresses(pool.peer, patience_s)
                context = await self._context(pool)
                for left in range(len(addresses), 0, -1):
                    address = addresses[-left]
                    try:
                        async with asyncio.timeout(patience_s / left if left > 1 else None):
                            return await self._connect_to(address, pool, context)
                    except (OSError, TimeoutError) as exc:
                        if left == 1 or isinstance(exc, ssl.SSLError):
                            raise
        except TimeoutError as exc:
            raise EndpointUnavailable(f"{server}: no connection within {patience_s:g} s", CONNECT) from exc
        except ssl.SSLError as exc:
            raise _translate_tls(pool.peer, exc) from exc
        except OSError as exc:
            why = exc.strerror or str(exc) or "the connection was closed before TLS was agreed on"
            raise EndpointUnavailable(f"{server}: {why}", CONNECT) from exc
        raise EndpointUnavailable(f"{server}: its name has no address", CONNECT)

    async def _connect_to(self, address: str, pool: Pool, context: ssl.SSLContext | None) -> HttpConnection:
        on_closed: Callable[[HttpConnection], None] = lambda each: self._closed(pool, each)  # noqa: E731 # of this pool
        _, connection = await dial(
            lambda: HttpConnection(self._settings.request_timeout_s, on_closed),
            address,
            pool.peer.server.port,
            ssl=context,
            server_hostname=pool.peer.server.host if context is not None else None,
        )
        return connection

    async def _context(self, pool: Pool) -> ssl.SSLContext | None:
        trust = pool.peer.tls
        if trust is not None and pool.context is None:
            pool.context = await run_blocking(
                ("http context", trust), lambda: build_context(trust, PROTOCOLS), f"{pool.peer.server}: its authorities"
            )
        return pool.context


def _translate_tls(peer: ConnectionKey, exc: ssl.SSLError) -> EndpointMisconfigured | EndpointUnavailable:
    server, reason = peer.server, (exc.reason or "").upper()
    if why := refused_client(exc, shown=peer.shows_certificate):
        return EndpointMisconfigured(f"{server}: {why}")
    if isinstance(exc, ssl.SSLCertVerificationError):
        return EndpointMisconfigured(f"{server}: its certificate is not trusted ({exc.verify_message})")
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"):
        return EndpointMisconfigured(f"{server}: the port speaks no TLS")
    return EndpointUnavailable(f"{server}: TLS failed ({reason.lower() or exc})", CONNECT)
