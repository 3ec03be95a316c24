"""Listings as other programs write them: what cannot be is refused by the key that it is told of."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.pipeline.listing import listed_in_file, listed_in_inventory, manifest_of
from remora_pipeline.replay.pipeline.reconcile import reconcile
from remora_pipeline.replay.pipeline.reconcile_plan import ReconcilePlan

pytestmark = pytest.mark.spark

AT = "2026-11-21T02:14:07Z"
HEAD = "key,size,last_modified"


def listing(folder: Path, *rows: str, name: str = "listing.csv") -> Path:
    path = folder / name
    path.write_text("\n".join([*rows, ""]))
    return path


def test_odd_rows_of_a_listing_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A key that is listed twice, no key, a size and a time that are none, and a time that is yet to come, such as one
    in milliseconds, are refused with the file, the key and what is told of it."""
    milliseconds = json.dumps({"key": "k", "size": 1, "last_modified": 1_795_227_247_000})
    odd = {
        f"k,1,{AT}\nk,2,{AT}": "'k': is listed 2 times; of versions, is_latest must tell",
        f",1,{AT}": "'missing': is no key",
        f"k,abc,{AT}": "'k': its size is abc",
        f"k,-1,{AT}": "'k': its size is -1",
        f"k,,{AT}": "'k': its size is missing",
        "k,1,yesterday": "'k': its last_modified is yesterday",
        "k,1,2226-11-21T02:14:07Z": "'k': its last_modified is 2226-11-21T02:14:07Z, which is yet to come",
    }

    for text, reason in odd.items():
        path = listing(tmp_path, HEAD, f"a,1,{AT}", text)
        with pytest.raises(ReplayRefused) as refused:
            listed_in_file(spark, path)
        assert str(refused.value).startswith(f"{path}: {reason}")
    with pytest.raises(ReplayRefused, match="'k': its last_modified is 1795227247000, which is yet to come"):
        listed_in_file(spark, listing(tmp_path, milliseconds, name="listing.json"))


@pytest.mark.parametrize("flag", ["is_latest", "is_delete_marker"])
def test_a_flag_that_is_neither_true_nor_false_is_refused(spark: SparkSession, tmp_path: Path, flag: str) -> None:
    """By the key, with what it is: objects with `is_latest` 1 were left out, so that each was gone from the bucket;
    one without a word is current."""
    rows = (f"plain,1,{AT},", f"old,1,{AT},FALSE", f"odd,1,{AT},1")

    with pytest.raises(ReplayRefused, match=f"'odd': its {flag} is 1, not true or false"):
        listed_in_file(spark, listing(tmp_path, f"{HEAD},{flag}", *rows))

    found = listed_in_file(spark, listing(tmp_path, f"{HEAD},{flag}", *rows[:2])).orderBy("key").collect()
    assert [row.key for row in found] == (["plain"] if flag == "is_latest" else ["old", "plain"])


def test_a_listing_tells_versions_or_none(spark: SparkSession, tmp_path: Path) -> None:
    """Without a column of versions nothing is known of them; with one, an object without is one of a bucket that has
    none."""
    without = listed_in_file(spark, listing(tmp_path, HEAD, f"a,1,{AT}")).collect()
    with_them = listing(tmp_path, f"{HEAD},version_id", f"a,1,{AT},", f"b,1,{AT},v1", name="versions.csv")

    assert [row.version_id for row in without] == [None]
    assert [row.version_id for row in listed_in_file(spark, with_them).orderBy("key").collect()] == ["", "v1"]


