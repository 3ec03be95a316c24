"""What the store contract needs around a store: queues that come and go, and further workers on the same ones."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Protocol, TypeVar

import pytest

from remora.model.shard import Hold, Shard
from remora.ports import ShardStore

T = TypeVar("T")

QUIET_S = 90.0
"""A lease that no test outlives."""


class Yard(Protocol):
    """Where one kind of store keeps its queues."""

    def worker(self) -> AbstractAsyncContextManager[ShardStore]:
        """A store as another worker opens it: with a holder's identity of its own."""
        ...

    async def make(self, queue: str, ring_bytes: int) -> None:
        """Create a queue and register it."""
        ...

    async def register(self, queues: list[str]) -> None:
        """Put names into the registry that no queue belongs to."""
        ...

    async def delete(self, queue: str) -> None:
        """Delete a queue with all it holds."""
        ...

    async def exists(self, queue: str) -> bool:
        """Whether there is anything under this name."""
        ...


class RadosYard:
    """Queues in a namespace of a real cluster, made by an independent client."""

    def __init__(self, settings: Any, gateway: Any) -> None:
        self._settings = settings
        self._gateway = gateway

    def worker(self) -> AbstractAsyncContextManager[ShardStore]:
        from support.ceph import reached  # needs Debian's binding, which a host without Ceph does not have

        return reached(self._settings)

    async def make(self, queue: str, ring_bytes: int) -> None:
        self._gateway.make_queue(queue, ring_bytes)

    async def register(self, queues: list[str]) -> None:
        self._gateway.register(*queues)

    async def delete(self, queue: str) -> None:
        self._gateway.delete_queue(queue)

    async def exists(self, queue: str) -> bool:
        found: bool = self._gateway.exists(queue)
        return found


class Bench:
    """The store under test with helpers that make a test read as its story."""

    def __init__(self, yard: Yard, store: ShardStore, stack: AsyncExitStack) -> None:
        self.yard = yard
        self.store = store
        self._stack = stack

    async def another(self) -> ShardStore:
        """A further worker's store, closed at the end of the test."""
        return await self._stack.enter_async_context(self.yard.worker())

    async def queue(self, ring_bytes: int = 1 << 20, name: str = "q") -> Shard:
        """A new, empty queue."""
        queue = f"{name}-{uuid.uuid4().hex[:8]}"
        await self.yard.make(queue, ring_bytes)
        return Shard(queue)

    async def held(self, shard: Shard, cookie: str = "w1", lease_s: float = QUIET_S) -> Hold:
        """A lock that must be there for the taking."""
        answer = await self.store.acquire(shard, cookie, lease_s)
        assert isinstance(answer, Hold), answer
        return answer

    async def commit(self, shard: Shard, *payloads: bytes) -> None:
        """Reserve and commit, as a gateway does."""
        reservation = await self.store.reserve(shard, len(payloads), sum(map(len, payloads)))
        await self.store.commit(shard, reservation, payloads)

    async def contents(self, shard: Shard) -> list[bytes]:
        """All pending entries."""
        return [entry async for _, entry in self.store.dump(shard)]


async def until(condition: Callable[[], Awaitable[T]], within_s: float = 10.0) -> T:
    """The condition's first true value; it is asked again and again up to a deadline."""
    async with asyncio.timeout(within_s):
        while not (value := await condition()):  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(0.02)
    return value


@pytest.fixture(params=[pytest.param("rados", marks=pytest.mark.ceph)])
def yard(request: pytest.FixtureRequest) -> Yard:
    """Every store that keeps the contract, one after the other."""
    return RadosYard(request.getfixturevalue("settings"), request.getfixturevalue("gateway"))


@pytest.fixture
async def bench(yard: Yard) -> AsyncIterator[Bench]:
    """An open store."""
    async with AsyncExitStack() as stack:
        yield Bench(yard, await stack.enter_async_context(yard.worker()), stack)
