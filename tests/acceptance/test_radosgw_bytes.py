"""What remora makes of an entry is what the radosgw that committed it posts, byte for byte."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.parse
from collections.abc import Sequence
from pathlib import Path

import pytest

from devkit.clusters.kafka import Kafka
from devkit.clusters.kafka import create_topic as create_kafka_topic
from devkit.clusters.rabbitmq import Message, RabbitMQ
from devkit.clusters.s3 import User, Zone, fresh
from devkit.processes.daemon import remora, running_daemon, write_config
from devkit.readers.consumer import read_until
from devkit.receivers.http_sink import http_sink
from devkit.waits import PATIENT_S
from remora.codec.event_entry import decode
from remora.codec.rendering_cached import Renderer
from remora.codec.rendering_plain import body
from remora.config import AmqpSettings, Settings
from remora.endpoints.amqp import AmqpEndpoint
from remora.endpoints.http import HttpEndpoint
from remora.model.record import Page, Record
from remora.model.shard import Origin, Shard
from remora.model.topic import Target
from support.kafka_sender import push_all

pytestmark = pytest.mark.ceph

ODD_KEYS = (
    b"plain",
    b"with  spaces ",
    "ünï/€/😀".encode(),
    b"quote\" ' back\\slash /slash//",
    *(b"control %c end" % number for number in (*range(1, 0x20), 0x7F)),
    b"</Key>&amp;%41+",
    "\u2028\ufeff\ufffd\x80".encode(),
)

BROKEN_UTF8 = (b"\xff\xfe", b"cut \xe2\x82", b"surrogate \xed\xa0\x80", b"overlong \xc0\xaf")


async def make_odd_objects(user: User, bucket: str, versioned: str) -> None:
    """Objects whose keys, metadata and tags hold whatever this radosgw takes."""
    zone, s3 = user.zone, user.s3
    for key in ODD_KEYS:
        assert await zone.raw("PUT", bucket, key, b"x") == 200, key
    for key in BROKEN_UTF8:  # what is refused makes no event
        assert await zone.raw("PUT", bucket, key, b"x") in (200, 400), key

    for number, text in enumerate(("plain", "\xff\xfe", "\xe2\x82", "tab\tin it", "q\"'\\/", "\xc3\xbc")):
        headers = {"x-amz-meta-z": text, "x-amz-meta-a": text}
        assert await zone.raw("PUT", bucket, b"metadata %d" % number, b"x", headers) == 200, text
    for number, text in enumerate(("\x08\x0c\r\n\t\x7f\x01", 'q"\\/', "ü€😀")):
        tags = urllib.parse.urlencode({f"z{text}": text, "a": "1", f"m{text}": ""})
        status = await zone.raw("PUT", bucket, b"tags %d" % number, b"x", {"x-amz-tagging": tags})
        assert status == 200, text

    await s3.copy_object(Bucket=bucket, Key="copied", CopySource={"Bucket": bucket, "Key": "metadata 0"})
    begun = await s3.create_multipart_upload(Bucket=bucket, Key="parts", Metadata={"m": "1"})
    mine = {"Bucket": bucket, "Key": "parts", "UploadId": begun["UploadId"]}
    part = await s3.upload_part(**mine, PartNumber=1, Body=b"x" * 1000)
    await s3.complete_multipart_upload(**mine, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
    for key in (b"plain", b"control \r end", b"tags 0"):
        assert await zone.raw("DELETE", bucket, key) == 204
    first = await s3.put_object(Bucket=versioned, Key="v\x7f", Body=b"")
    await s3.delete_object(Bucket=versioned, Key="v\x7f")
    await s3.delete_object(Bucket=versioned, Key="v\x7f", VersionId=first["VersionId"])


async def make_objects_for_headers(user: User, bucket: str) -> None:
    """Objects whose keys make headers that HTTP allows; ten events of several kinds."""
    await user.put(bucket, "plain", "with  spaces", "100%", 'quote"', "ünï/€/😀", "gone 1", "gone 2")
    await user.s3.copy_object(Bucket=bucket, Key="copied", CopySource={"Bucket": bucket, "Key": "plain"})
    for key in ("gone 1", "gone 2"):  # not by DeleteObjects: release 16.2.15 crashes at that
        await user.s3.delete_object(Bucket=bucket, Key=key)


async def make_versions(user: User, bucket: str) -> None:
    """Delete markers that are made and deleted, of an object that is there and of one that is not."""
    for key in ("v", "never there"):
        if key == "v":
            await user.put(bucket, key)
        for _ in range(2):
            await user.s3.delete_object(Bucket=bucket, Key=key)
        listed = await user.s3.list_object_versions(Bucket=bucket, Prefix=key)
        for each in [*listed.get("DeleteMarkers", []), *listed.get("Versions", [])]:
            await user.s3.delete_object(Bucket=bucket, Key=key, VersionId=each["VersionId"])


async def post(url: str, records: Sequence[Record], args: str = "") -> None:
    """Deliver these over HTTP as the daemon does."""
    shard = Shard("t", Origin.REMORA)
    async with HttpEndpoint(Settings()) as endpoint, endpoint.route(shard, "inc", Target(url, args, "t")) as route:
        await push_all(route, records)


async def publish(target: Target, records: Sequence[Record]) -> None:
    """Deliver these over AMQP as the daemon does."""
    async with (
        AmqpEndpoint(AmqpSettings()) as endpoint,
        endpoint.route(Shard("t", Origin.REMORA), "inc", target) as route,
    ):
        await push_all(route, records)


def rendered_of(entries: Sequence[bytes]) -> Sequence[Record]:
    """Entries of a queue as the daemon renders them."""
    page = Page([b"0/%d" % number for number in range(len(entries) + 1)], list(entries), truncated=False)
    return Renderer().render(page, b"")[0]


async def dumped(config: Path, topic: str) -> list[bytes]:
    """The raw entries of a topic, as `remora topic dump --raw` prints them."""
    done = await remora("topic", "dump", "--raw", topic, "-c", config)
    assert done.code == 0, done.err
    return [base64.b64decode(json.loads(line)["raw"]) for line in done.out.splitlines()]


@pytest.mark.guarantee("radosgws-bytes")
async def test_radosgw_posts_the_same_bytes(zone: Zone, tmp_path: Path) -> None:
    """For every entry of an outage, what remora posts equals what radosgw posts after it, with the headers of that."""
    topic, bucket, versioned = fresh("odd"), fresh("odd"), fresh("oddv")
    config = write_config(tmp_path / "remora.toml", zone.sections)
    opaque = 'opaque "\\/ \x08\x0c\r\n\t\x7f\x01 ü€😀'
    async with http_sink() as sink, zone.user() as user:
        arn = await user.topic(topic, sink.url, opaque)
        # Release 16 would hang for good after a few thousand refusals: it does not try while we have the lock.
        with zone.locked(zone.queue(topic)) as unlock:
            await user.bucket(bucket, arn)
            await user.bucket(versioned, arn, versioned=True)
            await make_odd_objects(user, bucket, versioned)
            await user.topic(topic, sink.url, f"{opaque} changed")
            entries = await dumped(config, topic)
            await sink.open()
            unlock()
            posted = await sink.until(len(entries))
        theirs = dict(sink.heads)
        page = Page([b"0/%d" % number for number in range(len(entries) + 1)], entries, truncated=False)
        await post(sink.url, Renderer().render(page, f"{opaque} changed".encode())[0])

    assert set(sink.heads) == set(theirs)
    for sent, head in sink.heads.items():
        assert {name: text for name, text in head.items() if name in theirs[sent]} == theirs[sent]
        assert {name for name in head if not name.startswith("remora-")} - set(theirs[sent]) == {"user-agent"}
    current, renderer = f"{opaque} changed".encode(), Renderer()
    assert len(entries) >= len(ODD_KEYS) + 17
    for _ in range(2):  # the second time from what the renderer remembers
        records, _ = renderer.render(Page([b""] * (len(entries) + 1), entries, truncated=False), current)
        rendered = [each.body for each in records]
        assert sorted(rendered) == sorted(posted)
    assert rendered == [body(decode(entry), current) for entry in entries]


@pytest.mark.guarantee("radosgws-bytes")
@pytest.mark.full("captured entries are at the gate, and what radosgw posts without CloudEvents")
async def test_radosgw_posts_the_same_cloudevents(zone: Zone, tmp_path: Path) -> None:
    """With cloudevents=true each request has radosgw's own headers, value for value, but that the subject is encoded.

    The time has the entry's nanoseconds, whatever made or removed the object. Release 16 ignores the argument, and
    remora's requests have all that its requests have.
    """
    topic = fresh("cloud")
    config = write_config(tmp_path / "remora.toml", zone.sections)
    async with http_sink() as sink, zone.user() as user:
        arn = await user.topic(topic, f"{sink.url}/a%2Fb//c/?x=%20", cloudevents="true")
        with zone.locked(zone.queue(topic)) as unlock:
            bucket = await user.bucket(topic, arn)
            await make_objects_for_headers(user, bucket)
            await user.s3.delete_object(Bucket=bucket, Key="never there")
            await make_versions(user, await user.bucket(fresh("cloudv"), arn, versioned=True))
            entries = await dumped(config, topic)
            await sink.open()
            unlock()
            await sink.until(len(entries))
        theirs = dict(sink.heads)
        await post(f"{sink.url}/a%2Fb//c/?x=%20", rendered_of(entries), "cloudevents=true")

    assert len(entries) == len(theirs)
    assert len(entries) >= 19
    assert set(sink.heads) == set(theirs)
    names = {"ce-id", "ce-source", "ce-specversion", "ce-subject", "ce-time", "ce-type"}
    for sent, head in sink.heads.items():
        of_radosgw = {name: text for name, text in theirs[sent].items() if name != "ce-subject"}
        assert {name: text for name, text in head.items() if name in of_radosgw} == of_radosgw
        assert urllib.parse.unquote(head["ce-subject"]) == key_in(sent)
        assert names & theirs[sent].keys() == (names if zone.release >= 17 else set())
        if zone.release >= 17:
            assert theirs[sent]["ce-subject"] == key_in(sent)
            assert head.get("ce-time") == theirs[sent].get("ce-time")


def key_in(sent: bytes) -> str:
    return str(json.loads(sent)["Records"][0]["s3"]["object"]["key"])


@pytest.mark.guarantee("radosgws-bytes")
async def test_radosgw_publishes_the_same_messages(zone: Zone, rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    """A message has radosgw's body, exchange, routing key and delivery mode, and names no queue to reply to."""
    topic = fresh("mail")
    config = write_config(tmp_path / "remora.toml", zone.sections)
    exchange, queue = await rabbitmq.bound()
    async with zone.user() as user:
        arn = await user.topic(topic, f"amqp://{rabbitmq.address}", amqp_exchange=exchange)
        with zone.locked(zone.queue(topic)) as unlock:
            await make_objects_for_headers(user, await user.bucket(topic, arn))
            entries = await dumped(config, topic)
            unlock()
            theirs = await messages(rabbitmq, queue, len(entries))
    await publish(Target(f"amqp://{rabbitmq.address}", f"amqp-exchange={exchange}", topic), rendered_of(entries))
    ours = await messages(rabbitmq, queue, len(entries))

    assert sorted(each.body for each in ours) == sorted(each.body for each in theirs)
    assert {(each.routing_key, each.properties.delivery_mode) for each in ours + theirs} == {(topic, 2)}
    said = {name for each in theirs for name, value in vars(each.properties).items() if value is not None}
    assert said == {"delivery_mode", "reply_to"}
    assert all(each.properties.reply_to is None for each in ours)


