"""What events tell of a bucket beside a listing of it."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyspark.sql import SparkSession

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.layout import write
from remora_pipeline.replay.pipeline.columns import NOTIFICATION
from remora_pipeline.replay.pipeline.directory import Commit, LandedDirectory, Landing
from remora_pipeline.replay.pipeline.emit import ObjectNow, record_of, sequencer_of
from remora_pipeline.replay.pipeline.findings import FINDING
from remora_pipeline.replay.pipeline.frames import current_objects
from remora_pipeline.replay.pipeline.inventory import InventoryPlan, take
from remora_pipeline.replay.pipeline.listing import listed_in_file, listed_in_inventory, manifest_of
from remora_pipeline.replay.pipeline.reconcile import plan_emission, reconcile
from remora_pipeline.replay.pipeline.reconcile_plan import ReconcilePlan
from remora_pipeline.replay.pipeline.reconciliation import ReconciledDirectory
from remora_pipeline.replay.pipeline.records import events as events_of
from replay.test_pipeline_inventory import DELETE, MARKER, PUT, START, Told, land, landed
from replay.test_reconcile_emit import AT_NS, reconciled, row

pytestmark = [pytest.mark.timeout(900), pytest.mark.spark]

LISTED_AT = START + timedelta(hours=1)
GRACE_S = 300.0


def listing(path: Path, *objects: tuple[str, int, str, str, datetime]) -> Path:
    """A listing: key, size, ETag, version and time of each object."""
    lines = [
        json.dumps(
            {"Key": key, "Size": size, "ETag": f'"{etag}"', "VersionId": version, "LastModified": at.isoformat()}
            | {"IsLatest": True, "IsDeleteMarker": False}
        )
        for key, size, etag, version, at in objects
    ]
    old = {"Key": "same", "Size": 99, "ETag": '"old"', "VersionId": "v0", "IsLatest": False, "IsDeleteMarker": False}
    marker = {"Key": "marker", "VersionId": "v9", "IsLatest": True, "IsDeleteMarker": True}
    times = {"LastModified": START.isoformat()}
    path.write_text("\n".join([*lines, json.dumps(old | times), json.dumps(marker | times)]))
    return path


def table(out: Path) -> dict[str, dict[str, Any]]:
    return {row["key"]: row for row in pq.read_table(ReconciledDirectory(out).findings).to_pylist()}


@pytest.fixture
def landing(tmp_path: Path) -> LandedDirectory:
    directory = LandedDirectory(tmp_path / "landed")
    directory.path.mkdir()
    directory.bind(tmp_path / "checkpoint", "t", None, None)
    return directory


def test_a_bucket_beside_its_events(spark: SparkSession, landing: LandedDirectory, tmp_path: Path) -> None:
    """Missing, extra and differing keys are found with their last events, and nothing of what agrees, of other buckets
    or tenants, or of what changes while the listing is made; what has landed since is not sent."""
    land(
        spark, landing, 0,
        Told("same", PUT, 1, version="v1"), Told("extra", PUT, 2), Told("size", PUT, 3), Told("etag", PUT, 4),
        Told("version", PUT, 5, version="v1"), Told("removed", PUT, 6), Told("marker", MARKER, 7, version="v9"),
        Told("removed", DELETE, 8), Told("theirs", PUT, 9, bucket="other"), Told("theirs", PUT, 10, tenant="x"),
        Told("deleted meanwhile", PUT, 11), Told("made anew meanwhile", PUT, 12),
    )  # fmt: skip
    take(InventoryPlan(landing.path, tmp_path / "inventory"))
    now = LISTED_AT - timedelta(seconds=10)
    plan = ReconcilePlan(
        bucket="photos",
        out=tmp_path / "out",
        inventory=tmp_path / "inventory",
        listing=listing(
            tmp_path / "listing.json",
            ("same", 0, "e", "v1", START),
            ("size", 1, "e", "null", START),
            ("etag", 3, "other", "null", START),
            ("version", 4, "e", "v2", START),
            ("missing", 5, "e", "null", START),
            ("removed", 6, "e", "null", START),
            ("new", 7, "e", "null", now),
            ("made anew meanwhile", 8, "e2", "null", now),
        ),
        listed_at_us=int(LISTED_AT.timestamp() * 1_000_000),
        grace_s=GRACE_S,
    )
    land(
        spark, landing, 1,
        Told("deleted meanwhile", DELETE, 20, time=LISTED_AT), Told("made afterwards", PUT, 21, time=LISTED_AT),
    )  # fmt: skip

    found = reconcile(plan)

    rows = table(plan.out)
    assert {key: each["kind"] for key, each in rows.items()} == {
        "extra": "extra", "size": "differing", "etag": "differing", "version": "differing", "missing": "missing",
        "removed": "missing",
    }  # fmt: skip
    assert [rows[key]["differs"] for key in ("size", "etag", "version")] == [["size"], ["etag"], ["version_id"]]
    assert [rows[key]["event_name"] for key in ("extra", "missing", "removed")] == [PUT, None, DELETE]
    assert (rows["extra"]["event_id"], rows["size"]["event_size"], rows["version"]["version_id"]) == ("id-1", 2, "v2")
    assert list(rows) == sorted(rows)
    assert found.counts == {"missing": 2, "extra": 1, "differing": 3, "changing": 3}
    assert (found.listed, found.told, found.batch) == (8, 7, 1)
    assert pq.read_schema(next(ReconciledDirectory(plan.out).findings.glob("part-*"))).names == FINDING.names
    page = (plan.out / "index.html").read_text()
    assert "2 missing, 1 extra, 3 differing, of 8 objects in the bucket" in page
    assert "ObjectRemoved:Delete" in page
    assert reconcile(replace(plan, goes_on=True)) == found

    land(spark, landing, 2, Told("missing", PUT, 30))
    plan_emission(plan.out)
    to_send = pq.read_table(ReconciledDirectory(plan.out).emit / "plan")["key"].to_pylist()
    assert to_send == ["etag", "extra", "removed", "size", "version"]


def test_events_behind_the_inventory_count(spark: SparkSession, landing: LandedDirectory, tmp_path: Path) -> None:
    """An inventory that is older than the landing makes no findings: what was made, overwritten and removed since is
    known from its events, and one that was lost is found all the same."""
    land(spark, landing, 0, Told("old", PUT, 1), Told("gone", PUT, 2), Told("anew", PUT, 3), Told("lost", PUT, 4))
    take(InventoryPlan(landing.path, tmp_path / "inventory"))
    land(
        spark, landing, 1,
        Told("made", PUT, 5), Told("gone", DELETE, 6), Told("anew", PUT, 7, size=7), Told("lost", DELETE, 8),
    )  # fmt: skip
    objects = [(key, size, "e", "null", START) for key, size in (("old", 0), ("made", 0), ("anew", 7), ("lost", 9))]
    plan = ReconcilePlan(
        bucket="photos",
        out=tmp_path / "out",
        inventory=tmp_path / "inventory",
        listing=listing(tmp_path / "listing.json", *objects),
        listed_at_us=int((LISTED_AT + timedelta(days=1)).timestamp() * 1_000_000),
        grace_s=GRACE_S,
    )

    found = reconcile(plan)

    assert {key: each["kind"] for key, each in table(plan.out).items()} == {"lost": "missing"}
    assert (found.told, found.counts["changing"]) == (3, 0)


def test_a_listing_without_versions_tells_none(spark: SparkSession, landing: LandedDirectory, tmp_path: Path) -> None:
    """Objects of a bucket with versions do not differ from a listing that tells no version and no ETag; what else
    differs does, and is sent whatever the object's version is by now."""
    land(spark, landing, 0, Told("same", PUT, 1, version="v1", size=7), Told("size", PUT, 2, version="v2", size=3))
    take(InventoryPlan(landing.path, tmp_path / "inventory"))
    lines = ["key,size,etag,last_modified", *(f"{key},7,,{START.isoformat()}" for key in ("same", "size"))]
    (tmp_path / "listing.csv").write_text("\n".join(lines))
    plan = ReconcilePlan(
        bucket="photos",
        out=tmp_path / "out",
        inventory=tmp_path / "inventory",
        listing=tmp_path / "listing.csv",
        listed_at_us=int(LISTED_AT.timestamp() * 1_000_000),
        grace_s=GRACE_S,
    )

    found = reconcile(plan)

    (only,) = table(plan.out).values()
    assert (only["key"], only["differs"], only["version_id"]) == ("size", ["size"], None)
    assert record_of(found, 0, only, ObjectNow(7, "any", "v2", 0, {})) is not None


