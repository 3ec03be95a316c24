"""Shared logs in a real cluster: what their objects hold, what the seal rests on, and steps that are halted or lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import Any

import pytest
import rados

from devkit.clusters.ceph import Ceph, reached_logs
from remora.config import RadosSettings
from remora.model.errors import OwnershipLost, StoreError, StoreUnavailable
from remora.model.log import Cell, LogKind, LogLocked, LogName, LogRefused, LogUnknown, PositionTaken, StaleEpoch
from remora.storage.librados import ReadOp, WriteOp
from remora.storage.rados import RadosLogStore
from remora.storage.rados.cluster.refusals import OWN, MismatchError, MissingError
from remora.storage.rados.logs.stripes import LogStripes

pytestmark = pytest.mark.ceph

POOL = b"default.rgw.log"
LOG, COUNTER = LogName(POOL, b"log"), LogName(POOL, b"counter")
LEASE_S, REACH, WIDTH = 90.0, 1000, 4

FENCED = pytest.mark.parametrize("fenced", [True, False], ids=["with the fence", "without it"])


@pytest.fixture
async def stores(settings: RadosSettings) -> AsyncIterator[list[RadosLogStore]]:
    """Three clients of one cluster, with a log and a counter in it."""
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(reached_logs(settings)) for _ in range(3)]
        await made[0].logs.create(LOG, LogKind.LOG, WIDTH)
        await made[0].logs.create(COUNTER, LogKind.COUNTER, 1)
        yield made


@pytest.fixture
def raw(ceph: Ceph, stores: list[RadosLogStore]) -> Iterator[Any]:
    """A second client in the namespace of the logs, independent of the code under test."""
    with ceph.client(namespace="remora") as ioctx:
        yield ioctx


def stripes(raw: Any, log: LogName = LOG) -> list[str]:
    """The objects of a log's stripes that exist."""
    uid = json.loads(raw.get_xattr(f"remora.log.{log.name.decode()}", "remora.projection"))["id"]
    return sorted(each.key for each in raw.list_objects() if each.key.startswith(f"remora.stripe.{uid}."))


async def served(store: RadosLogStore, owner: str, log: LogName = LOG) -> int:
    """Register a log for a server, and give the lock back, as one does that stops; the epoch."""
    lock = await store.logs.acquire(log, owner, LEASE_S)
    epoch = (await store.logs.register(lock, "", REACH)).epoch
    await store.logs.release(lock)
    return epoch


@contextmanager
def at_operation(store: RadosLogStore, number: int, act: Callable[[], object], *, before: bool) -> Iterator[None]:
    """Have something happen before or after the operation of this number, counted from 1."""
    connection: Any = store._connection
    run, seen = connection.run, 0

    async def counting(*arguments: Any, **named: Any) -> int:
        nonlocal seen
        seen += 1
        mine = seen
        if before and mine == number:
            answer = act()
            if asyncio.iscoroutine(answer):
                await answer
        version: int = await run(*arguments, **named)
        if not before and mine == number:
            act()
        return version

    connection.run = counting
    try:
        yield
    finally:
        connection.run = run


def lose() -> None:
    """The answer of an operation that was carried out gets lost."""
    raise StoreUnavailable("the answer was lost")


# ------------------------------------------------------------------------------------------- the objects


async def test_the_comparisons_of_a_write_mean_what_the_stripes_rest_on(stores: list[RadosLogStore], raw: Any) -> None:
    """An xattr is below a value byte by byte, a missing one is below each; a missing key compares as empty; and each
    needs the object."""
    connection = stores[0]._connection
    own = connection.session.placement.own
    raw.write_full("probe", b"")

    async def passes(operation: WriteOp) -> bool:
        try:
            await connection.run(operation.assert_exists(), "probe", "probing", OWN, own)
        except MismatchError:
            return False
        return True

    assert await passes(WriteOp().assert_xattr_below("x", "0" * 16))
    raw.set_xattr("probe", "x", b"00000000000000a0")
    assert not await passes(WriteOp().assert_xattr_below("x", "000000000000009f"))
    assert not await passes(WriteOp().assert_xattr_below("x", "00000000000000a0"))
    assert await passes(WriteOp().assert_xattr_below("x", "00000000000000a1"))
    assert await passes(WriteOp().assert_omap("k", b""))
    assert await passes(WriteOp().assert_omap("k", b"").set_omap({"k": b"\0"}))
    assert not await passes(WriteOp().assert_omap("k", b""))
    with pytest.raises(MissingError):
        await connection.run(WriteOp().assert_exists().assert_xattr_below("x", "1"), "none", "probing", OWN, own)


