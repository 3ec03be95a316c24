"""remora and a running radosgw share their queues: one owner at a time, and moved by hand either way."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from devkit.clusters.kafka import Kafka
from devkit.clusters.kafka import create_topic as create_kafka_topic
from devkit.clusters.rabbitmq import Message, RabbitMQ
from devkit.clusters.s3 import User, Zone, fresh
from devkit.processes.daemon import Daemon, Sections, merged, running_daemon
from devkit.readers.consumer import check, read_all, read_until
from devkit.receivers.http_sink import HttpSink, http_sink
from devkit.waits import until

pytestmark = [pytest.mark.ceph, pytest.mark.kafka]

RADOSGW_LOOKS_S = 180.0
"""radosgw looks for free queues every 30 s, and locks those. It may deliver from one at its next look only."""


@contextlib.asynccontextmanager
async def watched(zone: Zone, queue: str) -> AsyncIterator[list[str]]:
    """Whose a queue was, in order: the cookie of a radosgw, or `remora`. Fails where there are two at once."""
    seen: list[str] = []

    async def watch() -> None:
        while True:
            owners = await asyncio.to_thread(zone.owners, queue)
            assert len(owners) <= 1, owners
            kinds = ["remora" if each.startswith("remora/") else each for each in owners]
            if kinds and seen[-1:] != kinds:
                seen.extend(kinds)
            await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(watch())
        yield seen
        task.cancel()


def key_of(body: bytes) -> str:
    return str(json.loads(body)["Records"][0]["s3"]["object"]["key"])


Found = dict[str, bool]
"""Keys of objects, each with whether remora brought its event."""


class Others:
    """A topic over HTTP and one over AMQP, each with a bucket of its name, and what arrived of their events."""

    def __init__(self, user: User, sink: HttpSink, broker: RabbitMQ) -> None:
        self.buckets = (fresh("hooks"), fresh("mails"))
        self.queues = tuple(map(user.zone.queue, self.buckets))
        self._user = user
        self._sink = sink
        self._broker = broker
        self._queue = ""
        self._messages: list[Message] = []

    async def make(self) -> None:
        hooks, mails = self.buckets
        exchange, self._queue = await self._broker.bound()
        await self._sink.open()
        await self._user.bucket(hooks, await self._user.topic(hooks, self._sink.url))
        endpoint = f"amqp://{self._broker.address}"
        await self._user.bucket(mails, await self._user.topic(mails, endpoint, amqp_exchange=exchange))

    async def put(self, key: str) -> None:
        for bucket in self.buckets:
            await self._user.put(bucket, key)

    @contextlib.asynccontextmanager
    async def writing(self, prefix: str) -> AsyncIterator[list[str]]:
        """Objects are put into both buckets, one after the other; the keys are of those that are in both."""
        keys: list[str] = []
        enough = asyncio.Event()

        async def write() -> None:
            while not enough.is_set():
                key = f"{prefix}{len(keys)}"
                await self.put(key)
                keys.append(key)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            try:
                yield keys
            finally:
                enough.set()

    async def look(self) -> tuple[Found, Found]:
        """By HTTP, and by AMQP: the keys, each with whether remora brought it."""
        self._messages += await self._broker.read(self._queue)
        posted = {key_of(body): "remora-pos" in self._sink.heads[body] for body in self._sink.bodies}
        sent = {key_of(each.body): "remora-pos" in (each.properties.headers or {}) for each in self._messages}
        return posted, sent

    async def until(self, keys: Iterable[str], within_s: float) -> tuple[Found, Found]:
        """The same, as soon as each of these keys has come both ways."""
        wanted = set(keys)
        async with asyncio.timeout(within_s):
            while True:
                posted, sent = await self.look()
                if wanted <= posted.keys() & sent.keys():
                    return posted, sent
                await asyncio.sleep(0.1)


async def hand_over(daemon: Daemon, user: User, kafka: Kafka, topic: str, gateway: str) -> None:
    """A Kafka topic's queue is left alone while a gateway owns it, and is delivered once it is claimed."""
    queue = user.zone.queue(topic)
    left = await daemon.leaves(queue, "held by another owner")
    (listed,) = [e for e in (await daemon.command("shard", "list", "--json")).json if e["queue"] == queue]
    before = await read_all(kafka.address, topic)

    claimed = await daemon.command("shard", "claim", queue)
    held = await daemon.until(lambda: daemon.shard(queue), "the claimed queue")
    delivered = await read_until(kafka.address, topic, 3)
    await user.put(topic, "b")
    delivered = await read_until(kafka.address, topic, 4)

    assert gateway in left["owner"]
    assert listed["owner"]["cookie"] == gateway
    assert not listed["owner"]["is_remora"]
    assert before == []
    assert claimed.code == 0, claimed.err
    assert held is not None
    verdict = check(delivered, [("ObjectCreated:Put", key) for key in "abab"])
    assert verdict.is_clean, verdict


