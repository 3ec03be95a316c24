"""Buckets of stores that tell less than S3 does."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from remora_pipeline.replay.errors import ReplayError
from remora_pipeline.replay.pipeline.emit import ObjectNow, ObjectRefused
from remora_pipeline.replay.pipeline.s3_objects import _blocking, looking, s3_reader
from remora_pipeline.replay.run.targets.s3 import Gateway
from replay.test_lake_addresses import answering

AT = datetime(2026, 11, 21, 2, 14, 7, tzinfo=UTC)
LISTS = """<ListVersionsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Version><Key>a</Key><Size>1</Size>
<LastModified>2026-11-21T02:14:07Z</LastModified></Version><Version><Key>b</Key><Size>2</Size><IsLatest>false</IsLatest>
<LastModified>2026-11-21T02:14:07Z</LastModified></Version></ListVersionsResult>"""


def gateway(url: str) -> Gateway:
    """The server as a gateway of S3."""
    return Gateway(url.removesuffix("/lake"), "", "access", "secret", "")


def test_a_store_without_versions_is_listed() -> None:
    """An object without version, ETag and a word whether it is the latest is a current one."""
    with answering({"/photos": (200, LISTS)}) as url:
        found = pa.Table.from_batches(_blocking(gateway(url), "photos", "", "")).to_pylist()

    assert found == [{"key": "a", "version_id": "", "size": 1, "etag": None, "last_modified": AT}]


def test_an_object_without_an_etag_is_looked_at() -> None:
    """The other things that a store tells of it are known."""

    async def seen(url: str) -> ObjectNow | None:
        async with s3_reader(gateway(url)) as client:
            return await looking(client, gateway(url), "photos")("a")

    with answering({"/photos/a": (200, "seven..")}, {"Last-Modified": "Sat, 21 Nov 2026 02:14:07 GMT"}) as url:
        found = asyncio.run(seen(url))

    assert found == ObjectNow(size=7, etag="", version_id="", modified_us=int(AT.timestamp() * 1e6), metadata={})


@pytest.mark.parametrize(
    ("status", "kind"), [(403, ObjectRefused), (400, ObjectRefused), (501, ReplayError), (404, None)]
)
def test_an_object_that_s3_does_not_show(status: int, kind: type[ReplayError] | None) -> None:
    """One of another account, or encrypted with its client's key, is told apart from one that is gone, and from a
    server that fails."""

    async def seen(url: str) -> ObjectNow | None:
        async with s3_reader(gateway(url)) as client:
            return await looking(client, gateway(url), "photos")("a")

    with answering({"/photos/a": (status, "")}) as url:
        if kind is None:
            assert asyncio.run(seen(url)) is None
            return
        with pytest.raises(ReplayError, match=r"^photos/a at http") as refused:
            asyncio.run(seen(url))

    assert type(refused.value) is kind
