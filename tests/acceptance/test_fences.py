"""Each fence is taken away, and the same fault that does nothing with it is then found by the chaos runs' checker.

Every test runs twice: once with the product as it is, where the checker finds nothing; and once without one fence,
which the test itself takes away, and where the checker must find what the fence is for. The fault is the same in both
and happens at a step that the test halts, so that nothing depends on luck.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from devkit.chaos.receivers import Arrivals, OverAmqp, over_http
from devkit.clusters.kafka import Kafka
from devkit.waits import until
from remora.endpoints.kafka import exact as exact_routes
from remora.endpoints.kafka import lookup
from remora.endpoints.kafka.transactions import TransactionalProducer
from remora.model.errors import OwnershipLost
from remora.model.ledger import Tally
from remora.model.shard import LockHolder, LockToken
from remora.storage.sqlite.tables.queue_rows import held_row
from support.owners import Gate, Owner, Scene, a_scene

pytestmark = pytest.mark.kafka

FENCED = pytest.mark.parametrize("fenced", [True, False], ids=["with the fence", "without it"])


@pytest.fixture(params=["kafka", "http", pytest.param("amqp", marks=pytest.mark.asks_for("rabbitmq"))])
async def end(request: pytest.FixtureRequest) -> AsyncIterator[Kafka | Arrivals]:
    """Where a topic is delivered to, for what each kind of endpoint has to keep."""
    if request.param == "http":
        async with over_http(Random(7)) as receiver:
            yield receiver
    else:
        broker = request.getfixturevalue("rabbitmq" if request.param == "amqp" else "kafka")
        yield broker if isinstance(broker, Kafka) else OverAmqp(broker, *await broker.bound())


def unlock(patch: pytest.MonkeyPatch, *owners: Owner, believed_front: int | None = None) -> None:
    """Take the lock check out of what these owners ask of the store.

    With `believed_front` their removals are not compared with the queue's front either, but with this one.
    """
    cookies = {owner.cookie for owner in owners}

    def unchecked(connection: Any, token: LockToken, entity: str) -> Any:
        try:
            return held_row(connection, token, entity)
        except OwnershipLost:
            if token.cookie not in cookies:
                raise
            row = connection.execute("SELECT entity, cookie FROM locks").fetchone()
            found = held_row(connection, replace(token, cookie=row[1]), row[0])
            return found if believed_front is None else found._replace(head=believed_front)

    for module in ("queues.queue", "tables.removals"):
        patch.setattr(f"remora.storage.sqlite.{module}.held_row", unchecked)


async def take_over(scene: Scene, frozen: Owner, other: Owner) -> None:
    """The frozen owner's lease ends, and the other one begins."""
    await scene.evict(frozen)
    other.start()


@pytest.mark.guarantee("what-each-fence-is-for")
@pytest.mark.parametrize("removed", ["nothing", "the lock check", "both"])
async def test_lock_check_in_the_removal(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: str
) -> None:
    """An owner frozen before a removal removes nothing once another has the lock, or entries are counted twice.

    The removal also says where it begins. That alone keeps a wrong owner away, too, whenever the rightful one has
    removed something: so the ledger is only wrong where both checks are missing.
    """
    async with a_scene(kafka, tmp_path, exact=False) as scene:
        await scene.store(20)
        a, b = await scene.owner("a"), await scene.owner("b")
        if removed != "nothing":
            unlock(monkeypatch, a, believed_front=0 if removed == "both" else None)
        removal = a.gate("remove")
        a.start()
        await removal.came()
        await scene.evict(a)
        held = await b.store.locks.acquire(scene.shard, b.cookie, 3600)
        assert not isinstance(held, LockHolder)
        page = await b.store.queue.read(held, b"", 8)
        await b.store.queue.remove(held, page.positions[-1], 8, Tally(delivered=8))

        removal.open()
        await until(lambda: bool(a.refused_removals or a.removals), "the thawed owner tried to remove")
        wrongly_removed = 12 - await scene.pending()

        await b.store.locks.release(held)
        await a.end()
        b.start()
        await scene.drained()
        faults = await scene.faults(is_exact=False)

    assert (set(faults), wrongly_removed) == (({"ledger"}, 12) if removed == "both" else (set(), 0))


