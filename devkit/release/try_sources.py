"""Lets real object stores send their events to remora, and says what arrived; called by scripts/try-sources."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from devkit.demo.stand import DemoError, Shown, kafka_alone, make_kafka_topic, radosgw_client
from devkit.processes.ports import free_port
from devkit.release.sources import (
    PARTITIONS,
    SECRET,
    USER,
    Source,
    arrived,
    bucket_made,
    listed,
    patiently,
    running,
    source_of,
)
from devkit.release.try_notified import tried_notified

KEYS = (
    "plain",
    "a b",
    "a+b",
    "100%",
    "100%25",
    "a%20b",
    "ä ö/ü",
    "deep/er/and deeper",
    "x&y=z?#",
    "semi;colon,'quote'\"",
    "fish-\N{FISH}",
)
"""What is put before remora is killed; the first three are deleted again."""

DELETED = 3
OUTAGE = 20
"""This many objects are put while remora is away."""


async def tried(source_name: str, program: str, bootstrap: str, work: Path) -> list[str]:
    """Run one store and tell what came of its events; what is otherwise than promised."""
    folder = work / source_name
    folder.mkdir()
    topic, bucket, ingest = f"from-{source_name}", "bucket", free_port()
    await make_kafka_topic(bootstrap, topic, PARTITIONS)
    url = f"http://127.0.0.1:{ingest}/v1/topics/{topic}/events"
    port = free_port()
    source = source_of(source_name, program, folder, port, url)
    sections = {"sqlite": {"directory": str(folder / "queues")}, "ingest": {"listen": f"127.0.0.1:{ingest}"}}
    env = {
        "region": "us-east-1",
        "s3": {"endpoint": f"http://127.0.0.1:{port}", "access_key": USER, "secret_key": SECRET},
    }
    async with Shown(folder, sections) as daemon, radosgw_client("s3", env) as s3:
        await daemon.until_ready()
        await daemon.ask(
            "topic", "create", topic, "--endpoint", f"kafka://{bootstrap}", "--shards", "4", *source.arguments
        )
        if source.places:
            await daemon.ask("notification", "create", "all", "--topic", topic)
        async with running(source, folder / "store.log"):
            await bucket_made(s3, bucket)
            if source.notifications:
                await s3.put_bucket_notification_configuration(
                    Bucket=bucket, NotificationConfiguration=source.notifications
                )
            for key in KEYS:
                await patiently(partial(s3.put_object, Bucket=bucket, Key=key, Body=b"body"), "take an object")
            known = await listed(s3, bucket)
            for key in KEYS[:DELETED]:
                await s3.delete_object(Bucket=bucket, Key=key)
            first = await arrived(bootstrap, topic, len(KEYS) + DELETED)

            await daemon.kill_all()
            for number in range(OUTAGE):
                await s3.put_object(Bucket=bucket, Key=f"away-{number}", Body=b"body")
            await daemon.start()
            await s3.put_object(Bucket=bucket, Key="last", Body=b"body")
            every = await arrived(bootstrap, topic, len(first) + 1 + (OUTAGE if source.repeats else 0))
    return told(source, known, first, every)


def told(source: Source, known: set[str], first: list[dict[str, Any]], every: list[dict[str, Any]]) -> list[str]:
    """Print what arrived; what is otherwise than promised."""
    created = {each["key"] for each in first if "Created" in each["name"]}
    removed = {each["key"] for each in first if "Removed" in each["name"]}
    wrong = sorted(created - known)
    missing = sorted(known - created)
    others = [each["key"] for each in first if each["inside"] != each["key"]]
    away = {each["key"] for each in every if each["key"].startswith("away-")}
    copies = len(every) - len({(each["key"], each["name"]) for each in every})
    inverted = [
        key
        for key in KEYS[:DELETED]
        if [each["name"].split(":")[0] for each in first if each["key"] == key] == ["ObjectRemoved", "ObjectCreated"]
    ]
    lost = OUTAGE - len(away)
    print(f"{source.name}: {len(known)} keys that S3 lists, {len(created & known)} of them arrived as they are")
    print(
        f"  removals that arrived: {len(removed)} of {DELETED}; before the creation of their key: {inverted or 'none'}"
    )
    print(f"  while remora was away: {OUTAGE} objects, {lost} of their events were lost; {copies} events came twice")
    problems = [f"{source.name}: {key!r} arrived and is no key that S3 lists" for key in wrong]
    problems += [f"{source.name}: no event of {key!r} arrived" for key in missing]
    problems += [f"{source.name}: the body of {key!r} names another key" for key in others]
    if "last" not in {each["key"] for each in every}:
        problems.append(f"{source.name}: no event arrived after remora was back")
    if source.loses_nothing and lost:
        problems.append(f"{source.name}: it lost {lost} events, and docs/sources.md says that it loses none")
    if source.is_in_order and (inverted or len(removed) < DELETED):
        problems.append(f"{source.name}: events of a key are missing or out of order")
    return problems


async def main() -> int:
    """Try each `NAME=PROGRAM` of the command line; 1 when one does not do what is promised."""
    work = Path(tempfile.mkdtemp(prefix="remora-sources-"))
    problems: list[str] = []
    try:
        async with kafka_alone(f"demo-{os.getpid()}", keep=False) as bootstrap:
            for each in sys.argv[1:]:
                name, _, program = each.partition("=")
                problems += await tried(name, program, bootstrap, work)
                if name == "minio":
                    problems += await tried_notified(program, bootstrap, work)
    except DemoError as exc:
        problems.append(str(exc))
    for problem in problems:
        print(f"WRONG  {problem}")
    if not problems:
        print(f"PASS  {', '.join(each.partition('=')[0] for each in sys.argv[1:])}")
        shutil.rmtree(work)
    else:
        print(f"logs: {work}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
