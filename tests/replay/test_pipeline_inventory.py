"""The current objects of buckets, from landed events."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from msgspec import structs
from pyspark.sql import DataFrame, SparkSession

from remora_pipeline.replay.errors import ReplayError, ReplayRefused
from remora_pipeline.replay.paths import location
from remora_pipeline.replay.pipeline.columns import EVENT
from remora_pipeline.replay.pipeline.directory import FileMove, LandedDirectory, Staged
from remora_pipeline.replay.pipeline.frames import current_objects
from remora_pipeline.replay.pipeline.iceberg.tables import journal_rows
from remora_pipeline.replay.pipeline.inventory import InventoryPlan, take
from remora_pipeline.replay.pipeline.labels import label
from remora_pipeline.replay.pipeline.snapshots import Inventory, InventoryDirectory
from remora_pipeline.replay.pipeline.spark import writing

pytestmark = pytest.mark.timeout(900)

START = datetime(2026, 11, 21, tzinfo=UTC)


def sequencer(second: int) -> str:
    """radosgw's: the bytes of two little-endian numbers."""
    return (second.to_bytes(4, "little") + (0).to_bytes(4, "little")).hex().upper()


@dataclass(frozen=True)
class Told:
    """What a test cares about in an event; `at` is its second, which the sequencer tells."""

    key: str
    name: str
    at: int | None
    version: str | None = None
    etag: str | None = "e"
    bucket: str = "photos"
    tenant: str = ""
    source: str = "ceph:s3"
    sequencer: str | None = None
    shard: str | None = "s.0"
    position: str | None = None
    offset: int | None = None
    partition: int = 0
    stamp: int = 0
    time: datetime = START
    size: int | None = None


PUT, DELETE, MARKER = "ObjectCreated:Put", "ObjectRemoved:Delete", "ObjectRemoved:DeleteMarkerCreated"
OF_METADATA = ("PutTagging", "DeleteTagging", "PutRetention", "PutLegalHold")
"""What MinIO calls changes of a version's tags and locks."""


def landed(spark: SparkSession, *told: Told, batch: int = 0) -> DataFrame:
    """Events as they land, in the order of the arguments unless they say otherwise."""
    rows = []
    for number, each in enumerate(told):
        values: dict[str, Any] = {
            "record": 0,
            "event_time": each.time,
            "event_name": each.name,
            "event_source": each.source,
            "tenant": each.tenant,
            "bucket": each.bucket,
            "key": each.key,
            "size": number if each.size is None else each.size,
            "etag": each.etag,
            "version_id": each.version,
            "sequencer": each.sequencer or (None if each.at is None else sequencer(each.at)),
            "event_id": f"id-{number}",
            "topic": "t",
            "partition": each.partition,
            "offset": number if each.offset is None else each.offset,
            "timestamp": START + timedelta(seconds=each.stamp),
            "shard": each.shard,
            "position": each.position if each.position or not each.shard else f"i:0/{number}",
            "batch": batch,
            "day": "2026-11-21",
            "bucket_dir": label(each.bucket),
        }
        rows.append(tuple(values.get(name) for name in EVENT.names))
    return spark.createDataFrame(rows, EVENT)


def found(frame: DataFrame) -> dict[str, str | None]:
    """The version of each current object, by its key."""
    return {row.key: row.version_id or f"event {row.size}" for row in current_objects(frame).collect()}


