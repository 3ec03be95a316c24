"""What users of a real radosgw do reaches a real Kafka: every event once, in order per key, and soon."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from devkit.clusters.kafka import Kafka
from devkit.clusters.kafka import create_topic as create_kafka_topic
from devkit.clusters.s3 import User, Zone, fresh
from devkit.processes.daemon import running_daemon
from devkit.readers.consumer import Delivered, check, read_until

pytestmark = [pytest.mark.ceph, pytest.mark.kafka]

PUT, COPY = "ObjectCreated:Put", "ObjectCreated:Copy"
COMPLETE = "ObjectCreated:CompleteMultipartUpload"
SOON_S = 80.0
"""On a host with time to spare it is less than five seconds; who waits for a lock to end waits for 90."""
DELETE, MARKER = "ObjectRemoved:Delete", "ObjectRemoved:DeleteMarkerCreated"

ODD_KEYS = (
    "with spaces  in it",
    " leading and trailing ",
    "ünïcödé/€/日本語/😀",
    "e\u0301 and é",
    "quote\" and 'single'",
    "back\\slash\\\\",
    "a+b&c=d?e#f%20g;h",
    "tab\there",
    "newline\nhere",
    "cr\rhere",
    "bs\bhere",
    "ff\fhere",
    "del\x7fhere",
    "one\x01 and esc\x1b",
    "</Key>&amp;<x>",
    "..//.//a",
    "\u2028\ufeff\ufffd",
    "x" * 1000,
)

PART = b"p" * (5 << 20)

Event = tuple[str, str]


async def use(user: User, plain: str, versioned: str) -> list[Event]:
    """One of everything, one after the other; what must be told of it, in order."""
    s3 = user.s3
    told: list[Event] = []

    await s3.put_object(
        Bucket=plain, Key="meta", Body=b"12345", Metadata={"colour": "blue", "quote": '"\\'}, Tagging="a=1&b=%22x%22"
    )
    told.append((PUT, "meta"))
    for number in range(10):
        await s3.put_object(Bucket=plain, Key="again", Body=b"x" * number)
        told.append((PUT, "again"))
    await s3.copy_object(Bucket=plain, Key="copied", CopySource={"Bucket": plain, "Key": "meta"})
    told.append((COPY, "copied"))
    told += await upload(user, plain, "in parts")
    for key in ("again", "copied"):
        await s3.delete_object(Bucket=plain, Key=key)
        told.append((DELETE, key))
    if user.zone.release > 16:  # 16.2.15 itself aborts when objects whose events wait are deleted by one request
        await s3.delete_objects(Bucket=plain, Delete={"Objects": [{"Key": "meta"}, {"Key": "in parts"}]})
        told += [(DELETE, "meta"), (DELETE, "in parts")]
    for key in ODD_KEYS:
        assert await user.zone.raw("PUT", plain, key.encode(), b"odd") == 200
        assert await user.zone.raw("DELETE", plain, key.encode()) == 204
        told += [(PUT, key), (DELETE, key)]

    versions = [(await s3.put_object(Bucket=versioned, Key="v", Body=b"x"))["VersionId"] for _ in range(3)]
    told += [(PUT, "v")] * 3
    marker = (await s3.delete_object(Bucket=versioned, Key="v"))["VersionId"]
    told.append((MARKER, "v"))
    for version in (versions[0], marker):
        await s3.delete_object(Bucket=versioned, Key="v", VersionId=version)
        told.append((DELETE, "v"))
    return told


async def upload(user: User, bucket: str, key: str) -> list[Event]:
    """A multipart upload; radosgw tells of its end only."""
    begun = await user.s3.create_multipart_upload(Bucket=bucket, Key=key)
    mine = {"Bucket": bucket, "Key": key, "UploadId": begun["UploadId"]}
    parts = [
        {"PartNumber": n, "ETag": (await user.s3.upload_part(**mine, PartNumber=n, Body=body))["ETag"]}
        for n, body in enumerate((PART, b"the rest"), start=1)
    ]
    await user.s3.complete_multipart_upload(**mine, MultipartUpload={"Parts": parts})
    return [(COMPLETE, key)]


def by_key(events: Sequence[tuple[str, Event]]) -> dict[tuple[str, str], list[str]]:
    """The names of the events of each bucket's key, in order."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for bucket, (name, key) in events:
        found[bucket, key].append(name)
    return dict(found)


def bucket_of(record: Delivered) -> str:
    return str(record.event["s3"]["bucket"]["name"])


@pytest.mark.guarantee("order-per-object", "duplicates", "proof-from-the-topic")
async def test_everything_arrives_once_and_in_order(zone: Zone, kafka: Kafka, tmp_path: Path) -> None:
    """Each event of every kind arrives once, in order per key, with a whole chain, and leaves an empty queue."""
    topic, opaque = fresh("all"), '"opaque"\\ü\t'
    plain, versioned = fresh("plain"), fresh("versioned")
    await create_kafka_topic(kafka.address, topic)
    async with zone.user() as user, running_daemon(tmp_path, zone.sections) as daemon:
        arn = await user.topic(topic, f"kafka://{kafka.address}", opaque)
        await daemon.own(zone.queue(topic))
        await user.bucket(plain, arn)
        await user.bucket(versioned, arn, versioned=True)

        told = await use(user, plain, versioned)

        records = await read_until(kafka.address, topic, len(told))
        await daemon.until(lambda: asyncio.to_thread(zone.is_empty, zone.queue(topic)), "an empty queue")
        assert await daemon.stop() == 0
        records = await read_until(kafka.address, topic, len(told))

    verdict = check(records, told)
    assert verdict.is_clean, verdict
    assert min(each.place.order for each in records) == (0, 24576)  # where every new queue begins
    found = by_key([(bucket_of(each), each.what) for each in records])
    assert found == by_key([(versioned if key == "v" else plain, (name, key)) for name, key in told])
    assert {each.event["opaqueData"] for each in records} == {opaque}
    assert all(each.key.decode() == f"{bucket_of(each)}/{each.what[1]}" for each in records)
    assert all(each.event_id == each.event["eventId"] for each in records)