def test_a_time_that_is_yet_to_come_hides_nothing(
    spark: SparkSession, landing: LandedDirectory, tmp_path: Path
) -> None:
    """A key whose last event is of a clock that was years ahead is found to differ; it counted as changing, each time,
    so that the bucket seemed to agree."""
    ahead = datetime.now(UTC) + timedelta(days=3650)
    land(spark, landing, 0, Told("gone", PUT, 1, time=ahead), Told("same", PUT, 2, time=ahead, size=1))
    take(InventoryPlan(landing.path, tmp_path / "inventory"))
    plan = ReconcilePlan(
        bucket="photos",
        out=tmp_path / "out",
        inventory=tmp_path / "inventory",
        listing=listing(tmp_path / "listing.json", ("same", 1, "e", "null", START)),
        listed_at_us=int(LISTED_AT.timestamp() * 1_000_000),
        grace_s=GRACE_S,
    )

    found = reconcile(plan)

    assert {key: each["kind"] for key, each in table(plan.out).items()} == {"gone": "extra"}
    assert found.counts["changing"] == 0


def test_another_landing_is_no_reason_to_send(spark: SparkSession, landing: LandedDirectory, tmp_path: Path) -> None:
    """Nothing is sent where the landing that was compared is another one by now, or an older copy: what its events say
    would be left out for the wrong keys, or not at all."""
    land(spark, landing, 0, Told("a", PUT, 1))
    take(InventoryPlan(landing.path, tmp_path / "inventory"))
    land(spark, landing, 1, Told("a", PUT, 2))
    plan = ReconcilePlan(
        bucket="photos",
        out=tmp_path / "out",
        inventory=tmp_path / "inventory",
        listing=listing(tmp_path / "listing.json", ("b", 0, "e", "null", START)),
        listed_at_us=int((LISTED_AT + timedelta(days=1)).timestamp() * 1_000_000),
        grace_s=GRACE_S,
    )
    reconcile(plan)
    commit = landing.path / "_commit.json"
    was = commit.read_bytes()

    write(commit, Commit(batch=0, events=1))
    with pytest.raises(ReplayRefused, match="events up to batch 1 were compared, and 0 is the last one now"):
        plan_emission(plan.out)
    commit.write_bytes(was)
    write(landing.landing, Landing("other", "t", None, None))
    with pytest.raises(ReplayRefused, match="is another landing than the one that was compared"):
        plan_emission(plan.out)