def test_a_listing_in_another_encoding_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """CSV with bytes that are no UTF-8 would name other keys; a key with what Spark makes of such is read from Parquet
    and JSON."""
    latin = tmp_path / "listing.csv"
    latin.write_bytes(f"{HEAD}\nH\u00f6he,1,{AT}\n".encode("latin-1"))
    named = {"key": "H\ufffdhe", "size": 1, "last_modified": AT}
    pq.write_table(pa.Table.from_pylist([named]), tmp_path / "listing.parquet")
    as_json = listing(tmp_path, json.dumps(named), name="listing.json")

    with pytest.raises(ReplayRefused, match=r"listing\.csv: 'H.he': its key is not UTF-8, or has U\+FFFD"):
        listed_in_file(spark, latin)

    for path in (tmp_path / "listing.parquet", as_json):
        assert [row.key for row in listed_in_file(spark, path).collect()] == ["H\ufffdhe"]


def test_a_listing_of_any_objects_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """Line ends and a mark as Windows has them, quoted keys, an object of no bytes and one beyond 32 bits, versions of
    which one is current, and delete markers without a size are read as they are."""
    columns = f"\ufeff{HEAD},is_latest,is_delete_marker\r"
    rows = (f'"a,""b"" %2B+",0,{AT},true,false\r', f"old,1,{AT},false,false\r", f"old,3000000000,{AT},TRUE,\r")
    path = listing(tmp_path, columns, *rows, f"gone,,{AT},true,true\r")

    found = listed_in_file(spark, path).orderBy("key").collect()

    assert [(row.key, row.size) for row in found] == [('a,"b" %2B+', 0), ("old", 3_000_000_000)]


def test_the_inventory_of_an_empty_bucket(spark: SparkSession, tmp_path: Path) -> None:
    """An S3 Inventory without files is that of a bucket in which nothing is, whatever its format."""
    for form in ("CSV", "Parquet", "ORC"):
        told: dict[str, object] = {
            "sourceBucket": "b",
            "fileFormat": form,
            "fileSchema": "Bucket, Key",
            "creationTimestamp": "1",
            "files": [],
        }
        path = listing(tmp_path, json.dumps(told), name="manifest.json")

        assert listed_in_inventory(spark, path, manifest_of(path)).collect() == []


def test_a_listing_that_is_yet_to_be_made_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A time of the listing that lies ahead is refused by name, and is not waited for."""
    ahead_us = int((time.time() + 86_400) * 1e6)
    path = listing(tmp_path, HEAD, f"a,1,{AT}")
    plan = ReconcilePlan("b", tmp_path / "out", None, listing=path, listed_at_us=ahead_us)

    with pytest.raises(ReplayRefused, match="which is yet to come: --listed-at"):
        reconcile(plan)


def test_keys_that_are_one_when_they_are_decoded_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """An S3 Inventory that has a key twice, encoded in two ways, is refused by the key."""
    told = {
        "sourceBucket": "b", "fileFormat": "CSV", "fileSchema": "Bucket, Key, Size, LastModifiedDate",
        "creationTimestamp": "1", "files": [{"key": "part.csv"}],
    }  # fmt: skip
    path = listing(tmp_path, json.dumps(told), name="manifest.json")
    listing(tmp_path, f'"b","a+c","1","{AT}"', f'"b","a%20c","2","{AT}"', name="part.csv")

    with pytest.raises(ReplayRefused, match="'a c': is listed 2 times"):
        listed_in_inventory(spark, path, manifest_of(path))


def test_keys_of_any_type_are_texts(spark: SparkSession, tmp_path: Path) -> None:
    """Keys that a program has written as bytes, and numbers in lines of JSON, are the keys that they show."""
    at = datetime(2026, 11, 21, tzinfo=UTC)
    pq.write_table(
        pa.table({"key": pa.array([b"a "], pa.binary()), "size": [1], "last_modified": [at]}), tmp_path / "l.parquet"
    )
    numbers = listing(tmp_path, json.dumps({"key": 7, "size": 1, "last_modified": AT}), name="listing.json")

    found = [listed_in_file(spark, each) for each in (tmp_path / "l.parquet", numbers)]

    assert [each.schema["key"].dataType for each in found] == [StringType()] * 2
    assert [row.key for each in found for row in each.collect()] == ["a ", "7"]
