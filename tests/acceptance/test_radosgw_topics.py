"""A topic that is changed or deleted through radosgw's API is served as it is now, without a restart."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from devkit.clusters.kafka import Kafka
from devkit.clusters.kafka import create_topic as create_kafka_topic
from devkit.clusters.s3 import User, Zone, fresh
from devkit.processes.daemon import Daemon, Sections, merged, running_daemon
from devkit.readers.consumer import check, read_all, read_until
from devkit.receivers.http_sink import http_sink

pytestmark = [pytest.mark.ceph, pytest.mark.kafka]

PUT = "ObjectCreated:Put"
SOON_S = 80.0
"""How soon a change is used, where each pause is an hour's: less than five seconds on a host with time to spare."""


@dataclass(frozen=True)
class Stuck:
    """A topic whose endpoint refuses, with entries that wait, and the daemon that tries to deliver them."""

    zone: Zone
    user: User
    daemon: Daemon
    topic: str
    arn: str
    refusing: str

    @property
    def queue(self) -> str:
        return self.zone.queue(self.topic)

    async def is_retrying(self) -> bool:
        shard = await self.daemon.shard(self.queue)
        return shard is not None and shard["state"] == "retrying"


@contextlib.asynccontextmanager
async def stuck(zone: Zone, kafka: Kafka, folder: Path, *keys: str, opaque: str = "old") -> AsyncIterator[Stuck]:
    topic = fresh("stuck")
    await create_kafka_topic(kafka.address, topic)
    # Retries are rare: what is sent soon after a change was sent because of it.
    sections: Sections = merged(zone.sections, {"delivery": {"retry_base": "1h", "retry_cap": "1h"}})
    async with http_sink() as nobody, zone.user() as user, running_daemon(folder, sections) as daemon:
        refusing = nobody.url.removeprefix("http://")
        arn = await user.topic(topic, f"kafka://{refusing}", opaque)
        one = Stuck(zone, user, daemon, topic, arn, refusing)
        await daemon.own(one.queue)
        await user.put(await user.bucket(topic, arn), *keys)
        await daemon.until(one.is_retrying, "a topic whose broker refuses")
        yield one


async def test_a_changed_endpoint_is_used_soon(zone: Zone, kafka: Kafka, tmp_path: Path) -> None:
    """Entries that waited for a broker that refuses go to the topic's new endpoint soon after its change."""
    keys = [f"k{number % 5}" for number in range(20)]
    async with stuck(zone, kafka, tmp_path, *keys) as one:
        changed_at = time.time()
        await one.user.topic(one.topic, f"kafka://{kafka.address}", "new")
        records = await read_until(kafka.address, one.topic, len(keys))
        await one.user.put(one.topic, "later")
        records = await read_until(kafka.address, one.topic, len(keys) + 1)

    assert max(each.sent_at for each in records[:-1] if each.what[1] != "later") - changed_at < SOON_S
    assert check(records, [(PUT, key) for key in [*keys, "later"]]).is_clean
    opaque = {each.event["opaqueData"] for each in records if each.what[1] != "later"}
    assert opaque == ({"new"} if zone.release > 19 else {"old"})  # as that release's own radosgw does


@pytest.mark.full("a changed endpoint is at the gate")
async def test_a_changed_argument_is_used_soon(zone: Zone, kafka: Kafka, tmp_path: Path) -> None:
    """So do they when a broker that answers is added with `kafka-brokers`."""
    async with stuck(zone, kafka, tmp_path, "a", "b", "a") as one:
        changed_at = time.time()
        await one.user.topic(one.topic, f"kafka://{one.refusing}", "old", kafka_brokers=kafka.address)
        records = await read_until(kafka.address, one.topic, 3)

    assert max(each.sent_at for each in records) - changed_at < SOON_S
    assert check(records, [(PUT, "a"), (PUT, "b"), (PUT, "a")]).is_clean


async def test_set_topic_attributes(zone20: Zone, kafka: Kafka, tmp_path: Path) -> None:
    """What SetTopicAttributes changes is used as well, by entries that wait too."""
    async with stuck(zone20, kafka, tmp_path, "a", "b") as one:
        changed_at = time.time()
        for name, value in (("OpaqueData", "set"), ("push-endpoint", f"kafka://{kafka.address}")):
            await one.user.set_attribute(one.arn, name, value)
        records = await read_until(kafka.address, one.topic, 2)

    assert max(each.sent_at for each in records) - changed_at < SOON_S
    assert {each.event["opaqueData"] for each in records} == {"set"}


