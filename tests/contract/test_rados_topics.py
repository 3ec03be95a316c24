"""Topics' metadata as radosgw keeps it, of both versions, read again cheaply and kept true."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import rados

from devkit.clusters.ceph import Ceph, Gateway, reached
from devkit.waits import until
from remora.codec.ceph import FieldWriter
from remora.config import RadosSettings
from remora.model.topic import Topic

if TYPE_CHECKING:
    import rados

    from remora.storage.rados import RadosStore

pytestmark = pytest.mark.ceph

CAPTURED = json.loads((Path(__file__).parents[1] / "data/radosgw-topics.json").read_text())
META = "default.rgw.meta"


@pytest.fixture
def zone(settings: RadosSettings, namespace: str) -> RadosSettings:
    """Settings whose topics lie in namespaces of this test alone."""
    return replace(settings, log_pool=f"default.rgw.log:{namespace}", topics_pool=f"{META}:{namespace}")


@pytest.fixture
def topics(ceph: Ceph, namespace: str) -> Iterator[rados.Ioctx]:
    """Where the topics of version 2 lie."""
    with ceph.client(META, namespace) as ioctx:
        yield ioctx
        Gateway(ioctx).empty()


def topic_v2(name: str, queue: str, uri: str = "kafka://broker", tenant: str = "", shards: int | None = None) -> bytes:
    """A topic object as Squid writes it, and with `shards` as main does."""

    def dest(w: FieldWriter) -> None:
        w.text("").text("").text(uri).text("").text(name).u8(0).u8(1).u32(60).u32(3).u32(1).text(queue)
        if shards is not None:
            w.u32(shards)

    def body(w: FieldWriter) -> None:
        w.struct(2, 1, lambda owner: owner.text(tenant).text("user").text("")).text(name)
        w.struct(7 if shards is None else 8, 1, dest).text(f"arn:aws:sns:default:{tenant}:{name}").text("").text("")

    return FieldWriter().struct(4, 1, body).encoded()


def v1_map(*names: str) -> bytes:
    """An object of version 1 with these persistent topics, as Reef writes it."""

    def topic(name: str) -> bytes:
        def body(w: FieldWriter) -> None:
            w.struct(2, 1, lambda owner: owner.text("").text("").text("")).text(name)
            w.struct(5, 1, lambda d: d.text("").text("").text("kafka://v1").text("").text(name).u8(0).u8(1))
            w.text(f"arn:aws:sns:default::{name}").text("")

        return FieldWriter().struct(3, 1, body).encoded()

    def topics(w: FieldWriter) -> None:
        w.u32(len(names))
        for name in names:
            w.text(name).raw(topic(name))

    return FieldWriter().struct(2, 2, topics).encoded()


@pytest.mark.parametrize("release", sorted(CAPTURED.keys() - {"source"}))
async def test_captured_metadata(release: str, zone: RadosSettings, gateway: Gateway, topics: rados.Ioctx) -> None:
    """The metadata that real gateways of every release wrote gives their topics by queue."""
    oid, raw = CAPTURED[release]["object"].split()[0], bytes.fromhex(CAPTURED[release]["hex"])
    (topics if oid.startswith("topic.") else gateway.ioctx).write_full(oid, raw)

    async with reached(zone) as store:
        found = await store.catalog.topics()

    assert found
    for shard, topic in found.items():
        assert (topic.first_shard, topic.persistent) == (shard, True)
        assert topic.target.uri.startswith(("http://", "kafka://"))


async def by_queue(store: RadosStore) -> dict[str, Topic]:
    """The topics that are seen now, by the name of their first queue."""
    return {shard.queue: topic for shard, topic in (await store.catalog.topics()).items()}


async def test_changes_are_seen_at_once(zone: RadosSettings, gateway: Gateway, topics: rados.Ioctx) -> None:
    """A changed, a new and a deleted topic are right in the very next reading, for queue names of all forms."""
    for queue, oid in ((":a", "topic.:a"), ("b", "topic.:b"), ("ten:c", "topic.ten:c"), ("d", "topic.d")):
        gateway.register(queue)
        topics.write_full(oid, topic_v2(queue.rpartition(":")[2], queue))
    async with reached(zone) as store:
        await store.catalog.shards()
        assert sorted(await by_queue(store)) == [":a", "b", "d", "ten:c"]

        topics.write_full("topic.:a", topic_v2("a", ":a", uri="kafka://elsewhere"))
        gateway.register(":e")
        topics.write_full("topic.:e", topic_v2("e", ":e"))
        topics.remove_object("topic.:b")
        await store.catalog.shards()
        found = await by_queue(store)

    assert sorted(found) == [":a", ":e", "d", "ten:c"]
    assert found[":a"].target.uri == "kafka://elsewhere"
    assert (found[":e"].time_to_live_s, found[":e"].max_retries) == (60, 3)


@pytest.mark.parametrize(("queue", "oid"), [("b", "topic.:b"), ("b", "topic.b"), (":b", "topic.:b")])
async def test_metadata_after_the_queue(
    queue: str, oid: str, zone: RadosSettings, gateway: Gateway, topics: rados.Ioctx
) -> None:
    """Metadata that is written after its queue was seen is found in the next reading."""
    async with reached(zone) as store:
        gateway.register(queue)
        await store.catalog.shards()
        assert await store.catalog.topics() == {}

        topics.write_full(oid, topic_v2("b", queue))

        assert list(await by_queue(store)) == [queue]


async def test_version_1_object(zone: RadosSettings, gateway: Gateway) -> None:
    """The object of the empty tenant is followed from its creation to its deletion; other tenants' are found."""
    async with reached(zone) as store:
        assert await store.catalog.topics() == {}
        gateway.register("a", "b", "c")
        gateway.ioctx.write_full("pubsub.ten", v1_map("c"))
        gateway.ioctx.write_full("pubsub.ten.bucket.bkt/marker", b"not a topic object")
        gateway.ioctx.write_full("pubsub.", v1_map("a", "b"))
        await store.catalog.shards()
        assert sorted(await by_queue(store)) == ["a", "b", "c"]

        gateway.ioctx.write_full("pubsub.", v1_map("b"))
        assert sorted(await by_queue(store)) == ["b", "c"]

        gateway.ioctx.remove_object("pubsub.")
        assert sorted(await by_queue(store)) == ["c"]


