"""A real MinIO that posts all buckets to one address, from where notifications send its events to topics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from devkit.demo.stand import Shown, make_kafka_topic, radosgw_client
from devkit.processes.ports import free_port
from devkit.release.sources import PARTITIONS, SECRET, USER, arrived, bucket_made, running, source_of

BUCKETS = ("photos", "raw-1", "films")

_TOPICS = ("notified-thumbs", "notified-audit", "notified-hot")

_DEFINITIONS = """
[[notification]]
id = "thumbnails"
topics = ["notified-thumbs", "notified-audit"]
buckets = ["photos", "raw-*"]
events = ["s3:ObjectCreated:*"]
[notification.filter]
prefix = "2026/"
suffix = ".jpg"

[[notification]]
id = "removals"
topics = ["notified-audit"]
events = ["s3:ObjectRemoved:*"]

[[notification]]
id = "hot"
topics = ["notified-hot"]
[notification.filter]
regex = "[^/]+/.*"
size_min = "5B"
metadata = { "x-amz-meta-class" = "hot" }
"""


class Object(NamedTuple):
    """An object that is put, and whether it is removed again."""

    bucket: str
    key: str
    size: int
    is_hot: bool = False
    is_removed: bool = False


OBJECTS = [
    Object(bucket, key, size, is_hot, is_removed=size == 3)
    for bucket in BUCKETS
    for key in ("2026/a b+\u00e4.jpg", "2026/b.png", "2025/a.jpg", "top.jpg")
    for size, is_hot in ((3, False), (7, True), (4, True))
]
"""Each key is written three times, and removed after the first."""

Copy = tuple[str, str, str, str, str]
"""A topic, the notification's id, bucket, key, and what the event's name begins with."""


def expected() -> Counter[Copy]:
    """The copies that the notifications make, by their rules said once more."""
    return Counter(copy for each in OBJECTS for copy in _of(each))


def _of(each: Object) -> Iterator[Copy]:
    if each.key.startswith("2026/") and each.key.endswith(".jpg") and each.bucket != "films":
        for topic in _TOPICS[:2]:
            yield topic, "thumbnails", each.bucket, each.key, "ObjectCreated"
    if each.is_hot and each.size >= 5 and "/" in each.key:
        yield _TOPICS[2], "hot", each.bucket, each.key, "ObjectCreated"
    if each.is_removed:
        yield _TOPICS[1], "removals", each.bucket, each.key, "ObjectRemoved"


async def tried_notified(program: str, bootstrap: str, work: Path) -> Sequence[str]:
    """Put and remove objects, and compare what arrived in each topic; what is otherwise than the rules say."""
    folder = work / "notified"
    folder.mkdir()
    for topic in _TOPICS:
        await make_kafka_topic(bootstrap, topic, PARTITIONS)
    port, ingest = free_port(), free_port()
    source = source_of("minio", program, folder, port, f"http://127.0.0.1:{ingest}/v1/events")
    sections = {"sqlite": {"directory": str(folder / "queues")}, "ingest": {"listen": f"127.0.0.1:{ingest}"}}
    env = {
        "region": "us-east-1",
        "s3": {"endpoint": f"http://127.0.0.1:{port}", "access_key": USER, "secret_key": SECRET},
    }
    definitions = folder / "topics.toml"
    topics = [f'[topic.{topic}]\nendpoint = "kafka://{bootstrap}"\n' for topic in _TOPICS]
    definitions.write_text("\n".join(topics) + _DEFINITIONS)
    async with Shown(folder, sections) as daemon, radosgw_client("s3", env) as s3:
        await daemon.until_ready()
        await daemon.ask("topic", "apply", "-f", str(definitions))
        async with running(source, folder / "store.log"):
            for bucket in BUCKETS:
                await bucket_made(s3, bucket)
                await s3.put_bucket_notification_configuration(
                    Bucket=bucket, NotificationConfiguration=source.notifications
                )
            for each in OBJECTS:
                metadata = {"class": "hot"} if each.is_hot else {}
                await s3.put_object(Bucket=each.bucket, Key=each.key, Body=b"x" * each.size, Metadata=metadata)
                if each.is_removed:
                    await s3.delete_object(Bucket=each.bucket, Key=each.key)
            wanted = expected()
            found: Counter[Copy] = Counter()
            for topic in _TOPICS:
                least = sum(count for copy, count in wanted.items() if copy[0] == topic)
                for event in await arrived(bootstrap, topic, least):
                    name = event["name"].removeprefix("s3:").partition(":")[0]
                    found[topic, event["id"], event["bucket"], event["key"], name] += 1
    print(f"minio, all buckets to one address: {len(OBJECTS)} objects, {found.total()} copies of {wanted.total()}")
    problems = [f"minio: {count} copies too many of {copy}" for copy, count in (found - wanted).items()]
    return problems + [f"minio: {count} copies missing of {copy}" for copy, count in (wanted - found).items()]
