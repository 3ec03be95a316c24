"""A radosgw whose topic has the ingest API as its HTTP endpoint: what it posts is stored, delivered and equal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from devkit.clusters.kafka import Kafka, create_topic
from devkit.clusters.s3 import User, Zone, fresh
from devkit.processes.daemon import PATIENT, Sections, merged, running_daemon
from devkit.readers.consumer import read_until
from devkit.receivers.http_sink import http_sink

pytestmark = pytest.mark.ceph

KEYS = ("plain", "with  spaces+plus", "ünï/€/😀", "quote\" ' back\\slash /slash//", "</Key>&amp;%41+", "\u2028\ufeff")
ODD_KEYS = (b"control \x01\x1f\x7f end", b"\xff\xfe")


async def notify_both(user: User, bucket: str, *arns: str) -> None:
    """Create a bucket whose events go to several topics, as configurations n0, n1 ..."""
    await user.s3.create_bucket(Bucket=bucket)
    chosen = [
        {"Id": f"n{number}", "TopicArn": arn, "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]}
        for number, arn in enumerate(arns)
    ]
    await user.s3.put_bucket_notification_configuration(
        Bucket=bucket, NotificationConfiguration={"TopicConfigurations": chosen}
    )


async def make_events(user: User, bucket: str) -> int:
    """Objects that come and go, with metadata and tags; how many events that makes."""
    for key in KEYS:
        await user.s3.put_object(Bucket=bucket, Key=key, Body=b"x", Metadata={"m": "1"}, Tagging="a=1&b=2")
    made = 0
    for odd in ODD_KEYS:  # a release may refuse what is no UTF-8
        made += await user.zone.raw("PUT", bucket, odd, b"x") == 200
    await user.s3.delete_object(Bucket=bucket, Key=KEYS[0])
    return len(KEYS) + made + 1


OF_ONE_COPY = re.compile(
    rb'("configurationId":)"n[01][^"]*"|("sequencer":)"[0-9A-F]{16}"|("eventId":)"[0-9]+\.[0-9]+\.[0-9a-f]*"'
)
"""What radosgw makes anew for each topic that an event goes to."""


def in_common(body: bytes) -> bytes:
    """A notification without that, which has to be there."""
    text, count = OF_ONE_COPY.subn(rb"\1\2\3", body)
    assert count == 3, body
    return text


@pytest.mark.full("bodies that radosgw posted are at the gate")
async def test_what_radosgw_posts_is_stored_delivered_and_equal(zone: Zone, kafka: Kafka, tmp_path: Path) -> None:
    """Kafka gets every event once, as a plain HTTP endpoint gets it from the same radosgw, to the byte."""
    topic = fresh("gw")
    await create_topic(kafka.address, topic)
    given: Sections = {
        "store": {"kind": "sqlite"},
        "sqlite": {"directory": str(tmp_path / "queues"), "files": 1},
        "ingest": {"listen": "127.0.0.1:0"},
        "ownership": {"discovery_interval": "500ms"},
    }
    async with running_daemon(tmp_path, merged(PATIENT, given)) as daemon, http_sink() as sink, zone.user() as user:
        made = await daemon.command("topic", "create", topic, "--endpoint", f"kafka://{kafka.address}")
        assert made.code == 0, made.err
        address = (await daemon.status())["ingest"]
        await sink.open()
        plain = await user.topic(fresh("plain"), sink.url)
        ingest = await user.topic(fresh("ingest"), f"{address}/v1/topics/{topic}/events")
        await notify_both(user, bucket := fresh("both"), plain, ingest)

        count = await make_events(user, bucket)
        posted = await sink.until(count)
        records = await read_until(kafka.address, topic, count)

        await daemon.counted(count, "remora_ingested_events_total", topic=topic)
        assert await daemon.metric("remora_ingest_dropped_fields_total", topic=topic) == 0
    assert sorted(in_common(each.value) for each in records) == sorted(map(in_common, posted))