async def test_objects_are_as_documented(stores: list[RadosLogStore], raw: Any) -> None:
    """The projection is JSON, a stripe's keys descend from 2^64 - 1, and each value begins with its kind."""
    logs = stores[0].logs
    lock = await logs.acquire(LOG, "o1", LEASE_S)
    epoch = (await logs.register(lock, "unix:/s", REACH)).epoch
    await logs.append(LOG, epoch, 1, b"one")
    await logs.fill(LOG, epoch, 1 + WIDTH)

    found = json.loads(raw.get_xattr("remora.log.log", "remora.projection"))
    oid = f"remora.stripe.{found.pop('id')}.1"
    with rados.ReadOpCtx() as operation:
        iterator, _ = raw.get_omap_vals(operation, "", "", 10)
        raw.operate_read_op(operation, oid)
        keys = dict(iterator)

    assert found == {"version": 1, "kind": "log", "width": WIDTH, "epoch": 1, "owner": "o1", "address": "unix:/s"}
    assert keys == {"fffffffffffffffa": b"\x00", "fffffffffffffffe": b"\x01one"}
    assert raw.get_xattr(oid, "remora.epoch") == b"0000000000000001"


async def test_a_pool_that_holds_no_logs_is_refused(settings: RadosSettings, stores: list[RadosLogStore]) -> None:
    """By default logs lie in the queues' pool; settings may name others instead."""
    other = LogName(b"default.rgw.meta", b"log")
    with pytest.raises(LogRefused):
        await stores[0].logs.create(other, LogKind.LOG, 1)

    async with reached_logs(settings, pools=["default.rgw.meta"]) as store:
        await store.logs.create(other, LogKind.LOG, 1)
        assert [name for name, _ in await store.logs.all()] == [other]
        with pytest.raises(LogRefused):
            await store.logs.projection(LOG)
        await store.logs.remove(other)


async def test_the_widest_log_is_registered_and_removed(stores: list[RadosLogStore], raw: Any) -> None:
    """With 1,024 stripes: all are sealed, the largest position is found in any of them, and none is left behind."""
    log = LogName(POOL, b"wide")
    await stores[0].logs.create(log, LogKind.LOG, 1024)
    epoch = await served(stores[0], "o1", log)
    await stores[0].logs.append(log, epoch, 1023 + 1024, b"x")
    lock = await stores[0].logs.acquire(log, "o1", LEASE_S)

    assert (await stores[0].logs.register(lock, "", REACH)).position == 1023 + 1024

    assert len(stripes(raw, log)) == 1024
    await stores[0].logs.release(lock)
    before = set(stripes(raw, log))
    await stores[0].logs.remove(log)
    assert not before & {each.key for each in raw.list_objects()}


# --------------------------------------------------------------------------------------- what seals rest on


@pytest.mark.guarantee("positions-of-a-log")
@FENCED
async def test_the_epoch_in_the_write(
    stores: list[RadosLogStore], monkeypatch: pytest.MonkeyPatch, fenced: bool
) -> None:
    """A write that is late lands nowhere once a later epoch has begun; without its epoch it lands above the tail that
    the new server begins at, which then hands out a position that is taken."""
    old = await served(stores[0], "o1")
    if not fenced:
        assert_xattr = WriteOp.assert_xattr

        def without_epoch(self: WriteOp, name: str, value: str | bytes) -> WriteOp:
            return self if name == "remora.epoch" else assert_xattr(self, name, value)

    lock = await stores[1].logs.acquire(LOG, "o2", LEASE_S)
    new = await stores[1].logs.register(lock, "", REACH)
    if not fenced:
        monkeypatch.setattr(WriteOp, "assert_xattr", without_epoch)

    with suppress(StaleEpoch):
        await stores[0].logs.append(LOG, old, 1, b"late")

    if fenced:
        await stores[1].logs.append(LOG, new.epoch, new.position + 1, b"new")
    else:
        with pytest.raises(PositionTaken):
            await stores[1].logs.append(LOG, new.epoch, new.position + 1, b"new")


