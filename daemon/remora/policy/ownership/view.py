"""What one worker sees of the shards and of the other workers: all that a plan depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from remora.model.shard import Shard
from remora.policy.ownership.membership import Membership
from remora.policy.ownership.not_owned import NotOwned

SHORT_READINGS = 2
"""Readings in a row by which the others own less than was seen: one alone may be of a moment when something moved."""


class Owned(Protocol):
    """What a plan asks of an owned shard."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs for it."""
        ...

    @property
    def is_leaving(self) -> bool:
        """Whether it is being given back already."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether entries wait in it, as far as is known."""
        ...


@dataclass(frozen=True, slots=True)
class View:
    """What a worker sees at `now`, in seconds of the monotonic clock.

    `shards` are the catalogue's with their places in it, `released` those that a command left to radosgw, `foreign`
    those whose topics are not remora's to deliver, with the reason. `owned` and `observed` are the shards that this
    worker owns, and what it knows of those that it does not. `changed` when the catalogue says something new.
    `short_readings` counts the readings in a row by which the other workers own less than was seen. `quarantined` are
    the shards whose destination some worker has in quarantine, each with its name.
    """

    now: float
    shards: Mapping[Shard, int]
    owned: Mapping[Shard, Owned]
    observed: Mapping[Shard, NotOwned]
    members: Membership
    released: frozenset[Shard] = frozenset()
    foreign: Mapping[Shard, str] = field(default_factory=dict)
    changed: bool = True
    short_readings: int = 0
    quarantined: Mapping[Shard, str] = field(default_factory=dict)
    interval_s: float = 2.0

    @property
    def has_room(self) -> bool:
        """Whether this worker may take another shard at once."""
        return self.members.has_room(len(self.owned))

    @property
    def is_short(self) -> bool:
        """Whether another worker seems to have released a shard without an announcement."""
        return self.short_readings >= SHORT_READINGS
