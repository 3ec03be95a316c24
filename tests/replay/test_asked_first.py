"""What the jobs of the pipeline find wrong before they start Spark."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from remora.cli import group
from remora_pipeline.cli import replay_verify
from remora_pipeline.replay import layout
from remora_pipeline.replay.errors import ReplayError, ReplayRefused
from remora_pipeline.replay.kafka_source import KafkaSource
from remora_pipeline.replay.layout import read, write
from remora_pipeline.replay.pipeline import inventory, land, reconcile, reconcile_plan
from remora_pipeline.replay.pipeline.directory import LandedDirectory, Landing
from remora_pipeline.replay.pipeline.emit import Planned
from remora_pipeline.replay.pipeline.iceberg import inventory as lake_inventory
from remora_pipeline.replay.pipeline.iceberg import lag
from remora_pipeline.replay.pipeline.iceberg import land as lake_land
from remora_pipeline.replay.pipeline.iceberg.commits import LandedOffsets, append
from remora_pipeline.replay.pipeline.inventory import InventoryPlan, take
from remora_pipeline.replay.pipeline.land import LandingPlan
from remora_pipeline.replay.pipeline.reconcile import plan_emission
from remora_pipeline.replay.pipeline.reconcile_plan import ReconcilePlan
from remora_pipeline.replay.pipeline.reconciliation import Listing, ReconciledDirectory
from remora_pipeline.replay.pipeline.snapshots import Inventory
from remora_pipeline.replay.run.targets.s3 import Gateway
from remora_pipeline.replay.topic_identity import TopicIdentity
from replay.lakes import event, files, lake, table
from replay.test_lake_addresses import answering
from replay.test_reconcile_cli import FOUND

AWAY = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts Spark fails."""

    def started(*_: object, **__: object) -> None:
        pytest.fail("Spark is started")

    for job in (reconcile, land, inventory, lake_land, lake_inventory, replay_verify):
        monkeypatch.setattr(job, "session", started)


def an_inventory(folder: Path, **changes: Any) -> ReconcilePlan:
    """A comparison of a listing with an inventory that is made of a landing; `changes` are those of the inventory."""
    write(folder / "landed/_landing.json", Landing("l1", "photos", None, None))
    told = Inventory("l1", 0, (), 1, 0, str(folder / "landed"))
    write(folder / "snapshot-00000000-1/inventory.json", msgspec.structs.replace(told, **changes))
    (folder / "current").symlink_to("snapshot-00000000-1")
    listing = folder / "listing.csv"
    listing.write_text("key,size,last_modified\n")
    return ReconcilePlan("photos", folder / "out", folder, listing=listing)


def a_manifest(folder: Path, **changes: Any) -> ReconcilePlan:
    """The same with an S3 Inventory; `changes` are those of its manifest."""
    path = folder / "manifest.json"
    told = {"sourceBucket": "photos", "fileFormat": "CSV", "fileSchema": "Bucket, Key", "creationTimestamp": "1"}
    path.write_text(json.dumps(told | {"files": []} | changes))
    return replace(an_inventory(folder), listing=None, manifest=path)


def from_s3(folder: Path, url: str = AWAY) -> ReconcilePlan:
    """The same with a bucket that is listed."""
    return replace(an_inventory(folder), listing=None, gateway=Gateway(url, "", "access", "secret", ""))


def listed(folder: Path, name: str) -> ReconcilePlan:
    """The same with a listing of another name."""
    (folder / name).touch()
    return replace(an_inventory(folder), listing=folder / name)


def an_empty_folder(folder: Path) -> ReconcilePlan:
    """The same with a listing in a folder, in which a program has left its marks only."""
    (folder / "listing").mkdir()
    (folder / "listing/_SUCCESS").touch()
    return replace(an_inventory(folder), listing=folder / "listing")


def of_another_bucket(folder: Path) -> ReconcilePlan:
    """The same, into a folder with a listing of another bucket."""
    plan = from_s3(folder)
    ReconciledDirectory(plan.out).keep_listing(Listing("others", AWAY, 1, 1))
    return plan


def in_a_lake(folder: Path) -> ReconcilePlan:
    """The same with a catalog that has no inventory."""
    table(folder, "events")
    return replace(an_inventory(folder), inventory=None, lake=lake(folder))


