"""What is in a bucket, as columns findings.LISTED: from S3 itself, from a file, or from an S3 Inventory."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.paths import pattern
from remora_pipeline.replay.pipeline.findings import LISTED
from remora_pipeline.replay.prepare.sources import found as files_of
from remora_pipeline.replay.prepare.sources import head

_NAMES = {
    "key": ("key",),
    "version_id": ("version_id", "versionid"),
    "size": ("size",),
    "etag": ("etag", "e_tag"),
    "last_modified": ("last_modified", "lastmodified", "last_modified_date", "lastmodifieddate"),
    "is_latest": ("is_latest", "islatest"),
    "is_delete_marker": ("is_delete_marker", "isdeletemarker"),
}
"""What columns are called, in small letters: by us, by S3's API and by S3 Inventory."""

_NEEDED = ("key", "size", "last_modified")
_FLAGS = ("is_latest", "is_delete_marker")
_FORMATS = ("CSV", "ORC", "Parquet")
_AHEAD = timedelta(days=1)
"""By how much clocks may differ."""


class Manifest(NamedTuple):
    """An S3 Inventory: its files as they lie here, their format and columns, and when it was made."""

    bucket: str
    format: str
    columns: tuple[str, ...]
    files: tuple[Path, ...]
    made_us: int


def form_of(path: Path) -> str:
    """The form of a listing, by its name: csv, json or parquet. Raises ReplayRefused for any other, and for a folder in
    which nothing is that Spark would read."""
    if path.is_dir() and not any(each.is_file() and each.name[0] not in "._" for each in path.rglob("*")):
        raise ReplayRefused(f"{path}: there is no file of a listing in it")
    name = path.name.removesuffix(".gz").removesuffix(".zst").removesuffix(".bz2")
    if name.endswith(".csv"):
        return "csv"
    if name.endswith((".json", ".ndjson", ".jsonl")):
        return "json"
    if name.endswith(".parquet") or path.is_dir():
        return "parquet"
    raise ReplayRefused(f"{path}: is not .parquet, .csv, .json, .ndjson or .jsonl, nor a folder of Parquet")


def see_listing(path: Path) -> None:
    """Raise ReplayRefused for a listing of no form, and, as far as it begins so, for one that is none: a file that
    cannot be read, one without the columns that are needed, and JSON that is no line of an object."""
    form = form_of(path)
    if form == "parquet":
        try:
            _refuse_lacking(ds.dataset(path, format="parquet").schema.names, str(path))
        except (OSError, pa.ArrowException) as exc:
            raise ReplayRefused(f"{path}: {str(exc).partition(chr(10))[0]}") from exc
        return
    begin = head(files_of([path])[0]).split(b"\n", 1)[0]
    if form == "csv":
        names = next(csv.reader([begin.decode(errors="replace").strip()]), [])
        _refuse_lacking(names, str(path))
    elif begin.strip():
        try:
            msgspec.json.decode(begin, type=dict[str, object])
        except (ValueError, RecursionError) as exc:
            raise ReplayRefused(f"{path}: its first line is no object of JSON: {exc}") from exc


def listed_in_file(spark: SparkSession, path: Path) -> DataFrame:
    """A listing in a file or folder: Parquet, CSV with a head, or JSON lines, by its name; also compressed."""
    match form := form_of(path):
        case "csv":
            reader = spark.read.option("header", "true").option("mode", "FAILFAST").option("escape", '"')
            found = reader.csv(pattern(path))
        case "json":
            found = spark.read.option("mode", "FAILFAST").json(pattern(path))
        case _:
            found = spark.read.parquet(pattern(path))
    return _current(found, str(path), is_encoded=False, is_csv=form == "csv")


def listed_in_inventory(spark: SparkSession, path: Path, manifest: Manifest) -> DataFrame:
    """The objects of an S3 Inventory; of a bucket in which nothing is it has no files."""
    if not manifest.files:
        return spark.createDataFrame([], LISTED)
    files = [pattern(file) for file in manifest.files]
    match manifest.format:
        case "CSV":
            columns = ", ".join(f"`{name}` string" for name in manifest.columns)
            found = spark.read.schema(columns).option("escape", '"').option("mode", "FAILFAST").csv(files)
        case "Parquet":
            found = spark.read.parquet(*files)
        case _:
            found = spark.read.orc(files)
    if found.columns and "bucket" in {name.lower() for name in found.columns}:
        found = found.where(F.col("bucket") == manifest.bucket)
    is_csv = manifest.format == "CSV"
    return _current(found, str(path), is_encoded=is_csv, is_csv=is_csv)