@pytest.mark.spark
def test_objects_of_every_kind_at_once(spark: SparkSession) -> None:
    """Overwrites, deletes, versions, delete markers, lifecycle and uploads give just the objects that a client sees."""
    events = [
        Told("overwritten", PUT, 1),
        Told("overwritten", "ObjectCreated:CompleteMultipartUpload", 2),
        Told("deleted", PUT, 1),
        Told("deleted", DELETE, 2),
        Told("made again", PUT, 1),
        Told("made again", DELETE, 2),
        Told("made again", "ObjectCreated:Copy", 3),
        # The text of these sequencers does not grow with time: 255 is FF000000, 256 is 00010000.
        Told("late", PUT, 256),
        Told("late", DELETE, 255),
        Told("versions", PUT, 1, "v1"),
        Told("versions", PUT, 2, "v2"),
        Told("marked", PUT, 1, "v1"),
        Told("marked", MARKER, 2, "m1"),
        Told("marker removed", PUT, 1, "v1"),
        Told("marker removed", MARKER, 2, "m1"),
        Told("marker removed", DELETE, 3, "m1"),
        Told("newest removed", PUT, 1, "v1"),
        Told("newest removed", PUT, 2, "v2"),
        Told("newest removed", DELETE, 3, "v2"),
        Told("older removed", PUT, 1, "v1"),
        Told("older removed", PUT, 2, "v2"),
        Told("older removed", "ObjectLifecycle:Expiration:Noncurrent", 3, "v1"),
        Told("all removed", PUT, 1, "v1"),
        Told("all removed", DELETE, 2, "v1"),
        Told("suspended", PUT, 1, "null"),
        Told("suspended", MARKER, 2, None),
        Told("expired", PUT, 1),
        Told("expired", "ObjectLifecycle:Expiration:Current", 2),
        Told("expired version", PUT, 1, "v1"),
        Told("expired version", "ObjectLifecycle:Expiration:Current", 2, "v1"),
        Told("upload begun", "ObjectCreated:Post", 1, etag=None),
        Told("posted", "ObjectCreated:Post", 1),
        Told("never made", DELETE, 1),
        Told("tagged", PUT, 1),
        Told("tagged", "ObjectTagging:Put", 2),
        *[Told("older tagged", PUT, at, f"v{at}") for at in (1, 2)],
        *[Told("older tagged", f"ObjectCreated:{name}", 3, "v1") for name in OF_METADATA],
        Told("expired marker", PUT, 1, "v1"),
        Told("expired marker", MARKER, 2, "m1"),
        Told("expired marker", "LifecycleDelMarkerExpiration:Delete", 3, "m1"),
        Told("by AWS", PUT, None, source="aws:s3", sequencer="0055AED6DCD90281E6"),
        Told("by AWS", DELETE, None, source="aws:s3", sequencer="0055AED6DCD90281E5"),
        Told("padded", PUT, None, source="aws:s3", sequencer="0055AED7"),
        Told("padded", DELETE, None, source="aws:s3", sequencer="0055AED6DC"),
        Told("odd ü+%\n/", PUT, 1),
    ]
    random.Random(7).shuffle(events)

    objects = found(landed(spark, *events))

    assert set(objects) == {
        "overwritten",
        "made again",
        "late",
        "versions",
        "marker removed",
        "newest removed",
        "older removed",
        "posted",
        "tagged",
        "older tagged",
        "by AWS",
        "padded",
        "odd ü+%\n/",
    }
    versions = ("versions", "marker removed", "newest removed", "older removed", "older tagged")
    assert [objects[key] for key in versions] == ["v2", "v1", "v1", "v2", "v2"]
    assert events[int(objects["overwritten"].removeprefix("event "))].at == 2  # type: ignore[union-attr]


@pytest.mark.spark
def test_the_journal_says_what_an_event_did(spark: SparkSession) -> None:
    """Its record_type and is_delete_marker are those of the event, by whatever name a store has for it."""
    expected = {
        PUT: ("CREATE", False),
        MARKER: ("DELETE", True),
        "ObjectSynced:DeletionMarkerCreated": ("DELETE", True),
        "LifecycleExpiration:DeleteMarkerCreated": ("DELETE", True),
        DELETE: ("DELETE", False),
        "LifecycleDelMarkerExpiration:Delete": ("DELETE", False),
        "ObjectTagging:Put": ("UPDATE_METADATA", False),
        **{f"ObjectCreated:{name}": ("UPDATE_METADATA", False) for name in OF_METADATA},
    }

    rows = journal_rows(landed(spark, *[Told("k", name, at) for at, name in enumerate(expected)])).collect()

    assert {row.event_name: (row.record_type, row.is_delete_marker) for row in rows} == expected


@pytest.mark.spark
def test_order_without_sequencers(spark: SparkSession) -> None:
    """A key of which an event has no sequencer goes by its place in remora's queue, else by Kafka's time and offset."""
    events = [
        # Delivered again after a crash: the copies say nothing new.
        Told("copies", PUT, None, position="i:0/10", offset=0),
        Told("copies", DELETE, None, position="i:0/9", offset=1),
        Told("copies", DELETE, None, position="i:0/9", offset=2),
        Told("turn of the ring", PUT, None, position="i:1/0", offset=3),
        Told("turn of the ring", DELETE, None, position="i:0/900", offset=4),
        Told("digits", PUT, None, position="i:0/1000", offset=5),
        Told("digits", DELETE, None, position="i:0/999", offset=6),
        # A queue that was removed and made again counts anew.
        Told("new queue", PUT, None, position="i:b:0/5", offset=8, stamp=9),
        Told("new queue", DELETE, None, position="i:a:0/500", offset=7, stamp=8),
        Told("mixed", PUT, 5, position="i:0/20"),
        Told("mixed", DELETE, None, position="i:0/21"),
        Told("two stores", PUT, 1, position="i:0/31"),
        Told("two stores", DELETE, None, source="minio:s3", sequencer="FFFFFFFFFFFFFFFF", position="i:0/30"),
        Told("no queue", PUT, None, shard=None, partition=0, offset=1, stamp=5),
        Told("no queue", DELETE, None, shard=None, partition=1, offset=9, stamp=4),
        Told("one partition", DELETE, None, shard=None, offset=90, stamp=4),
        Told("one partition", PUT, None, shard=None, offset=91, stamp=4),
    ]
    expected = {"copies", "turn of the ring", "digits", "new queue", "two stores", "no queue", "one partition"}

    for seed in (1, 2):
        random.Random(seed).shuffle(events)
        assert set(found(landed(spark, *events))) == expected


