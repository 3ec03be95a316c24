"""The sections of topics of remora's own, and of the advice on their shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from remora.config.checked import Checked
from remora.config.units import Bytes, Unit
from remora.model.topic import MOST_SHARDS


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsSettings(Checked):
    """What a new topic gets where the command that makes it does not say: `default_shards` queues."""

    default_shards: Annotated[int, Unit("count", 1, MOST_SHARDS)] = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceSettings(Checked):
    """What the advice on a topic's shards goes by: the `events` and `bytes` a second that one shard should have at
    most, and how long a commit to one object takes on RADOS."""

    events: Annotated[int, Unit("count", 1, 10_000_000)] = 30_000
    bytes: Bytes = 100_000_000
    commit_latency_s: Annotated[float, Unit("duration", 0.0, 10.0)] = 0.005
