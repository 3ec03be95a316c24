"""What is added up of what waits in a topic's queues."""

from __future__ import annotations

import pytest

from remora.engine.backlog import Backlog
from remora.model.shard import Shard, ShardStats


def stats(entries: int, oldest_age_s: float | None) -> ShardStats:
    """A queue in which so many entries wait."""
    return ShardStats(Shard("t"), entries, True, entries * 100, 1 << 20, 0, 0, oldest_age_s, None)


@pytest.mark.parametrize(
    ("queues", "entries", "oldest_age_s"),
    [
        ([], 0, None),
        ([(0, None)], 0, None),
        ([(3, None)], 3, None),
        ([(3, 0.0)], 3, 0.0),
        ([(3, 5.0), (1, None), (2, 9.0)], 6, 9.0),
    ],
)
def test_the_age_is_that_of_the_oldest_entry_that_tells_it(
    queues: list[tuple[int, float | None]], entries: int, oldest_age_s: float | None
) -> None:
    """Where nothing waits, or no entry tells its age, none is said: 0 seconds would mean that nothing is late."""
    backlog = Backlog()
    for each in queues:
        backlog.add(stats(*each))

    assert (backlog.entries, backlog.oldest_age_s) == (entries, oldest_age_s)