@pytest.mark.guarantee("positions-of-a-log")
@FENCED
async def test_the_seal_of_all_stripes(
    stores: list[RadosLogStore], monkeypatch: pytest.MonkeyPatch, fenced: bool
) -> None:
    """Behind a registration no stripe takes a write of the earlier epoch; one that is left out does, above the tail."""
    old = await served(stores[0], "o1")
    if not fenced:
        seal = LogStripes._seal

        async def all_but_one(self: LogStripes, of: Any, slot: int, epoch: int) -> None:
            if slot != 2:
                await seal(self, of, slot, epoch)

        async def whatever_its_epoch(self: LogStripes, of: Any, epoch: int) -> int:
            return max(map(max, await self.ends(of)))

        monkeypatch.setattr(LogStripes, "_seal", all_but_one)
        monkeypatch.setattr(LogStripes, "last", whatever_its_epoch)
    lock = await stores[1].logs.acquire(LOG, "o2", LEASE_S)
    new = await stores[1].logs.register(lock, "", REACH)

    landed = []
    for position in range(1, 1 + WIDTH):
        with suppress(StaleEpoch):
            await stores[0].logs.append(LOG, old, position, b"late")
            landed.append(position)

    assert new.position == 0
    assert landed == ([] if fenced else [2])


@pytest.mark.guarantee("positions-of-a-log")
@FENCED
async def test_the_comparison_in_the_swap(
    stores: list[RadosLogStore], monkeypatch: pytest.MonkeyPatch, fenced: bool
) -> None:
    """Of two servers that have both read the projection only one gets the epoch, though both believe in the lock;
    without the comparison both serve it."""
    assert_xattr = WriteOp.assert_xattr

    def not_compared(self: WriteOp, name: str, value: str | bytes) -> WriteOp:
        return self if name == "remora.projection" else assert_xattr(self, name, value)

    if not fenced:
        monkeypatch.setattr(WriteOp, "assert_xattr", not_compared)
    monkeypatch.setattr("remora.storage.rados.logs.projection._check", lambda _: ("lock", "get_info", _any_lock()))
    locks = [await stores[0].logs.acquire(LOG, "o1", LEASE_S)] * 2
    epochs: list[int] = []

    async def other() -> None:
        epochs.append((await stores[1].logs.register(locks[1], "", REACH)).epoch)

    with at_operation(stores[0], 2, other, before=True):  # between what it reads and its swap
        epochs.append((await stores[0].logs.register(locks[0], "", REACH)).epoch)

    assert epochs == ([1, 2] if fenced else [1, 1])


def _any_lock() -> bytes:
    from remora.codec.lock_ops import encode_get_info

    return encode_get_info("remora.sequencer")


@pytest.mark.guarantee("positions-of-a-log")
@FENCED
async def test_trimmed_in_the_maximum(
    stores: list[RadosLogStore], monkeypatch: pytest.MonkeyPatch, fenced: bool
) -> None:
    """A log that was trimmed to its end goes on behind it; one whose maximum forgets what was trimmed begins anew."""
    epoch = await served(stores[0], "o1")
    await stores[0].logs.append(LOG, epoch, 7, b"x")
    await stores[0].logs.trim(LOG, 7)
    if not fenced:
        end = LogStripes._end

        async def without_trimmed(self: LogStripes, *arguments: Any) -> Any:
            return (await end(self, *arguments))._replace(trimmed=0)

        monkeypatch.setattr(LogStripes, "_end", without_trimmed)
    lock = await stores[1].logs.acquire(LOG, "o2", LEASE_S)

    assert (await stores[1].logs.register(lock, "", REACH)).position == (7 if fenced else 0)


