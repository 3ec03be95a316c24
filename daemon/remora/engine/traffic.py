"""The bytes that came and went for each shard of a worker, since the last call of `take`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from remora.model.shard import Shard


@dataclass(frozen=True, slots=True)
class Passed:
    """Bytes of some time: read from queues, acknowledged by endpoints, and both together for each shard."""

    read: int
    acknowledged: int
    shards: Mapping[Shard, int]


@dataclass(slots=True)
class Traffic:
    """Counts them."""

    _read: int = 0
    _acknowledged: int = 0
    _shards: Counter[Shard] = field(default_factory=Counter)

    def read(self, shard: Shard, nbytes: int) -> None:
        """`nbytes` of entries were read from the shard's queue."""
        self._read += nbytes
        self._shards[shard] += nbytes

    def acknowledged(self, shard: Shard, nbytes: int) -> None:
        """An endpoint acknowledged `nbytes` of the shard's entries."""
        self._acknowledged += nbytes
        self._shards[shard] += nbytes

    def take(self) -> Passed:
        """What was counted since the last time."""
        passed = Passed(self._read, self._acknowledged, self._shards)
        self._read, self._acknowledged, self._shards = 0, 0, Counter()
        return passed
