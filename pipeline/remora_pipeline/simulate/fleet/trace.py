"""What a prepared trace offers to each shard, in steps of some seconds."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from remora.codec.shard_hash import shards as shards_of
from remora.model.errors import ConfigError
from remora.model.shard import Shard
from remora_pipeline.simulate.fleet.offered import Recorded

STEP_S = 10.0
"""As long as the pause between two samples: what is finer than that no worker sees."""


def recorded(folder: str, shards: Sequence[Shard], event_bytes: float, speed: float) -> Recorded:
    """The events in the folder that `remora replay prepare` made, each as its bytes in the shard of its key.

    The trace begins at the fleet's first second; `speed` divides its times. Raises ConfigError.
    """
    steps = counts(folder, len(shards), STEP_S, speed)
    return Recorded(
        shards, STEP_S, [{number: count * event_bytes for number, count in sorted(each.items())} for each in steps]
    )


def counts(folder: str, shards: int, step_s: float, speed: float) -> list[Counter[int]]:
    """For each step of the trace in the folder, how many events each of so many shards has. Raises ConfigError."""
    steps: defaultdict[int, Counter[int]] = defaultdict(Counter)
    try:
        import pyarrow as pa  # not there where this was installed without what it needs
        import pyarrow.dataset as ds
    except ImportError as exc:
        raise ConfigError("load.trace", "needs pyarrow: pip install remorad-pipeline") from exc
    try:
        first_us = json.loads((Path(folder) / "trace.json").read_bytes())["first_us"]
        for batch in ds.dataset(str(Path(folder) / "events")).to_batches(columns=["ts_us", "bucket", "key"]):
            times, buckets, keys = (column.to_pylist() for column in batch.columns)
            names = [f"{bucket}:{key}".encode() for bucket, key in zip(buckets, keys, strict=True)]
            for time_us, number in zip(times, shards_of(names, shards) if names else (), strict=True):
                steps[int((time_us - first_us) / 1e6 / speed // step_s)][number] += 1
    except (OSError, ValueError, KeyError, TypeError, RecursionError, pa.ArrowException) as exc:
        raise ConfigError("load.trace", f"{folder} is no prepared trace: {str(exc).partition(chr(10))[0]}") from exc
    return [steps[place] for place in range(max(steps, default=-1) + 1)]
