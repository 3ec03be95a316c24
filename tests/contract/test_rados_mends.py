"""Queues on RADOS that leak room get it back, and nobody who writes to them meanwhile loses anything."""

from __future__ import annotations

import asyncio
import json
import signal
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

import pytest

from devkit.clusters.ceph import Ceph, Gateway, reached
from devkit.processes.programs import ENVIRONMENT
from devkit.waits import PATIENT_S
from remora.codec.lock_ops import encode_break
from remora.codec.queue_ops import (
    RESERVED_AT,
    decode_reservations,
    encode_abort,
    encode_commit,
    encode_remove,
    encode_reserve,
)
from remora.config import RadosSettings
from remora.model.errors import OwnershipLost, QueueFull, ReservationIdTaken, ShardGone, StoreError
from remora.model.ingest import ReservedRoom, RoutedEvent
from remora.model.ledger import Tally
from remora.model.shard import LockToken, Shard
from remora.storage.librados import ObjectOperation, ReadOp, WriteOp
from remora.storage.rados import RadosStore
from remora.storage.rados.cluster.osds import OsdReleases, leaks
from remora.storage.rados.cluster.part import QUEUE_CLASS
from remora.storage.rados.cluster.refusals import RESERVED, ChangedError
from support.leaks import fill_by_leak, head_of, leak, make_old, reserve_as_gateway, room_now
from support.stores import own_topic

pytestmark = pytest.mark.ceph

Q = Shard("q")
RING = 100_000
ENTRY = b"x" * 100


@dataclass
class Ward:
    """A queue that may leak, and a store that mends it."""

    store: RadosStore
    gateway: Gateway

    @property
    def io(self) -> Any:
        return self.gateway.ioctx

    async def commit(self, count: int = 1) -> None:
        for _ in range(count):
            reservation = await self.store.two_phase.reserve(Q, 1, len(ENTRY))
            await self.store.two_phase.commit(Q, reservation, [ENTRY])

    async def held(self, cookie: str = "remora/h/b/1") -> LockToken:
        token = await self.store.locks.acquire(Q, cookie, 90)
        assert isinstance(token, LockToken), token
        return token

    async def removed(self, token: LockToken, count: int) -> None:
        page = await self.store.queue.read(token, b"", count)
        await self.store.queue.remove(token, page.positions[count], count, Tally(delivered=count))

    def by_gateway(self, method: str, request: bytes) -> None:
        self.io.execute("q", "2pc_queue", f"2pc_queue_{method}", request)

    def before_write(self, act: Callable[[], object]) -> None:
        """Have something happen once, between what the store has read and the next write that it sends."""
        connection: Any = self.store._connection
        run = connection.run

        async def first(operation: ObjectOperation, *arguments: Any, **named: Any) -> int:
            if isinstance(operation, WriteOp):
                connection.run = run
                act()
            version: int = await run(operation, *arguments, **named)
            return version

        connection.run = first


@pytest.fixture
async def ward(settings: RadosSettings, gateway: Gateway) -> AsyncIterator[Ward]:
    gateway.make_queue("q", RING)
    async with reached(settings) as store:
        yield Ward(store, gateway)


async def is_fixed(ward: Ward) -> bool:
    """Whether the cluster's OSDs have no leak of their own."""
    releases = ward.store._connection.osds.releases
    assert releases.counts
    return not any(map(leaks, releases.counts))


async def test_a_queue_that_is_full_by_a_leak_takes_entries_again(ward: Ward) -> None:
    """A queue that refuses a reservation though it is empty says how much has leaked, and takes one after the mend."""
    fill_by_leak(ward.io, "q", 30)
    stats = await ward.store.inspection.stats(Q)
    assert (stats.entries, stats.leaked_bytes, stats.room.room_bytes) == (0, RING - 30, 30)
    with pytest.raises(QueueFull):
        await ward.store.two_phase.reserve(Q, 1, 100)

    done = await ward.store.mends.mend(await ward.held())

    assert done.after is not None
    assert (done.before.leaked_bytes, done.before.room_bytes) == (RING - 30, 30)
    assert (done.after.leaked_bytes, done.after.room_bytes, done.is_busy) == (0, RING, False)
    await ward.commit()
    assert room_now(ward.io, "q").used_bytes == 110
    assert (await ward.store.mends.look(Q)).before.leaked_bytes in (0, 10)