async def test_a_stripe_that_is_stale_is_not_an_empty_one(stores: list[RadosLogStore]) -> None:
    """A registration whose stripe is sealed by a later one, before it was asked for its end, fails."""
    epoch = await served(stores[0], "o1")
    await stores[0].logs.append(LOG, epoch, 9, b"x")
    lock = await stores[0].logs.acquire(LOG, "o1", LEASE_S)
    seals = 2 + 2 * WIDTH  # reads the projection, swaps it, then reads and seals each stripe

    with (
        at_operation(stores[0], seals + 1, lambda: stores[1].logs.seal(LOG), before=True),
        pytest.raises(StaleEpoch),
    ):
        await stores[0].logs.register(lock, "", REACH)


async def test_a_stripe_that_cannot_be_asked_fails_the_registration(stores: list[RadosLogStore], raw: Any) -> None:
    """It never counts as empty; the next registration, once it answers, begins a later epoch with the right end."""
    epoch = await served(stores[0], "o1")
    await stores[0].logs.append(LOG, epoch, 5, b"x")
    lock = await stores[0].logs.acquire(LOG, "o1", LEASE_S)
    oid = stripes(raw)[5 % WIDTH]
    raw.set_xattr(oid, "remora.epoch", b"damaged")

    with pytest.raises(StoreError, match="damaged"):
        await stores[0].logs.register(lock, "", REACH)

    raw.set_xattr(oid, "remora.epoch", b"0000000000000001")
    found = await stores[0].logs.register(lock, "", REACH)
    assert (found.epoch, found.position) == (3, 5)


async def test_stripes_of_a_later_epoch_are_gone_above(stores: list[RadosLogStore], raw: Any) -> None:
    """A projection that was restored from a backup: registration, and a seal, take an epoch above every stripe's."""
    old = raw.get_xattr("remora.log.log", "remora.projection")
    for _ in range(4):
        epoch = await stores[0].logs.seal(LOG)
    await stores[0].logs.append(LOG, epoch, 5, b"x")
    raw.set_xattr("remora.log.log", "remora.projection", old)
    lock = await stores[0].logs.acquire(LOG, "o1", LEASE_S)

    found = await stores[0].logs.register(lock, "", REACH)

    assert (found.epoch, found.position) == (5, 5)
    raw.set_xattr("remora.log.log", "remora.projection", old)
    assert await stores[1].logs.seal(LOG) == 6


# ----------------------------------------------------------------------------------- steps halted and lost


@pytest.mark.parametrize("number", range(1, 3 + 3 * WIDTH))
async def test_a_registration_whose_answer_was_lost_is_made_again(stores: list[RadosLogStore], number: int) -> None:
    """Whichever operation's answer is lost: the next one has a later epoch than all before, the same end, and the
    write of an earlier epoch lands nowhere."""
    epoch = await served(stores[0], "o1")
    await stores[0].logs.append(LOG, epoch, 6, b"x")
    lock = await stores[0].logs.acquire(LOG, "o1", LEASE_S)
    known = epoch
    with at_operation(stores[0], number, lose, before=False), suppress(StoreUnavailable):
        first = await stores[0].logs.register(lock, "", REACH)
        assert (first.epoch, first.position) == (2, 6)
        known = first.epoch

    second = await stores[0].logs.register(lock, "", REACH)

    assert (second.epoch > known, second.position) == (True, 6)
    with pytest.raises(StaleEpoch):
        await stores[1].logs.append(LOG, known, 7, b"late")


async def test_the_loser_of_a_race_changes_nothing(stores: list[RadosLogStore], raw: Any) -> None:
    """A server that lost its lock before its swap neither moves the projection nor seals a stripe."""
    lock = await stores[0].logs.acquire(LOG, "o1", LEASE_S)

    async def overtaken() -> None:
        await stores[1].logs.seal(LOG)
        await served(stores[1], "o2")

    with (
        at_operation(stores[0], 2, overtaken, before=True),
        pytest.raises(OwnershipLost),
    ):
        await stores[0].logs.register(lock, "", REACH)

    found = await stores[0].logs.projection(LOG)
    assert (found.epoch, found.owner) == (2, "o2")
    assert {raw.get_xattr(each, "remora.epoch") for each in stripes(raw)} == {b"0000000000000002"}