async def messages(broker: RabbitMQ, queue: str, count: int) -> list[Message]:
    """What is in a queue, as soon as there are that many different bodies."""
    found: list[Message] = []
    async with asyncio.timeout(2 * PATIENT_S):
        while len({each.body for each in found}) < count:
            found += await broker.read(queue)
            await asyncio.sleep(0.1)
    return found


@pytest.mark.full("captured entries are at the gate")
async def test_waiting_entries_can_be_looked_into(zone: Zone, kafka: Kafka, tmp_path: Path) -> None:
    """`topic stats` counts what waits, `topic dump` shows what is delivered later, `entry decode` explains it."""
    topic = fresh("look")
    queue = zone.queue(topic)
    await create_kafka_topic(kafka.address, topic)
    config = write_config(tmp_path / "looker.toml", zone.sections)
    keys = [f"k{number % 3}" for number in range(20)] + ["tab\t\x7f"]
    async with zone.user() as user:
        arn = await user.topic(topic, f"kafka://{kafka.address}", "opaque")
        with zone.locked(queue):
            await user.put(await user.bucket(topic, arn), *keys)

            (stats,) = (await remora("topic", "stats", topic, "--json", "-c", config)).json
            (exact,) = (await remora("topic", "stats", topic, "--exact", "--json", "-c", config)).json
            table = (await remora("topic", "stats", topic, "-c", config)).out.decode()
            raw = await dumped(config, topic)
            dump = (await remora("topic", "dump", topic, "-c", config)).out.splitlines()
            decoded = await remora("entry", "decode", stdin=raw[-1])
            explained = (await remora("entry", "decode", "--explain", stdin=raw[-1])).out.decode()
        async with running_daemon(tmp_path, zone.sections) as daemon:
            await daemon.own(queue)
            records = await read_until(kafka.address, topic, len(keys))

    in_order = sorted(records, key=lambda each: each.place.order)
    assert [each.value for each in in_order] == [body(decode(entry)) for entry in raw]
    lines = [json.loads(line) for line in dump]
    assert [line["notification"] for line in lines] == [json.loads(each.value) for each in in_order]
    assert [line["position"] for line in lines] == [f"{e.place.turn}/{e.place.offset}" for e in in_order]
    assert decoded.out == in_order[-1].value + b"\n"
    assert "object_key" in explained
    assert exact["entries"] == len(keys)
    assert exact["entries_exact"]
    assert stats["bytes"] == exact["bytes"] == sum(10 + len(entry) for entry in raw)
    assert stats["entries_exact"] == (zone.release >= 19)
    if stats["entries_exact"]:
        assert stats["entries"] == len(keys)
    else:
        assert f"~{stats['entries']} " in table
        assert abs(stats["entries"] - len(keys)) <= 2
    assert stats["reservations"] == 0