async def test_a_queue_without_a_leak_is_not_written(ward: Ward) -> None:
    """A mend of a queue of which everything that is reserved will be given back, and a look at one, write nothing."""
    reserve_as_gateway(ward.io, "q", 100)
    version = await ward.store.own_topics._queues.version(Q)

    clean = await ward.store.mends.mend_unheld(Q)
    leak(ward.io, "q", 1000)
    seen = await ward.store.mends.look(Q)

    assert (clean.after, clean.before.leaked_bytes, seen.after, seen.before.leaked_bytes) == (None, 0, None, 1000)
    assert await ward.store.own_topics._queues.version(Q) == version + 1


async def test_a_thousand_open_reservations_keep_their_room(ward: Ward, gateway: Gateway) -> None:
    """What is open stays reserved, also what the head has no room for: all can be committed or aborted after a mend."""
    gateway.make_queue("wide", 1 << 20)
    wide, request = Shard("wide"), struct.pack("<BBIQI", 1, 1, 12, 100, 1)
    waiting = [ward.io.aio_execute("wide", "2pc_queue", "2pc_queue_reserve", request) for _ in range(1000)]
    for each in waiting:
        each.wait_for_complete()
    assert head_of(ward.io, "wide").has_xattrs
    owed = room_now(ward.io, "wide").owed_bytes
    leak(ward.io, "wide", 500_000)

    done = await ward.store.mends.mend_unheld(wide)

    assert done.after is not None
    assert (owed, done.after.reserved_bytes) == (1000 * 110, 1000 * 110)
    ends = [(number, number % 5) for number in range(1, 1001)]
    waiting = [
        ward.io.aio_execute("wide", "2pc_queue", "2pc_queue_abort", encode_abort(number))
        if remainder == 0
        else ward.io.aio_execute("wide", "2pc_queue", "2pc_queue_commit", encode_commit(number, [ENTRY]))
        for number, remainder in ends
    ]
    for each in waiting:
        each.wait_for_complete()
        assert each.get_return_value() >= 0
    room = room_now(ward.io, "wide")
    assert (room.used_bytes, room.owed_bytes) == (800 * 110, 0)
    assert room.reserved_bytes == (0 if await is_fixed(ward) else 1000 * 10)


def reserved(ward: Ward) -> None:
    reserve_as_gateway(ward.io, "q", 500)


def committed(ward: Ward) -> None:
    ward.by_gateway("commit", encode_commit(1, [ENTRY]))


def aborted(ward: Ward) -> None:
    ward.by_gateway("abort", encode_abort(1))


def removed(ward: Ward) -> None:
    ward.by_gateway("remove_entries", encode_remove(b"0/24686", 1))


def made_anew(ward: Ward) -> None:
    ward.gateway.delete_queue("q")
    ward.gateway.make_queue("q", RING)


@pytest.mark.parametrize("between", [reserved, committed, aborted, removed, made_anew])
async def test_what_comes_between_look_and_write_is_kept(ward: Ward, between: Callable[[Ward], None]) -> None:
    """What another client does after the look has the write refused; the next look sees it, and the sum is right."""
    reserve_as_gateway(ward.io, "q", 1000)
    await ward.commit()
    leak(ward.io, "q", 50_000)
    ward.before_write(lambda: between(ward))

    done = await ward.store.mends.mend_unheld(Q)

    room = room_now(ward.io, "q")
    owed = {"reserved": 1010 + 510, "removed": 1010}.get(between.__name__, 0)
    assert not done.is_busy
    assert (room.owed_bytes, room.reserved_bytes) == (owed, owed)


async def test_a_mend_that_is_given_up_has_changed_nothing(ward: Ward) -> None:
    """One that ends between its look and its write leaves the queue as it was, and the next one mends it."""
    leak(ward.io, "q", 50_000)
    mending = asyncio.ensure_future(ward.store.mends.mend_unheld(Q))

    def end() -> None:
        raise asyncio.CancelledError

    ward.before_write(end)
    with pytest.raises(asyncio.CancelledError):
        await mending

    assert room_now(ward.io, "q").leaked_bytes == 50_000
    assert (await ward.store.mends.mend_unheld(Q)).after is not None
    assert room_now(ward.io, "q").leaked_bytes == 0


VICTIM = """
import asyncio, json, os, signal, sys
from devkit.clusters.ceph import reached
from remora.config import RadosSettings
from remora.model.shard import Shard
from remora.storage.librados import WriteOp

async def main():
    async with reached(RadosSettings(**json.loads(sys.argv[1]))) as store:
        connection = store._connection
        run = connection.run
        async def killing(operation, *arguments, **named):
            if isinstance(operation, WriteOp):
                os.kill(os.getpid(), signal.SIGKILL)
            return await run(operation, *arguments, **named)
        connection.run = killing
        await store.mends.mend_unheld(Shard("q"), patient=True)

asyncio.run(main())
"""