async def test_topic_that_its_queue_does_not_name(zone: RadosSettings, gateway: Gateway, topics: rados.Ioctx) -> None:
    """An old queue without its tenant in the name is found by listing, when it appears."""
    async with reached(zone) as store:
        await by_queue(store)
        topics.write_full("topic.ten:old", topic_v2("old", "old", tenant="ten"))
        gateway.register("old")
        await store.catalog.shards()

        found = await by_queue(store)

    assert found["old"].tenant == "ten"


async def test_sharded_topic(zone: RadosSettings, gateway: Gateway, topics: rados.Ioctx) -> None:
    """A topic with several queues appears once, by the first one's name."""
    gateway.register(":s", ":s.1", ":s.2")
    topics.write_full("topic.:s", topic_v2("s", ":s", shards=3))
    async with reached(zone) as store:
        await store.catalog.shards()
        found = await by_queue(store)

    assert list(found) == [":s"]
    assert found[":s"].shards == 3


async def test_broken_metadata_costs_one_topic(
    zone: RadosSettings, gateway: Gateway, topics: rados.Ioctx, caplog: pytest.LogCaptureFixture
) -> None:
    """Metadata that cannot be decoded is named once in the log, and the other topics are there."""
    gateway.register(":good", ":bad")
    topics.write_full("topic.:good", topic_v2("good", ":good"))
    topics.write_full("topic.:bad", b"\x04\x01\xff\xff\x00\x00")
    async with reached(zone) as store:
        await store.catalog.shards()
        for _ in range(3):
            assert list(await by_queue(store)) == [":good"]

    assert [record.getMessage().count("topic.:bad") for record in caplog.records if record.levelname == "WARNING"] == [
        1
    ]


