"""How far a landing into a catalog's tables is behind its topic, by the newest snapshot and the brokers."""

from __future__ import annotations

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.types import DateType, TimestamptzType

from remora_pipeline.replay.job_telemetry import LandingState
from remora_pipeline.replay.kafka_source import KafkaSource, spans
from remora_pipeline.replay.pipeline.iceberg.catalog import LakeAddress, existing, told_as
from remora_pipeline.replay.pipeline.iceberg.commits import LandedOffsets, landed_in
from remora_pipeline.replay.pipeline.iceberg.tables import EVENTS


def lake_state(source: KafkaSource, lake: LakeAddress) -> LandingState:
    """What has landed by now beside what Kafka has. Raises ReplayError when no broker or no catalog answers."""
    table, landed = journal(lake)
    there = spans(source)
    with told_as(lake.uri):
        newest = 0 if table is None else newest_us(table)
    return LandingState(
        topic=source.topic,
        landed={number: max(first, landed.ends.get(number, first)) for number, (first, _) in there.items()},
        ends={number: end for number, (_, end) in there.items()},
        newest_us=newest,
        events=landed.events,
        bad=landed.bad,
    )


def journal(lake: LakeAddress) -> tuple[Table | None, LandedOffsets]:
    """A lake's journal, where there is one, and what has landed in it; makes nothing.

    Raises ReplayError when no catalog answers.
    """
    table = existing(lake.connected(makes=False), lake, EVENTS) if lake.is_there() else None
    return table, LandedOffsets() if table is None else landed_in(table)


def newest_us(table: Table) -> int:
    """The time of the newest event, by the bounds of the files of the newest day; 0 where there is none."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return 0
    manifests = snapshot.manifests(table.io)
    newest = max((day for each in manifests if (day := _newest_day(each)) is not None), default=None)
    place = table.schema().find_field("record_timestamp").field_id
    bounds = [
        bound
        for manifest in manifests
        if _newest_day(manifest) == newest
        for entry in manifest.fetch_manifest_entry(table.io)
        if (bound := entry.data_file.upper_bounds.get(place)) is not None
    ]
    return max((int(from_bytes(TimestamptzType(), bound)) for bound in bounds), default=0)


def _newest_day(manifest: ManifestFile) -> int | None:
    """The newest of a manifest's days, counted from 1970, before which they are negative; None where it has none."""
    bound = manifest.partitions[0].upper_bound if manifest.partitions else None
    return int(from_bytes(DateType(), bound)) if bound else None
