"""The RADOS store while the cluster misbehaves: bounded, never blocking the loop, and back when the cluster is."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest

from devkit.clusters.ceph import Ceph, Gateway, reached
from devkit.waits import PATIENT_S, until
from remora.config import RadosSettings
from remora.model.errors import OwnershipLost, StoreError, StoreUnavailable
from remora.model.ledger import Tally
from remora.model.shard import LockToken, Shard
from remora.storage.rados import RadosStore
from remora.storage.rados.cluster.client import connected_client
from support.stores import renew

pytestmark = pytest.mark.ceph

QUICK_S = 6.0
"""Calls keep this time-out while the cluster is well, and it is over before an OSD that is frozen counts as down."""

LONGER_S = 4 * QUICK_S
"""The time-out of calls that still wait when those with the quick one have failed: what slows one slows the other."""

HANGS_S = 5 * PATIENT_S
"""A time-out that is over only where something waits for it that must not."""

TICK_S = 0.005
OSDS = ("osd.0", "osd.1")
Q = Shard("q")


@asynccontextmanager
async def loop_stays_free(longest_s: float = 0.75) -> AsyncIterator[None]:
    """Fail when the event loop was held up for longer than this at any time.

    A thread measures it in ticks of its own, so that a process which stands still as a whole does not count.
    """
    since_loop, worst, over = 0, 0, threading.Event()

    def count() -> None:
        nonlocal since_loop, worst
        while not over.wait(TICK_S):
            since_loop += 1
            worst = max(worst, since_loop)

    async def tick() -> None:
        nonlocal since_loop
        while True:
            since_loop = 0
            await asyncio.sleep(TICK_S)

    counting, ticking = threading.Thread(target=count), asyncio.create_task(tick())
    counting.start()
    try:
        yield
    finally:
        ticking.cancel()
        over.set()
        counting.join()
    assert worst * TICK_S < longest_s


async def frozen(ceph: Ceph, *daemons: str) -> None:
    for daemon in daemons:
        await asyncio.to_thread(ceph.send, daemon, "STOP")


async def thawed(ceph: Ceph, *daemons: str) -> None:
    for daemon in daemons:
        await asyncio.to_thread(ceph.send, daemon, "CONT")


async def works_again(store: RadosStore) -> None:
    async def peeked() -> bool:
        with suppress(StoreUnavailable):
            await store.catalog.peek(Q)
            return True
        return False

    await until(peeked)


async def test_frozen_osds(ceph: Ceph, settings: RadosSettings, gateway: Gateway) -> None:
    """While OSDs answer nothing every call fails by its own time-out, with one of a longer time-out still waiting; the
    loop runs on, and then all goes on."""
    gateway.make_queue("q")
    told: list[bool] = []
    quick = replace(settings, op_timeout_s=QUICK_S, mount_timeout_s=60.0)
    longer = replace(quick, op_timeout_s=LONGER_S)
    async with reached(longer) as other, reached(quick, lambda there, _: told.append(there)) as store:
        token = await store.locks.acquire(Q, "w", 90)
        assert isinstance(token, LockToken)
        calls = (
            renew(store, token, 90),
            store.queue.read(token, b"", 9),
            store.catalog.peek(Q),
            store.catalog.shards(),
            store.inspection.stats(Q),
        )
        await frozen(ceph, *OSDS)
        try:
            waiting = asyncio.create_task(other.inspection.stats(Q))
            begin = time.monotonic()
            async with loop_stays_free():
                answers = await asyncio.gather(*calls, return_exceptions=True)
            took, still_waits = time.monotonic() - begin, not waiting.done()
        finally:
            await thawed(ceph, *OSDS)

        assert [type(answer) for answer in answers] == [StoreUnavailable] * len(calls)
        assert took > QUICK_S * 0.9
        assert still_waits
        assert (await waiting).entries == 0
        await works_again(store)
        await renew(store, token, 90)
        assert told == [True, False, True]


async def test_one_frozen_osd_costs_only_its_queues(ceph: Ceph, settings: RadosSettings, gateway: Gateway) -> None:
    """Queues on other OSDs answer, and many calls fail by their own time-out, while calls of a longer one hang on a
    frozen one, and the store counts as there."""
    shards = [Shard(f"q{number}") for number in range(96)]  # so many that each OSD has some, whatever their names
    for shard in shards:
        gateway.make_queue(shard.queue)
    told: list[bool] = []
    quick = replace(settings, op_timeout_s=QUICK_S, mount_timeout_s=60.0)
    longer = replace(quick, op_timeout_s=LONGER_S)
    async with reached(longer) as other, reached(quick, lambda there, _: told.append(there)) as store:
        chatter = asyncio.ensure_future(peek_for_ever(store, shards))
        await frozen(ceph, "osd.0")
        try:
            waiting = {shard: asyncio.ensure_future(other.catalog.peek(shard)) for shard in shards}
            answers = {shard: [asyncio.ensure_future(store.catalog.peek(shard)) for _ in range(8)] for shard in shards}
            hanging = [shard for shard in shards if await all_fail(answers[shard])]
            still_wait = [shard for shard in hanging if not waiting[shard].done()]
        finally:
            chatter.cancel()
            await thawed(ceph, "osd.0")

        assert 0 < len(hanging) < len(shards)
        assert still_wait == hanging
        assert {await each for each in waiting.values()} == {None}
        assert told == [True]
        await works_again_all(store, shards)


async def all_fail(calls: Sequence[asyncio.Future[bytes | None]]) -> bool:
    """Whether these calls were all left unanswered; they must agree, since they ask one OSD."""
    kinds = {type(answer) for answer in await asyncio.gather(*calls, return_exceptions=True)}
    assert kinds in ({StoreUnavailable}, {type(None)})
    return kinds == {StoreUnavailable}


async def peek_for_ever(store: RadosStore, shards: list[Shard]) -> None:
    """Ask every queue one after the other, as daemons do, so that those which can answer have something to say."""

    async def ask(shard: Shard) -> None:
        while True:
            with suppress(StoreUnavailable):
                await store.catalog.peek(shard)
            await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as tasks:
        for shard in shards:
            tasks.create_task(ask(shard))


async def works_again_all(store: RadosStore, shards: list[Shard]) -> None:
    async def all_answer() -> bool:
        answers = await asyncio.gather(*(store.catalog.peek(shard) for shard in shards), return_exceptions=True)
        return all(answer is None for answer in answers)

    await until(all_answer)


@pytest.mark.guarantee("no-loss")
async def test_unknown_outcome_of_a_removal(ceph: Ceph, settings: RadosSettings, gateway: Gateway) -> None:
    """A removal that timed out may have happened; repeating it removes and counts everything exactly once."""
    gateway.make_queue("q")
    async with reached(replace(settings, op_timeout_s=QUICK_S)) as store:
        entries = [b"%02d" % number for number in range(60)]
        reservation = await store.two_phase.reserve(Q, 60, 120)
        await store.two_phase.commit(Q, reservation, entries)
        token = await store.locks.acquire(Q, "w", 90)
        assert isinstance(token, LockToken)
        page = await store.queue.read(token, b"", 60)
        await frozen(ceph, *OSDS)
        try:
            with pytest.raises(StoreUnavailable):
                await store.queue.remove(token, page.positions[3], 3, Tally(delivered=3))
        finally:
            await thawed(ceph, *OSDS)
        await works_again(store)

        await store.queue.remove(token, page.positions[3], 3, Tally(delivered=3))

        assert (await store.queue.read(token, b"", 60)).entries == entries[3:]
        stats = await store.inspection.stats(Q)
        assert (stats.entries, stats.used_bytes) == (57, 57 * 12)


async def test_cancelled_call(ceph: Ceph, settings: RadosSettings, gateway: Gateway) -> None:
    """Calls that hang can be cancelled while one that began before them still waits, and leave the store whole."""
    gateway.make_queue("q")
    async with reached(replace(settings, op_timeout_s=HANGS_S)) as store:
        await frozen(ceph, *OSDS)
        try:
            waiting = asyncio.create_task(store.inspection.stats(Q))
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await asyncio.gather(*(store.inspection.stats(Q) for _ in range(50)))
            assert not waiting.done()
        finally:
            await thawed(ceph, *OSDS)

        assert (await waiting).entries == 0
        await works_again(store)


async def test_closing_under_calls(ceph: Ceph, settings: RadosSettings, gateway: Gateway) -> None:
    """Closing the store ends calls that hang as unanswered: nothing is taken for lost or gone."""
    gateway.make_queue("q")
    try:
        async with reached(replace(settings, op_timeout_s=30.0)) as store:
            token = await store.locks.acquire(Q, "w", 90)
            assert isinstance(token, LockToken)
            await frozen(ceph, *OSDS)
            calls = asyncio.gather(store.queue.read(token, b"", 1), renew(store, token, 90), return_exceptions=True)
            await asyncio.wait([calls], timeout=0.1)
        answers = await calls
    finally:
        await thawed(ceph, *OSDS)

    assert [type(answer) for answer in answers] == [StoreUnavailable, StoreUnavailable]
    with pytest.raises(StoreUnavailable):
        await store.catalog.peek(Q)


async def test_restarted_daemons(ceph: Ceph, settings: RadosSettings, gateway: Gateway) -> None:
    """After the monitor and an OSD were killed and started again the same locks are held and calls succeed."""
    gateway.make_queue("q")
    async with reached(replace(settings, op_timeout_s=QUICK_S * 2)) as store:
        token = await store.locks.acquire(Q, "w", 900)
        assert isinstance(token, LockToken)

        for daemon in ("mon.a", *OSDS):
            await asyncio.to_thread(ceph.send, daemon, "KILL")
            async with loop_stays_free():
                with suppress(StoreUnavailable):
                    await store.catalog.peek(Q)
                await asyncio.to_thread(ceph.start, daemon)

        await works_again(store)
        await renew(store, token, 90)
        assert (await store.queue.read(token, b"", 1)).entries == []


async def test_unreachable_monitor_at_start(ceph: Ceph, settings: RadosSettings, gateway: Gateway) -> None:
    """Without a monitor the store opens, refuses calls and closes while a client that waits for one still waits; it
    connects later."""
    gateway.make_queue("q")
    told: list[tuple[bool, str]] = []
    patient, hanging = (replace(settings, mount_timeout_s=each) for each in (QUICK_S, HANGS_S))
    await frozen(ceph, "mon.a")
    waiting = asyncio.create_task(asyncio.to_thread(connected_client, hanging))
    try:
        async with loop_stays_free(), RadosStore(hanging) as store:
            with pytest.raises(StoreUnavailable):
                await store.catalog.peek(Q)
            assert not store.connected
        assert not waiting.done()

        store = RadosStore(patient, lambda connected, text: told.append((connected, text)))
        await store.__aenter__()
        await until(lambda: _true(bool(told)))
        assert told[0][0] is False
        assert "monitor" in told[0][1]
    finally:
        await thawed(ceph, "mon.a")

    (await waiting).shutdown()
    await until(lambda: _true(store.connected))
    assert await store.catalog.peek(Q) is None
    assert "default.rgw.log" in store.description
    await store.__aexit__(None, None, None)


async def _true(value: bool) -> bool:
    return value


async def test_shut_out_client(ceph: Ceph, settings: RadosSettings, gateway: Gateway) -> None:
    """A client that the cluster has shut out connects anew; its locks are another client's then, and so lost."""
    gateway.make_queue("q")
    async with reached(settings) as store:
        token = await store.locks.acquire(Q, "w", 90)
        assert isinstance(token, LockToken)
        holder = (await store.inspection.stats(Q)).holder
        assert holder is not None
        ceph.command(prefix="osd blocklist", blocklistop="add", addr=holder.address)

        async def lost() -> bool:
            try:
                await store.queue.read(token, b"", 1)
            except StoreUnavailable:
                return False
            except OwnershipLost:
                return True
            return False

        await until(lost)
        answer = await store.locks.acquire(Q, "w", 90)
        assert not isinstance(answer, LockToken)  # the old instance's lock runs out by itself, or is evicted
        await store.locks.evict(Q, answer)
        assert isinstance(await store.locks.acquire(Q, "w", 90), LockToken)


