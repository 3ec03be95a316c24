"""Tables of a catalog in a bucket of a real radosgw."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from devkit.clusters.s3 import Zone, fresh
from remora_pipeline.replay.errors import ReplayError
from remora_pipeline.replay.pipeline.iceberg.catalog import LakeAddress, made
from remora_pipeline.replay.pipeline.iceberg.commits import LandedOffsets, append
from remora_pipeline.replay.pipeline.iceberg.tables import FORMS
from remora_pipeline.replay.pipeline.iceberg.upkeep import UpkeepPlan, maintain
from remora_pipeline.replay.pipeline.s3_objects import s3_reader
from remora_pipeline.replay.run.targets.s3 import Gateway
from replay.lakes import event, files, lake, rows

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.ceph,
    pytest.mark.full("the gate has the same tables in a folder"),
]


async def make_bucket(zone: Zone, name: str) -> None:
    """A bucket of the zone's own user."""
    given = zone.env["s3"]
    gateway = Gateway(given["endpoint"], zone.env["region"], given["access_key"], given["secret_key"], "")
    async with s3_reader(gateway) as client:
        await client.create_bucket(Bucket=name)


def test_a_table_in_a_bucket(zone20: Zone, tmp_path: Path) -> None:
    """With the endpoint and the keys among the catalog's settings a table of s3a is written, read, compacted, and rid
    of the files that nothing names; with a wrong key that is one line."""
    bucket, given = fresh("lake"), zone20.env["s3"]
    asyncio.run(make_bucket(zone20, bucket))
    settings = {
        "s3.endpoint": given["endpoint"],
        "s3.access-key-id": given["access_key"],
        "s3.secret-access-key": given["secret_key"],
        "s3.region": zone20.env["region"],
    }
    address: LakeAddress = replace(lake(tmp_path), warehouse=f"s3a://{bucket}/lake", properties=settings)
    wrong = replace(address, namespace="wrong", properties={**settings, "s3.secret-access-key": "wrong"})
    with pytest.raises(ReplayError, match="lake") as told:
        made(wrong.connected(), wrong, "events", FORMS["events"], {})
    assert "\n" not in str(told.value)

    journal = made(address.connected(), address, "events", FORMS["events"], {})
    for number in range(3):
        before = LandedOffsets(number - 1, {0: number}, number) if number else LandedOffsets()
        append(journal, files(journal, event(number)), before, LandedOffsets(number, {0: number + 1}, number + 1))
    assert rows(journal, "offset", "key") == [(0, "k0"), (1, "k1"), (2, "k2")]

    (done,) = maintain(UpkeepPlan(address, keep_s=0, orphans_s=-60))

    assert (done.compacted, done.files, done.expired) == (3, 1, 3)
    assert done.removed >= 3
    assert rows(journal, "offset", "key") == [(0, "k0"), (1, "k1"), (2, "k2")]
    assert journal.location().startswith(f"s3a://{bucket}/lake")
