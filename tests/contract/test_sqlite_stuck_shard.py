"""One queue that keeps what it has does not keep the file from being used again."""

from __future__ import annotations

from pathlib import Path

import pytest

from devkit.bench.stuck_shard import SHARDS, stuck_shard

BEYOND_BYTES = 64 << 20


@pytest.mark.parametrize(
    ("rounds", "each", "nbytes"),
    [(48, 16, 3000), pytest.param(640, 250, 200, marks=pytest.mark.full("ten million events"))],
)
async def test_the_file_is_bounded_by_what_the_stuck_queue_holds(
    rounds: int, each: int, nbytes: int, tmp_path: Path
) -> None:
    """While one queue of 64 is stuck, far more goes through the others than the file ever has beside what it holds."""
    found = await stuck_shard(tmp_path / "store", rounds, each, nbytes)

    assert found.events == rounds * each * (SHARDS - 1)
    assert found.events * nbytes > 2 * BEYOND_BYTES
    assert found.held_bytes >= rounds // 10 * each * nbytes
    assert found.file_bytes < found.held_bytes + BEYOND_BYTES
