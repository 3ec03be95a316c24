"""Re-driving on RADOS, where a letter and its queue are two objects: cut short in between, it is completed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from devkit.clusters.ceph import Gateway, reached
from remora.config import RadosSettings
from remora.model.errors import StoreUnavailable
from remora.model.record import DeadLetter, LetterTotals, Redrive
from remora.model.shard import LockToken, Shard
from remora.storage.rados import RadosStore
from remora.storage.rados.redriving import RadosLetters
from support.stores import expire

pytestmark = pytest.mark.ceph


async def parked(store: RadosStore, shard: Shard, count: int) -> list[Redrive]:
    """This many letters of a queue, to be re-driven."""
    token = await store.locks.acquire(shard, "w", 90)
    assert isinstance(token, LockToken)
    letters = [
        DeadLetter(shard.queue, token.incarnation, f"0/{i}", f"0/{i + 1}", "expired", "", 0, 1.0, 2.0, b"%d" % i)
        for i in range(count)
    ]
    for each in letters:
        await store.letters.store(token, each)
    await store.locks.release(token)
    return [Redrive(each, each.raw) for each in letters]


async def contents(store: RadosStore, shard: Shard) -> list[bytes]:
    return [entry async for _, entry in store.inspection.dump(shard)]


class Killed(StoreUnavailable):
    """The process ends here."""


async def cut_short(store: RadosStore, shard: Shard, again: Sequence[Redrive], monkeypatch: pytest.MonkeyPatch) -> None:
    """Re-drive letters in a process that is killed when their entries were committed."""

    async def die(self: RadosLetters, queue: str, keys: Sequence[str], *, redriven: bool) -> set[str]:
        if keys:
            raise Killed("killed")
        return set()

    with monkeypatch.context() as patched:
        patched.setattr(RadosLetters, "_forget", die)
        with pytest.raises(Killed):
            await store.letters.redrive(shard, None, again)


@pytest.mark.guarantee("no-loss")
async def test_the_same_letters_again(
    settings: RadosSettings, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Letters whose entries were committed by a process that was then killed are forgotten, not committed again."""
    gateway.make_queue("q", 1 << 20)
    shard = Shard("q")
    async with reached(settings) as store, reached(settings) as other:
        again = await parked(store, shard, 3)
        await cut_short(store, shard, again[:2], monkeypatch)
        assert len([each async for each in other.letters.stored("q")]) == 3

        assert await other.letters.redrive(shard, None, again) == 3

        assert await contents(other, shard) == [b"0", b"1", b"2"]
        assert [each async for each in other.letters.stored("q")] == []
        assert (await other.letters.totals())["q"] == LetterTotals(redriven=3)


@pytest.mark.guarantee("no-loss")
async def test_other_letters_next(settings: RadosSettings, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that re-drives other letters of the queue next completes what was cut short."""
    gateway.make_queue("q", 1 << 20)
    shard = Shard("q")
    async with reached(settings) as store:
        again = await parked(store, shard, 3)
        await cut_short(store, shard, again[:1], monkeypatch)

        assert await store.letters.redrive(shard, None, again[2:]) == 1
        assert [each.raw async for each in store.letters.stored("q")] == [b"1"]
        assert await store.letters.redrive(shard, None, again) == 1

        assert await contents(store, shard) == [b"0", b"2", b"1"]


async def test_a_reservation_that_expired(
    settings: RadosSettings, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is slow between reserving and committing reserves anew, and commits once."""
    gateway.make_queue("q", 1 << 20)
    shard = Shard("q")
    async with reached(settings) as store:
        again = await parked(store, shard, 1)
        token = await store.locks.acquire(shard, "w", 90)
        assert isinstance(token, LockToken)
        redriving = store.letters
        commit, first = redriving._own_queues.commit_marked, True

        async def slowly(*args: Any) -> None:
            nonlocal first
            if first:
                first = False
                await expire(store, token, 0)
            await commit(*args)

        monkeypatch.setattr(redriving._own_queues, "commit_marked", slowly)
        assert await store.letters.redrive(shard, None, again) == 1

        assert await contents(store, shard) == [b"0"]
        assert (await store.inspection.stats(shard)).reservations == 0