_ENDING = """
    import asyncio, os, signal
    from remora.config import RadosSettings
    from remora.model.shard import Shard
    from remora.storage.rados import RadosStore

    async def main():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)
        async with RadosStore(RadosSettings({settings})) as store:
            calls = [asyncio.ensure_future(store.catalog.peek(Shard("q"))) for _ in range(20)]
            print("ready", flush=True)
            try:
                await asyncio.sleep(600)
            finally:
                for call in calls:
                    call.cancel()

    try:
        asyncio.run(main())
    except asyncio.CancelledError:
        print("ended", flush=True)
        os._exit(0)  # as remora does: a thread of librados may wait for a monitor
"""


@pytest.mark.parametrize("daemons", [("mon.a",), OSDS, ("mon.a", *OSDS)])
def test_termination_while_the_cluster_is_away(ceph: Ceph, settings: RadosSettings, daemons: tuple[str, ...]) -> None:
    """SIGTERM ends a process promptly and cleanly though monitor and OSDs leave its calls unanswered."""
    patient = replace(settings, op_timeout_s=600.0, mount_timeout_s=600.0)
    arguments = ", ".join(f"{name}={getattr(patient, name)!r}" for name in patient.__dataclass_fields__)
    script = textwrap.dedent(_ENDING).format(settings=arguments)
    with ceph.frozen(*daemons):
        command = [sys.executable, "-W", "error", "-X", "faulthandler", "-c", script]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.terminate()
            try:
                out, err = process.communicate(timeout=200)
            finally:
                process.kill()  # if it has not ended

    assert (process.returncode, out, err) == (0, "ended\n", "")


async def test_deleted_pool(ceph: Ceph, settings: RadosSettings) -> None:
    """A pool that is deleted under the store is reported as missing, and not taken for one without queues."""
    ceph.command(prefix="osd pool create", pool="doomed", pg_num=1)
    async with reached(replace(settings, pool="doomed")) as store:
        assert await store.catalog.shards() == []
        ceph.command(prefix="osd pool delete", pool="doomed", pool2="doomed", yes_i_really_really_mean_it=True)

        async def reported() -> bool:
            try:
                await store.catalog.shards()
            except StoreError as exc:
                return "doomed" in str(exc)
            return False

        await until(reported)