async def test_a_changed_listener_with_a_login(zone: Zone, kafka: Kafka, tmp_path: Path) -> None:
    """A topic that moves to a listener with user and password is delivered there, and the password shows nowhere."""
    topic, env = fresh("login"), kafka.env
    login = f"{env['user']}:{env['password']}@{env['sasl_plaintext_bootstrap']}"
    await create_kafka_topic(kafka.address, topic)
    async with zone.user() as user, running_daemon(tmp_path, zone.sections) as daemon:
        arn = await user.topic(topic, f"kafka://{kafka.address}")
        await daemon.own(zone.queue(topic))
        await user.put(await user.bucket(topic, arn), "before")
        await read_until(kafka.address, topic, 1)
        await user.topic(topic, f"kafka://{login}", mechanism="SCRAM-SHA-512")

        async def moved() -> bool:
            shard = await daemon.shard(zone.queue(topic))
            return bool(shard and env["sasl_plaintext_bootstrap"] in shard["endpoint"])

        await daemon.until(moved, "the new listener")
        await user.put(topic, "after")
        records = await read_until(kafka.address, topic, 2)
        shown = await daemon.command("topic", "show", topic)
        said = daemon.logged() + str(await daemon.status()) + (await daemon.get("/metrics"))[1] + shown.out.decode()

    assert check(records, [(PUT, "before"), (PUT, "after")]).is_clean
    assert env["password"] not in said


async def test_a_topic_that_becomes_http_goes_to_radosgw(zone: Zone, kafka: Kafka, tmp_path: Path) -> None:
    """Its queue is let go soon, radosgw takes it and posts what comes from then on."""
    topic = fresh("tohttp")
    queue = zone.queue(topic)
    await create_kafka_topic(kafka.address, topic)
    async with zone.user() as user, running_daemon(tmp_path, zone.sections) as daemon, http_sink() as sink:
        await sink.open()
        arn = await user.topic(topic, f"kafka://{kafka.address}")
        await daemon.own(queue)
        await user.put(await user.bucket(topic, arn), "kafka")
        await read_until(kafka.address, topic, 1)

        await user.topic(topic, sink.url)
        await daemon.leaves(queue, "http endpoints stay with radosgw")
        await user.bucket(topic, arn)  # release 16 keeps a copy of the topic in each notification
        await user.put(topic, "http")
        (posted,) = await sink.until(1, 150)  # it looks for free queues every 30 s, but may be busy with others

        (listed,) = [each for each in (await daemon.command("topic", "list", "--json")).json if each["topic"] == topic]

    assert b'"key":"http"' in posted
    assert listed["delivered_by"] == "radosgw"
    assert "http" in listed["reason"]
    assert len(await read_all(kafka.address, topic)) == 1


@pytest.mark.guarantee("no-loss")
async def test_a_topic_that_is_not_persistent_for_a_time(zone: Zone, kafka: Kafka, tmp_path: Path) -> None:
    """What waits when a topic is made anew as one that is not persistent stays in its queue, where the ledger shows it,
    and is delivered when the topic is persistent again, before what comes then."""
    async with stuck(zone, kafka, tmp_path, "a", "b", "a") as one:
        attributes = {"push-endpoint": f"kafka://{one.refusing}", "persistent": "false"}
        await one.user.sns.create_topic(Name=one.topic, Attributes=attributes)
        other = fresh("other")  # served by a later look at the zone than the one that missed the topic
        await create_kafka_topic(kafka.address, other)
        await one.user.topic(other, f"kafka://{kafka.address}")
        await one.daemon.own(zone.queue(other))
        ledger = (await one.daemon.command("ledger", "--json")).json
        [waits] = [each for topic in ledger for each in topic["shards"] if each["queue"] == one.queue]
        await one.user.topic(one.topic, f"kafka://{kafka.address}")
        await read_until(kafka.address, one.topic, 3)
        await one.user.bucket(one.topic, one.arn)
        await one.user.put(one.topic, "a", "later")
        records = await read_until(kafka.address, one.topic, 5)
        await one.daemon.until(lambda: asyncio.to_thread(zone.is_empty, one.queue), "an empty queue")
        restarts = await one.daemon.metric("remora_worker_ends_total")

    assert (waits["pending"], waits["unaccounted"]) == (3, 0)
    assert check(records, [(PUT, key) for key in ("a", "b", "a", "a", "later")]).is_clean
    assert restarts == 0