REFUSED: dict[str, tuple[Callable[[Path], ReconcilePlan], str]] = {
    "no inventory": (
        lambda folder: replace(an_inventory(folder), inventory=folder / "landed"), "landed: there is no inventory in it"
    ),
    "of other buckets": (lambda folder: an_inventory(folder, buckets=("x", "y")), "is of x, y only, not of photos"),
    "of another landing": (lambda folder: an_inventory(folder, landing="l2"), "was made of another landing than"),
    "a landing that went": (lambda folder: an_inventory(folder, landed="/none"), "/none/_landing.json: No such file"),
    "no tables": (in_a_lake, r"remora\.inventory: there is none"),
    "no catalog": (lambda folder: replace(in_a_lake(folder), lake=lake(folder / "none")), "there is no such file"),
    "a listing of no form": (lambda folder: listed(folder, "listing.txt"), "is not .parquet, .csv, .json"),
    "a folder without files": (an_empty_folder, "there is no file of a listing in it"),
    "a manifest of no time": (
        lambda folder: a_manifest(folder, creationTimestamp="9" * 400), "is no manifest of S3 Inventory"
    ),
    "a listing to come": (lambda folder: replace(an_inventory(folder), listed_at_us=1 << 52), "which is yet to come"),
    "a manifest of another": (lambda folder: a_manifest(folder, sourceBucket="x"), "is of bucket x, not of photos"),
    "a manifest of no form": (lambda folder: a_manifest(folder, fileFormat="XML"), "fileFormat is XML, not CSV, ORC"),
    "a manifest to come": (lambda folder: a_manifest(folder, creationTimestamp="4102444800000"), "is yet to come"),
    "a file that is not here": (lambda folder: a_manifest(folder, files=[{"key": "a.csv"}]), "a.csv is not here"),
    "a gateway that is away": (from_s3, f"bucket photos at {AWAY}: Could not connect"),
    "no address": (lambda folder: from_s3(folder, "gateway"), "bucket photos at gateway: Invalid endpoint"),
    "a listing of another bucket": (of_another_bucket, "has a listing of bucket others, not of photos"),
}  # fmt: skip


@pytest.mark.parametrize(("made", "why"), REFUSED.values(), ids=REFUSED)
def test_a_comparison_asks_first(made: Callable[[Path], ReconcilePlan], why: str, tmp_path: Path) -> None:
    """Events that are not there, a listing that is none, and a bucket that cannot be listed are told before Spark
    starts."""
    with pytest.raises(ReplayError, match=why):
        reconcile.reconcile(made(tmp_path))


def test_a_bucket_that_is_not_there_is_told(tmp_path: Path) -> None:
    """S3 says so before anything else is done."""
    text = "<Error><Code>NoSuchBucket</Code><Message>there is none</Message></Error>"
    with answering({"/photos": (404, text)}) as url, pytest.raises(ReplayRefused, match=r"NoSuchBucket.*there is none"):
        reconcile.reconcile(from_s3(tmp_path, url.removesuffix("/lake")))