@pytest.mark.guarantee("what-each-fence-is-for")
@FENCED
async def test_lock_check_before_the_first_send(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fenced: bool
) -> None:
    """Of two owners that fence each other the one without the lock gives way; without the check neither ever does."""
    async with a_scene(kafka, tmp_path, exact=True) as scene:
        await scene.store(20)
        a, b = await scene.owner("a"), await scene.owner("b")
        if not fenced:
            unlock(monkeypatch, a, b)
        entering, committing = a.gate("enter"), b.gate("commit")
        a.gate("commit")
        a.start()
        await entering.came()
        await take_over(scene, a, b)
        await committing.came()

        entering.open()  # and so it fences the rightful one, whose records are all sent
        await a.stands_or_gives_way("commit")
        for _ in range(3):
            for owner in (b, a):
                await owner.goes_on("commit")
        if fenced:
            b.gate("commit").open()
            await scene.drained()
        faults = await scene.faults(is_exact=True, at_once=not fenced)

    assert set(faults) == (set() if fenced else {"lost", "ledger"}), faults
    assert a.commits == 0
    assert bool(b.commits) == fenced


@pytest.mark.guarantee("what-each-fence-is-for")
@FENCED
async def test_producer_epoch(kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fenced: bool) -> None:
    """An owner frozen with all of a transaction sent commits nothing once another one has taken over."""
    if not fenced:  # then no producer is another one's successor, and none fences any
        name, count = exact_routes.producer_name, iter(range(100))
        monkeypatch.setattr(exact_routes, "producer_name", lambda *key: f"{name(*key)}.{next(count)}")
    ending, ends = Gate(), []
    end = TransactionalProducer._end

    async def first_halts(self: TransactionalProducer) -> None:
        ends.append(self)
        if len(ends) > 1:
            return await end(self)
        await ending.halt()
        try:
            return await end(self)
        finally:
            ends.append(self)

    monkeypatch.setattr(TransactionalProducer, "_end", first_halts)
    async with a_scene(kafka, tmp_path, exact=True) as scene:
        await scene.store(20)
        a, b = await scene.owner("a"), await scene.owner("b")
        a.start()
        await ending.came()
        await take_over(scene, a, b)
        await scene.drained()

        ending.open()
        await until(lambda: ends.count(ends[0]) == 2, "the thawed owner tried to commit")
        faults = await scene.faults(is_exact=True)

    assert set(faults) == (set() if fenced else {"duplicated"})


@pytest.mark.guarantee("what-each-fence-is-for")
@FENCED
async def test_position_in_the_transaction(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fenced: bool
) -> None:
    """What an owner committed before it could remove it is not sent again by the next one, which finds the position."""
    if not fenced:

        async def nothing(self: TransactionalProducer, *args: object) -> None:
            return None

        monkeypatch.setattr(TransactionalProducer, "_add_group", nothing)
        monkeypatch.setattr(TransactionalProducer, "_commit_mark", nothing)
    async with a_scene(kafka, tmp_path, exact=True) as scene:
        await scene.store(20)
        a, b = await scene.owner("a"), await scene.owner("b")
        removal = a.gate("remove")
        a.start()
        await removal.came()
        await take_over(scene, a, b)
        await scene.drained()
        faults = await scene.faults(is_exact=True)

    assert a.commits
    assert set(faults) == (set() if fenced else {"duplicated"})


@pytest.mark.guarantee("what-each-fence-is-for")
@FENCED
async def test_every_batch_is_awaited(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fenced: bool
) -> None:
    """A batch that the broker refuses takes its transaction with it; only the entry that is too large is parked."""

    async def unknown(client: Any, topic: str) -> None:
        return None  # as for a user who may not read the topic's configuration

    monkeypatch.setattr(lookup, "_read_limit", unknown)
    if not fenced:
        produce = TransactionalProducer._produce

        async def not_awaited(self: TransactionalProducer, *args: Any) -> None:
            async def forgotten() -> None:
                with suppress(Exception):
                    await produce(self, *args)

            self._tasks.begin(forgotten(), "forgotten")

        monkeypatch.setattr(TransactionalProducer, "_produce", not_awaited)
    async with a_scene(kafka, tmp_path, exact=True, max_message_bytes=15_000) as scene:
        await scene.store(20, large=[7])
        owner = await scene.owner("a")
        owner.start()
        await scene.drained()
        faults = await scene.faults(is_exact=True)

    assert faults == {} if fenced else "lost" in faults, faults


@pytest.mark.guarantee("what-each-fence-is-for")
@FENCED
async def test_dead_letter_before_the_removal(end: Kafka | Arrivals, tmp_path: Path, fenced: bool) -> None:
    """An owner killed between an entry's letter and its removal leaves the entry; the other way round it is lost."""
    async with a_scene(end, tmp_path, exact=False) as scene:
        await scene.store(5, junk=[2])
        a, b = await scene.owner("a", parks_late=not fenced), await scene.owner("b")
        between = a.gate("parked")
        a.start()
        await between.came()
        await take_over(scene, a, b)
        await scene.drained()
        await a.end()
        faults = await scene.faults(is_exact=False)

    assert set(faults) == (set() if fenced else {"lost", "gap", "ledger"})