def manifest_of(path: Path) -> Manifest:
    """What a manifest.json names, where its files lie beside it as S3 has laid them. Raises ReplayRefused."""
    try:
        told: Mapping[str, Any] = json.loads(path.read_bytes())
        made = datetime.fromtimestamp(int(told["creationTimestamp"]) / 1000, UTC)
        schema, kind = str(told["fileSchema"]), str(told["fileFormat"])
        files = tuple(_beside(path, str(each["key"])) for each in told["files"])
        bucket = str(told["sourceBucket"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as exc:
        raise ReplayRefused(f"{path}: is no manifest of S3 Inventory: {exc!r}") from exc
    if kind not in _FORMATS:
        raise ReplayRefused(f"{path}: fileFormat is {kind}, not CSV, ORC or Parquet")
    columns = tuple(name.strip() for name in schema.split(",")) if kind == "CSV" else ()
    if files and columns:
        _refuse_lacking(columns, str(path))
    return Manifest(bucket, kind, columns, files, int(made.timestamp() * 1_000_000))


def _beside(manifest: Path, key: str) -> Path:
    """A file of a manifest: at its key below one of the folders above, or in `data` beside."""
    for folder in manifest.resolve().parents:
        for candidate in (folder / key, folder / "data" / Path(key).name):
            if candidate.is_file():
                return candidate
    raise ReplayRefused(f"{manifest}: its file {key} is not here; copy the inventory with its folders")


def _current(found: DataFrame, what: str, *, is_encoded: bool, is_csv: bool) -> DataFrame:
    """The current objects among listed versions, whatever their columns are called. Raises ReplayRefused."""
    there = {name.lower(): name for name in found.columns}
    columns = {ours: F.col(f"`{there[name]}`") for ours, names in _NAMES.items() for name in names if name in there}
    _refuse_lacking(found.columns, what)
    flags = {name: F.lower(_or_null(columns, name).cast("string")) for name in _FLAGS}
    # Without a word an object is the current one, as with stores that know no versions.
    is_current = F.coalesce(flags["is_latest"] != "false", F.lit(True))
    is_current &= F.coalesce(flags["is_delete_marker"] != "true", F.lit(True))
    # Where a listing tells versions, none is that of a bucket without them.
    version = F.coalesce(columns["version_id"].cast("string"), F.lit("")) if "version_id" in columns else F.lit(None)
    told_key = columns["key"].cast("string")  # some programs write bytes, or numbers where all keys are some
    key = F.try_url_decode(told_key) if is_encoded else told_key
    listed = found.where(is_current).select(
        key.alias("key"),
        version.cast("string").alias("version_id"),
        columns["size"].try_cast("long").alias("size"),
        _or_null(columns, "etag").cast("string").alias("etag"),
        columns["last_modified"].try_cast("timestamp").alias("last_modified"),
        *[columns[name].cast("string").alias(f"told_{name}") for name in _NEEDED],
        *[flag.alias(f"told_{name}") for name, flag in flags.items()],
    )
    _refuse_odd(listed, what, is_csv=is_csv)
    return listed.select(*LISTED.names)


def _refuse_lacking(names: Sequence[str], what: str) -> None:
    """Raise ReplayRefused for columns among which one is not that is needed."""
    there = {name.lower() for name in names}
    if lacking := [ours for ours in _NEEDED if there.isdisjoint(_NAMES[ours])]:
        raise ReplayRefused(f"{what}: has no column {' and no '.join(lacking)}; it has {', '.join(names)}")


def _refuse_odd(listed: DataFrame, what: str, *, is_csv: bool) -> None:
    """Raise ReplayRefused with a key that is listed twice, or of which something cannot be as it is told.

    Else it would be sent twice, or be left out as one that changes. Of bytes in CSV that are no UTF-8 Spark makes
    U+FFFD without a word: another key, which is missing, beside the right one, which is extra.
    """
    told = {name: F.coalesce(f"told_{name}", F.lit("missing")) for name in _NEEDED}
    latest = F.lit(datetime.now(UTC) + _AHEAD)
    reason = (
        F.when(F.coalesce(F.length("key"), F.lit(0)) == 0, F.lit("is no key"))
        .when(F.lit(is_csv) & F.col("told_key").contains("\ufffd"), F.lit("its key is not UTF-8, or has U+FFFD"))
        .when(F.coalesce(F.col("size"), F.lit(-1)) < 0, F.concat(F.lit("its size is "), told["size"]))
        .when(F.col("last_modified").isNull(), F.concat(F.lit("its last_modified is "), told["last_modified"]))
        .when(
            F.col("last_modified") > latest,
            F.concat(F.lit("its last_modified is "), told["last_modified"], F.lit(", which is yet to come")),
        )
    )
    for name in _FLAGS:
        flag = F.col(f"told_{name}")
        reason = reason.when(
            ~flag.isin("true", "false"), F.concat(F.lit(f"its {name} is "), flag, F.lit(", not true or false"))
        )
    # By the key itself: two that are encoded differently may be one.
    counted = listed.select(F.coalesce("key", told["key"]).alias("told"), reason.alias("reason")).groupBy("told")
    by_key = counted.agg(F.count(F.lit(1)).alias("rows"), F.min("reason").alias("reason"))
    odd = by_key.where("rows > 1 or reason is not null").select("told", "rows", "reason").head()
    if odd is not None:
        twice = f"is listed {odd.rows} times; of versions, is_latest must tell which one is current"
        raise ReplayRefused(f"{what}: {odd.told!r}: {odd.reason or twice}")


def _or_null(columns: Mapping[str, Column], name: str) -> Column:
    return columns.get(name, F.lit(None))
