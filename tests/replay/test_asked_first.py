"""What the jobs of the pipeline find wrong before they start Spark."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from pyiceberg.table import Table

from remora.cli import group
from remora_pipeline.cli import replay_prepare, replay_run, replay_verify
from remora_pipeline.replay import layout
from remora_pipeline.replay.errors import ReplayError, ReplayRefused
from remora_pipeline.replay.kafka_source import KafkaSource
from remora_pipeline.replay.layout import read, write
from remora_pipeline.replay.pipeline import inventory, land, reconcile, reconcile_plan
from remora_pipeline.replay.pipeline.directory import Commit, LandedDirectory, Landing
from remora_pipeline.replay.pipeline.emit import Planned
from remora_pipeline.replay.pipeline.iceberg import inventory as lake_inventory
from remora_pipeline.replay.pipeline.iceberg import lag
from remora_pipeline.replay.pipeline.iceberg import land as lake_land
from remora_pipeline.replay.pipeline.iceberg.catalog import made
from remora_pipeline.replay.pipeline.iceberg.commits import LandedOffsets, append, landed_in
from remora_pipeline.replay.pipeline.iceberg.tables import FORMS
from remora_pipeline.replay.pipeline.inventory import InventoryPlan, take
from remora_pipeline.replay.pipeline.land import LandingPlan
from remora_pipeline.replay.pipeline.reconcile import plan_emission
from remora_pipeline.replay.pipeline.reconcile_plan import ReconcilePlan
from remora_pipeline.replay.pipeline.reconciliation import Listing, ReconciledDirectory
from remora_pipeline.replay.pipeline.snapshots import Inventory
from remora_pipeline.replay.run.targets.s3 import Gateway
from remora_pipeline.replay.topic_identity import TopicIdentity
from remora_pipeline.replay.verify import first_look, kafka
from remora_pipeline.replay.verify.judgement import VerdictRules
from remora_pipeline.replay.verify.kafka import FreezeWait, Frozen
from remora_pipeline.replay.verify.question import JudgedWindow, Question
from replay.lakes import event, files, lake, table
from replay.prepared import Wanted, prepare
from replay.sample import SAMPLE
from replay.test_lake_addresses import answering
from replay.test_reconcile_cli import FOUND

AWAY = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts Spark fails."""

    def started(*_: object, **__: object) -> None:
        pytest.fail("Spark is started")

    for job in (reconcile, land, inventory, lake_land, lake_inventory, replay_verify, replay_run, replay_prepare):
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


def a_table(folder: Path, text: str) -> ReconcilePlan:
    """The same with a listing of this text."""
    plan = an_inventory(folder)
    assert plan.listing is not None
    plan.listing.write_text(text)
    return plan


def files_without_sizes(folder: Path) -> ReconcilePlan:
    """The same with an S3 Inventory whose files have no sizes."""
    (folder / "a.csv").touch()
    return a_manifest(folder, files=[{"key": "a.csv"}])


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
    "a listing without times": (
        lambda folder: a_table(folder, "\ufeffKey,Size\r\nk,1\r\n"), "has no column last_modified; it has Key, Size"
    ),
    "a listing of nothing": (lambda folder: a_table(folder, ""), "has no column key and no size and no last_modified"),
    "files without sizes": (files_without_sizes, "has no column size and no last_modified; it has Bucket, Key"),
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
    starts, and no folder is left behind."""
    plan = made(tmp_path)
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(ReplayError, match=why):
        reconcile.reconcile(plan)

    assert sorted(tmp_path.rglob("*")) == before


def test_a_bucket_that_is_not_there_is_told(tmp_path: Path) -> None:
    """S3 says so before anything else is done."""
    text = "<Error><Code>NoSuchBucket</Code><Message>there is none</Message></Error>"
    with answering({"/photos": (404, text)}) as url, pytest.raises(ReplayRefused, match=r"NoSuchBucket.*there is none"):
        reconcile.reconcile(from_s3(tmp_path, url.removesuffix("/lake")))


def test_a_folder_that_takes_no_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It, or the one that it is to be made in, is named before the bucket is listed, a topic is judged, a trace is sent
    or logs are read, and is not made."""

    def refused(dir: Path) -> None:  # noqa: A002  # the library's name
        raise OSError(errno.EROFS, "Read-only file system", str(dir / "tmp"))

    monkeypatch.setattr(layout, "TemporaryFile", refused)
    monkeypatch.setattr(replay_verify, "see_topics", lambda _question: 5)
    trace = prepare(tmp_path / "trace", [Wanted(0, "PUT", "k")]).path
    commands = (
        ["verify", "--bootstrap", "h:1", "--topic", "t", "--out", str(tmp_path / "verified")],
        ["run", str(trace), "--null", "--out", str(tmp_path / "run")],
        ["prepare", str(SAMPLE), "--out", str(tmp_path / "other")],
    )

    with pytest.raises(ReplayError) as reconciled:
        reconcile.reconcile(an_inventory(tmp_path))
    told = [str(CliRunner().invoke(group, ["replay", *command]).exception) for command in commands]

    assert [str(reconciled.value), *told] == [f"{tmp_path}/tmp: Read-only file system"] * 4
    assert [each for each in ("out", "verified", "run", "other") if (tmp_path / each).exists()] == []


