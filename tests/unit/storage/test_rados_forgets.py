"""What the store on RADOS keeps in memory of queues and topics goes with them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from devkit.waits import PATIENT_S
from remora.model.errors import OwnershipLost, ShardGone, StoreError
from remora.model.shard import LockToken, Shard
from remora.storage.librados import operations
from remora.storage.rados.cluster.part import KeyedLocks
from remora.storage.rados.queues.locks import RadosLocks
from remora.storage.rados.queues.queue import HeldProgress, QueueParts, RadosQueue

TOKEN = LockToken(Shard("q"), "cookie", "incarnation")


async def test_a_lock_is_kept_while_it_is_used() -> None:
    """All who use a key at a time have one lock, in the order in which they came; nothing is left of it behind them."""
    locks: KeyedLocks[str] = KeyedLocks()
    order: list[int] = []

    async def use(number: int) -> None:
        async with locks.of("t"):
            order.append(number)
            await asyncio.sleep(0)
            order.append(number)

    await asyncio.gather(*(use(number) for number in range(3)))
    async with locks.of("other"):
        assert len(locks) == 1

    assert order == [0, 0, 1, 1, 2, 2]
    assert len(locks) == 0


class Cluster:
    """Answers each operation with an error, or none; and stands in for librados, which puts operations together."""

    def __init__(self, error: StoreError | None) -> None:
        self.session = SimpleNamespace(placement=SimpleNamespace(notif="pool", own="own"))
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return lambda *_: 1

    async def run(self, *_: object) -> int:
        if self._error is not None:
            raise self._error
        return 1


class Companion:
    """Notes which locks were let go."""

    def __init__(self) -> None:
        self.gone: list[LockToken] = []

    def let_go(self, token: LockToken) -> None:
        self.gone.append(token)


@pytest.mark.parametrize("error", [None, ShardGone("it is gone"), OwnershipLost("it is another's")])
async def test_what_is_known_of_a_held_queue_goes_with_its_lock(
    monkeypatch: pytest.MonkeyPatch, error: StoreError | None
) -> None:
    """A lock that is released, or turns out to be lost when it is renewed, leaves nothing in memory."""
    cluster: Any = Cluster(error)
    monkeypatch.setattr(operations, "load", lambda: cluster)
    companion: Any = Companion()
    nothing: Any = SimpleNamespace(let_go=lambda _: None)
    queue = RadosQueue(cluster, QueueParts(nothing, nothing, nothing, nothing), companion)
    locks = RadosLocks(cluster, nothing, nothing, nothing, queue, nothing)
    queue._progress[TOKEN] = HeldProgress()

    if error is None:
        await locks.release(TOKEN)
    else:
        assert await locks.renew_all([TOKEN], 1.0) == [error]

    assert (queue._progress, companion.gone) == ({}, [TOKEN])


async def test_locks_that_hang_hold_up_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where hundreds of a worker's locks lie on OSDs that do not answer, those of all others are renewed meanwhile:
    they would end while one time-out follows the other."""
    all_asked, goes_on = asyncio.Event(), asyncio.Event()

    class PartlyAway(Cluster):
        async def run(self, *asked: object) -> int:
            if asked[1] == "there.99":
                all_asked.set()
            if str(asked[1]).startswith("away"):
                await goes_on.wait()
            return 1

    cluster: Any = PartlyAway(None)
    monkeypatch.setattr(operations, "load", lambda: cluster)
    nothing: Any = None
    locks = RadosLocks(cluster, nothing, nothing, nothing, nothing, nothing)
    names = [*(f"away.{number}" for number in range(400)), *(f"there.{number}" for number in range(100))]
    renewing = asyncio.ensure_future(locks.renew_all([LockToken(Shard(each), "c", "i") for each in names], 90.0))

    async with asyncio.timeout(PATIENT_S):
        await all_asked.wait()
    goes_on.set()

    assert await renewing == [None] * len(names)