@pytest.mark.full("starts a process; the gate has the same with a task that is cancelled")
async def test_a_process_that_is_killed_before_its_write_has_changed_nothing(
    ward: Ward, settings: RadosSettings
) -> None:
    """After SIGKILL between look and write the queue is as it was, takes entries, and is mended by the next."""
    leak(ward.io, "q", 50_000)
    command = [sys.executable, "-c", VICTIM, json.dumps(asdict(settings))]

    done = await asyncio.to_thread(subprocess.run, command, env=ENVIRONMENT, check=False)

    assert done.returncode == -signal.SIGKILL
    assert room_now(ward.io, "q").leaked_bytes == 50_000
    await ward.commit()
    assert (await ward.store.mends.mend_unheld(Q)).after is not None
    await ward.commit()
    assert room_now(ward.io, "q").used_bytes == 220


async def test_who_lost_the_lock_mends_nothing(ward: Ward) -> None:
    """A holder that has lost its lock, or whose queue was made anew, is told so, and its write changes nothing."""
    token = await ward.held()
    ward.before_write(lambda: break_lock(ward))
    leak(ward.io, "q", 50_000)

    with pytest.raises(OwnershipLost):
        await ward.store.mends.mend(token)

    assert room_now(ward.io, "q").leaked_bytes == 50_000
    made_anew(ward)
    with pytest.raises(ShardGone):
        await ward.store.mends.mend(token)


def break_lock(ward: Ward) -> None:
    (holder,) = ward.gateway.lockers("q")
    ward.io.execute("q", "lock", "break_lock", encode_break("q_lock", holder.entity, holder.cookie))


async def test_a_head_of_an_unknown_form_is_left_alone(ward: Ward) -> None:
    """Nothing is written into a head that a later release has made, though all that is known of it can be read."""
    make_old(ward.io, "q", 2, 50_000)
    ward.io.write("q", b"\4", RESERVED_AT - 6)

    with pytest.raises(StoreError, match="has a form that this remora does not know"):
        await ward.store.mends.mend_unheld(Q)

    assert room_now(ward.io, "q").leaked_bytes == 50_000


async def test_a_sum_below_zero_is_mended(ward: Ward) -> None:
    """A sum that wrapped refuses every reservation for ever, and is mended like a leak."""
    ward.io.write("q", struct.pack("<q", -1000), RESERVED_AT)
    with pytest.raises(QueueFull):
        await ward.store.two_phase.reserve(Q, 1, 10)

    await ward.store.mends.mend_unheld(Q)

    await ward.commit()


# ------------------------------------------------------------------------------------------------ old heads

Step = Callable[[Ward], Awaitable[None]]


async def a_removal(ward: Ward) -> None:
    await ward.removed(await ward.held(), 1)


async def an_expiry(ward: Ward) -> None:
    token = await ward.held()
    for _ in range(2):
        assert await ward.store.queue.expire_all([token], 0.0) == [None]


async def a_late_commit(ward: Ward) -> None:
    await ward.store.two_phase.commit(Q, 1, [ENTRY])


async def a_late_abort(ward: Ward) -> None:
    await ward.store.two_phase.abort(Q, 1)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("first", [a_removal, an_expiry, a_late_commit, a_late_abort])
async def test_an_old_head_is_not_spoiled_by_us(ward: Ward, settings: RadosSettings, first: Step, version: int) -> None:
    """Whatever we do first to a head that an OSD with the leak has left: the OSD without it counts the head anew."""
    reserve_as_gateway(ward.io, "q", 1000)
    await ward.commit(3)
    make_old(ward.io, "q", version, 50_000)

    async with reached(settings) as later:
        await first(Ward(later, ward.gateway))

    assert room_now(ward.io, "q").leaked_bytes <= (30 if await is_fixed(ward) else 50_030)


@pytest.mark.parametrize("version", [1, 2])
async def test_an_old_head_without_room_is_not_spoiled_by_us(ward: Ward, version: int) -> None:
    """Where entries leave no byte for a reservation, the sum is mended before the first removal keeps it."""
    if not await is_fixed(ward):
        pytest.skip("this cluster's OSDs leave old heads old")
    payload = b"x" * 9_990
    for number in range(9):
        assert reserve_as_gateway(ward.io, "q", len(payload)) == number + 1
        ward.by_gateway("commit", encode_commit(number + 1, [payload]))
    reserve_as_gateway(ward.io, "q", 9_985)
    ward.by_gateway("commit", encode_commit(10, [b"x" * 9_985]))  # 5 bytes are left
    make_old(ward.io, "q", version, 50_000)

    await a_removal(ward)

    assert room_now(ward.io, "q").leaked_bytes == 0