def test_a_folder_that_is_looked_at_is_left_as_it_was(tmp_path: Path) -> None:
    """One that was not there is not there afterwards, and one with something in it keeps that."""
    layout.see_folder(tmp_path / "a/b")
    (tmp_path / "c").mkdir()
    layout.see_folder(tmp_path / "c")

    assert sorted(tmp_path.rglob("*")) == [tmp_path / "c"]


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
    """What may have been sent in part goes to no other topic, unless an older remora has planned it."""
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
    dry = CliRunner().invoke(
        group, ["pipeline", "inventory", f"{tmp_path}/theirs", "--out", f"{tmp_path}/o", "--dry-run"]
    )
    assert str(dry.exception) == f"{tmp_path}/theirs: nothing has landed there (no _landing.json)"
    with pytest.raises(ReplayRefused, match="there is no such file"):
        lake_inventory.take_in_lake(lake(tmp_path / "none"))


async def identified(_source: object) -> TopicIdentity:
    """Whose records land."""
    return TopicIdentity("id", "cluster")


OWN = {"remora.topic": "t", "remora.topic-id": "id", "remora.cluster": "cluster"}


def landed_up_to(folder: Path, end: int) -> Table:
    """A journal in which the records of a partition before an offset have landed."""
    address = lake(folder)
    catalog = address.connected()
    made(catalog, address, "bad", FORMS["bad"], OWN)
    journal = made(catalog, address, "events", FORMS["events"], OWN)
    append(journal, files(journal, event(0)), LandedOffsets(), LandedOffsets(0, {0: end}, 1))
    return journal


def test_a_landing_of_nothing_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all has landed no Spark is needed, and where records are gone that have not landed it is told without."""
    monkeypatch.setattr(lake_land, "identify", identified)
    landed_up_to(tmp_path, 5)
    plan = lake_land.LakePlan(KafkaSource("127.0.0.1:1", "t"), lake(tmp_path))
    spans = {0: (2, 5)}
    monkeypatch.setattr(lake_land, "spans", lambda *_: spans)

    before, after = lake_land.land_in_lake(plan)

    assert (before.batch, before) == (0, after)
    spans[0] = (7, 9)
    with pytest.raises(ReplayRefused, match="lands with --skip-lost: partition 0 offsets 5 to 6"):
        lake_land.land_in_lake(plan)


def test_a_landing_into_a_folder_tells_at_once_what_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the checkpoint of the last batch, before Spark starts."""
    monkeypatch.setattr(land, "identify", identified)
    monkeypatch.setattr(land, "beginnings", lambda *_: {0: 7, 1: 3})
    directory = LandedDirectory(tmp_path / "landed")
    checkpoint = directory.path / "_checkpoint"
    directory.bind(checkpoint, "t", "id", "cluster")
    write(directory.path / "_commit.json", Commit(4, 1))
    (checkpoint / "offsets").mkdir()
    (checkpoint / "offsets/4").write_text('v1\n{}\n{"t":{"0":5,"1":3}}')

    with pytest.raises(ReplayRefused, match=r"topic t: records that have not landed are gone; .* offsets 5 to 6"):
        land.land(LandingPlan(KafkaSource("127.0.0.1:1", "t"), directory.path, checkpoint))


