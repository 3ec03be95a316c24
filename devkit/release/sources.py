"""Real object stores that send their events to remora, each as long as needed, and what of them arrived in Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from devkit.demo.stand import DemoError
from devkit.processes.ports import free_port

SEAWEEDFS = "/v1/sources/seaweedfs"
USER, SECRET = "remora-sources", "remora-sources-secret"
PARTITIONS = 4
QUIET_S, PATIENCE_S = 6.0, 120.0
"""Nothing more is expected when nothing came for the first time, and in any case after the second."""


@dataclass(frozen=True)
class Source:
    """A store: its program with arguments and variables, and what docs/sources.md promises of it."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    arguments: Sequence[str] = ()
    repeats: bool = False
    """Whether events that it could not post are waited for."""
    loses_nothing: bool = False
    is_in_order: bool = False
    notifications: Mapping[str, Any] = field(default_factory=dict)
    places: str = ""
    """Where it posts events of its own kind, which notifications send to the topic."""
    folder: Path | None = None
    """Where it is started, if that matters."""


def source_of(name: str, program: str, folder: Path, port: int, url: str) -> Source:
    """How a store is run. `folder` is its own."""
    data = folder / "data"
    data.mkdir()
    if name == "versitygw":
        argv = [program, "--access", USER, "--secret", SECRET, "--port", f"127.0.0.1:{port}", "--region", "us-east-1"]
        argv += ["--event-webhook-url", url, "posix", str(data)]
        return Source(name, argv, {}, arguments=("--arg", "remora-keys=literal"))
    if name == "seaweedfs":
        return _seaweedfs(program, folder, port, url)
    events = folder / "events"
    events.mkdir()
    env = {
        "MINIO_ROOT_USER": USER,
        "MINIO_ROOT_PASSWORD": SECRET,
        "MINIO_NOTIFY_WEBHOOK_ENABLE_REMORA": "on",
        "MINIO_NOTIFY_WEBHOOK_ENDPOINT_REMORA": url,
        "MINIO_NOTIFY_WEBHOOK_QUEUE_DIR_REMORA": str(events),
    }
    argv = [program, "server", str(data), "--quiet", "--address", f"127.0.0.1:{port}"]
    argv += ["--console-address", f"127.0.0.1:{free_port()}"]
    wanted = {
        "QueueConfigurations": [
            {"QueueArn": "arn:minio:sqs::REMORA:webhook", "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]}
        ]
    }
    return Source(name, argv, env, repeats=True, loses_nothing=True, is_in_order=True, notifications=wanted)


def _seaweedfs(program: str, folder: Path, port: int, url: str) -> Source:
    """A server with all parts. What its filer posts is of all buckets, so there is nothing to set."""
    base = url.partition("/v1/")[0]
    (folder / "notification.toml").write_text(
        f'[notification.webhook]\nenabled = true\nendpoint = "{base}{SEAWEEDFS}"\nmax_retries = 10\n'
        'backoff_seconds = 1\npath_prefixes = ["/buckets/"]\n'
    )
    credentials = [{"accessKey": USER, "secretKey": SECRET}]
    identity = {"name": "dev", "credentials": credentials, "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    argv = [program, "server", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"]
    argv += [f"-s3.port={port}", f"-s3.config={folder / 's3.json'}", "-master.volumeSizeLimitMB=64", "-volume.max=20"]
    for option in ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port"):
        argv.append(f"-{option}={free_port()}")
    argv += [f"-filer.port.grpc={free_port()}", f"-s3.port.grpc={free_port()}", "-master.telemetry=false"]
    argv += ["-s3.port.iceberg=0"]
    return Source("seaweedfs", argv, {}, repeats=True, places=SEAWEEDFS, folder=folder)


@contextlib.asynccontextmanager
async def running(source: Source, log: Path) -> AsyncIterator[None]:
    """The store, until the block ends."""
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *source.argv, env=dict(os.environ) | dict(source.env), cwd=source.folder, stdout=output, stderr=output
        )
    try:
        yield
        if process.returncode is not None:
            raise DemoError(f"{source.name} ended with {process.returncode}: see {log}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def patiently(work: Callable[[], Awaitable[object]], what: str) -> None:
    """Ask a store that begins until it does something."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            await work()
        except Exception as exc:
            if time.monotonic() > deadline:
                raise DemoError(f"the store does not {what}: {exc}") from exc
            await asyncio.sleep(0.2)
        else:
            return


async def bucket_made(s3: Any, bucket: str) -> None:
    """Make a bucket, as soon as the store answers."""
    await patiently(lambda: s3.create_bucket(Bucket=bucket), "make a bucket")


async def listed(s3: Any, bucket: str) -> set[str]:
    """The keys as S3 lists them."""
    answer = await s3.list_objects_v2(Bucket=bucket)
    return {each["Key"] for each in answer.get("Contents", ())}


async def arrived(bootstrap: str, topic: str, least: int) -> list[dict[str, Any]]:
    """The events in Kafka, in the order of each partition, until at least this many are there or none comes."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None, isolation_level="read_committed")
    await consumer.start()
    found: list[dict[str, Any]] = []
    try:
        parts = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer.assign(parts)
        await consumer.seek_to_beginning(*parts)
        until, last = time.monotonic() + PATIENCE_S, time.monotonic()
        while time.monotonic() < until and not (len(found) >= least and time.monotonic() - last > QUIET_S):
            if len(found) < least and time.monotonic() - last > 5 * QUIET_S:
                break
            for records in (await consumer.getmany(timeout_ms=500)).values():
                for record in records:
                    event = json.loads(record.value)["Records"][0]
                    key = record.key.decode().partition("/")[2]
                    found.append({
                        "key": key, "name": event["eventName"], "inside": event["s3"]["object"]["key"],
                        "bucket": event["s3"]["bucket"]["name"], "id": event["s3"]["configurationId"],
                    })  # fmt: skip
                    last = time.monotonic()
    finally:
        await consumer.stop()
    return found