async def test_a_head_that_gets_old_while_it_is_held_is_not_spoiled(ward: Ward) -> None:
    """When an OSD is started anew with another release, what we hold is looked at again before we remove from it."""
    if not await is_fixed(ward):
        pytest.skip("this cluster's OSDs leave old heads old")
    await ward.commit(3)
    token, osds = await ward.held(), ward.store._connection.osds
    await ward.removed(token, 1)
    make_old(ward.io, "q", 2, 50_000)

    osds.note(OsdReleases())  # all were down at the last look
    await ward.removed(token, 1)

    assert room_now(ward.io, "q").leaked_bytes == 0


async def test_a_head_that_gets_old_between_two_owners_is_not_spoiled(ward: Ward) -> None:
    """What this worker knew of a queue counts no longer when it takes it again: others may have had it meanwhile."""
    if not await is_fixed(ward):
        pytest.skip("this cluster's OSDs leave old heads old")
    await ward.commit(3)
    token = await ward.held()
    await ward.removed(token, 1)
    await ward.store.locks.release(token)
    make_old(ward.io, "q", 2, 50_000)

    await ward.removed(await ward.held("remora/h/b/2"), 1)

    assert room_now(ward.io, "q").leaked_bytes == 0


@pytest.mark.parametrize("ends", ["commit", "abort"])
async def test_an_old_head_of_an_own_topic_is_not_spoiled(
    ward: Ward, ceph: Ceph, settings: RadosSettings, ends: str
) -> None:
    """A reservation of ingest that was made before an upgrade is committed, or aborted, without keeping what leaked."""
    if not await is_fixed(ward):
        pytest.skip("this cluster's OSDs leave old heads old")
    topic = await ward.store.own_topics.create(own_topic("upgraded", 1))
    reservation = await ward.store.ingest.reserve(topic, [ReservedRoom(0, b"b:k", len(ENTRY))])
    with ceph.client(namespace="remora") as io:
        make_old(io, "upgraded", 2, 50_000)

        async with reached(settings) as later:
            if ends == "commit":
                await later.ingest.commit(topic, reservation, [RoutedEvent(0, b"b:k", ENTRY)], b"digest")
            else:
                await later.ingest.abort(topic, reservation)

        assert room_now(io, "upgraded").leaked_bytes == 0


async def test_what_a_gateway_spoiled_is_mended(ward: Ward) -> None:
    """A head of which a gateway's removal kept the leaked sum is mended by the next look."""
    await ward.commit(3)
    token = await ward.held()
    make_old(ward.io, "q", 2, 50_000)
    removed(ward)
    assert room_now(ward.io, "q").leaked_bytes >= 50_000

    await ward.store.mends.mend(token)

    assert room_now(ward.io, "q").leaked_bytes == 0
    await ward.removed(token, 2)


async def test_the_releases_are_named(ward: Ward, ceph: Ceph) -> None:
    """The store's description says which release the OSDs have, and whether it leaks."""
    (version,) = ceph.command(prefix="osd versions")

    release = version.split()[2]
    assert f"; OSDs {release}" in ward.store.description
    assert ward.store.description.endswith("whose queues leak room") is not await is_fixed(ward)


# --------------------------------------------------------------------------------------------- reservation ids


def next_id(ward: Ward, number: int) -> None:
    """Have the queue give its next reservation this id."""
    ward.io.write("q", struct.pack("<I", number - 1), RESERVED_AT + 8)


async def test_an_open_reservation_of_the_next_id_is_named(ward: Ward) -> None:
    """A queue whose next reservation would have an open one's id says so, and takes reservations when that one ends."""
    reserve_as_gateway(ward.io, "q", 777)
    next_id(ward, 1)

    with pytest.raises(ReservationIdTaken, match="would have the id 1, which an open one of 777 bytes has"):
        await ward.store.two_phase.reserve(Q, 1, 10)

    ward.by_gateway("abort", encode_abort(1))
    await ward.commit()