def warnings_of(caplog: pytest.LogCaptureFixture, pool: str) -> list[str]:
    """The warnings that name a pool."""
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    return [each for each in said if pool in each]


async def all_listed(store: RadosStore, gateway: Gateway, number: int) -> None:
    """Have the next reading list all topics, as it does for a queue that it cannot explain."""
    gateway.register(f"unexplained-{number}")
    await store.catalog.shards()


async def test_metadata_that_may_not_be_read(
    ceph: Ceph, zone: RadosSettings, topics: rados.Ioctx, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    """Without permission for the metadata topics are unknown and nothing fails; one warning names pool and user."""
    topics.write_full("topic.:a", topic_v2("a", ":a"))

    async with reached(replace(zone, name=ceph.env["client"], keyring=ceph.env["keyring"])) as store:
        for number in range(3):
            await all_listed(store, gateway, number)
            assert await store.catalog.topics() == {}

    assert len(warnings_of(caplog, META)) == 1
    assert f"{ceph.env['client']} has no permission" in warnings_of(caplog, META)[0]


async def test_a_pool_that_only_the_zone_names(
    settings: RadosSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pool of topics that is not there is no fault where the zone names it and not the configuration."""
    admin = tmp_path / "radosgw-admin"
    admin.write_text("""#!/bin/sh\necho '{"name": "z", "log_pool": "no.log", "topics_pool": "no.topics:topics"}'\n""")
    admin.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    async with reached(replace(settings, log_pool="", topics_pool="")) as store:
        assert await store.catalog.topics() == {}

    assert warnings_of(caplog, "no.") == []


async def test_a_pool_of_topics_that_is_deleted(
    ceph: Ceph, settings: RadosSettings, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    """Its topics are gone, nothing fails, and one warning says that there is no such pool any more."""
    ceph.command(prefix="osd pool create", pool="fleeting", pg_num=1)
    with ceph.client("fleeting") as ioctx:
        ioctx.write_full("topic.:a", topic_v2("a", ":a"))
    async with reached(replace(settings, topics_pool="fleeting")) as store:
        assert list(await by_queue(store)) == [":a"]
        ceph.command(prefix="osd pool delete", pool="fleeting", pool2="fleeting", yes_i_really_really_mean_it=True)

        numbers = count()

        async def noticed() -> bool:
            await all_listed(store, gateway, next(numbers))
            return not await by_queue(store) and bool(warnings_of(caplog, "fleeting"))

        await until(noticed)

    assert warnings_of(caplog, "fleeting") == [
        "topics in pool fleeting cannot be read: there is no pool fleeting any more"
    ]


async def test_large_object(zone: RadosSettings, gateway: Gateway) -> None:
    """An object of version 1 is read whole, however large it is."""
    names = [f"topic-{i:05}" for i in range(3000)]
    gateway.ioctx.write_full("pubsub.", v1_map(*names))
    async with reached(zone) as store:
        found = await by_queue(store)

    assert sorted(found) == names


async def test_thousand_topics_cost_little(zone: RadosSettings, gateway: Gateway, topics: rados.Ioctx) -> None:
    """Reading a thousand unchanged topics again asks for their versions only, and gives the very same values."""
    names = [f":t{i:04}" for i in range(1000)]
    gateway.register(*names)
    for name in names:
        topics.write_full(f"topic.{name}", topic_v2(name[1:], name))
    async with reached(zone) as store:
        await store.catalog.shards()
        first = await by_queue(store)
        second = await by_queue(store)

    assert sorted(first) == names
    assert all(first[name] is second[name] for name in names)
