"""Which connections to an HTTP receiver are used again, and which are opened: against a server that only listens."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from devkit.receivers.streams import serving_streams
from devkit.waits import until
from remora.config import HttpSettings, Settings
from remora.endpoints.http.pool import ConnectionKey, Pool, Pools
from remora.endpoints.http.target import HttpServer
from remora.endpoints.observer import LogObserver
from remora.model.errors import EndpointUnavailable

SETTINGS = HttpSettings(connection_age_s=60)


@asynccontextmanager
async def listening() -> AsyncIterator[ConnectionKey]:
    """A receiver that never says anything."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        finally:
            writer.transport.abort()

    async with serving_streams(serve) as port:
        yield ConnectionKey(HttpServer("http", "127.0.0.1", port), by_operator=True)


def some_pools(settings: HttpSettings = SETTINGS) -> Pools:
    return Pools(settings, Settings().destination_rules, LogObserver())


async def test_a_connection_beyond_its_age_is_not_used_again() -> None:
    """One that is always busy grows old unseen by the sweep: its address may be another host's by now."""
    async with listening() as peer, some_pools() as pools:
        async with pools.connection(peer) as first:
            pass
        async with pools.connection(peer) as again:
            again.opened_at -= SETTINGS.connection_age_s
        async with pools.connection(peer) as other:
            assert not first.is_open

    assert again is first
    assert other is not first


async def test_pools_that_have_ended_give_no_connection() -> None:
    """Neither one that is open nor a new one: no sweep would end a request on it."""
    async with listening() as peer:
        async with some_pools() as pools, pools.connection(peer):
            pass
        with pytest.raises(EndpointUnavailable, match="the endpoint is closed"):
            async with pools.connection(peer):
                pass

        assert pools.count == 0


@pytest.mark.parametrize("most", [1, 4, 64])
def test_a_receiver_has_no_more_connections_than_are_allowed(most: int) -> None:
    """However many paths ask for one more as often as they like, no more are taken than may be open."""
    pool = Pool(ConnectionKey(HttpServer("http", "receiver", 80)), most)

    for path in [*"abc" * 10, *"a" * most, *"bc" * most]:
        pool.take(path)

    assert 1 <= pool.taken.total() <= most


@pytest.mark.parametrize("gives_up", [False, True])
async def test_connections_go_to_those_that_wait_in_their_order(*, gives_up: bool) -> None:
    """Who comes later, also in the moment in which a connection is given back, waits behind them; the turn of one that
    gives up goes to the next."""
    order = list[str]()

    async def use(name: str) -> None:
        async with pools.connection(peer):
            order.append(name)

    async with listening() as peer, some_pools(HttpSettings(connections=1)) as pools:
        async with pools.connection(peer):
            waiting = [asyncio.create_task(use(name)) for name in ("first", "second")]
            await until(lambda: sum(map(len, pools._pools[peer].waiting.values())) == 2, "both wait")
        if gives_up:
            waiting[0].cancel()
        await use("newcomer")
        await asyncio.wait(waiting)

        assert pools._pools[peer].taken.total() == 0

    assert order == ["first", "second", "newcomer"][gives_up:]


@pytest.mark.parametrize("most", [1, 3])
async def test_paths_have_connections_in_turn(most: int) -> None:
    """Where there are more paths than connections each gets one in its turn, though all always wait for another one."""
    pool = Pool(ConnectionKey(HttpServer("http", "receiver", 80)), most)
    waiting = {path: deque([pool.wait(path), pool.wait(path)]) for path in "abcde"}
    held, given = deque[str](), Counter[str]()

    for _ in range(30):
        if len(held) == most:
            pool.release(held.popleft())
        assert pool.wake()
        path = next(path for path, turns in waiting.items() if turns[0].done())
        waiting[path].popleft()
        waiting[path].append(pool.wait(path))
        held.append(path)
        given[path] += 1

    assert given == dict.fromkeys("abcde", 6)