async def test_an_old_reservation_of_the_next_id_is_given_up(ward: Ward, settings: RadosSettings) -> None:
    """One that this process has seen for `reservation_age` is aborted, and makes room for the next."""
    reserve_as_gateway(ward.io, "q", 777)
    next_id(ward, 1)

    async with RadosStore(settings, reservation_age_s=0.0) as store:
        await store._connection._tried.wait()
        assert await store.two_phase.reserve(Q, 1, 10) == 1

    assert [each.size for each in head_of(ward.io, "q").reservations] == [10]


# ---------------------------------------------------------------------------------------------------- load


@dataclass
class Writer:
    """Reserves, and commits or aborts, again and again; a failure of any of them ends the test.

    It reserves as a gateway does, at whatever state the queue has, and knows its reservation by its size.
    """

    store: RadosStore
    size: int
    rng: Random
    committed: int = 0

    async def reserve(self) -> int:
        locator, list_all = self.store.mends._locator(Q), "2pc_queue_list_reservations"
        reserving = WriteOp().assert_exists().call(QUEUE_CLASS, "2pc_queue_reserve", encode_reserve(self.size, 1))
        await self.store._connection.run(reserving, "q", "reserving", RESERVED, locator)
        looking = ReadOp()
        reply = looking.call(QUEUE_CLASS, list_all)
        await self.store._connection.run(looking, "q", "looking", RESERVED, locator)
        (found,) = [each.id for each in decode_reservations(reply.data) if each.size == self.size]
        return found

    async def write_until(self, over: asyncio.Event) -> None:
        while not over.is_set():
            reservation = await self.reserve()
            if self.rng.random() < 0.2:
                await self.store.two_phase.abort(Q, reservation)
            else:
                await self.store.two_phase.commit(Q, reservation, [ENTRY])
                self.committed += 1


@pytest.mark.parametrize(
    "seconds",
    [3.0, pytest.param(60.0, marks=pytest.mark.full("a minute of load; the gate has three seconds of it"))],
)
async def test_mends_under_load_harm_nobody(ward: Ward, settings: RadosSettings, seconds: float) -> None:
    """Eight writers, a removing owner and two who mend: nothing of anybody fails, and at the end all sums are right."""
    ward.gateway.delete_queue("q")
    ward.gateway.make_queue("q", 80 * RING)
    token, over, ended = await ward.held(), asyncio.Event(), asyncio.Event()
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(reached(settings)) for _ in range(8)]
        writers = [Writer(store, 100 + number, Random(number)) for number, store in enumerate(stores)]
        mends: list[bool] = []

        async def mend() -> None:
            while not over.is_set():
                await leak_meanwhile(ward.store, 1000)
                done = await ward.store.mends.mend(token), await stores[0].mends.mend_unheld(Q)
                mends.extend(each.after is not None for each in done)

        async def remove() -> int:
            total = 0
            while True:
                is_last = ended.is_set()
                page = await ward.store.queue.read(token, b"", 1000)
                count = len(page.entries)
                if count:
                    await ward.store.queue.remove(token, page.positions[-1], count, Tally(delivered=count))
                total += count
                if is_last:
                    return total

        async with asyncio.timeout(seconds + PATIENT_S), asyncio.TaskGroup() as tasks:
            working = [tasks.create_task(each.write_until(over)) for each in writers]
            mending = tasks.create_task(mend())
            removing = tasks.create_task(remove())
            await asyncio.sleep(seconds)
            over.set()
            await asyncio.gather(mending, *working)
            ended.set()
            removed = await removing

    committed = sum(each.committed for each in writers)
    balance = await ward.store.ledger.balance(Q)
    assert (removed, balance.committed, balance.unaccounted) == (committed, committed, 0)
    assert committed > 50
    assert any(mends)
    await ward.store.mends.mend(token)
    room = room_now(ward.io, "q")
    assert (room.used_bytes, room.reserved_bytes, room.owed_bytes) == (0, 0, 0)


async def leak_meanwhile(store: RadosStore, nbytes: int) -> None:
    """Leak as an OSD does, in an operation that nobody comes between, while others write to the queue."""
    connection, locator = store._connection, store.mends._locator(Q)
    while True:
        look = ReadOp().assert_exists()
        content = look.read(RESERVED_AT, 8)
        version = await connection.run(look, "q", "looking", RESERVED, locator)
        reserved = struct.unpack("<Q", content.data)[0] + nbytes
        change = WriteOp().assert_version(version).write(RESERVED_AT, struct.pack("<Q", reserved))
        with suppress(ChangedError):
            await connection.run(change, "q", "leaking", RESERVED, locator)
            return
