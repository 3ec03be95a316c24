"""`remora pipeline reconcile`, without Spark: what it refuses, and what it says of a finished reconcile."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from remora.cli import group
from remora_pipeline.cli import pipeline_reconcile
from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.pipeline.reconcile import reconcile
from remora_pipeline.replay.pipeline.reconcile_plan import ReconcilePlan, at_time
from remora_pipeline.replay.pipeline.reconciled_page import page_of
from remora_pipeline.replay.pipeline.reconciliation import VERSION, Reconcile, ReconciledDirectory, ReconcileFinding

FOUND = Reconcile(
    version=VERSION,
    id="reconcile-1",
    bucket="photos",
    tenant="",
    source="http://gateway:8000",
    landed="/srv/landed",
    landing="l1",
    batch=7,
    begun_us=1_795_227_247_000_000,
    ended_us=1_795_227_249_000_000,
    grace_us=300_000_000,
    listed=8,
    told=7,
    counts={"missing": 2, "extra": 1, "differing": 3, "changing": 3},
    examples=(ReconcileFinding("missing", "a<b>\n", (), "2026-11-21 02:14:07Z, 7 bytes, e1", ""),),
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with an inventory and a listing, and without credentials."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    Path("inventory").mkdir()
    Path("listing.csv").touch()


def asked(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(group, ["pipeline", "reconcile", "photos", "--out", "out", *arguments])
    if isinstance(result.exception, ReplayRefused):
        return 1, str(result.exception)
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--s3", "http://g"], "one of --inventory, --catalog and --backfill"),
        (
            ["--backfill", "--inventory", "inventory", "--listing", "listing.csv"],
            "one of --inventory, --catalog and --backfill",
        ),
        (["--backfill"], "one of --s3, --listing and --s3-inventory"),
        (["--backfill", "--listing", "listing.csv", "--s3-inventory", "listing.csv"], "exclude each other"),
        (["--backfill", "--listing", "listing.csv", "--emit", "t"], "--emit needs --s3"),
        (["--backfill", "--s3", "http://g"], "--s3 needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        (["--backfill", "--listing", "listing.csv", "--listed-at", "noon"], "'noon' is not a time"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(arguments: list[str], why: str) -> None:
    """Each with exit code 2 and what is missing or too much."""
    code, output = asked(*arguments)

    assert code == 2
    assert why in " ".join(output.split())


def test_what_was_found_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With counts and exit code 3 where something differs, 0 where all agrees; as JSON the same as in its file."""
    monkeypatch.setattr(pipeline_reconcile, "run", lambda _plan, **_: FOUND)

    code, output = asked("--backfill", "--listing", "listing.csv")
    as_json = asked("--backfill", "--listing", "listing.csv", "--json")

    assert code == 3
    assert output.startswith("FAIL  photos: 2 missing, 1 extra, 3 differing, of 8 objects in the bucket\n")
    assert "left out, as changing  3\n" in output
    assert (as_json[0], json.loads(as_json[1])["counts"]) == (3, FOUND.counts)
    monkeypatch.setattr(pipeline_reconcile, "run", lambda _plan, **_: replace(FOUND, counts=CLEAN))
    assert asked("--backfill", "--listing", "listing.csv")[0] == 0


def test_a_folder_that_has_a_result_is_refused() -> None:
    """By name, with the time of its listing: it was told as if it had been found now. What it found can be sent, but
    not as what another listing, or other events, would show."""
    made = replace(FOUND, source="listing.csv")
    ReconciledDirectory(Path("out")).keep(made)
    again = ReconcilePlan("photos", Path("out"), inventory=Path("inventory"), listing=Path("listing.csv"), goes_on=True)
    others = {
        "another listing": dataclasses.replace(again, listing=Path("tuesday.csv")),
        "a comparison with events": dataclasses.replace(again, inventory=None),
    }

    code, output = asked("--inventory", "inventory", "--listing", "listing.csv")

    what = f"the result of {at_time(made.ended_us)}"
    why = f"out: has {what} already: compare into a new folder, or send what was found with --emit"
    assert (code, output) == (1, why)
    assert reconcile(again) == made
    for what, plan in others.items():
        with pytest.raises(ReplayRefused, match=f"out: has the result of {what}.*: compare into a new folder"):
            reconcile(plan)


CLEAN = {"missing": 0, "extra": 0, "differing": 0, "changing": 3}


def test_folders_of_others_are_refused() -> None:
    """Another bucket's, a later version's, and one with other files, by their names."""
    directory = ReconciledDirectory(Path("out"))
    Path("out").mkdir()
    Path("out/notes.txt").touch()
    assert asked("--backfill", "--listing", "listing.csv") == (
        1,
        "out: there are files in it that no reconcile has made, as notes.txt",
    )
    directory.keep(replace(FOUND, bucket="others"))
    assert asked("--backfill", "--listing", "listing.csv") == (
        1,
        "out: is the reconcile of bucket others, not of photos",
    )
    directory.keep(replace(FOUND, version=2))
    assert (
        asked("--backfill", "--listing", "listing.csv")[1] == "out/reconcile.json: has version 2; this remora knows 1"
    )


def test_one_process_compares_and_sends_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one does, another one is refused, to compare as well as to send, and nothing is sent twice."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setattr(pipeline_reconcile, "_ask_before_sending", lambda *_: None)
    monkeypatch.setattr(pipeline_reconcile, "plan_emission", lambda *_, **__: pytest.fail("it is sent"))
    monkeypatch.setattr("remora_pipeline.replay.pipeline.reconcile.session", lambda *_, **__: pytest.fail("compared"))
    Path("listing.csv").write_text("key,size,last_modified\n")
    directory = ReconciledDirectory(Path("out"))
    why = "out: another process compares or sends there"

    with directory.locked():
        assert asked("--backfill", "--listing", "listing.csv") == (1, why)
        directory.keep(replace(FOUND, source="listing.csv", landing=None))
        assert asked("--backfill", "--listing", "listing.csv", "--s3", "http://g", "--emit", "t") == (1, why)


def test_a_folder_is_ones_own_wherever_its_reconcile_was_killed() -> None:
    """What is left where it ends within the writing of one of its files is none of others."""
    directory = ReconciledDirectory(Path("out"))
    with directory.locked():
        for name in ("listing.json.partial", "reconcile.json.partial"):
            Path("out", name).touch()

    directory.refuse_others()


def test_the_page_shows_names_as_they_are() -> None:
    """Keys are texts of others: nothing in them becomes a part of the page, and what does not print is shown."""
    page = page_of(FOUND)

    assert "a&lt;b&gt;\\n" in page
    assert "2 missing, 1 extra, 3 differing" in page
    assert "http" not in page.replace("http://gateway:8000", "")


def test_a_bucket_has_a_name() -> None:
    """An empty one, as of a variable that is not set, is wrong usage."""
    asking = ["pipeline", "reconcile", "", "--out", "out", "--backfill", "--listing", "listing.csv"]

    result = CliRunner().invoke(group, asking)

    assert result.exit_code == 2
    assert "BUCKET is empty" in result.output
