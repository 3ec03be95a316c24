"""How far a landing is behind its topic, by its folder, Spark's checkpoint and the brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from remora_pipeline.replay.errors import ReplayError
from remora_pipeline.replay.job_telemetry import LandingState
from remora_pipeline.replay.kafka_source import KafkaSource, spans
from remora_pipeline.replay.pipeline.checkpoint import reached
from remora_pipeline.replay.pipeline.directory import LandedDirectory


def landing_state(source: KafkaSource, out: Path, checkpoint: Path) -> LandingState:
    """What has landed by now beside what Kafka has. Raises ReplayError when no broker answers."""
    directory = LandedDirectory(out)
    commit = directory.commit()
    found = spans(source)
    landed = {number: first for number, (first, _) in found.items()}
    if commit.batch >= 0:
        landed |= reached(checkpoint, source.topic, commit.batch)
    return LandingState(
        topic=source.topic,
        landed=landed,
        ends={number: end for number, (_, end) in found.items()},
        newest_us=newest_us(directory.events),
        events=commit.events,
        bad=commit.bad,
    )


def newest_us(events: Path) -> int:
    """The time of the newest event, by the footers of the newest day's files; 0 where there is none."""
    days = sorted(events.glob("day=*"), reverse=True) if events.exists() else []
    for day in days:
        if found := [us for file in day.rglob("*.parquet") for us in _most(file)]:
            return max(found)
    return 0


def _most(file: Path) -> Iterator[int]:
    try:
        metadata = pq.read_metadata(file)
    except FileNotFoundError:  # compacted meanwhile
        return
    except (OSError, pa.ArrowException) as exc:
        raise ReplayError(f"{file}: {getattr(exc, 'strerror', None) or exc}") from exc
    place = metadata.schema.to_arrow_schema().get_field_index("event_time")
    for number in range(metadata.num_row_groups):
        told = metadata.row_group(number).column(place).statistics if place >= 0 else None
        if told is not None and told.has_min_max:
            yield int(told.max.timestamp() * 1e6)