@pytest.mark.spark
def test_buckets_and_tenants_are_apart(spark: SparkSession) -> None:
    """The same key in another bucket, or in a bucket of the same name of another tenant, is another object."""
    events = landed(
        spark,
        Told("k", PUT, 1, "v1"),
        Told("k", DELETE, 2, bucket="other"),
        Told("k", PUT, 3, "v3", tenant="harbour"),
    )

    rows = current_objects(events).collect()

    assert {(row.tenant, row.bucket, row.version_id) for row in rows} == {
        ("", "photos", "v1"),
        ("harbour", "photos", "v3"),
    }


# ------------------------------------------------------------------------------------------ the job


def land(spark: SparkSession, directory: LandedDirectory, batch: int, *told: Told) -> None:
    """A batch as the landing writes it."""
    staging = directory.staging()
    with writing(spark):
        frame = landed(spark, *told, batch=batch)
        frame.write.partitionBy("day", "bucket_dir").parquet(location(staging / "events"))
    directory.land(batch, Staged(staging, len(told), 0))


def objects(out: Path) -> set[tuple[str, str]]:
    """Buckets and keys, as a reader that is not Spark sees them."""
    table = pq.read_table(out / "current" / "objects").to_pylist()
    return {(row["bucket"], row["key"]) for row in table}


@pytest.mark.spark
def test_an_inventory_follows_its_landing(spark: SparkSession, tmp_path: Path) -> None:
    """Each inventory replaces the one before at once, with all batches that have landed; without a new one it stays."""
    directory, out = LandedDirectory(tmp_path / "land[e]d {here}"), tmp_path / "inven[t]ory"
    directory.path.mkdir()
    directory.bind(tmp_path / "checkpoint", "t", None, None)
    plan = InventoryPlan(directory.path, out)

    empty, is_new = take(plan)
    assert (empty.batch, empty.objects, is_new) == (-1, 0, True)

    land(spark, directory, 0, Told("a", PUT, 1), Told("b", PUT, 1), Told("c", PUT, 1, bucket="007"))
    assert take(plan)[0].objects == 3
    assert objects(out) == {("photos", "a"), ("photos", "b"), ("007", "c")}
    first = out.joinpath("current").resolve()
    assert take(plan)[1] is False
    assert out.joinpath("current").resolve() == first

    land(spark, directory, 1, Told("a", DELETE, 2))
    assert take(plan)[0].objects == 2
    assert objects(out) == {("photos", "b"), ("007", "c")}
    assert first.exists()
    assert len(list(out.glob("snapshot-*"))) == 2

    assert take(replace(plan, buckets=["007"], keep=1))[0].objects == 1
    assert objects(out) == {("007", "c")}
    assert {path.name for path in out.iterdir()} == {"_lock", "current", out.joinpath("current").resolve().name}


