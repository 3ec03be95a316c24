"""What events tell of a bucket beside a real radosgw's own listing of it, while somebody writes into the bucket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from devkit.clusters.s3 import Zone, fresh
from remora_pipeline.replay.pipeline.directory import LandedDirectory
from remora_pipeline.replay.pipeline.emit import Emission, EmitProgress, emit, sequencer_of
from remora_pipeline.replay.pipeline.inventory import InventoryPlan, take
from remora_pipeline.replay.pipeline.reconcile import plan_emission, reconcile
from remora_pipeline.replay.pipeline.reconcile_plan import ReconcilePlan
from remora_pipeline.replay.pipeline.reconciliation import ReconciledDirectory
from remora_pipeline.replay.pipeline.s3_objects import looking, s3_reader
from remora_pipeline.replay.run.targets.s3 import Gateway
from replay.test_pipeline_inventory import PUT, Told, land
from replay.test_reconcile_emit import Server

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.ceph,
    pytest.mark.spark,
    pytest.mark.full("the gate reconciles a listing in a file"),
]

OBJECTS = int(os.environ.get("RECONCILE_TEST_OBJECTS", "300"))
ODD = ("root", "a/", "a/with space", "a/+b&c=d?e#f%20g;h", "ünï/日本/😀", "quote\"'\\/x", "z")


@dataclass
class Writer:
    """Overwrites, makes and removes objects of its own, one after the other, in a thread of its own."""

    gateway: Gateway
    bucket: str
    over: threading.Event = field(default_factory=threading.Event)
    rounds: int = 0

    async def run(self) -> None:
        async with s3_reader(self.gateway) as client:
            while not self.over.is_set():
                key = f"busy/{self.rounds % 20}"
                await client.put_object(Bucket=self.bucket, Key=key, Body=b"y" * (self.rounds % 9))
                if self.rounds % 3 == 2:
                    await client.delete_object(Bucket=self.bucket, Key=key)
                self.rounds += 1


@contextlib.contextmanager
def writing(gateway: Gateway, bucket: str) -> Iterator[Writer]:
    """A writer, which is at it while the block runs."""
    writer = Writer(gateway, bucket)
    thread = threading.Thread(target=lambda: asyncio.run(writer.run()), name="writer")
    thread.start()
    try:
        yield writer
    finally:
        writer.over.set()
        thread.join()


def test_a_bucket_of_radosgw_beside_its_events(spark: SparkSession, zone20: Zone, tmp_path: Path) -> None:
    """Of 300 objects with any kind of key, 5 whose event was lost, 3 that are gone and 2 whose event tells something
    else are found, and none of a running writer's; of those the events are sent whose object is still the same.

    Of 100,000, as RECONCILE_TEST_OBJECTS may ask for, 50 events are lost, and 10 tell something else.
    """
    given = zone20.env["s3"]
    gateway = Gateway(given["endpoint"], zone20.env["region"], given["access_key"], given["secret_key"], "")
    bucket = fresh("reconcile")
    plain = [f"p{number % 7}/{number:03}" for number in range(OBJECTS - len(ODD))]
    keys = [*ODD, *plain]
    lost = {"root", "a/with space", "ünï/日本/😀", "p1/008", "z", *plain[1_000 : 1_000 + OBJECTS // 2_000 - 5]}
    altered = {"p2/009", "p3/010", *plain[2_000 : 2_000 + OBJECTS // 10_000 - 2]}
    modified = asyncio.run(fill(gateway, bucket, keys))
    told = [
        Told(
            key, PUT, None, etag=etag, bucket=bucket, sequencer=sequencer_of(int(at.timestamp() * 1000) * 10**6), size=1
        )
        for key, (etag, at) in modified.items()
        if key not in lost
    ]
    told += told[:20]  # copies
    told += [Told(f"gone/{number}", PUT, 5, bucket=bucket, size=1) for number in range(3)]
    told = [_altered(each) if each.key in altered else each for each in told]
    landing = LandedDirectory(tmp_path / "landed")
    landing.path.mkdir()
    landing.bind(tmp_path / "checkpoint", "t", None, None)
    land(spark, landing, 0, *told)
    take(InventoryPlan(landing.path, tmp_path / "inventory"))
    out = tmp_path / "out"
    latest = max(at for _, at in modified.values())
    asyncio.run(older_than(latest + timedelta(seconds=2)))

    with contextlib.ExitStack() as stack:
        writers: list[Writer] = []

        def tell(step: str) -> None:
            if step == "listing":
                writers.append(stack.enter_context(writing(gateway, bucket)))

        plan = ReconcilePlan(bucket=bucket, out=out, inventory=tmp_path / "inventory", gateway=gateway, grace_s=1)
        found = reconcile(plan, tell=tell)
        assert [writer.rounds > 0 for writer in writers] == [True]

    rows = {row["key"]: row["kind"] for row in pq.read_table(ReconciledDirectory(out).findings).to_pylist()}
    gone = {f"gone/{number}": "extra" for number in range(3)}
    assert rows == dict.fromkeys(lost, "missing") | gone | dict.fromkeys(altered, "differing")
    assert found.listed >= len(keys)

    server = Server()
    sent = asyncio.run(send(gateway, bucket, out, server))
    assert sorted(server.keys) == sorted(set(rows) - {"z", "gone/1"})
    assert (sent.sent, sent.changed) == (len(rows) - 2, 2)


def _altered(told: Told) -> Told:
    return Told(told.key, PUT, None, etag="altered", bucket=told.bucket, sequencer=told.sequencer, size=1)


async def older_than(at: datetime) -> None:
    """Return when the clock is past a time."""
    while datetime.now(at.tzinfo) < at:  # noqa: ASYNC110 - the clock of another host's objects gives no signal
        await asyncio.sleep(0.1)


async def fill(gateway: Gateway, bucket: str, keys: list[str]) -> dict[str, tuple[str, datetime]]:
    """Put an object of one byte under each key; ETags and times as they are listed."""
    left = iter(keys)
    async with s3_reader(gateway, 16) as client:

        async def put() -> None:
            for key in left:
                await client.put_object(Bucket=bucket, Key=key, Body=b"x")

        await client.create_bucket(Bucket=bucket)
        await asyncio.gather(*(put() for _ in range(16)))
        found: dict[str, tuple[str, datetime]] = {}
        async for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            found |= {each["Key"]: (each["ETag"].strip('"'), each["LastModified"]) for each in page["Contents"]}
        return found


async def send(gateway: Gateway, bucket: str, out: Path, server: Server) -> EmitProgress:
    """Send what was found, after one of the missing objects was overwritten and one that was gone is there again."""
    plan_emission(out)
    async with s3_reader(gateway, 16) as client:
        await client.put_object(Bucket=bucket, Key="z", Body=b"other")
        await client.put_object(Bucket=bucket, Key="gone/1", Body=b"again")
        look = looking(client, gateway, bucket)
        return await emit(ReconciledDirectory(out), server, look, Emission("t", 1e6), lambda _: None)