async def test_a_topic_whose_attribute_persistent_is_unset(zone20: Zone, kafka: Kafka, tmp_path: Path) -> None:
    """radosgw deletes the queue with what waits in it, which the log warns of; the queue that it makes when the topic
    is persistent again is served."""
    async with stuck(zone20, kafka, tmp_path, "a", "b") as one:
        await one.user.set_attribute(one.arn, "persistent", "false")

        async def is_gone() -> bool:
            return await one.daemon.shard(one.queue) is None

        await one.daemon.until(is_gone, "letting go")
        warned = [line for line in one.daemon.logged().splitlines() if "shard_gone" in line]
        await one.user.set_attribute(one.arn, "persistent", "true")
        await one.user.set_attribute(one.arn, "push-endpoint", f"kafka://{kafka.address}")
        await one.daemon.own(one.queue)
        await one.user.put(one.topic, "later")
        records = await read_until(kafka.address, one.topic, 1)
        restarts = await one.daemon.metric("remora_worker_ends_total")

    assert len(warned) == 1
    assert " WARNING " in warned[0]
    assert one.queue in warned[0]
    assert check(records, [(PUT, "later")]).is_clean
    assert restarts == 0


@pytest.mark.guarantee("radosgw-and-remora-side-by-side")
async def test_http_topics_are_never_locked(zone: Zone, kafka: Kafka, tmp_path: Path) -> None:
    """A free queue of an HTTP topic stays free while others are taken, and `topic list` says whose it is."""
    http, topic = fresh("http"), fresh("kafka")
    await create_kafka_topic(kafka.address, topic)
    async with http_sink() as sink, zone.user() as user:
        arn = await user.topic(http, sink.url)
        with zone.locked(zone.queue(http)) as unlock:  # until radosgw can take it no more
            await user.put(await user.bucket(http, arn), "k")
            await user.topic(topic, f"kafka://{kafka.address}")
            with zone.idle_radosgw():
                unlock()
                async with running_daemon(tmp_path, zone.sections) as daemon:
                    await daemon.own(zone.queue(topic))
                    await daemon.leaves(zone.queue(http), "http endpoints stay with radosgw")
                    owners = zone.owners(zone.queue(http))
                    table = (await daemon.command("topic", "list")).out.decode()
                assert zone.owners(zone.queue(http)) == owners == []

    (line,) = [line for line in table.splitlines() if line.startswith(http)]
    assert "radosgw: http endpoints stay with radosgw" in line
    assert any(line.startswith(topic) and line.endswith("remora") for line in table.splitlines())


@pytest.mark.guarantee("radosgw-and-remora-side-by-side")
async def test_a_deleted_topic_is_let_go(zone: Zone, kafka: Kafka, tmp_path: Path) -> None:
    """With entries waiting it is let go within 5 s, its queue never comes back, and a new one gets new events only."""
    async with stuck(zone, kafka, tmp_path, "old-1", "old-2") as one:
        user, daemon = one.user, one.daemon
        await user.drop_topic(one.arn)

        async def forgotten() -> bool:
            return await daemon.shard(one.queue) is None

        await daemon.until(forgotten, "letting go")
        assert not zone.exists(one.queue)
        other = fresh("other")  # served by a later look at the zone than the one that missed the topic
        await create_kafka_topic(kafka.address, other)
        arn = await user.topic(other, f"kafka://{kafka.address}")
        await daemon.own(zone.queue(other))
        assert not zone.exists(one.queue)

        arn = await user.topic(one.topic, f"kafka://{kafka.address}")
        await daemon.own(one.queue)
        await user.bucket(one.topic, arn)
        await user.put(one.topic, "new-1", "new-2")
        records = await read_until(kafka.address, one.topic, 2)
        await daemon.until(lambda: asyncio.to_thread(zone.is_empty, one.queue), "an empty queue")
        records = await read_all(kafka.address, one.topic)

        await user.drop_topic(arn)
        assert await daemon.stop() == 0
        assert not zone.exists(one.queue)

    verdict = check(records, [(PUT, "new-1"), (PUT, "new-2")])
    assert verdict.is_clean, verdict