def test_a_folder_that_takes_no_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It, or the one that it is to be made in, is named before a bucket is listed or a topic judged; it is not made."""

    def refused(dir: Path) -> None:  # noqa: A002  # the library's name
        raise OSError(errno.EROFS, "Read-only file system", str(dir / "tmp"))

    monkeypatch.setattr(layout, "TemporaryFile", refused)
    monkeypatch.setattr(replay_verify, "extent", lambda _source: 5)
    verify = ["replay", "verify", "--bootstrap", "h:1", "--topic", "t", "--out", str(tmp_path / "verified")]

    with pytest.raises(ReplayError) as reconciled:
        reconcile.reconcile(from_s3(tmp_path))
    verified = CliRunner().invoke(group, verify).exception

    assert [str(reconciled.value), str(verified)] == [f"{tmp_path}/tmp: Read-only file system"] * 2
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "verified").exists()


LISTS = '<ListVersionsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"></ListVersionsResult>'


def test_an_emission_asks_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket that cannot be looked at and a daemon that is away are told before anything is compared."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    (tmp_path / "listing.csv").write_text("key,size,last_modified\n")
    asked = ["pipeline", "reconcile", "photos", "--backfill", "--listing", str(tmp_path / "listing.csv")]
    asked += ["--out", str(tmp_path / "out"), "--emit", "events", "--ingest", f"unix:{tmp_path}/none.sock"]

    no_bucket = CliRunner().invoke(group, [*asked, "--s3", AWAY]).exception
    with answering({"/photos": (200, LISTS)}) as url:
        no_daemon = CliRunner().invoke(group, [*asked, "--s3", url.removesuffix("/lake")]).exception

    assert str(no_bucket).startswith(f"bucket photos at {AWAY}: Could not connect")
    assert isinstance(no_daemon, ReplayRefused)
    assert "none.sock" in str(no_daemon)


def test_what_is_to_be_sent_is_known_without_spark(tmp_path: Path) -> None:
    """Where nothing has landed since, where it is another landing or an older one, and where the catalog is away."""
    journal = table(tmp_path, "events")
    table(tmp_path, "inventory")
    append(journal, files(journal, event(0)), LandedOffsets(), LandedOffsets(0, {0: 1}, 1))
    directory = ReconciledDirectory(tmp_path / "out")
    found = msgspec.structs.replace(FOUND, landing=str(journal.metadata.table_uuid), batch=0)

    for changed, why in (({"landing": "other"}, "is another landing"), ({"batch": 1}, "0 is the last one now")):
        directory.keep(msgspec.structs.replace(found, **changed))
        with pytest.raises(ReplayRefused, match=why):
            plan_emission(directory.path, lake=lake(tmp_path))
    with pytest.raises(ReplayError, match="the catalog cannot be reached"):
        plan_emission(directory.path, lake=replace(lake(tmp_path), uri=AWAY))
    directory.keep(found)
    plan_emission(directory.path, topic="photos", lake=lake(tmp_path))

    assert read(directory.emit / "plan.json", Planned) == Planned(is_whole=True, batch=0, topic="photos")


def test_an_emission_goes_on_to_the_same_topic(tmp_path: Path) -> None:
    """Findings of which a part may have been sent go to no other topic, but for those that an older remora planned."""
    directory = ReconciledDirectory(tmp_path / "out")
    directory.keep(msgspec.structs.replace(FOUND, landing=None))
    plan_emission(directory.path, topic="photos")

    plan_emission(directory.path, topic="photos")
    with pytest.raises(ReplayRefused, match="out: its events go to topic photos, not to others: compare into a new"):
        plan_emission(directory.path, topic="others")

    write(directory.emit / "plan.json", {"is_whole": True, "batch": 7})
    plan_emission(directory.path, topic="others")


def test_a_file_is_as_old_as_somebody_says(tmp_path: Path) -> None:
    """A time of 1970 is one; without any it is the age of the file."""
    plan = an_inventory(tmp_path)
    assert plan.listing is not None
    os.utime(plan.listing, (7, 7))

    assert reconcile_plan.listed_at_us(plan, plan.listing) == 7_000_000
    assert reconcile_plan.listed_at_us(replace(plan, listed_at_us=0), plan.listing) == 0


def test_a_landing_and_an_inventory_ask_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of another topic, folders of somebody else, and a landing that is not there are told before Spark
    starts."""

    async def identified(_source: object) -> TopicIdentity:
        return TopicIdentity("id", "cluster")

    monkeypatch.setattr(land, "identify", identified)
    monkeypatch.setattr(lake_land, "identify", identified)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/notes").touch()
    LandedDirectory(tmp_path / "landed").bind(tmp_path / "landed/_checkpoint", "other", None, None)
    source = KafkaSource("127.0.0.1:1", "t")

    for out, why in (("theirs", "no landing has made"), ("landed", "holds the events of topic other")):
        with pytest.raises(ReplayRefused, match=why):
            land.land(LandingPlan(source, tmp_path / out, tmp_path / out / "_checkpoint"))
    with pytest.raises(ReplayError, match="the catalog cannot be reached"):
        lake_land.land_in_lake(lake_land.LakePlan(source, replace(lake(tmp_path), uri=AWAY)))
    for landed, out, why in (
        ("none", "out", "nothing has landed there"),
        ("landed", "theirs", "no inventory has made"),
    ):
        with pytest.raises(ReplayRefused, match=why):
            take(InventoryPlan(tmp_path / landed, tmp_path / out))
    with pytest.raises(ReplayRefused, match="there is no such file"):
        lake_inventory.take_in_lake(lake(tmp_path / "none"))


def test_a_dry_run_makes_no_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first landing all records would land, and there is nothing to make an inventory of; neither makes the
    file of the catalog."""
    monkeypatch.setattr(lag, "spans", lambda _source: {0: (2, 7)})
    database = tmp_path / "catalog.db"
    to = ["--table", "iceberg", "--catalog", f"jdbc:sqlite:{database}", "--dry-run"]

    landing = CliRunner().invoke(group, ["pipeline", "land", "--bootstrap", "h:1", "--topic", "t", *to])
    taking = CliRunner().invoke(group, ["pipeline", "inventory", *to])

    assert landing.output.startswith("t: 5 records would land\n")
    assert str(taking.exception) == "remora.events: nothing has landed there"
    assert not database.exists()
