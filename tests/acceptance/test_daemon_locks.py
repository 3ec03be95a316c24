"""Queues whose lock or object is taken away from the daemon while it delivers them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from devkit.clusters.kafka import Kafka
from devkit.entries.queues import Queues, a_topic, assert_clean, calm, delivers, numbered, quick
from devkit.processes.daemon import Daemon, running_daemon
from devkit.readers.consumer import read_until
from remora.model.exits import Exit
from remora.model.shard import Shard

pytestmark = [pytest.mark.ceph, pytest.mark.kafka]

RELEASED = "released to radosgw until it is claimed"

LONG = {"lease": "90s", "renew_interval": "30s", "trust_margin": "5s"}
"""With these no renewal finds out what happens to a lock within a test."""


async def in_flight(daemon: Daemon, topic: str) -> bool:
    shard = await daemon.shard(topic)
    return bool(shard and shard["in_flight_bytes"])


async def _locks(queues: Queues, topic: str) -> bool:
    """Whether a gateway gets the lock of a queue."""
    return queues.gateway.lock(topic)


async def lost_its_lock(daemon: Daemon, topic: str) -> bool:
    """Whether a daemon has let a queue go since its lock is another's. The status says so until the next look only."""
    lost = f"shard_lost: delivery of the queue stops: its lock is lost queue={topic} "
    return lost in daemon.logged() and not await daemon.shard(topic)


@pytest.mark.guarantee("no-loss")
async def test_stolen_lock(queues: Queues, fragile_kafka: Kafka, tmp_path: Path) -> None:
    """From the moment that somebody else has the lock nothing is removed, whatever is acknowledged then."""
    topic = await a_topic(queues, fragile_kafka)
    options = quick(queues, ownership=LONG, kafka={"delivery_timeout": "25s", "transaction_timeout": "30s"})
    async with running_daemon(tmp_path, options) as daemon:
        await queues.fill(topic, 10)
        await delivers(daemon, topic, 10)
        await queues.drained(topic)
        fragile_kafka.stop(how=signal.SIGSTOP)
        try:
            await queues.fill(topic, 500, start=10)
            await daemon.until(lambda: in_flight(daemon, topic), "entries in flight")
            holder = (await queues.store.inspection.stats(Shard(topic))).holder
            assert holder is not None
            await queues.store.locks.evict(Shard(topic), holder)
            assert queues.gateway.lock(topic)
            front = queues.front(topic)
        finally:
            fragile_kafka.stop(how=signal.SIGCONT)

        await daemon.until(lambda: lost_its_lock(daemon, topic), "letting go")

        arrived = await read_until(fragile_kafka.address, topic, 11)
        assert len(arrived) > 10, "some of what was in flight has arrived"
        assert queues.front(topic) == front
        assert len(await queues.contents(topic)) == 500
        assert [each.cookie for each in queues.gateway.lockers(topic)] == ["gatewaycookie016"]
        assert await daemon.metric("remora_lock_losses_total") == 1
        assert await daemon.metric("remora_removed_entries_total", topic=topic) == 10
        assert await daemon.stop() == Exit.OK
        assert queues.gateway.lockers(topic), "a lock that is another's is not given back"


async def test_deleted_queue(queues: Queues, kafka: Kafka, tmp_path: Path) -> None:
    """A queue that is deleted under load is let go within seconds and stays deleted, and another one flows on."""
    doomed, other = await a_topic(queues, kafka), await a_topic(queues, kafka)
    async with queues.under_load(other) as load, running_daemon(tmp_path, calm(queues)) as daemon:
        await queues.fill(doomed, 2000)
        await delivers(daemon, doomed, 1)

        queues.gateway.delete_queue(doomed)

        async def unknown() -> bool:
            return not (await daemon.shard(doomed) or await daemon.left(doomed))

        await daemon.until(unknown, "letting go")
        before = await daemon.metric("remora_delivered_entries_total", topic=other)
        await delivers(daemon, other, int(before) + 200)
        assert not queues.gateway.exists(doomed)
        await load.finish()
        await queues.drained(other)
        assert await daemon.stop() == Exit.OK
    assert not queues.gateway.exists(doomed)
    assert_clean(await numbered(kafka.address, other, load.end))


async def test_deleted_object(queues: Queues, kafka: Kafka, tmp_path: Path) -> None:
    """A queue whose object alone is deleted is let go too, is never made again, and status says why."""
    topic = await a_topic(queues, kafka)
    async with running_daemon(tmp_path, calm(queues)) as daemon:
        await queues.fill(topic, 10)
        await delivers(daemon, topic, 10)

        queues.gateway.ioctx.remove_object(topic)

        await daemon.leaves(topic, "there is no")
        readings = await daemon.metric("remora_lock_acquisitions_total")
        assert await daemon.stop() == Exit.OK
        assert readings == 1
    assert not queues.gateway.exists(topic)


