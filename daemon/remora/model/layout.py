"""Layouts: the ways in which a topic of remora's own is and was divided into shards."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

GENERATION_MARK = "@"
"""Stands in a queue's name before its generation, where that is not 0."""


class LayoutState(StrEnum):
    """What a layout does.

    `preparing`: its queues are made, and it takes nothing yet. `open`: it takes events. `sealed`: it takes what room
    was reserved for before, and is delivered. `shut`: nothing lands in it any longer, and it is delivered.
    """

    PREPARING = "preparing"
    OPEN = "open"
    SEALED = "sealed"
    SHUT = "shut"


@dataclass(frozen=True, slots=True)
class TopicLayout:
    """One division of a topic into shards. A change of their number makes another one, of the next generation."""

    generation: int
    shards: int
    state: LayoutState
