"""Daemons that are told to stop, stop with work under way, die, and are started again."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from devkit.clusters.kafka import Kafka
from devkit.entries.queues import Queues, a_topic, assert_clean, assert_whole, calm, delivers, numbered, quick
from devkit.processes.daemon import STOP_S, Daemon, running_daemon
from remora.model.exits import Exit
from remora.model.shard import Shard

pytestmark = [pytest.mark.ceph, pytest.mark.kafka]


@contextlib.asynccontextmanager
async def deaf_endpoint() -> AsyncIterator[str]:
    """Something that takes connections and never answers."""
    held = []

    async def hold(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"kafka://{host}:{port}"
    finally:
        server.close()
        for writer in held:
            writer.transport.abort()


@pytest.mark.full("a kill under load is at the gate")
@pytest.mark.guarantee("duplicates")
async def test_rolling_restart_under_load(queues: Queues, kafka: Kafka, tmp_path: Path) -> None:
    """Each of two daemons that is stopped has finished what it took and frees its locks at once: the other one, or the
    one that is started in its place, goes on within seconds, and nothing is lost or delivered twice."""
    topic = await a_topic(queues, kafka)
    await queues.fill(topic, 500)
    options = calm(queues)  # who had to wait for the lease would wait long

    async with queues.under_load(topic, start=500) as load, running_daemon(tmp_path, options) as first:
        await delivers(first, topic, 600)
        async with running_daemon(tmp_path, options) as second:
            left = await second.until(lambda: second.left(topic), "a look at the lock")
            assert left["reason"] in ("held by another owner", "left to workers that hold fewer")

            assert await first.stop() == Exit.OK

            await delivers(second, topic, 1)
            async with running_daemon(tmp_path, options) as third:
                await third.until(lambda: third.left(topic), "a look at the lock")

                assert await second.stop() == Exit.OK

                await delivers(third, topic, 1)
                await load.finish()
                await queues.drained(topic)
                assert await third.stop() == Exit.OK
        assert (await queues.store.inspection.stats(Shard(topic))).holder is None

    assert_clean(await numbered(kafka.address, topic, load.end))


@pytest.mark.guarantee("duplicates")
async def test_drain_timeout(queues: Queues, tmp_path: Path) -> None:
    """A drain that an endpoint holds up ends when its time is over, with an exit code that says so."""
    async with deaf_endpoint() as uri:
        topic = queues.make(uri)
        await queues.fill(topic, 10)
        times = {"connect_timeout": "10m", "delivery_timeout": "1s"}
        options = quick(queues, kafka=times, delivery={"drain_timeout": "2s"})
        async with running_daemon(tmp_path, options) as daemon:
            await daemon.until(lambda: daemon.shard(topic), "a lock")

            started = time.monotonic()
            code = await daemon.stop()
            took = time.monotonic() - started

            assert code == Exit.DRAIN_TIMEOUT
            assert 2 <= took < STOP_S
            assert "drain_timeout" in daemon.logged()
        assert (await queues.store.inspection.stats(Shard(topic))).holder is None
        assert len(await queues.contents(topic)) == 10


async def test_second_sigterm(queues: Queues, tmp_path: Path) -> None:
    """A second signal ends a drain that would take long, and still frees the locks."""
    async with deaf_endpoint() as uri:
        topic = queues.make(uri)
        await queues.fill(topic, 10)
        options = quick(queues, kafka={"connect_timeout": "10m"}, delivery={"drain_timeout": "10m"})
        async with running_daemon(tmp_path, options) as daemon:
            await daemon.until(lambda: daemon.shard(topic), "a lock")
            daemon.send(signal.SIGTERM)
            await daemon.until(lambda: is_draining(daemon), "a drain")
            assert (await daemon.get("/-/ready"))[0] == 503

            daemon.send(signal.SIGTERM)

            assert await daemon.ended() == Exit.DRAIN_TIMEOUT, "long before drain_timeout"
        assert (await queues.store.inspection.stats(Shard(topic))).holder is None


async def is_draining(daemon: Daemon) -> bool:
    return bool((await daemon.status())["draining"])


@pytest.mark.guarantee("no-loss", "order-per-object")
async def test_sigkill_under_load(queues: Queues, kafka: Kafka, tmp_path: Path) -> None:
    """A killed daemon that is started again continues; nothing is lost and the order holds."""
    topic = await a_topic(queues, kafka)

    async with queues.under_load(topic) as load, running_daemon(tmp_path, quick(queues)) as daemon:
        for _ in range(2):
            await delivers(daemon, topic, 200)
            await daemon.kill_all()
            await daemon.start()

            await delivers(daemon, topic, 1)
        await load.finish()
        await queues.drained(topic)
        assert await daemon.stop() == Exit.OK

    assert_whole(await numbered(kafka.address, topic, load.end))


async def knows_an_owner(daemon: Daemon, topic: str) -> bool:
    """Whether a daemon knows who else holds a queue."""
    left = await daemon.left(topic)
    return bool(left and left["owner"])


@pytest.mark.guarantee("no-loss")
async def test_frozen_owner(queues: Queues, kafka: Kafka, tmp_path: Path) -> None:
    """A daemon that sleeps through its lease is replaced, and on waking removes nothing and lets go."""
    topic = await a_topic(queues, kafka)

    async with (
        queues.under_load(topic) as load,
        running_daemon(tmp_path, quick(queues)) as first,
        running_daemon(tmp_path, quick(queues, supervisor={"workers": 1})) as second,
    ):
        await delivers(first, topic, 100)
        await second.until(lambda: knows_an_owner(second, topic), "a look at the lock")
        await first.freeze_all()

        await delivers(second, topic, 200)
        first.thaw_all()
        await first.until(lambda: first.left(topic), "letting go")

        await load.finish()
        await queues.drained(topic)
        assert await first.metric("remora_lock_losses_total") == 1
        assert await second.metric("remora_lock_takeovers_total") == 1
        await second.until(lambda: second.shard(topic), "the owner")
        removed = [await each.metric("remora_removed_entries_total", topic=topic) for each in (first, second)]
        # A removal whose answer was slept through is done and not counted; one that was done twice would be.
        assert load.end - 1024 < sum(removed) <= load.end
        assert await first.stop() == await second.stop() == Exit.OK

    assert_whole(await numbered(kafka.address, topic, load.end))