@pytest.mark.parametrize("said", ["{", "[]", '{"batch": "x"}', "[" * 100_000], ids=lambda each: each[:9])
def test_what_another_program_says_of_a_landing_is_refused(said: str, tmp_path: Path) -> None:
    """A snapshot that says what has landed in no way of remora's is told with its table."""
    journal = landed_up_to(tmp_path, 5)
    journal.append(journal.scan().to_arrow(), snapshot_properties={"remora.landed": said, "remora.inventory": said})

    with pytest.raises(ReplayRefused, match=r"remora\.events: a snapshot does not say what has landed as remora does"):
        landed_in(journal)


def test_topics_are_looked_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the dead letters, and the offsets of an earlier verdict, before Spark starts."""
    asked: list[object] = []

    def extent(source: KafkaSource) -> int:
        if source.topic == "none":
            raise ReplayRefused("topic none: there is none of this name")
        return 5

    monkeypatch.setattr(first_look, "extent", extent)
    monkeypatch.setattr(kafka, "recall", lambda *given: asked.append(given[1]))
    recalled = Frozen({0: (0, 5)}, True)
    rules = VerdictRules("fail", "fail", 5000, 0.1)
    window, patience = JudgedWindow(None, None, 0), FreezeWait(0, 0, 0)
    question = Question(KafkaSource("h:1", "t"), window, patience, recalled, "none", rules)

    with pytest.raises(ReplayRefused, match="topic none: there is none"):
        first_look.see_topics(question)

    assert first_look.see_topics(replace(question, letters="t")) == 5
    assert asked == [recalled, recalled]


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


NO_EVENTS = "remora.events: there is none; `remora pipeline land` makes it"
READING: dict[str, tuple[list[str], str]] = {
    "inventory": (["inventory", "--table", "iceberg"], "remora.events: nothing has landed there"),
    "inventory, dry": (["inventory", "--table", "iceberg", "--dry-run"], "remora.events: nothing has landed there"),
    "reconcile": (["reconcile", "photos"], NO_EVENTS),
    "maintain": (["maintain"], NO_EVENTS),
}


@pytest.mark.parametrize("content", ["", "create table theirs (a)"], ids=["empty", "of others"])
@pytest.mark.parametrize(("command", "why"), READING.values(), ids=READING)
def test_a_database_without_a_catalog_stays_so(command: list[str], why: str, content: str, tmp_path: Path) -> None:
    """A command that reads tables names the one that is not there, and makes none: not even those of a catalog."""
    database = tmp_path / "catalog.db"
    database.touch()
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(content)
    listing = tmp_path / "listing.csv"
    listing.write_text("key,size,last_modified\n")
    before = database.read_bytes()
    argv = [*command, "--catalog", f"jdbc:sqlite:{database}", "--warehouse", f"file://{tmp_path}/warehouse"]
    if command[0] == "reconcile":
        argv += ["--listing", str(listing), "--out", str(tmp_path / "out")]

    said = str(CliRunner().invoke(group, ["pipeline", *argv]).exception)

    assert said == why
    assert database.read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["catalog.db", "listing.csv"]


def test_a_catalog_of_rest_without_a_namespace_names_the_table(tmp_path: Path) -> None:
    """One that calls the namespace missing, too."""
    none = json.dumps({"error": {"message": "there is none", "type": "NoSuchNamespaceException", "code": 404}})
    answers = {"/v1/config": (200, "{}"), "/namespaces/remora/tables/events": (404, none)}
    with answering(answers) as url:
        plan = replace(an_inventory(tmp_path), inventory=None, lake=replace(lake(tmp_path), uri=url))
        with pytest.raises(ReplayRefused, match=r"^remora\.events: there is none; `remora pipeline land` makes it$"):
            reconcile.reconcile(plan)