async def test_recreated_queue(queues: Queues, kafka: Kafka, tmp_path: Path) -> None:
    """A queue that is made anew under its old name is delivered from its beginning, as another incarnation."""
    topic = await a_topic(queues, kafka)
    async with running_daemon(tmp_path, calm(queues)) as daemon:
        await queues.fill(topic, 10)
        await delivers(daemon, topic, 10)

        queues.gateway.delete_queue(topic)
        queues.gateway.make_queue(topic)
        await queues.fill(topic, 10, start=10)

        records = await read_until(kafka.address, topic, 20)
        await queues.drained(topic)
    assert len({each.place.incarnation for each in records}) == 2
    assert_clean(await numbered(kafka.address, topic, 20))


async def test_claim_from_a_gateway(queues: Queues, kafka: Kafka, tmp_path: Path) -> None:
    """A queue that a gateway holds is taken from it by one command, and given back by another."""
    topic = await a_topic(queues, kafka)
    assert queues.gateway.lock(topic)
    await queues.fill(topic, 10)
    async with running_daemon(tmp_path, quick(queues)) as daemon:
        await daemon.leaves(topic, "held by another")

        claimed = await daemon.command("shard", "claim", topic)

        assert claimed.code == Exit.OK, claimed.err
        await delivers(daemon, topic, 10)
        (row,) = (await daemon.command("shard", "list", "--json")).json
        assert row["owner"]["is_remora"] is True

        released = await daemon.command("shard", "release", topic)

        assert released.code == Exit.OK, released.err
        await daemon.leaves(topic, RELEASED)
        await daemon.until(lambda: _locks(queues, topic), "the gateway getting it")


@pytest.mark.full("engine tests have the rule")
@pytest.mark.guarantee("radosgw-and-remora-side-by-side")
async def test_a_released_queue_stays_released(queues: Queues, kafka: Kafka, tmp_path: Path) -> None:
    """No worker of the host takes a released queue, also after a restart; status says who has it till it is claimed."""
    topic = await a_topic(queues, kafka)
    async with running_daemon(tmp_path, quick(queues)) as daemon:
        await queues.fill(topic, 10)
        await delivers(daemon, topic, 10)

        released = await daemon.command("shard", "release", "--topic", topic)
        assert released.code == Exit.OK, released.err
        await daemon.leaves(topic, RELEASED)
        await daemon.until(lambda: _locks(queues, topic), "a gateway getting it")
        queues.gateway.unlock(topic)
        assert await daemon.stop() == Exit.OK
        await queues.fill(topic, 10, start=10)
        await daemon.start()
        await daemon.leaves(topic, RELEASED)

        assert queues.gateway.lock(topic)

        async def named() -> bool:
            left = await daemon.left(topic)
            return bool(left) and left["reason"] == RELEASED and "gatewaycookie016" in left["owner"]

        await daemon.until(named, "the gateway in the status")
        (row,) = (await daemon.command("shard", "list", "--json")).json
        assert (row["released"], row["owner"]["is_remora"]) == (True, False)
        text = (await daemon.command("shard", "list")).out.decode()
        assert "(gatewaycookie016), released" in text
        assert len(await queues.contents(topic)) == 10

        claimed = await daemon.command("shard", "claim", "--all")
        assert claimed.code == Exit.OK, claimed.err
        await delivers(daemon, topic, 10)
        (row,) = (await daemon.command("shard", "list", "--json")).json
        assert (row["released"], row["owner"]["is_remora"]) == (False, True)


@pytest.mark.guarantee("many-workers-and-hosts")
async def test_a_second_daemon_takes_a_killed_ones_queues(queues: Queues, kafka: Kafka, tmp_path: Path) -> None:
    """What a daemon held that was killed with its workers, another of the host has long before the leases end."""
    topics = [await a_topic(queues, kafka) for _ in range(4)]
    options = quick(queues, ownership=LONG, supervisor={"run_directory": str(tmp_path / "run")})
    async with running_daemon(tmp_path, options) as first, running_daemon(tmp_path, options) as second:

        async def shared() -> bool:
            held = [len((await each.status())["shards"]) for each in (first, second)]
            return sum(held) == len(topics) and all(held)

        await first.until(shared, "queues for both")
        await first.kill_all()

        async def taken() -> bool:
            return len((await second.status())["shards"]) == len(topics)

        await second.until(taken, "the other's queues")
