"""The section of topics of remora's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from remora.config.checked import Checked
from remora.config.units import Unit
from remora.model.topic import MOST_SHARDS


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsSettings(Checked):
    """What a new topic gets where the command that makes it does not say: `default_shards` queues."""

    default_shards: Annotated[int, Unit("count", 1, MOST_SHARDS)] = 11