async def test_events_say_what_was_done(zone: Zone, kafka: Kafka, tmp_path: Path) -> None:
    """Size, user metadata, tags, version and owner of an object stand in its event."""
    topic = fresh("detail")
    await create_kafka_topic(kafka.address, topic)
    async with zone.user() as user, running_daemon(tmp_path, zone.sections) as daemon:
        bucket = await user.bucket(topic, await user.topic(topic, f"kafka://{kafka.address}"), versioned=True)
        await daemon.own(zone.queue(topic))

        made = await user.s3.put_object(
            Bucket=bucket, Key="k", Body=b"12345", Metadata={"colour": "bl'ue", "size": "\\"}, Tagging="a=%22&b=%C3%BC"
        )
        (record,) = await read_until(kafka.address, topic, 1)

    event = record.event
    metadata = {each["key"]: each["val"] for each in event["s3"]["object"]["metadata"]}
    assert metadata["x-amz-meta-colour"] == "bl'ue"
    assert metadata["x-amz-meta-size"] == "\\"
    assert event["s3"]["object"]["tags"] == [{"key": "a", "val": '"'}, {"key": "b", "val": "ü"}]
    assert event["s3"]["object"]["size"] == 5
    assert event["s3"]["object"]["eTag"] == made["ETag"].strip('"')
    assert event["s3"]["object"]["versionId"] == made["VersionId"]
    assert event["s3"]["bucket"]["name"] == bucket
    assert event["userIdentity"]["principalId"] == zone.env["s3"]["user"]


@pytest.mark.full("order behind a gateway is at the gate with one writer")
@pytest.mark.guarantee("order-per-object")
async def test_events_of_many_writers(zone: Zone, kafka: Kafka, tmp_path: Path) -> None:
    """What eight clients write at once to two topics arrives once and in order, and each topic gets its own."""
    topics = [fresh("many"), fresh("many")]
    keys = [f"k{number}" for number in range(20)]
    async with zone.user() as user, running_daemon(tmp_path, zone.sections) as daemon:
        for topic in topics:
            await create_kafka_topic(kafka.address, topic)
            await user.bucket(topic, await user.topic(topic, f"kafka://{kafka.address}"))
        await daemon.own(*map(zone.queue, topics))

        async with asyncio.TaskGroup() as writers:
            for writer in range(8):
                mine = [f"{writer}-{key}" for key in keys] * 2
                writers.create_task(user.put(topics[writer % 2], *mine))
        read = [await read_until(kafka.address, topic, 4 * 2 * len(keys)) for topic in topics]

    for number, (topic, records) in enumerate(zip(topics, read, strict=True)):
        expected = [(PUT, f"{writer}-{key}") for writer in range(number, 8, 2) for key in keys * 2]
        verdict = check(records, expected)
        assert verdict.is_clean, verdict
        assert {bucket_of(each) for each in records} == {topic}


async def test_a_new_topic_is_served_soon(zone: Zone, kafka: Kafka, tmp_path: Path) -> None:
    """A running daemon holds a topic's queue soon after its creation, and then delivers at once."""
    async with zone.user() as user, running_daemon(tmp_path, zone.sections) as daemon:
        for _ in range(5):
            topic = fresh("new")
            await create_kafka_topic(kafka.address, topic)
            created_at = time.time()
            arn = await user.topic(topic, f"kafka://{kafka.address}")
            with zone.idle_radosgw():  # or it might take the queue itself
                if any(not each.startswith("remora/") for each in zone.owners(zone.queue(topic))):
                    continue  # it has looked just then, as it does twice a minute
                await daemon.until(lambda: daemon.shard(zone.queue(topic)), "the new queue")  # noqa: B023
                break
        else:
            pytest.fail("radosgw took each of five new queues first")
        await user.put(await user.bucket(topic, arn), "k")
        (record,) = await read_until(kafka.address, topic, 1)

    assert record.sent_at - created_at < SOON_S


async def test_a_start_delivers_soon(zone: Zone, kafka: Kafka, tmp_path: Path) -> None:
    """A daemon that is started sends the first waiting entry soon, where no lock stands in the way."""
    topic = fresh("start")
    await create_kafka_topic(kafka.address, topic)
    async with zone.user() as user:
        arn = await user.topic(topic, f"kafka://{kafka.address}")
        with zone.locked(zone.queue(topic)) as unlock:
            await user.put(await user.bucket(topic, arn), *(f"k{number}" for number in range(50)))
            with zone.idle_radosgw():
                unlock()
                started_at = time.time()
                async with running_daemon(tmp_path, zone.sections):
                    records = await read_until(kafka.address, topic, 50)

    assert min(each.sent_at for each in records) - started_at < SOON_S
    assert check(records, [(PUT, f"k{number}") for number in range(50)]).is_clean