@pytest.mark.spark
def test_a_batch_on_its_way_is_left_out(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the files of a batch are being moved, an inventory tells of the batches before it, and of no part of it."""
    directory = LandedDirectory(tmp_path / "landed")
    directory.path.mkdir()
    directory.bind(tmp_path / "checkpoint", "t", None, None)
    land(spark, directory, 0, Told("a", PUT, 1))
    land(spark, directory, 1, Told("a", DELETE, 2), Told("b", PUT, 2))
    moving = structs.replace(directory.commit(), moves=(FileMove("a", "b"),))
    monkeypatch.setattr(LandedDirectory, "commit", lambda self: moving)

    assert take(InventoryPlan(directory.path, tmp_path / "out"))[0].batch == 0
    assert objects(tmp_path / "out") == {("photos", "a")}


def test_where_nothing_can_have_landed(tmp_path: Path) -> None:
    """A folder that no landing has made is refused by its name, and nothing is written."""
    (tmp_path / "landed").mkdir()

    with pytest.raises(ReplayRefused, match="nothing has landed there"):
        take(InventoryPlan(tmp_path / "landed", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name", ["notes.txt", "snapshot-2024", "snapshot-00000001-1", "_making-it", "_current-x", ".x"]
)
def test_somebody_elses_folder_is_refused(tmp_path: Path, name: str) -> None:
    """A folder with files of somebody else is no place for an inventory, whatever their names are like."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "theirs").touch()

    with pytest.raises(ReplayRefused, match="no inventory has made"):
        InventoryDirectory(tmp_path).staging()
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == [name, f"{name}/theirs"]


def test_somebody_elses_link_is_refused(tmp_path: Path) -> None:
    """A link `current` that leads to no snapshot is refused, and stays; one whose snapshot was removed is replaced."""
    directory = InventoryDirectory(tmp_path)
    directory.current.symlink_to("releases/7")
    with pytest.raises(ReplayRefused, match="current"):
        directory.newest()
    assert str(directory.current.readlink()) == "releases/7"

    directory.current.unlink()
    directory.current.symlink_to("snapshot-00000001-1")
    assert directory.newest() is None
    directory.publish(directory.staging(), Inventory("l", 2, (), 3, 4), keep=1)
    assert directory.newest() == Inventory("l", 2, (), 3, 4)


def test_old_snapshots_are_removed_and_nothing_else(tmp_path: Path) -> None:
    """Of a folder's snapshots the last ones stay; what only looks like one is not touched."""
    directory = InventoryDirectory(tmp_path)
    for made_us in (1, 2, 3):
        directory.publish(directory.staging(), Inventory("l", 0, (), made_us, 0), keep=2)
        (tmp_path / "snapshot-2024").mkdir(exist_ok=True)
        (tmp_path / "snapshot-00000000-0").mkdir(exist_ok=True)

    assert {path.name for path in tmp_path.glob("snapshot-*")} == {
        "snapshot-00000000-2", "snapshot-00000000-3", "snapshot-2024", "snapshot-00000000-0",
    }  # fmt: skip


def test_one_inventory_is_made_at_a_time(tmp_path: Path) -> None:
    """While a snapshot is made no other one is, and what a killed process has left of its own is removed."""
    directory = InventoryDirectory(tmp_path / "out")
    with directory.locked():
        left = directory.staging()
        left.joinpath("objects").mkdir()
        with pytest.raises(ReplayRefused, match="another process makes an inventory there"), directory.locked():
            pytest.fail("two make one")
        assert left.exists()
    link = directory.path / f"_current-{'0' * 32}"
    link.symlink_to("snapshot-00000000-1")

    with directory.locked():
        directory.publish(directory.staging(), Inventory("l", 0, (), 1, 0), keep=1)

    assert {path.name for path in directory.path.iterdir()} == {"_lock", "current", "snapshot-00000000-1"}


def test_a_lock_makes_nothing_in_somebody_elses_folder(tmp_path: Path) -> None:
    """A folder that no inventory has made is refused before it is locked."""
    (tmp_path / "notes.txt").touch()

    with pytest.raises(ReplayRefused, match="no inventory has made"), InventoryDirectory(tmp_path).locked():
        pytest.fail("it is taken")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.full("a whole inventory is at the gate")
@pytest.mark.spark
def test_a_failed_inventory_changes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the job fails, the inventory is the one from before, and nothing half-written stays."""
    directory, out = LandedDirectory(tmp_path / "landed"), tmp_path / "out"
    directory.path.mkdir()
    directory.bind(tmp_path / "checkpoint", "t", None, None)
    land(spark, directory, 0, Told("a", PUT, 1))
    take(InventoryPlan(directory.path, out))
    before = sorted(path.name for path in out.iterdir())
    land(spark, directory, 1, Told("a", DELETE, 2))
    broken = next(directory.events.rglob("batch-00000001-*.parquet"))
    broken.write_bytes(b"PAR1 no more")

    with pytest.raises(ReplayError, match="batch-00000001") as told:
        take(InventoryPlan(directory.path, out))
    assert "\n" not in str(told.value)

    assert sorted(path.name for path in out.iterdir()) == before
    assert objects(out) == {("photos", "a")}


def test_the_current_snapshot_stays_when_the_clock_goes_back(tmp_path: Path) -> None:
    """A snapshot that seems to be older than those before it is current and kept, beside the last of these."""
    directory = InventoryDirectory(tmp_path)

    for made_us in (100, 200, 50, 40):
        directory.publish(directory.staging(), Inventory("l", 0, (), made_us, 0), keep=2)

    newest = directory.newest()
    assert newest is not None
    assert newest.made_us == 40
    assert len(list(tmp_path.glob("snapshot-*"))) == 2