def assert_whole(
    first: tuple[Found, Found], middle: tuple[Found, Found], last: tuple[Found, Found], keys: Iterable[str]
) -> None:
    """Everything has come both ways, and each owner brought what was written in its time."""
    wanted = {"first", "middle", "last", *keys}
    for before, between, after in zip(first, middle, last, strict=True):
        assert (before["first"], between["middle"], after["last"]) == (False, True, False)
        assert after.keys() == wanted


@pytest.mark.guarantee("radosgw-and-remora-side-by-side")
async def test_a_queue_is_taken_from_radosgw_and_given_back(zone16: Zone, kafka: Kafka, tmp_path: Path) -> None:
    """A queue that radosgw owns is left alone until it is claimed, is delivered then, and goes back when released."""
    zone, topic = zone16, fresh("shared")
    queue = zone.queue(topic)
    await create_kafka_topic(kafka.address, topic)
    async with zone.user() as user:
        arn = await user.topic(topic, f"kafka://{kafka.address}")
        await user.put(await user.bucket(topic, arn), "a", "b", "a")
        async with watched(zone, queue) as owners:
            await until(lambda: len(owners) == 1, "radosgw as owner", RADOSGW_LOOKS_S)
            async with running_daemon(tmp_path, zone.sections) as daemon:
                await hand_over(daemon, user, kafka, topic, owners[0])
                released = await daemon.command("shard", "release", queue)
                await until(lambda: len(owners) == 3, "radosgw as owner again", RADOSGW_LOOKS_S)
                away = await daemon.shard(queue)

    assert released.code == 0, released.err
    assert away is None
    assert owners == [owners[0], "remora", owners[0]]


@pytest.mark.guarantee("radosgw-and-remora-side-by-side")
async def test_topics_of_all_kinds_are_taken_from_radosgw_and_given_back(
    zone20: Zone, kafka: Kafka, rabbitmq: RabbitMQ, tmp_path: Path
) -> None:
    """Topics over Kafka, HTTP and AMQP are handed over and back by commands for all of them; while objects are written
    nothing is lost, no queue has two owners, and each owner brings what is written in its time."""
    zone, topic = zone20, fresh("shared")
    queue = zone.queue(topic)
    await create_kafka_topic(kafka.address, topic)
    more: Sections = {"ownership": {"schemes": ["kafka", "http", "amqp"]}, "destinations": {"deny": []}}
    sections = merged(zone.sections, more)
    async with http_sink() as sink, zone.user() as user:
        others = Others(user, sink, rabbitmq)
        await others.make()
        arn = await user.topic(topic, f"kafka://{kafka.address}")
        await user.put(await user.bucket(topic, arn), "a", "b", "a")
        async with (
            watched(zone, queue) as owners,
            watched(zone, others.queues[0]) as hook_owners,
            watched(zone, others.queues[1]) as mail_owners,
        ):
            everyone = (owners, hook_owners, mail_owners)
            await until(lambda: all(len(each) == 1 for each in everyone), "radosgw as owner", RADOSGW_LOOKS_S)
            await others.put("first")
            first = await others.until(["first"], RADOSGW_LOOKS_S)
            async with running_daemon(tmp_path, sections) as daemon:
                await hand_over(daemon, user, kafka, topic, owners[0])
                async with others.writing("over") as over:
                    of_http = await daemon.command("shard", "claim", "--all", "--scheme", "http")
                    await daemon.until(lambda: daemon.shard(others.queues[0]), "the HTTP topic's queue")
                    of_amqp = await daemon.shard(others.queues[1])
                    of_all = await daemon.command("shard", "claim", "--all")
                await others.put("middle")
                middle = await others.until([*over, "middle"], RADOSGW_LOOKS_S)

                async with others.writing("back") as back:
                    released = await daemon.command("shard", "release", "--all")
                await until(lambda: all(len(each) == 3 for each in everyone), "radosgw as owner again", RADOSGW_LOOKS_S)
                away = [await daemon.shard(each) for each in (queue, *others.queues)]
                await others.put("last")
                last = await others.until([*back, "last"], RADOSGW_LOOKS_S)

    assert of_http.code == of_all.code == 0, of_http.err + of_all.err
    assert of_amqp is None, "the command took a queue of another scheme"
    assert released.code == 0, released.err
    assert away == [None, None, None]
    assert all(seen == [seen[0], "remora", seen[0]] for seen in everyone), everyone
    assert_whole(first, middle, last, {*over, *back})
