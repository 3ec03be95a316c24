"""A bucket's current objects by ListObjectVersions: ranges of keys, which tasks list side by side.

A range is what lies behind one key up to another one, so that no key is in two of them or in none, whatever keys look
like. Their bounds are common prefixes that the driver finds with one delimiter: at most MOST_RANGES of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any

import botocore.exceptions as errors
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from remora_pipeline.replay.errors import ReplayError, ReplayRefused
from remora_pipeline.replay.pipeline.emit import Look, ObjectNow, ObjectRefused
from remora_pipeline.replay.pipeline.findings import LISTED
from remora_pipeline.replay.run.targets.s3 import Gateway, s3_client

MOST_RANGES = 256
_GONE = frozenset({"404", "NoSuchKey", "NotFound"})
_HIDDEN = frozenset({400, 403})
"""Answers of S3 for an object that is encrypted with a key of its client's, and for one of another account."""
_ARROW = to_arrow_schema(LISTED, timezone="UTC")
_RANGE = "after string, upto string"


def s3_reader(gateway: Gateway, connections: int = 4) -> AbstractAsyncContextManager[Any]:
    """A client that tries again by itself: it only reads."""
    return s3_client(gateway, connections, retries={"total_max_attempts": 8, "mode": "standard"})


def see_bucket(gateway: Gateway, bucket: str) -> None:
    """Raise ReplayRefused where S3 does not list a bucket."""

    async def ask() -> None:
        async with s3_client(gateway, 1, retries={"total_max_attempts": 2, "mode": "standard"}) as client:
            await client.list_object_versions(Bucket=bucket, MaxKeys=1)

    try:
        asyncio.run(ask())
    except (errors.ClientError, errors.BotoCoreError, ValueError) as exc:
        raise ReplayRefused(f"bucket {bucket} at {gateway.url}: {exc}") from exc


def listed_by_s3(spark: SparkSession, gateway: Gateway, bucket: str) -> DataFrame:
    """The current objects of a bucket. Raises ReplayRefused where S3 refuses it."""
    bounds = asyncio.run(_bounds(gateway, bucket))
    ranges = list(zip(["", *bounds], [*bounds, ""], strict=True))  # an empty text is no bound

    def listed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for one in batch.to_pylist():
                yield from _blocking(gateway, bucket, one["after"], one["upto"])

    return spark.createDataFrame(ranges, _RANGE).repartition(len(ranges), "after").mapInArrow(listed, LISTED)


async def _bounds(gateway: Gateway, bucket: str) -> list[str]:
    """Common prefixes of a bucket's keys, the first of them where there are many."""
    found: list[str] = []
    try:
        async with s3_reader(gateway) as client:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Delimiter="/")
            async for page in pages:
                found += [each["Prefix"] for each in page.get("CommonPrefixes", ())]
                if len(found) >= MOST_RANGES:
                    break
    except (errors.ClientError, errors.BotoCoreError) as exc:
        raise ReplayRefused(f"bucket {bucket} at {gateway.url}: {exc}") from exc
    return sorted(found[: MOST_RANGES - 1], key=str.encode)


def _blocking(gateway: Gateway, bucket: str, after: str, upto: str) -> Iterator[pa.RecordBatch]:
    """The batches of a range, each made when it is asked for."""
    with asyncio.Runner() as runner:
        pages = _pages(gateway, bucket, after, upto)
        try:
            while (rows := runner.run(_next(pages))) is not None:
                columns = zip(*rows, strict=True) if rows else [[] for _ in LISTED]
                arrays = [pa.array(list(each), field.type) for each, field in zip(columns, _ARROW, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=_ARROW)
        finally:
            runner.run(pages.aclose())  # type: ignore[attr-defined]  # it is a generator


async def _next(pages: AsyncIterator[list[tuple[Any, ...]]]) -> list[tuple[Any, ...]] | None:
    return await anext(pages, None)


async def _pages(gateway: Gateway, bucket: str, after: str, upto: str) -> AsyncIterator[list[tuple[Any, ...]]]:
    asked = {"Bucket": bucket} | ({"KeyMarker": after} if after else {})
    end = upto.encode()
    try:
        async with s3_reader(gateway) as client:
            async for page in client.get_paginator("list_object_versions").paginate(**asked):
                versions = page.get("Versions", ())
                current = (each for each in versions if each.get("IsLatest", True))
                yield [_row(each) for each in current if not end or each["Key"].encode() <= end]
                last = max((each["Key"].encode() for each in (*versions, *page.get("DeleteMarkers", ()))), default=b"")
                if end and last > end:
                    return
    except (errors.ClientError, errors.BotoCoreError) as exc:
        raise ReplayError(f"bucket {bucket} at {gateway.url}: {exc}") from exc


def _row(version: dict[str, Any]) -> tuple[str, str, int, str | None, datetime]:
    """What is listed of an object; stores that know no versions may tell none, and some no ETag."""
    told = version.get("VersionId", ""), version["Size"], version.get("ETag")
    return version["Key"], *told, version["LastModified"]


def looking(client: Any, gateway: Gateway, bucket: str) -> Look:
    """Looks at objects of a bucket. Raises ObjectRefused where S3 does not show one, and ReplayError where it does not
    answer for it."""

    async def look(key: str) -> ObjectNow | None:
        try:
            head = await client.head_object(Bucket=bucket, Key=key)
        except errors.ClientError as exc:
            if exc.response.get("Error", {}).get("Code") in _GONE:
                return None
            status = exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            kind = ObjectRefused if status in _HIDDEN else ReplayError
            raise kind(f"{bucket}/{key} at {gateway.url}: {exc}") from exc
        except errors.BotoCoreError as exc:
            raise ReplayError(f"{bucket}/{key} at {gateway.url}: {exc}") from exc
        return ObjectNow(
            size=head["ContentLength"],
            etag=head.get("ETag", "").strip('"'),
            version_id=head.get("VersionId", ""),
            modified_us=int(head["LastModified"].timestamp() * 1_000_000),
            metadata=head.get("Metadata", {}),
        )

    return look