async def test_a_counter_whose_registrations_answer_was_lost_skips_nothing_twice(stores: list[RadosLogStore]) -> None:
    """The swap was carried out: the server has the epoch, and begins at the bound that it compared."""
    lock = await stores[0].logs.acquire(COUNTER, "o1", LEASE_S)

    with at_operation(stores[0], 2, lose, before=False):
        found = await stores[0].logs.register(lock, "", REACH)

    assert (found.epoch, found.position, found.bound) == (1, 0, REACH)
    assert (await stores[0].logs.figures(COUNTER)).tail == REACH


async def test_a_writer_that_knows_a_removed_log_meets_nothing(stores: list[RadosLogStore]) -> None:
    """A token of a log that was removed and made again is stale, though the new one has the same epoch."""
    epoch = await served(stores[0], "o1")
    await stores[1].logs.append(LOG, epoch, 1, b"old")
    await stores[0].logs.remove(LOG)
    await stores[0].logs.create(LOG, LogKind.LOG, WIDTH)
    assert await served(stores[0], "o1") == epoch

    with pytest.raises(StaleEpoch):
        await stores[1].logs.append(LOG, epoch, 2, b"late")

    assert (await stores[1].logs.read(LOG, 2))[0] is Cell.UNWRITTEN
    assert (await stores[0].logs.figures(LOG)).tail == 0


async def test_an_interrupted_removal_is_repeated(stores: list[RadosLogStore], raw: Any) -> None:
    """A log whose stripes are partly gone is no log any more: nobody registers it, and `remove` ends its removal."""
    await served(stores[0], "o1")
    with at_operation(stores[0], 5, lose, before=False), pytest.raises(StoreUnavailable):
        await stores[0].logs.remove(LOG)
    with pytest.raises(LogLocked):
        await stores[1].logs.remove(LOG)
    raw.rm_xattr("remora.log.log", "lock.remora.sequencer")  # its lease ends

    for refused in (stores[1].logs.acquire(LOG, "o2", LEASE_S), stores[1].logs.projection(LOG)):
        with pytest.raises(LogUnknown):
            await refused
    with pytest.raises(LogRefused):
        await stores[1].logs.create(LOG, LogKind.LOG, WIDTH)
    await stores[1].logs.remove(LOG)

    assert [each.key for each in raw.list_objects()] == ["remora.log.counter"]


async def test_the_lock_of_a_process_that_ended_is_broken(settings: RadosSettings, stores: list[RadosLogStore]) -> None:
    """A server on the same host that knows its owner to be dead does not wait for the lease; of others it does."""
    await stores[0].logs.acquire(LOG, "killed", LEASE_S)
    with pytest.raises(LogLocked):
        await stores[1].logs.acquire(LOG, "o2", LEASE_S)

    async with reached_logs(settings, is_dead={"killed"}.__contains__) as store:
        await store.logs.acquire(LOG, "o2", LEASE_S)

    with pytest.raises(LogLocked):
        await stores[1].logs.acquire(LOG, "o3", LEASE_S)


async def test_a_trim_deletes_more_than_a_page(stores: list[RadosLogStore], raw: Any) -> None:
    """All keys up to the position are gone from their stripe, none behind it, however many there are."""
    epoch = await served(stores[0], "o1")
    connection = stores[0]._connection
    own, oid = connection.session.placement.own, stripes(raw)[0]
    many = {f"{(1 << 64) - 1 - 4 * each:016x}": b"\1x" for each in range(1, 3001)}
    await connection.run(WriteOp().assert_exists().set_omap(many), oid, "filling", OWN, own)

    await stores[0].logs.trim(LOG, 4 * 2990)

    operation = ReadOp().assert_exists()
    left = operation.omap_keys("", 5000)
    await connection.run(operation, oid, "reading", OWN, own)
    assert sorted(left.values) == sorted(list(many)[2990:])
    assert (await stores[1].logs.figures(LOG)).keys == 10
    assert await stores[1].logs.read(LOG, 4 * 2990 + 4) == (Cell.DATA, b"x")
    with pytest.raises(StaleEpoch):
        await stores[1].logs.append(LOG, epoch + 1, 4 * 3001, b"x")