def test_a_backfill_finds_every_object(spark: SparkSession, tmp_path: Path) -> None:
    """Against nothing all that is listed is missing, whatever a file calls its columns; S3 Inventory's files are read
    by its manifest, with their keys decoded, and files that say too little are named with what they lack."""
    lines = ["key,size,etag,last_modified", '"a,b",3,e,2026-11-21T00:00:00Z', "c,4,e,2026-11-21T00:00:00Z"]
    file = tmp_path / "listing.csv.gz"
    file.write_bytes(gzip.compress("\n".join(lines).encode()))
    plan = ReconcilePlan(bucket="photos", out=tmp_path / "out", inventory=None, listing=file, grace_s=0)

    found = reconcile(plan)

    assert (found.counts["missing"], found.listed, found.landing) == (2, 2, None)
    assert set(table(plan.out)) == {"a,b", "c"}
    config = tmp_path / "dest/photos/daily"
    (config / "data").mkdir(parents=True)
    (config / "2026-11-21T00-00Z").mkdir()
    (config / "data/x.csv").write_text('"photos","a%2Bb+c","","true","false","7","2026-11-21T00:00:00.000Z","e"\n')
    manifest = config / "2026-11-21T00-00Z/manifest.json"
    told = {
        "sourceBucket": "photos", "creationTimestamp": "1795219200000", "fileFormat": "CSV",
        "fileSchema": "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate, ETag",
        "files": [{"key": "photos/daily/data/x.csv"}],
    }  # fmt: skip
    manifest.write_text(json.dumps(told))
    (one,) = listed_in_inventory(spark, manifest, manifest_of(manifest)).collect()
    assert (one.key, one.size, one.etag) == ("a+b c", 7, "e")
    manifest.write_text(json.dumps(told | {"files": [{"key": "photos/daily/data/y.csv"}]}))
    with pytest.raises(ReplayRefused, match=r"manifest\.json: its file photos/daily/data/y\.csv is not here"):
        manifest_of(manifest)
    (tmp_path / "less.csv").write_text("key,etag\na,e\n")
    with pytest.raises(ReplayRefused, match=r"less\.csv: has no column size and no last_modified; it has key, etag"):
        listed_in_file(spark, tmp_path / "less.csv")


@pytest.mark.parametrize("kind", ["ORC", "Parquet"])
def test_an_inventory_in_columns_is_read(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """S3 Inventory's files of columns have keys as they are and times as such; older versions, delete markers and
    objects of other buckets are not current objects of this one."""
    made = datetime(2026, 11, 21, tzinfo=UTC)
    rows = [
        ("photos", "a%2Bb c", "v2", True, False, 7, made, "e"), ("photos", "a%2Bb c", "v1", False, False, 6, made, "d"),
        ("photos", "gone", "v3", True, True, None, made, None), ("other", "x", None, True, False, 1, made, "f"),
    ]  # fmt: skip
    names = ("bucket", "key", "version_id", "is_latest", "is_delete_marker", "size", "last_modified_date", "e_tag")
    columns = pa.table(dict(zip(names, (list(each) for each in zip(*rows, strict=True)), strict=True)))
    write: Callable[[pa.Table, Path], object] = orc.write_table if kind == "ORC" else pq.write_table
    (tmp_path / "data").mkdir()
    write(columns, tmp_path / "data/x")
    manifest = tmp_path / "manifest.json"
    told = {
        "sourceBucket": "photos", "creationTimestamp": "1795219200000", "fileFormat": kind,
        "fileSchema": "a description of columns", "files": [{"key": "photos/daily/data/x"}],
    }  # fmt: skip
    manifest.write_text(json.dumps(told))

    found = listed_in_inventory(spark, manifest, manifest_of(manifest)).collect()

    assert [(one.key, one.version_id, one.size, one.etag) for one in found] == [("a%2Bb c", "v2", 7, "e")]
    assert found[0].last_modified.astimezone(UTC) == made


def test_an_object_that_is_overwritten_before_its_event_is_sent(spark: SparkSession, tmp_path: Path) -> None:
    """A thousand objects of which the event was lost are overwritten or removed between the listing and the sending,
    some after the second look: whether the reconcile's event arrives before the writer's or behind it, by the inventory
    each has the state that the writer left."""
    chance = random.Random(1)
    found = reconciled(tmp_path, []).made()
    assert found is not None
    told: list[tuple[str, str, str, str]] = []
    truth: dict[str, str] = {}
    for number in range(1000):
        key, at_ns = f"k{number}", AT_NS + chance.choice((1, 999_999, 10**9, 10**12))
        before = sequencer_of(AT_NS - 10**10) if chance.random() < 0.5 else None
        finding = row(key, event_sequencer=before)
        synthetic = record_of(found, number, finding, ObjectNow(7, "e1", "", 0, {}))
        assert synthetic is not None
        is_removed = chance.random() < 0.5
        writers = (key, DELETE if is_removed else PUT, sequencer_of(at_ns), "e2")
        pair = [(key, *synthetic_of(synthetic), "e1"), writers]
        chance.shuffle(pair)
        told += pair
        truth |= {} if is_removed else {key: "e2"}

    rows = [Told(key, name, None, etag=etag, sequencer=order) for key, name, order, etag in told]
    objects = current_objects(landed(spark, *rows)).select("key", "etag").collect()

    assert {each.key: each.etag for each in objects} == truth


def synthetic_of(line: bytes) -> tuple[str, str]:
    """Name and sequencer of a reconcile's record."""
    (read,) = events_of(b'{"Records":[%b]}' % line, is_decoded=True)
    told = dict(zip(NOTIFICATION.names, read.row, strict=True))
    return told["event_name"], told["sequencer"]
